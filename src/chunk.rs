//! What travels: documents are split into chunks, and a chunk is known by its key and by its content.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Longest id of a document, in bytes of UTF-8.
pub const DOC_ID_BYTES_MAX: usize = 1_024;

/// 32 bytes of SHA-256; lower-case hex in text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// SHA-256 of `bytes`.
    ///
    /// ```
    /// use forebay::chunk::Digest;
    /// let hex = Digest::of(b"abc").to_string();
    /// assert_eq!(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    /// assert_eq!(hex.parse::<Digest>().unwrap(), Digest::of(b"abc"));
    /// ```
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The first `n` hex digits, for names and messages.
    pub fn short(&self, n: usize) -> String {
        self.to_string()[..n.min(64)].to_owned()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In one piece: a digest of every row passes here, and 32 formatted bytes cost as much as hashing its text.
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 64];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Digest {
    type Err = String;

    fn from_str(hex: &str) -> Result<Self, String> {
        let bad = || "expected 64 hex digits of a sha256".to_owned();
        if hex.len() != 64 || !hex.is_ascii() {
            return Err(bad());
        }
        let mut bytes = [0_u8; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The logical unit of work. At most one vector and one open dead letter per key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ChunkKey {
    /// Id of the document.
    pub doc_id: String,
    /// Place of the chunk in its document, from 0.
    pub chunk_index: u64,
}

impl ChunkKey {
    /// A key.
    pub fn new(doc_id: impl Into<String>, chunk_index: u64) -> Self {
        Self { doc_id: doc_id.into(), chunk_index }
    }

    /// 16 bytes that stand for this key in indexes: a prefix of a SHA-256, so that 10⁹ keys stay apart.
    pub fn short_hash(&self) -> u128 {
        let mut hasher = Sha256::new();
        hasher.update(self.doc_id.as_bytes());
        hasher.update([0]);
        hasher.update(self.chunk_index.to_le_bytes());
        let digest: [u8; 32] = hasher.finalize().into();
        u128::from_be_bytes(digest[..16].try_into().expect("16 of 32 bytes"))
    }

    /// The UUIDv5 for stores that want one: of `doc_id ‖ 0x00 ‖ decimal chunk_index` in the namespace
    /// UUIDv5(DNS, "forebay.chunk"). A changed text keeps its UUID and so overwrites its old vector.
    ///
    /// ```
    /// use forebay::chunk::ChunkKey;
    /// let namespace = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_DNS, b"forebay.chunk");
    /// assert_eq!(ChunkKey::new("doc-1", 7).uuid(), uuid::Uuid::new_v5(&namespace, b"doc-1\x007"));
    /// ```
    pub fn uuid(&self) -> uuid::Uuid {
        let namespace = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_DNS, b"forebay.chunk");
        let mut name = self.doc_id.as_bytes().to_vec();
        name.push(0);
        name.extend(self.chunk_index.to_string().bytes());
        uuid::Uuid::new_v5(&namespace, &name)
    }
}

impl fmt::Display for ChunkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.doc_id, self.chunk_index)
    }
}

/// Hash over key and content: `sha256(len(doc_id) as u64 LE ‖ doc_id ‖ chunk_index as u64 LE ‖ content_hash)`.
///
/// ```
/// use forebay::chunk::{chunk_id, ChunkKey, Digest};
/// let id = chunk_id(&ChunkKey::new("doc-1", 0), &Digest::of(b"hello"));
/// assert_eq!(id.to_string(), "7d62ecc7357c6709a0b26d103d1abd80c52c7747b2666eb734eeb5af14988adb");
/// let id = chunk_id(&ChunkKey::new("Ärger", 4_294_967_296), &Digest::of(b""));
/// assert_eq!(id.to_string(), "975b48c8ace6e7c7dd61d4a3ae391b0497a4f469222daf518dd4efcf48a3cedb");
/// ```
pub fn chunk_id(key: &ChunkKey, content_hash: &Digest) -> Digest {
    let mut hasher = Sha256::new();
    hasher.update((key.doc_id.len() as u64).to_le_bytes());
    hasher.update(key.doc_id.as_bytes());
    hasher.update(key.chunk_index.to_le_bytes());
    hasher.update(content_hash.0);
    Digest(hasher.finalize().into())
}

/// The unit of work: one text to be embedded, with all that is needed to store its vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The logical job.
    pub key: ChunkKey,
    /// The text as it will be embedded.
    pub text: String,
    /// The record's `meta` as compact JSON, untouched.
    pub meta: Option<String>,
    /// SHA-256 of the text as read.
    pub source_hash: Digest,
    /// Which registered source it came from (`sources.source_id` of the ledger).
    pub source_id: i64,
    /// Place of its record in that source: the byte offset in the decoded stream. Later wins.
    pub ordinal: u64,
    /// Line of its record (from 1), for messages.
    pub line: u64,
}

impl Chunk {
    /// SHA-256 of the text as embedded.
    pub fn content_hash(&self) -> Digest {
        Digest::of(self.text.as_bytes())
    }

    /// See [`chunk_id`].
    pub fn id(&self) -> Digest {
        chunk_id(&self.key, &self.content_hash())
    }
}

/// How far from 1 the norm of a vector may be.
const NORM_TOLERANCE: f32 = 1e-3;

/// What the embedder makes of a chunk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embedding {
    /// The dense vector: `dim` numbers, finite, of norm 1.
    pub dense: Vec<f32>,
    /// Where asked for: token ids, ascending, each with its weight, finite and over 0. Perhaps none.
    pub sparse: Option<Vec<(u32, f32)>>,
    /// Where asked for: `n_tokens - 1` rows of `dim` numbers, one after another, each of norm 1: a row for each token but
    /// the first.
    pub multi: Option<Vec<f32>>,
    /// Tokens that went through the model, specials included.
    pub n_tokens: u32,
    /// Whether the text was cut to the model's length.
    pub truncated: bool,
}

impl Embedding {
    /// Whether every output is as its field says, for a model of `dim` numbers.
    ///
    /// # Errors
    /// A sentence: which output is not, and how.
    pub fn check(&self, dim: usize) -> Result<(), String> {
        is_unit(&self.dense, dim).map_err(|what| format!("dense: {what}"))?;
        if let Some(sparse) = &self.sparse {
            // Its place, not its id: an id is a piece of the text.
            if let Some(at) = sparse.iter().position(|(_, weight)| !(weight.is_finite() && *weight > 0.0)) {
                return Err(format!("sparse: weight {at} is {}", sparse[at].1));
            }
            if !sparse.is_sorted_by(|a, b| a.0 < b.0) {
                return Err("sparse: token ids are not ascending".into());
            }
        }
        if let Some(multi) = &self.multi {
            let rows = (self.n_tokens as usize).saturating_sub(1);
            if multi.len() != rows * dim {
                return Err(format!("multi: {} numbers instead of {rows} rows of {dim}", multi.len()));
            }
            for (at, row) in multi.chunks_exact(dim.max(1)).enumerate() {
                is_unit(row, dim).map_err(|what| format!("multi, row {at}: {what}"))?;
            }
        }
        Ok(())
    }
}

/// Whether it is `dim` finite numbers of norm 1.
fn is_unit(vector: &[f32], dim: usize) -> Result<(), String> {
    if vector.len() != dim {
        return Err(format!("{} numbers instead of {dim}", vector.len()));
    }
    if let Some(at) = vector.iter().position(|value| !value.is_finite()) {
        return Err(format!("number {at} is {}", vector[at]));
    }
    let norm = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if (norm - 1.0).abs() > NORM_TOLERANCE {
        return Err(format!("norm {norm} instead of 1"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_equal_keys_stay_apart() {
        let keys = ["a", "A", "a ", " a", "a#1"].map(|id| ChunkKey::new(id, 1).short_hash());
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert_ne!(ChunkKey::new("a", 1).short_hash(), ChunkKey::new("a", 2).short_hash());
    }

    #[test]
    fn chunk_id_changes_with_text_and_key_only() {
        let chunk = |doc: &str, text: &str, ordinal| Chunk {
            key: ChunkKey::new(doc, 0),
            text: text.into(),
            meta: None,
            source_hash: Digest::of(text.as_bytes()),
            source_id: 1,
            ordinal,
            line: 1,
        };
        assert_eq!(chunk("a", "t", 1).id(), chunk("a", "t", 2).id());
        assert_ne!(chunk("a", "t", 1).id(), chunk("a", "u", 1).id());
        assert_ne!(chunk("a", "t", 1).id(), chunk("b", "t", 1).id());
    }

    #[test]
    fn a_spoilt_output_is_named() {
        let good = Embedding {
            dense: vec![0.6, 0.8],
            sparse: Some(vec![(4, 0.5), (9, 1e-6)]),
            multi: Some(vec![1.0, 0.0, 0.6, 0.8]),
            n_tokens: 3,
            truncated: false,
        };
        assert_eq!(good.check(2), Ok(()));
        let none = Embedding { sparse: Some(vec![]), multi: Some(vec![]), n_tokens: 1, ..good.clone() };
        assert_eq!(none.check(2), Ok(()));
        let said = |spoil: fn(&mut Embedding)| {
            let mut bad = good.clone();
            spoil(&mut bad);
            bad.check(2).unwrap_err()
        };
        assert_eq!(said(|e| e.dense = vec![1.0]), "dense: 1 numbers instead of 2");
        assert_eq!(said(|e| e.dense[1] = f32::NAN), "dense: number 1 is NaN");
        assert_eq!(said(|e| e.dense = vec![0.0, 0.0]), "dense: norm 0 instead of 1");
        assert_eq!(said(|e| e.sparse = Some(vec![(4, 0.0)])), "sparse: weight 0 is 0");
        assert_eq!(said(|e| e.sparse = Some(vec![(4, f32::INFINITY)])), "sparse: weight 0 is inf");
        assert_eq!(
            said(|e| e.sparse = Some(vec![(4, 1.0), (4, 1.0)])),
            "sparse: token ids are not ascending"
        );
        assert_eq!(said(|e| e.n_tokens = 4), "multi: 4 numbers instead of 3 rows of 2");
        assert_eq!(
            said(|e| e.multi = Some(vec![1.0, 0.0, 0.6, 0.9])).get(..22),
            Some("multi, row 1: norm 1.0")
        );
    }
}

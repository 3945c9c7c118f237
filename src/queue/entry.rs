//! Stored forms: keys and values of the one tree, each value with a version byte.

use crate::chunk::{Chunk, ChunkKey, Digest};

/// Version of the stored forms of this room.
pub const FORMAT: u8 = 1;

/// Version of a pending chunk. Version 1 held the time of its first failure where its waits stand now.
const PENDING_FORMAT: u8 = 2;

/// Store id, generation and format: `m`.
pub const META: &[u8] = b"m";
/// Bytes of the journal that this tree already knows: `j`.
pub const JOURNAL: &[u8] = b"j";
/// Pending chunks by sequence number.
pub const PENDING: u8 = b'p';
/// Started marks by mark number.
pub const MARK: u8 = b's';
/// Dead letters by id.
pub const DEAD: u8 = b'd';
/// Short hash of a dead letter's subject to its id.
pub const DEAD_BY_KEY: u8 = b'x';

/// Key of a numbered record: prefix and big-endian number, so that order is insertion order.
pub fn numbered(prefix: u8, number: u64) -> [u8; 9] {
    let mut key = [prefix; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Key of a record known by 16 bytes.
pub fn hashed(prefix: u8, hash: u128) -> [u8; 17] {
    let mut key = [prefix; 17];
    key[1..].copy_from_slice(&hash.to_be_bytes());
    key
}

/// The number in a [`numbered`] key.
pub fn number_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(1..9)?.try_into().ok()?))
}

/// What is known of a chunk beside its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Attempts that were charged.
    pub attempts: u32,
    /// Not to be leased before this time, milliseconds since 1970.
    pub not_before_ms: u64,
    /// Waits between its charged attempts, in milliseconds.
    pub waited_ms: u64,
    /// Times the process died while it was worked on, in company.
    pub unclean: u8,
    /// Times the process died while it alone was worked on.
    pub unclean_alone: u8,
    /// The dead letter it was redriven from; 0: none.
    pub redriven_from: u128,
}

/// A pending chunk as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The chunk.
    pub chunk: Chunk,
    /// Its history.
    pub record: Record,
}

impl Pending {
    /// Version byte, fixed fields, then length-prefixed id, meta and text.
    pub fn encode(&self) -> Vec<u8> {
        let Self { chunk, record } = self;
        let meta = chunk.meta.as_deref().unwrap_or("");
        let mut out = Vec::with_capacity(128 + chunk.key.doc_id.len() + meta.len() + chunk.text.len());
        out.push(PENDING_FORMAT);
        out.extend(chunk.key.chunk_index.to_le_bytes());
        out.extend(chunk.source_hash.0);
        out.extend(chunk.source_id.to_le_bytes());
        out.extend(chunk.ordinal.to_le_bytes());
        out.extend(chunk.line.to_le_bytes());
        out.extend(record.attempts.to_le_bytes());
        out.extend(record.not_before_ms.to_le_bytes());
        out.extend(record.waited_ms.to_le_bytes());
        out.push(record.unclean);
        out.push(record.unclean_alone);
        out.extend(record.redriven_from.to_le_bytes());
        out.push(u8::from(chunk.meta.is_some()));
        for text in [chunk.key.doc_id.as_str(), meta, chunk.text.as_str()] {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        }
        out
    }

    /// The inverse of [`Pending::encode`]; `None` when the bytes are not ours.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let format = reader.byte()?;
        if !(FORMAT..=PENDING_FORMAT).contains(&format) {
            return None;
        }
        let chunk_index = reader.number()?;
        let source_hash = Digest(reader.array()?);
        let (source_id, ordinal, line) =
            (i64::from_le_bytes(reader.array()?), reader.number()?, reader.number()?);
        let record = Record {
            attempts: u32::from_le_bytes(reader.array()?),
            not_before_ms: reader.number()?,
            // What an older version wrote is a time: its waits are not known, and begin anew.
            waited_ms: reader.number().map(|ms| if format == PENDING_FORMAT { ms } else { 0 })?,
            unclean: reader.byte()?,
            unclean_alone: reader.byte()?,
            redriven_from: u128::from_le_bytes(reader.array()?),
        };
        let has_meta = reader.byte()? == 1;
        let (doc_id, meta, text) = (reader.text()?, reader.text()?, reader.text()?);
        let key = ChunkKey { doc_id, chunk_index };
        let meta = has_meta.then_some(meta);
        reader.0.is_empty().then_some(Self {
            chunk: Chunk { key, text, meta, source_hash, source_id, ordinal, line },
            record,
        })
    }
}

/// The chunks of one lease: written before the work starts, gone when all of them are settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Boot id of the machine, so that a power cut is told from a crash.
    pub boot: u128,
    /// Sequence numbers of the chunks.
    pub seqs: Vec<u64>,
}

impl Mark {
    /// Version byte, boot id, numbers.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        out.extend(self.boot.to_le_bytes());
        self.seqs.iter().for_each(|seq| out.extend(seq.to_le_bytes()));
        out
    }

    /// The inverse of [`Mark::encode`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.byte()? != FORMAT {
            return None;
        }
        let boot = u128::from_le_bytes(reader.array()?);
        let mut seqs = Vec::with_capacity(reader.0.len() / 8);
        while !reader.0.is_empty() {
            seqs.push(reader.number()?);
        }
        Some(Self { boot, seqs })
    }
}

/// Which store this tree belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Store id.
    pub store: u128,
    /// Counts opens; never behind the witness's unless the tree was rolled back.
    pub generation: u64,
}

impl Meta {
    /// Version byte, store id, generation.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        out.extend(self.store.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        out
    }

    /// The inverse of [`Meta::encode`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.byte()? != FORMAT {
            return None;
        }
        Some(Self { store: u128::from_le_bytes(reader.array()?), generation: reader.number()? })
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(head.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pending_reads_back(
            doc_id in ".{0,40}", text in ".{0,200}", meta in proptest::option::of(".{0,40}"),
            chunk_index: u64, ordinal: u64, source_id: i64, attempts: u32, redriven_from: u128, unclean: u8,
        ) {
            let source_hash = Digest::of(text.as_bytes());
            let key = ChunkKey { doc_id, chunk_index };
            let pending = Pending {
                chunk: Chunk { key, text, meta, source_hash, source_id, ordinal, line: 7 },
                record: Record { attempts, redriven_from, unclean, waited_ms: ordinal, ..Record::default() },
            };
            let mut bytes = pending.encode();
            prop_assert_eq!(Pending::decode(&bytes), Some(pending.clone()));
            // As version 1 wrote it, with a time where the waits stand.
            bytes[0] = 1;
            let record = Record { waited_ms: 0, ..pending.record };
            prop_assert_eq!(Pending::decode(&bytes), Some(Pending { record, ..pending }));
        }

        #[test]
        fn damaged_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Pending::decode(&bytes);
            let _ = Mark::decode(&bytes);
            let _ = Meta::decode(&bytes);
        }
    }

    #[test]
    fn marks_and_meta_read_back() {
        let mark = Mark { boot: 9, seqs: vec![1, u64::MAX] };
        assert_eq!(Mark::decode(&mark.encode()), Some(mark));
        let meta = Meta { store: 5, generation: 6 };
        assert_eq!(Meta::decode(&meta.encode()), Some(meta));
        assert_eq!(number_of(&numbered(PENDING, 77)), Some(77));
    }
}

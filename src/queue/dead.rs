//! A dead letter: what was buried, why, what it takes to rebuild it, and all that was done to it since.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::quarantine::Standing;
pub use super::{
    burial::Burial,
    transition::{Newer, Transition},
};
use crate::{
    chunk::{Chunk, ChunkKey, Digest},
    error::{Class, Stage},
};

/// Name of the entry's form.
pub const FORM: &str = "forebay-dead-letter-v1";

/// What a dead letter is about. At most one open letter per subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Subject {
    /// A chunk.
    Chunk(ChunkKey),
    /// An input record that cannot be read.
    Record {
        /// The file it stands in: its uri, or [`hidden`] beside a [`Payload::Reference`].
        source: String,
        /// Byte offset in the decoded stream.
        offset: u64,
        /// SHA-256 of the record's bytes.
        raw_hash: Digest,
    },
}

/// What stands for a uri where no path may: `sha256:` and its digest.
pub fn hidden(uri: &str) -> String {
    format!("sha256:{}", Digest::of(uri.as_bytes()))
}

impl Subject {
    /// 16 bytes that stand for the subject in the index.
    pub fn short_hash(&self) -> u128 {
        match self {
            Self::Chunk(key) => key.short_hash(),
            Self::Record { source, offset, raw_hash } => {
                let text = format!("record\0{source}\0{offset}\0{raw_hash}");
                u128::from_be_bytes(Digest::of(text.as_bytes()).0[..16].try_into().expect("16 of 32 bytes"))
            }
        }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Chunk(key) => key.fmt(f),
            Self::Record { source, offset, .. } => write!(f, "{source}@{offset}"),
        }
    }
}

/// Where a letter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Waits for a person.
    Open,
    /// Was sent back into the queue.
    Redriven,
    /// Failed again the same way; needs approval.
    Quarantined,
    /// Its chunk, or a newer version of it, is written.
    Resolved,
    /// Given up, with a reason.
    Discarded,
}

impl State {
    /// The text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Redriven => "redriven",
            Self::Quarantined => "quarantined",
            Self::Resolved => "resolved",
            Self::Discarded => "discarded",
        }
    }

    /// Whether the letter still stands for its subject, so that reading the same input again skips it.
    pub const fn stands(self) -> bool {
        !matches!(self, Self::Resolved)
    }

    /// Whether somebody still has to act, or its chunk is on its way.
    pub const fn unresolved(self) -> bool {
        matches!(self, Self::Open | Self::Redriven | Self::Quarantined)
    }
}

/// Where the chunk or record was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Number of the source in the ledger.
    pub source_id: i64,
    /// Its uri (a path); empty beside a [`Payload::Reference`].
    pub source: String,
    /// Line, from 1; 0 for a file that is one document.
    pub line: u64,
    /// Byte offset of the record in the decoded stream.
    pub offset: u64,
}

/// All that is needed to rebuild the chunk or to look at the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// A chunk.
    Chunk {
        /// Its text.
        text: String,
        /// Its metadata as JSON text.
        meta: Option<String>,
        /// SHA-256 of the text as read.
        source_hash: Digest,
    },
    /// A record's bytes, base64; only the first 1,024 of an over-long line.
    Raw {
        /// The bytes.
        base64: String,
        /// Length of the whole record.
        bytes: u64,
    },
    /// Nothing of it: enough to find it in its source again, and to know that it is the same.
    Reference {
        /// SHA-256 of the chunk's text as read, or of the record's bytes.
        hash: Digest,
        /// Its length.
        bytes: u64,
        /// The checksum of `source` over a chunk's text; 0 for a record.
        checksum: u64,
    },
}

impl Payload {
    /// SHA-256 of the text as read, for a chunk.
    pub const fn source_hash(&self) -> Option<&Digest> {
        match self {
            Self::Chunk { source_hash, .. } => Some(source_hash),
            Self::Reference { hash, .. } => Some(hash),
            Self::Raw { .. } => None,
        }
    }
}

/// One thing that was done to a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// When, RFC 3339 UTC.
    pub at: String,
    /// What.
    pub what: String,
    /// By whom.
    pub who: String,
    /// Why, when they said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How a letter was sent back into the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// How it will have been resolved when it is written: `as_is`, `repaired`, `approved`.
    pub how: String,
    /// What was mended, and by what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repairs: Vec<String>,
    /// Whether its text was cut, so that its row says so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// As which chunk; the first, when there are several.
    pub key: ChunkKey,
    /// As how many.
    pub chunks: u64,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// [`FORM`].
    pub form: String,
    /// UUIDv7: ids sort by time.
    pub id: Uuid,
    /// What it is about.
    pub subject: Subject,
    /// Id of the document, where that much is known.
    pub doc_id: Option<String>,
    /// Chunk id, for a chunk.
    pub chunk_id: Option<Digest>,
    /// Identity it was to be embedded under ([`crate::identity::Identity::stored`]), for a chunk.
    pub identity: Option<String>,
    /// Where it stands.
    pub state: State,
    /// Stage that buried it.
    pub stage: Stage,
    /// Class of the last failure.
    pub class: Class,
    /// Code of the part that failed.
    pub native_code: Option<String>,
    /// Never text of the document, never a secret.
    pub message: String,
    /// Attempts charged, over all redrives.
    pub attempts: u32,
    /// Times it was redriven.
    pub redrives: u32,
    /// RFC 3339 UTC.
    pub first_failed_at: String,
    /// RFC 3339 UTC.
    pub last_failed_at: String,
    /// RFC 3339 UTC.
    pub quarantined_at: Option<String>,
    /// RFC 3339 UTC; also when discarded.
    pub resolved_at: Option<String>,
    /// `as_is`, `repaired`, `reconciled`, `approved`, `superseded`; the reason when discarded.
    pub resolved_how: Option<String>,
    /// How it was sent back last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Sent>,
    /// Where it was read.
    pub origin: Origin,
    /// What it takes to rebuild it.
    pub payload: Payload,
    /// What was done to it.
    pub audit: Vec<Audit>,
}

impl DeadLetter {
    /// Whether it is about a later record: of this source, or of one registered after it.
    pub fn is_newer_than(&self, source_id: i64, ordinal: u64) -> bool {
        (self.origin.source_id, self.origin.offset) > (source_id, ordinal)
    }

    /// Whether it is about this text; one that was repaired is still about the text as it was read.
    pub fn is_about(&self, chunk: &Chunk) -> bool {
        match (&self.subject, self.payload.source_hash()) {
            (Subject::Chunk(_), Some(source_hash)) => *source_hash == chunk.source_hash,
            _ => self.chunk_id.is_none_or(|id| id == chunk.id()),
        }
    }

    /// What it is when its subject fails again.
    pub fn standing(&self) -> Standing {
        Standing { state: self.state, class: self.class, redrives: self.redrives }
    }

    /// When something last happened to it, RFC 3339 UTC; being taken over from another data folder is nothing.
    pub fn changed_at(&self) -> &str {
        let audits = self.audit.iter().filter(|audit| audit.what != "import").map(|audit| audit.at.as_str());
        audits.chain([self.last_failed_at.as_str()]).max().unwrap_or_default()
    }

    /// The chunk it was, rebuilt from its payload; `None` for a record that could not be read.
    pub fn chunk(&self) -> Option<Chunk> {
        let (Subject::Chunk(key), Payload::Chunk { text, meta, source_hash }) =
            (&self.subject, &self.payload)
        else {
            return None;
        };
        Some(Chunk {
            key: key.clone(),
            text: text.clone(),
            meta: meta.clone(),
            source_hash: *source_hash,
            source_id: self.origin.source_id,
            ordinal: self.origin.offset,
            line: self.origin.line,
        })
    }
}

//! A dead letter: what was buried, why, what it takes to rebuild it, and all that was done to it since.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{
    chunk::{ChunkKey, Digest},
    error::{Class, Fault, Stage},
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
        /// The source's uri.
        source: String,
        /// Byte offset in the decoded stream.
        offset: u64,
        /// SHA-256 of the record's bytes.
        raw_hash: Digest,
    },
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
    /// Its uri (a path).
    pub source: String,
    /// Line, from 1.
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
    /// Where it was read.
    pub origin: Origin,
    /// What it takes to rebuild it.
    pub payload: Payload,
    /// What was done to it.
    pub audit: Vec<Audit>,
}

impl DeadLetter {
    /// Whether it is about a later record of this source.
    pub fn is_newer_than(&self, source_id: i64, ordinal: u64) -> bool {
        self.origin.source_id == source_id && self.origin.offset > ordinal
    }
}

/// A change to a letter: what the journal holds, one a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Transition {
    /// A new letter.
    Bury {
        /// The whole letter.
        letter: Box<DeadLetter>,
    },
    /// Its subject failed again: attempts add up, class, message and time are the newer ones.
    FailedAgain {
        /// Id of the letter.
        id: Uuid,
        /// Attempts to add.
        attempts: u32,
        /// What happened now.
        class: Class,
        /// The stage.
        stage: Stage,
        /// In words.
        message: String,
        /// Code of the part that failed.
        native_code: Option<String>,
        /// Chunk id that failed now.
        chunk_id: Option<Digest>,
        /// What it takes to rebuild the newer version.
        payload: Payload,
        /// Where that was read.
        origin: Origin,
    },
    /// Sent back into the queue.
    Redrive {
        /// Id of the letter.
        id: Uuid,
        /// By whom.
        who: String,
    },
    /// Redriven, but its chunk did not come back into the queue: a crash, or a queue that was lost.
    Reopen {
        /// Id of the letter.
        id: Uuid,
    },
    /// Written.
    Resolve {
        /// Id of the letter.
        id: Uuid,
        /// How.
        how: String,
    },
    /// Given up.
    Discard {
        /// Id of the letter.
        id: Uuid,
        /// By whom.
        who: String,
        /// Why.
        reason: String,
    },
}

impl Transition {
    /// Id of the letter it changes.
    pub fn id(&self) -> Uuid {
        match self {
            Self::Bury { letter } => letter.id,
            Self::FailedAgain { id, .. }
            | Self::Redrive { id, .. }
            | Self::Reopen { id }
            | Self::Resolve { id, .. }
            | Self::Discard { id, .. } => *id,
        }
    }

    /// The letter after this change at `at`; `None` when there is no letter it could change.
    pub fn apply(&self, letter: Option<DeadLetter>, at: &str) -> Option<DeadLetter> {
        if let Self::Bury { letter } = self {
            return Some((**letter).clone());
        }
        let mut letter = letter?;
        let (what, who, why) = self.audit_words();
        letter.audit.push(Audit { at: at.to_owned(), what: what.to_owned(), who, why });
        match self {
            Self::Bury { .. } => {}
            Self::FailedAgain {
                attempts,
                class,
                stage,
                message,
                native_code,
                chunk_id,
                payload,
                origin,
                ..
            } => {
                letter.state = State::Open;
                letter.attempts += attempts;
                (letter.class, letter.stage) = (*class, *stage);
                letter.message.clone_from(message);
                letter.native_code.clone_from(native_code);
                letter.chunk_id = *chunk_id;
                letter.payload = payload.clone();
                letter.origin = origin.clone();
                at.clone_into(&mut letter.last_failed_at);
            }
            Self::Redrive { .. } => {
                letter.state = State::Redriven;
                letter.redrives += 1;
            }
            Self::Reopen { .. } => letter.state = State::Open,
            Self::Resolve { how, .. } => {
                letter.state = State::Resolved;
                letter.resolved_at = Some(at.to_owned());
                letter.resolved_how = Some(how.clone());
            }
            Self::Discard { reason, .. } => {
                letter.state = State::Discarded;
                letter.resolved_at = Some(at.to_owned());
                letter.resolved_how = Some(reason.clone());
            }
        }
        Some(letter)
    }

    fn audit_words(&self) -> (&'static str, String, Option<String>) {
        match self {
            Self::Bury { .. } => ("bury", "forebay".into(), None),
            Self::FailedAgain { class, .. } => ("failed_again", "forebay".into(), Some(class.to_string())),
            Self::Redrive { who, .. } => ("redrive", who.clone(), None),
            Self::Reopen { .. } => ("reopen", "forebay".into(), Some("its chunk was lost on the way".into())),
            Self::Resolve { how, .. } => ("resolve", "forebay".into(), Some(how.clone())),
            Self::Discard { who, reason, .. } => ("discard", who.clone(), Some(reason.clone())),
        }
    }
}

/// A failure of a subject, on its way to become a dead letter.
#[derive(Clone, Debug)]
pub struct Burial {
    /// What failed.
    pub subject: Subject,
    /// Id of the document, where known.
    pub doc_id: Option<String>,
    /// Chunk id, for a chunk.
    pub chunk_id: Option<Digest>,
    /// Identity, for a chunk.
    pub identity: Option<String>,
    /// Stage that failed.
    pub stage: Stage,
    /// Why.
    pub fault: Fault,
    /// Attempts charged.
    pub attempts: u32,
    /// Where it was read.
    pub origin: Origin,
    /// What it takes to rebuild it.
    pub payload: Payload,
}

impl Burial {
    /// The transition: a new letter, or one more failure of the letter that stands.
    pub fn transition(self, standing: Option<&DeadLetter>, at: &str) -> Transition {
        if let Some(letter) = standing {
            return Transition::FailedAgain {
                id: letter.id,
                attempts: self.attempts,
                class: self.fault.class,
                stage: self.stage,
                message: self.fault.message,
                native_code: self.fault.native_code,
                chunk_id: self.chunk_id,
                payload: self.payload,
                origin: self.origin,
            };
        }
        Transition::Bury {
            letter: Box::new(DeadLetter {
                form: FORM.to_owned(),
                id: Uuid::now_v7(),
                subject: self.subject,
                doc_id: self.doc_id,
                chunk_id: self.chunk_id,
                identity: self.identity,
                state: State::Open,
                stage: self.stage,
                class: self.fault.class,
                native_code: self.fault.native_code,
                message: self.fault.message,
                attempts: self.attempts,
                redrives: 0,
                first_failed_at: at.to_owned(),
                last_failed_at: at.to_owned(),
                quarantined_at: None,
                resolved_at: None,
                resolved_how: None,
                origin: self.origin,
                payload: self.payload,
                audit: Vec::new(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burial(class: Class) -> Burial {
        Burial {
            subject: Subject::Chunk(ChunkKey::new("d", 0)),
            doc_id: Some("d".into()),
            chunk_id: Some(Digest::of(b"c")),
            identity: Some("i".into()),
            stage: class.stage(),
            fault: Fault::new(class, "why"),
            attempts: 2,
            origin: Origin { source_id: 1, source: "s".into(), line: 3, offset: 9 },
            payload: Payload::Chunk { text: "t".into(), meta: None, source_hash: Digest::of(b"t") },
        }
    }

    #[test]
    fn a_letter_adds_up_its_failures_and_ends_resolved() {
        let first = burial(Class::ModelFailed).transition(None, "T1").apply(None, "T1").unwrap();
        let redriven =
            Transition::Redrive { id: first.id, who: "me".into() }.apply(Some(first.clone()), "T2").unwrap();
        assert_eq!((redriven.state, redriven.redrives), (State::Redriven, 1));
        let again = burial(Class::TooLong).transition(Some(&redriven), "T3");
        assert_eq!(again.id(), first.id);
        let again = again.apply(Some(redriven), "T3").unwrap();
        assert_eq!((again.state, again.attempts, again.class), (State::Open, 4, Class::TooLong));
        assert_eq!((again.first_failed_at.as_str(), again.last_failed_at.as_str()), ("T1", "T3"));
        let done =
            Transition::Resolve { id: first.id, how: "as_is".into() }.apply(Some(again), "T4").unwrap();
        assert!(!done.state.stands());
        assert_eq!(done.audit.len(), 3);
    }

    #[test]
    fn a_change_without_its_letter_changes_nothing() {
        assert_eq!(Transition::Resolve { id: Uuid::now_v7(), how: "x".into() }.apply(None, "T"), None);
    }

    #[test]
    fn subjects_of_both_kinds_read_back() {
        let record = Subject::Record { source: "/a".into(), offset: 7, raw_hash: Digest::of(b"r") };
        for subject in [record, Subject::Chunk(ChunkKey::new("d", 3))] {
            let text = serde_json::to_string(&subject).unwrap();
            assert_eq!(serde_json::from_str::<Subject>(&text).unwrap(), subject);
        }
    }
}

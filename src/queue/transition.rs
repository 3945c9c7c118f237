//! Changes of dead letters: what the journal holds, one a line, and what each makes of its letter.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::dead::{Audit, DeadLetter, FORM, Origin, Payload, State, Subject};
use crate::{
    chunk::Digest,
    error::{Class, Fault, Stage},
};

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
    /// Came from another data folder, or is a newer state of a letter that is here.
    Import {
        /// The whole letter.
        letter: Box<DeadLetter>,
        /// By whom.
        who: String,
    },
    /// Removed for good, payload and all.
    Purge {
        /// Id of the letter.
        id: Uuid,
        /// By whom.
        who: String,
    },
}

impl Transition {
    /// Id of the letter it changes.
    pub fn id(&self) -> Uuid {
        match self {
            Self::Bury { letter } | Self::Import { letter, .. } => letter.id,
            Self::FailedAgain { id, .. }
            | Self::Redrive { id, .. }
            | Self::Reopen { id }
            | Self::Resolve { id, .. }
            | Self::Discard { id, .. }
            | Self::Purge { id, .. } => *id,
        }
    }

    /// The letter after this change at `at`; `None` when there is none any more, or none it could change.
    pub fn apply(&self, letter: Option<DeadLetter>, at: &str) -> Option<DeadLetter> {
        let mut letter = match self {
            Self::Bury { letter } => return Some((**letter).clone()),
            Self::Import { letter, .. } => (**letter).clone(),
            Self::Purge { .. } => return None,
            _ => letter?,
        };
        let (what, who, why) = self.audit_words();
        letter.audit.push(Audit { at: at.to_owned(), what: what.to_owned(), who, why });
        match self {
            Self::Bury { .. } | Self::Import { .. } | Self::Purge { .. } => {}
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
            Self::Import { who, .. } => ("import", who.clone(), None),
            Self::Purge { who, .. } => ("purge", who.clone(), None),
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
            // A repaired text failed again: where the text as read is found, only the letter knows.
            let refers = matches!(letter.payload, Payload::Reference { .. })
                && matches!(self.payload, Payload::Reference { .. })
                && letter.payload.source_hash() == self.payload.source_hash();
            let payload = if refers { letter.payload.clone() } else { self.payload };
            return Transition::FailedAgain {
                id: letter.id,
                attempts: self.attempts,
                class: self.fault.class,
                stage: self.stage,
                message: self.fault.message,
                native_code: self.fault.native_code,
                chunk_id: self.chunk_id,
                payload,
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
    use crate::chunk::ChunkKey;

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

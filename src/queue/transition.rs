//! Changes of dead letters: what the journal holds, one a line, and what each makes of its letter.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::dead::{Audit, DeadLetter, Origin, Payload, Sent, State};
use crate::{
    chunk::Digest,
    error::{Class, Stage},
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
        /// Where the letter stands now; a replay needs no setting for it.
        #[serde(default = "open")]
        state: State,
        /// Identity it was to be embedded under; `None`: the letter's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        identity: Option<String>,
        /// The newer version; `None`: what was redriven failed, and the letter is about what it was about.
        #[serde(flatten)]
        newer: Option<Newer>,
    },
    /// Sent back into the queue.
    Redrive {
        /// Id of the letter.
        id: Uuid,
        /// By whom.
        who: String,
        /// As what; `None` in journals from before that was noted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sent: Option<Sent>,
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

/// What a letter is about once a newer version of its subject failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Newer {
    /// What it takes to rebuild it.
    pub payload: Payload,
    /// Where it was read.
    pub origin: Origin,
}

const fn open() -> State {
    State::Open
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
        let (what, who, why) = self.audit_words(letter.state);
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
                state,
                identity,
                newer,
                ..
            } => {
                letter.enter(*state, at);
                letter.attempts += attempts;
                (letter.resolved_at, letter.resolved_how) = (None, None);
                (letter.class, letter.stage) = (*class, *stage);
                letter.message.clone_from(message);
                letter.native_code.clone_from(native_code);
                letter.identity = identity.clone().or(letter.identity);
                if let Some(Newer { payload, origin }) = newer {
                    letter.chunk_id = *chunk_id;
                    letter.payload = payload.clone();
                    letter.origin = origin.clone();
                }
                at.clone_into(&mut letter.last_failed_at);
            }
            Self::Redrive { sent, .. } => {
                letter.state = State::Redriven;
                letter.redrives += 1;
                letter.sent.clone_from(sent);
            }
            Self::Reopen { .. } => {
                // One that was approved needs that again: nobody knows how far it came.
                let back = letter.quarantined_at.as_ref().map_or(State::Open, |_| State::Quarantined);
                letter.state = back;
            }
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

    /// What was done, by whom, and why; `before` is where the letter stood.
    fn audit_words(&self, before: State) -> (&'static str, String, Option<String>) {
        match self {
            Self::Bury { .. } => ("bury", "forebay".into(), None),
            Self::FailedAgain { class, state, .. } => {
                let entered = *state == State::Quarantined && before != State::Quarantined;
                let what = if entered { "quarantine" } else { "failed_again" };
                (what, "forebay".into(), Some(class.to_string()))
            }
            Self::Redrive { who, sent, .. } => {
                let what = if before == State::Quarantined { "approve" } else { "redrive" };
                let repairs = sent.as_ref().map(|sent| sent.repairs.join(", "));
                (what, who.clone(), repairs.filter(|repairs| !repairs.is_empty()))
            }
            Self::Reopen { .. } => ("reopen", "forebay".into(), Some("its chunk was lost on the way".into())),
            Self::Resolve { how, .. } => ("resolve", "forebay".into(), Some(how.clone())),
            Self::Discard { who, reason, .. } => ("discard", who.clone(), Some(reason.clone())),
            Self::Import { who, .. } => ("import", who.clone(), None),
            Self::Purge { who, .. } => ("purge", who.clone(), None),
        }
    }
}

impl DeadLetter {
    /// After a failure: open or quarantined, and since when.
    fn enter(&mut self, state: State, at: &str) {
        let since = self.quarantined_at.take().filter(|_| self.state == State::Quarantined);
        self.quarantined_at = (state == State::Quarantined).then(|| since.unwrap_or_else(|| at.to_owned()));
        self.state = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chunk::ChunkKey,
        error::Fault,
        queue::dead::{Burial, Subject},
    };

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
        let first = burial(Class::ModelFailed).transition(None, None, 3, "T1").apply(None, "T1").unwrap();
        let redriven = Transition::Redrive { id: first.id, who: "me".into(), sent: None }
            .apply(Some(first.clone()), "T2")
            .unwrap();
        assert_eq!((redriven.state, redriven.redrives), (State::Redriven, 1));
        let again = burial(Class::TooLong).transition(Some(&redriven), Some(first.id), 3, "T3");
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

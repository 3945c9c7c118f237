//! A failure of a subject, on its way to become a dead letter, or one more failure of the letter that stands.

use uuid::Uuid;

use super::{
    dead::{Audit, DeadLetter, FORM, Origin, Payload, State, Subject},
    quarantine::state_after,
    transition::{Newer, Transition},
};
use crate::{
    chunk::Digest,
    error::{Fault, Stage},
};

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
    /// The transition: a new letter, or one more failure of the letter that stands. `from` is the letter that the
    /// chunk was redriven from.
    pub fn transition(
        self,
        standing: Option<&DeadLetter>,
        from: Option<Uuid>,
        max_redrives: u32,
        at: &str,
    ) -> Transition {
        let Some(letter) = standing else {
            let state = state_after(None, self.fault.class, max_redrives);
            return Transition::Bury { letter: Box::new(self.letter(state, at)) };
        };
        let (same_text, same_identity) = (self.is_text_of(letter), self.identity_is_of(letter));
        let known = (same_text && same_identity).then(|| letter.standing());
        let state = state_after(known, self.fault.class, max_redrives);
        // What was repaired is tried again from what was read, or with another repair.
        let keeps = from == Some(letter.id) && same_text;
        let newer = Newer { payload: self.payload, origin: self.origin };
        Transition::FailedAgain {
            id: letter.id,
            attempts: self.attempts,
            class: self.fault.class,
            stage: self.stage,
            message: self.fault.message,
            native_code: self.fault.native_code,
            chunk_id: self.chunk_id,
            state,
            identity: self.identity,
            newer: (!keeps).then_some(newer),
        }
    }

    /// A record that was redriven as chunks is itself as long as it stands.
    fn is_text_of(&self, letter: &DeadLetter) -> bool {
        match (self.payload.source_hash(), letter.payload.source_hash()) {
            (Some(now), Some(then)) => now == then,
            _ => matches!(letter.subject, Subject::Record { .. }) || self.chunk_id == letter.chunk_id,
        }
    }

    fn identity_is_of(&self, letter: &DeadLetter) -> bool {
        letter.identity.is_none() || letter.identity == self.identity
    }

    fn letter(self, state: State, at: &str) -> DeadLetter {
        let quarantined = state == State::Quarantined;
        let why = Some(self.fault.class.to_string());
        let step = Audit { at: at.to_owned(), what: "quarantine".into(), who: "forebay".into(), why };
        DeadLetter {
            form: FORM.to_owned(),
            id: Uuid::now_v7(),
            subject: self.subject,
            doc_id: self.doc_id,
            chunk_id: self.chunk_id,
            identity: self.identity,
            state,
            stage: self.stage,
            class: self.fault.class,
            native_code: self.fault.native_code,
            message: self.fault.message,
            attempts: self.attempts,
            redrives: 0,
            first_failed_at: at.to_owned(),
            last_failed_at: at.to_owned(),
            quarantined_at: quarantined.then(|| at.to_owned()),
            resolved_at: None,
            resolved_how: None,
            sent: None,
            origin: self.origin,
            payload: self.payload,
            audit: quarantined.then_some(step).into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{chunk::ChunkKey, error::Class, queue::dead::Sent};

    fn burial(text: &str, read: &str, class: Class, identity: &str) -> Burial {
        Burial {
            subject: Subject::Chunk(ChunkKey::new("d", 0)),
            doc_id: Some("d".into()),
            chunk_id: Some(Digest::of(text.as_bytes())),
            identity: Some(identity.into()),
            stage: class.stage(),
            fault: Fault::new(class, "why"),
            attempts: 2,
            origin: Origin { source_id: 1, source: "s".into(), line: 3, offset: 9 },
            payload: Payload::Chunk {
                text: text.into(),
                meta: None,
                source_hash: Digest::of(read.as_bytes()),
            },
        }
    }

    fn again(letter: &DeadLetter, burial: Burial, from: Option<Uuid>, at: &str) -> DeadLetter {
        let line = serde_json::to_string(&burial.transition(Some(letter), from, 3, at)).unwrap();
        let transition: Transition = serde_json::from_str(&line).unwrap();
        transition.apply(Some(letter.clone()), at).unwrap()
    }

    fn redriven(letter: &DeadLetter, how: &str) -> DeadLetter {
        let sent =
            Sent { how: how.into(), repairs: Vec::new(), cut: false, key: ChunkKey::new("d", 0), chunks: 1 };
        let redrive = Transition::Redrive { id: letter.id, who: "me".into(), sent: Some(sent) };
        redrive.apply(Some(letter.clone()), "T").unwrap()
    }

    #[test]
    fn the_same_again_after_a_redrive_is_quarantined_and_a_new_text_is_a_new_chance() {
        let first = burial("t", "t", Class::ModelFailed, "i").transition(None, None, 3, "T1");
        let first = first.apply(None, "T1").unwrap();
        assert_eq!(first.state, State::Open);
        let sent = redriven(&first, "as_is");
        let same = || burial("t", "t", Class::ModelFailed, "i");
        let quarantined = again(&sent, same(), Some(first.id), "T3");
        assert_eq!(
            (quarantined.state, quarantined.quarantined_at.as_deref()),
            (State::Quarantined, Some("T3"))
        );
        assert_eq!(quarantined.audit.last().unwrap().what, "quarantine");
        let other_class = again(&sent, burial("t", "t", Class::TooLong, "i"), Some(first.id), "T3");
        assert_eq!(other_class.state, State::Open);
        let new_text = again(&quarantined, burial("u", "u", Class::ModelFailed, "i"), None, "T4");
        assert_eq!((new_text.state, new_text.quarantined_at), (State::Open, None));
        assert_eq!(new_text.chunk_id, Some(Digest::of(b"u")));
        let other_space = again(&quarantined, burial("t", "t", Class::ModelFailed, "j"), None, "T4");
        assert_eq!((other_space.state, other_space.identity.as_deref()), (State::Open, Some("j")));
        let approved = redriven(&quarantined, "approved");
        assert_eq!(approved.audit.last().unwrap().what, "approve");
        let lost = Transition::Reopen { id: first.id }.apply(Some(approved.clone()), "T5").unwrap();
        assert_eq!(lost.state, State::Quarantined, "an approval that was lost is asked for again");
        let other = again(&approved, burial("t", "t", Class::TooLong, "i"), Some(first.id), "T6");
        assert_eq!((other.state, other.quarantined_at), (State::Open, None));
    }

    #[test]
    fn an_outcome_nobody_knows_is_quarantined_at_once() {
        let letter = burial("t", "t", Class::UnknownOutcome, "i").transition(None, None, 3, "T1");
        let letter = letter.apply(None, "T1").unwrap();
        assert_eq!((letter.state, letter.audit.len()), (State::Quarantined, 1));
    }

    #[test]
    fn a_repaired_text_that_fails_leaves_the_letter_about_what_was_read() {
        let first = burial("t", "t", Class::TooLong, "i").transition(None, None, 3, "T1");
        let sent = redriven(&first.apply(None, "T1").unwrap(), "repaired");
        let failed = again(&sent, burial("cut", "t", Class::ModelFailed, "j"), Some(sent.id), "T2");
        assert_eq!((&failed.payload, failed.chunk_id), (&sent.payload, sent.chunk_id));
        assert_eq!((failed.class, failed.identity.as_deref()), (Class::ModelFailed, Some("j")));
    }

    /// What stands in journals of the first form.
    #[test]
    fn a_line_of_an_older_version_still_means_what_it_meant() {
        let first = burial("t", "t", Class::ModelFailed, "i").transition(None, None, 3, "T1");
        let sent = redriven(&first.apply(None, "T1").unwrap(), "as_is");
        let old = serde_json::json!({
            "op": "failed_again", "id": sent.id, "attempts": 1, "class": "model_failed", "stage": "embedder",
            "message": "m", "native_code": null, "chunk_id": Digest::of(b"u"),
            "payload": { "chunk": { "text": "u", "meta": null, "source_hash": Digest::of(b"u") } },
            "origin": { "source_id": 2, "source": "s", "line": 1, "offset": 7 },
        });
        let letter =
            serde_json::from_value::<Transition>(old).unwrap().apply(Some(sent.clone()), "T2").unwrap();
        assert_eq!((letter.state, letter.chunk_id), (State::Open, Some(Digest::of(b"u"))));
        assert_eq!(letter.origin.source_id, 2);
        let old = serde_json::json!({ "op": "redrive", "id": sent.id, "who": "me" });
        let letter = serde_json::from_value::<Transition>(old).unwrap().apply(Some(letter), "T3").unwrap();
        assert_eq!((letter.state, letter.sent), (State::Redriven, None));
    }
}

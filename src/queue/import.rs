//! Letters that come from elsewhere: what is refused, and what becomes of the others. Pure, but for the last step.

use std::collections::HashMap;

use uuid::Uuid;

use super::{
    Queue, QueueError,
    dead::{DeadLetter, FORM, Payload, State, Subject, Transition},
    now_text,
};
use crate::{chunk::DOC_ID_BYTES_MAX, error::MESSAGE_CHARS_MAX};

/// What came of merging letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Not known here before.
    pub added: u64,
    /// Known here in an older state.
    pub updated: u64,
    /// Known here in this state or a newer one.
    pub unchanged: u64,
    /// Another letter stands here for the same subject.
    pub standing: u64,
}

/// What becomes of one letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Add,
    Update,
    Unchanged,
    Standing,
}

/// Decides, given the letter of this id here, and the one that stands here for its subject.
fn fate(letter: &DeadLetter, here: Option<&DeadLetter>, standing: Option<Uuid>) -> Fate {
    let hidden = letter.state.stands() && standing.is_some_and(|id| id != letter.id);
    match here {
        // Its chunk is on its way here: whatever happened elsewhere, this ends first.
        Some(here) if here.state == State::Redriven || here.changed_at() >= letter.changed_at() => {
            Fate::Unchanged
        }
        _ if hidden => Fate::Standing,
        Some(_) => Fate::Update,
        None => Fate::Add,
    }
}

/// Whether a letter is one that this program could have written.
///
/// # Errors
/// What is wrong with it, without quoting it.
pub fn check(letter: &DeadLetter) -> Result<(), String> {
    if letter.form != FORM {
        let form: String = letter.form.chars().take(60).collect();
        return Err(format!("its form is {form:?}, this version knows {FORM}"));
    }
    let times = [&letter.first_failed_at, &letter.last_failed_at].into_iter();
    let times = times.chain(&letter.quarantined_at).chain(&letter.resolved_at);
    let times = times.chain(letter.audit.iter().map(|audit| &audit.at));
    for time in times {
        time.parse::<jiff::Timestamp>().map_err(|_| "a time in it is not RFC 3339".to_owned())?;
    }
    if letter.message.chars().count() > MESSAGE_CHARS_MAX {
        return Err(format!("its message is longer than {MESSAGE_CHARS_MAX} characters"));
    }
    match (&letter.subject, &letter.payload) {
        (Subject::Chunk(key), _) if key.doc_id.is_empty() || key.doc_id.len() > DOC_ID_BYTES_MAX => {
            Err(format!("its doc_id is empty or longer than {DOC_ID_BYTES_MAX} bytes"))
        }
        (Subject::Chunk(_), Payload::Chunk { .. }) => match letter.chunk().map(|chunk| chunk.id()) {
            Some(id) if letter.chunk_id == Some(id) => Ok(()),
            _ => Err("its text is not the one that its chunk_id was made of".to_owned()),
        },
        (Subject::Record { .. }, Payload::Raw { .. }) | (_, Payload::Reference { .. }) => Ok(()),
        _ => Err("its payload does not fit its subject".to_owned()),
    }
}

impl Queue {
    /// Takes letters in, durable on return. Each must have passed [`check`]. The same letters again change nothing.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn import(&self, letters: Vec<DeadLetter>, who: &str) -> Result<Merged, QueueError> {
        let at = now_text();
        let mut merged = Merged::default();
        let mut state = self.shared.state();
        let (mut transitions, mut here) = (Vec::new(), HashMap::<Uuid, DeadLetter>::new());
        let mut standing_here = HashMap::<u128, Uuid>::new();
        for mut letter in letters {
            if letter.state == State::Redriven {
                // Its chunk is not pending here.
                letter.state = State::Open;
            }
            let subject = letter.subject.short_hash();
            let known = match here.get(&letter.id) {
                Some(known) => Some(known.clone()),
                None => self.letter(letter.id)?,
            };
            let standing = match standing_here.get(&subject) {
                Some(id) => Some(*id),
                None => self.standing_in(&mut state, subject)?.map(|letter| letter.id),
            };
            match fate(&letter, known.as_ref(), standing) {
                Fate::Unchanged => merged.unchanged += 1,
                Fate::Standing => merged.standing += 1,
                fate => {
                    merged.added += u64::from(fate == Fate::Add);
                    merged.updated += u64::from(fate == Fate::Update);
                    if letter.state.stands() {
                        standing_here.insert(subject, letter.id);
                    }
                    here.insert(letter.id, letter.clone());
                    transitions.push(Transition::Import { letter: Box::new(letter), who: who.to_owned() });
                }
            }
        }
        self.write_letters(&mut state, &at, &transitions)?;
        self.shared.apply(&mut state)?;
        Ok(merged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chunk::{ChunkKey, Digest},
        error::{Class, Fault, Stage},
        queue::dead::{Audit, Burial, Origin},
    };

    fn letter(at: &str) -> DeadLetter {
        let key = ChunkKey::new("d", 0);
        let burial = Burial {
            chunk_id: Some(crate::chunk::chunk_id(&key, &Digest::of(b"t"))),
            subject: Subject::Chunk(key),
            doc_id: Some("d".into()),
            identity: None,
            stage: Stage::Embedder,
            fault: Fault::new(Class::ModelFailed, "why"),
            attempts: 3,
            origin: Origin { source_id: 1, source: "s".into(), line: 1, offset: 0 },
            payload: Payload::Chunk { text: "t".into(), meta: None, source_hash: Digest::of(b"t") },
        };
        burial.transition(None, None, 3, at).apply(None, at).unwrap()
    }

    #[test]
    fn the_newer_state_wins_and_an_import_is_no_change_by_itself() {
        let old = letter("2026-01-01T00:00:00.000Z");
        let at = "2026-01-02T00:00:00.000Z";
        let discard = Transition::Discard { id: old.id, who: "me".into(), reason: "x".into() };
        let newer = discard.apply(Some(old.clone()), at).unwrap();
        assert_eq!(fate(&old, None, None), Fate::Add);
        assert_eq!(fate(&newer, Some(&old), Some(old.id)), Fate::Update);
        assert_eq!(fate(&old, Some(&newer), Some(old.id)), Fate::Unchanged);
        assert_eq!(fate(&old, None, Some(Uuid::now_v7())), Fate::Standing);
        let import = Transition::Import { letter: Box::new(old.clone()), who: "me".into() };
        let imported = import.apply(None, "2026-02-01T00:00:00.000Z").unwrap();
        assert_eq!(imported.audit.last().map(|Audit { what, .. }| what.as_str()), Some("import"));
        assert_eq!(fate(&imported, Some(&old), Some(old.id)), Fate::Unchanged, "there and back is no change");
        let redriven = DeadLetter { state: State::Redriven, ..old.clone() };
        assert_eq!(fate(&newer, Some(&redriven), Some(old.id)), Fate::Unchanged);
    }

    #[test]
    fn what_we_could_not_have_written_is_refused() {
        let good = letter("2026-01-01T00:00:00.000Z");
        check(&good).unwrap();
        let bad = [
            DeadLetter { form: "forebay-dead-letter-v2".into(), ..good.clone() },
            DeadLetter { first_failed_at: "yesterday".into(), ..good.clone() },
            DeadLetter { message: "x".repeat(501), ..good.clone() },
            DeadLetter { chunk_id: Some(Digest::of(b"other")), ..good.clone() },
            DeadLetter { subject: Subject::Chunk(ChunkKey::new("", 0)), ..good.clone() },
            DeadLetter { payload: Payload::Raw { base64: String::new(), bytes: 0 }, ..good },
        ];
        bad.iter().for_each(|letter| assert!(check(letter).is_err(), "{letter:?}"));
    }
}

//! Sending letters back into the queue, and what is resolved when their chunks are written. Journal first, then the
//! tree; many letters with one fsync.

use std::collections::HashSet;

use uuid::Uuid;

use super::{
    Lease, Queue, QueueError, State,
    dead::{DeadLetter, Sent, State as LetterState, Subject, Transition},
    entry::{Pending, Record},
    now_text,
    window::Place,
};
use crate::chunk::Chunk;

/// A letter on its way back.
#[derive(Clone, Debug)]
pub struct Back {
    /// Its id.
    pub id: Uuid,
    /// What it comes back as: its chunk, or all chunks of the document that its record is.
    pub chunks: Vec<Chunk>,
    /// `as_is`, `repaired`, `approved`.
    pub how: &'static str,
    /// What was mended, and by what.
    pub repairs: Vec<String>,
    /// Whether its text was cut to what the model takes.
    pub cut: bool,
    /// Whether a quarantined one goes, too.
    pub approved: bool,
}

/// What was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentBack {
    /// These letters.
    pub letters: Vec<Uuid>,
    /// As many chunks.
    pub chunks: u64,
}

impl Queue {
    /// See [`Queue::redrive_all`].
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn redrive(&self, id: Uuid, who: &str, chunk: Chunk) -> Result<bool, QueueError> {
        let (chunks, repairs) = (vec![chunk], Vec::new());
        let back = Back { id, chunks, how: "as_is", repairs, cut: false, approved: false };
        Ok(!self.redrive_all(vec![back], who)?.letters.is_empty())
    }

    /// Sends letters back: their chunks are pending again, durable on return. Left alone are letters that are not open
    /// (or quarantined and approved) or are about another version by now, and those of which a version is pending
    /// already: a late redrive never takes the place of newer text.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn redrive_all(&self, letters: Vec<Back>, who: &str) -> Result<SentBack, QueueError> {
        let mut sent = SentBack::default();
        {
            // One lock over all of it: nothing may be enqueued, settled or buried in between.
            let mut state = self.shared.state();
            self.shared.apply(&mut state)?;
            let (mut keys, mut ids, mut back) = (HashSet::new(), HashSet::new(), Vec::new());
            for letter in letters {
                if !ids.contains(&letter.id) && self.may_go(&state, &letter, &keys)? {
                    ids.insert(letter.id);
                    keys.extend(letter.chunks.iter().map(|chunk| chunk.key.short_hash()));
                    back.push(letter);
                }
            }
            let transitions: Vec<_> = back.iter().filter_map(|letter| letter.transition(who)).collect();
            self.write_letters(&mut state, &now_text(), &transitions)?;
            for Back { id, chunks, .. } in back {
                sent.letters.push(id);
                sent.chunks += chunks.len() as u64;
                for chunk in chunks {
                    let record = Record { redriven_from: id.as_u128(), ..Record::default() };
                    state.insert(&Pending { chunk, record }, Place::Ready);
                    self.shared.apply_if_large(&mut state)?;
                }
            }
        }
        if !sent.letters.is_empty() {
            self.flush()?;
            self.shared.told();
        }
        Ok(sent)
    }

    /// Whether this chunk's text is but the beginning of what was read, as the redrive that sent it cut it.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn was_cut(&self, lease: &Lease) -> Result<bool, QueueError> {
        let from = Uuid::from_u128(lease.record.redriven_from);
        let letter = if from.is_nil() { None } else { self.letter(from)? };
        Ok(letter.and_then(|letter| letter.sent).is_some_and(|sent| sent.cut))
    }

    fn may_go(&self, state: &State, back: &Back, keys: &HashSet<u128>) -> Result<bool, QueueError> {
        let Some(letter) = self.letter(back.id)? else { return Ok(false) };
        let waits = match letter.state {
            LetterState::Open => true,
            LetterState::Quarantined => back.approved,
            LetterState::Redriven | LetterState::Resolved | LetterState::Discarded => false,
        };
        let record = matches!(letter.subject, Subject::Record { .. });
        let mut own = HashSet::new();
        Ok(waits
            && !back.chunks.is_empty()
            && back.chunks.iter().all(|chunk| {
                let key = chunk.key.short_hash();
                (record || letter.is_about(chunk))
                    && state.window.by_key(key).is_none()
                    && !keys.contains(&key)
                    && own.insert(key)
            }))
    }

    /// Opens letters again that were redriven and of which no chunk is pending: a crash came between the journal and
    /// the tree, or the tree was lost. Gives their number.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn reopen_lost_redrives(&self) -> Result<usize, QueueError> {
        if self.letter_counts().sum(|_, state| state == LetterState::Redriven) == 0 {
            return Ok(0);
        }
        let mut lost = self.ids_of(LetterState::Redriven)?;
        {
            let state = self.shared.state();
            lost.retain(|id| state.redriven.of(id.as_u128()).is_empty());
        }
        let transitions: Vec<_> = lost.into_iter().map(|id| Transition::Reopen { id }).collect();
        self.change(&transitions)?;
        Ok(transitions.len())
    }

    /// The letters that writing these chunks together resolves, and how: those of their keys, and those of the records
    /// that they were redriven from, with the last chunk of each.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn resolves(&self, written: &[(&Lease, &Chunk)]) -> Result<Vec<(Uuid, String)>, QueueError> {
        let together: HashSet<u64> = written.iter().map(|(lease, _)| lease.seq).collect();
        let (mut seen, mut resolved) = (HashSet::new(), Vec::new());
        for (lease, chunk) in written {
            let from = Uuid::from_u128(lease.record.redriven_from);
            for letter in self.resolved_by(lease, chunk, from, &together)? {
                if seen.insert(letter.id) {
                    let same = letter.id == from || letter.chunk_id.as_ref() == Some(&lease.chunk_id);
                    let sent = letter.sent.as_ref().filter(|_| letter.id == from);
                    let how = sent.map_or(if same { "as_is" } else { "superseded" }, |sent| &sent.how);
                    resolved.push((letter.id, how.to_owned()));
                }
            }
        }
        Ok(resolved)
    }

    fn resolved_by(
        &self,
        lease: &Lease,
        chunk: &Chunk,
        from: Uuid,
        together: &HashSet<u64>,
    ) -> Result<Vec<DeadLetter>, QueueError> {
        let (outdated, last) = {
            let state = self.shared.state();
            let outdated = state.window.slot(lease.seq).is_some_and(|slot| slot.outdated);
            let out = state.redriven.of(lease.record.redriven_from);
            (outdated, out.iter().all(|seq| together.contains(seq)))
        };
        // The letter of a newer version outlives the writing of an older one.
        let standing = self.standing(lease.key.short_hash())?;
        let standing =
            standing.filter(|letter| !outdated && !letter.is_newer_than(chunk.source_id, chunk.ordinal));
        let mut letters: Vec<_> = standing.into_iter().collect();
        if !from.is_nil() && last && letters.iter().all(|letter| letter.id != from) {
            // One that is no longer redriven had another chunk fail, and still stands for that.
            letters.extend(self.letter(from)?.filter(|letter| letter.state == LetterState::Redriven));
        }
        Ok(letters)
    }
}

impl Back {
    fn transition(&self, who: &str) -> Option<Transition> {
        let key = self.chunks.first()?.key.clone();
        let chunks = self.chunks.len() as u64;
        let (how, repairs) = (self.how.to_owned(), self.repairs.clone());
        let sent = Sent { how, repairs, cut: self.cut, key, chunks };
        Some(Transition::Redrive { id: self.id, who: who.to_owned(), sent: Some(sent) })
    }
}

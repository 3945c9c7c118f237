//! The dead-letter queue: bury, redrive, resolve, discard, purge. Journal first, then the tree; many letters with one
//! fsync.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

pub use super::letters::{ClassStats, Counts, Filter, Keep, PAGE_BYTES, Settings};
use super::{
    Lease, Queue, QueueError, State,
    dead::{Burial, DeadLetter, State as LetterState, Subject, Transition},
    entry::{self, Pending, Record},
    now_text,
    window::Place,
};
use crate::chunk::Chunk;

impl Queue {
    /// Buries: the journal is durable on return, the tree follows it. Leases given along are spent; a lease
    /// whose key has a newer version pending, or that was cancelled, is spent without a letter. Gives the
    /// letters as they stand now, in order, and `None` for those spent without one.
    ///
    /// # Errors
    /// See [`QueueError`]; the leases' chunks are then still queued.
    pub fn bury(&self, burials: Vec<(Option<Lease>, Burial)>) -> Result<Vec<Option<DeadLetter>>, QueueError> {
        let at = now_text();
        let mut buried = Vec::with_capacity(burials.len());
        // Both outlive the lock: a lease that is dropped takes it, to put its chunk back.
        let (leases, burials): (Vec<_>, Vec<_>) = burials.into_iter().unzip();
        let mut leases = leases.into_iter();
        {
            let mut state = self.shared.state();
            let (mut transitions, mut here) = (Vec::new(), HashMap::new());
            for (lease, burial) in leases.as_slice().iter().zip(burials) {
                let wanted = lease.as_ref().is_none_or(|lease| {
                    let slot = state.window.slot(lease.seq);
                    slot.is_some_and(|slot| !slot.cancelled) && !state.window.superseded(lease.seq)
                });
                if !wanted {
                    buried.push(None);
                    continue;
                }
                let subject = burial.subject.short_hash();
                // The same subject may fail twice within one call.
                let standing = match here.get(&subject) {
                    Some(letter) => Some(DeadLetter::clone(letter)),
                    None => self.standing_in(&mut state, subject)?,
                };
                if standing
                    .as_ref()
                    .is_some_and(|letter| letter.is_newer_than(burial.origin.source_id, burial.origin.offset))
                {
                    buried.push(None);
                    continue;
                }
                let transition = burial.transition(standing.as_ref(), &at);
                let letter = transition.apply(standing, &at);
                here.extend(letter.clone().map(|letter| (subject, letter)));
                buried.push(letter);
                transitions.push(transition);
            }
            self.write_letters(&mut state, &at, &transitions)?;
            for lease in leases.by_ref().flatten() {
                let (seq, _) = lease.spend();
                self.release(&mut state, seq);
                state.remove(seq);
            }
            self.shared.apply(&mut state)?;
        }
        self.shared.told();
        Ok(buried)
    }

    /// The letter that stands for this subject (not resolved), by its short hash.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn standing(&self, subject: u128) -> Result<Option<DeadLetter>, QueueError> {
        let mut state = self.shared.state();
        if state.letters.sum(|_, s| s.stands()) == 0 {
            return Ok(None);
        }
        self.standing_in(&mut state, subject)
    }

    pub(super) fn standing_in(
        &self,
        state: &mut State,
        subject: u128,
    ) -> Result<Option<DeadLetter>, QueueError> {
        self.shared.apply(state)?;
        let Some(id) = self.shared.db.get(entry::hashed(entry::DEAD_BY_KEY, subject))? else {
            return Ok(None);
        };
        let id = Uuid::from_slice(&id).map_err(|_| QueueError::Damaged("a letter's index".into()))?;
        Ok(self.letter(id)?.filter(|letter| letter.state.stands()))
    }

    /// See [`Queue::redrive_all`].
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn redrive(&self, id: Uuid, who: &str, chunk: Chunk) -> Result<bool, QueueError> {
        Ok(self.redrive_all(vec![(id, chunk)], who)? == 1)
    }

    /// Sends letters back: their chunks are pending again, durable on return. Left alone are letters that are not open
    /// or are about another version, and those of which a version is pending already: a late redrive never takes the
    /// place of newer text. Gives the number sent.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn redrive_all(&self, letters: Vec<(Uuid, Chunk)>, who: &str) -> Result<u64, QueueError> {
        let count = {
            // One lock over all of it: nothing may be enqueued, settled or buried in between.
            let mut state = self.shared.state();
            self.shared.apply(&mut state)?;
            let (mut keys, mut ids, mut back) = (HashSet::new(), HashSet::new(), Vec::new());
            for (id, chunk) in letters {
                let open = self.letter(id)?.is_some_and(|letter| {
                    // It may be about a newer version by now.
                    letter.state == LetterState::Open && letter.chunk_id.is_none_or(|id| id == chunk.id())
                });
                let key = chunk.key.short_hash();
                if open && state.window.by_key(key).is_none() && keys.insert(key) && ids.insert(id) {
                    back.push((id, chunk));
                }
            }
            let redrive = |(id, _): &(Uuid, Chunk)| Transition::Redrive { id: *id, who: who.to_owned() };
            let transitions: Vec<_> = back.iter().map(redrive).collect();
            self.write_letters(&mut state, &now_text(), &transitions)?;
            for (id, chunk) in back {
                let record = Record { redriven_from: id.as_u128(), ..Record::default() };
                state.insert(&Pending { chunk, record }, Place::Ready);
            }
            transitions.len() as u64
        };
        if count > 0 {
            self.flush()?;
            self.shared.told();
        }
        Ok(count)
    }

    /// Opens letters again that were redriven and whose chunk is not pending: a crash came between the journal and
    /// the tree, or the tree was lost. Gives their number.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn reopen_lost_redrives(&self) -> Result<usize, QueueError> {
        if self.letter_counts().sum(|_, state| state == LetterState::Redriven) == 0 {
            return Ok(0);
        }
        let mut lost = self.ids_of(LetterState::Redriven)?;
        let pending = self.redriven_pending()?;
        lost.retain(|id| !pending.contains(&id.as_u128()));
        let transitions: Vec<_> = lost.into_iter().map(|id| Transition::Reopen { id }).collect();
        self.change(&transitions)?;
        Ok(transitions.len())
    }

    /// Ids of the letters whose redriven chunk is pending.
    fn redriven_pending(&self) -> Result<HashSet<u128>, QueueError> {
        self.shared.apply(&mut self.shared.state())?;
        let mut ids = HashSet::new();
        for item in self.shared.db.scan_prefix([entry::PENDING]) {
            if let Some(pending) = Pending::decode(&item?.1) {
                ids.insert(pending.record.redriven_from);
            }
        }
        Ok(ids)
    }

    /// See [`Queue::discard_all`].
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn discard(&self, id: Uuid, who: &str, reason: &str) -> Result<bool, QueueError> {
        Ok(self.discard_all(&[id], who, reason)? == 1)
    }

    /// Gives letters up, durable on return; what they sent back is taken back. Those already closed are left alone.
    /// Gives the number given up.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn discard_all(&self, ids: &[Uuid], who: &str, reason: &str) -> Result<u64, QueueError> {
        self.take_back(ids)?;
        let mut state = self.shared.state();
        self.shared.apply(&mut state)?;
        let (mut seen, mut transitions) = (HashSet::new(), Vec::new());
        for id in ids {
            if seen.insert(*id) && self.letter(*id)?.is_some_and(|letter| letter.state.unresolved()) {
                let (who, reason) = (who.to_owned(), reason.to_owned());
                transitions.push(Transition::Discard { id: *id, who, reason });
            }
        }
        self.write_letters(&mut state, &now_text(), &transitions)?;
        self.shared.apply(&mut state)?;
        Ok(transitions.len() as u64)
    }

    /// Removes letters for good. Gone on return from what can be read; their bytes, payload included, are gone from the
    /// journal after [`Queue::scrub`] and from the store after the next open. What they sent back is taken back. Gives
    /// the number removed.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn purge(&self, ids: &[Uuid], who: &str) -> Result<u64, QueueError> {
        self.take_back(ids)?;
        let mut state = self.shared.state();
        self.shared.apply(&mut state)?;
        let (mut seen, mut transitions) = (HashSet::new(), Vec::new());
        for id in ids {
            if seen.insert(*id) && self.letter(*id)?.is_some() {
                transitions.push(Transition::Purge { id: *id, who: who.to_owned() });
            }
        }
        if transitions.is_empty() {
            return Ok(0);
        }
        // Noted first: whatever comes after, the next open knows that bytes must go.
        super::renew::note(&mut state);
        self.shared.apply(&mut state)?;
        self.shared.db.flush()?;
        self.shared.sync.after_flush().map_err(QueueError::NotDurable)?;
        self.write_letters(&mut state, &now_text(), &transitions)?;
        self.shared.apply(&mut state)?;
        Ok(transitions.len() as u64)
    }

    /// Leaves no byte of purged letters in the journal, and sees to it that the next open leaves none in the store.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn scrub(&self) -> Result<(), QueueError> {
        let mut state = self.shared.state();
        super::renew::note(&mut state);
        self.compact(&mut state)?;
        drop(state);
        self.flush()
    }

    /// Purges resolved and discarded letters that were closed before this time (milliseconds since 1970). Gives their
    /// number.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn purge_closed(&self, before_ms: u64) -> Result<u64, QueueError> {
        let mut purged = 0;
        loop {
            let ids = self.closed_before(before_ms, 1_000)?;
            if ids.is_empty() {
                break;
            }
            purged += self.purge(&ids, "retention")?;
        }
        if purged > 0 {
            self.scrub()?;
        }
        Ok(purged)
    }

    /// Takes the chunks of redriven letters out of the queue again.
    fn take_back(&self, ids: &[Uuid]) -> Result<(), QueueError> {
        for id in ids {
            if let Some(letter) = self.letter(*id)?
                && letter.state == LetterState::Redriven
                && let Subject::Chunk(key) = &letter.subject
            {
                self.cancel(key)?;
            }
        }
        Ok(())
    }

    /// Records how letters were resolved; those already closed are left alone.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn resolve(&self, resolved: &[(Uuid, String)]) -> Result<(), QueueError> {
        let mut transitions = Vec::new();
        for (id, how) in resolved {
            if self.letter(*id)?.is_some_and(|letter| letter.state.stands()) {
                transitions.push(Transition::Resolve { id: *id, how: how.clone() });
            }
        }
        self.change(&transitions)
    }

    /// The letters that writing this chunk resolves, and how: that of its key, and the unreadable record it was
    /// redriven from.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn resolves(&self, lease: &Lease, chunk: &Chunk) -> Result<Vec<(Uuid, String)>, QueueError> {
        let outdated = self.shared.state().window.slot(lease.seq).is_some_and(|slot| slot.outdated);
        let standing = self.standing(lease.key.short_hash())?;
        // The letter of a newer version outlives the writing of an older one.
        let standing =
            standing.filter(|letter| !outdated && !letter.is_newer_than(chunk.source_id, chunk.ordinal));
        let mut letters: Vec<_> = standing.into_iter().collect();
        let from = Uuid::from_u128(lease.record.redriven_from);
        if !from.is_nil() && letters.iter().all(|letter| letter.id != from) {
            letters.extend(self.letter(from)?.filter(|letter| letter.state.stands()));
        }
        let how = |letter: DeadLetter| {
            let same = letter.id == from || letter.chunk_id.as_ref() == Some(&lease.chunk_id);
            (letter.id, if same { "as_is" } else { "superseded" }.to_owned())
        };
        Ok(letters.into_iter().map(how).collect())
    }
}

//! The dead-letter queue: bury, resolve, discard, purge. Journal first, then the tree; many letters with one
//! fsync.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::Ordering::Relaxed,
};

use uuid::Uuid;

pub use super::letters::{ClassStats, Counts, Filter, Keep, PAGE_BYTES, Settings};
use super::{
    Lease, Queue, QueueError, State,
    dead::{Burial, DeadLetter, Subject, Transition},
    entry, now_text,
};

/// Letters that one call changed.
#[derive(Default)]
struct Here {
    letters: HashMap<Uuid, DeadLetter>,
    subjects: HashMap<u128, Uuid>,
}

impl Here {
    fn insert(&mut self, letter: Option<&DeadLetter>) {
        if let Some(letter) = letter {
            self.subjects.insert(letter.subject.short_hash(), letter.id);
            self.letters.insert(letter.id, letter.clone());
        }
    }
}

impl Queue {
    /// Sets `dlq.max_redrives`: a letter that fails again after as many redrives needs approval.
    pub fn quarantine_after(&self, max_redrives: u32) {
        self.shared.max_redrives.store(max_redrives, Relaxed);
    }

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
            let max_redrives = self.shared.max_redrives.load(Relaxed);
            let (mut transitions, mut here) = (Vec::new(), Here::default());
            for (lease, burial) in leases.as_slice().iter().zip(burials) {
                let wanted = lease.as_ref().is_none_or(|lease| {
                    let slot = state.window.slot(lease.seq);
                    slot.is_some_and(|slot| !slot.cancelled) && !state.window.superseded(lease.seq)
                });
                if !wanted {
                    buried.push(None);
                    continue;
                }
                let from = lease.as_ref().map_or(0, |lease| lease.record.redriven_from);
                let standing = self.charged(&mut state, &here, &burial.subject, from)?;
                if standing
                    .as_ref()
                    .is_some_and(|letter| letter.is_newer_than(burial.origin.source_id, burial.origin.offset))
                {
                    buried.push(None);
                    continue;
                }
                let from = (from != 0).then(|| Uuid::from_u128(from));
                let transition = burial.transition(standing.as_ref(), from, max_redrives, &at);
                let letter = transition.apply(standing, &at);
                here.insert(letter.as_ref());
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

    /// The letter that a failure is charged to: the one of its subject, or that of the record that it was redriven from,
    /// which could be read and is no better for it. The same may have failed before within one call.
    fn charged(
        &self,
        state: &mut State,
        here: &Here,
        subject: &Subject,
        from: u128,
    ) -> Result<Option<DeadLetter>, QueueError> {
        if from != 0 {
            let from = Uuid::from_u128(from);
            let letter = match here.letters.get(&from) {
                Some(letter) => Some(letter.clone()),
                None => self.letter(from)?,
            };
            let record = |letter: &DeadLetter| matches!(letter.subject, Subject::Record { .. });
            if let Some(letter) = letter.filter(|letter| letter.state.unresolved() && record(letter)) {
                return Ok(Some(letter));
            }
        }
        let subject = subject.short_hash();
        match here.subjects.get(&subject).and_then(|id| here.letters.get(id)) {
            Some(letter) => Ok(Some(letter.clone())),
            None => self.standing_in(state, subject),
        }
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

    /// As [`Queue::standing`], or the letter of this subject that was resolved by what it was redriven as: a record that
    /// was repaired is as unreadable as before when its source is read again.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn standing_or_mended(&self, subject: u128) -> Result<Option<DeadLetter>, QueueError> {
        let mut state = self.shared.state();
        if state.letters.sum(|_, _| true) == 0 {
            return Ok(None);
        }
        self.shared.apply(&mut state)?;
        let Some(id) = self.shared.db.get(entry::hashed(entry::DEAD_BY_KEY, subject))? else {
            return Ok(None);
        };
        let id = Uuid::from_slice(&id).map_err(|_| QueueError::Damaged("a letter's index".into()))?;
        let mended = |letter: &DeadLetter| {
            letter.sent.is_some() && letter.resolved_how.as_deref() != Some("superseded")
        };
        Ok(self.letter(id)?.filter(|letter| letter.state.stands() || mended(letter)))
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
            let keys: HashSet<u128> = {
                let state = self.shared.state();
                let seqs = state.redriven.of(id.as_u128()).iter();
                seqs.filter_map(|seq| Some(state.window.slot(*seq)?.key)).collect()
            };
            for key in keys {
                self.cancel_hash(key)?;
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
}

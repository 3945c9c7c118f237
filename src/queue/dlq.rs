//! The dead-letter queue: bury, redrive, resolve, discard, list. Journal first, then the tree.

use std::collections::{BTreeMap, HashSet};

use uuid::Uuid;

pub use super::letters::{ClassStats, Counts, Filter, Settings};
use super::{
    Lease, Queue, QueueError, State,
    dead::{Burial, DeadLetter, State as LetterState, Transition},
    entry::{self, Pending, Record},
    now_text,
    window::Place,
};
use crate::{chunk::Chunk, error::Class};

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
            let mut transitions = Vec::new();
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
                let standing = self.standing_in(&mut state, subject)?;
                if standing
                    .as_ref()
                    .is_some_and(|letter| letter.is_newer_than(burial.origin.source_id, burial.origin.offset))
                {
                    buried.push(None);
                    continue;
                }
                let transition = burial.transition(standing.as_ref(), &at);
                buried.push(transition.apply(standing, &at));
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

    fn standing_in(&self, state: &mut State, subject: u128) -> Result<Option<DeadLetter>, QueueError> {
        self.shared.apply(state)?;
        let Some(id) = self.shared.db.get(entry::hashed(entry::DEAD_BY_KEY, subject))? else {
            return Ok(None);
        };
        let id = Uuid::from_slice(&id).map_err(|_| QueueError::Damaged("a letter's index".into()))?;
        Ok(self.letter(id)?.filter(|letter| letter.state.stands()))
    }

    /// One letter.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn letter(&self, id: Uuid) -> Result<Option<DeadLetter>, QueueError> {
        let bytes = self.shared.db.get(entry::hashed(entry::DEAD, id.as_u128()))?;
        bytes.map(|bytes| decode(&bytes)).transpose()
    }

    /// Letters that `filter` keeps, oldest first, at most `limit`.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn letters(&self, filter: &Filter, limit: usize) -> Result<Vec<DeadLetter>, QueueError> {
        self.shared.apply(&mut self.shared.state())?;
        let from = entry::hashed(entry::DEAD, filter.after.map_or(0, |id| id.as_u128()));
        let to = [entry::DEAD + 1];
        let mut kept = Vec::new();
        for item in self.shared.db.range(&from[..]..&to[..]) {
            let letter = decode(&item?.1)?;
            if filter.keeps(&letter) {
                kept.push(letter);
                if kept.len() == limit {
                    break;
                }
            }
        }
        Ok(kept)
    }

    /// Letters by class and state.
    pub fn letter_counts(&self) -> Counts {
        self.shared.state().letters.clone()
    }

    /// Per class: open letters, worst attempts, oldest.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn letter_stats(&self) -> Result<Vec<ClassStats>, QueueError> {
        let mut classes: BTreeMap<Class, ClassStats> = BTreeMap::new();
        for letter in self.letters(&Filter::default(), usize::MAX)? {
            if letter.state == LetterState::Redriven {
                continue;
            }
            let stats = classes.entry(letter.class).or_insert_with(|| ClassStats {
                class: letter.class,
                open: 0,
                attempts_worst: 0,
                oldest_at: letter.first_failed_at.clone(),
            });
            stats.open += 1;
            stats.attempts_worst = stats.attempts_worst.max(letter.attempts);
            if letter.first_failed_at < stats.oldest_at {
                stats.oldest_at.clone_from(&letter.first_failed_at);
            }
        }
        Ok(classes.into_values().collect())
    }

    /// Sends a letter back: its chunk is pending again, durable on return. False when the letter is not open, is
    /// about another version, or a version of the chunk is pending already: a late redrive never takes the place of newer text.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn redrive(&self, id: Uuid, who: &str, chunk: Chunk) -> Result<bool, QueueError> {
        {
            // One lock over all of it: nothing may be enqueued, settled or buried in between.
            let mut state = self.shared.state();
            let open = self.letter(id)?.is_some_and(|letter| {
                // It may be about a newer version by now.
                letter.state == LetterState::Open && letter.chunk_id.is_none_or(|id| id == chunk.id())
            });
            if !open || state.window.by_key(chunk.key.short_hash()).is_some() {
                return Ok(false);
            }
            self.write_letters(&mut state, &now_text(), &[Transition::Redrive { id, who: who.to_owned() }])?;
            let record = Record { redriven_from: id.as_u128(), ..Record::default() };
            state.insert(&Pending { chunk, record }, Place::Ready);
        }
        self.flush()?;
        self.shared.told();
        Ok(true)
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
        let pending = self.redriven_pending()?;
        let mut lost = self.letters(&Filter::default(), usize::MAX)?;
        lost.retain(|letter| {
            letter.state == LetterState::Redriven && !pending.contains(&letter.id.as_u128())
        });
        let transitions: Vec<_> = lost.iter().map(|letter| Transition::Reopen { id: letter.id }).collect();
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

    /// Gives a letter up. False when it is already closed.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn discard(&self, id: Uuid, who: &str, reason: &str) -> Result<bool, QueueError> {
        let Some(letter) = self.letter(id)?.filter(|letter| letter.state.unresolved()) else {
            return Ok(false);
        };
        if let super::dead::Subject::Chunk(key) = &letter.subject
            && letter.state == LetterState::Redriven
        {
            self.cancel(key)?;
        }
        self.change(&[Transition::Discard { id, who: who.to_owned(), reason: reason.to_owned() }])?;
        self.flush()?;
        Ok(true)
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

    fn change(&self, transitions: &[Transition]) -> Result<(), QueueError> {
        if transitions.is_empty() {
            return Ok(());
        }
        let mut state = self.shared.state();
        self.write_letters(&mut state, &now_text(), transitions)?;
        self.shared.apply(&mut state)
    }

    fn write_letters(
        &self,
        state: &mut State,
        at: &str,
        transitions: &[Transition],
    ) -> Result<(), QueueError> {
        if transitions.is_empty() {
            return Ok(());
        }
        let offset = state.journal.append(at, transitions)?;
        for transition in transitions {
            self.know(state, at, transition)?;
        }
        state.put(entry::JOURNAL, offset.to_le_bytes().to_vec());
        Ok(())
    }

    /// Brings one journalled change into the tree. A letter that is buried a second time within one batch is
    /// read back, so the gathered changes are applied first.
    fn know(&self, state: &mut State, at: &str, transition: &Transition) -> Result<(), QueueError> {
        self.shared.apply(state)?;
        let before = self.letter(transition.id())?;
        let Some(after) = transition.apply(before.clone(), at) else {
            tracing::warn!(id = %transition.id(), "the journal changes a letter that is not there");
            return Ok(());
        };
        state.letters.moved(before.as_ref(), &after);
        let subject = entry::hashed(entry::DEAD_BY_KEY, after.subject.short_hash());
        state.put(&subject, after.id.as_bytes().to_vec());
        state.put(&entry::hashed(entry::DEAD, after.id.as_u128()), encode(&after));
        Ok(())
    }

    /// At open: counts the letters and applies what only the journal knows. Gives the number of such changes.
    pub(super) fn catch_up_letters(&self) -> Result<usize, QueueError> {
        let mut state = self.shared.state();
        for item in self.shared.db.scan_prefix([entry::DEAD]) {
            let letter = decode(&item?.1)?;
            state.letters.moved(None, &letter);
        }
        if state.journal.bytes() == 0 && state.letters.sum(|_, _| true) > 0 {
            self.journal_anew(&mut state)?;
        }
        let known = self.shared.db.get(entry::JOURNAL)?;
        let known =
            known.and_then(|bytes| Some(u64::from_le_bytes(bytes.as_ref().try_into().ok()?))).unwrap_or(0);
        let (mut lines, end) = (Vec::new(), state.journal.bytes());
        if known > end {
            return Err(QueueError::JournalDamaged {
                path: state.journal.path().display().to_string(),
                offset: end,
                why: format!("it ends here, and the queue knows it to be {known} bytes long"),
            });
        }
        state.journal.replay(known, &mut |line| {
            lines.push(line);
            Ok(())
        })?;
        for line in &lines {
            self.know(&mut state, &line.at, &line.transition)?;
            self.drop_buried(&mut state, &line.transition)?;
        }
        state.put(entry::JOURNAL, end.to_le_bytes().to_vec());
        self.shared.apply(&mut state)?;
        Ok(lines.len())
    }

    /// A journal that is gone is written anew: the tree has every letter as it stands.
    fn journal_anew(&self, state: &mut State) -> Result<(), QueueError> {
        // First, so that a crash after the rename replays what the tree has, and not from the middle of a line.
        self.shared.db.remove(entry::JOURNAL)?;
        self.shared.db.flush()?;
        let mut letters = self.shared.db.scan_prefix([entry::DEAD]);
        let bury = |item: sled::Result<(sled::IVec, sled::IVec)>| {
            decode(&item?.1).map(|letter| Transition::Bury { letter: Box::new(letter) })
        };
        state.journal.fill(&now_text(), &mut || letters.by_ref().take(256).map(bury).collect())?;
        let path = state.journal.path().display();
        tracing::warn!(%path, "the journal of dead letters was gone and is made anew from the queue");
        Ok(())
    }

    /// A chunk that the journal buried is no longer pending, unless another version of it is.
    fn drop_buried(&self, state: &mut State, transition: &Transition) -> Result<(), QueueError> {
        if !matches!(transition, Transition::Bury { .. } | Transition::FailedAgain { .. }) {
            return Ok(());
        }
        self.shared.apply(state)?;
        let Some(letter) = self.letter(transition.id())? else { return Ok(()) };
        let Some(chunk_id) = letter.chunk_id else { return Ok(()) };
        let same = |slot: &super::window::Slot| slot.chunk == super::prefix(&chunk_id);
        let held = state.window.by_key(letter.subject.short_hash());
        if let Some(seq) = held.filter(|(_, slot)| same(slot)).map(|(seq, _)| seq) {
            state.remove(seq);
        }
        Ok(())
    }
}

fn encode(letter: &DeadLetter) -> Vec<u8> {
    let mut out = vec![entry::FORMAT];
    serde_json::to_writer(&mut out, letter).expect("plain data");
    out
}

fn decode(bytes: &[u8]) -> Result<DeadLetter, QueueError> {
    match bytes.split_first() {
        Some((&entry::FORMAT, json)) => serde_json::from_slice(json).map_err(|error| {
            QueueError::Damaged(format!("a dead letter is unreadable ({:?})", error.classify()))
        }),
        _ => Err(QueueError::Damaged("a dead letter's form is not known to this version".into())),
    }
}

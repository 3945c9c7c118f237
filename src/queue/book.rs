//! Keeping the books of dead letters: each change into the journal, then into the tree; catching up at open; and
//! writing the journal anew when most of it is about what is no more.

use std::collections::HashSet;

use uuid::Uuid;

use super::{
    Queue, QueueError, State,
    dead::{DeadLetter, State as LetterState, Transition},
    entry, index, letters, now_text,
};

/// Bytes and epoch of the journal that is about to take its place: `k`.
const NEXT_JOURNAL: &[u8] = b"k";
/// Letters held at once while the journal is written anew.
const TOGETHER: usize = 256;

impl Queue {
    pub(super) fn change(&self, transitions: &[Transition]) -> Result<(), QueueError> {
        if transitions.is_empty() {
            return Ok(());
        }
        let mut state = self.shared.state();
        self.write_letters(&mut state, &now_text(), transitions)?;
        self.shared.apply(&mut state)
    }

    /// Journal first, durable; then the tree.
    pub(super) fn write_letters(
        &self,
        state: &mut State,
        at: &str,
        transitions: &[Transition],
    ) -> Result<(), QueueError> {
        if transitions.is_empty() {
            return Ok(());
        }
        let ends = state.journal.append(at, transitions)?;
        let epoch = state.journal.epoch();
        self.shared.apply(state)?;
        let mut touched = HashSet::new();
        for (transition, end) in transitions.iter().zip(ends) {
            if !touched.insert(transition.id()) {
                self.shared.apply(state)?;
            }
            self.know(state, at, transition, place(end, epoch))?;
            self.shared.apply_if_large(state)?;
        }
        if state.journal.is_worth_compacting(state.letters.bytes())
            && let Err(error) = self.compact(state)
        {
            state.journal.put_off();
            tracing::warn!(%error, "the journal of dead letters could not be compacted; it goes on growing");
        }
        Ok(())
    }

    /// Gathers one journalled change for the tree, with the place in the journal that the tree then knows. What was
    /// gathered of the same letter before must be applied by now.
    fn know(
        &self,
        state: &mut State,
        at: &str,
        transition: &Transition,
        known: Vec<u8>,
    ) -> Result<(), QueueError> {
        let key = entry::hashed(entry::DEAD, transition.id().as_u128());
        let stored = self.shared.db.get(key)?;
        let before = stored.as_deref().map(decode).transpose()?;
        let indexed =
            before.as_ref().zip(stored).map(|(letter, bytes)| index::Entry::of(letter, bytes.len()));
        state.put(entry::JOURNAL, known);
        let subject =
            before.as_ref().map(|letter| entry::hashed(entry::DEAD_BY_KEY, letter.subject.short_hash()));
        let after = transition.apply(before, at);
        let Some(after) = after else {
            let (Transition::Purge { .. }, Some(indexed)) = (transition, indexed) else {
                tracing::debug!(id = %transition.id(), "the journal changes a letter that is not there");
                return Ok(());
            };
            state.letters.moved(Some(&indexed), None);
            state.take(&indexed.key());
            state.take(&key);
            if let Some(subject) = subject
                && self.shared.db.get(subject)?.as_deref() == Some(transition.id().as_bytes())
            {
                state.take(&subject);
            }
            return Ok(());
        };
        let bytes = encode(&after);
        let entry = index::Entry::of(&after, bytes.len());
        state.letters.moved(indexed.as_ref(), Some(&entry));
        if let Some(indexed) = indexed.filter(|indexed| indexed.key() != entry.key()) {
            state.take(&indexed.key());
        }
        state.put(&entry.key(), entry.value());
        if after.state.stands() {
            // A closed letter that comes from elsewhere does not hide the one that stands here.
            let subject = entry::hashed(entry::DEAD_BY_KEY, after.subject.short_hash());
            state.put(&subject, after.id.as_bytes().to_vec());
        }
        state.put(&key, bytes);
        Ok(())
    }

    /// At open: counts the letters and applies what only the journal knows. Gives the number of such changes.
    pub(super) fn catch_up_letters(&self) -> Result<usize, QueueError> {
        let mut state = self.shared.state();
        state.journal.remove_leftover()?;
        self.count_letters(&mut state)?;
        let (known, next) = (self.noted(entry::JOURNAL)?, self.noted(NEXT_JOURNAL)?);
        let (end, epoch) = (state.journal.bytes(), state.journal.epoch());
        if end == 0 && (known.is_some_and(|(bytes, _)| bytes > 0) || state.letters.bytes() > 0) {
            let path = state.journal.path().display().to_string();
            self.compact(&mut state)?;
            tracing::warn!(path, "the journal of dead letters was gone and is made anew from the queue");
            return Ok(0);
        }
        let refuse = |why| {
            let path = state.journal.path().display().to_string();
            Err(QueueError::JournalDamaged { path, offset: end, why })
        };
        let from = match (known, next) {
            (Some((bytes, of)), _) if of == epoch => bytes,
            (_, Some((bytes, of))) if of == epoch => bytes,
            (None, _) => 0,
            _ => return refuse("it is not the one that the queue was last used with".to_owned()),
        };
        if from > end {
            return refuse(format!("it ends here, and the queue knows it to be {from} bytes long"));
        }
        let count = self.replay(&mut state, from)?;
        state.put(entry::JOURNAL, place(end, epoch));
        state.take(NEXT_JOURNAL);
        super::renew::note_alive(&mut state);
        self.shared.apply(&mut state)?;
        let bytes_left =
            self.shared.db.get(super::renew::REMOVED)?.is_some_and(|what| what == super::renew::JOURNAL);
        if bytes_left || state.journal.is_worth_compacting(state.letters.bytes()) {
            self.compact(&mut state)?;
            state.take(super::renew::REMOVED);
            self.shared.apply(&mut state)?;
        }
        Ok(count)
    }

    fn replay(&self, state: &mut State, from: u64) -> Result<usize, QueueError> {
        let (mut count, mut buried) = (0, Vec::new());
        let epoch = state.journal.epoch();
        for line in state.journal.lines(from)? {
            let (line, end) = line?;
            self.shared.apply(state)?;
            self.know(state, &line.at, &line.transition, place(end, epoch))?;
            match &line.transition {
                _ if state.window.is_empty() => {}
                Transition::Bury { letter } => buried.extend(letter.chunk_id.map(|chunk| (letter.id, chunk))),
                Transition::FailedAgain { id, chunk_id, .. } => {
                    buried.extend(chunk_id.map(|chunk| (*id, chunk)));
                }
                _ => {}
            }
            count += 1;
        }
        self.shared.apply(state)?;
        for (id, chunk) in buried {
            self.drop_buried(state, id, super::prefix(&chunk))?;
        }
        Ok(count)
    }

    /// A chunk that the journal buried is no longer pending, unless another version of it is. One that was redriven may
    /// have another key than its letter, and another text.
    fn drop_buried(&self, state: &mut State, id: Uuid, chunk: u128) -> Result<(), QueueError> {
        let open = |letter: &DeadLetter| matches!(letter.state, LetterState::Open | LetterState::Quarantined);
        let Some(letter) = self.letter(id)?.filter(open) else { return Ok(()) };
        let of_key = state.window.by_key(letter.subject.short_hash()).map(|(seq, _)| seq);
        let redriven = state.redriven.of(id.as_u128()).iter().copied();
        let is_it = |seq: &u64| state.window.slot(*seq).is_some_and(|slot| slot.chunk == chunk);
        let same: Vec<u64> = redriven.chain(of_key).filter(is_it).collect();
        for seq in same {
            state.remove(seq);
        }
        Ok(())
    }

    /// Adds the index up; a tree from before there was one gets it.
    fn count_letters(&self, state: &mut State) -> Result<(), QueueError> {
        let db = &self.shared.db;
        if db.get(index::FORM)?.is_none() {
            for item in db.scan_prefix([entry::DEAD]) {
                let (_, value) = item?;
                let entry = index::Entry::of(&decode(&value)?, value.len());
                state.put(&entry.key(), entry.value());
                self.shared.apply_if_large(state)?;
            }
            state.put(index::FORM, vec![entry::FORMAT]);
            self.shared.apply(state)?;
        }
        let (sums, known) = (db.get(index::SUMS)?, db.get(entry::JOURNAL)?);
        if let Some(counts) = sums.zip(known).and_then(|(sums, known)| index::Counts::decode(&sums, &known)) {
            state.letters = counts;
            return Ok(());
        }
        for item in db.scan_prefix(index::PREFIX) {
            state.letters.moved(None, Some(&letters::indexed(item)?));
        }
        Ok(())
    }

    /// Writes the journal anew: every letter as it stands, and nothing else. A crash at any point leaves one whole
    /// journal, and the tree knows which it may be.
    pub(super) fn compact(&self, state: &mut State) -> Result<(), QueueError> {
        self.shared.apply(state)?;
        let mut stored = self.shared.db.scan_prefix([entry::DEAD]);
        let bury = |item: sled::Result<(sled::IVec, sled::IVec)>| {
            decode(&item?.1).map(|letter| Transition::Bury { letter: Box::new(letter) })
        };
        let mut next = || stored.by_ref().take(TOGETHER).map(bury).collect();
        let new = state.journal.write_next(&now_text(), &mut next)?;
        let known = place(new.bytes(), new.epoch());
        self.shared.db.insert(NEXT_JOURNAL, known.clone())?;
        self.shared.db.flush()?;
        self.shared.sync.after_flush().map_err(QueueError::NotDurable)?;
        state.journal.replace(new)?;
        state.put(entry::JOURNAL, known);
        state.take(NEXT_JOURNAL);
        self.shared.apply(state)
    }

    fn noted(&self, key: &[u8]) -> Result<Option<(u64, Uuid)>, QueueError> {
        let Some(bytes) = self.shared.db.get(key)? else { return Ok(None) };
        let (offset, epoch) = bytes
            .split_first_chunk::<8>()
            .ok_or_else(|| QueueError::Damaged("what it knows of the journal is unreadable".into()))?;
        // Without an epoch in trees from before journals had one.
        Ok(Some((u64::from_le_bytes(*offset), Uuid::from_slice(epoch).unwrap_or_default())))
    }
}

/// Notes what the letters add up to, when the tree knows all of the journal and so holds all that was added up.
pub(super) fn note_sums(db: &sled::Db, state: &State) -> sled::Result<()> {
    let known = place(state.journal.bytes(), state.journal.epoch());
    if db.get(entry::JOURNAL)?.is_some_and(|noted| noted == known) {
        db.insert(index::SUMS, state.letters.encode(&known))?;
    }
    Ok(())
}

/// A place in the journal, as stored.
fn place(offset: u64, epoch: Uuid) -> Vec<u8> {
    [&offset.to_le_bytes()[..], epoch.as_bytes()].concat()
}

pub(super) fn encode(letter: &DeadLetter) -> Vec<u8> {
    let mut out = vec![entry::FORMAT];
    serde_json::to_writer(&mut out, letter).expect("plain data");
    out
}

pub(super) fn decode(bytes: &[u8]) -> Result<DeadLetter, QueueError> {
    match bytes.split_first() {
        Some((&entry::FORMAT, json)) => serde_json::from_slice(json).map_err(|error| {
            QueueError::Damaged(format!("a dead letter is unreadable ({:?})", error.classify()))
        }),
        _ => Err(QueueError::Damaged("a dead letter's form is not known to this version".into())),
    }
}

//! The dead-letter queue: bury, redrive, resolve, discard, list. Journal first, then the tree.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use super::{
    Lease, Queue, QueueError, State,
    dead::{Burial, DeadLetter, State as LetterState, Transition},
    entry::{self, Record},
    now_text,
};
use crate::{
    chunk::{Chunk, ChunkKey},
    error::{Class, Stage},
};

/// `dlq.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// `full`: a letter keeps all that is needed to rebuild its chunk.
    pub payload: String,
    /// Open letters from which a warning is logged.
    pub alert_depth: u64,
}

/// Letters by class and state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<(Class, LetterState), u64>);

impl Counts {
    fn moved(&mut self, before: Option<&DeadLetter>, after: &DeadLetter) {
        if let Some(before) = before
            && let Some(count) = self.0.get_mut(&(before.class, before.state))
        {
            *count = count.saturating_sub(1);
        }
        *self.0.entry((after.class, after.state)).or_default() += 1;
    }

    /// Letters for which `keep` holds.
    pub fn sum(&self, keep: impl Fn(Class, LetterState) -> bool) -> u64 {
        self.0.iter().filter(|((class, state), _)| keep(*class, *state)).map(|(_, count)| count).sum()
    }

    /// Open and quarantined letters by class, the empty classes left out.
    pub fn by_class(&self) -> BTreeMap<Class, u64> {
        let mut classes = BTreeMap::new();
        for ((class, state), count) in &self.0 {
            if matches!(state, LetterState::Open | LetterState::Quarantined) && *count > 0 {
                *classes.entry(*class).or_default() += count;
            }
        }
        classes
    }
}

/// Which letters are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Filter {
    /// These ids only.
    #[serde(default)]
    pub ids: Vec<Uuid>,
    /// This class only.
    #[serde(default)]
    pub class: Option<Class>,
    /// This stage only.
    #[serde(default)]
    pub stage: Option<Stage>,
    /// This document only.
    #[serde(default)]
    pub doc_id: Option<String>,
    /// Last failed before this time (RFC 3339 UTC).
    #[serde(default)]
    pub before: Option<String>,
    /// Resolved and discarded ones too.
    #[serde(default)]
    pub closed_too: bool,
    /// Only ids after this one (paging).
    #[serde(default)]
    pub after: Option<Uuid>,
}

impl Filter {
    /// Whether a letter is meant.
    pub fn keeps(&self, letter: &DeadLetter) -> bool {
        (self.ids.is_empty() || self.ids.contains(&letter.id))
            && self.class.is_none_or(|class| class == letter.class)
            && self.stage.is_none_or(|stage| stage == letter.stage)
            && self.doc_id.as_ref().is_none_or(|doc| letter.doc_id.as_ref() == Some(doc))
            && self.before.as_ref().is_none_or(|before| letter.last_failed_at < *before)
            && (self.closed_too || letter.state.unresolved())
            && self.after.is_none_or(|after| letter.id > after)
    }
}

/// One class in `dlq stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassStats {
    /// The class.
    pub class: Class,
    /// Open and quarantined letters.
    pub open: u64,
    /// Most attempts of one of them.
    pub attempts_worst: u32,
    /// First failure of the oldest, RFC 3339 UTC.
    pub oldest_at: String,
}

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
        {
            let mut state = self.shared.state();
            let (mut leases, mut transitions) = (Vec::new(), Vec::new());
            for (lease, burial) in burials {
                let wanted = lease.as_ref().is_none_or(|lease| {
                    let slot = state.window.slot(lease.seq);
                    slot.is_some_and(|slot| !slot.cancelled) && !state.window.superseded(lease.seq)
                });
                leases.extend(lease);
                if !wanted {
                    buried.push(None);
                    continue;
                }
                let subject = burial.subject.short_hash();
                let standing = self.standing_in(&mut state, subject)?;
                let transition = burial.transition(standing.as_ref(), &at);
                buried.push(transition.apply(standing, &at));
                transitions.push(transition);
            }
            self.write_letters(&mut state, &at, &transitions)?;
            for lease in leases {
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

    /// Sends a letter back: its chunks are pending again, durable on return. False when it is not open.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn redrive(&self, id: Uuid, who: &str, chunks: Vec<Chunk>) -> Result<bool, QueueError> {
        let open =
            |letter: Option<DeadLetter>| letter.is_some_and(|letter| letter.state == LetterState::Open);
        if !open(self.letter(id)?) {
            return Ok(false);
        }
        // The chunk first: a crash in between leaves an open letter whose chunk is pending, which its writing
        // resolves; the other way round the chunk would be gone.
        for chunk in chunks {
            let record = Record { redriven_from: id.as_u128(), ..Record::default() };
            self.enqueue_with(chunk, record)?;
        }
        self.flush()?;
        let mut state = self.shared.state();
        // A run may have written it meanwhile, and the letter is resolved.
        if open(self.letter(id)?) {
            self.write_letters(&mut state, &now_text(), &[Transition::Redrive { id, who: who.to_owned() }])?;
            self.shared.apply(&mut state)?;
        }
        Ok(true)
    }

    /// Puts chunks of redriven letters that are not pending back into the queue: the queue was rebuilt, or lost
    /// its last moments. Gives their number.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn requeue_redriven(&self) -> Result<usize, QueueError> {
        if self.letter_counts().sum(|_, state| state == LetterState::Redriven) == 0 {
            return Ok(0);
        }
        let mut count = 0;
        for letter in self.letters(&Filter::default(), usize::MAX)? {
            let chunk = (letter.state == LetterState::Redriven).then(|| letter.chunk()).flatten();
            let Some(chunk) = chunk.filter(|chunk| self.held(&chunk.key, &chunk.id()).is_none()) else {
                continue;
            };
            let record = Record { redriven_from: letter.id.as_u128(), ..Record::default() };
            self.enqueue_with(chunk, record)?;
            count += 1;
        }
        Ok(count)
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

    /// The letter that writing this chunk resolves, and how.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn resolves(
        &self,
        key: &ChunkKey,
        chunk_id: &crate::chunk::Digest,
    ) -> Result<Option<(Uuid, String)>, QueueError> {
        let letter = self.standing(key.short_hash())?;
        Ok(letter.map(|letter| {
            let same = letter.chunk_id.as_ref() == Some(chunk_id);
            (letter.id, if same { "as_is" } else { "superseded" }.to_owned())
        }))
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
            self.drop_buried(&mut state, &line.transition);
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
    fn drop_buried(&self, state: &mut State, transition: &Transition) {
        let buried = match transition {
            Transition::Bury { letter } => letter.chunk_id.map(|id| (letter.subject.short_hash(), id)),
            _ => None,
        };
        let Some((subject, chunk_id)) = buried else { return };
        let same = |slot: &super::window::Slot| slot.chunk == super::prefix(&chunk_id);
        let seq = state.window.by_key(subject).filter(|(_, slot)| same(slot)).map(|(seq, _)| seq);
        if let Some(seq) = seq {
            state.remove(seq);
        }
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

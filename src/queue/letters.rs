//! Reading dead letters: which are meant, page by page, and what they add up to.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet},
};

use serde::Serialize;
use uuid::Uuid;

pub use super::index::Counts;
use super::{
    Queue, QueueError, book,
    dead::{DeadLetter, State as LetterState},
    entry, index,
};
use crate::error::{Class, Stage};

/// What a letter keeps of its chunk or record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// All that is needed to rebuild it.
    #[default]
    Full,
    /// No text, metadata, bytes or path: number of the source, place in it, hash.
    Reference,
}

/// `dlq.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// What a letter keeps of its chunk or record.
    pub payload: Keep,
    /// Days after which resolved and discarded letters are purged; 0: never.
    pub retain_days: u64,
    /// Redrives after which a letter that fails again is quarantined.
    pub max_redrives: u32,
    /// Open letters from which an alert is raised.
    pub alert_depth: u64,
    /// Hours since the first failure of the oldest open letter from which an alert is raised; 0: never.
    pub alert_age_h: u64,
    /// What `sh -c` is given at an alert; empty: nothing.
    pub alert_command: String,
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
    /// These states only; empty: see `closed_too`.
    #[serde(default)]
    pub states: Vec<LetterState>,
    /// Resolved and discarded ones too, when no states are named.
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
            && self.keeps_state(letter.state)
            && self.after.is_none_or(|after| letter.id > after)
    }

    /// Whether letters of this state may be meant.
    pub fn keeps_state(&self, state: LetterState) -> bool {
        match self.states.as_slice() {
            [] => self.closed_too || state.unresolved(),
            states => states.contains(&state),
        }
    }
}

/// One class in `dlq stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassStats {
    /// The class.
    pub class: Class,
    /// Open and quarantined letters.
    pub open: u64,
    /// Of those, the quarantined ones.
    pub quarantined: u64,
    /// Most attempts of one of them.
    pub attempts_worst: u32,
    /// First failure of the oldest, RFC 3339 UTC.
    pub oldest_at: String,
}

/// Letters held at once when all of them are looked at.
const PAGE: usize = 256;
/// Bytes of letters on a page, about.
pub const PAGE_BYTES: usize = 8 * 1024 * 1024;

impl Queue {
    /// One letter.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn letter(&self, id: Uuid) -> Result<Option<DeadLetter>, QueueError> {
        let bytes = self.shared.db.get(entry::hashed(entry::DEAD, id.as_u128()))?;
        bytes.map(|bytes| book::decode(&bytes)).transpose()
    }

    /// Letters that `filter` keeps, oldest first, at most `limit`.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn letters(&self, filter: &Filter, limit: usize) -> Result<Vec<DeadLetter>, QueueError> {
        self.letters_within(filter, limit, usize::MAX)
    }

    /// As [`Queue::letters`], and no more once they have `bytes` of stored form in all.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn letters_within(
        &self,
        filter: &Filter,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<DeadLetter>, QueueError> {
        let (mut kept, mut total) = (Vec::new(), 0);
        let mut each = |stored: &[u8]| -> Result<bool, QueueError> {
            let letter = book::decode(stored)?;
            if filter.keeps(&letter) {
                total += stored.len();
                kept.push(letter);
            }
            Ok(kept.len() < limit && total < bytes)
        };
        if limit > 0 {
            self.walk(filter, &mut each)?;
        }
        Ok(kept)
    }

    /// Calls `each` for every letter that `filter` keeps, oldest first, a page of them in memory at a time; stops when
    /// it says no.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn each_letter(
        &self,
        filter: &Filter,
        each: &mut dyn FnMut(DeadLetter) -> bool,
    ) -> Result<(), QueueError> {
        let mut filter = filter.clone();
        loop {
            let page = self.letters_within(&filter, PAGE, PAGE_BYTES)?;
            let Some(last) = page.last().map(|letter| letter.id) else { return Ok(()) };
            filter.after = Some(last);
            for letter in page {
                if !each(letter) {
                    return Ok(());
                }
            }
        }
    }

    /// The stored forms of letters that may be meant, by ascending id, until `each` says no.
    fn walk(
        &self,
        filter: &Filter,
        each: &mut dyn FnMut(&[u8]) -> Result<bool, QueueError>,
    ) -> Result<(), QueueError> {
        let groups: Vec<_> = {
            let mut state = self.shared.state();
            self.shared.apply(&mut state)?;
            state.letters.groups().collect()
        };
        let after = filter.after.map_or(0, |id| id.as_u128().saturating_add(1));
        if !filter.ids.is_empty() {
            let mut ids: Vec<u128> = filter.ids.iter().map(Uuid::as_u128).filter(|id| *id >= after).collect();
            ids.sort_unstable();
            ids.dedup();
            for id in ids {
                if let Some(stored) = self.shared.db.get(entry::hashed(entry::DEAD, id))?
                    && !each(&stored)?
                {
                    break;
                }
            }
            return Ok(());
        }
        let meant = groups.into_iter().filter(|(class, state)| {
            filter.class.is_none_or(|wanted| wanted == *class) && filter.keeps_state(*state)
        });
        let mut lanes: Vec<super::store::Iter<'_>> = meant
            .map(|(class, state)| {
                self.shared.db.range(index::key(class, state, after)..=index::key(class, state, u128::MAX))
            })
            .collect();
        // The lanes ascend each; the lowest head of all is next.
        let mut heads = BinaryHeap::new();
        for (at, lane) in lanes.iter_mut().enumerate() {
            heads.extend(next_id(lane)?.map(|id| Reverse((id, at))));
        }
        let mut last = None;
        while let Some(Reverse((id, at))) = heads.pop() {
            heads.extend(next_id(&mut lanes[at])?.map(|id| Reverse((id, at))));
            // A letter that changes meanwhile may come up in two lanes.
            if last.replace(id) == Some(id) {
                continue;
            }
            if let Some(stored) = self.shared.db.get(entry::hashed(entry::DEAD, id))?
                && !each(&stored)?
            {
                break;
            }
        }
        Ok(())
    }

    /// Letters by class and state.
    pub fn letter_counts(&self) -> Counts {
        self.shared.state().letters.clone()
    }

    /// Per class: open letters, worst attempts, oldest. Costs the same however many letters there are.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn letter_stats(&self) -> Result<Vec<ClassStats>, QueueError> {
        let counts = {
            let mut state = self.shared.state();
            self.shared.apply(&mut state)?;
            state.letters.clone()
        };
        let open = |state| matches!(state, LetterState::Open | LetterState::Quarantined);
        let mut stats = Vec::new();
        for (class, count) in counts.by_class() {
            let states = vec![LetterState::Open, LetterState::Quarantined];
            let filter = Filter { class: Some(class), states, ..Filter::default() };
            // Ids ascend with the time of the first failure.
            let Some(oldest) = self.letters(&filter, 1)?.pop() else { continue };
            stats.push(ClassStats {
                class,
                open: count,
                quarantined: counts.sum(|of, state| of == class && state == LetterState::Quarantined),
                attempts_worst: counts.attempts_worst(class, open),
                oldest_at: oldest.first_failed_at,
            });
        }
        Ok(stats)
    }

    /// Ids of resolved and discarded letters that were closed before this time (milliseconds since 1970), at most
    /// `limit`.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn closed_before(&self, before_ms: u64, limit: usize) -> Result<Vec<Uuid>, QueueError> {
        let groups: Vec<_> = {
            let mut state = self.shared.state();
            self.shared.apply(&mut state)?;
            state.letters.groups().filter(|(_, state)| !state.unresolved()).collect()
        };
        let mut ids = Vec::new();
        for (class, state) in groups {
            let range = index::key(class, state, 0)..=index::key(class, state, u128::MAX);
            for item in self.shared.db.range(range) {
                let entry = indexed(item)?;
                if entry.closed_ms > 0 && entry.closed_ms < before_ms {
                    ids.push(entry.id);
                    if ids.len() == limit {
                        return Ok(ids);
                    }
                }
            }
        }
        Ok(ids)
    }

    /// Ids of all letters of these states.
    pub(super) fn ids_of(&self, wanted: LetterState) -> Result<HashSet<Uuid>, QueueError> {
        let counts = self.letter_counts();
        let mut ids = HashSet::new();
        for (class, state) in counts.groups().filter(|(_, state)| *state == wanted) {
            let range = index::key(class, state, 0)..=index::key(class, state, u128::MAX);
            for item in self.shared.db.range(range) {
                ids.insert(indexed(item)?.id);
            }
        }
        Ok(ids)
    }
}

fn next_id(lane: &mut super::store::Iter<'_>) -> Result<Option<u128>, QueueError> {
    lane.next().map(|item| indexed(item).map(|entry| entry.id.as_u128())).transpose()
}

/// An item of the index.
pub(super) fn indexed(item: sled::Result<(sled::IVec, sled::IVec)>) -> Result<index::Entry, QueueError> {
    let (key, value) = item?;
    index::Entry::decode(&key, &value)
        .ok_or_else(|| QueueError::Damaged("the index of dead letters is unreadable".into()))
}

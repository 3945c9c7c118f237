//! The index of dead letters: one small record a letter, by class and state, and what it adds up to in memory. With
//! it, opening, counting, statistics and paging decode no letter.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    dead::{DeadLetter, State},
    entry,
};
use crate::error::Class;

/// Records of the index: class, state, id.
const INDEX: u8 = b'i';
/// Present when every letter is in the index: `l`.
pub const FORM: &[u8] = b"l";
/// What the index added up to when the queue was closed, and the place in the journal at which it did: `n`.
pub const SUMS: &[u8] = b"n";

/// What is known of a letter without decoding it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Kind of its last failure.
    pub class: Class,
    /// Where it stands.
    pub state: State,
    /// Its id.
    pub id: Uuid,
    /// Attempts charged.
    pub attempts: u32,
    /// When it was resolved or discarded, milliseconds since 1970; 0: it was not.
    pub closed_ms: u64,
    /// Bytes of its stored form.
    pub bytes: u32,
}

impl Entry {
    /// The entry of a letter whose stored form has that many bytes.
    pub fn of(letter: &DeadLetter, bytes: usize) -> Self {
        let closed = letter.resolved_at.as_deref().and_then(|at| at.parse::<jiff::Timestamp>().ok());
        Self {
            class: letter.class,
            state: letter.state,
            id: letter.id,
            attempts: letter.attempts,
            closed_ms: closed.map_or(0, |at| u64::try_from(at.as_millisecond()).unwrap_or(0)),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        }
    }

    /// Its key: within a class and a state, ids ascend, and with them time.
    pub fn key(&self) -> Vec<u8> {
        key(self.class, self.state, self.id.as_u128())
    }

    /// Version byte and numbers.
    pub fn value(&self) -> Vec<u8> {
        let mut out = vec![entry::FORMAT];
        out.extend(self.attempts.to_le_bytes());
        out.extend(self.closed_ms.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out
    }

    /// The inverse of both; `None` when the bytes are not ours.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<Self> {
        let (head, id) = key.split_last_chunk::<16>()?;
        let (&state, class) = head.strip_prefix(&[INDEX])?.split_last()?;
        let (&form, numbers) = value.split_first()?;
        let numbers: &[u8; 16] = numbers.try_into().ok()?;
        (form == entry::FORMAT).then_some(())?;
        Some(Self {
            class: std::str::from_utf8(class.strip_suffix(&[0])?).ok()?.parse().ok()?,
            state: STATES.into_iter().find(|known| code(*known) == state)?,
            id: Uuid::from_bytes(*id),
            attempts: u32::from_le_bytes(numbers[..4].try_into().ok()?),
            closed_ms: u64::from_le_bytes(numbers[4..12].try_into().ok()?),
            bytes: u32::from_le_bytes(numbers[12..].try_into().ok()?),
        })
    }
}

/// Prefix of the whole index.
pub const PREFIX: [u8; 1] = [INDEX];

/// Every state.
pub const STATES: [State; 5] =
    [State::Open, State::Redriven, State::Quarantined, State::Resolved, State::Discarded];

/// The key of this id, or the first one not below it.
pub fn key(class: Class, state: State, id: u128) -> Vec<u8> {
    let mut key = vec![INDEX];
    key.extend(class.as_str().bytes());
    key.extend([0, code(state)]);
    key.extend(id.to_be_bytes());
    key
}

const fn code(state: State) -> u8 {
    match state {
        State::Open => b'o',
        State::Redriven => b'r',
        State::Quarantined => b'q',
        State::Resolved => b'd',
        State::Discarded => b'x',
    }
}

/// Letters by class and state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    groups: BTreeMap<(Class, State), Group>,
    bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Group {
    count: u64,
    /// How many letters have that many attempts.
    attempts: BTreeMap<u32, u64>,
}

impl Counts {
    /// A letter came, changed or went.
    pub(super) fn moved(&mut self, before: Option<&Entry>, after: Option<&Entry>) {
        if let Some(before) = before {
            self.bytes = self.bytes.saturating_sub(before.bytes.into());
            if let Some(group) = self.groups.get_mut(&(before.class, before.state)) {
                group.count = group.count.saturating_sub(1);
                if let Some(same) = group.attempts.get_mut(&before.attempts) {
                    *same = same.saturating_sub(1);
                }
                group.attempts.retain(|_, same| *same > 0);
            }
            self.groups.retain(|_, group| group.count > 0);
        }
        if let Some(after) = after {
            self.bytes += u64::from(after.bytes);
            let group = self.groups.entry((after.class, after.state)).or_default();
            group.count += 1;
            *group.attempts.entry(after.attempts).or_default() += 1;
        }
    }

    /// Bytes of all letters' stored forms.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The sums as stored: with them an open adds nothing up, as long as the tree knows no more of the journal.
    pub(super) fn encode(&self, known: &[u8]) -> Vec<u8> {
        let groups: Vec<_> = self.groups.iter().collect();
        let mut out = vec![entry::FORMAT];
        serde_json::to_writer(&mut out, &(known, groups, self.bytes)).expect("plain data");
        out
    }

    /// The inverse; `None` when they are of another moment or not ours: then the index is added up.
    pub(super) fn decode(stored: &[u8], known: &[u8]) -> Option<Self> {
        type Stored = (Vec<u8>, Vec<((Class, State), Group)>, u64);
        let (&form, json) = stored.split_first()?;
        let (of, groups, bytes): Stored =
            (form == entry::FORMAT).then(|| serde_json::from_slice(json).ok()).flatten()?;
        (of == known).then(|| Self { groups: groups.into_iter().collect(), bytes })
    }

    /// Letters for which `keep` holds.
    pub fn sum(&self, keep: impl Fn(Class, State) -> bool) -> u64 {
        self.groups.iter().filter(|((class, state), _)| keep(*class, *state)).map(|(_, g)| g.count).sum()
    }

    /// Classes and states of which there are letters.
    pub fn groups(&self) -> impl Iterator<Item = (Class, State)> {
        self.groups.keys().copied()
    }

    /// Most attempts of a letter of this class for whose state `keep` holds.
    pub fn attempts_worst(&self, class: Class, keep: impl Fn(State) -> bool) -> u32 {
        let groups = self.groups.iter().filter(|((of, state), _)| *of == class && keep(*state));
        groups.filter_map(|(_, group)| Some(*group.attempts.last_key_value()?.0)).max().unwrap_or(0)
    }

    /// Open and quarantined letters by class, the empty classes left out.
    pub fn by_class(&self) -> BTreeMap<Class, u64> {
        let mut classes = BTreeMap::new();
        for ((class, state), group) in &self.groups {
            if matches!(state, State::Open | State::Quarantined) {
                *classes.entry(*class).or_default() += group.count;
            }
        }
        classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u128, state: State, attempts: u32) -> Entry {
        let id = Uuid::from_u128(n);
        Entry { class: Class::JsonSyntax, state, id, attempts, closed_ms: 7, bytes: 100 }
    }

    #[test]
    fn every_class_and_state_reads_back() {
        for class in Class::ALL {
            for state in STATES {
                let whole = Entry { class: *class, ..entry(u128::MAX - 5, state, 3) };
                assert_eq!(Entry::decode(&whole.key(), &whole.value()), Some(whole));
            }
        }
        assert_eq!(Entry::decode(b"i", b""), None);
        assert_eq!(Entry::decode(&entry(1, State::Open, 1).key(), &[9; 17]), None);
    }

    #[test]
    fn the_worst_of_a_class_goes_when_its_letter_does() {
        let mut counts = Counts::default();
        let (three, nine) = (entry(1, State::Open, 3), entry(2, State::Open, 9));
        counts.moved(None, Some(&three));
        counts.moved(None, Some(&nine));
        let worst = |counts: &Counts| counts.attempts_worst(Class::JsonSyntax, |state| state == State::Open);
        assert_eq!((worst(&counts), counts.bytes()), (9, 200));
        let stored = counts.encode(b"here");
        assert_eq!(Counts::decode(&stored, b"here"), Some(counts.clone()));
        assert_eq!((Counts::decode(&stored, b"later"), Counts::decode(b"", b"")), (None, None));
        counts.moved(Some(&nine), Some(&entry(2, State::Resolved, 9)));
        assert_eq!((worst(&counts), counts.by_class()[&Class::JsonSyntax]), (3, 1));
        counts.moved(Some(&three), None);
        assert_eq!((counts.sum(|_, _| true), counts.bytes(), counts.groups().count()), (1, 100, 1));
    }
}

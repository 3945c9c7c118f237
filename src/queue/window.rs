//! The pending chunks in memory: which is next, which must wait, which are out. Pure but for the time handed in.
//!
//! It holds a few dozen bytes a chunk; texts stay in the tree. The window is bounded, so this is too.

use std::{
    collections::{BTreeSet, HashMap},
    time::Instant,
};

/// Unclean ends in company from which a chunk is leased alone.
pub const SUSPECT_AFTER: u8 = 2;
/// Unclean ends alone at which a chunk is buried.
pub const CRASH_AFTER: u8 = 3;

/// Where a pending chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// May be leased.
    Ready,
    /// May be leased from this time on.
    Delayed(Instant),
    /// Is being worked on, under this mark.
    Leased(u64),
}

/// One pending chunk.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Short hash of its key.
    pub key: u128,
    /// First 16 bytes of its chunk id.
    pub chunk: u128,
    /// Where it was read.
    pub source_id: i64,
    /// Place in that source.
    pub ordinal: u64,
    /// Bytes of its stored form.
    pub bytes: u32,
    /// Where it is.
    pub place: Place,
    /// Leased alone, behind the others; the number of times the process died while it was.
    pub suspect: Option<u8>,
    /// Removed from its document while it was being worked on.
    pub cancelled: bool,
    /// A newer version came and went while this one was being worked on.
    pub outdated: bool,
}

/// What can be leased now.
#[derive(Debug, PartialEq, Eq)]
pub enum Pick {
    /// These, now.
    Chunks(Vec<u64>),
    /// Nothing yet: something is out, or must wait until then.
    Wait(Option<Instant>),
    /// Nothing is pending.
    Empty,
}

/// The window.
#[derive(Debug, Default)]
pub struct Window {
    slots: HashMap<u64, Slot>,
    by_key: HashMap<u128, u64>,
    /// Versions that are being worked on although a newer one of their key came, or none is wanted any more.
    older: HashMap<u128, Vec<u64>>,
    ready: BTreeSet<u64>,
    delayed: BTreeSet<(Instant, u64)>,
    /// By the times they were alone when the process died: a process that dies of something else each time meets
    /// another one each time, while a culprit comes round again.
    suspects: BTreeSet<(u8, u64)>,
    leased: usize,
    /// A suspect is out: nothing else may be, so that an unclean end points at it.
    alone: Option<u64>,
}

impl Window {
    /// Pending chunks, those being worked on included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Chunks being worked on.
    pub fn leased(&self) -> usize {
        self.leased
    }

    /// Chunks that wait for their time.
    pub fn delayed(&self) -> usize {
        self.delayed.len()
    }

    /// The newest pending chunk of this key.
    pub fn by_key(&self, key: u128) -> Option<(u64, &Slot)> {
        let seq = *self.by_key.get(&key)?;
        Some((seq, self.slots.get(&seq)?))
    }

    /// One chunk.
    pub fn slot(&self, seq: u64) -> Option<&Slot> {
        self.slots.get(&seq)
    }

    /// Every pending chunk's number.
    pub fn seqs(&self) -> Vec<u64> {
        let mut seqs: Vec<u64> = self.slots.keys().copied().collect();
        seqs.sort_unstable();
        seqs
    }

    /// Takes a chunk in as the newest of its key.
    pub fn insert(&mut self, seq: u64, slot: Slot) {
        if let Some(older) = self.by_key.insert(slot.key, seq) {
            self.older.entry(slot.key).or_default().push(older);
        }
        match slot.place {
            Place::Ready => match slot.suspect {
                Some(alone) => _ = self.suspects.insert((alone, seq)),
                None => _ = self.ready.insert(seq),
            },
            Place::Delayed(at) => _ = self.delayed.insert((at, seq)),
            Place::Leased(_) => self.leased += 1,
        }
        self.slots.insert(seq, slot);
    }

    /// Takes a chunk out for good.
    pub fn remove(&mut self, seq: u64) -> Option<Slot> {
        let slot = self.slots.remove(&seq)?;
        if self.by_key.get(&slot.key) == Some(&seq) {
            self.by_key.remove(&slot.key);
            for older in self.older.get(&slot.key).into_iter().flatten() {
                self.slots.entry(*older).and_modify(|slot| slot.outdated = true);
            }
        }
        if let Some(older) = self.older.get_mut(&slot.key) {
            older.retain(|older| *older != seq);
            if older.is_empty() {
                self.older.remove(&slot.key);
            }
        }
        match slot.place {
            Place::Ready => match slot.suspect {
                Some(alone) => _ = self.suspects.remove(&(alone, seq)),
                None => _ = self.ready.remove(&seq),
            },
            Place::Delayed(at) => _ = self.delayed.remove(&(at, seq)),
            Place::Leased(_) => self.came_back(seq),
        }
        Some(slot)
    }

    /// Every version of this key that is being worked on.
    pub fn out(&self, key: u128) -> Vec<u64> {
        let versions = self.by_key.get(&key).into_iter().chain(self.older.get(&key).into_iter().flatten());
        let out = |seq: &u64| self.slots.get(seq).is_some_and(|slot| matches!(slot.place, Place::Leased(_)));
        versions.copied().filter(out).collect()
    }

    /// Whether a newer chunk of the same key is pending, or was.
    pub fn superseded(&self, seq: u64) -> bool {
        self.slots.get(&seq).is_some_and(|slot| {
            slot.outdated || self.by_key.get(&slot.key).is_some_and(|newest| *newest != seq)
        })
    }

    /// Marks a chunk that is being worked on as no longer wanted.
    pub fn cancel(&mut self, seq: u64) {
        if let Some(slot) = self.slots.get_mut(&seq) {
            slot.cancelled = true;
            if self.by_key.get(&slot.key) == Some(&seq) {
                self.by_key.remove(&slot.key);
                self.older.entry(slot.key).or_default().push(seq);
            }
        }
    }

    /// Chooses what to lease: oldest first, at most `chunks` and (but for the first) `bytes`.
    pub fn pick(&mut self, now: Instant, chunks: usize, bytes: usize) -> Pick {
        while let Some((at, seq)) = self.delayed.first().copied().filter(|(at, _)| *at <= now) {
            self.delayed.remove(&(at, seq));
            self.place(seq, Place::Ready);
        }
        if self.alone.is_some() {
            return Pick::Wait(None);
        }
        let mut picked = Vec::new();
        let mut total = 0;
        for seq in &self.ready {
            total += self.slots.get(seq).map_or(0, |slot| slot.bytes as usize);
            if picked.len() == chunks || (!picked.is_empty() && total > bytes) {
                break;
            }
            picked.push(*seq);
        }
        if !picked.is_empty() {
            return Pick::Chunks(picked);
        }
        let next = self.delayed.first().map(|(at, _)| *at);
        match self.suspects.first() {
            Some((_, seq)) if self.leased == 0 => Pick::Chunks(vec![*seq]),
            Some(_) => Pick::Wait(next),
            None if self.leased > 0 || next.is_some() => Pick::Wait(next),
            None => Pick::Empty,
        }
    }

    /// Hands these out under one mark.
    pub fn lease(&mut self, seqs: &[u64], mark: u64) {
        for seq in seqs {
            self.ready.remove(seq);
            if let Some(slot) = self.slots.get_mut(seq) {
                if slot.suspect.is_some_and(|alone| self.suspects.remove(&(alone, *seq))) {
                    self.alone = Some(*seq);
                }
                slot.place = Place::Leased(mark);
                self.leased += 1;
            }
        }
    }

    /// Puts one back, ready at once.
    pub fn give_back(&mut self, seq: u64) {
        self.came_back(seq);
        self.place(seq, Place::Ready);
    }

    fn came_back(&mut self, seq: u64) {
        self.leased = self.leased.saturating_sub(1);
        if self.alone == Some(seq) {
            self.alone = None;
        }
    }

    fn place(&mut self, seq: u64, place: Place) {
        if let Some(slot) = self.slots.get_mut(&seq) {
            slot.place = place;
            match slot.suspect {
                Some(alone) => self.suspects.insert((alone, seq)),
                None => self.ready.insert(seq),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn slot(key: u128, place: Place, suspect: Option<u8>) -> Slot {
        Slot {
            key,
            chunk: 0,
            source_id: 1,
            ordinal: 0,
            bytes: 100,
            place,
            suspect,
            cancelled: false,
            outdated: false,
        }
    }

    #[test]
    fn oldest_first_within_both_limits() {
        let mut window = Window::default();
        for seq in 1..=9 {
            window.insert(seq, slot(seq.into(), Place::Ready, None));
        }
        let now = Instant::now();
        assert_eq!(window.pick(now, 3, 10_000), Pick::Chunks(vec![1, 2, 3]));
        assert_eq!(window.pick(now, 9, 250), Pick::Chunks(vec![1, 2]));
        assert_eq!(window.pick(now, 9, 1), Pick::Chunks(vec![1]), "one always fits");
    }

    #[test]
    fn a_suspect_goes_last_and_alone() {
        let mut window = Window::default();
        window.insert(1, slot(1, Place::Ready, Some(0)));
        window.insert(2, slot(2, Place::Ready, None));
        let now = Instant::now();
        assert_eq!(window.pick(now, 9, 1_000), Pick::Chunks(vec![2]));
        window.lease(&[2], 1);
        assert_eq!(window.pick(now, 9, 1_000), Pick::Wait(None));
        window.remove(2);
        assert_eq!(window.pick(now, 9, 1_000), Pick::Chunks(vec![1]));
        window.lease(&[1], 2);
        window.insert(3, slot(3, Place::Ready, None));
        assert_eq!(window.pick(now, 9, 1_000), Pick::Wait(None), "nothing beside a suspect");
        window.give_back(1);
        assert_eq!(window.pick(now, 9, 1_000), Pick::Chunks(vec![3]));
    }

    #[test]
    fn a_suspect_that_was_alone_at_an_end_goes_behind_the_others() {
        let mut window = Window::default();
        for (seq, alone) in [(1, 1), (2, 0), (3, 2), (4, 0)] {
            window.insert(seq, slot(seq.into(), Place::Ready, Some(alone)));
        }
        let now = Instant::now();
        let order = std::iter::from_fn(|| match window.pick(now, 9, 1_000) {
            Pick::Chunks(seqs) => {
                window.lease(&seqs, 1);
                seqs.iter().for_each(|seq| _ = window.remove(*seq));
                Some(seqs)
            }
            _ => None,
        });
        assert_eq!(order.collect::<Vec<_>>(), [[2], [4], [1], [3]]);
    }

    #[test]
    fn a_delayed_chunk_comes_at_its_time_and_the_end_is_told_apart() {
        let mut window = Window::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(5);
        window.insert(1, slot(1, Place::Delayed(later), None));
        assert_eq!(window.pick(now, 9, 1_000), Pick::Wait(Some(later)));
        assert_eq!(window.pick(later, 9, 1_000), Pick::Chunks(vec![1]));
        window.lease(&[1], 1);
        window.remove(1);
        assert_eq!(window.pick(later, 9, 1_000), Pick::Empty);
    }

    #[test]
    fn a_newer_version_takes_the_key() {
        let mut window = Window::default();
        window.insert(1, slot(7, Place::Ready, None));
        window.lease(&[1], 1);
        window.insert(2, slot(7, Place::Ready, None));
        assert!(window.superseded(1) && !window.superseded(2));
        window.remove(1);
        assert_eq!(window.by_key(7).map(|(seq, _)| seq), Some(2));
    }

    #[test]
    fn an_older_version_stays_older_when_the_newer_one_is_gone() {
        let mut window = Window::default();
        for seq in [1, 2] {
            window.insert(seq, slot(7, Place::Ready, None));
            window.lease(&[seq], seq);
        }
        window.remove(2);
        assert!(window.superseded(1));
        window.remove(1);
        assert!(window.older.is_empty());
    }
}

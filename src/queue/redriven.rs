//! Which pending chunks were redriven, and from which letter: a record that is a document comes back as several.

use std::collections::HashMap;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Redriven {
    letters: HashMap<u128, Vec<u64>>,
    chunks: HashMap<u64, u128>,
}

impl Redriven {
    /// Notes a pending chunk; one that was not redriven (`letter` is 0) is passed over.
    pub(super) fn insert(&mut self, seq: u64, letter: u128) {
        if letter != 0 && self.chunks.insert(seq, letter).is_none() {
            self.letters.entry(letter).or_default().push(seq);
        }
    }

    /// It is no longer pending.
    pub(super) fn remove(&mut self, seq: u64) {
        let Some(letter) = self.chunks.remove(&seq) else { return };
        if let Some(seqs) = self.letters.get_mut(&letter) {
            seqs.retain(|other| *other != seq);
            if seqs.is_empty() {
                self.letters.remove(&letter);
            }
        }
    }

    /// The pending chunks of a letter.
    pub(super) fn of(&self, letter: u128) -> &[u64] {
        self.letters.get(&letter).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_out_until_its_last_chunk_is_gone() {
        let mut redriven = Redriven::default();
        for (seq, letter) in [(1, 7), (2, 7), (3, 0), (4, 8), (2, 7)] {
            redriven.insert(seq, letter);
        }
        assert_eq!((redriven.of(7), redriven.of(8), redriven.of(0)), (&[1, 2][..], &[4][..], &[][..]));
        redriven.remove(1);
        redriven.remove(3);
        assert_eq!(redriven.of(7), [2]);
        redriven.remove(2);
        assert!(redriven.of(7).is_empty() && redriven.letters.len() == 1 && redriven.chunks.len() == 1);
    }
}

//! Sizes of many slices of one text, for the price of measuring each of its words once.
//!
//! The tokenizers of our families cut a text at white space first, so the tokens of a slice are the sum over its
//! words. A very long word (a script without spaces, base64) is cut into blocks; each may count one token more
//! than it would inside the word. So a sum is an estimate, and the splitter measures what it keeps.

use std::{cell::RefCell, collections::HashMap};

/// Longest block of a word, in characters.
const BLOCK_CHARS: usize = 128;
/// Words remembered at most, before all are forgotten.
const WORDS_MAX: usize = 100_000;

/// A measure that remembers words.
pub struct Memo<'a, 't> {
    measure: &'a dyn Fn(&str) -> usize,
    words: RefCell<HashMap<&'t str, usize>>,
}

impl<'a, 't> Memo<'a, 't> {
    /// Remembers nothing yet.
    pub fn new(measure: &'a dyn Fn(&str) -> usize) -> Self {
        Self { measure, words: RefCell::default() }
    }

    fn of(&self, word: &'t str) -> usize {
        if let Some(size) = self.words.borrow().get(word) {
            return *size;
        }
        let size = (self.measure)(word);
        let mut words = self.words.borrow_mut();
        if words.len() >= WORDS_MAX {
            words.clear();
        }
        words.insert(word, size);
        size
    }
}

/// The words (or blocks of words) of one text, each with its place and the sum up to it.
pub struct Sums<'a, 't> {
    text: &'t str,
    memo: &'a Memo<'a, 't>,
    /// Start and end of each block in `text`, and the tokens before it.
    blocks: Vec<(usize, usize, usize)>,
}

impl<'a, 't> Sums<'a, 't> {
    /// Measures every word of `text`.
    pub fn of(text: &'t str, memo: &'a Memo<'a, 't>) -> Self {
        let (mut blocks, mut before) = (Vec::new(), 0);
        for word in text.split_whitespace() {
            let mut rest = word;
            while !rest.is_empty() {
                let end = rest.char_indices().nth(BLOCK_CHARS).map_or(rest.len(), |(at, _)| at);
                let (block, after) = rest.split_at(end);
                let start = block.as_ptr().addr() - text.as_ptr().addr();
                blocks.push((start, start + block.len(), before));
                before += memo.of(block);
                rest = after;
            }
        }
        Self { text, memo, blocks }
    }

    /// Tokens of `slice`, which must be a slice of the text itself; of any other text, its measure.
    pub fn size(&self, slice: &str) -> usize {
        let start = slice.as_ptr().addr().wrapping_sub(self.text.as_ptr().addr());
        let Some(end) = start.checked_add(slice.len()).filter(|end| *end <= self.text.len()) else {
            return (self.memo.measure)(slice);
        };
        let first = self.blocks.partition_point(|block| block.1 <= start);
        let last = self.blocks.partition_point(|block| block.0 < end);
        if first >= last {
            return 0;
        }
        // Whole blocks by their sums; a block that is only partly in the slice is measured by its part.
        let (from, _, before) = self.blocks[first];
        let (last_start, last_end, before_last) = self.blocks[last - 1];
        if first + 1 == last {
            return self.memo.of(&self.text[from.max(start)..last_end.min(end)]);
        }
        let head = if from < start {
            self.memo.of(&self.text[start..self.blocks[first].1]) + before_last - self.blocks[first + 1].2
        } else {
            before_last - before
        };
        head + self.memo.of(&self.text[last_start..last_end.min(end)])
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_sum_is_the_measure_of_any_slice() {
        let text = format!(" one twos  three\n\n{} five  ", "é".repeat(300));
        let words = |text: &str| text.split_whitespace().map(|word| word.chars().count()).sum();
        let memo = Memo::new(&words);
        let sums = Sums::of(&text, &memo);
        let borders: Vec<_> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        for (n, start) in borders.iter().enumerate() {
            for end in &borders[n..] {
                let slice = &text[*start..*end];
                assert_eq!(sums.size(slice), words(slice), "{start}..{end}");
            }
        }
        assert_eq!(sums.size("another text"), 11);
    }

    #[test]
    fn a_word_is_measured_once() {
        let calls = Cell::new(0);
        let measure = |text: &str| {
            calls.set(calls.get() + 1);
            text.len()
        };
        let memo = Memo::new(&measure);
        let text = "again and again and again";
        let sums = Sums::of(text, &memo);
        assert_eq!((sums.size(text), sums.size(&text[6..]), calls.get()), (21, 16, 2));
    }
}

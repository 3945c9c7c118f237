//! Documents to chunks, under a measure that is handed in (the model's own tokens).
//!
//! The `text-splitter` crate picks the borders: paragraphs before sentences before words before characters. Its
//! work grows faster than the text, so a long text is walked in windows; and it asks for sizes about ten times
//! for each byte, so it is answered from sums over the words, and only what comes out is measured for certain.
//! Pure: the same text gives the same chunks.

use text_splitter::{ChunkConfig, ChunkSizer, TextSplitter};

use super::measure::{Memo, Sums};

/// So many bytes count as a token at least, in a chunk and in an overlap alike: some tokenizers make one token of a
/// very long word, and a chunk must not be all overlap then. Ordinary text has 2 to 6; a wrong guess makes a chunk
/// shorter, never longer than allowed.
const BYTES_PER_TOKEN: usize = 16;
/// Longest chunks that fit into one window, at least.
const CHUNKS_PER_WINDOW: usize = 4;

/// How documents are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splitter {
    max_tokens: usize,
    overlap: usize,
}

/// Sizes of slices of one window, with a limit on what is worth asking.
struct Sizer<'a, 't> {
    sums: Sums<'a, 't>,
    bytes_max: usize,
}

impl ChunkSizer for Sizer<'_, '_> {
    fn size(&self, text: &str) -> usize {
        let least = text.len().div_ceil(BYTES_PER_TOKEN);
        if text.len() > self.bytes_max { usize::MAX } else { self.sums.size(text).max(least) }
    }
}

impl Splitter {
    /// Chunks of at most `max_tokens`, of which neighbours share about `overlap` (less than half, so that every
    /// chunk brings something new).
    pub fn new(max_tokens: usize, overlap: usize) -> Self {
        let max_tokens = max_tokens.max(1);
        Self { max_tokens, overlap: overlap.min((max_tokens - 1) / 2) }
    }

    /// The chunks of `text`, in order: slices of it that hold every character but white space at their borders,
    /// each of at most `max_tokens` by `measure` (but a single character is never cut). A text that fits is one
    /// chunk, as it is.
    pub fn split<'t>(&self, text: &'t str, measure: &dyn Fn(&str) -> usize) -> Vec<&'t str> {
        let bytes_max = self.max_tokens.saturating_mul(BYTES_PER_TOKEN);
        if text.len() <= bytes_max && measure(text) <= self.max_tokens {
            return vec![text];
        }
        let memo = Memo::new(measure);
        let window_bytes = bytes_max.saturating_mul(CHUNKS_PER_WINDOW);
        let (mut chunks, mut start) = (Vec::new(), 0);
        while start < text.len() {
            let end = text.floor_char_boundary(start.saturating_add(window_bytes));
            let window = &text[start..end];
            let sizer = Sizer { sums: Sums::of(window, &memo), bytes_max };
            let config = ChunkConfig::new(self.max_tokens)
                .with_sizer(&sizer)
                .with_overlap(self.overlap)
                .expect("the overlap is less than half of the chunk");
            let mut found: Vec<(usize, &str)> = TextSplitter::new(config).chunk_indices(window).collect();
            // The last chunk of a window was cut by the window, not by the text: the next window makes it anew.
            let next = if end < text.len() && found.len() > 1 {
                start + found.pop().map_or(end - start, |(at, _)| at)
            } else {
                end
            };
            for (_, chunk) in found {
                self.push(&mut chunks, chunk, measure);
            }
            start = next;
        }
        chunks
    }

    /// The last word on the size: sums over words may be a little short of it, and text-splitter takes a text of
    /// few bytes to have few tokens. What is too long after all is halved.
    fn push<'t>(&self, chunks: &mut Vec<&'t str>, chunk: &'t str, measure: &dyn Fn(&str) -> usize) {
        let chunk = chunk.trim();
        let first = chunk.chars().next().map_or(0, char::len_utf8);
        let half = chunk.floor_char_boundary(chunk.len() / 2).max(first);
        if chunk.is_empty() {
        } else if half == chunk.len() || measure(chunk) <= self.max_tokens {
            chunks.push(chunk);
        } else {
            self.push(chunks, &chunk[..half], measure);
            self.push(chunks, &chunk[half..], measure);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    /// A word costs a token for each four characters it begins: like subwords, and never fewer than words.
    fn subwords(text: &str) -> usize {
        text.split_whitespace().map(|word| word.chars().count().div_ceil(4)).sum()
    }

    /// Every character that is not white space is in some chunk, in order, and chunks move forward.
    fn check(text: &str, chunks: &[&str], max: usize, measure: &dyn Fn(&str) -> usize) {
        let place = |chunk: &str| chunk.as_ptr() as usize - text.as_ptr() as usize;
        let (mut covered, mut last_start) = (0, None);
        for chunk in chunks {
            let start = place(chunk);
            assert!(measure(chunk) <= max || chunk.chars().count() == 1, "{chunk:?} is too long");
            assert!(last_start < Some(start), "chunks move forward");
            assert!(
                start <= covered || text[covered..start].trim().is_empty(),
                "lost {:?}",
                &text[covered..start]
            );
            covered = covered.max(start + chunk.len());
            last_start = Some(start);
        }
        assert!(text[covered..].trim().is_empty(), "lost the end");
    }

    #[test]
    fn a_text_that_fits_is_one_chunk_and_is_measured_once() {
        let calls = Cell::new(0);
        let measure = |text: &str| {
            calls.set(calls.get() + 1);
            subwords(text)
        };
        assert_eq!(Splitter::new(10, 2).split(" one two \n", &measure), [" one two \n"]);
        assert_eq!(calls.get(), 1);
    }

    #[test]
    fn paragraphs_are_kept_together_and_neighbours_overlap() {
        let text = "One two three.\n\nFour five six.\n\nSeven eight nine.";
        let chunks = Splitter::new(4, 0).split(text, &|text: &str| text.split_whitespace().count());
        assert_eq!(chunks, ["One two three.", "Four five six.", "Seven eight nine."]);
        let text = "a b c d e f g h i j";
        let chunks = Splitter::new(4, 1).split(text, &|text: &str| text.split_whitespace().count());
        assert!(chunks.windows(2).all(|pair| pair[0].chars().last() == pair[1].chars().next()), "{chunks:?}");
        check(text, &chunks, 4, &|text| text.split_whitespace().count());
    }

    #[test]
    fn b07_work_grows_with_the_text_and_not_faster() {
        for pattern in ["a", "-", "กขคง", "漢字", "e\u{301}", "a\u{200d}", "word ", "line\n", "p\n\n", " "]
        {
            let measured = |bytes: usize| {
                let text = format!("x{}x", pattern.repeat(bytes / pattern.len()));
                let work = Cell::new(0_usize);
                let measure = |text: &str| {
                    work.set(work.get() + text.len());
                    subwords(text)
                };
                let chunks = Splitter::new(100, 10).split(&text, &measure);
                check(&text, &chunks, 100, &subwords);
                work.get()
            };
            let (small, large) = (measured(100_000), measured(400_000));
            assert!(large <= 5 * small.max(1_000), "{pattern:?}: {small} then {large} bytes measured");
        }
    }

    #[test]
    fn b07_words_of_one_token_however_long_do_not_make_chunks_of_overlap() {
        // As WordPiece does beyond 100 characters.
        let unknown = |text: &str| {
            text.split_whitespace().map(|word| word.chars().count().min(101).div_ceil(101)).sum()
        };
        for pattern in ["ก", "a", "漢", "e\u{301}"] {
            let text = pattern.repeat(120_000 / pattern.len());
            let chunks = Splitter::new(254, 64).split(&text, &unknown);
            check(&text, &chunks, 254, &unknown);
            assert!(chunks.len() < 80, "{pattern:?}: {} chunks of {} bytes", chunks.len(), text.len());
        }
    }

    #[test]
    fn a_character_that_is_more_tokens_than_bytes_is_still_split() {
        let greedy = |text: &str| 18 * text.chars().count();
        let text = "\u{fdfa}".repeat(50);
        let chunks = Splitter::new(40, 0).split(&text, &greedy);
        check(&text, &chunks, 40, &greedy);
        assert_eq!(chunks.iter().map(|chunk| chunk.len()).sum::<usize>(), text.len());
    }

    proptest! {
        #[test]
        fn nothing_is_lost(text in "[a-z .\n\u{e9}\u{6f22}\u{301}]{0,600}", max in 1_usize..20, overlap in 0_usize..20) {
            let splitter = Splitter::new(max, overlap);
            let chunks = splitter.split(&text, &subwords);
            check(&text, &chunks, max, &subwords);
            prop_assert_eq!(splitter.split(&text, &subwords), chunks);
        }
    }
}

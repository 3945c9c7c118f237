//! Lines as bytes, each within a limit: one over it is measured and hashed, and never held.

use std::io::{self, BufRead, Read as _};

use sha2::{Digest as _, Sha256};

use super::{Position, RAW_BYTES_KEPT};
use crate::chunk::Digest;

/// Bytes taken from the reader at once.
const PIECE: u64 = 64 * 1024;
/// A buffer that grew beyond this for a long line is given back.
const KEEP: usize = 1024 * 1024;
/// Longest line end: `\r\n`.
const LINE_END: u64 = 2;

/// A line without its end (`\n` or `\r\n`).
#[derive(Debug)]
pub struct Line<'a> {
    /// Where it starts.
    pub at: Position,
    /// Its bytes; only the first [`RAW_BYTES_KEPT`] when `over` is set.
    pub bytes: &'a [u8],
    /// Whether a newline ended it; false only for the last line.
    pub ended: bool,
    /// Set when the line is longer than the limit: its length in bytes and its SHA-256.
    pub over: Option<(u64, Digest)>,
}

/// Reads lines from `R`.
#[derive(Debug)]
pub struct Lines<R> {
    reader: R,
    limit: u64,
    buffer: Vec<u8>,
    next: Position,
}

impl<R: BufRead> Lines<R> {
    /// Lines of at most `limit` bytes, without their ends; the reader stands at `offset` of its stream.
    pub const fn new(reader: R, offset: u64, limit: u64) -> Self {
        Self { reader, limit, buffer: Vec::new(), next: Position { line: 1, offset } }
    }

    /// The reader.
    pub const fn inner(&self) -> &R {
        &self.reader
    }

    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// The reader's.
    pub fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let at = self.next;
        let mut seen = self.buffered_line()?;
        if seen == 0 {
            return Ok(None);
        }
        let mut ended = self.buffer.last() == Some(&b'\n');
        let mut over = None;
        let mut length = content(&self.buffer, ended).len();
        if length as u64 > self.limit {
            let mut hash = Hash::default();
            hash.feed(&self.buffer[..self.buffer.len() - usize::from(ended)]);
            if !ended {
                let rest = self.discard(&mut hash)?;
                seen += rest.0;
                ended = rest.1;
            }
            over = Some(hash.finish(ended));
            length = length.min(RAW_BYTES_KEPT);
        }
        self.next = Position { line: at.line + 1, offset: at.offset + seen };
        Ok(Some(Line { at, bytes: &self.buffer[..length], ended, over }))
    }

    /// Reads up to the next newline, but never more than the limit and a line end; returns the bytes read.
    fn buffered_line(&mut self) -> io::Result<u64> {
        self.buffer.clear();
        self.buffer.shrink_to(KEEP);
        let most = self.limit.max(RAW_BYTES_KEPT as u64).saturating_add(LINE_END);
        while (self.buffer.len() as u64) < most && self.buffer.last() != Some(&b'\n') {
            let want = PIECE.min(most - self.buffer.len() as u64);
            let spare = self.buffer.capacity() - self.buffer.len();
            if (spare as u64) < want {
                // Doubling, but never past the limit: a line just under it costs its own length.
                let grown = (2 * self.buffer.capacity() as u64).clamp(PIECE, most.max(PIECE));
                let more = grown.saturating_sub(self.buffer.len() as u64).max(want);
                self.buffer.reserve_exact(usize::try_from(more).unwrap_or(usize::MAX));
            }
            if self.reader.by_ref().take(want).read_until(b'\n', &mut self.buffer)? == 0 {
                break;
            }
        }
        Ok(self.buffer.len() as u64)
    }

    /// Reads to the next newline into nothing but the hash: bytes read, and whether there was a newline.
    fn discard(&mut self, hash: &mut Hash) -> io::Result<(u64, bool)> {
        let mut seen = 0;
        loop {
            let available = self.reader.fill_buf()?;
            if available.is_empty() {
                return Ok((seen, false));
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            hash.feed(&available[..end.unwrap_or(available.len())]);
            let used = end.map_or(available.len(), |end| end + 1);
            self.reader.consume(used);
            seen += used as u64;
            if end.is_some() {
                return Ok((seen, true));
            }
        }
    }
}

/// The line without `\n` or `\r\n`.
fn content(line: &[u8], ended: bool) -> &[u8] {
    if !ended {
        return line;
    }
    let line = &line[..line.len() - 1];
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Length and SHA-256 of a line, with a last `\r` held back: it belongs to the line only if no `\n` follows.
#[derive(Default)]
struct Hash {
    hasher: Sha256,
    length: u64,
    held_back: bool,
}

impl Hash {
    fn feed(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.take_back();
        let kept = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        self.held_back = kept.len() < bytes.len();
        self.hasher.update(kept);
        self.length += kept.len() as u64;
    }

    fn take_back(&mut self) {
        if std::mem::take(&mut self.held_back) {
            self.hasher.update(b"\r");
            self.length += 1;
        }
    }

    fn finish(mut self, ended: bool) -> (u64, Digest) {
        if !ended {
            self.take_back();
        }
        (self.length, Digest(self.hasher.finalize().into()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor};

    use super::*;

    /// (line, offset, bytes, ended, over) of a line.
    type Found = (u64, u64, Vec<u8>, bool, Option<(u64, Digest)>);

    /// Every line, read through a tiny buffer.
    fn all(text: &[u8], limit: u64, buffer: usize) -> Vec<Found> {
        let mut lines = Lines::new(BufReader::with_capacity(buffer, Cursor::new(text)), 0, limit);
        let mut found = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            found.push((line.at.line, line.at.offset, line.bytes.to_vec(), line.ended, line.over));
        }
        found
    }

    #[test]
    fn line_ends_are_dropped_and_offsets_count_them() {
        for buffer in [1, 2, 3, 64] {
            let found = all(b"a\r\n\nb\rc\nlast\r", 10, buffer);
            let expected: [(u64, u64, &[u8], bool); 4] =
                [(1, 0, b"a", true), (2, 3, b"", true), (3, 4, b"b\rc", true), (4, 8, b"last\r", false)];
            assert_eq!(found.len(), expected.len());
            for (got, (line, offset, bytes, ended)) in found.iter().zip(expected) {
                assert_eq!(
                    (got.0, got.1, got.2.as_slice(), got.3, got.4),
                    (line, offset, bytes, ended, None)
                );
            }
        }
    }

    #[test]
    fn b06_the_limit_is_exact_and_the_rest_is_hashed() {
        for (ending, ended) in [("\n", true), ("\r\n", true), ("", false)] {
            for length in 1_098..1_105_usize {
                for buffer in [1, 7, 64, 4_096] {
                    let text = format!("{}{ending}", "x".repeat(length));
                    let tail = if ended { "y\n" } else { "" };
                    let found = all(format!("{text}{tail}").as_bytes(), 1_100, buffer);
                    let mut bytes = "x".repeat(length).into_bytes();
                    let over = (length > 1_100).then(|| (length as u64, Digest::of(&bytes)));
                    bytes.truncate(if over.is_some() { RAW_BYTES_KEPT } else { length });
                    assert_eq!(found[0], (1, 0, bytes, ended, over), "{length} {ending:?} {buffer}");
                    if ended {
                        assert_eq!(found[1], (2, text.len() as u64, b"y".to_vec(), true, None));
                    }
                }
            }
        }
    }

    #[test]
    fn b06_a_long_line_costs_no_more_than_the_limit() {
        let text = vec![b'x'; 8 << 20];
        let mut lines = Lines::new(BufReader::new(text.as_slice()), 0, 3 << 20);
        let line = lines.next().unwrap().unwrap();
        assert_eq!(line.over.unwrap().0, 8 << 20);
        assert_eq!(line.bytes.len(), RAW_BYTES_KEPT);
        assert!(lines.buffer.capacity() <= (3 << 20) + 64 * 1024, "{}", lines.buffer.capacity());
        assert!(lines.next().unwrap().is_none());
        assert!(lines.buffer.capacity() <= KEEP);
    }
}

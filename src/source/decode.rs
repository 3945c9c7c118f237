//! From the bytes of a file to the bytes of its text: told by content, not by name.
//!
//! A compressed stream that is cut or damaged ends there: what came before it is kept, and `incomplete` says
//! what is missing. So it does when the file was changed while it was read.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use super::{
    SourceError,
    encoding::{Encoding, Part, damage, sniff},
    file::Stamp,
};

/// Bytes read from the disk at once.
const BUFFER: usize = 128 * 1024;

/// A file that counts what was read of it, as stored.
#[derive(Debug)]
struct Counted {
    file: File,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(into)?;
        self.read.fetch_add(n as u64, Relaxed);
        Ok(n)
    }
}

type Stored = BufReader<Counted>;

/// Where in the file we are.
enum State {
    /// In text that is not compressed.
    Plain(Stored),
    /// Inside a gzip member or a zstd frame.
    Inside(Part<Stored>),
    /// Between two of them, or behind the last one.
    Between(Encoding, Stored),
    /// Nothing more to read.
    End,
}

/// The decoded bytes of one file.
pub struct Decoded {
    path: PathBuf,
    state: State,
    read: Arc<AtomicU64>,
    stamp: Stamp,
    parts: u64,
    incomplete: Option<String>,
}

impl Decoded {
    /// Opens `path` and looks at its first bytes.
    ///
    /// # Errors
    /// Unreadable, not a regular file, or of a format that is not supported.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let io = |error| SourceError::io(path, error);
        // Looked at before it is opened: opening a pipe waits for its other end.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            let next = "a source must be readable again: write it to a file first";
            return Err(SourceError::format(path, "is not a regular file", next));
        }
        let file = File::open(path).map_err(io)?;
        let stamp = Stamp::of(&file.metadata().map_err(io)?);
        let read = Arc::new(AtomicU64::new(0));
        let capacity = usize::try_from(stamp.size).unwrap_or(BUFFER).clamp(1_024, BUFFER);
        let mut stored = BufReader::with_capacity(capacity, Counted { file, read: Arc::clone(&read) });
        let state = match sniff(stored.fill_buf().map_err(io)?) {
            Ok(Encoding::Plain) => State::Plain(stored),
            Ok(encoding) => State::Inside(Part::begin(encoding, stored).map_err(io)?),
            Err((what, next)) => return Err(SourceError::format(path, what, next)),
        };
        Ok(Self { path: path.to_owned(), state, read, stamp, parts: 0, incomplete: None })
    }

    /// Bytes read of the file, as stored.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// Size of the file, as stored, when it was opened.
    pub const fn bytes_total(&self) -> u64 {
        self.stamp.size
    }

    /// What is missing, once the end was reached.
    pub fn incomplete(&self) -> Option<&str> {
        self.incomplete.as_deref()
    }

    /// The end was reached: is the file still what it was when it was opened?
    fn end(&mut self) {
        self.state = State::End;
        if !self.stamp.still_of(&self.path) {
            self.incomplete = Some("it was changed while it was read; run again".to_owned());
        }
    }

    fn end_early(&mut self, why: String) {
        self.end();
        self.incomplete.get_or_insert(why);
    }

    /// Skips zero padding; what follows is the end, another part, or nothing of ours.
    fn between(&mut self, encoding: Encoding, mut stored: Stored) -> io::Result<()> {
        loop {
            let buffer = stored.fill_buf()?;
            let zeros = buffer.iter().take_while(|byte| **byte == 0).count();
            let next = buffer.get(zeros).copied();
            stored.consume(zeros);
            match next {
                None if zeros > 0 => {}
                None => {
                    self.end();
                    return Ok(());
                }
                Some(byte) if encoding.goes_on_with(byte) => {
                    self.state = State::Inside(Part::begin(encoding, stored)?);
                    return Ok(());
                }
                Some(_) => {
                    let at = self.bytes_read() - stored.buffer().len() as u64;
                    self.end_early(format!(
                        "bytes that are not {encoding} follow the last {} from byte {at} on and were ignored; check \
                         how the file was made",
                        encoding.part()
                    ));
                    return Ok(());
                }
            }
        }
    }

    /// What a decoder's error means: the system's own errors go up, all others are about the data.
    fn damaged(&mut self, encoding: Encoding, error: io::Error) -> io::Result<()> {
        if error.raw_os_error().is_some() {
            return Err(error);
        }
        if error.kind() == io::ErrorKind::UnexpectedEof {
            let at = self.bytes_total();
            self.end_early(format!(
                "the {encoding} stream is cut off at byte {at}; what came before was read; copy the file again"
            ));
            return Ok(());
        }
        let ((what, next), read) = (damage(encoding, &error), self.bytes_read());
        let place = match self.parts {
            0 => String::new(),
            parts => format!("in or behind {} {parts} ", encoding.part()),
        };
        self.end_early(format!(
            "the {encoding} stream {what} {place}before byte {read}; what came before was read; {next}"
        ));
        Ok(())
    }
}

impl Read for Decoded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            match std::mem::replace(&mut self.state, State::End) {
                State::End => return Ok(0),
                State::Plain(mut stored) => match stored.read(into) {
                    Ok(0) => self.end(),
                    n => {
                        self.state = State::Plain(stored);
                        return n;
                    }
                },
                State::Inside(mut part) => match part.read(into) {
                    Ok(0) => {
                        self.parts += 1;
                        self.state = State::Between(part.encoding(), part.into_inner());
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                        self.state = State::Inside(part);
                    }
                    Err(error) => self.damaged(part.encoding(), error)?,
                    Ok(n) => {
                        self.state = State::Inside(part);
                        return Ok(n);
                    }
                },
                State::Between(encoding, stored) => self.between(encoding, stored)?,
            }
        }
    }
}

//! From the bytes of a file to the bytes of its text: told by content, not by name.
//!
//! A compressed stream that is cut or damaged ends there: what came before it is kept, and `incomplete` says
//! what is missing. Another format is one more arm in [`Kind`] and in [`sniff`].

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use flate2::bufread::GzDecoder;

use super::SourceError;

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

/// How the file is encoded.
#[derive(Debug)]
enum Kind {
    Plain(Stored),
    /// Inside a gzip member.
    Member(Box<GzDecoder<Stored>>),
    /// Between two gzip members, or behind the last one.
    Between(Stored),
    /// Nothing more to read.
    End,
}

/// The decoded bytes of one file.
#[derive(Debug)]
pub struct Decoded {
    kind: Kind,
    read: Arc<AtomicU64>,
    total: u64,
    members: u64,
    incomplete: Option<String>,
}

impl Decoded {
    /// Opens `path` and looks at its first bytes.
    ///
    /// # Errors
    /// Unreadable, not a regular file, or of a format that is not supported.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        // Looked at before it is opened: opening a pipe waits for its other end.
        let meta = std::fs::metadata(path).map_err(|error| SourceError::io(path, error))?;
        if meta.is_dir() {
            let next =
                "give the files one by one (folders come later); supported today: JSON lines, plain or gzip";
            return Err(SourceError::format(path, "is a folder", next));
        }
        if !meta.is_file() {
            let next = "a source must be readable again: write it to a file first";
            return Err(SourceError::format(path, "is not a regular file", next));
        }
        let file = File::open(path).map_err(|error| SourceError::io(path, error))?;
        let read = Arc::new(AtomicU64::new(0));
        let mut stored = BufReader::with_capacity(BUFFER, Counted { file, read: Arc::clone(&read) });
        let head = stored.fill_buf().map_err(|error| SourceError::io(path, error))?;
        let kind = match sniff(head) {
            Ok(Encoding::Plain) => Kind::Plain(stored),
            Ok(Encoding::Gzip) => Kind::Member(Box::new(GzDecoder::new(stored))),
            Err((what, next)) => return Err(SourceError::format(path, what, next)),
        };
        Ok(Self { kind, read, total: meta.len(), members: 0, incomplete: None })
    }

    /// Bytes read of the file, as stored.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Relaxed)
    }

    /// Size of the file, as stored.
    pub const fn bytes_total(&self) -> u64 {
        self.total
    }

    /// What is missing, once the end was reached.
    pub fn incomplete(&self) -> Option<&str> {
        self.incomplete.as_deref()
    }

    fn end(&mut self, why: String) {
        self.incomplete = Some(why);
        self.kind = Kind::End;
    }

    /// Skips zero padding; what follows is the end, another member, or nothing of ours.
    fn between(&mut self, mut stored: Stored) -> io::Result<()> {
        loop {
            let buffer = stored.fill_buf()?;
            let zeros = buffer.iter().take_while(|byte| **byte == 0).count();
            let next = buffer.get(zeros).copied();
            stored.consume(zeros);
            match next {
                None if zeros > 0 => {}
                None => {
                    self.kind = Kind::End;
                    return Ok(());
                }
                Some(0x1f) => {
                    self.kind = Kind::Member(Box::new(GzDecoder::new(stored)));
                    return Ok(());
                }
                Some(_) => {
                    let left = stored.buffer().len() as u64;
                    let at = self.bytes_read() - left;
                    self.end(format!(
                        "bytes that are not gzip follow the last member from byte {at} on and were ignored; check how \
                         the file was made"
                    ));
                    return Ok(());
                }
            }
        }
    }

    /// What a decoder's error means: the system's own errors go up, all others are about the data.
    fn damaged(&mut self, error: io::Error) -> io::Result<()> {
        if error.raw_os_error().is_some() {
            return Err(error);
        }
        let (read, total) = (self.bytes_read(), self.total);
        self.end(if error.kind() == io::ErrorKind::UnexpectedEof {
            format!("the gzip stream is cut off at byte {total}; what came before was read; copy the file again")
        } else if self.members > 0 {
            format!(
                "the gzip stream is damaged in or behind member {} (before byte {read}): {error}; what came before was \
                 read; copy the file again",
                self.members
            )
        } else {
            format!(
                "the gzip stream is damaged (before byte {read}): {error}; what came before was read; copy the file \
                 again"
            )
        });
        Ok(())
    }
}

impl Read for Decoded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            match std::mem::replace(&mut self.kind, Kind::End) {
                Kind::End => return Ok(0),
                Kind::Plain(mut stored) => {
                    let n = stored.read(into);
                    self.kind = Kind::Plain(stored);
                    return n;
                }
                Kind::Member(mut member) => match member.read(into) {
                    Ok(0) => {
                        self.members += 1;
                        self.kind = Kind::Between(member.into_inner());
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                        self.kind = Kind::Member(member);
                    }
                    Err(error) => self.damaged(error)?,
                    Ok(n) => {
                        self.kind = Kind::Member(member);
                        return Ok(n);
                    }
                },
                Kind::Between(stored) => self.between(stored)?,
            }
        }
    }
}

/// Encodings we read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Plain,
    Gzip,
}

/// What the first bytes of a file say; `Err` with what was found and what to do.
fn sniff(head: &[u8]) -> Result<Encoding, (&'static str, &'static str)> {
    const MAGIC: [(&[u8], &str, &str); 7] = [
        (
            b"\x28\xb5\x2f\xfd",
            "is compressed with zstd, which comes later",
            "unpack it first: `zstd -d FILE`",
        ),
        (b"\xfd7zXZ\0", "is compressed with xz", "unpack it first: `xz -d FILE`"),
        (b"BZh", "is compressed with bzip2", "unpack it first: `bzip2 -d FILE`"),
        (b"PK\x03\x04", "is a zip archive", "unpack it first: `unzip FILE`"),
        (b"PAR1", "is a Parquet file, which comes later", "write it as JSON lines first"),
        (b"SQLite format 3\0", "is an SQLite database", "write its rows as JSON lines first"),
        (
            b"\x50\x2a\x4d\x18",
            "is compressed with zstd, which comes later",
            "unpack it first: `zstd -d FILE`",
        ),
    ];
    if head.starts_with(b"\x1f\x8b") {
        return Ok(Encoding::Gzip);
    }
    match MAGIC.iter().find(|(magic, _, _)| head.starts_with(magic)) {
        Some((_, what, next)) => Err((what, next)),
        None => Ok(Encoding::Plain),
    }
}

/// The name of a text encoding other than UTF-8 that the first decoded bytes give away: by its byte order
/// mark, or by the zero byte beside a first `{`.
pub fn wide_encoding(head: &[u8]) -> Option<&'static str> {
    const MARKS: [(&[u8], &str); 8] = [
        (&[0xff, 0xfe, 0, 0], "UTF-32 (little-endian)"),
        (&[0, 0, 0xfe, 0xff], "UTF-32 (big-endian)"),
        (&[0xff, 0xfe], "UTF-16 (little-endian)"),
        (&[0xfe, 0xff], "UTF-16 (big-endian)"),
        (b"{\0\0\0", "UTF-32 (little-endian)"),
        (b"\0\0\0{", "UTF-32 (big-endian)"),
        (b"{\0", "UTF-16 (little-endian)"),
        (b"\0{", "UTF-16 (big-endian)"),
    ];
    MARKS.iter().find(|(mark, _)| head.starts_with(mark)).map(|(_, name)| *name)
}

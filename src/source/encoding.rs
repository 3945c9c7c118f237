//! What a file is by its first bytes, and the decoders of the two compressions we read. Another compression is one
//! more arm in [`Encoding`] and in [`Part`].

use std::{
    fmt,
    io::{self, BufRead, Read},
};

use flate2::bufread::GzDecoder;

/// Largest window of a zstd frame that is taken, as a power of two: 128 MiB, what `zstd -d` takes without being
/// asked. It bounds the memory of a decoder.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// First bytes of a zstd frame; of one to be skipped, the first byte is any from 0x50 to 0x5f.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const ZSTD_SKIPPED: [u8; 3] = [0x2a, 0x4d, 0x18];

/// Encodings we read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As it is.
    Plain,
    /// RFC 1952, one or more members.
    Gzip,
    /// RFC 8878, one or more frames.
    Zstd,
}

impl Encoding {
    /// Whether another part of the same stream may begin with this byte.
    pub const fn goes_on_with(self, byte: u8) -> bool {
        match self {
            Self::Plain => false,
            Self::Gzip => byte == 0x1f,
            Self::Zstd => matches!(byte, 0x28 | 0x50..=0x5f),
        }
    }

    /// What one of its parts is called.
    pub const fn part(self) -> &'static str {
        match self {
            Self::Plain | Self::Gzip => "member",
            Self::Zstd => "frame",
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        })
    }
}

/// What the first bytes of a file say; `Err` with what was found and what to do.
pub fn sniff(head: &[u8]) -> Result<Encoding, (&'static str, &'static str)> {
    const MAGIC: [(&[u8], &str, &str); 5] = [
        (b"\xfd7zXZ\0", "is compressed with xz", "unpack it first: `xz -d FILE`"),
        (b"BZh", "is compressed with bzip2", "unpack it first: `bzip2 -d FILE`"),
        (b"PK\x03\x04", "is a zip archive", "unpack it first: `unzip FILE`"),
        (b"PAR1", "is a Parquet file, which comes later", "write it as JSON lines first"),
        (b"SQLite format 3\0", "is an SQLite database", "write its rows as JSON lines first"),
    ];
    match head {
        [0x1f, 0x8b, ..] => return Ok(Encoding::Gzip),
        [0x50..=0x5f, rest @ ..] if rest.starts_with(&ZSTD_SKIPPED) => return Ok(Encoding::Zstd),
        _ if head.starts_with(&ZSTD) => return Ok(Encoding::Zstd),
        _ => {}
    }
    match MAGIC.iter().find(|(magic, _, _)| head.starts_with(magic)) {
        Some((_, what, next)) => Err((what, next)),
        None => Ok(Encoding::Plain),
    }
}

/// The name of a text encoding other than UTF-8 that the first decoded bytes give away: by its byte order
/// mark, or by the zero byte beside a first `{`.
pub fn wide(head: &[u8]) -> Option<&'static str> {
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

/// One member or frame, being read. It takes no byte beyond its end.
pub enum Part<R: BufRead> {
    /// A gzip member.
    Gzip(Box<GzDecoder<R>>),
    /// A zstd frame, or one to be skipped, which is empty.
    Zstd(Box<zstd::Decoder<'static, R>>),
}

impl<R: BufRead> Part<R> {
    /// A part of a stream in this encoding (never [`Encoding::Plain`]) begins here.
    ///
    /// # Errors
    /// The decoder gets no memory.
    pub fn begin(encoding: Encoding, stored: R) -> io::Result<Self> {
        Ok(match encoding {
            Encoding::Plain | Encoding::Gzip => Self::Gzip(Box::new(GzDecoder::new(stored))),
            Encoding::Zstd => {
                let mut frame = zstd::Decoder::with_buffer(stored)?.single_frame();
                frame.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Self::Zstd(Box::new(frame))
            }
        })
    }

    /// Which encoding it is in.
    pub const fn encoding(&self) -> Encoding {
        match self {
            Self::Gzip(_) => Encoding::Gzip,
            Self::Zstd(_) => Encoding::Zstd,
        }
    }

    /// What is behind it, once its end was reached.
    pub fn into_inner(self) -> R {
        match self {
            Self::Gzip(member) => member.into_inner(),
            Self::Zstd(frame) => frame.finish(),
        }
    }
}

impl<R: BufRead> Read for Part<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(member) => member.read(into),
            Self::Zstd(frame) => frame.read(into),
        }
    }
}

/// What a decoder's error means when it is not the system's own: `(what, what to do)`.
pub fn damage(encoding: Encoding, error: &io::Error) -> (String, &'static str) {
    if encoding == Encoding::Zstd && error.to_string().contains("too much memory") {
        let what = "needs a window of more than 128 MiB (it was made with `zstd --long`)".to_owned();
        return (what, "unpack it first: `zstd -d --long=31 FILE`");
    }
    (format!("is damaged ({error})"), "copy the file again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_say_what_a_file_is() {
        for skipped in 0x50..=0x5f {
            assert_eq!(sniff(&[skipped, 0x2a, 0x4d, 0x18]), Ok(Encoding::Zstd));
        }
        assert_eq!(sniff(&[0x28, 0xb5, 0x2f, 0xfd]), Ok(Encoding::Zstd));
        assert_eq!(sniff(&[0x1f, 0x8b]), Ok(Encoding::Gzip));
        for plain in [&b""[..], b"{", b"\x28\xb5", b"P*M", b"\x60\x2a\x4d\x18", b"BZ"] {
            assert_eq!(sniff(plain), Ok(Encoding::Plain), "{plain:?}");
        }
        assert!(sniff(b"BZh9").unwrap_err().1.contains("bzip2 -d"));
    }
}

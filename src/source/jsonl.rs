//! JSON lines: one record a line, each line on its own. A bad one is an item with its place, its class and its
//! bytes; its neighbours go on.

use std::{
    io::{self, BufReader, Cursor, Read as _},
    path::{Path, PathBuf},
};

use super::{
    Item, Record, Settings, Source, SourceError, Unreadable,
    decode::Decoded,
    encoding,
    lines::{Line, Lines},
    looks, record,
};
use crate::{chunk::Digest, error::Class};

/// First bytes by which a file is known not to be JSON lines in UTF-8.
const HEAD: u64 = 64 * 1024;
const UTF8_BOM: [u8; 3] = [0xef, 0xbb, 0xbf];
/// Decoded bytes read at once.
const BUFFER: usize = 128 * 1024;

type Reader = io::Chain<Cursor<Vec<u8>>, BufReader<Decoded>>;

/// See the module.
pub struct Jsonl {
    path: PathBuf,
    names: Settings,
    limit: u64,
    lines: Lines<Reader>,
    /// White-space-only lines passed over so far.
    blank: u64,
    /// Set when it is no JSON lines at all: then nothing is read.
    unlike: Option<String>,
}

impl Jsonl {
    /// Opens a file, plain or compressed. A UTF-8 byte order mark at its very start is no part of the first line.
    ///
    /// # Errors
    /// Unreadable, a format that is not supported, or text that is not UTF-8 by its byte order mark.
    pub fn open(path: &Path, settings: &Settings, line_bytes: u64) -> Result<Self, SourceError> {
        let mut text = BufReader::with_capacity(BUFFER, Decoded::open(path)?);
        let mut head = Vec::new();
        text.by_ref().take(HEAD).read_to_end(&mut head).map_err(|error| SourceError::io(path, error))?;
        if let Some(name) = encoding::wide(&head) {
            let next = "convert it to UTF-8 first: `iconv -t UTF-8 -f UTF-16 FILE` (or -f UTF-32)";
            return Err(SourceError::format(path, format!("is text in {name}"), next));
        }
        let mark = if head.starts_with(&UTF8_BOM) { UTF8_BOM.len() } else { 0 };
        head.drain(..mark);
        let whole = ((mark + head.len()) as u64) < HEAD;
        let unlike = looks::unlike_lines(&head, whole, settings).map(|(what, next)| {
            format!("it looks like {what}, not like JSON lines, and nothing of it was read; {next}")
        });
        let reader = Cursor::new(head).chain(text);
        let lines = Lines::new(reader, mark as u64, line_bytes);
        let (path, names) = (path.to_owned(), settings.clone());
        Ok(Self { path, names, limit: line_bytes, lines, blank: 0, unlike })
    }

    /// White-space-only lines passed over so far.
    pub const fn blank_lines(&self) -> u64 {
        self.blank
    }

    fn decoded(&self) -> &Decoded {
        self.lines.inner().get_ref().1.get_ref()
    }
}

impl Source for Jsonl {
    fn next(&mut self) -> Result<Option<Item>, SourceError> {
        if self.unlike.is_some() {
            return Ok(None);
        }
        loop {
            let line = self.lines.next().map_err(|error| SourceError::io(&self.path, error))?;
            let Some(line) = line else { return Ok(None) };
            if line.over.is_none() && line.bytes.trim_ascii().is_empty() {
                self.blank += 1;
                continue;
            }
            return Ok(Some(item(&line, &self.names, self.limit)));
        }
    }

    fn bytes_read(&self) -> u64 {
        self.decoded().bytes_read()
    }

    fn bytes_total(&self) -> Option<u64> {
        Some(self.decoded().bytes_total())
    }

    fn incomplete(&self) -> Option<&str> {
        self.unlike.as_deref().or_else(|| self.decoded().incomplete())
    }
}

/// Decodes one record that was kept from an earlier reading: its bytes without the line end.
pub fn decode_line(bytes: &[u8], names: &Settings, line_bytes: u64) -> Item {
    let over = (bytes.len() as u64 > line_bytes).then(|| (bytes.len() as u64, Digest::of(bytes)));
    item(&Line { bytes, at: super::Position { line: 1, offset: 0 }, ended: true, over }, names, line_bytes)
}

fn item(line: &Line<'_>, names: &Settings, limit: u64) -> Item {
    let at = line.at;
    if let Some((raw_len, raw_hash)) = line.over {
        return Item::Unreadable(Unreadable {
            at,
            file: None,
            class: Class::LineTooLong,
            message: format!("the line has {raw_len} bytes, over limits.line_bytes = {limit}"),
            doc_id: None,
            raw: line.bytes.to_vec(),
            raw_len,
            raw_hash,
        });
    }
    match record::read(line.bytes, !line.ended, names) {
        Ok(record::Fields { doc_id, text, meta, chunk_index }) => {
            Item::Record(Record { doc_id, text, meta, chunk_index, at })
        }
        Err(record::Problem { class, message, doc_id }) => Item::Unreadable(Unreadable {
            at,
            file: None,
            class,
            message,
            doc_id,
            raw: line.bytes.to_vec(),
            raw_len: line.bytes.len() as u64,
            raw_hash: Digest::of(line.bytes),
        }),
    }
}

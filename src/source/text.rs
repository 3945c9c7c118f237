//! Text files, one document each: a folder of them, or one by itself. The text is taken as it is, front matter and
//! line ends too; only a UTF-8 byte order mark is dropped. What is wrong with a file costs that file.

use std::{
    io::{self, Read},
    path::Path,
};

use sha2::{Digest as _, Sha256};

use super::{
    Item, Position, RAW_BYTES_KEPT, Record, Settings, Source, SourceError, Unreadable,
    decode::Decoded,
    encoding,
    record::Problem,
    walk::{self, Met},
};
use crate::{
    chunk::{DOC_ID_BYTES_MAX, Digest},
    error::Class,
};

const UTF8_BOM: [u8; 3] = [0xef, 0xbb, 0xbf];
/// Where a document stands that is a file by itself.
const WHOLE: Position = Position { line: 0, offset: 0 };
/// Faults that are told one by one.
const FAULTS_TOLD: usize = 5;
/// Bytes by which a text without a byte order mark is judged to be one.
const JUDGED: usize = 1_024;

/// See the module.
pub struct Texts {
    met: Box<dyn Iterator<Item = Met> + Send>,
    limit: u64,
    read: u64,
    total: Option<u64>,
    texts: u64,
    others: u64,
    faults: Vec<String>,
    fault_count: u64,
    incomplete: Option<String>,
}

impl Texts {
    /// The text files of a folder.
    ///
    /// # Errors
    /// See [`walk::walk`].
    pub fn of_folder(root: &Path, settings: &Settings, file_bytes: u64) -> Result<Self, SourceError> {
        Ok(Self::of(Box::new(walk::walk(root, settings)?), file_bytes, None))
    }

    /// One text file; its id is its name.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn of_file(path: &Path, file_bytes: u64) -> Result<Self, SourceError> {
        Decoded::open(path)?;
        let meta = std::fs::metadata(path).map_err(|error| SourceError::io(path, error))?;
        let (name, size) = (path.file_name().unwrap_or_default().into(), meta.len());
        let met = std::iter::once(Met::Text(path.to_owned(), name, meta));
        Ok(Self::of(Box::new(met), file_bytes, Some(size)))
    }

    fn of(met: Box<dyn Iterator<Item = Met> + Send>, limit: u64, total: Option<u64>) -> Self {
        Self {
            met,
            limit,
            read: 0,
            total,
            texts: 0,
            others: 0,
            faults: Vec::new(),
            fault_count: 0,
            incomplete: None,
        }
    }

    /// One file's item, or the sentence that says why it cannot be read.
    fn document(&mut self, path: &Path, relative: &Path) -> Result<Item, String> {
        let sentence = |error: SourceError| match error {
            SourceError::Io { path, error } if error.kind() == io::ErrorKind::NotFound => {
                format!("{path}: it vanished while the folder was read")
            }
            SourceError::Io { path, error } => format!("{path}: {error}"),
            SourceError::Format { .. } => error.to_string(),
        };
        let mut decoded = Decoded::open(path).map_err(sentence)?;
        let whole = Whole::read(&mut decoded, self.limit);
        self.read += decoded.bytes_read();
        let whole = whole.map_err(|error| sentence(SourceError::io(path, error)))?;
        match decoded.incomplete() {
            Some(why) => Err(format!("{}: {why}", path.display())),
            None => Ok(item(whole, path, relative, self.limit)),
        }
    }

    fn fault(&mut self, why: String) {
        tracing::debug!(why, "a file cannot be read");
        self.fault_count += 1;
        if self.faults.len() < FAULTS_TOLD {
            self.faults.push(why);
        }
    }

    fn end(&mut self) {
        if self.fault_count > 0 && self.incomplete.is_none() {
            let more = match self.fault_count - self.faults.len() as u64 {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            let (count, first) = (self.fault_count, self.faults.join("; "));
            self.incomplete = Some(format!("not read ({count}): {first}{more}. Mend this and run again"));
        }
    }
}

impl Source for Texts {
    fn next(&mut self) -> Result<Option<Item>, SourceError> {
        loop {
            match self.met.next() {
                None => {
                    self.end();
                    return Ok(None);
                }
                Some(Met::Text(path, relative, _)) => {
                    self.texts += 1;
                    match self.document(&path, &relative) {
                        Ok(item) => return Ok(Some(item)),
                        Err(why) => self.fault(why),
                    }
                }
                Some(Met::Fault(why)) => self.fault(why),
                Some(Met::Records(_)) => {}
                Some(Met::Other) => self.others += 1,
            }
        }
    }

    fn bytes_read(&self) -> u64 {
        self.read
    }

    fn bytes_total(&self) -> Option<u64> {
        self.total
    }

    fn incomplete(&self) -> Option<&str> {
        self.incomplete.as_deref()
    }

    fn hint(&self) -> Option<String> {
        let others = self.others;
        (self.texts == 0).then(|| {
            format!(
                "there is no text file in it, and {others} of other kinds; name what to read, for example \
                 `--set 'source.include=[\"*.rst\"]'`"
            )
        })
    }
}

/// The content of a file, within the limit.
struct Whole {
    /// Its bytes without a byte order mark; only the first [`RAW_BYTES_KEPT`] when it is over.
    bytes: Vec<u8>,
    /// Length and SHA-256 of all of it, when it is over the limit.
    over: Option<(u64, Digest)>,
}

impl Whole {
    /// Reads to the end, and never holds more than the limit and a mark.
    fn read(from: &mut impl Read, limit: u64) -> io::Result<Self> {
        let mut bytes = Vec::new();
        from.by_ref().take(limit.saturating_add(UTF8_BOM.len() as u64 + 1)).read_to_end(&mut bytes)?;
        if bytes.starts_with(&UTF8_BOM) {
            bytes.drain(..UTF8_BOM.len());
        }
        if bytes.len() as u64 <= limit {
            return Ok(Self { bytes, over: None });
        }
        let (mut hasher, mut length) = (Sha256::new(), bytes.len() as u64);
        hasher.update(&bytes);
        bytes.truncate(RAW_BYTES_KEPT);
        bytes.shrink_to_fit();
        let mut piece = vec![0; 64 * 1024];
        loop {
            match from.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => {
                    hasher.update(&piece[..n]);
                    length += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { bytes, over: Some((length, Digest(hasher.finalize().into()))) })
    }
}

fn item(whole: Whole, path: &Path, relative: &Path, limit: u64) -> Item {
    match judge(&whole, relative, limit) {
        Ok(doc_id) => {
            let text = String::from_utf8(whole.bytes).expect("judged to be UTF-8");
            Item::Record(Record { doc_id, text, meta: None, chunk_index: None, at: WHOLE })
        }
        Err(Problem { class, message, doc_id }) => {
            let Whole { mut bytes, over } = whole;
            let (raw_len, raw_hash) = over.unwrap_or_else(|| (bytes.len() as u64, Digest::of(&bytes)));
            bytes.truncate(RAW_BYTES_KEPT);
            let file = Some(path.display().to_string());
            Item::Unreadable(Unreadable {
                at: WHOLE,
                file,
                class,
                message,
                doc_id,
                raw: bytes,
                raw_len,
                raw_hash,
            })
        }
    }
}

/// The document's id, or why the file is no document.
fn judge(whole: &Whole, relative: &Path, limit: u64) -> Result<String, Problem> {
    let problem = |class, message| Problem { class, message, doc_id: None };
    let doc_id = match relative.to_str() {
        Some(name) if name.len() <= DOC_ID_BYTES_MAX => name.to_owned(),
        Some(name) => {
            let what = format!("its path has {} bytes; an id has at most {DOC_ID_BYTES_MAX}", name.len());
            return Err(problem(Class::BadId, what));
        }
        None => return Err(problem(Class::BadId, "its name is not UTF-8; rename the file".to_owned())),
    };
    let found = match (whole.over, text(&whole.bytes)) {
        (Some((length, _)), _) => {
            (Class::LineTooLong, format!("the file has {length} bytes, over limits.line_bytes = {limit}"))
        }
        (None, Err(found)) => found,
        (None, Ok(())) => return Ok(doc_id),
    };
    Err(Problem { class: found.0, message: found.1, doc_id: Some(doc_id) })
}

/// Whether the bytes are a text with something in it.
fn text(bytes: &[u8]) -> Result<(), (Class, String)> {
    let utf8 = |what: String| Err((Class::InvalidUtf8, what));
    if let Some(name) = encoding::wide(bytes) {
        return utf8(format!(
            "the file is text in {name}; convert it to UTF-8, for example with `iconv -t UTF-8`"
        ));
    }
    let head = &bytes[..bytes.len().min(JUDGED)];
    // A quarter of zero bytes: UTF-16 without its mark, or something that is no text; as UTF-8 both would pass.
    if head.iter().filter(|byte| **byte == 0).count() * 4 > head.len() {
        return utf8(
            "the file is full of zero bytes: UTF-16 without a byte order mark, or no text".to_owned(),
        );
    }
    match std::str::from_utf8(bytes) {
        Err(error) => {
            let before = &bytes[..error.valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            utf8(format!("not valid UTF-8 at byte {} of the file, in line {line}", before.len() + 1))
        }
        Ok("") => Err((Class::BlankText, "the file is empty".to_owned())),
        Ok(text) if text.trim().is_empty() => {
            Err((Class::BlankText, "the file is only white space".to_owned()))
        }
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], limit: u64) -> Item {
        let mut bytes = bytes;
        item(Whole::read(&mut bytes, limit).unwrap(), Path::new("/r/a/b.md"), Path::new("a/b.md"), limit)
    }

    fn bad(item: Item) -> Unreadable {
        match item {
            Item::Unreadable(bad) => bad,
            Item::Record(record) => panic!("{record:?}"),
        }
    }

    #[test]
    fn a_text_is_taken_as_it_is_but_for_its_mark() {
        let Item::Record(record) = read("\u{feff}---\r\ntitle: x\r\n---\r\n é\0 ".as_bytes(), 99) else {
            panic!()
        };
        assert_eq!((record.doc_id.as_str(), record.at.line), ("a/b.md", 0));
        assert_eq!(record.text, "---\r\ntitle: x\r\n---\r\n é\0 ");
    }

    #[test]
    fn what_is_wrong_with_a_file_is_classed() {
        for (bytes, class, word) in [
            (&b""[..], Class::BlankText, "empty"),
            (b"\xef\xbb\xbf", Class::BlankText, "empty"),
            (" \u{3000}\n".as_bytes(), Class::BlankText, "white space"),
            (b"ab\nc\xe9d", Class::InvalidUtf8, "byte 5 of the file, in line 2"),
            (b"\xff\xfea\0", Class::InvalidUtf8, "UTF-16 (little-endian)"),
            (b"a\0b\0c\0", Class::InvalidUtf8, "zero bytes"),
        ] {
            let bad = bad(read(bytes, 99));
            assert_eq!((bad.class, bad.at.line, bad.doc_id.as_deref()), (class, 0, Some("a/b.md")));
            assert!(bad.message.contains(word), "{}", bad.message);
            assert_eq!(bad.file.as_deref(), Some("/r/a/b.md"));
        }
    }

    #[test]
    fn b06_a_file_over_the_limit_is_hashed_and_not_held() {
        for (length, mark) in
            [(2_000, ""), (2_001, ""), (2_000, "\u{feff}"), (2_001, "\u{feff}"), (300_000, "")]
        {
            let text = "x".repeat(length);
            let item = read(format!("{mark}{text}").as_bytes(), 2_000);
            if length == 2_000 {
                assert!(matches!(item, Item::Record(record) if record.text == text));
                continue;
            }
            let bad = bad(item);
            assert_eq!((bad.class, bad.raw_len, bad.raw.len()), (Class::LineTooLong, length as u64, 1_024));
            assert_eq!(bad.raw_hash, Digest::of(text.as_bytes()));
        }
    }

    #[test]
    fn a_path_that_can_be_no_id_is_told() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};
        let item =
            |relative: &Path| item(Whole::read(&mut &b"t"[..], 9).unwrap(), Path::new("/r"), relative, 9);
        let name = bad(item(Path::new(OsStr::from_bytes(b"a\xff.md"))));
        assert_eq!((name.class, name.doc_id), (Class::BadId, None));
        assert_eq!(bad(item(Path::new(&"d/".repeat(513)))).class, Class::BadId);
    }
}

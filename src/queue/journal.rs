//! `dead-letters.jsonl`: the append-only, fsynced second home of the DLQ. One transition a line.
//!
//! Journal first, then queue: after a crash the queue catches up from the offset it last knew, and a queue
//! that was lost is filled again from the first line. Compaction writes a new journal beside it and renames; the
//! new one begins with its epoch, so that an offset is never taken for one in another file.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{QueueError, dead::Transition};

/// Version of a line. 2: a redriven chunk that failed again says so without its text.
const FORMAT: u8 = 2;
/// Longest first line that can be a header.
const HEADER_BYTES: u64 = 256;
/// A journal below this is never compacted by itself.
const COMPACT_FLOOR: u64 = 1024 * 1024;

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    v: u8,
    /// When, RFC 3339 UTC.
    pub at: String,
    /// What.
    #[serde(flatten)]
    pub transition: Transition,
}

/// First line of a journal that was compacted.
#[derive(Serialize, Deserialize)]
struct Header {
    v: u8,
    op: String,
    epoch: Uuid,
}

/// The open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
    epoch: Uuid,
    /// Bytes of the header.
    start: u64,
    /// Compaction failed: not tried again below this length.
    not_before: u64,
}

impl Journal {
    /// Opens or creates it. A last line that was cut by a power cut was never acknowledged: it is dropped.
    ///
    /// # Errors
    /// I/O.
    pub fn open(path: &Path) -> Result<Self, QueueError> {
        let io = |error| QueueError::Io { path: path.display().to_string(), error };
        let created = !path.exists();
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let bytes = whole_lines(&mut file, length).map_err(io)?;
        if bytes < length {
            tracing::warn!(
                dropped = length - bytes,
                "the journal's last line was cut; it was never acknowledged"
            );
            file.set_len(bytes).map_err(io)?;
            file.sync_all().map_err(io)?;
        }
        if created {
            file.sync_all().map_err(io)?;
            sync_parent(path).map_err(io)?;
        }
        let (epoch, start) = header(&mut file).map_err(io)?;
        Ok(Self { path: path.to_owned(), file, bytes, epoch, start, not_before: 0 })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of whole lines.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Told apart from the journals before it; nil for one that was never compacted.
    pub fn epoch(&self) -> Uuid {
        self.epoch
    }

    /// Appends all of `transitions`, durable on return; gives the offset after each.
    ///
    /// # Errors
    /// I/O; then nothing of them counts, and what was written of them is cut off again.
    pub fn append(&mut self, at: &str, transitions: &[Transition]) -> Result<Vec<u64>, QueueError> {
        let (mut text, mut ends) = (Vec::new(), Vec::with_capacity(transitions.len()));
        for transition in transitions {
            let line = Line { v: FORMAT, at: at.to_owned(), transition: transition.clone() };
            serde_json::to_writer(&mut text, &line).expect("plain data");
            text.push(b'\n');
            ends.push(self.bytes + text.len() as u64);
        }
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            let _ = self.file.set_len(self.bytes);
            return Err(self.io(error));
        }
        self.bytes += text.len() as u64;
        Ok(ends)
    }

    /// Whether more than half of it is about what is no more, `live` being the bytes of the letters' stored forms.
    pub fn is_worth_compacting(&self, live: u64) -> bool {
        self.bytes >= self.not_before && self.bytes > COMPACT_FLOOR.saturating_add(live.saturating_mul(2))
    }

    /// Compaction failed: it is tried again when the journal has grown by a quarter.
    pub fn put_off(&mut self) {
        self.not_before = self.bytes + self.bytes / 4;
    }

    /// Writes the next journal beside this one, with a header and what `next` gives until that is nothing. Durable on
    /// return, and not yet in place.
    ///
    /// # Errors
    /// I/O, and what `next` says.
    pub fn write_next(
        &self,
        at: &str,
        next: &mut dyn FnMut() -> Result<Vec<Transition>, QueueError>,
    ) -> Result<Self, QueueError> {
        self.remove_leftover()?;
        let mut new = Self::open(&self.temp())?;
        let header = Header { v: FORMAT, op: "journal".into(), epoch: Uuid::now_v7() };
        let mut text = serde_json::to_vec(&header).expect("plain data");
        text.push(b'\n');
        new.file.write_all(&text).and_then(|()| new.file.sync_data()).map_err(|error| new.io(error))?;
        (new.epoch, new.start, new.bytes) = (header.epoch, text.len() as u64, text.len() as u64);
        loop {
            let transitions = next()?;
            if transitions.is_empty() {
                return Ok(new);
            }
            new.append(at, &transitions)?;
        }
    }

    /// Puts the next journal in the place of this one. Durable on return.
    ///
    /// # Errors
    /// I/O.
    pub fn replace(&mut self, new: Self) -> Result<(), QueueError> {
        std::fs::rename(&new.path, &self.path).map_err(|error| self.io(error))?;
        let path = std::mem::take(&mut self.path);
        *self = Self { path, not_before: 0, ..new };
        sync_parent(&self.path).map_err(|error| self.io(error))
    }

    /// Removes what a compaction left behind that was cut short: texts may stand in it.
    ///
    /// # Errors
    /// I/O.
    pub fn remove_leftover(&self) -> Result<(), QueueError> {
        match std::fs::remove_file(self.temp()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(self.io(error)),
            _ => Ok(()),
        }
    }

    fn temp(&self) -> PathBuf {
        self.path.with_extension("new")
    }

    fn io(&self, error: std::io::Error) -> QueueError {
        QueueError::Io { path: self.path.display().to_string(), error }
    }

    /// Every line from byte `from` on, in order, each with the offset after it.
    ///
    /// # Errors
    /// I/O; the items: also a line that is not ours, as the journal is damaged or was written by a newer version.
    pub fn lines(&self, from: u64) -> Result<Lines, QueueError> {
        let from = from.max(self.start);
        let mut file = File::open(&self.path).map_err(|error| self.io(error))?;
        file.seek(SeekFrom::Start(from)).map_err(|error| self.io(error))?;
        let reader = BufReader::new(file).take(self.bytes.saturating_sub(from));
        Ok(Lines { path: self.path.display().to_string(), reader, offset: from, text: Vec::new() })
    }
}

/// See [`Journal::lines`].
#[derive(Debug)]
pub struct Lines {
    path: String,
    reader: std::io::Take<BufReader<File>>,
    offset: u64,
    text: Vec<u8>,
}

impl Iterator for Lines {
    type Item = Result<(Line, u64), QueueError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.text.clear();
        let read = match self.reader.read_until(b'\n', &mut self.text) {
            Ok(0) => return None,
            Ok(read) => read as u64,
            Err(error) => return Some(Err(QueueError::Io { path: self.path.clone(), error })),
        };
        let damaged = |why| QueueError::JournalDamaged { path: self.path.clone(), offset: self.offset, why };
        let line = serde_json::from_slice::<Line>(&self.text);
        let line = line.map_err(|e| damaged(format!("not a line of ours ({:?} error)", e.classify())));
        let line = line.and_then(|line| {
            if line.v > FORMAT {
                let why = format!("written by a newer version (form {}, known {FORMAT})", line.v);
                return Err(damaged(why));
            }
            Ok(line)
        });
        self.offset += read;
        Some(line.map(|line| (line, self.offset)))
    }
}

/// Epoch and length of the header; nil and 0 when there is none.
fn header(file: &mut File) -> std::io::Result<(Uuid, u64)> {
    file.seek(SeekFrom::Start(0))?;
    let mut text = Vec::new();
    BufReader::new(file.take(HEADER_BYTES)).read_until(b'\n', &mut text)?;
    Ok(match serde_json::from_slice::<Header>(&text) {
        Ok(header) if header.op == "journal" && header.v <= FORMAT => (header.epoch, text.len() as u64),
        _ => (Uuid::nil(), 0),
    })
}

/// Bytes up to and with the last line end.
fn whole_lines(file: &mut File, length: u64) -> std::io::Result<u64> {
    let mut end = length;
    let mut block = vec![0_u8; 64 * 1024];
    while end > 0 {
        let start = end.saturating_sub(block.len() as u64);
        let part = &mut block[..usize::try_from(end - start).expect("at most a block")];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(place) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + place as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

/// Makes a new name in a folder durable.
fn sync_parent(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn resolve(n: u128) -> Transition {
        Transition::Resolve { id: Uuid::from_u128(n), how: "as_is".into() }
    }

    fn lines(journal: &Journal, from: u64) -> Vec<u128> {
        let lines = journal.lines(from).unwrap();
        lines.map(|line| line.unwrap().0.transition.id().as_u128()).collect()
    }

    #[test]
    fn a_cut_last_line_is_dropped_and_the_rest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let mut journal = Journal::open(&path).unwrap();
        let middle = journal.append("T", &[resolve(1), resolve(2)]).unwrap()[1];
        journal.append("T", &[resolve(3)]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in usize::try_from(middle).unwrap()..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = Journal::open(&path).unwrap();
            assert_eq!(lines(&journal, 0), [1, 2]);
            assert_eq!(journal.append("T", &[resolve(4)]).unwrap(), [journal.bytes()]);
            assert_eq!(lines(&journal, middle), [4]);
        }
    }

    #[test]
    fn damage_in_the_middle_is_named_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let mut journal = Journal::open(&path).unwrap();
        let first = journal.append("T", &[resolve(1)]).unwrap()[0];
        journal.append("T", &[resolve(2)]).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[usize::try_from(first).unwrap() + 2] = b'#';
        std::fs::write(&path, bytes).unwrap();
        let error = Journal::open(&path).unwrap().lines(0).unwrap().find_map(Result::err).unwrap();
        assert!(error.to_string().contains(&format!("byte {first}")), "{error}");
    }

    #[test]
    fn the_next_journal_has_an_epoch_of_its_own_and_takes_the_place_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let mut journal = Journal::open(&path).unwrap();
        journal.append("T", &[resolve(1), resolve(2), resolve(3)]).unwrap();
        assert_eq!(journal.epoch(), Uuid::nil());
        let mut left = vec![vec![resolve(9)], vec![]].into_iter();
        let new = journal.write_next("T", &mut || Ok(left.next().unwrap())).unwrap();
        let (epoch, bytes) = (new.epoch(), new.bytes());
        assert_eq!(lines(&Journal::open(&path).unwrap(), 0), [1, 2, 3], "not yet in place");
        journal.replace(new).unwrap();
        journal.append("T", &[resolve(4)]).unwrap();
        let journal = Journal::open(&path).unwrap();
        assert_eq!(journal.epoch(), epoch);
        assert_eq!((lines(&journal, 0), lines(&journal, bytes)), (vec![9, 4], vec![4]));
        assert!(!journal.is_worth_compacting(0), "small ones never are");
    }
}

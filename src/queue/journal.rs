//! `dead-letters.jsonl`: the append-only, fsynced second home of the DLQ. One transition a line.
//!
//! Journal first, then queue: after a crash the queue catches up from the offset it last knew, and a queue
//! that was lost is filled again from the first line.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{QueueError, dead::Transition};

/// Version of a line.
const FORMAT: u8 = 1;

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

/// The open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
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
        Ok(Self { path: path.to_owned(), file, bytes })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of whole lines.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends all of `transitions`, durable on return; gives the offset after them.
    ///
    /// # Errors
    /// I/O; then nothing of them counts, and what was written of them is cut off again.
    pub fn append(&mut self, at: &str, transitions: &[Transition]) -> Result<u64, QueueError> {
        let mut text = Vec::new();
        for transition in transitions {
            let line = Line { v: FORMAT, at: at.to_owned(), transition: transition.clone() };
            serde_json::to_writer(&mut text, &line).expect("plain data");
            text.push(b'\n');
        }
        let written = self.file.write_all(&text).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            let _ = self.file.set_len(self.bytes);
            return Err(QueueError::Io { path: self.path.display().to_string(), error });
        }
        self.bytes += text.len() as u64;
        Ok(self.bytes)
    }

    /// Fills an empty journal with what `next` gives until that is nothing: all of it is there afterwards, or
    /// none. Durable on return.
    ///
    /// # Errors
    /// I/O, and what `next` says.
    pub fn fill(
        &mut self,
        at: &str,
        next: &mut dyn FnMut() -> Result<Vec<Transition>, QueueError>,
    ) -> Result<(), QueueError> {
        let temp = self.path.with_extension("new");
        let io = |error| QueueError::Io { path: temp.display().to_string(), error };
        if temp.exists() {
            std::fs::remove_file(&temp).map_err(io)?;
        }
        let mut new = Self::open(&temp)?;
        loop {
            let transitions = next()?;
            if transitions.is_empty() {
                break;
            }
            new.append(at, &transitions)?;
        }
        std::fs::rename(&temp, &self.path).and_then(|()| sync_parent(&self.path)).map_err(io)?;
        (self.file, self.bytes) = (new.file, new.bytes);
        Ok(())
    }

    /// Every line from byte `from` on, in order.
    ///
    /// # Errors
    /// I/O, and a line that is not ours: the journal is damaged or was written by a newer version.
    pub fn replay(
        &self,
        from: u64,
        each: &mut dyn FnMut(Line) -> Result<(), QueueError>,
    ) -> Result<(), QueueError> {
        let path = self.path.display().to_string();
        let io = |error| QueueError::Io { path: path.clone(), error };
        let mut file = File::open(&self.path).map_err(io)?;
        file.seek(SeekFrom::Start(from)).map_err(io)?;
        let mut reader = BufReader::new(file).take(self.bytes.saturating_sub(from));
        let (mut offset, mut text) = (from, Vec::new());
        loop {
            text.clear();
            let read = reader.read_until(b'\n', &mut text).map_err(io)?;
            if read == 0 {
                return Ok(());
            }
            let line: Line = serde_json::from_slice(&text).map_err(|error| QueueError::JournalDamaged {
                path: path.clone(),
                offset,
                why: format!("not a line of ours ({:?} error)", error.classify()),
            })?;
            if line.v > FORMAT {
                let why = format!("written by a newer version (form {}, known {FORMAT})", line.v);
                return Err(QueueError::JournalDamaged { path, offset, why });
            }
            offset += read as u64;
            each(line)?;
        }
    }
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
        let mut ids = Vec::new();
        let mut each = |line: Line| {
            ids.push(line.transition.id().as_u128());
            Ok(())
        };
        journal.replay(from, &mut each).unwrap();
        ids
    }

    #[test]
    fn a_cut_last_line_is_dropped_and_the_rest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let mut journal = Journal::open(&path).unwrap();
        let middle = journal.append("T", &[resolve(1), resolve(2)]).unwrap();
        journal.append("T", &[resolve(3)]).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in usize::try_from(middle).unwrap()..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = Journal::open(&path).unwrap();
            assert_eq!(lines(&journal, 0), [1, 2]);
            assert_eq!(journal.append("T", &[resolve(4)]).unwrap(), journal.bytes());
            assert_eq!(lines(&journal, middle), [4]);
        }
    }

    #[test]
    fn damage_in_the_middle_is_named_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let mut journal = Journal::open(&path).unwrap();
        let first = journal.append("T", &[resolve(1)]).unwrap();
        journal.append("T", &[resolve(2)]).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[usize::try_from(first).unwrap() + 2] = b'#';
        std::fs::write(&path, bytes).unwrap();
        let error = Journal::open(&path).unwrap().replay(0, &mut |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains(&format!("byte {first}")), "{error}");
    }
}

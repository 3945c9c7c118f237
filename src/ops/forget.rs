//! Removing documents everywhere: queue, dead letters, sink, ledger, spool, in this order. What is being forgotten is
//! noted in the ledger first, so that a forgetting cut short is finished by whatever opens the stores next.

use std::{
    collections::{BTreeSet, HashSet},
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Read},
    os::unix::fs::FileExt,
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::purge;
use crate::{
    chunk::ChunkKey,
    folder::Folder,
    sink::Sink,
    source::{self, Item},
};

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgotten {
    /// Documents of which something was found.
    pub documents: u64,
    /// Documents of which nothing was.
    pub unknown: Vec<String>,
    /// Pending chunks; those being worked on go when they come back.
    pub pending: u64,
    /// Dead letters.
    pub letters: u64,
    /// Rows of the sink.
    pub sink_rows: u64,
    /// Rows of the ledger.
    pub ledger_rows: u64,
    /// Lines of the spool, overwritten in place.
    pub spool_lines: u64,
    /// Whether the databases' write-ahead logs are empty, too; not so while another program reads them.
    pub scrubbed: bool,
}

/// How records of the spool are read.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// Names of the fields.
    pub source: &'a source::Settings,
    /// Longest line.
    pub line_bytes: u64,
}

/// Removes documents everywhere.
///
/// # Errors
/// A sentence, when a store cannot be used; the same again goes on where this ended.
pub fn forget(
    folder: &Folder,
    sink: &dyn Sink,
    reading: Reading<'_>,
    docs: &[String],
    who: &str,
) -> Result<Forgotten, String> {
    folder.ledger.forgetting_begins(docs).map_err(|error| error.to_string())?;
    let all = folder.ledger.forgetting().map_err(|error| error.to_string())?;
    let (mut forgotten, known) = remove(folder, sink, reading, all, who)?;
    let unknown: BTreeSet<&String> = docs.iter().filter(|doc| !known.contains(*doc)).collect();
    forgotten.unknown = unknown.into_iter().cloned().collect();
    Ok(forgotten)
}

/// Finishes a forgetting that was cut short. True when there was one.
///
/// # Errors
/// A sentence, when a store cannot be used.
pub fn finish(folder: &Folder, sink: &dyn Sink, reading: Reading<'_>) -> Result<bool, String> {
    let docs = folder.ledger.forgetting().map_err(|error| error.to_string())?;
    if docs.is_empty() {
        return Ok(false);
    }
    tracing::warn!(documents = docs.len(), "a `forebay forget` was cut short and is finished now");
    remove(folder, sink, reading, docs, "forebay").map(|_| true)
}

fn remove(
    folder: &Folder,
    sink: &dyn Sink,
    reading: Reading<'_>,
    docs: Vec<String>,
    who: &str,
) -> Result<(Forgotten, HashSet<String>), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let docs: HashSet<String> = docs.into_iter().collect();
    let (mut forgotten, mut known) = (Forgotten::default(), HashSet::new());
    // In the order in which a chunk moves on: what leaves one place after it was looked at is found at the next.
    for key in folder.queue.pending_of(&docs).map_err(|e| text(&e))? {
        forgotten.pending += u64::from(folder.queue.cancel(&key).map_err(|e| text(&e))?.any());
        known.insert(key.doc_id);
    }
    let letters = folder.queue.letters_of(&docs).map_err(|e| text(&e))?;
    let ids: Vec<_> = letters.iter().map(|(id, _)| *id).collect();
    forgotten.letters = folder.queue.purge(&ids, who).map_err(|e| text(&e))?;
    known.extend(letters.into_iter().map(|(_, doc)| doc));
    for doc in &docs {
        let rows = sink.rows_of(doc).map_err(|e| text(&e))?;
        let ours = rows.into_iter().filter(|row| row.store == folder.store).map(|row| row.key);
        let ours: Vec<ChunkKey> = ours.collect();
        sink.delete(&ours).map_err(|e| text(&e))?;
        let written = folder.ledger.forget(doc).map_err(|e| text(&e))?;
        forgotten.sink_rows += ours.len() as u64;
        forgotten.ledger_rows += written;
        if written > 0 || !ours.is_empty() {
            known.insert(doc.clone());
        }
    }
    forgotten.spool_lines = spool(&folder.dir.join("spool"), &docs, reading, &mut known)?;
    purge::scrub(folder)?;
    folder.ledger.forgetting_ends().map_err(|e| text(&e))?;
    forgotten.scrubbed = sink.scrub().map_err(|e| text(&e))? & folder.ledger.scrub().map_err(|e| text(&e))?;
    forgotten.documents = known.len() as u64;
    Ok((forgotten, known))
}

/// Overwrites the documents' lines in every file of the spool. Gives their number.
fn spool(
    dir: &Path,
    docs: &HashSet<String>,
    reading: Reading<'_>,
    known: &mut HashSet<String>,
) -> Result<u64, String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(0) };
    let mut lines = 0;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|ending| ending == "jsonl") {
            lines +=
                blank(&path, docs, reading, known).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(lines)
}

/// Spaces of the same length, so that every other line stays at its offset.
fn blank(
    path: &Path,
    docs: &HashSet<String>,
    reading: Reading<'_>,
    known: &mut HashSet<String>,
) -> std::io::Result<u64> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut reader = BufReader::new(File::open(path)?);
    let (mut at, mut line, mut count) = (0_u64, Vec::new(), 0);
    loop {
        line.clear();
        let read = reader.by_ref().take(reading.line_bytes.saturating_add(2)).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        let content = line.strip_suffix(b"\n").unwrap_or(&line);
        let doc = match source::decode_line(content, reading.source, reading.line_bytes) {
            Item::Record(record) => Some(record.doc_id),
            Item::Unreadable(bad) => bad.doc_id,
        };
        if let Some(doc) = doc.filter(|doc| docs.contains(doc)) {
            file.write_all_at(&vec![b' '; content.len()], at)?;
            known.insert(doc);
            count += 1;
        }
        at += read as u64;
    }
    if count > 0 {
        file.sync_all()?;
    }
    Ok(count)
}

//! What a full reading shows to be gone: a document's stale tail chunks (those beyond its new length), and records
//! that could not be read and are no longer in their source.

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
    time::Duration,
};

use super::{
    circuit::Event,
    line::{Line, Stop},
};
use crate::{
    chunk::ChunkKey,
    clock::paced,
    error::Class,
    queue::{
        dead::{DeadLetter, State, Subject},
        dlq::Filter,
    },
    sink::SinkError,
    source,
};

/// Removes chunks `count..` of a document from queue, DLQ, sink and ledger, in this order: until the ledger has
/// forgotten them, the next reading does it again.
///
/// # Errors
/// A sentence, when the stores cannot be used.
pub fn drop_stale(line: &Line, doc_id: &str, count: u64) -> Result<(), String> {
    let folder = &line.folder;
    let (mut index, mut last, mut stale) = (count, None, BTreeSet::new());
    loop {
        // In the order in which a chunk moves on: one that is settled in between is then found in the ledger.
        let key = ChunkKey::new(doc_id, index);
        let cancelled = folder.queue.cancel(&key).map_err(|e| line.told(e))?;
        line.tally.duplicates.add(u64::from(cancelled.waiting));
        if cancelled.any() {
            // It may have reached the sink before a crash, and not the ledger.
            stale.insert(key.clone());
        }
        let letter = folder.queue.standing(key.short_hash()).map_err(|e| line.told(e))?;
        if let Some(letter) = &letter {
            folder.queue.resolve(&[(letter.id, "superseded".to_owned())]).map_err(|e| line.told(e))?;
        }
        // Chunks of a document are numbered without gaps: the first that nobody knows is its end.
        if !cancelled.any() && letter.is_none() && last.is_none_or(|last| index > last) {
            last = folder.ledger.tail(doc_id, index).map_err(|e| line.told(e))?.last().copied();
            if last.is_none() {
                break;
            }
        }
        index += 1;
    }
    let written = folder.ledger.tail(doc_id, count).map_err(|e| line.told(e))?;
    stale.extend(written.into_iter().map(|index| ChunkKey::new(doc_id, index)));
    if stale.is_empty() {
        return Ok(());
    }
    let keys: Vec<ChunkKey> = stale.into_iter().collect();
    folder.ledger.leaving(&keys).map_err(|e| line.told(e))?;
    delete(line, &keys)?;
    folder.ledger.remove(&keys).map_err(|e| line.told(e))
}

/// Whether a source answers for what was read at this line of this file. A file that is one document has no lines,
/// and its folder is the source.
pub fn answers_for(uri: &str, line: u64, file: &str) -> bool {
    file == uri || (line == 0 && source::lies_in(Path::new(uri), file))
}

/// Closes letters of records that a source, read again to its end, no longer holds: they were mended or moved.
///
/// # Errors
/// A sentence, when the queue cannot be used.
pub fn close_mended(line: &Line, uri: &str, still: &HashSet<u128>) -> Result<(), String> {
    let queue = &line.folder.queue;
    if queue.letter_counts().sum(|_, state| matches!(state, State::Open | State::Quarantined)) == 0 {
        return Ok(());
    }
    let gone = |letter: &DeadLetter| {
        matches!(letter.subject, Subject::Record { .. })
            && answers_for(uri, letter.origin.line, &line.folder.origin_uri(&letter.origin))
            && letter.state != State::Redriven
            && !still.contains(&letter.subject.short_hash())
    };
    let mut closed = Vec::new();
    let each = queue.each_letter(&Filter::default(), &mut |letter| {
        if gone(&letter) {
            closed.push((letter.id, "superseded".to_owned()));
        }
        true
    });
    each.map_err(|error| line.told(error))?;
    queue.resolve(&closed).map_err(|error| line.told(error))
}

/// Deletes from the sink what a document lost while it was on its way there and did not arrive in the ledger. A sink
/// that is down is tried a few times.
///
/// # Errors
/// A sentence, when the stores cannot be used.
pub(super) fn drop_orphans(line: &Line) -> Result<(), String> {
    let mut keys = line.folder.queue.orphans();
    if keys.is_empty() {
        return Ok(());
    }
    let pending: HashSet<u128> = line.folder.queue.pending_keys().into_iter().collect();
    let mut wanted = HashSet::new();
    for key in &keys {
        if pending.contains(&key.short_hash())
            || line.folder.ledger.held(key).map_err(|e| line.told(e))?.is_some()
        {
            wanted.insert(key.clone());
        }
    }
    keys.retain(|key| !wanted.contains(key));
    let mut deleted = line.sink.delete(&keys);
    for _ in 0..9 {
        if deleted.is_ok() {
            break;
        }
        std::thread::park_timeout(paced(Duration::from_millis(200)));
        deleted = line.sink.delete(&keys);
    }
    deleted.map_err(|error| error.to_string())?;
    line.folder.queue.orphans_gone();
    Ok(())
}

/// Deletes from the sink, waiting while it is down.
///
/// # Errors
/// A sentence, when it stays down while the line drains, or cannot be used at all.
pub(super) fn delete(line: &Line, keys: &[ChunkKey]) -> Result<(), String> {
    loop {
        match line.sink.delete(keys) {
            Ok(()) => return Ok(()),
            Err(SinkError::Unavailable(fault)) if fault.class == Class::DiskFull => {
                line.stop(Stop::Full(fault.message.clone()));
                return Err(fault.message);
            }
            Err(SinkError::Unavailable(fault) | SinkError::Unknown(fault)) if !line.draining() => {
                tracing::warn!(class = %fault.class, why = fault.message, "stale chunks wait for the sink");
                line.sink_state.tell(Event::Failure);
                std::thread::park_timeout(paced(Duration::from_millis(500)));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

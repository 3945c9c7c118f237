//! Whether the files of a data folder are what they should be and belong together, before anything is made of them.
//!
//! The queue is not looked at here: one that is damaged is made again by itself.

use std::path::Path;

use super::{FolderError, witness::Witness};
use crate::ledger::Noted;

/// What must be a file, and what to do when it is not.
const FILES: [(&str, &str); 4] = [
    ("lock", "move it aside and run again"),
    ("witness", "move it aside and run again: it is made again from ledger.db"),
    ("ledger.db", "move it aside and type `forebay rebuild`: it is made again from the sink"),
    ("dead-letters.jsonl", "move it aside and type `forebay rebuild`: it is made again from the queue"),
];

/// Refuses a folder, a pipe or a device in the place of a file.
pub(super) fn check(dir: &Path) -> Result<(), FolderError> {
    for (name, todo) in FILES {
        let path = dir.join(name);
        if std::fs::metadata(&path).is_ok_and(|meta| !meta.is_file()) {
            return Err(damaged(&path, format!("it is not a file; {todo}")));
        }
    }
    Ok(())
}

/// Refuses a ledger that is another folder's, came back empty, or is older than the witness says. The ledger counts
/// opens before the witness does, so it can only be ahead of it.
pub(super) fn belong(
    dir: &Path,
    witness: &Witness,
    ledger: &Noted,
    new_ledger: bool,
) -> Result<(), FolderError> {
    let path = dir.join("ledger.db");
    if new_ledger && ledger.is_empty {
        return Ok(());
    }
    if witness.generation > 0 && ledger.is_empty {
        let what = "it came back empty; put it back, or move it aside and type `forebay rebuild`: it is made again from \
                    the sink";
        return Err(damaged(&path, what.into()));
    }
    if ledger.store.as_ref().is_some_and(|store| *store != witness.store.to_string()) {
        let what = "it and the file `witness` are of two data folders; put the right one back, or move the wrong one \
                    aside and type `forebay rebuild` (a ledger is made again from the sink, a witness from the ledger)";
        return Err(damaged(&path, what.into()));
    }
    if ledger.generation.is_some_and(|generation| generation < witness.generation) {
        let what = "it is older than the data folder says: it, or its -wal, was lost or restored from a copy. Put it \
                    back, or move both aside and type `forebay rebuild`: it is made again from the sink";
        return Err(damaged(&path, what.into()));
    }
    Ok(())
}

pub(super) fn damaged(path: &Path, what: String) -> FolderError {
    FolderError::Damaged { path: path.display().to_string(), what }
}

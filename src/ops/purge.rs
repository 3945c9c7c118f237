//! Removing dead letters for good, payload and all.

use std::path::Path;

use serde_json::{Value, json};

use super::export::PAGE;
use crate::{
    folder::Folder,
    queue::dlq::{Filter, PAGE_BYTES},
};

/// Purges one page of letters.
///
/// # Errors
/// A sentence, when the queue cannot be used.
pub(super) fn page(folder: &Folder, filter: &Filter, who: &str) -> Result<Value, String> {
    let text = |error: crate::queue::QueueError| error.to_string();
    let letters = folder.queue.letters_within(filter, PAGE, PAGE_BYTES).map_err(text)?;
    let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
    let purged = folder.queue.purge(&ids, who).map_err(text)?;
    Ok(json!({ "purged": purged, "next": ids.last() }))
}

/// Leaves no byte of what was purged in the journal, nor in what a damaged queue left behind. The store's own files are
/// written anew by the next open.
///
/// # Errors
/// A sentence, when something cannot be removed.
pub fn scrub(folder: &Folder) -> Result<(), String> {
    folder.queue.scrub().map_err(|error| error.to_string())?;
    let io = |path: &Path, error: std::io::Error| format!("{}: {error}; remove it by hand", path.display());
    for entry in std::fs::read_dir(&folder.dir).map_err(|error| io(&folder.dir, error))?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("queue.damaged-") {
            // Moved aside when the queue was rebuilt; the same texts may lie in it.
            std::fs::remove_dir_all(entry.path()).map_err(|error| io(&entry.path(), error))?;
            tracing::warn!(path = %entry.path().display(), "removed: what was purged may have lain in it, too");
        }
    }
    Ok(())
}

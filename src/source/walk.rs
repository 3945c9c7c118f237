//! What lies in a folder, in a stable order: by name, folder by folder, without holding more than one folder's names.
//!
//! Rules of `.gitignore` and `.ignore` files inside the folder are honoured, with or without a `.git`; those above it
//! and the user's own are not, so that the same folder gives the same documents anywhere. Hidden files are skipped,
//! links are not followed, and a data folder of ours is never read.

use std::{
    fs::Metadata,
    path::{Path, PathBuf},
};

use ignore::{DirEntry, WalkBuilder};
use sha2::{Digest as _, Sha256};

use super::{
    Settings, SourceError,
    file::{Fingerprint, Stamp},
    glob::{Globs, Kind},
};
use crate::chunk::Digest;

/// One thing met on the way.
#[derive(Debug)]
pub enum Met {
    /// A text file: its path, the same relative to the root, and what the file system says of it.
    Text(PathBuf, PathBuf, Metadata),
    /// A file of records.
    Records(PathBuf),
    /// A file that is neither, or a link.
    Other,
    /// What could not be looked at, and why: a sentence.
    Fault(String),
}

/// All that lies in `root`.
///
/// # Errors
/// The globs of the settings are none.
pub fn walk(
    root: &Path,
    settings: &Settings,
) -> Result<impl Iterator<Item = Met> + Send + use<>, SourceError> {
    let what = |why| SourceError::format(root, why, "check source.include and source.exclude");
    let globs = Globs::of(settings).map_err(what)?;
    let (inside, pruned, globs_too) = (root.to_owned(), root.to_owned(), globs.clone());
    let found = WalkBuilder::new(root)
        .follow_links(false)
        .parents(false)
        .git_global(false)
        .require_git(false)
        .sort_by_file_name(Ord::cmp)
        .filter_entry(move |entry| wanted(entry, &pruned, &globs_too))
        .build();
    Ok(found.filter_map(move |entry| met(entry, &inside, &globs)))
}

/// Whether an entry is looked at: not what is left out by name, nor a data folder of ours.
fn wanted(entry: &DirEntry, root: &Path, globs: &Globs) -> bool {
    let Ok(relative) = entry.path().strip_prefix(root) else { return true };
    let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
    let at_root = relative.as_os_str().is_empty();
    at_root || !(globs.leaves_out(relative, is_folder) || (is_folder && is_data_folder(entry.path())))
}

/// Whether a folder is a data folder of this program, whose journals must not be taken for input.
pub fn is_data_folder(path: &Path) -> bool {
    path.join("witness").exists() && path.join("ledger.db").exists()
}

fn met(entry: Result<DirEntry, ignore::Error>, root: &Path, globs: &Globs) -> Option<Met> {
    let entry = match entry {
        Ok(entry) => entry,
        Err(error) => return Some(Met::Fault(error.to_string())),
    };
    if let Some(error) = entry.error() {
        tracing::warn!(%error, "a rule of an ignore file is not understood and does nothing");
    }
    let kind = entry.file_type()?;
    if kind.is_dir() {
        return None;
    }
    let path = entry.path().to_owned();
    let relative = path.strip_prefix(root).map(Path::to_owned).unwrap_or_default();
    Some(match globs.kind(&relative) {
        _ if !kind.is_file() => Met::Other,
        Kind::Other => Met::Other,
        Kind::Records if path.to_str().is_none() => {
            Met::Fault(format!("{}: its path is not UTF-8; rename it", path.display()))
        }
        Kind::Records => Met::Records(path),
        Kind::Text => match entry.metadata() {
            Ok(meta) => Met::Text(path, relative, meta),
            Err(error) => Met::Fault(error.to_string()),
        },
    })
}

/// What a folder holds, without its files being opened.
#[derive(Debug)]
pub struct Survey {
    /// Over the names, sizes and times of its text files; the size is that of all of them.
    pub fingerprint: Fingerprint,
    /// Its text files.
    pub texts: u64,
    /// Its files of records.
    pub records: Vec<PathBuf>,
    /// Files that are neither, and links.
    pub others: u64,
    /// What could not be looked at.
    pub faults: u64,
}

/// Looks through `root`.
///
/// # Errors
/// See [`walk`].
pub fn survey(root: &Path, settings: &Settings) -> Result<Survey, SourceError> {
    let (mut hasher, mut size) = (Sha256::new(), 0);
    let (mut texts, mut records, mut others, mut faults) = (0, Vec::new(), 0, 0);
    for met in walk(root, settings)? {
        match met {
            Met::Text(_, relative, meta) => {
                let (name, stamp) = (relative.as_os_str().as_encoded_bytes(), Stamp::of(&meta));
                hasher.update((name.len() as u64).to_le_bytes());
                hasher.update(name);
                hasher.update(stamp.size.to_le_bytes());
                hasher.update(stamp.modified_ns.to_le_bytes());
                size += stamp.size;
                texts += 1;
            }
            Met::Records(path) => records.push(path),
            Met::Other => others += 1,
            Met::Fault(_) => faults += 1,
        }
    }
    let fingerprint = Fingerprint { size, digest: Digest(hasher.finalize().into()) };
    Ok(Survey { fingerprint, texts, records, others, faults })
}

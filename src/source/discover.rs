//! From a path to the inputs that are registered: a file is one; a folder is one for its text files, and one more
//! for each file of records in it.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use super::{
    Settings, SourceError,
    file::{Fingerprint, Stamp, fingerprint},
    open, walk,
};
use crate::chunk::Digest;

/// An input, before it is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where to open it; absolute, UTF-8.
    pub path: PathBuf,
    /// Its content, in short.
    pub fingerprint: Fingerprint,
}

/// What a path leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// The inputs, in order; at least one.
    pub inputs: Vec<Found>,
    /// Files of the folder that are passed over, for their kind or because they are links.
    pub passed_over: u64,
}

/// Looks at an absolute path that a user `named`: a file that cannot be read is then an error. Of one that is only
/// taken up again, or was found in a folder, its reading will tell; and such a folder's files of records are inputs
/// already.
///
/// # Errors
/// A named file is unreadable or of a format that is not supported; a folder is a data folder; a glob is none.
pub fn discover(
    path: &Path,
    settings: &Settings,
    line_bytes: u64,
    named: bool,
) -> Result<Discovery, SourceError> {
    if path.is_dir() {
        return folder(path, settings, named);
    }
    if named {
        // Opened once before anything starts: a missing file or a wrong encoding is told at once.
        open(path, settings, line_bytes)?;
    }
    Ok(Discovery { inputs: vec![file(path)], passed_over: 0 })
}

fn folder(root: &Path, settings: &Settings, named: bool) -> Result<Discovery, SourceError> {
    if walk::is_data_folder(root) {
        let next = "name the folder of your documents";
        return Err(SourceError::format(root, "is a data folder of forebay, not an input", next));
    }
    let survey = walk::survey(root, settings)?;
    let mut inputs = Vec::new();
    if survey.texts > 0 || survey.faults > 0 || survey.records.is_empty() || !named {
        inputs.push(Found { path: root.to_owned(), fingerprint: survey.fingerprint });
    }
    if named {
        inputs.extend(survey.records.iter().map(|path| file(path)));
    }
    Ok(Discovery { inputs, passed_over: survey.others })
}

/// A file as it is now. One that cannot be read has the fingerprint of what can be known of it.
fn file(path: &Path) -> Found {
    let unreadable = |_| {
        let size = std::fs::metadata(path).map_or(0, |meta| Stamp::of(&meta).size);
        let digest = Digest::of(&[b"unreadable\0", path.as_os_str().as_bytes()].concat());
        Fingerprint { size, digest }
    };
    Found { path: path.to_owned(), fingerprint: fingerprint(path).unwrap_or_else(unreadable) }
}

/// Whether a letter about a file by itself is about a text file of this folder.
pub fn lies_in(folder: &Path, file: &str) -> bool {
    Path::new(file).starts_with(folder) && Path::new(file) != folder
}

//! The full check of an installed model: every byte hashed, against the manifest and against the entry.

use std::{fmt, fs, path::Path};

use super::{
    cache::{self, CacheError},
    entry::Entry,
    manifest::{self, InstalledFile, Manifest},
};

/// What was found of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileState {
    /// The bytes that were installed, and the entry pins them.
    Pinned,
    /// The bytes that were installed; the entry has no digest for them (they were taken with `--trust`).
    Trusted,
    /// Not there, or not readable.
    Unreadable(String),
    /// Other bytes than were installed.
    Changed,
}

/// One file and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// Path in the model's folder.
    pub path: String,
    /// Bytes, as installed.
    pub size: u64,
    /// What was found.
    pub state: FileState,
}

/// What `model verify` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// Name of the model.
    pub name: String,
    /// Every file of the manifest.
    pub files: Vec<FileReport>,
    /// Where manifest and entry differ, if they do.
    pub mismatch: Option<String>,
}

impl VerifyReport {
    /// Whether the model is what the entry says, byte for byte.
    pub fn is_sound(&self) -> bool {
        let sound = |file: &FileReport| matches!(file.state, FileState::Pinned | FileState::Trusted);
        self.mismatch.is_none() && self.files.iter().all(sound)
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for FileReport { path, size, state } in &self.files {
            match state {
                FileState::Pinned => writeln!(f, "ok       {path} ({size} bytes)")?,
                FileState::Trusted => {
                    writeln!(f, "trusted  {path} ({size} bytes): as installed, not pinned")?;
                }
                FileState::Unreadable(why) => writeln!(f, "missing  {path}: {why}")?,
                FileState::Changed => writeln!(f, "CHANGED  {path}: not the bytes that were installed")?,
            }
        }
        if let Some(why) = &self.mismatch {
            writeln!(f, "WRONG    {why}")?;
        }
        if self.is_sound() {
            return write!(f, "{} is sound", self.name);
        }
        write!(f, "{} must not be used. Type `forebay model pull {} --force`", self.name, self.name)
    }
}

/// Hashes every file of an installed model; `seen` hears bytes done and bytes in all. `None`: not installed.
///
/// # Errors
/// When its manifest cannot be read.
pub fn verify(
    dir: &Path,
    entry: &Entry,
    seen: &dyn Fn(u64, u64),
) -> Result<Option<VerifyReport>, CacheError> {
    let folder = cache::folder(dir, entry);
    if !folder.exists() {
        return Ok(None);
    }
    let manifest = cache::read_manifest(&entry.name, &folder)?;
    let (mut done, total) = (0, manifest.size());
    let mut report = |file: &InstalledFile| {
        let path = manifest::below(&folder, &file.path);
        let hashed = fs::metadata(&path).and_then(|_| {
            manifest::hash_file(&path, &mut |n| {
                done += n;
                seen(done, total);
            })
        });
        let state = match hashed {
            Err(error) => FileState::Unreadable(error.to_string()),
            Ok((found, _)) if found != file.sha256 => FileState::Changed,
            Ok(_) if is_pinned(entry, &manifest, file) => FileState::Pinned,
            Ok(_) => FileState::Trusted,
        };
        FileReport { path: file.path.clone(), size: file.size, state }
    };
    let files = manifest.files.iter().map(&mut report).collect();
    Ok(Some(VerifyReport { name: entry.name.clone(), files, mismatch: cache::mismatch(&manifest, entry) }))
}

/// Whether the entry's digest stands behind the file, directly or through what it was converted from here.
fn is_pinned(entry: &Entry, manifest: &Manifest, file: &InstalledFile) -> bool {
    let wanted = entry.files.iter().find(|wanted| wanted.installed_path() == file.path);
    wanted.is_some_and(|wanted| {
        let converted = file.converted_from.is_some();
        wanted.sha256.is_some() && wanted.convert.is_some() == converted && !(converted && manifest.trusted)
    })
}

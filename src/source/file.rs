//! What is known of an input file without reading all of it: its name and its fingerprint.

use std::{
    fs::{File, Metadata},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use sha2::{Digest as _, Sha256};

use super::SourceError;
use crate::chunk::Digest;

/// Bytes at each end of a file that its fingerprint covers.
const ENDS: u64 = 64 * 1024;

/// Tells a file that was left alone (or only touched) from one that changed, in two reads. A change in the
/// middle that keeps the size does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Bytes as stored.
    pub size: u64,
    /// SHA-256 of the first 64 KiB ‖ the last 64 KiB ‖ the size as u64 LE.
    pub digest: Digest,
}

/// Which file it is and when it was last written to: equal at the beginning and at the end of a reading, or the
/// file was changed meanwhile. Two changes within one tick of the file system's clock that keep the size look the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    inode: u64,
    /// Bytes as stored.
    pub size: u64,
    /// Last change, in nanoseconds since 1970.
    pub modified_ns: i128,
}

impl Stamp {
    /// From what the file system says.
    pub fn of(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.len(),
            modified_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
        }
    }

    /// Whether `path` is still this very file, unchanged. One that was removed cannot be read again and is not
    /// another one; one that cannot be looked at any more may be.
    pub fn still_of(&self, path: &Path) -> bool {
        match std::fs::metadata(path) {
            Ok(meta) => Self::of(&meta) == *self,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// The fingerprint of the file at `path`.
///
/// # Errors
/// Missing, unreadable, a folder.
pub fn fingerprint(path: &Path) -> Result<Fingerprint, SourceError> {
    let read = || -> io::Result<Fingerprint> {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        let mut hasher = Sha256::new();
        let mut end = Vec::new();
        for start in [0, size.saturating_sub(ENDS)] {
            end.clear();
            file.seek(SeekFrom::Start(start))?;
            file.by_ref().take(ENDS).read_to_end(&mut end)?;
            hasher.update(&end);
        }
        hasher.update(size.to_le_bytes());
        Ok(Fingerprint { size, digest: Digest(hasher.finalize().into()) })
    };
    read().map_err(|error| SourceError::io(path, error))
}

/// The name a source is registered under: its absolute path, without links and dots.
///
/// # Errors
/// Missing, or a path that is not UTF-8.
pub fn canonical_uri(path: &Path) -> Result<String, SourceError> {
    let full = std::fs::canonicalize(path).map_err(|error| SourceError::io(path, error))?;
    full.into_os_string()
        .into_string()
        .map_err(|_| SourceError::format(path, "has a path that is not UTF-8", "rename it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touched_file_keeps_its_fingerprint_and_a_grown_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        for n in [0_usize, 10, 70_000, 200_000] {
            std::fs::write(&path, vec![b'x'; n]).unwrap();
            let first = fingerprint(&path).unwrap();
            let file = File::options().append(true).open(&path).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
            assert_eq!(fingerprint(&path).unwrap(), first);
            std::fs::write(&path, vec![b'x'; n + 1]).unwrap();
            assert_ne!(fingerprint(&path).unwrap().digest, first.digest);
            let mut last = vec![b'x'; n + 1];
            last[n] = b'y';
            let grown = fingerprint(&path).unwrap();
            std::fs::write(&path, last).unwrap();
            assert_ne!(fingerprint(&path).unwrap().digest, grown.digest);
        }
    }

    #[test]
    fn a_link_and_a_dotted_path_have_one_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.jsonl");
        std::fs::write(&path, "x").unwrap();
        std::os::unix::fs::symlink(&path, dir.path().join("b")).unwrap();
        let uri = canonical_uri(&path).unwrap();
        assert!(uri.starts_with('/'));
        assert_eq!(canonical_uri(&dir.path().join("b")).unwrap(), uri);
        assert_eq!(canonical_uri(&dir.path().join(".").join("a.jsonl")).unwrap(), uri);
        let missing = canonical_uri(&dir.path().join("c")).unwrap_err().to_string();
        assert!(missing.contains("check the path"), "{missing}");
    }
}

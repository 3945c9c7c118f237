//! What is known of an input file without reading all of it: its name and its fingerprint.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
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

/// The fingerprint of the file at `path`.
///
/// # Errors
/// Missing, unreadable, a folder.
pub fn fingerprint(path: &Path) -> Result<Fingerprint, SourceError> {
    let read = || -> std::io::Result<Fingerprint> {
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

//! `manifest.toml`: what was installed in a model's folder, by whom and with which digests.

use std::{
    fs, io,
    io::Read,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::entry::Role;
use crate::chunk::Digest;

/// Its name in the folder.
pub const FILE: &str = "manifest.toml";

/// Version of its form; a newer one is refused.
pub const FORMAT: u32 = 1;

/// Bytes read at a time: large enough that hashing, not the system call, is what costs.
const BLOCK_BYTES: usize = 1 << 20;

/// What lies in a model's folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// Name of the entry.
    pub name: String,
    /// The pinned revision.
    pub revision: String,
    /// `hub`, `wheel`, `folder` or `bundle`.
    pub source: String,
    /// Where in that source, without credentials.
    pub origin: String,
    /// Whether something was taken with `--trust`, on sight.
    pub trusted: bool,
    /// When, in RFC 3339, UTC.
    pub installed_at: String,
    /// The files.
    pub files: Vec<InstalledFile>,
}

/// One installed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledFile {
    /// Path in the folder, with `/`.
    pub path: String,
    /// What it is to the loader.
    pub role: Role,
    /// SHA-256 of the file as it lies here.
    pub sha256: Digest,
    /// Bytes.
    pub size: u64,
    /// Time of the last change, in nanoseconds since 1970: equal size and time are taken for equal bytes at start.
    pub mtime_ns: i64,
    /// What it was made from, if it was converted here.
    pub converted_from: Option<Converted>,
}

/// The file that a converted one was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Converted {
    /// Path in the model's repository.
    pub path: String,
    /// Its SHA-256.
    pub sha256: Digest,
}

impl Manifest {
    /// Reads the manifest of a folder.
    ///
    /// # Errors
    /// The file's own error, or `InvalidData` with what is wrong.
    pub fn read(folder: &Path) -> io::Result<Self> {
        Self::parse(&fs::read_to_string(folder.join(FILE))?)
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// `InvalidData` with what is wrong.
    pub fn parse(text: &str) -> io::Result<Self> {
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
        let manifest: Self = toml::from_str(text).map_err(|error| invalid(error.message().to_owned()))?;
        if manifest.format > FORMAT {
            return Err(invalid(format!(
                "format {} is newer than this program knows ({FORMAT})",
                manifest.format
            )));
        }
        if let Some(bad) = manifest.files.iter().find(|file| !super::entry::stays_inside(&file.path)) {
            return Err(invalid(format!("path {:?} leads out of the folder", bad.path)));
        }
        Ok(manifest)
    }

    /// Writes it durably: temp name, fsync, rename, fsync of the folder.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let text = toml::to_string(self).map_err(io::Error::other)?;
        let temp = folder.join(format!("{FILE}.tmp"));
        fs::write(&temp, text)?;
        fs::File::open(&temp)?.sync_all()?;
        fs::rename(&temp, folder.join(FILE))?;
        fs::File::open(folder)?.sync_all()
    }

    /// The file of this role, if the manifest is whole.
    pub fn file(&self, role: Role) -> Option<&InstalledFile> {
        self.files.iter().find(|file| file.role == role)
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

/// Time of the last change, in nanoseconds since 1970.
pub(super) fn mtime_ns(meta: &fs::Metadata) -> i64 {
    use std::os::unix::fs::MetadataExt;
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}

/// SHA-256 and length of a file. `seen` hears how many bytes were read each time.
pub(super) fn hash_file(path: &Path, seen: &mut dyn FnMut(u64)) -> io::Result<(Digest, u64)> {
    hash_copy(&mut fs::File::open(path)?, &mut io::sink(), seen)
}

/// Copies and hashes in one go.
pub(super) fn hash_copy(
    from: &mut dyn Read,
    to: &mut dyn io::Write,
    seen: &mut dyn FnMut(u64),
) -> io::Result<(Digest, u64)> {
    let (mut hash, mut block) = (Hasher::default(), vec![0; BLOCK_BYTES]);
    loop {
        let n = match from.read(&mut block) {
            Ok(0) => return Ok(hash.finish()),
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hash.update(&block[..n]);
        to.write_all(&block[..n])?;
        seen(n as u64);
    }
}

/// SHA-256 and length of what passes by.
#[derive(Clone, Default)]
pub(super) struct Hasher {
    sha: Sha256,
    size: u64,
}

impl Hasher {
    pub(super) fn update(&mut self, block: &[u8]) {
        self.sha.update(block);
        self.size += block.len() as u64;
    }

    pub(super) fn finish(self) -> (Digest, u64) {
        (Digest(self.sha.finalize().into()), self.size)
    }
}

/// The file below `folder` that a path with `/` names.
pub(super) fn below(folder: &Path, path: &str) -> PathBuf {
    path.split('/').fold(folder.to_owned(), |at, part| at.join(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            name: "tiny".into(),
            revision: "0".repeat(40),
            source: "folder".into(),
            origin: "/somewhere".into(),
            trusted: true,
            installed_at: "2026-01-01T00:00:00Z".into(),
            files: vec![InstalledFile {
                path: "model.safetensors".into(),
                role: Role::Weights,
                sha256: Digest::of(b"w"),
                size: 1,
                mtime_ns: 1_790_000_000_123_456_789,
                converted_from: Some(Converted {
                    path: "pytorch_model.bin".into(),
                    sha256: Digest::of(b"b"),
                }),
            }],
        }
    }

    #[test]
    fn it_reads_back_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        manifest().write(folder.path()).unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), manifest());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_newer_format_and_a_path_that_leads_out_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        Manifest { format: 2, ..manifest() }.write(folder.path()).unwrap();
        assert!(Manifest::read(folder.path()).unwrap_err().to_string().contains("newer"));
        let mut out = manifest();
        out.files[0].path = "../../etc/passwd".into();
        out.write(folder.path()).unwrap();
        assert!(Manifest::read(folder.path()).unwrap_err().to_string().contains("leads out"));
    }

    #[test]
    fn a_file_is_hashed_in_blocks_and_each_is_heard_of() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = vec![7; BLOCK_BYTES + 3];
        fs::write(folder.path().join("f"), &bytes).unwrap();
        let mut heard = 0;
        let (digest, size) = hash_file(&folder.path().join("f"), &mut |n| heard += n).unwrap();
        assert_eq!((digest, size, heard), (Digest::of(&bytes), bytes.len() as u64, size));
    }
}

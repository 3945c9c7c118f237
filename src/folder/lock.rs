//! One process a data folder: an flock that the kernel drops with the process, and the holder's pid in the file.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
    sync::Arc,
};

use super::FolderError;

/// Holds the folder until dropped.
#[derive(Clone, Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, not read")] Arc<Held>);

#[derive(Debug)]
struct Held(File);

impl Drop for Held {
    /// Closing is not enough: a child that was forked and has not called exec yet has the descriptor, too.
    fn drop(&mut self) {
        flock(&self.0, libc::LOCK_UN);
    }
}

impl Lock {
    /// Takes the folder, or says who has it.
    ///
    /// # Errors
    /// `Held` with the holder's pid; I/O.
    pub fn take(dir: &Path) -> Result<Self, FolderError> {
        let path = dir.join("lock");
        let io = |error| FolderError::io(&path, error);
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io)?;
        if !flock(&file, libc::LOCK_EX | libc::LOCK_NB) {
            let mut pid = String::new();
            file.read_to_string(&mut pid).map_err(io)?;
            let pid = pid.trim().to_owned();
            return Err(FolderError::Held { dir: dir.display().to_string(), pid });
        }
        let work = |file: &mut File| -> std::io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            write!(file, "{}", std::process::id())
        };
        work(&mut file).map_err(io)?;
        Ok(Self(Arc::new(Held(file))))
    }
}

#[expect(
    unsafe_code,
    reason = "std has no flock that tells a held lock from an error on every platform of ours"
)]
fn flock(file: &File, what: libc::c_int) -> bool {
    // SAFETY: a plain system call on a descriptor that lives through it.
    unsafe { libc::flock(file.as_raw_fd(), what) == 0 }
}

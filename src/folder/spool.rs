//! `spool/`: input that cannot be read again (standard input), on disk before it is acknowledged and kept until all of
//! it is done.
//!
//! A file is held by an flock from its first byte until its source is registered: what nobody holds was left by a
//! process that died. Half a file (`.part`) is then removed; a whole one that no source names is taken up.

use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io::{ErrorKind, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use uuid::Uuid;

use super::free_mb;

const FOLDER: &str = "spool";
/// A spooled source is known by this and its id, wherever the data folder is moved to.
const SCHEME: &str = "stdin:";
const BLOCK_BYTES: usize = 1024 * 1024;
/// Free space is looked at once in so many blocks.
const BLOCKS_A_LOOK: u64 = 8;

/// Input could not be spooled; nothing of it is kept.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// There was none.
    #[error(
        "standard input is empty: nothing was taken up; pipe JSON lines into it, or name a file instead of -"
    )]
    Empty,
    /// It cannot be read.
    #[error("standard input could not be read: {0}; nothing was taken up")]
    Input(std::io::Error),
    /// It does not fit.
    #[error(
        "the disk of {dir} is full: of standard input {read} bytes were read, then less than limits.min_free_mb = \
         {min_free_mb} were left; nothing was taken up. Free some space, or put the input into a file and name that"
    )]
    Full {
        /// The data folder.
        dir: String,
        /// Bytes that were read.
        read: u64,
        /// The limit.
        min_free_mb: u64,
    },
    /// Writing failed.
    #[error("{path}: {error}; nothing was taken up. Check the folder's permissions and the free space")]
    Io {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
}

/// A spooled input that nothing names yet. It is removed when dropped, and stays after [`Spooled::keep`].
#[derive(Debug)]
pub struct Spooled {
    path: PathBuf,
    held: Option<File>,
}

impl Spooled {
    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its source is registered, or may be: it is the data folder's from now on.
    pub fn keep(mut self) {
        self.held = None;
    }
}

impl Drop for Spooled {
    fn drop(&mut self) {
        if self.held.is_some() {
            // What stays is removed, or taken up, by the next process that opens the folder.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What a full disk means for input that is being spooled.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Free space below which nothing is taken up.
    pub min_free_mb: u64,
    /// How long it is waited for; the input waits in its pipe.
    pub wait: Duration,
}

/// Copies `input` to its end into the spool of the data folder `dir`, which must exist. Durable on return.
///
/// # Errors
/// See [`SpoolError`]; nothing is left behind.
pub fn fill(dir: &Path, input: &mut dyn Read, room: Room) -> Result<Spooled, SpoolError> {
    let spool = dir.join(FOLDER);
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |error| SpoolError::Io { path, error }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(&spool).map_err(io(&spool))?;
    let id = Uuid::now_v7();
    let (whole, part) = (spool.join(format!("{id}.jsonl")), spool.join(format!("{id}.part")));
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&part).map_err(io(&part))?;
    file.try_lock().map_err(|error| io(&part)(error.into()))?;
    let mut spooled = Spooled { path: part, held: Some(file.try_clone().map_err(io(&whole))?) };
    let min_free_mb = room.min_free_mb;
    let full = |read| SpoolError::Full { dir: dir.display().to_string(), read, min_free_mb };
    match copy(input, &mut file, &|| free_mb(dir).is_some_and(|free| free < min_free_mb.max(1)), room.wait)? {
        Copied::Whole(0) => return Err(SpoolError::Empty),
        Copied::Whole(_) => {}
        Copied::Full(read) => return Err(full(read)),
        Copied::Failed(error) => return Err(io(&whole)(error)),
    }
    let settle = || -> std::io::Result<()> {
        file.sync_all()?;
        std::fs::rename(&spooled.path, &whole)?;
        File::open(&spool)?.sync_all()?;
        // The folder's own entry, when it was just made.
        File::open(dir)?.sync_all()
    };
    let settled = settle();
    if whole.exists() {
        spooled.path.clone_from(&whole);
    }
    match settled {
        Ok(()) => Ok(spooled),
        Err(error) if error.kind() == ErrorKind::StorageFull => Err(full(0)),
        Err(error) => Err(io(&whole)(error)),
    }
}

enum Copied {
    Whole(u64),
    Full(u64),
    Failed(std::io::Error),
}

fn copy(
    input: &mut dyn Read,
    file: &mut File,
    is_full: &dyn Fn() -> bool,
    wait: Duration,
) -> Result<Copied, SpoolError> {
    let mut block = vec![0; BLOCK_BYTES];
    let (mut read, mut blocks) = (0, 0_u64);
    loop {
        // Filled up, so that the pipe's small pieces are not taken for blocks.
        let mut filled = 0;
        while filled < block.len() {
            match input.read(&mut block[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(SpoolError::Input(error)),
            }
        }
        if filled == 0 {
            return Ok(Copied::Whole(read));
        }
        if blocks.is_multiple_of(BLOCKS_A_LOOK) && is_full() && !there_is_space(is_full, wait) {
            return Ok(Copied::Full(read + filled as u64));
        }
        blocks += 1;
        while let Err(error) = file.write_all(&block[..filled]) {
            if error.kind() != ErrorKind::StorageFull {
                return Ok(Copied::Failed(error));
            }
            // Half a block may stand there.
            if let Err(error) = file.set_len(read).and_then(|()| file.seek(SeekFrom::Start(read))) {
                return Ok(Copied::Failed(error));
            }
            if !there_is_space(is_full, wait) {
                return Ok(Copied::Full(read + filled as u64));
            }
        }
        read += filled as u64;
    }
}

/// Waits for space. False when there was none for too long.
fn there_is_space(is_full: &dyn Fn() -> bool, wait: Duration) -> bool {
    let start = Instant::now();
    if !wait.is_zero() {
        tracing::warn!(at_most_s = wait.as_secs(), "the disk is full; standard input waits for space");
    }
    while start.elapsed() < wait {
        std::thread::park_timeout(Duration::from_millis(200).min(wait));
        if !is_full() {
            return true;
        }
    }
    false
}

/// The name that a file of the spool of `dir` is registered under; `None` for any other file.
pub fn uri_of(dir: &Path, file: &Path) -> Option<String> {
    let spool = std::fs::canonicalize(dir.join(FOLDER)).ok()?;
    let id = file.file_name()?.to_str()?.strip_suffix(".jsonl")?;
    (file.parent()? == spool).then(|| format!("{SCHEME}{id}"))
}

/// Where a spooled source lies; `None` when the uri is not one of a spooled source.
pub fn path_of(dir: &Path, uri: &str) -> Option<PathBuf> {
    let id: Uuid = uri.strip_prefix(SCHEME)?.parse().ok()?;
    let file = dir.join(FOLDER).join(format!("{id}.jsonl"));
    // As it is when it was named by its path.
    Some(std::fs::canonicalize(&file).unwrap_or(file))
}

/// Whole files of the spool that no other process is about to register, oldest first.
pub(super) fn files(dir: &Path) -> Vec<PathBuf> {
    entries(dir, "jsonl").into_iter().filter(|path| is_free(path)).collect()
}

/// Removes what a process that died left half written. To be called under the folder's lock.
pub(super) fn sweep(dir: &Path) {
    for part in entries(dir, "part").into_iter().filter(|path| is_free(path)) {
        tracing::info!(file = %part.display(), "an input that was never acknowledged is removed");
        // Best effort: what stays is in nobody's way.
        let _ = std::fs::remove_file(part);
    }
}

fn entries(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let found = std::fs::read_dir(dir.join(FOLDER)).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = found
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    paths.sort();
    paths.iter().filter_map(|path| std::fs::canonicalize(path).ok()).collect()
}

fn is_free(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { min_free_mb: 0, wait: Duration::ZERO };

    fn names(dir: &Path) -> Vec<PathBuf> {
        let found = std::fs::read_dir(dir.join(FOLDER)).into_iter().flatten();
        found.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn an_input_is_there_whole_private_and_known_by_its_id() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let text = "x".repeat(BLOCK_BYTES + 7);
        let spooled = fill(dir.path(), &mut text.as_bytes(), ROOM).unwrap();
        let path = std::fs::canonicalize(spooled.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let uri = uri_of(dir.path(), &path).unwrap();
        assert!(uri.starts_with("stdin:0"), "{uri}");
        assert_eq!(path_of(dir.path(), &uri), Some(path.clone()));
        assert_eq!((uri_of(dir.path(), dir.path()), path_of(dir.path(), "stdin:../../x")), (None, None));
        assert_eq!(files(dir.path()), [] as [PathBuf; 0], "it is held until it is registered");
        spooled.keep();
        assert_eq!(files(dir.path()), [path]);
    }

    #[test]
    fn what_is_not_kept_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        drop(fill(dir.path(), &mut &b"text"[..], ROOM).unwrap());
        let empty = fill(dir.path(), &mut &b""[..], ROOM).unwrap_err().to_string();
        assert!(empty.contains("standard input is empty"), "{empty}");
        let full = fill(dir.path(), &mut &b"text"[..], Room { min_free_mb: u64::MAX, ..ROOM })
            .unwrap_err()
            .to_string();
        assert!(full.contains("limits.min_free_mb") && full.contains("nothing was taken up"), "{full}");
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("gone"))
            }
        }
        assert!(matches!(fill(dir.path(), &mut Broken, ROOM), Err(SpoolError::Input(_))));
        assert_eq!(names(dir.path()), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_sweep_takes_what_the_dead_left_and_nothing_that_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let living = fill(dir.path(), &mut &b"text"[..], ROOM).unwrap();
        let held = living.path().with_extension("part");
        std::fs::rename(living.path(), &held).unwrap();
        std::fs::write(dir.path().join(FOLDER).join("dead.part"), "half").unwrap();
        sweep(dir.path());
        assert_eq!(names(dir.path()), [held]);
    }
}

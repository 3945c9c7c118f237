//! Where a pull puts its files until all of them are right: temp folder beside the target, one rename at the end.
//!
//! Only the holder of the model's lock works here, and the system drops the lock of a process that dies. So
//! whatever a new holder finds belongs to a dead pull: it is removed, except the parts of downloads, which are
//! resumed.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::{
    cache,
    entry::Entry,
    fail::Trouble,
    manifest::{self, Manifest},
};

const LOCK: &str = ".lock";
const LOCK_TRIES: u32 = 20;
const LOCK_WAIT: Duration = Duration::from_millis(10);

/// The place of one pull. Dropping it without [`Stage::finish`] leaves nothing that looks installed.
pub(super) struct Stage {
    /// Becomes the model's folder.
    pub(super) files: PathBuf,
    /// Parts of downloads: survive a death.
    pub(super) parts: PathBuf,
    /// Anything else temporary.
    pub(super) scratch: PathBuf,
    target: PathBuf,
    old: PathBuf,
    _lock: File,
}

impl Stage {
    /// Takes the model's lock and clears what dead pulls left.
    pub(super) fn open(dir: &Path, entry: &Entry) -> Result<Self, Trouble> {
        let target = cache::folder(dir, entry);
        let home = dir.join(entry.name.to_lowercase());
        fs::create_dir_all(&home).map_err(Trouble::io("create", &home))?;
        let lock_path = home.join(LOCK);
        let lock = File::create(&lock_path).map_err(Trouble::io("create", &lock_path))?;
        take(&lock, &lock_path)?;
        let at = |what: &str| home.join(format!(".{}.{what}", entry.rev8()));
        let (files, parts, scratch, old) = (at("files"), at("parts"), at("scratch"), at("old"));
        let stage = Self { files, parts, scratch, target, old, _lock: lock };
        stage.clear(&home).map_err(Trouble::io("clean", &home))?;
        for folder in [&stage.files, &stage.parts, &stage.scratch] {
            fs::create_dir_all(folder).map_err(Trouble::io("create", folder))?;
        }
        Ok(stage)
    }

    fn clear(&self, home: &Path) -> io::Result<()> {
        for item in fs::read_dir(home)? {
            let path = item?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with('.') && name != LOCK && path != self.parts {
                tracing::debug!(path = %path.display(), "removing what a dead pull left");
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// The place of one file, its folder made.
    pub(super) fn place(&self, path: &str) -> Result<PathBuf, Trouble> {
        let place = manifest::below(&self.files, path);
        if let Some(folder) = place.parent() {
            fs::create_dir_all(folder).map_err(Trouble::io("create", folder))?;
        }
        Ok(place)
    }

    /// Makes the files durable and puts them in place, all or nothing.
    pub(super) fn finish(&self, manifest: &Manifest) -> Result<PathBuf, Trouble> {
        sync_tree(&self.files).map_err(Trouble::io("sync", &self.files))?;
        manifest.write(&self.files).map_err(Trouble::io("write the manifest in", &self.files))?;
        // Two renames: a death between them leaves no model, never half a one.
        if self.target.exists() {
            fs::rename(&self.target, &self.old).map_err(Trouble::io("move", &self.target))?;
        }
        fs::rename(&self.files, &self.target).map_err(Trouble::io("move into place", &self.target))?;
        let home = self.target.parent().unwrap_or(&self.target);
        sync_folder(home).map_err(Trouble::io("sync", home))?;
        self.clear(home).and_then(|()| remove(&self.parts)).map_err(Trouble::io("clean", home))?;
        Ok(self.target.clone())
    }
}

/// Takes the lock, with a little patience: a child that a sibling thread is just starting holds it until it execs.
fn take(lock: &File, path: &Path) -> Result<(), Trouble> {
    for tries_left in (0..LOCK_TRIES).rev() {
        match lock.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if tries_left == 0 => {
                return Err(Trouble::Busy { lock: path.to_owned() });
            }
            Err(TryLockError::WouldBlock) => thread::park_timeout(LOCK_WAIT),
            Err(TryLockError::Error(error)) => return Err(Trouble::io("lock", path)(error)),
        }
    }
    Ok(())
}

impl Drop for Stage {
    /// What did not get into place is of no use to anyone, but for the parts of downloads.
    fn drop(&mut self) {
        for path in [&self.files, &self.scratch] {
            if let Err(error) = remove(path) {
                tracing::debug!(path = %path.display(), %error, "the next pull will remove it");
            }
        }
    }
}

/// Removes a file or a folder; it need not be there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let gone = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    gone.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn sync_tree(folder: &Path) -> io::Result<()> {
    for item in fs::read_dir(folder)? {
        let path = item?.path();
        if path.is_dir() {
            sync_tree(&path)?;
        } else {
            File::open(&path)?.sync_all()?;
        }
    }
    sync_folder(folder)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

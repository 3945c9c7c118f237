//! Writing the store anew: sled never gives back the bytes of what was removed, so that a purged text would stay in
//! its files and a busy queue would only grow. At open, what is alive is copied into a new folder that takes the
//! place of the old one.
//!
//! The folder is renamed before it is read, because sled writes by name: nothing of the old store can then end up in
//! the new one.

use std::{
    fs::File,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{QueueError, Settings, durable, entry, open::open_tree};

/// Says that bytes of something purged may still lie about, and where: `b`.
pub const REMOVED: &[u8] = b"b";
/// In the store's files and in the journal.
pub const EVERYWHERE: &[u8] = b"2";
/// In the journal only.
pub const JOURNAL: &[u8] = b"1";
/// Bytes of the store's files after it was last written anew: `z`.
const SIZE: &[u8] = b"z";
/// Bytes of what was alive when it was last looked at, about: `y`.
const ALIVE: &[u8] = b"y";

/// A store below this is never written anew for its size.
const FLOOR_BYTES: u64 = 128 * 1024 * 1024;
/// Changes copied as one batch at most, in number and bytes.
const BATCH: (usize, usize) = (512, 4 * 1024 * 1024);

/// Whether most of the store is waste: it is far larger than what is alive, and has doubled since it was last written
/// anew, so that the copying costs a constant share even where that is wrong.
pub fn is_bloated(size: u64, alive: u64, after_last: u64) -> bool {
    size > FLOOR_BYTES && size / 4 > alive && size / 2 > after_last
}

/// Finishes, or takes back, what a crash cut short. To be called before anyone asks whether the store is there.
///
/// # Errors
/// I/O.
pub fn recover(dir: &Path) -> std::io::Result<()> {
    let (old, new) = (beside(dir, "old"), beside(dir, "new"));
    if old.exists() && !dir.exists() {
        std::fs::rename(&old, dir)?;
        sync_parent(dir)?;
    }
    for leftover in [old, new] {
        if leftover.exists() {
            std::fs::remove_dir_all(&leftover)?;
        }
    }
    Ok(())
}

/// Whether the open store should be written anew.
pub(super) fn is_due(db: &super::store::Store) -> Result<bool, QueueError> {
    if db.get(REMOVED)?.is_some_and(|what| what == EVERYWHERE) {
        return Ok(true);
    }
    let number = |key| -> Result<u64, QueueError> {
        let bytes = db.get(key)?.and_then(|bytes| bytes.as_ref().try_into().ok());
        Ok(bytes.map_or(0, u64::from_le_bytes))
    };
    Ok(is_bloated(db.size_on_disk()?, number(ALIVE)?, number(SIZE)?))
}

/// Copies what is alive into a new store that takes the place of the one in `dir`, which must be closed. When it
/// fails the old one is back in its place.
///
/// # Errors
/// See [`QueueError`].
pub(super) fn renew(dir: &Path, settings: &Settings) -> Result<(), QueueError> {
    let io = |error| QueueError::Io { path: dir.display().to_string(), error };
    let (old, new) = (beside(dir, "old"), beside(dir, "new"));
    released(dir).and_then(|()| std::fs::rename(dir, &old)).and_then(|()| sync_parent(dir)).map_err(io)?;
    let copied = copy(&old, &new, settings).and_then(|()| {
        let work = || {
            released(&new)?;
            std::fs::rename(&new, dir)?;
            sync_parent(dir)
        };
        work().map_err(io)
    });
    let cleaned = released(&old).and_then(|()| recover(dir)).map_err(io);
    copied.and(cleaned)
}

fn copy(from: &Path, to: &Path, settings: &Settings) -> Result<(), QueueError> {
    let (old, new) = (open_tree(from, settings)?, open_tree(to, settings)?);
    let (mut batch, mut count, mut bytes) = (sled::Batch::default(), 0, 0);
    for item in old.iter() {
        let (key, value) = item?;
        if key == REMOVED {
            batch.insert(REMOVED, JOURNAL);
            continue;
        }
        (count, bytes) = (count + 1, bytes + key.len() + value.len());
        batch.insert(key, value);
        if count >= BATCH.0 || bytes >= BATCH.1 {
            new.apply_batch(std::mem::take(&mut batch))?;
            durable::drain_epochs();
            (count, bytes) = (0, 0);
        }
    }
    new.apply_batch(batch)?;
    new.flush()?;
    new.insert(SIZE, &new.size_on_disk()?.to_le_bytes())?;
    new.flush()?;
    let io = |error| QueueError::Io { path: to.display().to_string(), error };
    // Whether sled's flush is durable is proven only at the next open.
    File::open(to.join("db")).and_then(|file| file.sync_all()).map_err(io)?;
    File::open(to).and_then(|folder| folder.sync_all()).map_err(io)
}

/// Waits until sled's threads have let go of a store whose last handle was dropped.
fn released(dir: &Path) -> std::io::Result<()> {
    let file = dir.join("db");
    let start = Instant::now();
    while file.exists() {
        match File::open(&file)?.try_lock() {
            Ok(()) => break,
            Err(_) if start.elapsed() < Duration::from_secs(5) => {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn beside(dir: &Path, ending: &str) -> PathBuf {
    let name = dir.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    dir.with_file_name(format!("{name}.{ending}"))
}

fn sync_parent(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Notes how much is alive: letters and their index; what is pending is small beside [`FLOOR_BYTES`].
pub(super) fn note_alive(state: &mut super::State) {
    let (bytes, count) = (state.letters.bytes(), state.letters.sum(|_, _| true));
    state.put(ALIVE, (bytes + 256 * count).to_le_bytes().to_vec());
}

/// Notes that something was removed whose bytes must go.
pub(super) fn note(state: &mut super::State) {
    state.put(REMOVED, EVERYWHERE.to_vec());
}

const _: () = assert!(REMOVED[0] != entry::PENDING && REMOVED[0] != entry::DEAD, "a key of its own");

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { window_chunks: 10, cache_mb: 4 };

    fn store(dir: &Path, keys: u32) {
        let db = open_tree(dir, &SETTINGS).unwrap();
        (0..keys).for_each(|n| _ = db.insert(n.to_be_bytes(), vec![7; 100]).unwrap());
        db.flush().unwrap();
    }

    fn count(dir: &Path) -> usize {
        open_tree(dir, &SETTINGS).unwrap().iter().count()
    }

    #[test]
    fn a_copy_cut_short_at_any_step_leaves_one_whole_store() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("queue");
        let (old, new) = (home.path().join("queue.old"), home.path().join("queue.new"));
        let only = |keys: usize| {
            recover(&dir).unwrap();
            assert!(!old.exists() && !new.exists());
            assert_eq!(count(&dir), keys);
            released(&dir).unwrap();
        };
        store(&dir, 600);
        released(&dir).unwrap();
        // The old one was renamed; the copy was begun.
        std::fs::rename(&dir, &old).unwrap();
        only(600);
        std::fs::rename(&dir, &old).unwrap();
        store(&new, 3);
        only(600);
        // The new one is in place, the old one not yet removed.
        store(&old, 5);
        only(600);
        renew(&dir, &SETTINGS).unwrap();
        only(601);
    }

    #[test]
    fn d02_a_store_is_written_anew_when_most_of_it_is_waste() {
        let mb = 1024 * 1024;
        assert!(!is_bloated(120 * mb, 0, 0) && is_bloated(130 * mb, 0, 0));
        assert!(!is_bloated(400 * mb, 100 * mb, 0) && is_bloated(405 * mb, 100 * mb, 0));
        assert!(!is_bloated(405 * mb, 100 * mb, 300 * mb), "what was copied just now is not waste");
    }
}

//! The open tree. sled panics on much of what is damaged, and may never come back from closing after that: here a panic
//! is an error, an error leaves a mark so that the next open makes the queue anew, and closing has an end.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

/// A file in the store's folder that says why it is not to be trusted.
const MARK: &str = "damaged";
/// Closing writes what is dirty and syncs; after this it is taken for hung.
const CLOSE: Duration = Duration::from_secs(20);

static STUCK: AtomicBool = AtomicBool::new(false);

/// Whether a store of this process could not be closed: it must not be opened again here.
pub fn is_stuck() -> bool {
    STUCK.load(Relaxed)
}

/// Why an earlier process would not trust the store in `dir`.
pub(super) fn marked(dir: &Path) -> Option<String> {
    let path = dir.join(MARK);
    path.exists().then(|| std::fs::read_to_string(path).unwrap_or_default())
}

/// See the module.
#[derive(Debug)]
pub(super) struct Store {
    /// `None` only while it is dropped.
    db: Option<sled::Db>,
    dir: PathBuf,
}

/// Items of the tree in key order.
pub(super) struct Iter<'a> {
    items: sled::Iter,
    store: &'a Store,
}

impl Store {
    pub(super) fn new(db: sled::Db, dir: &Path) -> Self {
        Self { db: Some(db), dir: dir.to_owned() }
    }

    fn caught<T>(&self, work: impl FnOnce(&sled::Db) -> sled::Result<T>) -> sled::Result<T> {
        let db = self.db.as_ref().expect("there until it is dropped");
        self.marking(|| work(db))
    }

    fn marking<T>(&self, work: impl FnOnce() -> sled::Result<T>) -> sled::Result<T> {
        let gave_up = |_| Err(sled::Error::ReportableBug("its store gave up (sled panicked)".into()));
        let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(gave_up);
        match &result {
            Err(sled::Error::Io(error)) if error.kind() == std::io::ErrorKind::StorageFull => {}
            Err(error) => self.mark(&error.to_string()),
            Ok(_) => {}
        }
        result
    }

    /// Best effort: where not even this can be written, the next process meets the damage itself.
    fn mark(&self, why: &str) {
        let path = self.dir.join(MARK);
        if !path.exists() && std::fs::write(&path, why).is_ok() {
            tracing::error!(why, "the queue's store is not to be trusted; it is made anew by the next start");
        }
    }

    pub(super) fn get(&self, key: impl AsRef<[u8]>) -> sled::Result<Option<sled::IVec>> {
        self.caught(|db| db.get(key))
    }

    pub(super) fn insert(&self, key: &[u8], value: impl Into<sled::IVec>) -> sled::Result<()> {
        self.caught(|db| db.insert(key, value).map(drop))
    }

    pub(super) fn apply_batch(&self, batch: sled::Batch) -> sled::Result<()> {
        self.caught(|db| db.apply_batch(batch))
    }

    pub(super) fn flush(&self) -> sled::Result<()> {
        self.caught(|db| db.flush().map(drop))
    }

    pub(super) fn size_on_disk(&self) -> sled::Result<u64> {
        self.caught(sled::Db::size_on_disk)
    }

    pub(super) fn scan_prefix(&self, prefix: impl AsRef<[u8]>) -> Iter<'_> {
        let db = self.db.as_ref().expect("there until it is dropped");
        Iter { items: db.scan_prefix(prefix), store: self }
    }

    pub(super) fn range<K: AsRef<[u8]>>(&self, range: impl std::ops::RangeBounds<K>) -> Iter<'_> {
        let db = self.db.as_ref().expect("there until it is dropped");
        Iter { items: db.range(range), store: self }
    }
}

impl Iterator for Iter<'_> {
    type Item = sled::Result<(sled::IVec, sled::IVec)>;

    fn next(&mut self) -> Option<Self::Item> {
        let items = &mut self.items;
        self.store.marking(|| items.next().transpose()).transpose()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let Some(db) = self.db.take() else { return };
        let (tell, told) = mpsc::sync_channel(1);
        let close = move || {
            let closed = catch_unwind(AssertUnwindSafe(|| drop(db)));
            // Nobody listens when it took too long.
            let _ = tell.send(closed.is_ok());
        };
        let closing = std::thread::Builder::new().name("forebay-close".into()).spawn(close);
        if closing.is_ok() && told.recv_timeout(CLOSE).is_err() {
            STUCK.store(true, Relaxed);
            tracing::error!(
                seconds = CLOSE.as_secs(),
                "the queue's store does not close; it is left as a crash would leave it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_panics_is_an_error_that_leaves_a_mark() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(sled::open(dir.path()).unwrap(), dir.path());
        store.insert(b"a", b"1").unwrap();
        assert_eq!((store.get(b"a").unwrap().unwrap().as_ref(), marked(dir.path())), (&b"1"[..], None));
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert!(store.marking(|| Err::<(), _>(sled::Error::Io(full))).is_err());
        assert_eq!(marked(dir.path()), None, "a full disk is no damage");
        assert!(store.marking(|| -> sled::Result<()> { panic!("as sled does") }).is_err());
        assert!(marked(dir.path()).unwrap().contains("gave up"));
    }
}

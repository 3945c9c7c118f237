//! Opening: is this the tree it should be, what died with the last process, what does the journal know better.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU32, AtomicU64},
    },
    time::{Duration, Instant},
};

use super::{
    Queue, QueueError, Settings, Shared, State, dlq, durable,
    entry::{self, Mark, Meta, Pending, Record},
    journal::Journal,
    now_ms,
    quarantine::MAX_REDRIVES,
    redriven::Redriven,
    renew, slot_of,
    store::{self, Store},
    window::{CRASH_AFTER, Place, SUSPECT_AFTER, Window},
};
use crate::chunk::Chunk;

/// What the witness says the tree must be.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// Store id.
    pub store: u128,
    /// Generation of the last open; a tree behind it was rolled back.
    pub generation: u64,
    /// Boot id of the machine.
    pub boot: u128,
    /// The tree is to be made; it must be empty.
    pub fresh: bool,
    /// Longest wait of a retry: bounds what a clock that jumped can do.
    pub retry_cap_ms: u64,
}

/// What was found.
#[derive(Debug, Default)]
pub struct OpenReport {
    /// The new generation, for the witness.
    pub generation: u64,
    /// Pending chunks.
    pub pending: usize,
    /// Chunks that were being worked on when the last process died.
    pub unclean: usize,
    /// Chunks that were alone at too many unclean ends: to be buried as `suspected_crash`.
    pub suspected: Vec<(super::Lease, Chunk)>,
    /// Changes of dead letters that only the journal knew.
    pub from_journal: usize,
}

impl Queue {
    /// Opens or makes the tree in `dir`. May panic on a damaged tree, as sled does: the caller catches it and
    /// treats it as damage.
    ///
    /// # Errors
    /// `Damaged` when it is not the tree of this store or is behind the witness; see [`QueueError`].
    pub fn open(
        dir: &Path,
        settings: &Settings,
        expect: Expect,
        journal: Journal,
    ) -> Result<(Self, OpenReport), QueueError> {
        if let Some(why) = store::marked(dir) {
            return Err(QueueError::Damaged(why));
        }
        let mut db = Store::new(open_tree(dir, settings)?, dir);
        let generation = check(&db, expect)?;
        if renew::is_due(&db)? {
            drop(db);
            if let Err(error) = renew::renew(dir, settings) {
                tracing::warn!(%error, "the queue's store could not be written anew; it is tried at the next open");
            }
            db = Store::new(open_tree(dir, settings)?, dir);
        }
        let meta = Meta { store: expect.store, generation }.encode();
        let write = || {
            db.insert(entry::META, &*meta)?;
            db.flush()
        };
        let sync = durable::Sync::prove(dir, write).map_err(|error| match error.kind() {
            std::io::ErrorKind::StorageFull => QueueError::DiskFull,
            _ => QueueError::NotDurable(error),
        })?;
        let mut report = OpenReport { generation, ..OpenReport::default() };
        let marks = read_marks(&db)?;
        let mut state = State {
            window: Window::default(),
            marks: HashMap::new(),
            seq_next: 1,
            batch: sled::Batch::default(),
            batched: 0,
            journal,
            letters: dlq::Counts::default(),
            redriven: Redriven::default(),
            orphans: Vec::new(),
        };
        let crashed = read_pending(&db, &mut state, &marks, expect, &mut report)?;
        let shared = Arc::new(Shared {
            db,
            sync,
            boot: expect.boot,
            state: Mutex::new(state),
            room: Condvar::new(),
            changed: tokio::sync::watch::Sender::new(0),
            made_way: AtomicU64::new(0),
            max_redrives: AtomicU32::new(MAX_REDRIVES),
        });
        let queue = Self { shared };
        report.from_journal = queue.catch_up_letters()?;
        report.suspected = queue.take(&crashed)?;
        report.pending = queue.depth().pending;
        Ok((queue, report))
    }

    /// Leases these without a mark, to be buried at once.
    fn take(&self, seqs: &[u64]) -> Result<Vec<(super::Lease, Chunk)>, QueueError> {
        self.flush()?;
        let taken = self.read(seqs)?;
        self.shared.state().window.lease(seqs, 0);
        Ok(taken)
    }
}

/// sled's flusher may hold the lock a moment after its owner is gone: wait for that, and for nothing else.
pub(super) fn open_tree(dir: &Path, settings: &Settings) -> Result<sled::Db, QueueError> {
    let config = sled::Config::new().path(dir).cache_capacity(settings.cache_mb.max(1) * 1024 * 1024);
    let start = Instant::now();
    loop {
        match config.open() {
            Ok(db) => return Ok(db),
            Err(sled::Error::Io(error)) if locked(&error) && start.elapsed() < Duration::from_secs(5) => {
                std::thread::park_timeout(Duration::from_millis(50));
            }
            // Not damage: some process, perhaps this one, still holds it.
            Err(sled::Error::Io(error)) if locked(&error) => {
                return Err(QueueError::Io { path: dir.display().to_string(), error });
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn locked(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock || error.to_string().contains("could not acquire lock")
}

/// The new generation, when the tree is the one it should be.
fn check(db: &Store, expect: Expect) -> Result<u64, QueueError> {
    let damaged = |why: &str| Err(QueueError::Damaged(why.to_owned()));
    let Some(bytes) = db.get(entry::META)? else {
        return if expect.fresh { Ok(expect.generation + 1) } else { damaged("the store came back empty") };
    };
    let Some(meta) = Meta::decode(&bytes) else {
        return damaged("its form is not known to this version");
    };
    if expect.fresh || meta.store != expect.store {
        return damaged("it belongs to another data folder");
    }
    if meta.generation < expect.generation {
        return damaged("it is older than the data folder says: it was rolled back");
    }
    Ok(meta.generation + 1)
}

fn read_marks(db: &Store) -> Result<Vec<(u64, Mark)>, QueueError> {
    let mut marks = Vec::new();
    for item in db.scan_prefix([entry::MARK]) {
        let (key, value) = item?;
        match (entry::number_of(&key), Mark::decode(&value)) {
            (Some(number), Some(mark)) => marks.push((number, mark)),
            _ => return Err(QueueError::Damaged("a started mark is unreadable".into())),
        }
    }
    Ok(marks)
}

/// Fills the window, charges unclean ends, clears the marks. Gives the chunks to be buried as crash suspects.
fn read_pending(
    db: &Store,
    state: &mut State,
    marks: &[(u64, Mark)],
    expect: Expect,
    report: &mut OpenReport,
) -> Result<Vec<u64>, QueueError> {
    // A changed boot id is a power cut or a reboot: nobody's fault.
    let same_boot = marks.iter().filter(|(_, mark)| mark.boot == expect.boot);
    let mut started: HashMap<u64, bool> = HashMap::new();
    for (_, mark) in same_boot {
        let alone = mark.seqs.len() == 1;
        mark.seqs.iter().for_each(|seq| _ = started.insert(*seq, alone));
    }
    let (now, wall, mut crashed) = (Instant::now(), now_ms(), Vec::new());
    for item in db.scan_prefix([entry::PENDING]) {
        let (key, value) = item?;
        let (Some(seq), Some(mut pending)) = (entry::number_of(&key), Pending::decode(&value)) else {
            return Err(QueueError::Damaged("a pending chunk is unreadable".into()));
        };
        if let Some(alone) = started.get(&seq) {
            report.unclean += 1;
            charge(&mut pending.record, *alone);
            state.put(&key, pending.encode());
        }
        let wait = pending.record.not_before_ms.saturating_sub(wall).min(expect.retry_cap_ms);
        let place = if wait == 0 { Place::Ready } else { Place::Delayed(now + Duration::from_millis(wait)) };
        let slot = slot_of(&pending, place, value.len());
        // It was being worked on when a newer one came. Both would be written, the older one perhaps later.
        if let Some(older) = state.window.by_key(slot.key).map(|(older, _)| older) {
            state.remove(older);
            crashed.retain(|seq| *seq != older);
        }
        state.window.insert(seq, slot);
        state.redriven.insert(seq, pending.record.redriven_from);
        state.seq_next = state.seq_next.max(seq + 1);
        if pending.record.unclean_alone >= CRASH_AFTER {
            crashed.push(seq);
        }
    }
    for (number, _) in marks {
        state.take(&entry::numbered(entry::MARK, *number));
        state.seq_next = state.seq_next.max(number + 1);
    }
    Ok(crashed)
}

/// One unclean end. "Alone" counts only for a chunk that was leased alone because it is suspected: a batch of
/// one by chance is company enough.
fn charge(record: &mut Record, alone: bool) {
    if alone && record.unclean >= SUSPECT_AFTER {
        record.unclean_alone = record.unclean_alone.saturating_add(1);
    }
    record.unclean = record.unclean.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_unclean_ends_the_last_three_alone_make_a_crash() {
        let mut record = Record::default();
        for alone in [false, true] {
            charge(&mut record, alone);
        }
        assert_eq!((record.unclean, record.unclean_alone), (2, 0));
        for _ in 0..CRASH_AFTER {
            charge(&mut record, true);
        }
        assert_eq!(record.unclean_alone, CRASH_AFTER);
    }

    #[test]
    fn a_tree_that_comes_back_empty_or_is_another_stores_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let db = Store::new(sled::open(dir.path()).unwrap(), dir.path());
        let expect = Expect { store: 1, generation: 3, boot: 0, fresh: false, retry_cap_ms: 0 };
        assert!(check(&db, expect).unwrap_err().to_string().contains("came back empty"));
        assert_eq!(check(&db, Expect { fresh: true, ..expect }).unwrap(), 4);
        db.insert(entry::META, Meta { store: 2, generation: 3 }.encode()).unwrap();
        assert!(check(&db, expect).unwrap_err().to_string().contains("another data folder"));
    }
}

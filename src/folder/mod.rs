//! The data folder: who may use it, in which order its parts open, and what is rebuilt when one was lost.
//!
//! Order: lock, witness, ledger, journal, queue. The queue catches up from the journal; a queue that is gone
//! or damaged is moved aside and made anew from the journal (dead letters) and the sources (pending work).

pub mod budgets;
mod files;
mod lock;
mod private;
mod retire;
pub mod spool;
pub mod witness;

use std::{
    os::unix::fs::PermissionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

pub use lock::Lock;
use witness::Witness;

use crate::{
    chunk::Chunk,
    identity::Identity,
    ledger::{Ledger, LedgerError},
    queue::{self, Expect, OpenReport, Queue, QueueError, journal::Journal},
};

/// `data.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The data folder: queue, ledger, dead letters, run reports and the default sink.
    pub dir: PathBuf,
}

/// What can go wrong with the data folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has it.
    #[error(
        "{dir} is in use by process {pid}; `forebay status` and `forebay dlq` work beside it, a second run does not"
    )]
    Held {
        /// The folder.
        dir: String,
        /// Holder.
        pid: String,
    },
    /// There is no space for even the smallest write, and opening the queue would tear it.
    #[error("the disk of {dir} is full; free some space and run again")]
    Full {
        /// The folder.
        dir: String,
    },
    /// A file of it cannot be used.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// The file.
        path: String,
        /// What.
        what: String,
    },
    /// Made by a newer version.
    #[error("{path} has format {found}, this version knows {known}; use the newer forebay")]
    Newer {
        /// The file.
        path: String,
        /// Its format.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// Reading or writing failed.
    #[error("{path}: {error}; check the path, its permissions and the free space")]
    Io {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The queue, in a way that a rebuild does not mend.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl FolderError {
    /// Whether there was no space left.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Queue(error) => error.is_full(),
            Self::Ledger(error) => matches!(error, LedgerError::DiskFull { .. }),
            Self::Io { error, .. } => error.kind() == std::io::ErrorKind::StorageFull,
            Self::Full { .. } => true,
            Self::Held { .. } | Self::Damaged { .. } | Self::Newer { .. } => false,
        }
    }

    fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.display().to_string(), error }
    }
}

/// What opening found and mended, in words for the user.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Why the queue was made anew; `None` when it was not.
    pub queue_rebuilt: Option<String>,
    /// Dead letters that came back from the journal.
    pub letters: usize,
    /// Sources that must be read again.
    pub sources: usize,
    /// Chunks that were in flight when the last process died.
    pub unclean: usize,
}

/// An open data folder.
#[derive(Debug)]
pub struct Folder {
    /// Its path.
    pub dir: PathBuf,
    /// Identifies it; stored with every vector it writes.
    pub store: String,
    /// Work and dead letters.
    pub queue: Queue,
    /// What is written.
    pub ledger: Ledger,
    /// What opening found.
    pub recovered: Recovered,
    suspected: Mutex<Vec<(queue::Lease, Chunk)>>,
    lock: Lock,
}

impl Folder {
    /// Opens or makes the folder.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open(dir: &Path, settings: &queue::Settings, retry_cap_ms: u64) -> Result<Self, FolderError> {
        Self::open_as(dir, settings, retry_cap_ms, false, None)
    }

    /// As [`Folder::open`], of a folder that this process closed and kept the lock of.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open_again(
        dir: &Path,
        settings: &queue::Settings,
        retry_cap_ms: u64,
        lock: Lock,
    ) -> Result<Self, FolderError> {
        Self::open_as(dir, settings, retry_cap_ms, false, Some(lock))
    }

    /// A second handle of the lock: while it lives nobody else opens the folder.
    pub fn lock(&self) -> Lock {
        self.lock.clone()
    }

    /// As [`Folder::open`], but a ledger that is gone is made empty: to be filled again from the sink.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open_without_ledger(
        dir: &Path,
        settings: &queue::Settings,
        retry_cap_ms: u64,
    ) -> Result<Self, FolderError> {
        Self::open_as(dir, settings, retry_cap_ms, true, None)
    }

    fn open_as(
        dir: &Path,
        settings: &queue::Settings,
        retry_cap_ms: u64,
        new_ledger: bool,
        held: Option<Lock>,
    ) -> Result<Self, FolderError> {
        private::make(dir)?;
        files::check(dir)?;
        let lock = held.map_or_else(|| Lock::take(dir), Ok)?;
        if free_mb(dir) == Some(0) {
            return Err(FolderError::Full { dir: dir.display().to_string() });
        }
        spool::sweep(dir);
        let ledger_path = dir.join("ledger.db");
        let witness = Witness::read(dir)?;
        let lived = ["queue", "ledger.db", "dead-letters.jsonl"].iter().any(|name| dir.join(name).exists());
        let had_witness = witness.is_some();
        let mut witness = witness.unwrap_or_else(Witness::of_new_folder);
        // A queue is only ever made after the ledger: with the witness gone too, it still tells that there was one.
        let had_ledger = witness.generation > 0 || dir.join("queue").exists();
        if !new_ledger && had_ledger && !ledger_path.exists() {
            let path = ledger_path.display().to_string();
            return Err(FolderError::Damaged {
                path,
                what: "it is gone, and this folder had one; `forebay rebuild` makes it again from the sink"
                    .into(),
            });
        }
        let ledger = Ledger::open(&ledger_path)?;
        restrict(&ledger_path);
        // The ledger knows the id too: a lost witness must not turn our own vectors into those of another store.
        let noted = ledger.noted()?;
        if had_witness {
            files::belong(dir, &witness, &noted, new_ledger)?;
        } else {
            witness.store = noted.store.and_then(|store| store.parse().ok()).unwrap_or(witness.store);
            witness.write(dir)?;
        }
        // Before the witness counts this open: the ledger is never behind it, unless it was rolled back.
        let opens = noted.generation.unwrap_or(0).max(witness.generation) + 1;
        ledger.note(&witness.store.to_string(), opens)?;
        let expect = Expect {
            store: witness.store.as_u128(),
            generation: witness.generation,
            boot: boot_id(),
            fresh: witness.generation == 0 && !lived,
            retry_cap_ms,
        };
        let mut recovered = Recovered::default();
        let (queue, report) = open_queue(dir, settings, expect, &ledger, &mut recovered)?;
        witness.generation = report.generation;
        witness.write(dir)?;
        recovered.unclean = report.unclean;
        let resolved = ledger.resolved()?;
        queue.resolve(&resolved)?;
        ledger.resolved_known(&resolved.iter().map(|(id, _)| *id).collect::<Vec<_>>())?;
        queue.reopen_lost_redrives()?;
        Ok(Self {
            dir: dir.to_owned(),
            store: witness.store.to_string(),
            queue,
            ledger,
            recovered,
            suspected: Mutex::new(report.suspected),
            lock,
        })
    }

    /// Chunks to be buried as crash suspects, once.
    pub fn take_suspects(&self) -> Vec<(queue::Lease, Chunk)> {
        std::mem::take(&mut *self.suspected.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Settles what the ledger holds under this identity although the queue still has it: a crash came between
    /// the two. Gives the number of chunks that need not be embedded again.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn catch_up(&self, identity: &Identity) -> Result<usize, FolderError> {
        let (stored, mut failed) = (identity.stored(), None);
        let count = self.queue.catch_up(&mut |chunk| match self.ledger.held(&chunk.key) {
            Ok(held) => held.is_some_and(|held| held.identity == stored && held.chunk_id == chunk.id()),
            Err(error) => {
                failed = Some(error);
                false
            }
        })?;
        failed.map_or(Ok(count), |error| Err(error.into()))
    }
}

/// Opens the queue; one that is gone, damaged, rolled back or makes sled panic is moved aside and made anew.
fn open_queue(
    dir: &Path,
    settings: &queue::Settings,
    expect: Expect,
    ledger: &Ledger,
    recovered: &mut Recovered,
) -> Result<(Queue, OpenReport), FolderError> {
    let path = dir.join("queue");
    let journal = || Journal::open(&dir.join("dead-letters.jsonl"));
    let open = |expect| {
        let journal = journal()?;
        catch_unwind(AssertUnwindSafe(|| Queue::open(&path, settings, expect, journal)))
            .unwrap_or_else(|_| Err(QueueError::Damaged("its store cannot be read (sled panicked)".into())))
    };
    queue::renew::recover(&path).map_err(|error| FolderError::io(&path, error))?;
    let gone = !expect.fresh && !path.exists();
    let why = match if gone { Err(QueueError::Damaged("it is gone".into())) } else { open(expect) } {
        Err(QueueError::Damaged(why)) => why,
        other => return Ok(other?),
    };
    if path.exists() {
        let aside = dir.join(format!("queue.damaged-{}", queue::now_ms()));
        std::fs::rename(&path, &aside).map_err(|error| FolderError::io(&path, error))?;
        tracing::warn!(aside = %aside.display(), "the damaged queue was moved aside");
    }
    recovered.sources = ledger.read_all_again()?;
    let (queue, report) = open(Expect { fresh: true, ..expect }).inspect_err(|_| {
        // It holds nothing yet, and left behind it would hide from the next run that the queue was lost.
        let _ = std::fs::remove_dir_all(&path);
    })?;
    recovered.letters = usize::try_from(queue.letter_counts().sum(|_, _| true)).unwrap_or(usize::MAX);
    recovered.queue_rebuilt = Some(why);
    Ok((queue, report))
}

fn restrict(path: &Path) {
    // Best effort: on a file system without modes the folder's own mode has to do.
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600));
}

/// Free space of the folder's file system in MiB; `None` when it cannot be told.
pub fn free_mb(dir: &Path) -> Option<u64> {
    #[cfg(feature = "testkit")]
    if dir.with_extension("full").exists() {
        return Some(0);
    }
    let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes()).ok()?;
    let mut stats = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    #[expect(unsafe_code, reason = "std has no call for free space")]
    // SAFETY: the path is a C string and the buffer is of the call's own type; it is read only on success.
    let stats = unsafe {
        if libc::statvfs(path.as_ptr(), stats.as_mut_ptr()) != 0 {
            return None;
        }
        stats.assume_init()
    };
    Some(stats.f_bavail.saturating_mul(stats.f_frsize) / (1024 * 1024))
}

/// The machine's boot id; 0 where there is none, which then counts every unclean end.
fn boot_id() -> u128 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().parse::<uuid::Uuid>().map_or(0, |id| id.as_u128())
}

#[cfg(test)]
mod tests;

//! One file through hf-hub's client, on a thread of its own, with its faults kept in.
//!
//! hf-hub 0.5.0 takes file names from the server's headers, resumes from a wrong place after some errors, takes a
//! short body for a whole one, and cannot be told to stop; each is met here.

use std::{
    fs, io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    sync::mpsc::SyncSender,
};

use hf_hub::{
    Cache, Repo,
    api::sync::{Api, ApiError, ApiRepo},
};

use super::{
    fail::{Trouble, scrub},
    stage,
};

/// Written into a file's cache when its download was resumed, so that wrong bytes are tried once more, whole.
const RESUMED: &str = "resumed";

/// What the thread tells.
pub(super) enum Event {
    /// So many bytes of the file are here.
    At(u64),
    /// It is over.
    End(Result<Fetched, Trouble>),
}

/// A file that is here, unchecked.
pub(super) struct Fetched {
    pub(super) blob: PathBuf,
    /// The commit that the server says it is of.
    pub(super) commit: String,
}

/// What to fetch, and how.
pub(super) struct Order {
    pub(super) client: Api,
    pub(super) api: ApiRepo,
    pub(super) repo: Repo,
    /// Folder of this one file.
    pub(super) cache: PathBuf,
    pub(super) file: String,
    /// The pinned size.
    pub(super) size: Option<u64>,
    /// Where it is; may hold credentials.
    pub(super) address: String,
    /// The same, for messages.
    pub(super) url: String,
    pub(super) token_sent: bool,
    pub(super) events: SyncSender<Event>,
}

/// Whether the last download into this cache was resumed.
pub(super) fn resumed(cache: &Path) -> bool {
    cache.join(RESUMED).exists()
}

/// Fetches and tells.
pub(super) fn run(order: Order) {
    let end = catch_unwind(AssertUnwindSafe(|| fetch(&order))).unwrap_or_else(|why| {
        let url = order.url.clone();
        Err(match why.downcast::<TooLong>() {
            Ok(long) => {
                Trouble::WrongSize { file: order.file.clone(), origin: url, got: long.got, want: long.size }
            }
            Err(_) => Trouble::NotAHub { url, why: "its answer cannot be read".into() },
        })
    });
    // Nobody listens any more when the caller gave up waiting.
    let _ = order.events.send(Event::End(end));
}

fn fetch(order: &Order) -> Result<Fetched, Trouble> {
    let meta = order.client.metadata(&order.address).map_err(|error| trouble(order, error))?;
    let (etag, commit, size) = (meta.etag(), meta.commit_hash(), meta.size() as u64);
    if !is_plain(etag) || !is_plain(commit) {
        let why = "it names the file with a path that leads elsewhere".to_owned();
        return Err(Trouble::NotAHub { url: order.url.clone(), why });
    }
    if let Some(want) = order.size.filter(|want| *want != size) {
        let (file, origin) = (order.file.clone(), order.url.clone());
        return Err(Trouble::WrongSize { file, origin, got: size, want });
    }
    let blob = Cache::new(order.cache.clone()).repo(order.repo.clone()).blob_path(etag);
    let part = blob.with_extension("part");
    let local = |error| Trouble::io("prepare", &part)(error);
    if !prepare(&blob, &part, size, &order.cache).map_err(local)? {
        let tap = Tap { events: order.events.clone(), got: 0, size };
        order.api.download_with_progress(&order.file, tap).map_err(|error| trouble(order, error))?;
        let got = fs::metadata(&blob).map(|meta| meta.len()).map_err(Trouble::io("read", &blob))?;
        if got < size {
            // A body without a length that ended early: the client took it for whole.
            fs::rename(&blob, &part).map_err(Trouble::io("move", &blob))?;
            return Err(Trouble::Cut { url: order.url.clone(), got, size });
        }
    }
    Ok(Fetched { blob, commit: commit.to_owned() })
}

/// Makes what an earlier try left fit to be resumed. True: it is all here already.
fn prepare(blob: &Path, part: &Path, size: u64, cache: &Path) -> io::Result<bool> {
    let length = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
    if length(part) == size && size > 0 {
        // The whole part would be asked for from behind its end, which no server grants.
        fs::rename(part, blob)?;
    }
    let (whole, begun) = (length(blob) == size && size > 0, length(part));
    if !whole {
        stage::remove(blob)?;
    }
    if begun > size {
        stage::remove(part)?;
    } else if whole || begun > 0 {
        fs::write(cache.join(RESUMED), "")?;
    }
    Ok(whole)
}

/// Plain enough for a part of a path: the client joins it to one.
fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    (1..=200).contains(&name.len()) && name.chars().all(plain) && super::entry::stays_inside(name)
}

/// Hears of every byte, and stops the client when there are too many or nobody waits.
struct Tap {
    events: SyncSender<Event>,
    got: u64,
    size: u64,
}

impl hf_hub::api::Progress for Tap {
    fn init(&mut self, _size: usize, _filename: &str) {
        self.got = 0;
    }

    fn update(&mut self, size: usize) {
        self.got += size as u64;
        // Unwinding (which prints nothing, unlike a panic) is the one way to stop the client.
        if self.got > self.size || self.events.send(Event::At(self.got)).is_err() {
            resume_unwind(Box::new(TooLong { got: self.got, size: self.size }));
        }
    }

    fn finish(&mut self) {}
}

/// Why the client was stopped.
struct TooLong {
    got: u64,
    size: u64,
}

/// The client's error in our words.
fn trouble(order: &Order, error: ApiError) -> Trouble {
    let url = order.url.clone();
    match error {
        ApiError::RequestError(error) => {
            let text = scrub(&error.to_string());
            match text.strip_prefix("http status: ").and_then(|status| status.parse().ok()) {
                Some(status) => Trouble::Status { url, status, token_sent: order.token_sent },
                None => Trouble::Unreachable { url, why: text },
            }
        }
        ApiError::IoError(error) => match error.kind() {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem => Trouble::io("fill", &order.cache)(error),
            _ => Trouble::Unreachable { url, why: scrub(&error.to_string()) },
        },
        ApiError::TooManyRetries(error) => trouble(order, *error),
        ApiError::LockAcquisition(lock) => Trouble::Busy { lock },
        other => Trouble::NotAHub { url, why: scrub(&other.to_string()) },
    }
}

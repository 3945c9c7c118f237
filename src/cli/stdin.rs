//! `-`: standard input, on disk in the spool before anything is made of it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::setup;
use crate::{
    config::Config,
    folder::spool::{self, Room, Spooled},
    pipeline::{
        Line,
        register::{Registered, register, register_all, uri_of},
    },
    source,
};

/// Whether this path stands for standard input.
pub(super) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What was mistyped is told before a model is loaded or a folder made.
pub(super) fn check_paths(paths: &[PathBuf]) -> Result<(), String> {
    let check = |path: &PathBuf| {
        // A name that looks odd and is there is a file all the same.
        if !path.exists() {
            setup::is_local("this verb", path)?;
        }
        source::canonical_uri(path).map(drop).map_err(|error| error.to_string())
    };
    paths.iter().filter(|path| !is_stdin(path)).try_for_each(check)
}

/// Reads standard input to its end into the spool of the data folder, which must exist.
pub(super) fn fill(config: &Config) -> Result<Spooled, String> {
    if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        eprintln!("reading standard input; end it with Ctrl-D");
    }
    let limits = &config.limits;
    let room = Room { min_free_mb: limits.min_free_mb, wait: Duration::from_secs(limits.disk_full_wait_s) };
    spool::fill(&config.data.dir, &mut std::io::stdin().lock(), room).map_err(|error| error.to_string())
}

/// `paths` with the spooled file in the place of `-`.
pub(super) fn in_place(paths: &[PathBuf], spooled: &Spooled) -> Vec<PathBuf> {
    let name = |path: &PathBuf| if is_stdin(path) { spooled.path().to_owned() } else { path.clone() };
    paths.iter().map(name).collect()
}

/// Registers `paths`, standard input included, and with `all` what was left before. Nothing is registered when the
/// line is stopped while standard input is read.
pub(super) async fn register_paths(
    line: &Arc<Line>,
    config: &Config,
    paths: &[PathBuf],
    spooled: Option<Spooled>,
    all: bool,
) -> Result<Registered, String> {
    let spooled = match spooled {
        None if paths.iter().any(|path| is_stdin(path)) => tokio::select! {
            biased;
            () = line.drained() => return Ok(Registered::default()),
            spooled = fill_on_thread(config) => Some(spooled?),
        },
        spooled => spooled,
    };
    let named = spooled.as_ref().map_or_else(|| paths.to_vec(), |spooled| in_place(paths, spooled));
    let registered = if all { register_all(line, &named) } else { register(line, &named) };
    if let Some(spooled) = spooled {
        // Another path may have been refused after this one was registered.
        let uri = uri_of(&line.folder.dir, spooled.path()).map_err(|error| error.to_string())?;
        if !matches!(line.folder.ledger.source(&uri), Ok(None)) {
            spooled.keep();
        }
    }
    registered.map_err(|error| error.to_string())
}

/// On a thread that nobody waits for when the line is stopped: a read from a pipe cannot be woken.
async fn fill_on_thread(config: &Config) -> Result<Spooled, String> {
    let (tell, told) = tokio::sync::oneshot::channel();
    let config = config.clone();
    let work = move || {
        // A spooled input that nobody takes is removed.
        let _ = tell.send(fill(&config));
    };
    let started = std::thread::Builder::new().name("forebay-stdin".into()).spawn(work);
    started.map_err(|error| format!("no thread: {error}"))?;
    told.await.unwrap_or_else(|_| Err("reading standard input panicked; nothing was taken up".into()))
}

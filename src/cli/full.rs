//! A full disk beside a run: its stores are closed, the folder's lock is kept, and all is opened again once there is
//! space.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::setup;
use crate::{
    config::Config,
    error::Class,
    folder::{Folder, Lock, free_mb},
    ops::{Context, command::Command, command::execute, control},
    pipeline::{
        Line,
        full::{self, Before},
        worker::Worker,
    },
    queue::{self, policy::wait_longest_ms},
    sink::{Sink, SinkError},
};

/// How long the threads of a line may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is left of a line that found the disk full.
pub(super) struct Paused {
    pub(super) before: Before,
    lock: Lock,
    sink: Arc<dyn Sink>,
    status: Value,
    since: Instant,
}

/// Closes the stores of a line.
pub(super) fn pause(config: &Config, line: Arc<Line>) -> Result<Paused, String> {
    let context = Context {
        folder: &line.folder,
        line: Some(&line),
        source: &config.source,
        line_bytes: config.limits.line_bytes,
    };
    let since = line.note_full().since;
    // The last that can be told of it while it is closed.
    let status = execute(context, &Command::Status).unwrap_or_default();
    let (before, lock, sink) = (line.before(), line.folder.lock(), Arc::clone(&line.sink));
    if !full::close(line, PATIENCE) || queue::is_stuck() {
        return Err("the disk is full, and the stores do not close; free some space and run again".into());
    }
    Ok(Paused { before, lock, sink, status, since })
}

impl Paused {
    /// Waits for space and opens the folder again. `None` when that took longer than `limits.disk_full_wait_s`.
    pub(super) async fn space(&self, config: &Config) -> Result<Option<Folder>, String> {
        while self.wait(config).await? {
            let folder = self.open(config)?;
            if folder.is_some() {
                control::remove(&config.data.dir);
                return Ok(folder);
            }
        }
        control::remove(&config.data.dir);
        Ok(None)
    }

    /// False when there was no space for too long.
    async fn wait(&self, config: &Config) -> Result<bool, String> {
        let limits = &config.limits;
        tracing::warn!(min_free_mb = limits.min_free_mb, "the stores are closed; waiting for space");
        let worker = Worker::start("forebay-space").map_err(|error| error.to_string())?;
        let space = async {
            loop {
                tokio::time::sleep(Duration::from_millis(500)).await;
                if has_space(&config.data.dir, limits.min_free_mb) {
                    let sink = Arc::clone(&self.sink);
                    let full = worker.run(move || is_full(sink.as_ref())).await.unwrap_or(false);
                    if !full {
                        return;
                    }
                }
            }
        };
        let serve = async {
            if let Err(error) = control::serve_closed(&config.data.dir, self.status.clone()).await {
                tracing::warn!(%error, "no control socket while the disk is full");
            }
            std::future::pending::<()>().await;
        };
        let left = Duration::from_secs(limits.disk_full_wait_s).saturating_sub(self.since.elapsed());
        tokio::select! {
            () = space => Ok(true),
            () = serve => Ok(false),
            () = tokio::time::sleep(left) => Ok(false),
        }
    }

    /// `None`: it is full again.
    fn open(&self, config: &Config) -> Result<Option<Folder>, String> {
        let (dir, lock) = (&config.data.dir, self.lock.clone());
        match Folder::open_again(dir, &config.queue, wait_longest_ms(&config.retry), lock) {
            Ok(folder) => {
                folder.queue.quarantine_after(config.dlq.max_redrives);
                setup::say_recovered(&folder);
                Ok(Some(folder))
            }
            Err(error) if error.is_full() => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// At least what the setting asks for, and never nothing at all.
fn has_space(dir: &Path, min_free_mb: u64) -> bool {
    free_mb(dir).is_none_or(|free| free >= min_free_mb.max(1))
}

/// Whether the sink, which may lie elsewhere, is still full. What else may be wrong with it is its breaker's business.
fn is_full(sink: &dyn Sink) -> bool {
    matches!(sink.probe(), Err(SinkError::Unavailable(fault)) if fault.class == Class::DiskFull)
}

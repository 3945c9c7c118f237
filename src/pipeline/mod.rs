//! The line: the only room that knows ractor. Reading order: `batch`, `reader`, `embedder`, `writer`, `triage`.
//!
//! ```text
//!  sources ──intake──> queue ──lease──> reader ──Batch<Tokens>──> embedder ──Batch<Embedding>──> writer ──> sink
//!                                         └───── what failed ───────┴────────> triage ─────────────┘
//! ```

mod admit;
mod batch;
mod breaker;
pub mod circuit;
mod commit;
mod dead_letter;
mod embedder;
mod intake;
pub mod line;
mod reader;
pub mod report;
mod supervisor;
mod tail;
pub mod tally;
mod triage;
pub mod worker;
mod writer;

use std::{collections::HashSet, path::PathBuf, sync::Arc, time::Duration};

pub use circuit::Gate;
use intake::{Input, InputEnd, Intake};
pub use line::{Line, RunSettings, Stop};
use ractor::Actor;
use report::{Outcome, Report};
use supervisor::Supervisor;

use crate::{
    ledger::SourceState,
    queue::now_text,
    source::{self, SourceError},
};

/// A run could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An input cannot be used.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The stores cannot be used.
    #[error(transparent)]
    Folder(#[from] crate::folder::FolderError),
    /// The system gives no actors or threads.
    #[error("the line could not be started: {0}")]
    System(String),
}

impl From<crate::ledger::LedgerError> for StartError {
    fn from(error: crate::ledger::LedgerError) -> Self {
        Self::Folder(error.into())
    }
}

impl From<crate::queue::QueueError> for StartError {
    fn from(error: crate::queue::QueueError) -> Self {
        Self::Folder(error.into())
    }
}

/// A task of the pipeline's own that ends by itself: the one place that may spawn one.
#[expect(clippy::disallowed_methods, reason = "the one place: a probe, whose end its breaker is told")]
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}

/// Registers `paths` and whatever was registered before and not read to its end. The second value: sentences on
/// sources that cannot be read on because they are gone.
///
/// # Errors
/// An input that is not there or is nothing we can read: before any work is done.
fn register(line: &Line, paths: &[PathBuf]) -> Result<(Vec<Input>, Vec<String>), StartError> {
    let ledger = &line.folder.ledger;
    let (mut all, mut gone): (Vec<(PathBuf, bool)>, Vec<String>) = (Vec::new(), Vec::new());
    for path in paths {
        all.push((PathBuf::from(source::canonical_uri(path)?), true));
    }
    for uri in ledger.unread_sources()? {
        let path = PathBuf::from(&uri);
        if !all.iter().any(|(named, _)| *named == path) {
            if path.exists() {
                tracing::info!(source = uri, "was not read to its end before; it is read again");
                all.push((path, false));
            } else {
                gone.push(format!(
                    "{uri}: was not read to its end before, and is gone now; bring it back and run again"
                ));
            }
        }
    }
    let (mut inputs, mut seen) = (Vec::new(), HashSet::new());
    let settings = &line.settings;
    for (path, named) in all {
        let found = source::discover(&path, &settings.source, settings.limits.line_bytes, named)?;
        if found.passed_over > 0 {
            let (folder, files) = (path.display(), found.passed_over);
            tracing::warn!(%folder, files, "files of other kinds are passed over; `source.include` names what is text");
        }
        for source::Found { path, fingerprint } in found.inputs {
            if !seen.insert(path.clone()) {
                continue;
            }
            line.tally.bytes_total.fetch_add(fingerprint.size, std::sync::atomic::Ordering::Relaxed);
            let uri = path.display().to_string();
            let registered = ledger.register(&uri, &fingerprint.digest.to_string(), &now_text())?;
            line.know_source(registered.source_id, &uri);
            inputs.push(Input { registered, path });
        }
    }
    Ok((inputs, gone))
}

/// Runs the line: registers `paths`, embeds all that is pending, ends when nothing is left or [`Line::stop`] was
/// called.
///
/// # Errors
/// When it could not start; what goes wrong later is in the report.
pub async fn run(line: &Arc<Line>, paths: &[PathBuf]) -> Result<Report, StartError> {
    let system = |error: &dyn std::fmt::Display| StartError::System(error.to_string());
    let (inputs, gone) = register(line, paths)?;
    let settled = line.folder.catch_up(line.model.identity())?;
    if settled > 0 {
        tracing::info!(settled, "chunks were written before a crash and need not be embedded again");
    }
    bury_suspects(line)?;
    let adopted = line.adopt();

    let (state, dead) = supervisor::State::new(Arc::clone(line));
    let (_, ended) = Actor::spawn(None, Supervisor, state).await.map_err(|e| system(&e))?;
    let intake = Intake::new(Arc::clone(line), dead, adopted);
    let (tell, told) = tokio::sync::oneshot::channel();
    let read = Arc::clone(line);
    let work = move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| intake.run(&inputs)));
        let ends = result.unwrap_or_else(|_| {
            read.halt("reading the input panicked; what was read is safe, run again");
            Vec::new()
        });
        // Nobody listens when the line was torn down meanwhile.
        let _ = tell.send(ends);
    };
    std::thread::Builder::new().name("forebay-intake".into()).spawn(work).map_err(|e| system(&e))?;
    wait(line, ended).await;
    // The intake polls for draining, so it ends soon after the line does.
    let ends = tokio::time::timeout(Duration::from_secs(5), told)
        .await
        .ok()
        .and_then(Result::ok)
        .unwrap_or_default();
    Ok(close(line, &ends, gone))
}

/// The report, stored where there is room for it. Whatever was written is told even when it cannot be.
fn close(line: &Line, ends: &[InputEnd], gone: Vec<String>) -> Report {
    let ledger = &line.folder.ledger;
    if let Err(error) = line.folder.queue.flush() {
        line.halt(error.to_string());
    }
    for end in ends.iter().filter(|_| line.stopped().is_none()) {
        if let Err(error) = ledger.source_read(&end.registered, &end.state, end.bytes, &now_text()) {
            line.halt(error.to_string());
        }
    }
    let report = report(line, ends, gone);
    if let Err(error) = ledger.record_run(&line.run, &report) {
        tracing::error!(%error, "the report of the run could not be stored in the ledger");
    }
    report
}

/// Waits for the line's end; once it drains, no longer than the grace period.
async fn wait(line: &Arc<Line>, ended: ractor::concurrency::JoinHandle<()>) {
    let grace = Duration::from_secs(line.settings.pipeline.grace_s);
    let abort = ended.abort_handle();
    let overdue = async {
        line.drained().await;
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        _ = ended => {}
        () = overdue => {
            tracing::warn!(grace_s = grace.as_secs(), "work in flight did not end in time; it stays queued");
            abort.abort();
        }
    }
}

fn bury_suspects(line: &Line) -> Result<(), StartError> {
    let suspects = line.folder.take_suspects();
    let burials = suspects.into_iter().map(|(lease, chunk)| {
        let unclean = lease.record().unclean;
        (Some(lease), triage::crash_burial(line, &chunk, unclean))
    });
    let burials: Vec<_> = burials.collect();
    if burials.is_empty() {
        return Ok(());
    }
    let count = burials.len() as u64;
    tracing::warn!(count, "chunks that killed the process were buried as suspected_crash");
    line.folder.queue.bury(burials)?;
    line.tally.produced.add(count);
    line.tally.dead.add(count);
    line.tally.buried.add(count);
    Ok(())
}

fn report(line: &Line, ends: &[InputEnd], gone: Vec<String>) -> Report {
    let tally = &line.tally;
    // What is redriven meanwhile is in no number here.
    let counting = line.counting();
    let produced = tally.produced.get();
    let (pending, wall_s) = (line.folder.queue.depth().pending as u64, tally.wall().as_secs_f64());
    let mut incomplete = gone;
    incomplete.extend(ends.iter().filter_map(|end| match &end.state {
        SourceState::Incomplete(why) => Some(why.clone()),
        SourceState::Done => None,
    }));
    let stopped = line.stopped();
    let outcome = match &stopped {
        Some(Stop::Halted(_)) => Outcome::Halted,
        Some(Stop::Interrupted) => Outcome::Interrupted,
        None if tally.dead.get() > 0 || !incomplete.is_empty() => Outcome::Partial,
        None => Outcome::Complete,
    };
    let tokens = tally.tokens.get();
    // Units with an outcome. The rest is pending or in flight to the DLQ when the run was interrupted, or when a letter
    // was redriven after the reader had come to its end.
    let duplicates = tally.duplicates.get() + line.folder.queue.made_way();
    let done = tally.chunks.get() + tally.skipped.get() + tally.dead.get() + duplicates;
    drop(counting);
    let unreadable = tally.unreadable.get().min(done);
    let produced = if stopped.is_some() || pending > 0 { done - unreadable } else { produced };
    Report {
        run: line.run.clone(),
        documents: tally.documents.get(),
        produced,
        unreadable,
        duplicates,
        chunks: tally.chunks.get(),
        skipped: tally.skipped.get(),
        dead: tally.dead.get(),
        pending,
        tokens,
        truncated: tally.truncated.get(),
        embedded: tally.embedded.get(),
        passes: tally.passes.get(),
        wall_s,
        tokens_per_s: if wall_s > 0.0 { tokens as f64 / wall_s } else { 0.0 },
        idle_pct: tally.idle_pct(),
        cost: 0.0,
        identity: line.model.identity().label.clone(),
        outcome,
        halted: match stopped {
            Some(Stop::Halted(why)) => Some(why),
            _ => None,
        },
        incomplete,
    }
}

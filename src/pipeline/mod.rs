//! The line: the only room that knows ractor. Reading order: `batch`, `reader`, `embedder`, `writer`, `triage`.
//!
//! ```text
//!  sources ──intake──> queue ──lease──> reader ──Batch<Tokens>──> embedder ──Batch<Embedding>──> writer ──> sink
//!                                         └───── what failed ───────┴────────> triage ─────────────┘
//! ```

mod admit;
mod alarm;
pub mod alert;
mod batch;
mod bisect;
mod breaker;
pub mod capacity;
pub mod circuit;
mod commit;
mod dead_letter;
pub mod dependency;
mod embedder;
pub mod enqueue;
pub mod full;
mod inbox;
mod intake;
pub mod line;
mod reader;
pub mod register;
pub mod report;
pub mod splitting;
mod supervisor;
mod tail;
pub mod tally;
mod triage;
mod watch;
pub mod worker;
mod writer;

use std::{path::PathBuf, sync::Arc, time::Duration};

pub use circuit::Gate;
use intake::{InputEnd, Intake, Read};
pub use line::{Line, RunSettings, Stop};
use ractor::Actor;
use register::Registered;
use report::{Outcome, Report};
use supervisor::Supervisor;
use tokio::sync::oneshot;

use crate::{folder::spool, ledger::SourceState, queue::now_text, source::SourceError};

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

/// Runs the line: registers `paths`, embeds all that is pending, ends when nothing is left or [`Line::stop`] was
/// called.
///
/// # Errors
/// When it could not start; what goes wrong later is in the report.
pub async fn run(line: &Arc<Line>, paths: &[PathBuf]) -> Result<Report, StartError> {
    let registered = register::register_all(line, paths)?;
    run_registered(line, registered).await
}

/// As [`run`], of sources that are registered already.
///
/// # Errors
/// As [`run`].
pub async fn run_registered(line: &Arc<Line>, registered: Registered) -> Result<Report, StartError> {
    let system = |error: &dyn std::fmt::Display| StartError::System(error.to_string());
    let settled = line.folder.catch_up(line.model.identity())?;
    if settled > 0 {
        tracing::info!(settled, "chunks were written before a crash and need not be embedded again");
    }
    line.with_alarm(alarm::Alarm::look).transpose()?;
    bury_suspects(line)?;
    let adopted = line.adopt();

    let (state, dead) = supervisor::State::new(Arc::clone(line));
    let (_, ended) = Actor::spawn(None, Supervisor, state).await.map_err(|e| system(&e))?;
    line.inbox.push(registered.inputs);
    let (tell, told) = oneshot::channel();
    start_intake(line, Intake::new(Arc::clone(line), dead, adopted), tell)?;
    wait(line, ended).await;
    line.alarm_ends().await;
    // The intake polls for draining, so it ends soon after the line does.
    let read = tokio::time::timeout(Duration::from_secs(5), told).await.ok().and_then(Result::ok);
    Ok(close(line, &read.unwrap_or_default().ends, registered.gone))
}

/// Reads on a thread of its own, and tells what was read.
fn start_intake(line: &Arc<Line>, intake: Intake, tell: oneshot::Sender<Read>) -> Result<(), StartError> {
    let line = Arc::clone(line);
    let work = move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| intake.run()));
        let read = result.unwrap_or_else(|_| {
            line.halt("reading the input panicked; what was read is safe, run again");
            Read::default()
        });
        // Nobody listens when the line was torn down meanwhile.
        let _ = tell.send(read);
    };
    let started = std::thread::Builder::new().name("forebay-intake".into()).spawn(work);
    started.map(drop).map_err(|error| StartError::System(error.to_string()))
}

/// The report, stored where there is room for it. Whatever was written is told even when it cannot be.
fn close(line: &Line, ends: &[InputEnd], gone: Vec<String>) -> Report {
    let ledger = &line.folder.ledger;
    if let Err(why) = tail::drop_orphans(line) {
        line.halt(why);
    }
    if let Err(error) = line.folder.queue.flush() {
        line.halt(line.told(error));
    }
    record_ends(line, ends);
    let report = report(line, ends, gone);
    if line.found_full().is_none()
        && let Err(error) = ledger.record_run(&line.run, &report)
    {
        tracing::error!(%error, "the report of the run could not be stored in the ledger");
    }
    report
}

/// Notes which sources were read to their ends, unless the line was stopped: a letter may then be on its way still.
/// Spooled inputs that are done with go.
fn record_ends(line: &Line, ends: &[InputEnd]) {
    for end in ends.iter().filter(|_| line.stopped().is_none()) {
        // Nothing can be added to a spooled input: what it lacks is told once.
        let spooled = spool::path_of(&line.folder.dir, &end.registered.uri).is_some();
        let state = if spooled { &SourceState::Done } else { &end.state };
        if let Err(error) = line.folder.ledger.source_read(&end.registered, state, end.bytes, &now_text()) {
            line.halt(line.told(error));
        }
    }
    match line.folder.drop_spooled() {
        Ok(0) => {}
        Ok(dropped) => tracing::info!(dropped, "inputs from stdin are done and no longer kept"),
        // It goes with the next run.
        Err(error) => tracing::warn!(%error, "an input from stdin that is done could not be dropped"),
    }
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
    let before = alarm::moment(&line.folder.queue);
    line.folder.queue.bury(burials)?;
    line.with_alarm(|alarm, queue| alarm.changed(queue, &before));
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
    let pending = line.folder.queue.depth().pending as u64;
    let mut incomplete = gone;
    incomplete.extend(ends.iter().filter_map(|end| match &end.state {
        SourceState::Incomplete(why) => Some(why.clone()),
        SourceState::Done => None,
    }));
    // Not by the tally: what was buried may have been redriven and written meanwhile.
    let leaves_dead = line.leaves_dead().unwrap_or_else(|error| {
        line.halt(line.told(error));
        true
    });
    let stopped = line.stopped();
    let outcome = match &stopped {
        Some(Stop::Halted(_) | Stop::Full(_)) => Outcome::Halted,
        Some(Stop::Interrupted) => Outcome::Interrupted,
        Some(Stop::Limited) => Outcome::Limited,
        None if leaves_dead || !incomplete.is_empty() => Outcome::Partial,
        None => Outcome::Complete,
    };
    let whole = line.before();
    // What this run wrote before the disk was full stands in the ledger.
    let chunks = line.before.as_ref().and_then(|_| line.folder.ledger.count_of(&line.run).ok());
    let wall_s = whole.began.elapsed().as_secs_f64();
    let (resumed, chunks) = (chunks.is_some(), chunks.unwrap_or_else(|| tally.chunks.get()));
    // Units with an outcome. The rest is pending or in flight to the DLQ when the run was interrupted, or when a letter
    // was redriven after the reader had come to its end.
    let duplicates = tally.duplicates.get() + line.folder.queue.made_way();
    let done = chunks + tally.skipped.get() + tally.dead.get() + duplicates;
    drop(counting);
    let unreadable = tally.unreadable.get().min(done);
    let produced = if stopped.is_some() || pending > 0 || resumed { done - unreadable } else { produced };
    Report {
        run: line.run.clone(),
        documents: tally.documents.get(),
        produced,
        unreadable,
        duplicates,
        chunks,
        skipped: tally.skipped.get(),
        dead: tally.dead.get(),
        pending,
        tokens: whole.tokens,
        truncated: whole.truncated,
        too_long: whole.too_long,
        embedded: whole.embedded,
        passes: whole.passes,
        wall_s,
        tokens_per_s: if wall_s > 0.0 { whole.tokens as f64 / wall_s } else { 0.0 },
        idle_pct: tally.idle_pct(),
        cost: 0.0,
        self_test: line.settings.self_test,
        identity: line.model.identity().label.clone(),
        outcome,
        halted: match stopped {
            Some(Stop::Halted(why) | Stop::Full(why)) => Some(why),
            _ => None,
        },
        incomplete,
    }
}

//! Sources into the queue and nothing more: registered, read, their chunks durable, the rest left to the next run.

use std::{path::PathBuf, sync::Arc};

use serde::Serialize;
use tokio::sync::mpsc;

use super::{
    StartError, Stop,
    dead_letter::{self, TOGETHER},
    intake::{Intake, Read},
    line::Line,
    record_ends,
    register::{self, Registered},
};
use crate::ledger::SourceState;

/// What came of it. `pending + skipped + dead + duplicates = produced + unreadable`, as in a run's report; numbers are
/// absent when a run took the sources up, and are then in its report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Enqueued {
    /// The sources, by their names in the ledger.
    pub sources: Vec<String>,
    /// The run that reads them.
    pub by_run: Option<String>,
    /// What was counted here; `None` beside a run.
    #[serde(flatten)]
    pub counts: Counts,
    /// Whether the window is full: the next run reads on.
    pub window_full: bool,
    /// What was missing in the input, a sentence each.
    pub incomplete: Vec<String>,
    /// Why it was halted.
    pub halted: Option<String>,
    /// Whether a signal ended it.
    pub interrupted: bool,
}

/// Numbers of one enqueueing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Documents (or chunk records) read.
    pub documents: Option<u64>,
    /// Chunks taken up: read now, or found pending.
    pub produced: Option<u64>,
    /// Records that could not be read.
    pub unreadable: Option<u64>,
    /// Chunks put into the queue now.
    pub enqueued: Option<u64>,
    /// Chunks in the queue now.
    pub pending: Option<u64>,
    /// Chunks written before, or given up by a person.
    pub skipped: Option<u64>,
    /// Chunks and records that lie in the DLQ.
    pub dead: Option<u64>,
    /// Chunks that made way for a later one of the same key, or were read twice.
    pub duplicates: Option<u64>,
}

impl Enqueued {
    /// What a run that took `registered` up answers.
    pub fn by_run(run: &str, registered: &Registered) -> Self {
        Self { by_run: Some(run.to_owned()), sources: names(registered), ..Self::default() }
    }
}

fn names(registered: &Registered) -> Vec<String> {
    registered.inputs.iter().map(|input| input.registered.uri.clone()).collect()
}

/// Brings sources in while the run of this line goes on.
///
/// # Errors
/// A sentence: an input cannot be used, or the run comes to its end.
pub fn take_in(line: &Line, paths: &[PathBuf]) -> Result<Enqueued, String> {
    let registered = register::register(line, paths).map_err(|error| error.to_string())?;
    let answer = Enqueued::by_run(&line.run, &registered);
    if line.draining() || !line.inbox.push(registered.inputs) {
        tracing::info!("sources that were enqueued at the end of the run are left to the next one");
    }
    Ok(answer)
}

/// Registers nothing: reads what was registered into the queue until its end, or until the window is full.
///
/// # Errors
/// When the stores cannot be used.
pub async fn enqueue(line: &Arc<Line>, registered: Registered) -> Result<Enqueued, StartError> {
    line.folder.catch_up(line.model.identity())?;
    let adopted = line.adopt();
    let sources = names(&registered);
    line.inbox.push(registered.inputs);
    line.inbox.close();
    let (dead, mut lane) = mpsc::channel(TOGETHER);
    let (tell, told) = tokio::sync::oneshot::channel();
    let intake = Intake::new(Arc::clone(line), dead, adopted).stopping_when_full();
    super::start_intake(line, intake, tell)?;
    loop {
        let mut letters = Vec::new();
        if lane.recv_many(&mut letters, TOGETHER).await == 0 {
            break;
        }
        dead_letter::bury(line, letters).await;
    }
    let Read { ends, window_full } = told.await.unwrap_or_default();
    line.folder.queue.flush()?;
    record_ends(line, &ends);
    let stopped = line.stopped();
    let incomplete = ends.iter().filter_map(|end| match &end.state {
        SourceState::Incomplete(why) => Some(why.clone()),
        SourceState::Done => None,
    });
    Ok(Enqueued {
        sources,
        by_run: None,
        counts: counts(line),
        window_full,
        incomplete: incomplete.collect(),
        interrupted: stopped == Some(Stop::Interrupted),
        halted: match stopped {
            Some(Stop::Halted(why) | Stop::Full(why)) => Some(why),
            _ => None,
        },
    })
}

fn counts(line: &Line) -> Counts {
    let (tally, queue) = (&line.tally, &line.folder.queue);
    Counts {
        documents: Some(tally.documents.get()),
        produced: Some(tally.produced.get()),
        unreadable: Some(tally.unreadable.get()),
        enqueued: Some(tally.enqueued.get()),
        pending: Some(queue.depth().pending as u64),
        skipped: Some(tally.skipped.get()),
        dead: Some(tally.dead.get()),
        duplicates: Some(tally.duplicates.get() + queue.made_way()),
    }
}

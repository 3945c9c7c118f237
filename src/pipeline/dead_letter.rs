//! In: what triage or the intake gave up. Out: letters in the DLQ. Journal first, then queue; many at a time,
//! because each journal write is an fsync.

use std::{sync::Arc, time::Instant};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{Mutex, mpsc};

use super::{
    alarm::{self, Alarm, LOOK_EVERY},
    line::{Line, Stop},
};
use crate::{
    error::Class,
    queue::{Lease, dead::Burial},
};

/// A chunk (with its lease) or a record to be buried.
#[derive(Debug)]
pub struct Dead {
    /// The receipt, for a chunk.
    pub lease: Option<Lease>,
    /// What becomes the letter.
    pub burial: Burial,
}

/// Letters written with one fsync at most.
pub(super) const TOGETHER: usize = 256;

/// Take the next letters off the lane.
#[derive(Debug)]
pub struct Tick;

/// The actor.
#[derive(Debug)]
pub struct DeadLetter;

/// Its state.
pub struct State {
    /// The run.
    pub line: Arc<Line>,
    /// The lane; outlives this incarnation.
    pub lane: Arc<Mutex<mpsc::Receiver<Dead>>>,
    /// When the age of the letters was last looked at.
    pub looked: Instant,
}

impl Actor for DeadLetter {
    type Msg = Tick;
    type State = State;
    type Arguments = State;

    async fn pre_start(&self, me: ActorRef<Tick>, state: State) -> Result<State, ActorProcessingErr> {
        me.cast(Tick)?;
        Ok(state)
    }

    async fn handle(&self, me: ActorRef<Tick>, _: Tick, state: &mut State) -> Result<(), ActorProcessingErr> {
        let mut letters = Vec::new();
        let wait = LOOK_EVERY.saturating_sub(state.looked.elapsed());
        let received = {
            let mut lane = state.lane.lock().await;
            tokio::time::timeout(wait, lane.recv_many(&mut letters, TOGETHER)).await
        };
        match received {
            Ok(0) => {
                me.stop(Some("eof".into()));
                return Ok(());
            }
            Ok(_) => bury(&state.line, letters).await,
            Err(_) => {
                state.looked = Instant::now();
                if let Some(Err(error)) = state.line.with_alarm(Alarm::look) {
                    tracing::warn!(%error, "the age of the dead letters is not known");
                }
            }
        }
        Ok(me.cast(Tick)?)
    }
}

/// Writes letters, and tells of them.
pub(super) async fn bury(line: &Arc<Line>, letters: Vec<Dead>) {
    let shared = Arc::clone(line);
    let job = move || {
        let letters = letters.into_iter().map(|dead| (dead.lease, dead.burial)).collect();
        let before = alarm::moment(&shared.folder.queue);
        let buried = shared.folder.queue.bury(letters);
        shared.with_alarm(|alarm, queue| alarm.changed(queue, &before));
        buried
    };
    match line.dead_thread.run(job).await {
        Ok(Ok(letters)) => letters.iter().for_each(|letter| match letter {
            Some(letter) => {
                line.tally.dead.add(1);
                line.tally.buried.add(1);
                line.tally.too_long.add(u64::from(letter.class == Class::TooLong));
                // The message is ours and quotes no document.
                tracing::info!(id = %letter.id, class = %letter.class, subject_line = letter.origin.line,
                    why = letter.message, "buried");
            }
            None => line.tally.duplicates.add(1),
        }),
        Ok(Err(error)) => line.halt(format!("dead letters cannot be written: {}", line.told(error))),
        Err(panicked) => line.halt(format!("writing dead letters {panicked}")),
    }
    halt_if_too_many(line);
}

/// Too many at once means that something other than the chunks is wrong.
fn halt_if_too_many(line: &Line) {
    let (dead, done) = (line.tally.buried.get(), line.tally.chunks.get() + line.tally.buried.get());
    let fraction = line.settings.limits.max_dead_fraction;
    if done >= 1_000 && dead as f64 > fraction * done as f64 {
        line.stop(Stop::Halted(format!(
            "{dead} of {done} chunks were buried, more than limits.max_dead_fraction = {fraction}; \
             look at `forebay dlq stats`"
        )));
    }
}

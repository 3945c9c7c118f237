//! Starts, restarts and drains the line from one ordered list.
//!
//! The lanes belong to the supervisor, so they outlive a stage. End of input cascades by closing them: the reader
//! ends, its lane closes, the embedder ends, and so on. A stage that crashes is started anew after a growing
//! pause, until the restart budget is spent.

#[cfg(feature = "testkit")]
use std::sync::atomic::Ordering::Relaxed;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::{Mutex, mpsc};

use super::{
    batch::Batch,
    breaker::{self, Breaker},
    dead_letter::{self, Dead, DeadLetter},
    embedder::{self, Embedder},
    line::Line,
    reader::{self, Reader},
    writer::{self, Writer},
};
use crate::{chunk::Embedding, clock::paced, embed::Tokens};

/// Dead letters that may wait on their lane: chunks and records are small beside batches, and a lane that is
/// full makes the sender wait.
const DEAD_LANE: usize = 256;
/// Crashes older than this are forgiven.
const BUDGET_WINDOW: Duration = Duration::from_secs(600);

/// The stages, in the order they are started: each finds its successor running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// See [`super::dead_letter`].
    DeadLetter,
    /// See [`super::breaker`].
    SinkBreaker,
    /// See [`super::breaker`].
    DeviceBreaker,
    /// See [`super::writer`].
    Writer,
    /// See [`super::embedder`].
    Embedder,
    /// See [`super::reader`].
    Reader,
}

const ORDER: [Stage; 6] = [
    Stage::DeadLetter,
    Stage::SinkBreaker,
    Stage::DeviceBreaker,
    Stage::Writer,
    Stage::Embedder,
    Stage::Reader,
];

/// Start this stage (again).
#[derive(Debug)]
pub struct Start(Stage);

/// The actor.
#[derive(Debug)]
pub struct Supervisor;

/// A bounded lane: the sending end until its sender has ended, and the receiving end for each incarnation.
struct Lane<T> {
    send: Option<mpsc::Sender<T>>,
    receive: Arc<Mutex<mpsc::Receiver<T>>>,
}

impl<T> Lane<T> {
    fn new(capacity: usize) -> Self {
        let (send, receive) = mpsc::channel(capacity);
        Self { send: Some(send), receive: Arc::new(Mutex::new(receive)) }
    }
}

/// Its state.
pub struct State {
    line: Arc<Line>,
    tokens: Lane<Batch<Tokens>>,
    embedded: Lane<Batch<Embedding>>,
    dead: Lane<Dead>,
    stages: HashMap<ActorId, Stage>,
    crashes: VecDeque<Instant>,
}

impl State {
    /// The lanes of one run; the second value is the intake's end of the dead-letter lane.
    pub fn new(line: Arc<Line>) -> (Self, mpsc::Sender<Dead>) {
        let in_flight = line.settings.pipeline.batches_in_flight;
        let state = Self {
            tokens: Lane::new(in_flight),
            embedded: Lane::new(in_flight),
            dead: Lane::new(DEAD_LANE),
            stages: HashMap::new(),
            crashes: VecDeque::new(),
            line,
        };
        let dead = state.dead.send.clone().expect("a new lane has its sender");
        (state, dead)
    }

    async fn start(&mut self, stage: Stage, me: ActorCell) -> Result<(), ActorProcessingErr> {
        let line = Arc::clone(&self.line);
        #[cfg(feature = "testkit")]
        if line.starts_fail.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
            return Err("a planted failure of a stage's start".into());
        }
        let id = match (stage, &self.tokens.send, &self.embedded.send, &self.dead.send) {
            (Stage::DeadLetter, ..) => {
                let state =
                    dead_letter::State { line, lane: Arc::clone(&self.dead.receive), looked: Instant::now() };
                Actor::spawn_linked(None, DeadLetter, state, me).await?.0.get_id()
            }
            (Stage::SinkBreaker, ..) => {
                let sink = Arc::clone(&line.sink);
                let probe: breaker::Probe = Arc::new(move || sink.probe().map_err(breaker::Unanswered::from));
                let arguments = breaker::Arguments { line, which: |line| &line.sink_state, probe };
                Actor::spawn_linked(None, Breaker, arguments, me).await?.0.get_id()
            }
            (Stage::DeviceBreaker, ..) => {
                let weak = Arc::downgrade(&line);
                let probe: breaker::Probe = Arc::new(move || {
                    let golden = weak.upgrade().map_or(Ok(()), |line| embedder::golden_passes(&line));
                    golden.map_err(breaker::Unanswered::Failed)
                });
                let arguments = breaker::Arguments { line, which: |line| &line.device_state, probe };
                Actor::spawn_linked(None, Breaker, arguments, me).await?.0.get_id()
            }
            (Stage::Writer, _, _, Some(dead)) => {
                let state = writer::State {
                    line,
                    lane: Arc::clone(&self.embedded.receive),
                    dead: dead.clone(),
                    gone: false,
                };
                Actor::spawn_linked(None, Writer, state, me).await?.0.get_id()
            }
            (Stage::Embedder, _, Some(out), Some(dead)) => {
                let (out, dead) = (out.clone(), dead.clone());
                let state = embedder::State { line, lane: Arc::clone(&self.tokens.receive), out, dead };
                Actor::spawn_linked(None, Embedder, state, me).await?.0.get_id()
            }
            (Stage::Reader, Some(out), _, Some(dead)) => {
                let (out, dead, changed) = (out.clone(), dead.clone(), line.folder.queue.changed());
                let state = reader::State { line, out, dead, changed };
                Actor::spawn_linked(None, Reader, state, me).await?.0.get_id()
            }
            // Its lane is closed already: it has nothing left to do.
            _ => return Ok(()),
        };
        self.stages.insert(id, stage);
        Ok(())
    }

    /// A stage came to its end: its lane closes. True when the whole line has ended.
    fn ended(&mut self, stage: Stage) -> bool {
        match stage {
            Stage::Reader => self.tokens.send = None,
            Stage::Embedder => self.embedded.send = None,
            Stage::Writer => self.dead.send = None,
            Stage::DeadLetter => return true,
            Stage::SinkBreaker | Stage::DeviceBreaker => {}
        }
        false
    }

    /// A stage crashed, or could not be started anew: it is started (again) after a pause, or the line halts.
    fn crashed(&mut self, stage: Stage, why: &str, me: &ActorRef<Start>) {
        if let Some(pause) = self.pause(Instant::now()) {
            tracing::warn!(?stage, why, "a stage crashed and is started anew");
            me.send_after(pause, move || Start(stage));
        } else {
            self.line.halt(format!(
                "the {stage:?} stage crashed more than pipeline.restarts_max times within ten minutes, last: {why}"
            ));
            me.stop(Some("gave up".into()));
        }
    }

    /// The pause before a stage that crashed is started anew, or `None` when the budget is spent.
    fn pause(&mut self, now: Instant) -> Option<Duration> {
        while self.crashes.front().is_some_and(|at| now.saturating_duration_since(*at) > BUDGET_WINDOW) {
            self.crashes.pop_front();
        }
        self.crashes.push_back(now);
        let count = u32::try_from(self.crashes.len()).unwrap_or(u32::MAX);
        let pause = paced(Duration::from_millis(50).saturating_mul(1 << count.min(7)));
        (count <= self.line.settings.pipeline.restarts_max).then_some(pause)
    }
}

impl Actor for Supervisor {
    type Msg = Start;
    type State = State;
    type Arguments = State;

    async fn pre_start(&self, me: ActorRef<Start>, mut state: State) -> Result<State, ActorProcessingErr> {
        for stage in ORDER {
            state.start(stage, me.get_cell()).await?;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        me: ActorRef<Start>,
        Start(stage): Start,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        // An error here would end the supervisor, and the run with it, as if all were done.
        if let Err(why) = state.start(stage, me.get_cell()).await {
            state.crashed(stage, &why.to_string(), &me);
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        me: ActorRef<Start>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (actor, why) = match event {
            SupervisionEvent::ActorTerminated(actor, _, Some(why)) if why == "eof" => {
                if state.stages.remove(&actor.get_id()).is_some_and(|stage| state.ended(stage)) {
                    me.stop(Some("drained".into()));
                }
                return Ok(());
            }
            SupervisionEvent::ActorTerminated(actor, _, why) => (actor, why.unwrap_or_default()),
            SupervisionEvent::ActorFailed(actor, why) => (actor, why.to_string()),
            _ => return Ok(()),
        };
        let Some(stage) = state.stages.remove(&actor.get_id()) else { return Ok(()) };
        state.crashed(stage, &why, &me);
        Ok(())
    }
}

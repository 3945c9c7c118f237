//! What every stage of one run shares: the stores, the model, the settings, and how it ends.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Semaphore, mpsc, watch};

use super::{
    alarm::Alarm, capacity::Learning, dead_letter::Dead, dependency::Dependency, inbox::Inbox, tally::Tally,
    worker::Worker,
};
use crate::{
    embed::Embed,
    error::Stage,
    folder::Folder,
    queue::{
        Queue,
        dead::State as LetterState,
        dlq::{Filter, Keep},
        policy,
    },
    sink::Sink,
};

/// `pipeline.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Batches on the whole line at most.
    pub batches_in_flight: usize,
    /// Time a batch should take the model, about.
    pub batch_ms: u64,
    /// Tokens in a batch at most, about.
    pub batch_tokens: usize,
    /// Chunks in a batch at most.
    pub batch_chunks: usize,
    /// How long work in flight may take to finish once the line drains.
    pub grace_s: u64,
    /// A forward pass, the tokenising of a batch or a call of the sink that takes longer is taken for hung.
    pub watchdog_s: u64,
    /// Restarts of a crashed stage at most within ten minutes.
    pub restarts_max: u32,
}

/// `limits.*` of the configuration.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Longest line of input.
    pub line_bytes: u64,
    /// Free space below which no new chunk is taken up.
    pub min_free_mb: u64,
    /// How long a full disk is waited for.
    pub disk_full_wait_s: u64,
    /// Share of dead letters that halts the run.
    pub max_dead_fraction: f64,
}

/// Everything a run is told.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// The line.
    pub pipeline: Settings,
    /// Attempts and waits.
    pub retry: policy::Settings,
    /// The breakers.
    pub breaker: super::circuit::Settings,
    /// The inputs.
    pub source: crate::source::Settings,
    /// Pending chunks at most.
    pub window_chunks: usize,
    /// Limits.
    pub limits: Limits,
    /// Chunks newly written at most (`--limit`).
    pub limit: Option<u64>,
    /// Lowest cosine of the model's self-test; `None`: none was made.
    pub self_test: Option<f64>,
    /// What a dead letter keeps.
    pub dlq_payload: Keep,
    /// When somebody is told of dead letters, and how.
    pub alert: super::alert::Settings,
}

/// Why a line stops taking up work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGINT or SIGTERM.
    Interrupted,
    /// As much was written as was asked for, and there is more.
    Limited,
    /// The disk is full: the stores are to be closed, and the run goes on once there is space.
    Full(String),
    /// Nothing will work until someone acts.
    Halted(String),
}

/// The lane to the dead-letter actor; closed when every stage and the intake have let go of it.
pub type DeadLane = mpsc::Sender<Dead>;

/// Shared by all stages.
pub struct Line {
    /// The data folder.
    pub folder: Folder,
    /// The model.
    pub model: Arc<dyn Embed>,
    /// The sink.
    pub sink: Arc<dyn Sink>,
    /// What the run is told.
    pub settings: RunSettings,
    /// Counters.
    pub tally: Tally,
    /// Id of the run (UUIDv7).
    pub run: String,
    /// [`crate::identity::Identity::stored`] of the model.
    pub identity: String,
    /// Permits of batches in flight.
    pub permits: Arc<Semaphore>,
    /// The sink, as something that can be down.
    pub sink_state: Dependency,
    /// The device, as something that can be down.
    pub device_state: Dependency,
    /// What a pass may hold.
    pub learning: Learning,
    /// Sources on their way to the intake.
    pub inbox: Inbox,
    /// Thread that leases and tokenises.
    pub reader_thread: Worker,
    /// Thread of the forward pass.
    pub model_thread: Worker,
    /// Thread that writes to sink and ledger.
    pub sink_thread: Worker,
    /// Thread that writes dead letters.
    pub dead_thread: Worker,
    /// Tells of dead letters, until the run ends.
    alarm: Mutex<Option<Alarm>>,
    /// Whether the chunks found pending at the start are counted as taken up.
    adopted: Mutex<bool>,
    /// What this run did before the disk was full.
    pub(super) before: Option<super::full::Before>,
    pub(super) full: Mutex<Option<super::full::Full>>,
    stop: watch::Sender<Option<Stop>>,
    uris: Mutex<HashMap<i64, String>>,
    /// Starts of a stage that fail, to come.
    #[cfg(feature = "testkit")]
    pub starts_fail: std::sync::atomic::AtomicU32,
}

impl Line {
    /// Puts the shared parts together.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(
        folder: Folder,
        model: Arc<dyn Embed>,
        sink: Arc<dyn Sink>,
        settings: RunSettings,
    ) -> std::io::Result<Arc<Self>> {
        Self::going_on(folder, model, sink, settings, None)
    }

    /// As [`Line::new`], going on with a run that found the disk full.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn going_on(
        folder: Folder,
        model: Arc<dyn Embed>,
        sink: Arc<dyn Sink>,
        settings: RunSettings,
        before: Option<super::full::Before>,
    ) -> std::io::Result<Arc<Self>> {
        let identity = model.identity().stored();
        let permits = Arc::new(Semaphore::new(settings.pipeline.batches_in_flight));
        let known = before.as_ref().map(|before| before.run.clone());
        let run = known.unwrap_or_else(|| uuid::Uuid::now_v7().to_string());
        let alarm = Mutex::new(Some(Alarm::new(settings.alert.clone(), &run)?));
        let learning = Learning::new(&folder.dir, model.capacity(), model.identity());
        Ok(Arc::new(Self {
            folder,
            model,
            sink,
            settings,
            tally: Tally::default(),
            run,
            identity,
            permits,
            sink_state: Dependency::new("sink"),
            device_state: Dependency::new("device"),
            learning,
            inbox: Inbox::default(),
            reader_thread: Worker::start("forebay-reader")?,
            model_thread: Worker::start("forebay-model")?,
            sink_thread: Worker::start("forebay-sink")?,
            dead_thread: Worker::start("forebay-dead")?,
            alarm,
            adopted: Mutex::new(false),
            before,
            full: Mutex::new(None),
            stop: watch::Sender::new(None),
            uris: Mutex::new(HashMap::new()),
            #[cfg(feature = "testkit")]
            starts_fail: std::sync::atomic::AtomicU32::new(0),
        }))
    }

    /// Lets the alarm look; `None` once the run has ended.
    pub(super) fn with_alarm<T>(&self, tell: impl FnOnce(&mut Alarm, &Queue) -> T) -> Option<T> {
        let mut alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner);
        alarm.as_mut().map(|alarm| tell(alarm, &self.folder.queue))
    }

    /// Lets commands that were called come to their ends.
    pub(super) async fn alarm_ends(&self) {
        let alarm = self.alarm.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(alarm) = alarm
            && let Err(panicked) = self.dead_thread.run(move || alarm.finish()).await
        {
            tracing::error!(%panicked, "telling of dead letters");
        }
    }

    /// Counts what is pending at the start as taken up; gives the short hashes of its keys.
    pub fn adopt(&self) -> HashSet<u128> {
        let mut adopted = self.counting();
        let keys: HashSet<u128> = self.folder.queue.pending_keys().into_iter().collect();
        self.tally.produced.add(keys.len() as u64);
        *adopted = true;
        keys
    }

    /// Enqueues chunks from beside the line, and counts them as taken up unless the line is yet to adopt them.
    ///
    /// # Errors
    /// What `enqueue` says.
    pub fn take_up<E>(&self, enqueue: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        let adopted = self.counting();
        let enqueued = enqueue()?;
        self.tally.produced.add(if *adopted { enqueued } else { 0 });
        Ok(enqueued)
    }

    /// While it is held, nothing is taken up from beside the line.
    pub(super) fn counting(&self) -> MutexGuard<'_, bool> {
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the line drain. The first halt counts over an interruption, and that over a limit; a full disk counts
    /// over the halts that come in its wake, and gives way to an interruption.
    pub fn stop(&self, stop: Stop) {
        self.stop.send_modify(|current| {
            let stays = match (&*current, &stop) {
                (Some(Stop::Halted(_)), _) => true,
                (Some(Stop::Full(_)), later) => *later != Stop::Interrupted,
                (Some(Stop::Interrupted), later) => matches!(later, Stop::Limited | Stop::Full(_)),
                _ => false,
            };
            if stays {
                return;
            }
            match &stop {
                Stop::Halted(why) => tracing::error!(why, "halting"),
                Stop::Full(why) => {
                    tracing::warn!(why, "the disk is full: closing the stores until there is space");
                }
                Stop::Interrupted | Stop::Limited => {}
            }
            *current = Some(stop);
        });
    }

    /// Stops with a reason.
    pub fn halt(&self, why: impl Into<String>) {
        self.stop(Stop::Halted(why.into()));
    }

    /// Why it drains; `None` while it does not.
    pub fn stopped(&self) -> Option<Stop> {
        self.stop.borrow().clone()
    }

    /// Returns once nothing will work until someone acts, or makes room.
    pub async fn halted(&self) {
        // The sender lives as long as `self`.
        let halted = |stop: &Option<Stop>| matches!(stop, Some(Stop::Halted(_) | Stop::Full(_)));
        let _ = self.stop.subscribe().wait_for(halted).await;
    }

    /// Waits until a dependency is up; false when the line halts before that.
    pub async fn up_or_halted(&self, dependency: &Dependency) -> bool {
        tokio::select! { biased;
            () = dependency.up() => true,
            () = self.halted() => false,
        }
    }

    /// What a stage depends on.
    pub fn dependency(&self, stage: Stage) -> Option<&Dependency> {
        match stage {
            Stage::Source | Stage::Reader => None,
            Stage::Embedder => Some(&self.device_state),
            Stage::Writer => Some(&self.sink_state),
        }
    }

    /// Whether it drains.
    pub fn draining(&self) -> bool {
        self.stop.borrow().is_some()
    }

    /// Returns once the line drains.
    pub async fn drained(&self) {
        // The sender lives as long as `self`, so this ends only with a stop.
        let _ = self.stop.subscribe().wait_for(Option::is_some).await;
    }

    /// Sleeps, or returns early when the line drains. True when it drains.
    pub async fn pause(&self, how_long: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(how_long) => false,
            () = self.drained() => true,
        }
    }

    /// Remembers the uri of a source of this run.
    pub fn know_source(&self, source_id: i64, uri: &str) {
        self.uris.lock().unwrap_or_else(PoisonError::into_inner).insert(source_id, uri.to_owned());
    }

    /// The uri of a source, for a dead letter's origin; it then is a source of this run.
    pub fn source_uri(&self, source_id: i64) -> String {
        let known = self.uris.lock().unwrap_or_else(PoisonError::into_inner).get(&source_id).cloned();
        known.unwrap_or_else(|| {
            let uri = self.folder.ledger.source_uri(source_id).ok().flatten().unwrap_or_default();
            self.know_source(source_id, &uri);
            uri
        })
    }

    /// Whether a letter that nobody has seen to belongs to a source of this run.
    ///
    /// # Errors
    /// See [`crate::queue::QueueError`].
    pub fn leaves_dead(&self) -> Result<bool, crate::queue::QueueError> {
        let uris: HashSet<String> =
            self.uris.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        let states = vec![LetterState::Open, LetterState::Quarantined];
        let (filter, mut found) = (Filter { states, ..Filter::default() }, false);
        self.folder.queue.each_letter(&filter, &mut |letter| {
            let source = self.folder.origin_uri(&letter.origin);
            found = uris.contains(&*source)
                || (letter.origin.line == 0
                    && uris.iter().any(|uri| super::tail::answers_for(uri, 0, &source)));
            !found
        })?;
        Ok(found)
    }

    /// Whether all input that came is read.
    pub fn all_read(&self) -> bool {
        self.inbox.all_read()
    }
}

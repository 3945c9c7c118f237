//! What goes wrong from outside the chunks: devices and sinks that are down for a while, answers that get lost,
//! stages that crash. Drawn from a seed; still when it is told to be calm.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
};

/// How likely each fault is at one call, in per mille.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    /// A pass of more than one text fails once, nobody knows why.
    pub pass: u64,
    /// The device goes down: until the golden text has failed a few times.
    pub device: u64,
    /// The embedder's stage crashes.
    pub crash: u64,
    /// The sink refuses more than one row once, and does not say which.
    pub batch: u64,
    /// The sink goes down for a few calls.
    pub sink: u64,
    /// The sink writes, but its answer is lost.
    pub answer: u64,
    /// The sink's disk is full, once.
    pub full: u64,
    /// The sink takes its time.
    pub slow: u64,
}

/// The weather of one rig. Counters may be set by a test at any time.
#[derive(Debug)]
pub struct Weather {
    odds: Odds,
    calm: AtomicBool,
    dice: Mutex<fastrand::Rng>,
    /// Times the golden text still fails, and every other pass with it.
    pub device_down: AtomicU32,
    /// A pass failed since the golden text was last asked for by the embedder itself.
    owed: AtomicBool,
    /// Calls the sink still refuses as unavailable.
    pub sink_down: AtomicU32,
    /// Crashes of the embedder's stage to come.
    pub crashes: AtomicU32,
    /// Calls of any kind so far.
    pub calls: AtomicU64,
    cut_at: AtomicU64,
    cut: tokio::sync::Notify,
}

impl Weather {
    /// Weather from a seed.
    pub fn new(seed: u64, odds: Odds) -> Self {
        Self {
            odds,
            calm: AtomicBool::new(false),
            dice: Mutex::new(fastrand::Rng::with_seed(seed)),
            device_down: AtomicU32::new(0),
            owed: AtomicBool::new(false),
            sink_down: AtomicU32::new(0),
            crashes: AtomicU32::new(0),
            calls: AtomicU64::new(0),
            cut_at: AtomicU64::new(u64::MAX),
            cut: tokio::sync::Notify::new(),
        }
    }

    /// From now on nothing is drawn, and what is down comes up.
    pub fn calm(&self) {
        self.calm.store(true, Relaxed);
        for down in [&self.device_down, &self.sink_down, &self.crashes] {
            down.store(0, Relaxed);
        }
    }

    /// Lets [`Weather::cut`] return after this many more calls.
    pub fn cut_after(&self, calls: u64) {
        self.cut_at.store(self.calls.load(Relaxed).saturating_add(calls), Relaxed);
    }

    /// Returns when the call of [`Weather::cut_after`] has come.
    pub async fn cut(&self) {
        // What was left over from a run that ended first does not count.
        while self.calls.load(Relaxed) < self.cut_at.load(Relaxed) {
            self.cut.notified().await;
        }
    }

    /// One call from the line.
    pub fn called(&self) {
        if self.calls.fetch_add(1, Relaxed) + 1 == self.cut_at.load(Relaxed) {
            self.cut.notify_one();
        }
    }

    fn dice(&self) -> MutexGuard<'_, fastrand::Rng> {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self, odds: u64) -> bool {
        odds > 0 && !self.calm.load(Relaxed) && self.dice().u64(..1_000) < odds
    }

    /// Counts one down; true while there was something to count.
    pub(super) fn down(counter: &AtomicU32) -> bool {
        counter.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Whether a pass of `texts` texts fails. Only a golden text brings the device nearer to its return, so that a
    /// pass that failed alone always finds the golden text failing too.
    pub fn pass_fails(&self, texts: usize, golden: bool) -> bool {
        if golden {
            // The breaker's probe may have been the one that brought the device back in between.
            let probe = std::thread::current().name() == Some("forebay-probe");
            let owed = !probe && self.owed.swap(false, Relaxed);
            return Self::down(&self.device_down) || owed;
        }
        if self.device_down.load(Relaxed) == 0 && self.draw(self.odds.device) {
            self.device_down.store(self.dice().u32(1..6), Relaxed);
        }
        let down = self.device_down.load(Relaxed) > 0;
        self.owed.store(down, Relaxed);
        down || (texts > 1 && self.draw(self.odds.pass))
    }

    /// Whether the embedder's stage crashes now.
    pub fn stage_crashes(&self) -> bool {
        Self::down(&self.crashes) || self.draw(self.odds.crash)
    }

    /// Whether the sink is down now.
    pub fn sink_fails(&self) -> bool {
        if self.sink_down.load(Relaxed) == 0 && self.draw(self.odds.sink) {
            self.sink_down.store(self.dice().u32(1..6), Relaxed);
        }
        Self::down(&self.sink_down)
    }

    /// Whether the sink refuses `rows` rows as a whole.
    pub fn batch_refused(&self, rows: usize) -> bool {
        rows > 1 && self.draw(self.odds.batch)
    }

    /// Whether the sink's disk is full now.
    pub fn disk_full(&self) -> bool {
        self.draw(self.odds.full)
    }

    /// How long the sink takes over its own time.
    pub fn delay(&self) -> std::time::Duration {
        let ms = if self.draw(self.odds.slow) { self.dice().u64(1..8) } else { 0 };
        std::time::Duration::from_millis(ms)
    }

    /// Whether the sink's answer is lost.
    pub fn answer_lost(&self) -> bool {
        self.draw(self.odds.answer)
    }
}

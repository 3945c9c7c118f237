//! Faults round any embedder and any sink: texts that are poison by a word in them, and the [`Weather`].

use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

pub use super::poison::Poison;
use super::weather::Weather;
use crate::{
    chunk::{ChunkKey, Embedding},
    embed::{Capacity, Embed, EmbedError, Tokens},
    error::{Class, Fault},
    identity::Identity,
    pipeline::Line,
    sink::{Confirmed, Hit, Query, Row, Sink, SinkError, Stored},
};

/// What the wrappers share, and what they have seen. It lives longer than one run.
#[derive(Debug)]
pub struct Faults {
    /// What goes wrong from outside.
    pub weather: Weather,
    /// Forward passes asked for, golden ones apart.
    pub passes: AtomicU64,
    /// Golden texts asked for.
    pub goldens: AtomicU64,
    /// Texts in passes that gave vectors, by token ids.
    embedded: Mutex<HashMap<Vec<u32>, u32>>,
    /// Calls of `accept`.
    pub accepts: AtomicU64,
    /// Most batches seen in flight.
    pub batches_max: AtomicUsize,
    /// Most chunks seen in flight.
    pub chunks_max: AtomicUsize,
    /// Tokens that the device holds: a pass of more does not fit.
    pub fits_tokens: AtomicUsize,
    /// Passes that did not fit.
    pub overfull: AtomicU64,
    /// Milliseconds that every pass takes longer, golden ones apart.
    pub pass_ms: AtomicU64,
    /// Times that the sink panics when it has written.
    pub late_panics: AtomicU32,
    /// Probes of the sink that hang until [`Faults::release`].
    pub probes_hang: AtomicU32,
    /// Failures alone after which a flaky text works.
    pub flaky_failures: AtomicU32,
    poisoned: Mutex<HashMap<Vec<u32>, Poison>>,
    flaky: Mutex<HashMap<Vec<u32>, u32>>,
    hang: Mutex<bool>,
    released: Condvar,
    line: Mutex<Weak<Line>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(unsafe_code, reason = "std has no call that sends a signal")]
fn killed() -> ! {
    // SAFETY: a plain system call; it does not return.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    unreachable!("nobody outlives SIGKILL")
}

impl Faults {
    /// Nothing seen yet.
    pub fn new(weather: Weather) -> Arc<Self> {
        Arc::new(Self {
            weather,
            passes: AtomicU64::new(0),
            goldens: AtomicU64::new(0),
            embedded: Mutex::default(),
            accepts: AtomicU64::new(0),
            batches_max: AtomicUsize::new(0),
            chunks_max: AtomicUsize::new(0),
            fits_tokens: AtomicUsize::new(usize::MAX),
            overfull: AtomicU64::new(0),
            pass_ms: AtomicU64::new(0),
            late_panics: AtomicU32::new(0),
            probes_hang: AtomicU32::new(0),
            flaky_failures: AtomicU32::new(2),
            poisoned: Mutex::default(),
            flaky: Mutex::default(),
            hang: Mutex::new(true),
            released: Condvar::new(),
            line: Mutex::default(),
        })
    }

    /// The line whose load is looked at on every call.
    pub fn watch(&self, line: &Arc<Line>) {
        *lock(&self.line) = Arc::downgrade(line);
    }

    /// Lets passes that hang fail.
    pub fn release(&self) {
        *lock(&self.hang) = false;
        self.released.notify_all();
    }

    /// Texts that were embedded more than once.
    pub fn embedded_again(&self) -> usize {
        lock(&self.embedded).values().filter(|times| **times > 1).count()
    }

    fn called(&self) {
        self.weather.called();
        let line = lock(&self.line).upgrade();
        if let Some(line) = line {
            let batches = line.settings.pipeline.batches_in_flight - line.permits.available_permits();
            self.batches_max.fetch_max(batches, Relaxed);
            self.chunks_max.fetch_max(line.folder.queue.depth().in_flight, Relaxed);
        }
    }

    /// A pass that takes its time; [`Faults::release`] does not hurry it.
    fn slowly(&self) {
        let until = Instant::now() + Duration::from_millis(self.pass_ms.load(Relaxed));
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            std::thread::park_timeout(left);
        }
    }

    fn poison(&self, ids: &[u32]) -> Option<Poison> {
        lock(&self.poisoned).get(ids).copied()
    }

    fn hang(&self) {
        let _hang = self.released.wait_while(lock(&self.hang), |hang| *hang);
    }

    fn one_fails(&self, ids: &[u32], texts: usize) -> Result<(), EmbedError> {
        let failed = || Err(EmbedError::Failed("a fault was planted".into()));
        match self.poison(ids) {
            Some(Poison::Pass) => failed(),
            Some(Poison::Panic) => panic!("a planted panic in the pass"),
            Some(Poison::Abort) => std::process::abort(),
            Some(Poison::Kill) => killed(),
            Some(Poison::Memory) => Err(EmbedError::OutOfMemory { texts, message: "planted".into() }),
            Some(Poison::Hang) => {
                self.hang();
                failed()
            }
            Some(Poison::Flaky) => {
                let mut flaky = lock(&self.flaky);
                let times = flaky.entry(ids.to_vec()).or_default();
                *times += u32::from(texts == 1);
                if *times > self.flaky_failures.load(Relaxed) { Ok(()) } else { failed() }
            }
            _ => Ok(()),
        }
    }
}

/// An embedder with faults.
pub struct FaultyEmbed {
    /// The embedder.
    pub inner: Arc<dyn Embed>,
    /// The faults.
    pub faults: Arc<Faults>,
}

impl Embed for FaultyEmbed {
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    fn dim(&self) -> usize {
        self.inner.dim()
    }

    fn max_length(&self) -> usize {
        self.inner.max_length()
    }

    fn count(&self, text: &str) -> usize {
        self.inner.count(text)
    }

    fn tokenize(&self, text: &str) -> Result<Tokens, Fault> {
        self.faults.called();
        let poison = Poison::of(text);
        match poison {
            Some(Poison::Tokenizer) => return Err(Fault::new(Class::TokenizerFailed, "a fault was planted")),
            Some(Poison::TokenizerPanic) => panic!("a planted panic in the tokenizer"),
            _ => {}
        }
        let tokens = self.inner.tokenize(text)?;
        if let Some(poison) = poison {
            lock(&self.faults.poisoned).insert(tokens.ids.clone(), poison);
        }
        Ok(tokens)
    }

    fn tokenize_query(&self, text: &str) -> Result<Tokens, Fault> {
        self.inner.tokenize_query(text)
    }

    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn plan_within(&self, lengths: &[usize], tokens: usize) -> Vec<Vec<usize>> {
        assert!(!self.faults.weather.stage_crashes(), "a planted crash of the stage");
        self.inner.plan_within(lengths, tokens)
    }

    fn embed(&self, batch: &[&Tokens]) -> Result<Vec<Result<Embedding, Fault>>, EmbedError> {
        let golden = batch.len() == 1 && *batch[0] == self.inner.golden();
        let counter = if golden { &self.faults.goldens } else { &self.faults.passes };
        counter.fetch_add(1, Relaxed);
        self.faults.called();
        if self.faults.weather.pass_fails(batch.len(), golden) {
            return Err(EmbedError::Failed("the device is down".into()));
        }
        if !golden {
            self.faults.slowly();
        }
        let tokens: usize = batch.iter().map(|tokens| tokens.ids.len()).sum();
        if tokens > self.faults.fits_tokens.load(Relaxed) {
            self.faults.overfull.fetch_add(1, Relaxed);
            return Err(EmbedError::OutOfMemory { texts: batch.len(), message: "planted".into() });
        }
        for tokens in batch {
            self.faults.one_fails(&tokens.ids, batch.len())?;
        }
        let mut vectors = self.inner.embed(batch)?;
        for (tokens, vector) in batch.iter().zip(&mut vectors) {
            if self.faults.poison(&tokens.ids) == Some(Poison::NotFinite) {
                *vector = Err(Fault::new(Class::NonFiniteVector, "a fault was planted"));
            } else if !golden {
                *lock(&self.faults.embedded).entry(tokens.ids.clone()).or_default() += 1;
            }
        }
        Ok(vectors)
    }

    fn golden(&self) -> Tokens {
        self.inner.golden()
    }
}

/// A sink with faults.
pub struct FaultySink {
    /// The sink.
    pub inner: Arc<dyn Sink>,
    /// The faults.
    pub faults: Arc<Faults>,
}

fn unavailable() -> SinkError {
    SinkError::Unavailable(Fault::new(Class::SinkUnavailable, "a fault was planted"))
}

impl Sink for FaultySink {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn is_idempotent(&self) -> bool {
        self.inner.is_idempotent()
    }

    fn preflight(&self, id: &Identity, dim: usize, store: &str, reembed: bool) -> Result<(), SinkError> {
        self.inner.preflight(id, dim, store, reembed)
    }

    fn accept(&self, rows: &[Row]) -> Result<Confirmed, SinkError> {
        self.faults.accepts.fetch_add(1, Relaxed);
        self.faults.called();
        std::thread::park_timeout(self.faults.weather.delay());
        if self.faults.weather.disk_full() {
            return Err(SinkError::Unavailable(Fault::new(Class::DiskFull, "a full disk was planted")));
        }
        if self.faults.weather.sink_fails() {
            return Err(unavailable());
        }
        let refused = |why: &str| Fault::new(Class::SinkRejectedRow, why);
        for (index, row) in rows.iter().enumerate() {
            match Poison::of(&row.text) {
                Some(Poison::Row) => {
                    return Err(SinkError::Row { index, fault: refused("a fault was planted") });
                }
                Some(Poison::Batch) => return Err(SinkError::Batch(refused("a fault was planted"))),
                Some(Poison::SinkPanic) => panic!("a planted panic in the sink"),
                _ => {}
            }
        }
        if self.faults.weather.batch_refused(rows.len()) {
            return Err(SinkError::Batch(refused("a passing fault")));
        }
        let confirmed = self.inner.accept(rows)?;
        assert!(!Weather::down(&self.faults.late_panics), "a planted panic of the sink that has written");
        if self.faults.weather.answer_lost() {
            self.inner.confirm()?;
            return Err(SinkError::Unknown(Fault::new(Class::Timeout, "an answer was lost")));
        }
        Ok(confirmed)
    }

    fn confirm(&self) -> Result<(), SinkError> {
        self.inner.confirm()
    }

    fn delete(&self, keys: &[ChunkKey]) -> Result<(), SinkError> {
        if self.faults.weather.sink_fails() {
            return Err(unavailable());
        }
        self.inner.delete(keys)
    }

    fn rows_of(&self, doc_id: &str) -> Result<Vec<Stored>, SinkError> {
        self.inner.rows_of(doc_id)
    }

    fn scrub(&self) -> Result<bool, SinkError> {
        self.inner.scrub()
    }

    fn probe(&self) -> Result<(), SinkError> {
        if Weather::down(&self.faults.probes_hang) {
            self.faults.hang();
        }
        if self.faults.weather.sink_fails() {
            return Err(unavailable());
        }
        self.inner.probe()
    }

    fn scan(
        &self,
        store: Option<&str>,
        each: &mut dyn FnMut(Stored) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        self.inner.scan(store, each)
    }

    fn held(&self) -> Result<Option<String>, SinkError> {
        self.inner.held()
    }

    fn embeddings(&self, keys: &[ChunkKey]) -> Result<Vec<Option<Embedding>>, SinkError> {
        self.inner.embeddings(keys)
    }

    fn search(&self, identity: &Identity, query: &Query, limit: usize) -> Result<Vec<Hit>, SinkError> {
        self.inner.search(identity, query, limit)
    }
}

//! Faults round any embedder and any sink: texts that are poison by a word in them, and the [`Weather`].

use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use super::weather::Weather;
use crate::{
    chunk::{ChunkKey, Embedding},
    embed::{Embed, EmbedError, Tokens},
    error::{Class, Fault},
    identity::Identity,
    pipeline::Line,
    sink::{Confirmed, Hit, Row, Sink, SinkError, Stored},
};

/// What a word in a text does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Poison {
    /// The pass fails as a whole.
    Pass,
    /// The pass panics.
    Panic,
    /// The pass does not fit into memory.
    Memory,
    /// The vector is not finite.
    NotFinite,
    /// The tokenizer refuses.
    Tokenizer,
    /// The tokenizer panics.
    TokenizerPanic,
    /// The sink refuses the row by its index.
    Row,
    /// The sink refuses the batch and does not say why.
    Batch,
    /// The sink panics.
    SinkPanic,
    /// The pass hangs until [`Faults::release`].
    Hang,
    /// The pass fails as a whole until the text has failed [`Faults::flaky_failures`] times alone.
    Flaky,
}

impl Poison {
    /// Those that end in a dead letter, whatever is tried.
    pub const LETHAL: [Self; 9] = [
        Self::Pass,
        Self::Panic,
        Self::Memory,
        Self::NotFinite,
        Self::Tokenizer,
        Self::TokenizerPanic,
        Self::Row,
        Self::Batch,
        Self::SinkPanic,
    ];

    /// The word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "poison-pass",
            Self::Panic => "poison-panic",
            Self::Memory => "poison-memory",
            Self::NotFinite => "poison-vector",
            Self::Tokenizer => "poison-tokenizer",
            Self::TokenizerPanic => "poison-split",
            Self::Row => "poison-row",
            Self::Batch => "poison-batch",
            Self::SinkPanic => "poison-sink",
            Self::Hang => "poison-hang",
            Self::Flaky => "flaky",
        }
    }

    /// The class its dead letter must have; `None` when it must not have one.
    pub const fn class(self) -> Option<Class> {
        match self {
            Self::Pass => Some(Class::ModelFailed),
            Self::Panic | Self::SinkPanic => Some(Class::InternalPanic),
            Self::Memory => Some(Class::OutOfMemory),
            Self::NotFinite => Some(Class::NonFiniteVector),
            Self::Tokenizer | Self::TokenizerPanic => Some(Class::TokenizerFailed),
            Self::Row | Self::Batch => Some(Class::SinkRejectedRow),
            Self::Hang | Self::Flaky => None,
        }
    }

    /// The poison in a text.
    pub fn of(text: &str) -> Option<Self> {
        let all = [Self::Hang, Self::Flaky].into_iter().chain(Self::LETHAL);
        all.into_iter().find(|poison| text.contains(poison.word()))
    }
}

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

    fn poison(&self, ids: &[u32]) -> Option<Poison> {
        lock(&self.poisoned).get(ids).copied()
    }

    fn one_fails(&self, ids: &[u32], texts: usize) -> Result<(), EmbedError> {
        let failed = || Err(EmbedError::Failed("a fault was planted".into()));
        match self.poison(ids) {
            Some(Poison::Pass) => failed(),
            Some(Poison::Panic) => panic!("a planted panic in the pass"),
            Some(Poison::Memory) => Err(EmbedError::OutOfMemory { texts, message: "planted".into() }),
            Some(Poison::Hang) => {
                let hang = lock(&self.hang);
                let _hang = self.released.wait_while(hang, |hang| *hang);
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

    fn plan(&self, lengths: &[usize]) -> Vec<Vec<usize>> {
        assert!(!self.faults.weather.stage_crashes(), "a planted crash of the stage");
        self.inner.plan(lengths)
    }

    fn embed(&self, batch: &[&Tokens]) -> Result<Vec<Result<Embedding, Fault>>, EmbedError> {
        let golden = batch.len() == 1 && *batch[0] == self.inner.golden();
        let counter = if golden { &self.faults.goldens } else { &self.faults.passes };
        counter.fetch_add(1, Relaxed);
        self.faults.called();
        if self.faults.weather.pass_fails(batch.len(), golden) {
            return Err(EmbedError::Failed("the device is down".into()));
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

    fn vectors(&self, keys: &[ChunkKey]) -> Result<Vec<Option<Vec<f32>>>, SinkError> {
        self.inner.vectors(keys)
    }

    fn search(&self, identity: &Identity, query: &[f32], limit: usize) -> Result<Vec<Hit>, SinkError> {
        self.inner.search(identity, query, limit)
    }
}

//! Passes by real tokens and by memory: what does not fit is halved and remembered, and the device is fed while it works.
#![cfg(feature = "testkit")]

use std::{
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use forebay::{
    chunk::{Chunk, ChunkKey, Digest, Embedding},
    embed::{Capacity, Embed, EmbedError, Tokens},
    error::Fault,
    identity::Identity,
    pipeline::Line,
    testkit::rig::{Rig, chunk_line, instant},
};

/// Chunks of `words` words each, no two alike.
fn chunks(name: &str, n: usize, words: usize) -> Vec<String> {
    let text = |i: usize| (0..words).map(|w| format!("{name}{i}w{w}")).collect::<Vec<_>>().join(" ");
    (0..n).map(|i| chunk_line(&format!("{name}-{i}"), 0, &text(i))).collect()
}

/// Puts them into the queue, so that the batches of the next run are certain: as full as they may be.
fn fill(rig: &Rig, name: &str, n: u64, words: usize) {
    let folder = rig.folder();
    for index in 0..n {
        let text = (0..words).map(|w| format!("{name}{index}w{w}")).collect::<Vec<_>>().join(" ");
        let (key, source_hash) = (ChunkKey::new(name, index), Digest::of(text.as_bytes()));
        let chunk = Chunk { key, text, meta: None, source_hash, source_id: 1, ordinal: index, line: 1 };
        folder.queue.enqueue(chunk).unwrap();
    }
    folder.queue.flush().unwrap();
}

/// What the data folder remembers, by device and model.
fn remembered(rig: &Rig) -> serde_json::Map<String, serde_json::Value> {
    let text = std::fs::read_to_string(rig.data().join("budgets.json")).unwrap_or_else(|_| "{}".into());
    serde_json::from_str(&text).unwrap()
}

fn budget(rig: &Rig) -> Option<u64> {
    let found = remembered(rig);
    assert!(found.len() <= 1 && found.keys().all(|key| key.starts_with("cpu instant@1/")), "{found:?}");
    found.values().next().map(|tokens| tokens.as_u64().unwrap())
}

#[test]
fn a_pass_that_does_not_fit_is_halved_remembered_and_grows_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.model = instant(640);
    rig.faults.fits_tokens.store(400, Relaxed);
    fill(&rig, "a", 300, 10);
    let report = rig.run(&[]);
    assert_eq!((report.chunks, report.dead, report.pending), (300, 0, 0), "nothing is buried: {report:?}");
    assert_eq!(rig.faults.embedded_again(), 0, "no text is embedded twice");
    assert_eq!(rig.faults.overfull.load(Relaxed), 1, "the next batch was planned smaller");
    assert_eq!(budget(&rig), Some(320));

    // The next run starts where this one left.
    rig.faults.passes.store(0, Relaxed);
    fill(&rig, "b", 128, 10);
    assert_eq!(rig.run(&[]).chunks, 128);
    assert_eq!(
        (rig.faults.overfull.load(Relaxed), rig.faults.passes.load(Relaxed)),
        (1, 4),
        "64 are 32 and 32"
    );

    // The memory is back: the budget grows, and is forgotten when it is what was set.
    rig.faults.fits_tokens.store(usize::MAX, Relaxed);
    fill(&rig, "c", 900, 40);
    assert_eq!(rig.run(&[]).chunks, 900);
    let grown = budget(&rig).unwrap();
    assert!(grown > 320 && grown < 640, "{grown}");
    fill(&rig, "d", 1_000, 40);
    assert_eq!(rig.run(&[]).chunks, 1_000);
    assert_eq!(budget(&rig), None);
    assert_eq!(rig.faults.overfull.load(Relaxed), 1);
}

#[test]
fn a_text_that_never_fits_is_buried_alone_and_does_not_make_every_pass_small() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.model = instant(5_000);
    rig.faults.fits_tokens.store(3_000, Relaxed);
    let mut lines = chunks("a", 60, 40);
    lines.push(chunk_line("long", 0, &"word ".repeat(4_000)));
    let report = rig.run(&[rig.input("in.jsonl", &lines)]);
    assert_eq!((report.chunks, report.dead), (60, 1));
    // Together with its neighbours it failed once; they fit without it.
    assert!(budget(&rig).is_none_or(|tokens| tokens >= 1_000), "{:?}", remembered(&rig));
}

#[test]
fn damage_to_what_is_remembered_is_harmless() {
    for damage in ["", "not json", "{\"cpu instant@1/dense-64/f32/8192\": 0}", "[]"] {
        let dir = tempfile::tempdir().unwrap();
        let rig = Rig::new(dir.path());
        drop(rig.line());
        std::fs::write(rig.data().join("budgets.json"), damage).unwrap();
        let report = rig.run(&[rig.input("in.jsonl", &chunks("a", 50, 10))]);
        assert_eq!((report.chunks, report.dead), (50, 0), "{damage:?}");
    }
}

/// Counts that a test waits for.
#[derive(Default)]
struct Counts(Mutex<(usize, usize)>, Condvar);

impl Counts {
    fn change(&self, change: impl FnOnce(&mut (usize, usize))) {
        change(&mut self.0.lock().unwrap());
        self.1.notify_all();
    }

    /// True when `enough` of what is tokenised and in passes, before much time has gone.
    fn wait(&self, enough: impl Fn(usize, usize) -> bool) -> bool {
        let short = |counts: &mut (usize, usize)| !enough(counts.0, counts.1);
        let (_counts, waited) =
            self.1.wait_timeout_while(self.0.lock().unwrap(), Duration::from_secs(20), short).unwrap();
        !waited.timed_out()
    }
}

/// A model whose passes last until the next batch is tokenised.
struct Slow {
    inner: Arc<dyn Embed>,
    all: usize,
    counts: Arc<Counts>,
    starved: AtomicUsize,
}

impl Embed for Slow {
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
        self.counts.change(|counts| counts.0 += 1);
        self.inner.tokenize(text)
    }
    fn tokenize_query(&self, text: &str) -> Result<Tokens, Fault> {
        self.inner.tokenize_query(text)
    }
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }
    fn embed(&self, batch: &[&Tokens]) -> Result<Vec<Result<Embedding, Fault>>, EmbedError> {
        self.counts.change(|counts| counts.1 += batch.len());
        // A whole batch more than is in passes: it waits for the device, and not the device for it.
        let all = self.all;
        if !self.counts.wait(|tokenised, passed| tokenised >= all.min(passed + 64)) {
            self.starved.fetch_add(1, Relaxed);
        }
        self.inner.embed(batch)
    }
    fn golden(&self) -> Tokens {
        self.inner.golden()
    }
}

fn slow_line(dir: &Path, all: usize) -> (Arc<Line>, Arc<Slow>) {
    let rig = Rig::new(dir);
    let line = rig.line();
    let inner = Arc::clone(&line.model);
    drop(line);
    let slow = Arc::new(Slow { inner, all, counts: Arc::default(), starved: AtomicUsize::new(0) });
    let model: Arc<dyn Embed> = Arc::clone(&slow) as _;
    let (folder, sink) = (rig.folder(), rig.plain_sink());
    sink.preflight(model.identity(), model.dim(), &folder.store, false).unwrap();
    let line = Line::new(folder, model, sink, rig.settings.clone()).unwrap();
    (line, slow)
}

#[test]
fn the_next_batch_is_tokenised_while_the_device_works() {
    let dir = tempfile::tempdir().unwrap();
    fill(&Rig::new(dir.path()), "a", 640, 5);
    let (line, slow) = slow_line(dir.path(), 640);
    let system = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let report = system.block_on(forebay::pipeline::run(&line, &[])).unwrap();
    assert_eq!((report.chunks, report.passes), (640, 10));
    assert_eq!(slow.starved.load(Relaxed), 0, "passes that ended before the next batch was tokenised");
}

//! What each kind of failure costs, and whom: outages, rate limits, lost answers, calls that never come back, alerts.

use std::{
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use forebay::{
    chunk::{Chunk, ChunkKey, Digest, Embedding},
    embed::{Capacity, Embed, EmbedError, Tokens},
    error::{Class, Fault, Stage},
    identity::Identity,
    pipeline::{
        Line, Stop,
        report::{Outcome, Report},
    },
    queue::{
        Leased, Settlement,
        dead::{DeadLetter, State},
        dlq::Filter,
    },
    sink::{Confirmed, Hit, Query, Row, Sink, SinkError, Stored},
    testkit::{faults::Poison, memory::Memory, rig::Rig},
};

/// A gate that calls wait at until the test lets them through.
#[derive(Default)]
struct Hold(Mutex<bool>, Condvar);

impl Hold {
    fn wait(&self) {
        let open = self.0.lock().unwrap();
        drop(self.1.wait_while(open, |open| !*open).unwrap());
    }

    fn release(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }
}

/// What a scripted call says: nothing, and it is carried out, or this.
type Say<E> = Box<dyn Fn(usize) -> Option<E> + Send + Sync>;

/// A sink in memory that says what the test wants at its nth call.
struct Script {
    inner: Memory,
    /// Before the write.
    before: Say<SinkError>,
    /// After it.
    after: Say<SinkError>,
    probed: Say<SinkError>,
    accepts: AtomicUsize,
    probes: AtomicUsize,
}

fn never<E: 'static>() -> Say<E> {
    Box::new(|_| None)
}

impl Script {
    fn new() -> Self {
        Self {
            inner: Memory::new(false),
            before: never(),
            after: never(),
            probed: never(),
            accepts: AtomicUsize::new(0),
            probes: AtomicUsize::new(0),
        }
    }
}

impl Sink for Script {
    fn kind(&self) -> &'static str {
        "script"
    }
    fn is_idempotent(&self) -> bool {
        self.inner.is_idempotent()
    }
    fn preflight(&self, id: &Identity, dim: usize, store: &str, reembed: bool) -> Result<(), SinkError> {
        self.inner.preflight(id, dim, store, reembed)
    }
    fn accept(&self, rows: &[Row]) -> Result<Confirmed, SinkError> {
        let call = self.accepts.fetch_add(1, Relaxed);
        (self.before)(call).map_or(Ok(()), Err)?;
        let confirmed = self.inner.accept(rows)?;
        (self.after)(call).map_or(Ok(confirmed), Err)
    }
    fn confirm(&self) -> Result<(), SinkError> {
        self.inner.confirm()
    }
    fn delete(&self, keys: &[ChunkKey]) -> Result<(), SinkError> {
        self.inner.delete(keys)
    }
    fn probe(&self) -> Result<(), SinkError> {
        (self.probed)(self.probes.fetch_add(1, Relaxed)).map_or(Ok(()), Err)
    }
    fn scan(
        &self,
        store: Option<&str>,
        each: &mut dyn FnMut(Stored) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        self.inner.scan(store, each)
    }
    fn embeddings(&self, keys: &[ChunkKey]) -> Result<Vec<Option<Embedding>>, SinkError> {
        self.inner.embeddings(keys)
    }
    fn search(&self, identity: &Identity, query: &Query, limit: usize) -> Result<Vec<Hit>, SinkError> {
        self.inner.search(identity, query, limit)
    }
}

/// The instant model, saying what the test wants at its nth pass and tokenising.
struct Server {
    inner: Arc<dyn Embed>,
    passed: Say<EmbedError>,
    tokenized: Say<Fault>,
    passes: AtomicUsize,
    texts: AtomicUsize,
}

impl Server {
    fn new(rig: &Rig) -> Self {
        // Another folder: only the model of this line is wanted.
        let line = Rig::new(&rig.dir.join("model")).line();
        let inner = Arc::clone(&line.model);
        Self {
            inner,
            passed: never(),
            tokenized: never(),
            passes: AtomicUsize::new(0),
            texts: AtomicUsize::new(0),
        }
    }
}

impl Embed for Server {
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
        (self.tokenized)(self.texts.fetch_add(1, Relaxed)).map_or_else(|| self.inner.tokenize(text), Err)
    }
    fn tokenize_query(&self, text: &str) -> Result<Tokens, Fault> {
        self.inner.tokenize_query(text)
    }
    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }
    fn embed(&self, batch: &[&Tokens]) -> Result<Vec<Result<Embedding, Fault>>, EmbedError> {
        (self.passed)(self.passes.fetch_add(1, Relaxed)).map_or_else(|| self.inner.embed(batch), Err)
    }
    fn golden(&self) -> Tokens {
        self.inner.golden()
    }
}

fn rig(dir: &Path) -> Rig {
    std::fs::create_dir_all(dir.join("model")).unwrap();
    Rig::new(dir)
}

fn fill(rig: &Rig, count: u64) {
    fill_with(rig, (0..count).map(|n| format!("text number n{n}")));
}

fn fill_with(rig: &Rig, texts: impl Iterator<Item = String>) {
    let folder = rig.folder();
    for (n, text) in (0..).zip(texts) {
        let source_hash = Digest::of(text.as_bytes());
        let key = ChunkKey::new(format!("d{n}"), 0);
        folder
            .queue
            .enqueue(Chunk { key, text, meta: None, source_hash, source_id: 1, ordinal: n, line: 1 })
            .unwrap();
    }
    folder.queue.flush().unwrap();
}

/// Runs a line over these parts; `release` is called once it has ended.
fn run(rig: &Rig, model: Option<Server>, sink: Arc<dyn Sink>, release: &Hold) -> Report {
    let model = Arc::new(model.unwrap_or_else(|| Server::new(rig)));
    let folder = rig.folder();
    sink.preflight(model.identity(), model.dim(), &folder.store, false).unwrap();
    let mut line = Line::new(folder, model, sink, rig.settings.clone()).unwrap();
    let system = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let report = system.block_on(forebay::pipeline::run(&line, &[])).unwrap();
    line.stop(Stop::Interrupted);
    release.release();
    drop(system);
    let start = Instant::now();
    while let Err(shared) = Arc::try_unwrap(line) {
        line = shared;
        assert!(start.elapsed() < Duration::from_secs(20), "something still holds the line after its end");
        std::thread::park_timeout(Duration::from_millis(1));
    }
    assert!(report.adds_up(), "{report:?}");
    report
}

fn run_sink(rig: &Rig, sink: &Arc<Script>) -> Report {
    run(rig, None, Arc::clone(sink) as Arc<dyn Sink>, &Hold::default())
}

fn letters(rig: &Rig) -> Vec<DeadLetter> {
    rig.folder().queue.letters(&Filter { closed_too: true, ..Filter::default() }, usize::MAX).unwrap()
}

/// Nothing is lost, nothing charged, no unclean end counted.
fn all_queued(rig: &Rig, count: usize) {
    let folder = rig.folder();
    assert_eq!(folder.recovered.unclean, 0, "an unclean end is counted");
    let Leased::Chunks(chunks) = folder.queue.lease(10_000, usize::MAX).unwrap() else {
        panic!("nothing is queued")
    };
    assert_eq!(chunks.len(), count);
    assert!(chunks.iter().all(|(lease, _)| lease.record().attempts == 0));
    drop(chunks);
    drop(folder);
    assert_eq!(letters(rig), []);
}

fn fault(class: Class) -> Fault {
    Fault::new(class, "planted")
}

#[test]
fn a_row_that_a_sink_puts_off_is_put_off_and_never_charged() {
    for class in [Class::RateLimited, Class::ServerError, Class::Timeout, Class::SinkConflict] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = rig(dir.path());
        rig.settings.breaker.threshold = 100;
        let mut sink = Script::new();
        // More often than there are attempts.
        sink.before =
            Box::new(move |call| (call < 7).then(|| SinkError::Row { index: 0, fault: fault(class) }));
        fill(&rig, 5);
        let report = run_sink(&rig, &Arc::new(sink));
        assert_eq!((report.chunks, report.dead, report.outcome), (5, 0, Outcome::Complete), "{class}");
        assert_eq!(letters(&rig), [], "{class}");
    }
}

#[test]
fn a_batch_waits_as_long_as_it_was_asked_to_and_no_longer_than_the_cap() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    let mut sink = Script::new();
    let day = Duration::from_secs(86_400);
    sink.before = Box::new(move |call| {
        (call == 0).then(|| SinkError::Unavailable(fault(Class::RateLimited).with_retry_after(day)))
    });
    fill(&rig, 5);
    let report = run_sink(&rig, &Arc::new(sink));
    assert_eq!((report.chunks, report.embedded), (5, 5));
    assert!((1.0..10.0).contains(&report.wall_s), "retry_after_max_s is 1: {}", report.wall_s);
}

#[test]
fn a_class_that_halts_stops_the_line_at_once_and_says_what_to_do() {
    for class in [Class::AuthFailed, Class::ModelMismatch] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = rig(dir.path());
        rig.settings.pipeline.grace_s = 30;
        let mut sink = Script::new();
        sink.before = Box::new(move |_| Some(SinkError::Unavailable(fault(class))));
        fill(&rig, 5);
        let report = run_sink(&rig, &Arc::new(sink));
        assert_eq!((report.outcome, report.chunks, report.pending), (Outcome::Halted, 0, 5), "{class}");
        let why = report.halted.unwrap();
        assert!(why.contains(class.remedy()) && why.contains("stays queued"), "{why}");
        assert!(report.wall_s < 10.0, "{}", report.wall_s);
        all_queued(&rig, 5);
    }
}

#[test]
fn a_device_that_is_lost_halts_and_a_server_that_fails_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    fill(&rig, 20);
    let mut model = Server::new(&rig);
    model.passed = Box::new(|_| Some(EmbedError::Unavailable(fault(Class::DeviceLost))));
    let report = run(&rig, Some(model), Arc::new(Script::new()), &Hold::default());
    assert_eq!((report.outcome, report.pending, report.passes), (Outcome::Halted, 20, 1));
    assert!(report.halted.unwrap().contains("forebay check"));
    all_queued(&rig, 20);
    let mut model = Server::new(&rig);
    let classes = [Class::RateLimited, Class::ServerError, Class::Timeout];
    model.passed = Box::new(move |pass| Some(EmbedError::Unavailable(fault(*classes.get(pass)?))));
    let report = run(&rig, Some(model), Arc::new(Script::new()), &Hold::default());
    assert_eq!((report.outcome, report.chunks, report.dead), (Outcome::Complete, 20, 0));
}

#[test]
fn a_device_that_recovers_between_a_failed_pass_and_the_golden_text_charges_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    fill(&rig, 1);
    let mut model = Server::new(&rig);
    model.passed = Box::new(|pass| (pass == 0).then(|| EmbedError::Failed("gone for a moment".into())));
    let sink = Arc::new(Script::new());
    let tells = Arc::clone(&sink);
    let report = run(&rig, Some(model), sink, &Hold::default());
    // The pass that failed, and once more; a retry that was charged would have been a third lease.
    assert_eq!((report.chunks, report.passes, tells.accepts.load(Relaxed)), (1, 2, 1));
}

#[test]
fn a_lost_answer_at_a_sink_that_takes_rows_twice_is_written_again_and_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    let mut sink = Script::new();
    sink.after = Box::new(|call| (call < 2).then(|| SinkError::Unknown(fault(Class::Timeout))));
    let sink = Arc::new(sink);
    fill(&rig, 5);
    let report = run_sink(&rig, &sink);
    assert_eq!((report.chunks, report.dead, report.embedded), (5, 0, 5));
    assert!(sink.inner.times().values().all(|times| *times == 3), "by key, so one row is left of each");
    assert_eq!(rig.folder().ledger.count().unwrap(), 5);
}

#[test]
fn a_lost_answer_at_a_sink_that_appends_is_left_to_a_person() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    rig.settings.pipeline.batch_chunks = 4;
    let mut sink = Script { inner: Memory::appending(), ..Script::new() };
    sink.after = Box::new(|call| (call == 1).then(|| SinkError::Unknown(fault(Class::Timeout))));
    let sink = Arc::new(sink);
    fill(&rig, 12);
    let report = run_sink(&rig, &sink);
    assert_eq!((report.chunks, report.dead, report.outcome), (8, 4, Outcome::Partial));
    assert!(sink.inner.times().values().all(|times| *times == 1), "nothing is written twice");
    let letters = letters(&rig);
    assert_eq!(letters.len(), 4);
    for letter in letters {
        assert_eq!((letter.class, letter.stage, letter.attempts), (Class::UnknownOutcome, Stage::Writer, 0));
        assert!(matches!(letter.state, State::Open | State::Quarantined), "{:?}", letter.state);
    }
    // Running again leaves them alone.
    let again = run_sink(&rig, &sink);
    assert_eq!(again.embedded, 0);
}

#[test]
fn a_sink_that_panics_and_appends_is_not_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    let mut sink = Script { inner: Memory::appending(), ..Script::new() };
    sink.after = Box::new(|_| panic!("a planted panic after the write"));
    let sink = Arc::new(sink);
    fill(&rig, 3);
    assert_eq!(run_sink(&rig, &sink).dead, 3);
    assert!(sink.inner.times().values().all(|times| *times == 1));
    assert!(letters(&rig).iter().all(|letter| letter.class == Class::UnknownOutcome));
}

#[test]
fn a_write_that_hangs_halts_the_run_and_no_chunk_pays() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    (rig.settings.pipeline.watchdog_s, rig.settings.pipeline.batch_chunks) = (1, 4);
    let (hold, mut sink) = (Arc::new(Hold::default()), Script::new());
    let wait = Arc::clone(&hold);
    sink.before = Box::new(move |_| {
        wait.wait();
        Some(SinkError::Unavailable(fault(Class::Timeout)))
    });
    fill(&rig, 20);
    let report = run(&rig, None, Arc::new(sink), &hold);
    assert_eq!((report.outcome, report.chunks, report.pending), (Outcome::Halted, 0, 20));
    let why = report.halted.unwrap();
    assert!(why.contains("the sink") && why.contains("watchdog_s = 1"), "{why}");
    assert!(report.wall_s < 8.0, "{}", report.wall_s);
    all_queued(&rig, 20);
}

#[test]
fn a_tokenizer_that_hangs_halts_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    rig.settings.pipeline.watchdog_s = 1;
    let hold = Arc::new(Hold::default());
    let mut model = Server::new(&rig);
    let wait = Arc::clone(&hold);
    model.tokenized = Box::new(move |call| {
        if call == 2 {
            wait.wait();
        }
        None
    });
    fill(&rig, 5);
    let report = run(&rig, Some(model), Arc::new(Script::new()), &hold);
    assert_eq!((report.outcome, report.chunks, report.pending), (Outcome::Halted, 0, 5));
    assert!(report.halted.unwrap().contains("the tokenizer has not come back"));
}

#[test]
fn f08_probes_that_hang_are_not_followed_by_more_without_end_and_giving_up_lets_go_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    rig.settings.pipeline.grace_s = 60;
    rig.settings.breaker.probe_timeout_s = 1;
    rig.settings.breaker.give_up_after_s = 3;
    let (hold, mut sink) = (Arc::new(Hold::default()), Script::new());
    sink.before = Box::new(|_| Some(SinkError::Unavailable(fault(Class::SinkUnavailable))));
    let wait = Arc::clone(&hold);
    sink.probed = Box::new(move |_| {
        wait.wait();
        None
    });
    let sink = Arc::new(sink);
    fill(&rig, 10);
    let report = run(&rig, None, Arc::clone(&sink) as Arc<dyn Sink>, &hold);
    assert_eq!((report.outcome, report.pending), (Outcome::Halted, 10));
    assert!(report.halted.unwrap().contains("give_up_after_s = 3"));
    assert!(sink.probes.load(Relaxed) <= 3, "probes after three that hang");
    assert!((3.0..12.0).contains(&report.wall_s), "the grace period was waited for: {}", report.wall_s);
    all_queued(&rig, 10);
}

#[test]
fn a_sink_whose_probe_works_while_every_write_fails_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    rig.settings.breaker.give_up_after_s = 2;
    let mut sink = Script::new();
    sink.before = Box::new(|_| Some(SinkError::Unavailable(fault(Class::SinkUnavailable))));
    fill(&rig, 10);
    let report = run_sink(&rig, &Arc::new(sink));
    assert_eq!((report.outcome, report.pending), (Outcome::Halted, 10));
    all_queued(&rig, 10);
}

#[test]
fn only_waits_that_were_charged_add_up_and_they_survive_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let rig = rig(dir.path());
    fill(&rig, 1);
    let retry = |attempts, ms: u64| {
        let folder = rig.folder();
        let lease = loop {
            match folder.queue.lease(1, usize::MAX).unwrap() {
                Leased::Chunks(mut chunks) => break chunks.remove(0).0,
                _ => std::thread::park_timeout(Duration::from_millis(2)),
            }
        };
        let history = (lease.record().attempts, lease.record().waited_ms);
        let after = Duration::from_millis(ms);
        folder.queue.settle(vec![Settlement::Retry { lease, attempts, after }]).unwrap();
        folder.queue.flush().unwrap();
        history
    };
    assert_eq!(retry(1, 30), (0, 0));
    assert_eq!(retry(1, 20), (1, 30));
    assert_eq!(retry(2, 40), (1, 30), "it was put off, and paid nothing for it");
    assert_eq!(retry(2, 1), (2, 70));
}

#[test]
fn alerts_are_raised_once_and_their_command_gets_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = rig(dir.path());
    let out = dir.path().join("alerts.jsonl");
    rig.settings.alert.depth = 3;
    rig.settings.alert.command = format!("cat >> {}", out.display());
    let word = |n: usize| match n {
        1 | 4 => Poison::Row.word(),
        2 => Poison::NotFinite.word(),
        _ => "good",
    };
    fill_with(&rig, (0..6).map(|n| format!("secret number n{n} {}", word(n))));
    assert_eq!(rig.run(&[]).dead, 3);
    let told = std::fs::read_to_string(&out).unwrap();
    assert!(!told.contains("secret"), "{told}");
    let events: Vec<serde_json::Value> =
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut kinds: Vec<(&str, &str)> = events
        .iter()
        .map(|event| (event["alert"].as_str().unwrap(), event["class"].as_str().unwrap_or("-")))
        .collect();
    kinds.sort_unstable();
    let first = "first_of_class";
    assert_eq!(kinds, [("depth", "-"), (first, "non_finite_vector"), (first, "sink_rejected_row")]);
    assert!(events.iter().all(|event| event["oldest_at"].is_string() && event["run"].is_string()));
    // The next run finds them as they are: deep, and nothing new.
    rig.run(&[]);
    let again = std::fs::read_to_string(&out).unwrap();
    assert_eq!(again.lines().count(), 4, "{again}");
}

#[test]
fn the_page_of_failures_has_the_table_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/failures.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = ("<!-- the table, from the code -->\n", "<!-- end of the table -->\n");
    let (head, rest) = page.split_once(begin).expect("the page marks where its table begins");
    let (_, tail) = rest.split_once(end).expect("the page marks where its table ends");
    let made = format!("{head}{begin}\n{}\n{end}{tail}", forebay::error::table());
    if std::env::var_os("FOREBAY_WRITE_PAGE").is_some() {
        std::fs::write(&path, &made).unwrap();
    } else {
        assert!(
            page == made,
            "docs/failures.md is behind src/error/class.rs. Make it anew: \
             FOREBAY_WRITE_PAGE=1 cargo test --release --features testkit --test fates page"
        );
    }
}

//! What every queue must do, against a simple model and against a process that is killed. A second engine is one more
//! [`Subject`].

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use forebay::{
    chunk::{Chunk, ChunkKey, Digest},
    error::{Class, Fault},
    queue::{
        Expect, Lease, Leased, Queue, Settings, Settlement,
        dead::{Burial, Origin, Payload, State, Subject as About},
        dlq::Filter,
        journal::Journal,
    },
};
use proptest::prelude::*;

/// A queue under test in a folder of its own.
struct Subject {
    dir: PathBuf,
    generation: u64,
}

impl Subject {
    fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), generation: 0 }
    }

    /// Opens it, and gives the chunks that must be buried as crash suspects.
    fn open(&mut self) -> (Queue, Vec<(Lease, Chunk)>) {
        let expect = Expect {
            store: 7,
            generation: self.generation,
            boot: 1,
            fresh: !self.dir.join("queue").exists(),
            retry_cap_ms: 3_600_000,
        };
        let journal = Journal::open(&self.dir.join("dead-letters.jsonl")).unwrap();
        let settings = Settings { window_chunks: 100, cache_mb: 4 };
        let (queue, report) = Queue::open(&self.dir.join("queue"), &settings, expect, journal).unwrap();
        self.generation = report.generation;
        (queue, report.suspected)
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

fn chunk(key: u8, version: u32) -> Chunk {
    let text = format!("text of {key}, version {version}");
    Chunk {
        key: ChunkKey::new(format!("d{key}"), 0),
        source_hash: Digest::of(text.as_bytes()),
        text,
        meta: None,
        source_id: 1,
        ordinal: u64::from(version),
        line: 1,
    }
}

fn burial(chunk: &Chunk) -> Burial {
    Burial {
        subject: About::Chunk(chunk.key.clone()),
        doc_id: Some(chunk.key.doc_id.clone()),
        chunk_id: Some(chunk.id()),
        identity: None,
        stage: Class::NonFiniteVector.stage(),
        fault: Fault::new(Class::NonFiniteVector, "planted"),
        attempts: 1,
        origin: Origin { source_id: 1, source: "s".into(), line: 1, offset: chunk.ordinal },
        payload: Payload::Chunk { text: chunk.text.clone(), meta: None, source_hash: chunk.source_hash },
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ready,
    /// Its time has come; the next lease notices.
    Ripe,
    Delayed,
    Leased,
}

/// One pending version of a key.
#[derive(Clone, Debug)]
struct Entry {
    key: u8,
    version: u32,
    place: Place,
    attempts: u32,
    unclean: u8,
    alone: u8,
    cancelled: bool,
    outdated: bool,
}

/// What the queue must hold: pending chunks in their order, and letters by key.
#[derive(Debug, Default)]
struct Model {
    pending: Vec<Entry>,
    letters: BTreeMap<u8, (State, u32)>,
    /// Which version a letter is about.
    about: BTreeMap<u8, u32>,
}

impl Model {
    fn newest(&self, key: u8) -> Option<usize> {
        let newest = self.pending.iter().rposition(|entry| entry.key == key)?;
        (!self.pending[newest].cancelled && !self.pending[newest].outdated).then_some(newest)
    }

    fn superseded(&self, at: usize) -> bool {
        let Entry { key, outdated, .. } = self.pending[at];
        outdated || self.pending[at + 1..].iter().any(|entry| entry.key == key && !entry.cancelled)
    }

    /// Takes an entry out; what is older and still out will never count again.
    fn remove(&mut self, at: usize) -> Entry {
        let newest = self.newest(self.pending[at].key) == Some(at);
        let entry = self.pending.remove(at);
        if newest {
            let older = self.pending.iter_mut().filter(|other| other.key == entry.key);
            older.for_each(|other| other.outdated = true);
        }
        entry
    }

    /// An older version that is not out makes way.
    fn enqueue(&mut self, key: u8, version: u32) -> bool {
        let waiting = self.newest(key).filter(|at| self.pending[*at].place != Place::Leased);
        waiting.map(|at| self.remove(at));
        let (attempts, unclean, alone) = (0, 0, 0);
        let place = Place::Ready;
        self.pending.push(Entry {
            key,
            version,
            place,
            attempts,
            unclean,
            alone,
            cancelled: false,
            outdated: false,
        });
        waiting.is_some()
    }

    fn ripen(&mut self) {
        let ripe = self.pending.iter_mut().filter(|entry| entry.place == Place::Ripe);
        ripe.for_each(|entry| entry.place = Place::Ready);
    }

    fn suspect(entry: &Entry) -> bool {
        entry.unclean >= 2
    }

    /// Which entries a lease of `count` must hand out.
    fn pick(&self, count: usize) -> Vec<usize> {
        let out = |entry: &Entry| entry.place == Place::Leased;
        if self.pending.iter().any(|entry| out(entry) && Self::suspect(entry)) {
            return Vec::new();
        }
        let ready = |suspect| {
            let wanted = move |entry: &Entry| entry.place == Place::Ready && Self::suspect(entry) == suspect;
            (0..self.pending.len()).filter(move |at| wanted(&self.pending[*at]))
        };
        let good: Vec<usize> = ready(false).take(count).collect();
        // The first of those that were alone at the fewest ends.
        match ready(true).min_by_key(|at| self.pending[*at].alone) {
            Some(suspect) if good.is_empty() && !self.pending.iter().any(out) => vec![suspect],
            _ => good,
        }
    }

    fn find(&self, chunk: &Chunk) -> usize {
        let at = self.pending.iter().position(|e| {
            chunk.key.doc_id == format!("d{}", e.key)
                && e.place == Place::Leased
                && u64::from(e.version) == chunk.ordinal
        });
        at.expect("a leased chunk is in the model")
    }

    fn count(&self, place: Place) -> usize {
        self.pending.iter().filter(|entry| entry.place == place).count()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Enqueue(u8),
    Lease(usize),
    Written(usize),
    Retry(usize, bool),
    Drop(usize),
    Bury(usize),
    Cancel(u8),
    Redrive(u8),
    Discard(u8),
    /// Closed and opened; leases that are out are abandoned, as by a process that dies.
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0_u8..6).prop_map(Op::Enqueue),
        5 => (1_usize..4).prop_map(Op::Lease),
        3 => (0_usize..4).prop_map(Op::Written),
        3 => (0_usize..4, any::<bool>()).prop_map(|(at, now)| Op::Retry(at, now)),
        2 => (0_usize..4).prop_map(Op::Drop),
        2 => (0_usize..4).prop_map(Op::Bury),
        1 => (0_u8..6).prop_map(Op::Cancel),
        1 => (0_u8..6).prop_map(Op::Redrive),
        1 => (0_u8..6).prop_map(Op::Discard),
        2 => Just(Op::Reopen),
    ]
}

/// The queue, its model, and the receipts that are out.
struct Pair {
    subject: Subject,
    queue: Option<Queue>,
    model: Model,
    out: Vec<(Lease, Chunk)>,
    versions: u32,
}

impl Pair {
    fn new(dir: &Path) -> Self {
        let mut subject = Subject::new(dir);
        let queue = Some(subject.open().0);
        Self { subject, queue, model: Model::default(), out: Vec::new(), versions: 0 }
    }

    fn queue(&self) -> &Queue {
        self.queue.as_ref().unwrap()
    }

    fn take(&mut self, at: usize) -> Option<(Lease, Chunk, usize)> {
        if self.out.is_empty() {
            return None;
        }
        let (lease, chunk) = self.out.remove(at % self.out.len());
        let at = self.model.find(&chunk);
        Some((lease, chunk, at))
    }

    fn letter(&self, key: u8) -> Option<uuid::Uuid> {
        let standing = self.queue().standing(ChunkKey::new(format!("d{key}"), 0).short_hash()).unwrap();
        standing.map(|letter| letter.id)
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Enqueue(key) => {
                self.versions += 1;
                let made_way = self.queue().enqueue(chunk(key, self.versions)).unwrap();
                assert_eq!(made_way, self.model.enqueue(key, self.versions));
            }
            Op::Lease(count) => self.lease(count),
            Op::Written(at) => {
                if let Some((lease, chunk, at)) = self.take(at) {
                    let cancelled = self.model.remove(at).cancelled;
                    let settled = self.queue().settle(vec![Settlement::Written(lease)]).unwrap();
                    assert_eq!(settled.stale, if cancelled { vec![chunk.key] } else { vec![] });
                }
            }
            Op::Retry(at, now) => self.retry(at, now),
            Op::Drop(at) => {
                if let Some((lease, _, at)) = self.take(at) {
                    self.give_back(at);
                    drop(lease);
                }
            }
            Op::Bury(at) => self.bury(at),
            Op::Cancel(key) => self.cancel(key),
            Op::Redrive(key) => self.redrive(key),
            Op::Discard(key) => {
                let Some(id) = self.letter(key) else { return };
                let before = self.model.letters[&key];
                let open = before.0 != State::Discarded;
                if before.0 == State::Redriven {
                    self.cancel(key);
                }
                assert_eq!(self.queue().discard(id, "me", "why").unwrap(), open);
                self.model.letters.insert(key, (State::Discarded, before.1));
            }
            Op::Reopen => self.reopen(),
        }
    }

    fn lease(&mut self, count: usize) {
        self.model.ripen();
        let expected: Vec<u64> = self
            .model
            .pick(count)
            .into_iter()
            .map(|at| {
                self.model.pending[at].place = Place::Leased;
                u64::from(self.model.pending[at].version)
            })
            .collect();
        match self.queue().lease(count, usize::MAX).unwrap() {
            Leased::Chunks(chunks) => {
                let got: Vec<u64> = chunks.iter().map(|(_, chunk)| chunk.ordinal).collect();
                assert_eq!(got, expected);
                for (lease, chunk) in &chunks {
                    let entry = &self.model.pending[self.model.find(chunk)];
                    assert_eq!(lease.record().attempts, entry.attempts);
                    assert_eq!(*chunk, self::chunk(entry.key, entry.version));
                }
                self.out.extend(chunks);
            }
            Leased::Wait(_) => assert!(expected.is_empty() && !self.model.pending.is_empty()),
            Leased::Empty => assert!(self.model.pending.is_empty()),
        }
    }

    fn retry(&mut self, at: usize, now: bool) {
        let Some((lease, _, at)) = self.take(at) else { return };
        let (attempts, after) = (lease.record().attempts + 1, if now { Duration::ZERO } else { HOUR });
        let settled = self.queue().settle(vec![Settlement::Retry { lease, attempts, after }]).unwrap();
        let gone = self.model.pending[at].cancelled || self.model.superseded(at);
        assert_eq!(settled.superseded, u64::from(gone));
        let entry = self.model.remove(at);
        if !gone {
            let place = if now { Place::Ripe } else { Place::Delayed };
            self.model.pending.push(Entry { place, attempts, ..entry });
        }
    }

    fn give_back(&mut self, at: usize) {
        if self.model.pending[at].cancelled || self.model.superseded(at) {
            self.model.remove(at);
        } else {
            self.model.pending[at].place = Place::Ready;
        }
    }

    fn bury(&mut self, at: usize) {
        let Some((lease, chunk, at)) = self.take(at) else { return };
        let mut unwanted = self.model.pending[at].cancelled || self.model.superseded(at);
        let Entry { key, version, .. } = self.model.remove(at);
        unwanted |= self.model.about.get(&key).is_some_and(|about| *about > version);
        let buried = self.queue().bury(vec![(Some(lease), burial(&chunk))]).unwrap();
        assert_eq!(buried[0].is_none(), unwanted);
        if !unwanted {
            let before = self.model.letters.get(&key).copied();
            let same = self.model.about.get(&key) == Some(&version);
            // The same text failed with the same class after a redrive: the next one needs somebody's approval.
            let state = match before {
                Some((State::Redriven | State::Quarantined, _)) if same => State::Quarantined,
                _ => State::Open,
            };
            self.model.letters.insert(key, (state, before.map_or(0, |(_, attempts)| attempts) + 1));
            self.model.about.insert(key, version);
        }
    }

    fn cancel(&mut self, key: u8) {
        let waiting = self.model.newest(key).filter(|at| self.model.pending[*at].place != Place::Leased);
        waiting.map(|at| self.model.remove(at));
        let mut out = false;
        for entry in self.model.pending.iter_mut().filter(|entry| entry.key == key) {
            (entry.cancelled, out) = (true, true);
        }
        let cancelled = self.queue().cancel(&ChunkKey::new(format!("d{key}"), 0)).unwrap();
        assert_eq!((cancelled.waiting, cancelled.out), (waiting.is_some(), out));
    }

    fn redrive(&mut self, key: u8) {
        let Some(id) = self.letter(key) else { return };
        let before = self.model.letters[&key];
        let may = before.0 == State::Open && self.model.newest(key).is_none();
        let version = self.model.about[&key];
        assert!(!self.queue().redrive(id, "me", chunk(key, 0)).unwrap(), "another version");
        assert_eq!(self.queue().redrive(id, "me", chunk(key, version)).unwrap(), may);
        if may {
            self.model.enqueue(key, version);
            self.model.letters.insert(key, (State::Redriven, before.1));
        }
    }

    fn reopen(&mut self) {
        self.out.drain(..).for_each(|(lease, _)| lease.abandon());
        drop(self.queue.take());
        let (queue, suspected) = self.subject.open();
        self.queue = Some(queue);
        self.model.ripen();
        let mut at = 0;
        while at < self.model.pending.len() {
            let entry = &mut self.model.pending[at];
            if entry.place == Place::Leased {
                entry.alone += u8::from(entry.unclean >= 2);
                entry.unclean += 1;
                entry.place = Place::Ready;
            }
            (entry.cancelled, entry.outdated) = (false, false);
            let key = entry.key;
            if self.model.pending[at + 1..].iter().any(|entry| entry.key == key) {
                self.model.pending.remove(at);
            } else {
                at += 1;
            }
        }
        let crashed: Vec<u64> =
            self.model.pending.iter().filter(|entry| entry.alone >= 3).map(|e| e.version.into()).collect();
        assert_eq!(suspected.iter().map(|(_, chunk)| chunk.ordinal).collect::<Vec<_>>(), crashed);
        for entry in &mut self.model.pending {
            entry.place = if entry.alone >= 3 { Place::Leased } else { entry.place };
        }
        for suspect in suspected {
            self.out.push(suspect);
            self.bury(self.out.len() - 1);
        }
    }

    /// A chunk is ready, leased, delayed, gone or dead; counts agree.
    fn compare(&self) {
        let depth = self.queue().depth();
        let model = &self.model;
        assert_eq!(depth.pending, model.pending.len());
        assert_eq!(depth.in_flight, model.count(Place::Leased));
        assert_eq!(depth.delayed, model.count(Place::Delayed) + model.count(Place::Ripe));
        for key in 0..6 {
            let held = self.queue().held(&chunk(key, 0).key, &Digest::of(b"")).map(|held| held.ordinal);
            assert_eq!(held, model.newest(key).map(|at| model.pending[at].version.into()), "key {key}");
        }
        let letters =
            self.queue().letters(&Filter { closed_too: true, ..Filter::default() }, usize::MAX).unwrap();
        let found: BTreeMap<u8, (State, u32)> = letters
            .iter()
            .map(|letter| {
                (letter.doc_id.as_deref().unwrap()[1..].parse().unwrap(), (letter.state, letter.attempts))
            })
            .collect();
        assert_eq!((letters.len(), &found), (model.letters.len(), &model.letters));
        let counts = self.queue().letter_counts();
        for state in [State::Open, State::Redriven, State::Quarantined, State::Discarded] {
            let expected = model.letters.values().filter(|(found, _)| *found == state).count();
            assert_eq!(counts.sum(|_, found| found == state), expected as u64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_queue_is_its_model(ops in prop::collection::vec(op(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let mut pair = Pair::new(dir.path());
        for op in &ops {
            pair.step(op);
            pair.compare();
        }
    }
}

#[test]
fn after_a_crash_only_the_newest_version_of_a_key_is_pending() {
    let dir = tempfile::tempdir().unwrap();
    let mut pair = Pair::new(dir.path());
    // Two unclean ends make the older one a suspect, which would be leased last: after the newer one.
    for op in [Op::Enqueue(1), Op::Lease(1), Op::Reopen, Op::Lease(1), Op::Enqueue(1), Op::Reopen] {
        pair.step(&op);
        pair.compare();
    }
    assert_eq!(pair.queue().depth().pending, 1);
}

#[test]
fn the_letter_of_a_newer_version_survives_the_older_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut pair = Pair::new(dir.path());
    for op in [Op::Enqueue(1), Op::Lease(1), Op::Enqueue(1), Op::Lease(1), Op::Bury(1)] {
        pair.step(&op);
    }
    let (lease, chunk, _) = pair.take(0).unwrap();
    assert_eq!(pair.queue().resolves(&[(&lease, &chunk)]).unwrap(), []);
    assert_eq!(pair.queue().bury(vec![(Some(lease), burial(&chunk))]).unwrap(), [None]);
    assert!(pair.letter(1).is_some());
}

/// A journal that takes nothing: `/dev/full`.
#[test]
fn a_journal_that_cannot_be_written_is_an_error_and_the_chunks_stay() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/dev/full", dir.path().join("dead-letters.jsonl")).unwrap();
    let (queue, _) = Subject::new(dir.path()).open();
    for key in 0..3 {
        queue.enqueue(chunk(key, 1)).unwrap();
    }
    let Leased::Chunks(chunks) = queue.lease(9, usize::MAX).unwrap() else { panic!("nothing to lease") };
    let burials = chunks.into_iter().map(|(lease, chunk)| (Some(lease), burial(&chunk))).collect();
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let shared = queue.clone();
    std::thread::spawn(move || tell.send(shared.bury(burials).is_err()));
    assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(true), "it waits for its own lock");
    let depth = queue.depth();
    assert_eq!((depth.pending, depth.in_flight), (3, 0));
}

const CHILD: &str = "FOREBAY_QUEUE_CHILD";

/// Not a test of its own: the process that is killed. It says what is durable, line by line, once it is.
#[test]
fn child() {
    let Ok(arguments) = std::env::var(CHILD) else { return };
    let (seed, dir) = arguments.split_once(' ').unwrap();
    let (queue, _) = Subject::new(Path::new(dir)).open();
    let mut dice = fastrand::Rng::with_seed(seed.parse().unwrap());
    let mut next = 0;
    loop {
        let from = next;
        next += dice.u8(1..5).min(255 - next);
        for key in from..next {
            queue.enqueue(chunk(key, 1)).unwrap();
        }
        queue.flush().unwrap();
        (from..next).for_each(|key| println!("enqueued {key}"));
        if let Leased::Chunks(chunks) = queue.lease(dice.usize(1..4), usize::MAX).unwrap() {
            for (lease, chunk) in chunks {
                let key = &chunk.key.doc_id[1..];
                match dice.u8(..4) {
                    0 => {
                        queue.bury(vec![(Some(lease), burial(&chunk))]).unwrap();
                        println!("buried {key}");
                    }
                    1 => drop(lease),
                    _ => {
                        // From here on it may be gone, and until the next flush it may come back.
                        println!("settling {key}");
                        queue.settle(vec![Settlement::Written(lease)]).unwrap();
                    }
                }
            }
        }
    }
}

#[test]
fn d05_what_a_killed_process_said_was_durable_is_there() {
    for seed in 0..12_u64 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, format!("{seed} {}", dir.path().display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut said: Vec<String> = lines.by_ref().take(5 + 9 * usize::try_from(seed).unwrap()).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        // What was in the pipe was said, too.
        said.extend(lines);
        let keys = |word: &str| -> Vec<u8> {
            let of = |line: &String| line.strip_prefix(word)?.trim().parse().ok();
            said.iter().filter_map(of).collect()
        };
        let (queue, _) = Subject::new(dir.path()).open_after_kill();
        let pending = queue.pending_keys();
        let held = |key: u8| pending.contains(&chunk(key, 1).key.short_hash());
        let letter = |key: u8| queue.standing(chunk(key, 1).key.short_hash()).unwrap().is_some();
        let (enqueued, settling, buried) = (keys("enqueued"), keys("settling"), keys("buried"));
        assert!(!enqueued.is_empty(), "seed {seed}: {said:?}");
        for key in enqueued {
            assert!(held(key) || letter(key) || settling.contains(&key), "seed {seed}: {key} is lost");
            assert!(!(held(key) && letter(key)), "seed {seed}: {key} is pending and dead");
        }
        for key in buried {
            assert!(letter(key), "seed {seed}: the letter of {key} is lost");
        }
    }
}

impl Subject {
    /// The witness of a killed process was never brought up to date here.
    fn open_after_kill(&mut self) -> (Queue, Vec<(Lease, Chunk)>) {
        self.generation = 1;
        self.open()
    }
}

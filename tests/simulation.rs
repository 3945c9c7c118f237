//! The whole line under random faults, cuts and reopenings. After every run: nothing lost, nothing settled two ways,
//! in flight never above the limit, attempts never above theirs; and nobody pays for another's fault.
//!
//! A failure prints its seed; `FOREBAY_SEED=n` runs that one alone, `FOREBAY_SEEDS=n` the first n.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use forebay::{
    chunk::{ChunkKey, Digest, chunk_id},
    clock::hooks,
    folder::Folder,
    ops::{
        Context,
        command::{Command, How, execute},
    },
    pipeline::{
        Line,
        report::{Outcome, Report},
    },
    queue::{
        Leased,
        dead::{DeadLetter, State, Subject},
        dlq::Filter,
    },
    sink::Stored,
    source::Splitter,
    testkit::{
        faults::Poison,
        memory::Memory,
        rig::{self, Cut, Rig, chunk_line, document_line},
        weather::{Odds, Weather},
    },
};

const SEEDS: u64 = 500;
/// Our waits (a breaker's, a restart's) are so many times shorter.
const QUICKER: u32 = 50;
/// Jumps of the wall clock, in milliseconds: seconds, hours, years, ahead and back. They are everybody's: seeds run side
/// by side.
const JUMPS: [i64; 6] = [3_000, -3_000, 7_200_000, -7_200_000, 94_608_000_000, -94_608_000_000];
const IN_FLIGHT: usize = 3;
const BATCH: usize = 8;
const ATTEMPTS: u32 = 3;
const WINDOW: usize = 40;

/// The newest text of each key, and what else is in the inputs.
struct World {
    paths: Vec<PathBuf>,
    newest: BTreeMap<ChunkKey, String>,
    unreadable: usize,
    poisoned: usize,
    /// A line was dropped where it stood, not killed: what came back then has no line that sees to it.
    dropped: Cell<bool>,
    /// Poisoned versions of each key.
    versions: BTreeMap<ChunkKey, u32>,
}

fn text(dice: &mut fastrand::Rng, name: &str, version: usize, poison: Option<Poison>) -> String {
    let words: Vec<String> =
        (0..dice.usize(1..12)).map(|n| format!("{name}-{version}-{n}-{}", dice.u16(..))).collect();
    format!("{} {}", poison.map_or("good", Poison::word), words.join(" "))
}

fn poison(dice: &mut fastrand::Rng) -> Option<Poison> {
    match dice.u32(..100) {
        0..10 => Some(Poison::LETHAL[dice.usize(..Poison::LETHAL.len())]),
        10..14 => Some(Poison::Flaky),
        _ => None,
    }
}

fn world(rig: &Rig, dice: &mut fastrand::Rng) -> World {
    let (mut newest, mut versions, mut paths) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    let (mut unreadable, mut poisoned) = (0, 0);
    for file in 0..dice.usize(1..3) {
        let (mut lines, keys) = (Vec::new(), dice.usize(10..60));
        for at in 0..dice.usize(20..100) {
            let name = format!("f{file}k{}", dice.usize(..keys));
            match dice.u32(..20) {
                0 => {
                    unreadable += 1;
                    lines.push(format!("{{\"id\": \"broken {at}\""));
                }
                1..4 => {
                    let doc = format!("{name}doc");
                    let text = text(dice, &name, at, None).repeat(dice.usize(1..6));
                    newest.retain(|key: &ChunkKey, _| key.doc_id != doc);
                    let split = Splitter::new(8, 2);
                    let chunks = split.split(&text, &|text| text.split_whitespace().count());
                    for (index, chunk) in (0..).zip(chunks) {
                        newest.insert(ChunkKey::new(&doc, index), chunk.to_owned());
                    }
                    lines.push(document_line(&doc, &text));
                }
                _ => {
                    let poison = poison(dice);
                    poisoned += usize::from(poison.is_some());
                    let text = text(dice, &name, at, poison);
                    lines.push(chunk_line(&name, 0, &text));
                    *versions.entry(ChunkKey::new(&name, 0)).or_default() += u32::from(poison.is_some());
                    newest.insert(ChunkKey::new(&name, 0), text);
                }
            }
        }
        paths.push(rig.input(&format!("in{file}.jsonl"), &lines));
    }
    World { paths, newest, unreadable, poisoned, versions, dropped: Cell::new(false) }
}

fn id_of(key: &ChunkKey, text: &str) -> Digest {
    chunk_id(key, &Digest::of(text.as_bytes()))
}

/// What the stores hold after a run.
struct After {
    written: BTreeMap<ChunkKey, Digest>,
    letters: Vec<DeadLetter>,
}

/// The checks that hold after every run, however it ended.
fn check(rig: &Rig, world: &World, report: Option<&Report>) -> After {
    if let Some(report) = report {
        assert!(report.adds_up(), "the report does not add up: {report:?}");
    }
    let faults = &rig.faults;
    let (batches, chunks) = (faults.batches_max.load(Relaxed), faults.chunks_max.load(Relaxed));
    assert!(batches <= IN_FLIGHT, "{batches} batches in flight");
    // What waits to be buried has left its batch, and its permit.
    assert!(chunks <= IN_FLIGHT * BATCH + world.poisoned, "{chunks} chunks in flight");

    let folder = rig.folder();
    assert_eq!(folder.recovered.queue_rebuilt, None);
    assert_eq!(folder.queue.depth().in_flight, 0);
    nobody_else_is_charged(&folder);
    let letters =
        folder.queue.letters(&Filter { closed_too: true, ..Filter::default() }, usize::MAX).unwrap();
    let mut written = BTreeMap::new();
    let mut each = |stored: Stored| {
        let ledger = folder.ledger.held(&stored.key).unwrap();
        if ledger.as_ref().is_none_or(|held| held.chunk_id != stored.chunk_id) {
            // Cut between the sink's confirmation and the ledger's: it is written again, unless a newer version took
            // its place meanwhile and lies dead.
            let pending = folder.queue.held(&stored.key, &stored.chunk_id).is_some();
            let dead = folder.queue.standing(stored.key.short_hash()).unwrap().is_some();
            let lost_by_its_document = world.dropped.get() && !world.newest.contains_key(&stored.key);
            assert!(
                pending || dead || lost_by_its_document,
                "the ledger does not know what the sink has of {}",
                stored.key
            );
        }
        if let Some(held) = ledger {
            written.insert(stored.key, held.chunk_id);
        }
        Ok(())
    };
    rig.plain_sink().scan(Some(&folder.store), &mut each).unwrap();
    let ledger = folder.ledger.page(None, usize::MAX).unwrap();
    let missing: Vec<String> = ledger
        .iter()
        .filter(|(key, ..)| !written.contains_key(key))
        // Cut while it was on its way out: it does not count as written.
        .filter(|(key, ..)| folder.ledger.held(key).unwrap().unwrap().source_hash != Digest([0; 32]))
        .map(|(key, ..)| format!("{key} {:?}", folder.ledger.held(key).unwrap().unwrap()))
        .collect();
    assert!(missing.is_empty(), "the ledger knows what the sink has not: {missing:#?}");
    let mut open = BTreeSet::new();
    for letter in letters.iter().filter(|letter| letter.state.unresolved()) {
        assert!(open.insert(letter.subject.to_string()), "two letters for {}", letter.subject);
        let Subject::Chunk(key) = &letter.subject else { continue };
        // Each version and each redrive has its own.
        let most = ATTEMPTS * (world.versions.get(key).copied().unwrap_or(0) + letter.redrives);
        assert!(letter.attempts <= most, "{} attempts of {key}, not {most}", letter.attempts);
        assert_ne!(written.get(key).copied(), letter.chunk_id, "{key} is written and dead");
        let forebay::queue::dead::Payload::Chunk { text, .. } = &letter.payload else { panic!("no payload") };
        let class = Poison::of(text).and_then(Poison::class);
        assert_eq!(class, Some(letter.class), "{key} was buried for another's fault: {}", letter.message);
    }
    After { written, letters }
}

fn nobody_else_is_charged(folder: &Folder) {
    let Leased::Chunks(pending) = folder.queue.lease(100_000, usize::MAX).unwrap() else { return };
    for (lease, chunk) in &pending {
        let attempts = lease.record().attempts;
        let may = if Poison::of(&chunk.text).is_some() { ATTEMPTS - 1 } else { 0 };
        assert!(attempts <= may, "{} pays {attempts} attempts", chunk.key);
    }
}

/// Every key's newest text is written, or lies dead for its own fault.
fn nothing_lost(world: &World, after: &After) {
    for (key, text) in &world.newest {
        let wanted = id_of(key, text);
        let open = after.letters.iter().find(|letter| {
            letter.state.unresolved() && matches!(&letter.subject, Subject::Chunk(subject) if subject == key)
        });
        match Poison::of(text).and_then(Poison::class) {
            None => {
                assert_eq!(after.written.get(key), Some(&wanted), "{key} is not written");
                assert!(open.is_none(), "{key} is written, and its letter is open");
            }
            Some(_) => {
                let letter = open.unwrap_or_else(|| panic!("{key} is poison and has no open letter"));
                assert_eq!(letter.chunk_id, Some(wanted), "{key}");
                assert!(
                    matches!(letter.state, State::Open | State::Quarantined),
                    "{key}: {:?}",
                    letter.state
                );
            }
        }
    }
    let unknown = after.written.keys().find(|key| !world.newest.contains_key(key));
    assert!(unknown.is_none(), "{unknown:?} is written although its document lost it");
    let records =
        after.letters.iter().filter(|letter| matches!(letter.subject, Subject::Record { .. })).count();
    assert_eq!(records, world.unreadable);
}

fn redrive(folder: &Folder, line: Option<&Line>) {
    let settings = rig::settings();
    let context = Context { folder, line, source: &settings.source, line_bytes: 1 << 20 };
    let command = Command::DlqRedrive {
        filter: Filter::default(),
        dry_run: false,
        who: "sim".into(),
        how: How { approve: true, ..How::default() },
    };
    execute(context, &command).unwrap();
}

fn rig_of(seed: u64, dice: &mut fastrand::Rng, dir: &std::path::Path) -> Rig {
    let odds = Odds { pass: 80, device: 30, crash: 20, batch: 80, sink: 60, answer: 60, full: 15, slow: 50 };
    let mut rig = Rig::in_weather(dir, Weather::new(seed, odds));
    rig.settings.pipeline.batches_in_flight = IN_FLIGHT;
    rig.settings.pipeline.batch_chunks = BATCH;
    rig.settings.retry.max_attempts = ATTEMPTS;
    rig.settings.window_chunks = WINDOW;
    if seed.is_multiple_of(3) {
        // A small device: any text fits alone, and a batch seldom does.
        rig.faults.fits_tokens.store(dice.usize(16..100), Relaxed);
    }
    rig.sink = match dice.u32(..3) {
        0 => None,
        1 => Some(Arc::new(Memory::new(false))),
        _ => Some(Arc::new(Memory::new(true))),
    };
    rig
}

fn simulate(seed: u64) {
    let mut dice = fastrand::Rng::with_seed(seed);
    // Where there is a file system in memory, no time goes into its syncs.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let rig = rig_of(seed, &mut dice, dir.path());
    let world = world(&rig, &mut dice);
    for _ in 0..dice.u32(1..5) {
        let cut = match dice.u32(..4) {
            0 => Cut::Never,
            1 => Cut::Drop(dice.u64(1..200)),
            _ => Cut::Stop(dice.u64(1..200)),
        };
        world.dropped.set(world.dropped.get() || matches!(cut, Cut::Drop(_)));
        let (beside, jump, fills) = (dice.bool(), JUMPS[dice.usize(..JUMPS.len())], dice.u32(..4) == 0);
        let full = rig.data().with_extension("full");
        let report = rig.run_beside(&world.paths, cut, |line| {
            for step in 0..if beside { 4 } else { 1 } {
                std::thread::park_timeout(Duration::from_millis(3));
                hooks::AHEAD_MS.fetch_add(if step == 0 { jump } else { 0 }, Relaxed);
                if beside {
                    redrive(&line.folder, Some(line));
                }
                if step == 0 && fills {
                    std::fs::write(&full, "").unwrap();
                    std::thread::park_timeout(Duration::from_millis(5));
                    std::fs::remove_file(&full).unwrap();
                }
            }
        });
        hooks::AHEAD_MS.fetch_sub(jump, Relaxed);
        check(&rig, &world, report.as_ref());
        if dice.bool() {
            redrive(&rig.folder(), None);
        }
    }
    rig.faults.weather.calm();
    let report = rig.run(&world.paths);
    assert!(matches!(report.outcome, Outcome::Complete | Outcome::Partial), "{report:?}");
    let after = check(&rig, &world, Some(&report));
    nothing_lost(&world, &after);
    let again = rig.run(&world.paths);
    assert_eq!((again.chunks, again.embedded), (0, 0), "a second run does it again: {again:?}");
    nothing_lost(&world, &check(&rig, &world, Some(&again)));
}

#[test]
fn the_line_keeps_its_promises_whatever_fails() {
    let set = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (from, to) = match set("FOREBAY_SEED") {
        Some(seed) => (seed, seed + 1),
        None => (0, set("FOREBAY_SEEDS").unwrap_or(SEEDS)),
    };
    hooks::QUICKER.store(QUICKER, Relaxed);
    let (next, failed) = (AtomicU64::new(from), Mutex::new(Vec::new()));
    // Much of a seed's time is waiting for a breaker or a stage.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(seed) = Some(next.fetch_add(1, Relaxed)).filter(|seed| *seed < to) {
                    if catch_unwind(AssertUnwindSafe(|| simulate(seed))).is_err() {
                        println!("seed {seed} failed");
                        failed.lock().unwrap().push(seed);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "FOREBAY_SEED= one of {failed:?}");
}

//! A text that ends the process, whatever it does to it, is found by the marks of work that was started, while a
//! process that dies for reasons of its own buries nothing. Each scenario starts a real process again and again, as a
//! supervisor would; the process is this test itself, with the faults of the testkit in its embedder.

#[path = "common/mod.rs"]
mod common;

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use common::poll;
use forebay::{
    chunk::{Chunk, ChunkKey, Digest},
    error::Class,
    pipeline::report::Outcome,
    queue::{self, Expect, Leased, Queue, dead::State, dlq::Filter, journal::Journal},
    testkit::{
        faults::Poison,
        rig::{Cut, Rig, chunk_line},
    },
};

const CHILD: &str = "FOREBAY_CRASH_CHILD";
/// Unclean ends until a single culprit is buried: two in company, three alone.
const STARTS_EACH: usize = 5;

fn rig(dir: &Path) -> Rig {
    let mut rig = Rig::new(dir);
    rig.settings.pipeline.batch_chunks = 16;
    rig
}

/// Not a test of its own: the process that dies. Exit 0 when its run came to its end.
#[test]
fn child() {
    let Ok(arguments) = std::env::var(CHILD) else { return };
    let (slow_ms, dir) = arguments.split_once(' ').unwrap();
    let rig = rig(Path::new(dir));
    rig.faults.pass_ms.store(slow_ms.parse().unwrap(), Relaxed);
    let report = rig.run_beside(&[Path::new(dir).join("in.jsonl")], Cut::Never, |line| {
        poll("work begins", || (rig.faults.passes.load(Relaxed) > 0 || line.all_read()).then_some(()));
        println!("it works");
    });
    let report = report.unwrap();
    assert!(matches!(report.outcome, Outcome::Complete | Outcome::Partial), "{report}");
}

/// The process, each of whose passes takes so long.
fn start(dir: &Path, slow_ms: u64) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child", "--nocapture"]).env(CHILD, format!("{slow_ms} {}", dir.display()));
    child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Returns when the process works at its first batch.
fn works(child: &mut Child) {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.into_iter().any(|line| line.contains("it works")), "it ended first");
}

/// Starts the process again until its run comes to its end; the signals it died of before that.
fn supervise(dir: &Path, starts_max: usize) -> Vec<i32> {
    let mut died = Vec::new();
    loop {
        let status = start(dir, 0).wait().unwrap();
        match status.signal() {
            Some(signal) => died.push(signal),
            None => assert!(status.success(), "{status}"),
        }
        if status.success() {
            return died;
        }
        assert!(died.len() < starts_max, "{starts_max} starts did not do");
    }
}

/// `n` chunks; those at `bad` carry the poison.
fn write(dir: &Path, n: usize, poison: Poison, bad: &[usize]) -> PathBuf {
    let word = |at| if bad.contains(&at) { poison.word() } else { "good" };
    let lines: Vec<_> =
        (0..n).map(|at| chunk_line(&format!("d{at}"), 0, &format!("text {at} {}", word(at)))).collect();
    rig(dir).input("in.jsonl", &lines)
}

/// Documents in the sink, and those that are dead.
fn ends(rig: &Rig) -> (BTreeSet<String>, BTreeSet<String>) {
    let (folder, mut written) = (rig.folder(), BTreeSet::new());
    let mut each = |stored: forebay::sink::Stored| {
        assert!(written.insert(stored.key.doc_id), "a row twice");
        Ok(())
    };
    rig.plain_sink().scan(Some(&folder.store), &mut each).unwrap();
    let letters = folder.queue.letters(&Filter::default(), usize::MAX).unwrap();
    assert!(letters.iter().all(|l| l.class == Class::SuspectedCrash && l.state == State::Open));
    assert_eq!(folder.queue.depth().pending, 0);
    (written, letters.into_iter().map(|letter| letter.doc_id.unwrap()).collect())
}

fn dies_and_is_found(poison: Poison, signal: i32) {
    const CHUNKS: usize = 300;
    for bad in [&[0][..], &[CHUNKS - 1], &[100, 101, 220]] {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), CHUNKS, poison, bad);
        let began = Instant::now();
        let died = supervise(dir.path(), 40);
        println!("{bad:?}: {} deaths, {:.1?}", died.len(), began.elapsed());
        assert!(died.iter().all(|died| *died == signal), "{died:?}");
        // Three alone for each; the ends in company are shared by those that travel together.
        assert!(died.len() <= STARTS_EACH * bad.len(), "{} deaths", died.len());
        let rig = rig(dir.path());
        let (written, dead) = ends(&rig);
        let docs = |at: &[usize]| at.iter().map(|at| format!("d{at}")).collect::<BTreeSet<_>>();
        assert_eq!(dead, docs(bad));
        let all: Vec<_> = (0..CHUNKS).collect();
        assert_eq!(written, docs(&all).difference(&dead).cloned().collect());
        assert_eq!(rig.run(&[path]).embedded, 0, "and again nothing is embedded");
    }
}

#[test]
fn d08_a_text_that_aborts_the_process_is_buried_and_all_others_are_written() {
    dies_and_is_found(Poison::Abort, libc::SIGABRT);
}

#[test]
fn d08_a_text_on_which_the_kernel_kills_the_process_is_buried_and_all_others_are_written() {
    dies_and_is_found(Poison::Kill, libc::SIGKILL);
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGKILL), "the kill came too late");
}

/// Nothing is buried, everything is written by a run that nobody kills.
fn ends_well(dir: &Path, path: PathBuf, chunks: usize) {
    let began = Instant::now();
    assert!(supervise(dir, 1).is_empty());
    println!("the rest in {:.1?}", began.elapsed());
    let rig = rig(dir);
    let (written, dead) = ends(&rig);
    assert_eq!((written.len(), dead.len()), (chunks, 0), "{dead:?}");
    assert_eq!(rig.run(&[path]).embedded, 0);
}

#[test]
fn d08_fifty_kills_in_the_midst_of_the_work_bury_nothing() {
    const CHUNKS: usize = 6_000;
    let dir = tempfile::tempdir().unwrap();
    let mut dice = fastrand::Rng::with_seed(50);
    let path = write(dir.path(), CHUNKS, Poison::Abort, &[]);
    for _ in 0..50 {
        let mut child = start(dir.path(), 5);
        works(&mut child);
        let until = Instant::now() + Duration::from_millis(dice.u64(0..40));
        poll("the moment comes", || (Instant::now() >= until).then_some(()));
        kill(child);
    }
    ends_well(dir.path(), path, CHUNKS);
}

/// As when the process never has the memory for a pass: what it works on first is not to blame for that.
#[test]
fn d08_fifty_ends_at_the_very_first_pass_bury_nothing() {
    const CHUNKS: usize = 300;
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), CHUNKS, Poison::Abort, &[]);
    for _ in 0..50 {
        let mut child = start(dir.path(), 60_000);
        works(&mut child);
        kill(child);
    }
    ends_well(dir.path(), path, CHUNKS);
}

/// A machine that loses its power has another boot id afterwards: no end under another one is counted.
#[test]
fn d08_fifty_power_cuts_charge_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let settings = queue::Settings { window_chunks: 100, cache_mb: 4 };
    let mut generation = 0;
    for boot in 1..=50 {
        let expect = Expect { store: 1, generation, boot, fresh: boot == 1, retry_cap_ms: 0 };
        let journal = Journal::open(&dir.path().join("journal")).unwrap();
        let (queue, report) = Queue::open(&dir.path().join("queue"), &settings, expect, journal).unwrap();
        generation = report.generation;
        assert_eq!((report.unclean, report.suspected.len()), (0, 0), "power cut {boot}");
        for at in 0..if boot == 1 { 4 } else { 0 } {
            let (key, text) = (ChunkKey::new(format!("d{at}"), 0), format!("text {at}"));
            let source_hash = Digest::of(text.as_bytes());
            let chunk = Chunk { key, text, meta: None, source_hash, source_id: 1, ordinal: at, line: 1 };
            queue.enqueue(chunk).unwrap();
        }
        let Leased::Chunks(chunks) = queue.lease(4, usize::MAX).unwrap() else { panic!("nothing to lease") };
        assert_eq!(chunks.len(), 4, "they still travel together");
        chunks.into_iter().for_each(|(lease, _)| lease.abandon());
    }
}

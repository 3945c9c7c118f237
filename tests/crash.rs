//! A text that ends the process, whatever it does to it, is found by the marks of work that was started, while a
//! process that dies for reasons of its own buries nothing. Each scenario starts a real process again and again, as a
//! supervisor would; the process is this test itself, with the faults of the testkit in its embedder.

#[path = "common/mod.rs"]
mod common;

use std::{
    collections::BTreeSet,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use common::poll;
use forebay::{
    chunk::{Chunk, ChunkKey, Digest},
    error::Class,
    pipeline::report::Outcome,
    queue::{Leased, dead::State, dlq::Filter},
    testkit::{
        faults::Poison,
        rig::{Rig, chunk_line},
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
    let Ok(dir) = std::env::var(CHILD) else { return };
    let rig = rig(Path::new(&dir));
    let report = rig.run(&[Path::new(&dir).join("in.jsonl")]);
    assert!(matches!(report.outcome, Outcome::Complete | Outcome::Partial), "{report}");
}

fn start(dir: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child", "--nocapture"]).env(CHILD, dir);
    child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Starts the process again until its run comes to its end; the signals it died of before that.
fn supervise(dir: &Path, starts_max: usize) -> Vec<i32> {
    let mut died = Vec::new();
    loop {
        let status = start(dir).wait().unwrap();
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

/// Kills that come from outside, at any moment of the work, at its very start too.
#[test]
fn d08_fifty_kills_that_are_no_chunks_fault_bury_nothing() {
    const CHUNKS: usize = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let mut dice = fastrand::Rng::with_seed(50);
    let path = write(dir.path(), CHUNKS, Poison::Abort, &[]);
    let mut kills = 0;
    while kills < 50 {
        let mut child = start(dir.path());
        let until = Instant::now() + Duration::from_millis(dice.u64(15..90));
        let ended = poll("the moment comes", || match child.try_wait().unwrap() {
            Some(status) => Some(Some(status)),
            None => (Instant::now() >= until).then_some(None),
        });
        if let Some(status) = ended {
            // It was done before: there is more to do.
            assert!(status.success());
            println!("done after {kills} kills");
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    let began = Instant::now();
    let died = supervise(dir.path(), 1);
    println!("{kills} kills; the rest in {:.1?}", began.elapsed());
    assert!(died.is_empty());
    let rig = rig(dir.path());
    let (written, dead) = ends(&rig);
    assert_eq!((written.len(), dead.len()), (CHUNKS, 0), "{dead:?}");
    assert_eq!(rig.run(&[path]).embedded, 0);
}

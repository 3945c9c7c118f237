//! The store under the queue, as people met it: disk and memory that grow, locks that stay, opens that take for ever,
//! work that is stuck with a dead owner.

#[path = "common/mod.rs"]
mod common;

use std::{
    path::Path,
    time::{Duration, Instant},
};

use common::{Home, case, corpus, poll};
use forebay::{
    chunk::{Chunk, ChunkKey, Digest},
    folder::Folder,
    queue::{self, Leased, Settlement},
};

fn chunk(at: u64) -> Chunk {
    let text = format!("text {at}");
    let source_hash = Digest::of(text.as_bytes());
    let key = ChunkKey::new(format!("document-{at}"), 0);
    Chunk { key, text, meta: None, source_hash, source_id: 1, ordinal: at, line: at + 1 }
}

fn open(dir: &Path, cache_mb: u64) -> Folder {
    let settings = queue::Settings { window_chunks: 500_000, cache_mb };
    Folder::open(dir, &settings, 1_000).unwrap()
}

/// Bytes of all files below a folder, as the disk counts them.
fn bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let of = |path: &Path| if path.is_dir() { bytes(path) } else { path.metadata().unwrap().blocks() * 512 };
    entries.map(|entry| of(&entry.path())).sum()
}

/// Most memory that this process ever had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

#[test]
fn d02_a_hundred_thousand_short_chunks_leave_next_to_nothing_behind() {
    const JOBS: u64 = 100_000;
    const WINDOW: u64 = 5_000;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (folder, mut most) = (open(&data, 8), 0);
    for from in (0..JOBS).step_by(usize::try_from(WINDOW).unwrap()) {
        (from..from + WINDOW).for_each(|at| _ = folder.queue.enqueue(chunk(at)).unwrap());
        while let Leased::Chunks(chunks) = folder.queue.lease(256, usize::MAX).unwrap() {
            let written = chunks.into_iter().map(|(lease, _)| Settlement::Written(lease));
            folder.queue.settle(written.collect()).unwrap();
        }
        folder.queue.flush().unwrap();
        most = most.max(bytes(&data.join("queue")));
    }
    drop(folder);
    // An open looks whether a store is mostly waste, and writes it anew.
    drop(open(&data, 8));
    let left = bytes(&data.join("queue"));
    println!(
        "{JOBS} jobs: {} kB at most ({} B a job), {} kB after the next open",
        most >> 10,
        most / JOBS,
        left >> 10
    );
    assert!(most < 64 << 20, "{most} bytes");
    assert!(left < 8 << 20, "{left} bytes are left");
    assert!(bytes(&data) < 12 << 20);
}

const CHILD: &str = "FOREBAY_DURABILITY_CHILD";

/// Not a test of its own: a process whose memory is looked at.
#[test]
fn child() {
    let Ok(dir) = std::env::var(CHILD) else { return };
    let before = peak();
    let start = Instant::now();
    let folder = open(Path::new(&dir), 16);
    let took = start.elapsed();
    let mut seen = 0_u64;
    folder
        .queue
        .catch_up(&mut |chunk| {
            seen += u64::from(!chunk.text.is_empty());
            false
        })
        .unwrap();
    let depth = folder.queue.depth();
    println!("{seen} {} {} {}", depth.pending, took.as_millis(), (peak() - before) >> 20);
    // As a kill would end it.
    std::process::abort();
}

#[test]
fn d03_d06_a_large_store_opens_quickly_after_a_kill_and_stays_within_its_cache() {
    const PENDING: u64 = 200_000;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let folder = open(&data, 16);
    (0..PENDING).for_each(|at| _ = folder.queue.enqueue(chunk(at)).unwrap());
    folder.queue.flush().unwrap();
    drop(folder);
    for turn in ["after a clean end", "after an abort"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, &data)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        let numbers = said.lines().find_map(|line| {
            let numbers: Option<Vec<u64>> = line.split(' ').map(|word| word.parse().ok()).collect();
            numbers.filter(|numbers| numbers.len() == 4)
        });
        let numbers =
            numbers.unwrap_or_else(|| panic!("{turn}: {said}{}", String::from_utf8_lossy(&child.stderr)));
        println!("{turn}: {PENDING} pending: open {} ms, {} MB at most", numbers[2], numbers[3]);
        assert_eq!(numbers[..2], [PENDING, PENDING], "{turn}");
        assert!(numbers[2] < 15_000 && numbers[3] < 256, "{turn}: {numbers:?}");
    }
}

#[test]
fn d04_fifty_restarts_at_once_and_no_lock_is_in_the_way() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(500));
    for turn in 0..50 {
        let report = home.run(&[&input, "--limit", "10"], 0);
        assert_eq!(report.n("chunks"), 10, "turn {turn}");
    }
    home.holds(500);
}

#[test]
fn d04_beside_a_run_status_and_dlq_answer_and_a_second_run_names_its_pid() {
    let home = Home::new();
    home.run(&[&case("c02_poison_in_batch.jsonl")], 1);
    let input = home.file("in.jsonl", corpus(3_000));
    let mut run = home.start(&["run", &input, "--set", "pipeline.batch_chunks=5"]);
    run.has_written(&home, 80);
    let lock = home.lock_sink();
    for _ in 0..10 {
        assert_eq!(home.status().unwrap()["run"]["pid"], run.pid());
        assert_eq!(home.letters().len(), 2);
    }
    let pid = format!("in use by process {}", run.pid());
    home.forebay(&["run", &input]).exits(2).says(&[&pid]);
    drop(lock);
    run.wait().exits(0);
}

#[test]
fn d06_d07_what_a_killed_owner_held_is_free_at_once_and_status_says_so() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(20_000));
    home.forebay(&["enqueue", &input]).exits(0);
    let mut run = home.start(&["run", "--json", "--set", "pipeline.batch_chunks=20"]);
    run.has_written(&home, 100);
    let lock = home.lock_sink();
    poll("batches are held", || home.status().filter(|status| status["queue"]["in_flight"] == 60));
    run.kill();
    drop(lock);
    let (written, start) = (home.ledger_rows(), Instant::now());
    let status = home.status().unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "the open took {:?}", start.elapsed());
    assert_eq!(
        (&status["queue"]["in_flight"], &status["queue"]["delayed"]),
        (&0.into(), &0.into()),
        "{status}"
    );
    assert!(status["queue"]["pending"].as_u64().unwrap() >= 20_000 - written, "{status}");
    // The first batch of the next run has what the dead one held: it is the oldest.
    assert_eq!(home.run(&["--limit", "60"], 0).numbers(["chunks", "dead"]), [60, 0]);
    home.run(&[], 0);
    home.holds(20_000);
}

/// Whatever a chunk went through, time alone brings it back: no place is without a way out.
#[test]
fn d07_from_every_place_there_is_a_way_out_without_anybodys_help() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let folder = open(&data, 8);
    (0..5).for_each(|at| _ = folder.queue.enqueue(chunk(at)).unwrap());
    let lease = |folder: &Folder, n| match folder.queue.lease(n, usize::MAX).unwrap() {
        Leased::Chunks(chunks) => chunks,
        other => panic!("nothing to lease: {other:?}"),
    };
    // Dropped, to be tried again, abandoned, still held, never leased.
    let mut held = lease(&folder, 4);
    drop(held.remove(0));
    let (retry, _) = held.remove(0);
    let after = Duration::from_secs(3_600);
    folder.queue.settle(vec![Settlement::Retry { lease: retry, attempts: 1, after }]).unwrap();
    held.remove(0).0.abandon();
    assert_eq!((folder.queue.depth().in_flight, folder.queue.depth().delayed), (2, 1));
    folder.queue.flush().unwrap();
    // The owner dies with what it held.
    held.remove(0).0.abandon();
    drop(folder);
    let folder = open(&data, 8);
    let depth = folder.queue.depth();
    assert_eq!((depth.pending, depth.in_flight, depth.delayed), (5, 0, 1));
    let mut back = Vec::new();
    poll("all five come back", || {
        match folder.queue.lease(5, usize::MAX).unwrap() {
            Leased::Chunks(chunks) => back.extend(chunks),
            // A wait is never longer than the longest of the settings, whatever was written down.
            Leased::Wait(at) => assert!(at.unwrap() <= Instant::now() + Duration::from_secs(1)),
            Leased::Empty => panic!("{} came back", back.len()),
        }
        (back.len() == 5).then_some(())
    });
}

//! A full disk stops the line cleanly, costs nothing, and the line goes on once there is space.

mod common;

use std::{io::Write as _, path::Path};

use common::{Home, Mount, PATIENCE, Running, corpus, may_mount, poll};

const CHUNKS: usize = 4_000;

/// A home whose data folder is on a small file system of its own, most of it taken by `ballast`.
fn small() -> Option<(Mount, Home)> {
    if !may_mount() {
        return None;
    }
    let folder =
        std::env::temp_dir().join(format!("forebay-full-{}-{}", std::process::id(), fastrand::u32(..)));
    let mount = Mount::new(folder, &["-t", "tmpfs", "-o", "size=32m", "none"])?;
    let home = Home::with_data(mount.at.join("data"));
    Some((mount, home))
}

/// Writes until only `spare` bytes are free.
fn fill(path: &Path, spare: u64) {
    let mut file = std::fs::File::create(path).unwrap();
    for size in [1 << 20, 4_096, 64] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
    file.set_len(file.metadata().unwrap().len() - spare).unwrap();
}

fn start(home: &Home, input: &str, min_free_mb: u64, wait_s: u64) -> Running {
    let wait = format!("limits.disk_full_wait_s={wait_s}");
    let free = format!("limits.min_free_mb={min_free_mb}");
    let quick = [
        "breaker.open_s=1",
        "breaker.give_up_after_s=2",
        "retry.base_ms=50",
        "retry.cap_ms=100",
        "pipeline.grace_s=2",
        "pipeline.batch_chunks=20",
    ];
    let mut arguments = vec!["run", "--json", input];
    quick.iter().copied().chain([&*wait, &*free]).for_each(|setting| arguments.extend(["--set", setting]));
    home.start(&arguments)
}

#[test]
fn a_run_stops_with_exit_3_and_the_next_one_finishes() {
    let Some((mount, home)) = small() else { return };
    let input = home.file("in.jsonl", corpus(CHUNKS));
    let mut run = start(&home, &input, 0, 1);
    run.has_written(&home, 100);
    let ballast = mount.at.join("ballast");
    fill(&ballast, 0);
    let ran = run.wait();
    let ran = ran.exits(3).says(&["full"]);
    // The report cannot be stored, but it is told.
    assert_eq!(ran.report().outcome(), "halted", "{ran}");
    let written = home.ledger_rows();
    // While it is full, every verb says what is wrong.
    let still = start(&home, &input, 0, 1).wait();
    assert!(matches!(still.code, Some(2 | 3)), "{still}");
    assert!(still.stderr.contains("full") || still.stderr.contains("space"), "{still}");
    std::fs::remove_file(ballast).unwrap();
    let report = home.run(&[&input, "--set", "limits.min_free_mb=1"], 0);
    assert!(report.n("embedded") <= CHUNKS as u64 - written, "{}", report.0);
    assert_eq!(report.n("dead"), 0);
    home.holds(CHUNKS as u64);
    assert_eq!(home.run(&[&input, "--set", "limits.min_free_mb=1"], 0).n("embedded"), 0);
}

#[test]
fn a_run_that_may_wait_goes_on_by_itself_when_there_is_space() {
    let Some((mount, home)) = small() else { return };
    let input = home.file("in.jsonl", corpus(CHUNKS));
    let mut run = start(&home, &input, 8, PATIENCE.as_secs());
    run.has_written(&home, 100);
    let ballast = mount.at.join("ballast");
    fill(&ballast, 5 << 20);
    let waits = |status: &serde_json::Value| status["run"].is_object() && status["queue"]["in_flight"] == 0;
    poll("what was in flight is written", || {
        run.ended().then_some(()).or_else(|| home.status().filter(waits).map(drop))
    });
    assert!(!run.ended(), "it waits");
    assert!(home.ledger_rows() < CHUNKS as u64);
    std::fs::remove_file(ballast).unwrap();
    let ran = run.wait().exits(0);
    assert_eq!(ran.report().numbers(["chunks", "dead"]), [CHUNKS as u64, 0], "{ran}");
    home.holds(CHUNKS as u64);
}

#[test]
fn too_little_free_space_is_noticed_before_it_is_gone() {
    let Some((_mount, home)) = small() else { return };
    let input = home.file("in.jsonl", corpus(100));
    let settings = ["--set", "limits.min_free_mb=64", "--set", "limits.disk_full_wait_s=1"];
    let ran = home.forebay(&[&["run", "--json", &*input][..], &settings].concat());
    let ran = ran.exits(3).says(&["limits.disk_full_wait_s = 1", "free some space and run again"]);
    assert_eq!(ran.report().numbers(["chunks", "pending"]), [0, 0], "not even taken up");
    assert_eq!(home.run(&[&input, "--set", "limits.min_free_mb=1"], 0).n("embedded"), 100);
    home.holds(100);
}

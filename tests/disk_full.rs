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
    let mount = Mount::new(folder, &["-t", "tmpfs", "-o", "size=64m", "none"])?;
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

/// The status of a run that has closed its stores.
fn is_paused(home: &Home, run: &mut Running) -> bool {
    assert!(!run.ended(), "it waits");
    home.status().is_some_and(|status| status["run"]["disk_full_since"].is_string())
}

#[test]
fn a_disk_that_fills_in_mid_run_is_waited_for_and_the_run_finishes_by_itself() {
    let Some((mount, home)) = small() else { return };
    let input = home.file("in.jsonl", corpus(CHUNKS));
    let mut run = start(&home, &input, 0, PATIENCE.as_secs());
    let ballast = mount.at.join("ballast");
    // Twice: what goes on may find it full again.
    for rows in [100, 1_500] {
        run.has_written(&home, rows);
        fill(&ballast, 0);
        poll("the stores are closed", || is_paused(&home, &mut run).then_some(()));
        let asked = home.forebay(&["dlq", "list"]);
        assert_eq!(asked.code, Some(2), "{asked}");
        asked.says(&["the disk is full", "free some space"]);
        std::fs::remove_file(&ballast).unwrap();
    }
    let ran = run.wait().exits(0).says(&["the disk is full"]);
    let report = ran.report();
    assert_eq!(
        report.numbers(["chunks", "skipped", "duplicates", "dead"]),
        [CHUNKS as u64, 0, 0, 0],
        "{ran}"
    );
    assert_eq!(home.moved_aside(), 0, "the queue was closed, not lost: {ran}");
    home.holds(CHUNKS as u64);
    assert_eq!(home.run(&[&input, "--set", "limits.min_free_mb=1"], 0).n("embedded"), 0);
}

#[test]
fn standard_input_waits_for_space_and_is_embedded_whole() {
    let Some((mount, home)) = small() else { return };
    home.run(&[&home.file("one.jsonl", corpus(1)), "--set", "limits.min_free_mb=1"], 0);
    let ballast = mount.at.join("ballast");
    fill(&ballast, 3 << 20);
    let lines = |n: usize| (0..n).map(|i| common::record(&format!("piped-{i}"), &"piped ".repeat(20)));
    let arguments =
        ["run", "-", "--json", "--set", "limits.min_free_mb=8", "--set", "pipeline.batch_chunks=20"];
    let mut run = home.fed(&arguments, lines(CHUNKS).collect::<String>());
    let spooling = || std::fs::read_dir(home.data("spool")).is_ok_and(|mut files| files.next().is_some());
    poll("it has begun to fill the spool", || spooling().then_some(()));
    assert!(!run.ended(), "it waits");
    std::fs::remove_file(&ballast).unwrap();
    let ran = run.wait().exits(0).says(&["standard input waits for space"]);
    assert_eq!(ran.report().numbers(["chunks", "dead"]), [CHUNKS as u64, 0], "{ran}");
}

#[test]
fn a_sink_on_a_full_disk_of_its_own_is_waited_for() {
    let Some((mount, _)) = small() else { return };
    let home = Home::new();
    let sink = format!("sink.path={}", mount.at.join("vectors.db").display());
    let input = home.file("in.jsonl", corpus(CHUNKS));
    let arguments = ["run", "--json", &*input, "--set", &*sink, "--set", "pipeline.batch_chunks=20"];
    let mut run = home.start(&arguments);
    run.has_written(&home, 100);
    let ballast = mount.at.join("ballast");
    fill(&ballast, 0);
    poll("the stores are closed", || is_paused(&home, &mut run).then_some(()));
    std::fs::remove_file(&ballast).unwrap();
    let ran = run.wait().exits(0);
    assert_eq!(ran.report().numbers(["chunks", "dead"]), [CHUNKS as u64, 0], "{ran}");
    home.forebay(&["verify", "--set", &sink]).exits(0);
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

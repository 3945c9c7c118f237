//! A sink that is down is nobody's fault: the gate shuts, no attempt is charged, and the line goes on by itself.

mod common;

use std::time::{Duration, Instant};

use common::{Home, Running, corpus, poll};

const CHUNKS: usize = 3_000;

fn start(home: &Home, input: &str, more: &[&str]) -> Running {
    let quick = [
        "sink.busy_timeout_ms=50",
        "breaker.open_s=1",
        "retry.base_ms=10",
        "retry.cap_ms=50",
        "pipeline.batch_chunks=10",
    ];
    let mut arguments = vec!["run", "--json", "-v", input];
    quick.iter().chain(more).for_each(|setting| arguments.extend(["--set", setting]));
    home.start(&arguments)
}

/// The gate of the sink, as the process that runs says.
fn gate(home: &Home) -> Option<String> {
    home.status()?["run"]["sink_gate"].as_str().map(str::to_owned)
}

#[test]
fn an_outage_shuts_the_gate_buries_nothing_and_passes_by_itself() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(CHUNKS));
    let mut run = start(&home, &input, &[]);
    run.has_written(&home, 100);
    let lock = home.lock_sink();
    poll("the gate shuts", || gate(&home).filter(|gate| gate == "open"));
    let written = home.ledger_rows();
    // Long enough for probes to fail: it opens half, and shuts again.
    poll("a probe is tried", || gate(&home).filter(|gate| gate == "half_open"));
    poll("the gate shuts again", || gate(&home).filter(|gate| gate == "open"));
    let status = home.status().unwrap();
    assert_eq!((&status["dead_open"], &status["queue"]["delayed"]), (&0.into(), &0.into()), "{status}");
    let (in_flight, bound) = (status["queue"]["in_flight"].as_u64().unwrap(), 3 * 10);
    assert!((1..=bound).contains(&in_flight), "batches wait at the writer: {status}");
    assert_eq!(home.ledger_rows(), written);
    assert!(!run.ended());
    drop(lock);
    let ran = run.wait().exits(0).says(&["the sink is unavailable", "breaker"]);
    let report = ran.report();
    // Nothing embedded was thrown away, and no chunk was charged.
    let n = CHUNKS as u64;
    assert_eq!(report.numbers(["embedded", "chunks", "dead"]), [n, n, 0], "{ran}");
    assert!(!ran.stderr.contains("is tried again"), "{ran}");
    assert!(home.letters().is_empty());
    home.holds(n);
}

#[test]
fn an_outage_that_does_not_end_halts_with_everything_still_queued() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(CHUNKS));
    let mut run = start(&home, &input, &["breaker.give_up_after_s=1", "pipeline.grace_s=1"]);
    run.has_written(&home, 100);
    let lock = home.lock_sink();
    let ran = run.wait().exits(3).says(&["breaker.give_up_after_s = 1", "still queued"]);
    let report = ran.report();
    assert_eq!(report.outcome(), "halted");
    let written = home.ledger_rows();
    assert_eq!(report.numbers(["chunks", "dead"]), [written, 0]);
    assert!(report.n("pending") > 0);
    drop(lock);
    assert!(home.letters().is_empty());
    let n = CHUNKS as u64;
    assert_eq!(home.run(&[&input], 0).numbers(["embedded", "dead"]), [n - written, 0]);
    home.holds(n);
}

#[test]
fn a_sink_that_is_locked_from_the_start_is_told_before_anything_is_done() {
    let home = Home::new();
    let first = home.file("first.jsonl", corpus(1));
    home.run(&[&first], 0);
    let lock = home.lock_sink();
    let input = home.file("in.jsonl", corpus(10));
    start(&home, &input, &[]).wait().exits(2).says(&["vectors.db", "another process holds the write lock"]);
    drop(lock);
    home.run(&[&input], 0);
    home.holds(10);
}

/// `FOREBAY_OUTAGE_S=180` takes that long, with the breaker's own settings.
#[test]
fn d13_five_thousand_queued_wait_for_the_sink_and_go_on_by_themselves() {
    const QUEUED: u64 = 5_000;
    let seconds = std::env::var("FOREBAY_OUTAGE_S").ok().map(|seconds| seconds.parse().unwrap());
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(usize::try_from(QUEUED).unwrap()));
    home.forebay(&["enqueue", &input]).exits(0);
    home.run(&["--limit", "1"], 0);
    // The shipped settings, or shorter ones.
    let (open_s, busy_ms) = if seconds.is_some() { (5, 2_000) } else { (1, 200) };
    let busy = format!("sink.busy_timeout_ms={busy_ms}");
    let mut run = home.start(&[
        "run",
        "--json",
        "-v",
        "--set",
        &format!("breaker.open_s={open_s}"),
        "--set",
        "pipeline.batch_chunks=10",
        "--set",
        &busy,
    ]);
    run.has_written(&home, 1);
    let lock = home.lock_sink();
    let down = Instant::now();
    poll("the gate shuts", || gate(&home).filter(|gate| gate == "open"));
    let written = home.ledger_rows();
    let (mut samples, mut halves, shut) = (0_u32, 0_u32, Instant::now());
    while shut.elapsed() < Duration::from_secs(seconds.unwrap_or(3)) {
        let status = home.status().unwrap();
        let queue = &status["queue"];
        assert_eq!((&status["dead_open"], &queue["delayed"]), (&0.into(), &0.into()), "{status}");
        assert_eq!(queue["pending"], QUEUED - written, "{status}");
        assert!(!run.ended(), "it gave up");
        samples += 1;
        halves += u32::from(status["run"]["sink_gate"] == "half_open");
        std::thread::park_timeout(Duration::from_millis(50));
    }
    assert_eq!(home.ledger_rows(), written);
    assert!(samples > 10, "{samples} looks");
    drop(lock);
    let up = Instant::now();
    run.has_written(&home, written);
    let first = up.elapsed();
    println!(
        "down for {:.1?}, {samples} looks, {halves} of them at a probe; first write {first:.2?} after",
        down.elapsed()
    );
    // The gate stays shut for open_s, and a probe waits for the lock as long as a write would.
    assert!(first < Duration::from_secs(open_s + 2 + 3), "{first:?}");
    let ran = run.wait().exits(0);
    let report = ran.report();
    assert_eq!(report.numbers(["embedded", "chunks", "dead"]), [QUEUED - 1, QUEUED - 1, 0], "{ran}");
    assert!(!ran.stderr.contains("is tried again"), "an attempt was charged: {ran}");
    assert!(home.letters().is_empty());
    home.holds(QUEUED);
}

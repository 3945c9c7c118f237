//! kill -9 at any moment: nothing lost, nothing doubled, and the next run does the rest. SIGTERM drains.

mod common;

use std::time::{Duration, Instant};

use common::{Home, Running, corpus, poll};

const CHUNKS: u64 = 4_000;
/// Chunks of a batch, and batches in flight: what one kill may cost.
const BATCH: u64 = 4;
const IN_FLIGHT: u64 = 3;
const KILLS: u64 = 12;

/// Small batches, so that a run takes seconds and a kill has something to hit.
fn slow() -> [String; 4] {
    let set = |key: &str, value: u64| ["--set".to_owned(), format!("pipeline.{key}={value}")];
    let [a, b] = [set("batch_chunks", BATCH), set("batches_in_flight", IN_FLIGHT)];
    [a, b].concat().try_into().unwrap()
}

fn start(home: &Home, arguments: &[&str]) -> Running {
    let slow = slow();
    let slow: Vec<&str> = slow.iter().map(String::as_str).collect();
    home.start(&[&["run", "--json", "-v"][..], arguments, &slow].concat())
}

/// The number that the log of a run gives to the chunks which the kill before it found in flight.
fn in_flight(stderr: &str) -> u64 {
    let line = stderr.lines().find(|line| line.contains("were in flight when the last process died"));
    let number = line.and_then(|line| line.split_once("chunks=")).map_or("0", |(_, number)| number);
    number.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn killed_at_any_moment_it_loses_nothing_doubles_nothing_and_finishes() {
    let seed = 20_261_130;
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(usize::try_from(CHUNKS).unwrap()));
    let mut written = 0;
    for kill in 0..KILLS {
        let mut run = start(&home, &[&input]);
        if kill % 3 == 2 {
            // At any moment at all: while it starts, opens, recovers, reads.
            let until = Instant::now() + Duration::from_micros(random.u64(0..150_000));
            poll("the moment has come", || (Instant::now() >= until).then_some(()));
        } else {
            // In the midst of its work.
            let rows = written + random.u64(1..150);
            poll("some more is written", || (home.ledger_rows() >= rows || run.ended()).then_some(()));
        }
        let run = run.kill();
        assert_eq!(run.code, None, "kill {kill} came too late: {run}");
        assert!(in_flight(&run.stderr) <= IN_FLIGHT * BATCH, "kill {kill}: {run}");
        let rows = home.ledger_rows();
        assert!(rows >= written, "kill {kill}: the ledger went from {written} rows to {rows}");
        let ahead = home.sink_rows() - rows;
        assert!(ahead <= IN_FLIGHT * BATCH, "kill {kill}: the sink is {ahead} rows ahead of the ledger");
        println!("kill {kill}: {rows} written");
        written = rows;
    }
    let report = home.run(&[&input], 0);
    // What the ledger had is not embedded again, and nothing else is left out.
    assert_eq!(report.numbers(["embedded", "dead"]), [CHUNKS - written, 0], "{}", report.0);
    assert_eq!(report.n("chunks") + report.n("skipped"), CHUNKS);
    assert!(home.letters().is_empty(), "a kill is no chunk's fault");
    home.holds(CHUNKS);
    assert_eq!(home.run(&[&input], 0).n("embedded"), 0);
}

#[test]
fn a_run_without_paths_finishes_what_a_kill_left() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(1_000));
    let mut run = start(&home, &[&input, "--set", "queue.window_chunks=100"]);
    run.has_written(&home, 50);
    run.kill();
    home.run(&[], 0);
    home.holds(1_000);
}

#[test]
fn sigterm_drains_and_the_next_run_finishes() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let home = Home::new();
        let input = home.file("in.jsonl", corpus(2_000));
        let mut run = start(&home, &[&input]);
        run.has_written(&home, 100);
        run.signal(signal);
        let report = run.wait().exits(130).says(&["draining"]).report();
        assert_eq!(report.outcome(), "interrupted");
        assert_eq!(report.n("chunks"), home.ledger_rows(), "what is reported is what is written");
        assert!(report.n("pending") > 0, "{}", report.0);
        assert!(!home.data("control.sock").exists(), "a clean end leaves no socket");
        let rest = home.run(&[&input], 0);
        assert_eq!(rest.n("embedded"), 2_000 - report.n("chunks"));
        home.holds(2_000);
    }
}

#[test]
fn a_second_sigterm_exits_at_once() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(4_000));
    let mut run = start(&home, &[&input, "--set", "pipeline.grace_s=600"]);
    run.has_written(&home, 20);
    let lock = home.lock_sink();
    run.signal(libc::SIGTERM);
    poll("it drains", || home.status().filter(|status| status["run"]["draining"] == true));
    assert!(!run.ended(), "it waits for what is in flight");
    let written = home.ledger_rows();
    run.signal(libc::SIGTERM);
    let start = Instant::now();
    run.wait().exits(130);
    assert!(start.elapsed() < Duration::from_secs(30), "long before the grace period is over");
    drop(lock);
    assert_eq!(home.run(&[&input], 0).numbers(["embedded", "dead"]), [4_000 - written, 0]);
    home.holds(4_000);
}

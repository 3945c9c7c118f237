//! kill -9 at any moment: nothing lost, nothing doubled, and the next run does the rest, with dead letters, redrives and
//! standard input in the mix. SIGTERM drains. `FOREBAY_KILLS=300` is the long form.

mod common;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::{Home, Running, corpus, number_set, poll, record};
use serde_json::{Value, json};

/// Chunks of a batch, and batches in flight: what one kill may cost.
const BATCH: u64 = 4;
const IN_FLIGHT: u64 = 3;
/// Chunks that are on their way to the dead letters at once: they hold no place in a batch any more. One in 200 does.
const LETTERS: u64 = 2;
const KILLS: u64 = 12;
/// Records among the others that cannot be embedded: every so many lines, one that is too long and one that is cut.
const BAD_EVERY: usize = 200;

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

/// `good` records with some among them that end as dead letters. Gives their number, too.
fn mixed(good: usize) -> (String, usize) {
    let (mut text, mut bad) = (String::new(), 0);
    for (at, line) in corpus(good).split_inclusive('\n').enumerate() {
        if at % BAD_EVERY == BAD_EVERY / 2 {
            let long = "far too long ".repeat(20);
            text += &format!("{}\n", json!({ "id": format!("long-{at}"), "chunk_index": 0, "text": long }));
            text += &format!("{{\"id\": \"cut-{at}\n");
            bad += 2;
        }
        text += line;
    }
    (text, bad)
}

/// Waits at most so long, then kills.
fn kill_within(running: Running, micros: u64) -> common::Ran {
    let until = Instant::now() + Duration::from_micros(micros);
    poll("the moment has come", || (Instant::now() >= until).then_some(()));
    running.kill()
}

/// Every subject has one letter that is not closed.
fn letters_of_each(home: &Home) -> usize {
    let mut subjects: BTreeMap<String, usize> = BTreeMap::new();
    let open = |letter: &Value| !matches!(letter["state"].as_str(), Some("resolved" | "discarded"));
    for letter in home.letters().into_iter().filter(open) {
        *subjects.entry(format!("{} {}", letter["doc_id"], letter["origin"])).or_default() += 1;
    }
    assert!(subjects.values().all(|letters| *letters == 1), "{subjects:?}");
    subjects.len()
}

#[test]
fn killed_at_any_moment_it_loses_nothing_doubles_nothing_and_finishes() {
    let (seed, kills) = (20_261_130, number_set("FOREBAY_KILLS").unwrap_or(KILLS));
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let home = Home::new();
    home.file("forebay.toml", "[model]\nmax_length = 24\ntruncation = \"bury\"\n");
    let (mut chunks, mut written, mut before) = (kills.max(40) * 100, 0, 0);
    let (lines, bad) = mixed(usize::try_from(chunks).unwrap());
    let input = home.file("in.jsonl", lines);
    for kill in 0..kills {
        match kill % 6 {
            1 => {
                // In the midst of sending letters back; what was sent is tried, and buried again, by the run.
                kill_within(home.start(&["dlq", "redrive", "--all"]), random.u64(0..60_000));
            }
            4 => {
                let more: String = (0..5).map(|n| record(&format!("in-{kill}-{n}"), "from a pipe")).collect();
                home.fed(&["enqueue", "-"], more).wait().exits(0);
                chunks += 5;
            }
            _ => {}
        }
        let mut run = start(&home, &[&input]);
        let run = if kill % 3 == 2 {
            // At any moment at all: while it starts, opens, recovers, reads.
            kill_within(run, random.u64(0..150_000))
        } else {
            // In the midst of its work.
            let rows = written + random.u64(1..60);
            poll("some more is written", || (home.ledger_rows() >= rows || run.ended()).then_some(()));
            run.kill()
        };
        assert_eq!(run.code, None, "kill {kill} came too late: {run}");
        assert!(in_flight(&run.stderr) <= IN_FLIGHT * BATCH + LETTERS, "kill {kill}: {run}");
        assert!(!run.stderr.contains("the queue was rebuilt"), "kill {kill}: {run}");
        let rows = home.ledger_rows();
        assert!(rows >= written, "kill {kill}: the ledger went from {written} rows to {rows}");
        let ahead = home.sink_rows() - rows;
        // Suspects wait behind the others, so that what earlier kills left may still be there.
        assert!(
            ahead <= before + IN_FLIGHT * BATCH,
            "kill {kill}: the sink is {ahead} rows ahead of the ledger"
        );
        (written, before) = (rows, ahead);
    }
    println!("{kills} kills: {written} of {chunks} written");
    let report = home.run(&[&input], 1);
    // What the ledger had is not embedded again, and nothing else is left out.
    assert_eq!(report.numbers(["embedded", "chunks"]), [chunks - written; 2], "{}", report.0);
    assert_eq!(letters_of_each(&home), bad, "a kill is no chunk's fault");
    home.holds(chunks);
    assert_eq!(home.run(&[&input], 1).n("embedded"), 0);
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

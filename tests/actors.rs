//! What actors are known to get wrong: mailboxes without a bound, restarts without end, work on the runtime that keeps
//! everybody waiting, signals nobody hears, breakers that wedge.

#[path = "common/mod.rs"]
mod common;

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use common::{Home, Running, corpus, poll};
use forebay::{
    error::Class,
    ops::{command::Command as Verb, control},
    pipeline::{self, Line, Stop, report::Outcome},
    queue::{Depth, Leased, dead::DeadLetter, dlq::Filter},
    testkit::{
        faults::Poison,
        rig::{Cut, Rig, chunk_line},
    },
};

const NONE: &[PathBuf] = &[];
/// What a verb beside a run may take.
const AT_ONCE: Duration = Duration::from_millis(200);

/// An input of `n` chunks; `text` says what is in each.
fn input(rig: &Rig, n: usize, text: impl Fn(usize) -> String) -> PathBuf {
    let lines: Vec<_> = (0..n).map(|at| chunk_line(&format!("d{at}"), 0, &text(at))).collect();
    rig.input("in.jsonl", &lines)
}

fn good(at: usize) -> String {
    format!("text number n{at}")
}

fn letters(rig: &Rig) -> Vec<DeadLetter> {
    rig.folder().queue.letters(&Filter { closed_too: true, ..Filter::default() }, usize::MAX).unwrap()
}

/// Documents in the sink.
fn rows(rig: &Rig) -> usize {
    let (folder, mut rows) = (rig.folder(), 0);
    let mut each = |_| {
        rows += 1;
        Ok(())
    };
    rig.plain_sink().scan(Some(&folder.store), &mut each).unwrap();
    rows
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() << 10
}

/// A run with its control socket on a runtime of one thread, where whatever blocks it blocks everybody.
fn run_on_one_thread(
    rig: &Rig,
    paths: &[PathBuf],
    beside: impl FnOnce(&Line) + Send,
) -> pipeline::report::Report {
    let line = rig.line();
    let system = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = std::thread::scope(|scope| {
        scope.spawn(|| beside(&line));
        system.block_on(async {
            tokio::select! {
                report = pipeline::run(&line, paths) => report.unwrap(),
                served = control::serve(Arc::clone(&line)) => panic!("the socket ended: {served:?}"),
            }
        })
    });
    drop(system);
    rig.faults.release();
    poll("the threads end", || (Arc::strong_count(&line) == 1).then_some(()));
    report
}

/// Asks for the status `times` times; the longest that it took.
fn asked(line: &Line, times: usize) -> Duration {
    let once = || {
        let start = Instant::now();
        let status = control::ask(&line.folder.dir, &Verb::Status).unwrap().unwrap();
        assert!(status["queue"]["in_flight"].as_u64().is_some(), "{status}");
        start.elapsed()
    };
    poll("the socket is there", || control::is_served(&line.folder.dir).then_some(()));
    // Other tests share the machine: a single answer may be late for want of a processor.
    let mut took: Vec<_> = (0..times).map(|_| once()).collect();
    took.sort();
    println!("{times} answers: median {:?}, longest {:?}", took[times / 2], took[times - 1]);
    took[times * 9 / 10]
}

const ALONE: &str = "FOREBAY_ACTORS_ALONE";

/// Runs a test in a process of its own, where nothing else uses memory.
fn alone(test: &str, work: impl FnOnce()) {
    if std::env::var_os(ALONE).is_some() {
        return work();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn f01_a_reader_that_outruns_the_embedder_costs_no_memory_and_verbs_answer_at_once() {
    alone("f01_a_reader_that_outruns_the_embedder_costs_no_memory_and_verbs_answer_at_once", f01);
}

fn f01() {
    const RECORDS: usize = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.pipeline.batch_chunks = 8;
    let words = "water and gate ".repeat(60);
    let path = input(&rig, RECORDS, |at| format!("{} {words}", good(at)));
    rig.faults.pass_ms.store(300, Relaxed);
    let (mut depth, mut growth_mb) = (Depth::default(), u64::MAX);
    let (mut answer, mut drained) = (Duration::MAX, Duration::MAX);
    let report = run_on_one_thread(&rig, &[path], |line| {
        let window = line.settings.window_chunks;
        poll("the window is full", || (line.folder.queue.depth().pending >= window).then_some(()));
        let (early, passes) = (resident(), rig.faults.passes.load(Relaxed));
        answer = asked(line, 50);
        poll("some more passes", || (rig.faults.passes.load(Relaxed) > passes + 5).then_some(()));
        (depth, growth_mb) = (line.folder.queue.depth(), resident().saturating_sub(early) >> 20);
        line.stop(Stop::Interrupted);
        let start = Instant::now();
        poll("it drains", || (line.folder.queue.depth().in_flight == 0).then_some(()));
        drained = start.elapsed();
    });
    println!("{depth:?}, grew by {growth_mb} MB of {} MB of input", (RECORDS * words.len()) >> 20);
    assert!(answer < AT_ONCE, "{answer:?}");
    assert!(drained < Duration::from_secs(5), "a stop is no message behind the data: {drained:?}");
    assert!(depth.pending <= rig.settings.window_chunks + 8 && depth.in_flight <= 3 * 8, "{depth:?}");
    assert!(growth_mb < 24, "grew by {growth_mb} MB");
    assert_eq!((report.outcome, report.dead), (Outcome::Interrupted, 0));
    assert!(report.produced < 2_000, "{} of {RECORDS} were read", report.produced);
}

#[test]
fn f02_a_crash_at_the_tenth_batch_costs_nobody_anything() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.pipeline.batch_chunks = 10;
    let path = input(&rig, 400, good);
    rig.faults.pass_ms.store(1, Relaxed);
    let report = rig.run_beside(&[path], Cut::Never, |_| {
        poll("the tenth batch", || (rig.faults.passes.load(Relaxed) >= 9).then_some(()));
        rig.faults.weather.crashes.store(1, Relaxed);
    });
    let report = report.unwrap();
    assert_eq!((report.chunks, report.dead, report.outcome), (400, 0, Outcome::Complete));
    assert_eq!((rig.faults.weather.crashes.load(Relaxed), rig.faults.embedded_again()), (0, 0));
    assert_eq!((rows(&rig), letters(&rig).len()), (400, 0));
}

#[test]
fn f02_a_panic_of_a_sink_that_has_written_doubles_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    let path = input(&rig, 200, good);
    rig.faults.late_panics.store(3, Relaxed);
    let report = rig.run(&[path]);
    assert_eq!((report.chunks, report.dead, report.outcome), (200, 0, Outcome::Complete));
    assert_eq!(rig.faults.late_panics.load(Relaxed), 0);
    assert_eq!(rig.folder().ledger.count().unwrap(), 200);
    assert_eq!((rows(&rig), letters(&rig).len()), (200, 0));
}

#[test]
fn f02_a_stage_that_cannot_be_started_again_halts_the_run_and_everything_stays_queued() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.pipeline.restarts_max = 3;
    let path = input(&rig, 300, good);
    rig.faults.pass_ms.store(5, Relaxed);
    let report = rig.run_beside(std::slice::from_ref(&path), Cut::Never, |line| {
        poll("it works", || (rig.faults.passes.load(Relaxed) > 0).then_some(()));
        line.starts_fail.store(u32::MAX, Relaxed);
        rig.faults.weather.crashes.store(1, Relaxed);
    });
    let report = report.unwrap();
    assert_eq!((report.outcome, report.dead), (Outcome::Halted, 0), "{report}");
    assert!(report.halted.unwrap().contains("restarts_max"));
    assert_eq!(report.chunks + report.pending, 300);
    assert_eq!(rig.run(&[path]).outcome, Outcome::Complete);
    assert_eq!(rows(&rig), 300);
}

/// With `panic = "abort"` there would be no supervision at all.
#[test]
fn f02_panics_unwind_in_every_profile() {
    let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    for (name, profile) in manifest["profile"].as_table().unwrap() {
        assert_ne!(profile.get("panic").and_then(toml::Value::as_str), Some("abort"), "profile {name}");
    }
    const { assert!(cfg!(panic = "unwind")) };
}

#[test]
fn f03_a_forward_pass_of_any_length_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    let path = input(&rig, 20, |at| if at == 7 { Poison::Hang.word().into() } else { good(at) });
    let report = run_on_one_thread(&rig, &[path], |line| {
        poll("the pass hangs", || (rig.faults.passes.load(Relaxed) > 0).then_some(()));
        assert!(asked(line, 50) < AT_ONCE);
        // A client that says nothing, or goes away, keeps nobody waiting either.
        let silent = std::os::unix::net::UnixStream::connect(line.folder.dir.join("control.sock")).unwrap();
        assert!(asked(line, 5) < AT_ONCE, "a silent client blocks the others");
        drop(silent);
        rig.faults.release();
    });
    assert_eq!((report.chunks, report.dead), (19, 1), "{report}");
}

/// The process that this one started.
fn child_of(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

#[test]
fn f04_as_the_first_process_of_a_container_sigterm_drains() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(4_000));
    let command = home.command(&["run", "--json", &input, "--set", "pipeline.batch_chunks=4"]);
    let mut first = Command::new("unshare");
    first.args(["--fork", "--pid"]).arg(command.get_program()).args(command.get_args());
    first.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    first.current_dir(command.get_current_dir().unwrap());
    first.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = match first.spawn() {
        Ok(child) => Running::of_child(child),
        Err(error) => return println!("skipped: no unshare here: {error}"),
    };
    let mut written = || (home.ledger_rows() > 50).then_some(true).or_else(|| run.ended().then_some(false));
    if !poll("it writes, or may not start", &mut written) {
        return println!("skipped: a namespace of processes needs root: {}", run.wait().stderr.trim());
    }
    let pid = child_of(run.pid()).unwrap();
    assert!(Command::new("kill").args(["-15", &pid.to_string()]).status().unwrap().success());
    let report = run.wait().exits(130).says(&["draining"]).report();
    assert!(report.n("pending") > 0 && report.n("chunks") == home.ledger_rows(), "{}", report.0);
    home.run(&[&input], 0);
    home.holds(4_000);
}

#[test]
fn f04_sigterm_at_any_moment_of_the_start_ends_it_and_loses_nothing() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(3_000));
    for moment in 0..12 {
        let run = home.start(&["run", "--json", &input, "--set", "pipeline.batch_chunks=4"]);
        let until = Instant::now() + Duration::from_millis(moment * 4);
        poll("the moment comes", || (Instant::now() >= until).then_some(()));
        run.signal(libc::SIGTERM);
        let start = Instant::now();
        let ran = run.wait();
        // Before its handler is there, the signal's own effect: no code.
        assert!(matches!(ran.code, Some(130) | None), "after {} ms: {ran}", moment * 4);
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    home.run(&[&input], 0);
    home.holds(3_000);
}

#[test]
fn d09_a_batch_that_takes_longer_than_any_wait_is_nobody_elses() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    // Every time limit of the line but the watchdog is far shorter than a pass.
    rig.settings.pipeline.batch_chunks = 5;
    (rig.settings.retry.cap_ms, rig.settings.retry.max_elapsed_s) = (1, 1);
    rig.faults.pass_ms.store(1_300, Relaxed);
    let path = input(&rig, 10, good);
    let report = rig.run_beside(&[path], Cut::Never, |line| {
        poll("all are out", || (line.folder.queue.depth().in_flight == 10).then_some(()));
        let twice = line.folder.queue.lease(100, usize::MAX).unwrap();
        let Leased::Wait(_) = twice else { panic!("leased twice, or not all at once: {twice:?}") };
    });
    assert_eq!(report.map(|report| (report.chunks, report.dead)), Some((10, 0)));
    assert_eq!((rig.faults.embedded_again(), rows(&rig)), (0, 10));
}

#[test]
fn f08_poison_in_an_outage_is_buried_after_it_and_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.pipeline.batch_chunks = 10;
    rig.faults.weather.sink_down.store(12, Relaxed);
    let poison = |at| match at {
        3 => Poison::Row.word(),
        17 => Poison::Batch.word(),
        24 => Poison::NotFinite.word(),
        _ => "good",
    };
    let path = input(&rig, 50, |at| format!("{} {}", good(at), poison(at)));
    let report = rig.run(&[path]);
    assert_eq!((report.chunks, report.dead, report.pending), (47, 3, 0), "{report}");
    let mut found: Vec<_> =
        letters(&rig).into_iter().map(|l| (l.doc_id.unwrap(), l.class, l.attempts)).collect();
    found.sort();
    let rejected = Class::SinkRejectedRow;
    let wanted = [("d17", rejected), ("d24", Class::NonFiniteVector), ("d3", rejected)];
    assert_eq!(found, wanted.map(|(doc, class)| (doc.to_owned(), class, 1)));
    assert_eq!(rig.faults.embedded_again(), 0, "nothing embedded was thrown away");
}

#[test]
fn f08_a_probe_that_hangs_does_not_hold_the_gate_shut() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.breaker.probe_timeout_s = 1;
    rig.faults.weather.sink_down.store(3, Relaxed);
    rig.faults.probes_hang.store(1, Relaxed);
    let path = input(&rig, 50, good);
    let start = Instant::now();
    let report = rig.run(&[path]);
    assert_eq!((report.chunks, report.dead, report.outcome), (50, 0, Outcome::Complete));
    assert_eq!(rig.faults.probes_hang.load(Relaxed), 0, "a probe hung");
    assert!((1..15).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
}

#[test]
fn c03_a_pass_that_does_not_fit_is_halved_and_only_what_never_fits_alone_is_dead() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    let path =
        input(&rig, 64, |at| format!("{} {}", good(at), if at == 40 { Poison::Memory.word() } else { "" }));
    let mut shut = false;
    let report = rig.run_beside(&[path], Cut::Never, |line| {
        poll("all of it has come to its end", || {
            shut |= !line.device_state.is_up() || !line.sink_state.is_up();
            (line.tally.chunks.get() + line.tally.buried.get() == 64).then_some(())
        });
    });
    assert_eq!(report.map(|report| (report.chunks, report.dead)), Some((63, 1)));
    let letter = letters(&rig).remove(0);
    assert_eq!((letter.class, letter.doc_id.as_deref()), (Class::OutOfMemory, Some("d40")));
    assert!(!shut && rig.faults.embedded_again() == 0, "it is no outage, and no neighbour's fault");
    assert_eq!(rig.run(NONE).embedded, 0);
}

//! The whole line, one fault at a time: what it costs, who is charged, and what the next run finds.

use std::{
    path::{Path, PathBuf},
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use forebay::{
    chunk::{Chunk, ChunkKey, Digest},
    error::{Class, Stage},
    ledger::Written,
    ops::{
        Context,
        command::{Command, How, execute},
    },
    pipeline::{Line, report::Outcome},
    queue::{
        Leased,
        dead::{Burial, DeadLetter, Origin, Payload, State, Subject},
        dlq::Filter,
    },
    testkit::{
        faults::Poison,
        rig::{Cut, Rig, chunk_line, document_line},
    },
};

fn chunk(doc: &str, text: &str, ordinal: u64) -> Chunk {
    Chunk {
        key: ChunkKey::new(doc, 0),
        text: text.into(),
        meta: None,
        source_hash: Digest::of(text.as_bytes()),
        source_id: 1,
        ordinal,
        line: 1,
    }
}

/// Puts texts into the queue, so that the batches of the next run are certain.
fn fill(rig: &Rig, texts: &[String]) {
    let folder = rig.folder();
    for (at, text) in (0..).zip(texts) {
        folder.queue.enqueue(chunk(&format!("d{at}"), text, at)).unwrap();
    }
    folder.queue.flush().unwrap();
}

/// `count` texts, the ones at `bad` with a poison in them.
fn texts(count: usize, poison: Poison, bad: &[usize]) -> Vec<String> {
    let word = |at| if bad.contains(&at) { poison.word() } else { "good" };
    (0..count).map(|at| format!("text number n{at} {}", word(at))).collect()
}

fn letters(rig: &Rig) -> Vec<DeadLetter> {
    rig.folder().queue.letters(&Filter { closed_too: true, ..Filter::default() }, usize::MAX).unwrap()
}

fn written(rig: &Rig) -> Vec<String> {
    let mut docs = Vec::new();
    let mut each = |stored: forebay::sink::Stored| {
        docs.push(stored.key.doc_id);
        Ok(())
    };
    let folder = rig.folder();
    rig.plain_sink().scan(Some(&folder.store), &mut each).unwrap();
    docs
}

/// Attempts that are charged to pending chunks.
fn charged(rig: &Rig) -> u32 {
    match rig.folder().queue.lease(10_000, usize::MAX).unwrap() {
        Leased::Chunks(chunks) => chunks.iter().map(|(lease, _)| lease.record().attempts).sum(),
        _ => 0,
    }
}

/// One verb beside a run or between two.
fn verb(folder: &forebay::folder::Folder, line: Option<&Line>, command: &Command) -> serde_json::Value {
    let settings = forebay::testkit::rig::settings();
    let context = Context { folder, line, source: &settings.source, line_bytes: 1 << 20 };
    execute(context, command).unwrap()
}

fn redrive_all() -> Command {
    Command::DlqRedrive { filter: Filter::default(), dry_run: false, who: "test".into(), how: How::default() }
}

fn approve_all() -> Command {
    let how = How { approve: true, ..How::default() };
    Command::DlqRedrive { filter: Filter::default(), dry_run: false, who: "test".into(), how }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => copy(&entry.path(), &to),
            _ => _ = std::fs::copy(entry.path(), to).unwrap(),
        }
    }
}

/// Waits for something that another thread does.
fn until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "it did not happen");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

const NONE: &[PathBuf] = &[];

#[test]
fn one_poison_chunk_among_64_costs_one_chunk_and_a_few_passes() {
    for bad in [0, 17, 63] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(dir.path());
        rig.settings.retry.max_attempts = 1;
        fill(&rig, &texts(64, Poison::Pass, &[bad]));
        let report = rig.run(NONE);
        assert_eq!((report.chunks, report.dead, report.outcome), (63, 1, Outcome::Partial));
        assert!(report.adds_up());
        let passes = rig.faults.passes.load(Relaxed) + rig.faults.goldens.load(Relaxed);
        assert!(passes > 1 && passes - 1 <= 2 * 6 + 1, "{passes} passes");
        assert_eq!(rig.faults.embedded_again(), 0);
        let letters = letters(&rig);
        assert_eq!(letters.len(), 1);
        assert_eq!(letters[0].doc_id.as_deref(), Some(&*format!("d{bad}")));
    }
}

#[test]
fn a_wholly_bad_batch_and_a_batch_of_one_end_in_letters() {
    for count in [64_usize, 1] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::new(dir.path());
        rig.settings.retry.max_attempts = 1;
        fill(&rig, &texts(count, Poison::Pass, &(0..count).collect::<Vec<_>>()));
        let report = rig.run(NONE);
        assert_eq!((report.chunks, report.dead), (0, count as u64));
        assert_eq!(letters(&rig).len(), count);
        // Each inner group once, each text twice alone, and golden texts in between.
        assert_eq!(rig.faults.passes.load(Relaxed), 3 * count as u64 - 1);
        let goldens = rig.faults.goldens.load(Relaxed);
        assert!(goldens <= 2 * count as u64, "{goldens} golden texts");
    }
}

#[test]
fn every_kind_of_poison_is_buried_under_its_class_and_costs_nobody_else() {
    for poison in Poison::LETHAL {
        let dir = tempfile::tempdir().unwrap();
        let rig = Rig::new(dir.path());
        fill(&rig, &texts(20, poison, &[7, 8]));
        let report = rig.run(NONE);
        assert_eq!((report.chunks, report.dead, report.pending), (18, 2, 0), "{poison:?}");
        assert!(report.adds_up(), "{poison:?}");
        let attempts = match poison {
            Poison::Pass => 3,
            Poison::Panic | Poison::Memory | Poison::SinkPanic => 2,
            _ => 1,
        };
        for letter in letters(&rig) {
            assert_eq!(Some(letter.class), poison.class());
            assert!(["d7", "d8"].contains(&letter.doc_id.as_deref().unwrap()));
            assert_eq!(letter.attempts, attempts, "{poison:?}");
            let at_the_sink = matches!(poison, Poison::Row | Poison::Batch | Poison::SinkPanic);
            assert!(!at_the_sink || letter.stage == Stage::Writer, "{poison:?}: {:?}", letter.stage);
            assert!(!letter.message.contains("text number"), "{}", letter.message);
        }
        assert_eq!(written(&rig).len(), 18);
        let again = rig.run(NONE);
        assert_eq!((again.chunks, again.embedded, again.outcome), (0, 0, Outcome::Complete));
    }
}

#[test]
fn what_fails_twice_and_then_works_is_written_and_leaves_no_letter() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    fill(&rig, &texts(9, Poison::Flaky, &[4]));
    let report = rig.run(NONE);
    assert_eq!((report.chunks, report.dead, report.outcome), (9, 0, Outcome::Complete));
    assert_eq!(letters(&rig), []);
}

#[test]
fn a_stage_that_crashes_is_started_anew_and_nobody_is_charged() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    rig.faults.weather.crashes.store(2, Relaxed);
    fill(&rig, &texts(200, Poison::Pass, &[]));
    let report = rig.run(NONE);
    assert_eq!((report.chunks, report.dead, report.outcome), (200, 0, Outcome::Complete));
    assert_eq!(rig.faults.weather.crashes.load(Relaxed), 0);
}

#[test]
fn a_stage_that_keeps_crashing_halts_the_run_and_everything_stays_queued() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.pipeline.restarts_max = 2;
    rig.faults.weather.crashes.store(1_000, Relaxed);
    fill(&rig, &texts(100, Poison::Pass, &[]));
    let report = rig.run(NONE);
    assert_eq!((report.outcome, report.chunks, report.pending), (Outcome::Halted, 0, 100));
    assert!(report.halted.unwrap().contains("restarts_max"));
    assert_eq!(rig.faults.weather.crashes.load(Relaxed), 997);
    assert_eq!((charged(&rig), letters(&rig).len()), (0, 0));
    rig.faults.weather.calm();
    assert_eq!(rig.run(NONE).chunks, 100);
}

#[test]
fn a_pass_that_hangs_halts_the_run_and_counts_as_an_unclean_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.pipeline.watchdog_s = 1;
    fill(&rig, &texts(10, Poison::Hang, &[3]));
    let report = rig.run(NONE);
    assert_eq!((report.outcome, report.chunks, report.pending), (Outcome::Halted, 0, 10));
    assert!(report.halted.unwrap().contains("watchdog_s"));
    let folder = rig.folder();
    assert_eq!(folder.recovered.unclean, 10);
    drop(folder);
    // The rig has released it: the pass fails now instead of hanging.
    let report = rig.run(NONE);
    assert_eq!((report.chunks, report.dead, report.pending), (9, 1, 0));
}

#[test]
fn while_the_sink_is_down_nothing_is_embedded_again_and_nobody_is_charged() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.pipeline.batch_chunks = 10;
    rig.faults.weather.sink_down.store(9, Relaxed);
    fill(&rig, &texts(100, Poison::Pass, &[]));
    let mut opened = false;
    let report = rig.run_beside(NONE, Cut::Never, |line| {
        until(|| {
            opened |= !line.sink_state.is_up();
            opened || line.tally.chunks.get() == 100
        });
    });
    let report = report.unwrap();
    assert!(opened, "the breaker never opened");
    assert_eq!((report.outcome, report.chunks, report.embedded), (Outcome::Complete, 100, 100));
    assert_eq!(letters(&rig), []);
}

#[test]
fn while_the_device_is_down_nobody_is_charged() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    rig.faults.weather.device_down.store(7, Relaxed);
    fill(&rig, &texts(50, Poison::Pass, &[]));
    let mut opened = false;
    let report = rig.run_beside(NONE, Cut::Never, |line| {
        until(|| {
            opened |= !line.device_state.is_up();
            opened || line.tally.chunks.get() == 50
        });
    });
    assert!(opened, "the breaker never opened");
    assert_eq!(report.map(|report| (report.outcome, report.chunks)), Some((Outcome::Complete, 50)));
    assert_eq!((rig.faults.embedded_again(), letters(&rig).len()), (0, 0));
}

#[test]
fn a_stop_drains_what_is_in_flight_and_leaves_the_rest_queued() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.pipeline.batch_chunks = 10;
    fill(&rig, &texts(300, Poison::Pass, &[]));
    let report = rig.run_cut(NONE, Cut::Stop(60)).unwrap();
    assert_eq!(report.outcome, Outcome::Interrupted);
    assert!(report.adds_up() && report.pending > 0, "{report}");
    assert_eq!(report.chunks + report.pending, 300);
    let rest = rig.run(NONE);
    assert_eq!((rest.chunks, rest.outcome), (report.pending, Outcome::Complete));
    assert_eq!(rig.faults.embedded_again(), 0, "what was embedded before the stop was written");
    assert!(rig.faults.batches_max.load(Relaxed) <= 3 && rig.faults.chunks_max.load(Relaxed) <= 30);
}

#[test]
fn work_that_cannot_end_within_the_grace_period_stays_queued() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.pipeline.grace_s = 1;
    rig.faults.weather.sink_down.store(u32::MAX, Relaxed);
    fill(&rig, &texts(50, Poison::Pass, &[]));
    let start = Instant::now();
    let report = rig.run_cut(NONE, Cut::Stop(51)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(6), "it took {:?}", start.elapsed());
    assert_eq!((report.outcome, report.chunks, report.pending), (Outcome::Interrupted, 0, 50));
    assert_eq!((charged(&rig), letters(&rig).len()), (0, 0));
    rig.faults.weather.calm();
    assert_eq!(rig.run(NONE).chunks, 50);
}

#[test]
fn a_redrive_between_runs_resolves_the_letter_once_its_chunk_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.retry.max_attempts = 1;
    // Twice alone in each of the first two runs.
    rig.faults.flaky_failures.store(4, Relaxed);
    fill(&rig, &texts(5, Poison::Flaky, &[2]));
    assert_eq!(rig.run(NONE).dead, 1);
    let redrive = |rig: &Rig, command: &Command| {
        let answer = verb(&rig.folder(), None, command);
        assert_eq!(answer["redriven"], 1, "{answer}");
        assert_eq!(verb(&rig.folder(), None, command)["redriven"], 0, "a second redrive finds nothing");
    };
    redrive(&rig, &redrive_all());
    assert_eq!(rig.run(NONE).dead, 1, "it fails a second time");
    let again = letters(&rig).remove(0);
    assert_eq!((again.state, again.attempts, again.redrives), (State::Quarantined, 2, 1));
    let answer = verb(&rig.folder(), None, &redrive_all());
    assert_eq!((&answer["redriven"], &answer["staying"][0]["reason"]), (&0.into(), &"needs_approval".into()));
    redrive(&rig, &approve_all());
    let report = rig.run(NONE);
    assert_eq!((report.chunks, report.outcome), (1, Outcome::Complete));
    let done = letters(&rig);
    assert_eq!(done.len(), 1, "one letter a key, whatever happened to it");
    assert_eq!((done[0].state, done[0].resolved_how.as_deref()), (State::Resolved, Some("approved")));
    assert_eq!(written(&rig).len(), 5);
}

#[test]
fn a_redrive_beside_a_run_is_taken_up_by_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.retry.max_attempts = 1;
    rig.settings.pipeline.batch_chunks = 1;
    rig.faults.flaky_failures.store(2, Relaxed);
    let mut all = texts(6, Poison::Flaky, &[1]);
    all[3] = format!("{} here", Poison::Hang.word());
    fill(&rig, &all);
    let report = rig.run_beside(NONE, Cut::Never, |line| {
        let open = || line.folder.queue.letter_counts().sum(|_, state| state == State::Open);
        until(|| open() == 1);
        assert_eq!(verb(&line.folder, Some(line), &redrive_all())["redriven"], 1);
        rig.faults.release();
    });
    let report = report.unwrap();
    assert_eq!((report.chunks, report.pending), (5, 0), "{report}");
    assert!(report.adds_up(), "{report}");
    let flaky = letters(&rig).into_iter().find(|letter| letter.doc_id.as_deref() == Some("d1")).unwrap();
    assert_eq!((flaky.state, flaky.resolved_how.as_deref()), (State::Resolved, Some("as_is")));
}

#[test]
fn newer_text_supersedes_the_letter_and_a_late_redrive_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    let old = chunk_line("d", 0, &format!("old {}", Poison::Row.word()));
    let path = rig.input("in.jsonl", std::slice::from_ref(&old));
    assert_eq!(rig.run(std::slice::from_ref(&path)).dead, 1);
    let id = letters(&rig)[0].id;
    rig.input("in.jsonl", &[old, chunk_line("d", 0, "new and good")]);
    let report = rig.run(std::slice::from_ref(&path));
    assert_eq!((report.chunks, report.dead), (1, 1), "the old record is read again, and lies dead: {report}");
    let letter = letters(&rig).remove(0);
    assert_eq!((letter.state, letter.resolved_how.as_deref()), (State::Resolved, Some("superseded")));
    assert_eq!(verb(&rig.folder(), None, &redrive_all())["redriven"], 0);
    assert!(!rig.folder().queue.redrive(id, "test", chunk("d", "old", 0)).unwrap());
    let report = rig.run(&[path]);
    assert_eq!((report.embedded, report.duplicates, report.skipped), (0, 1, 1), "{report}");
}

#[test]
fn an_unreadable_record_that_is_redriven_resolves_its_letter() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    let line = r#"{"key":"d","chunk_index":0,"text":"fine"}"#;
    let path = rig.input("in.jsonl", &[line.into(), chunk_line("e", 0, "fine too")]);
    let report = rig.run(&[path]);
    assert_eq!((report.unreadable, report.chunks), (1, 1));
    let folder = rig.folder();
    let mut source = forebay::testkit::rig::settings().source;
    source.id_fields.push("key".into());
    let context = Context { folder: &folder, line: None, source: &source, line_bytes: 1 << 20 };
    assert_eq!(execute(context, &redrive_all()).unwrap()["redriven"], 1);
    drop(folder);
    assert_eq!(rig.run(NONE).chunks, 1);
    assert_eq!(letters(&rig)[0].state, State::Resolved);
}

#[test]
fn a_crash_between_ledger_and_queue_costs_no_second_pass() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    fill(&rig, &texts(4, Poison::Pass, &[]));
    let folder = rig.folder();
    let Leased::Chunks(chunks) = folder.queue.lease(3, usize::MAX).unwrap() else {
        panic!("nothing to lease")
    };
    let rows: Vec<Written> = chunks.iter().map(|(_, chunk)| row(&rig, chunk)).collect();
    folder.ledger.commit(&rows, &[]).unwrap();
    chunks.into_iter().for_each(|(lease, _)| lease.abandon());
    drop(folder);
    let report = rig.run(NONE);
    assert_eq!((report.embedded, report.chunks, report.pending), (1, 1, 0), "{report}");
    assert!(report.adds_up());
}

fn row(rig: &Rig, chunk: &Chunk) -> Written {
    Written {
        key: chunk.key.clone(),
        chunk_id: chunk.id(),
        source_hash: chunk.source_hash,
        content_hash: chunk.content_hash(),
        identity: rig.identity(),
        source_id: chunk.source_id,
        ordinal: chunk.ordinal,
        run: "before".into(),
        embedded_at: "2026-01-01T00:00:00Z".into(),
    }
}

fn burial(rig: &Rig, chunk: &Chunk) -> Burial {
    Burial {
        subject: Subject::Chunk(chunk.key.clone()),
        doc_id: Some(chunk.key.doc_id.clone()),
        chunk_id: Some(chunk.id()),
        identity: Some(rig.identity()),
        stage: Class::NonFiniteVector.stage(),
        fault: forebay::error::Fault::new(Class::NonFiniteVector, "planted"),
        attempts: 1,
        origin: Origin { source_id: 1, source: "s".into(), line: 1, offset: 0 },
        payload: Payload::Chunk { text: chunk.text.clone(), meta: None, source_hash: chunk.source_hash },
    }
}

/// Does something to the data folder and then puts all of it back as it was, but for the journal: what a crash
/// between the journal and the tree leaves.
fn only_the_journal_knows(rig: &Rig, work: impl FnOnce(&forebay::queue::Queue)) {
    let before = rig.dir.join("before");
    copy(&rig.data(), &before);
    let folder = rig.folder();
    work(&folder.queue);
    drop(folder);
    std::fs::copy(rig.data().join("dead-letters.jsonl"), before.join("dead-letters.jsonl")).unwrap();
    std::fs::remove_dir_all(rig.data()).unwrap();
    std::fs::rename(before, rig.data()).unwrap();
}

fn bury_one(rig: &Rig, queue: &forebay::queue::Queue) {
    let Leased::Chunks(mut chunks) = queue.lease(1, usize::MAX).unwrap() else { panic!("nothing to lease") };
    let (lease, chunk) = chunks.remove(0);
    queue.bury(vec![(Some(lease), burial(rig, &chunk))]).unwrap();
}

#[test]
fn a_crash_between_journal_and_queue_keeps_the_letter_and_not_the_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    fill(&rig, &texts(2, Poison::Pass, &[]));
    only_the_journal_knows(&rig, |queue| bury_one(&rig, queue));
    assert_eq!(rig.folder().queue.depth().pending, 1);
    assert_eq!(letters(&rig).len(), 1);
    // The same when it is not its first failure.
    assert_eq!(verb(&rig.folder(), None, &redrive_all())["redriven"], 1);
    assert_eq!(rig.folder().queue.depth().pending, 2);
    only_the_journal_knows(&rig, |queue| {
        bury_one(&rig, queue);
        bury_one(&rig, queue);
    });
    assert_eq!(rig.folder().queue.depth().pending, 0);
    let states: Vec<State> = letters(&rig).iter().map(|letter| letter.state).collect();
    assert_eq!(states, [State::Quarantined, State::Open], "the redriven one failed the same way");
}

#[test]
fn a_crash_inside_a_redrive_leaves_the_letter_open() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    fill(&rig, &texts(1, Poison::Pass, &[]));
    bury_one(&rig, &rig.folder().queue);
    only_the_journal_knows(&rig, |queue| {
        let letter = queue.letters(&Filter::default(), 1).unwrap().remove(0);
        assert!(queue.redrive(letter.id, "test", chunk("d0", "text number n0 good", 0)).unwrap());
    });
    let letter = letters(&rig).remove(0);
    assert_eq!((letter.state, letter.redrives), (State::Open, 1), "else nothing would ever bring it back");
    assert_eq!(verb(&rig.folder(), None, &redrive_all())["redriven"], 1);
    assert_eq!(rig.run(NONE).chunks, 1);
    assert_eq!(letters(&rig)[0].state, State::Resolved);
}

#[test]
fn a_lost_queue_opens_redriven_letters_again() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    fill(&rig, &texts(1, Poison::Pass, &[]));
    bury_one(&rig, &rig.folder().queue);
    assert_eq!(verb(&rig.folder(), None, &redrive_all())["redriven"], 1);
    std::fs::remove_dir_all(rig.data().join("queue")).unwrap();
    assert_eq!(letters(&rig)[0].state, State::Open);
}

#[test]
fn a_document_that_became_shorter_loses_its_tail_wherever_that_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.pipeline.batch_chunks = 4;
    let long: String = (0..120).map(|n| format!("word{n} ")).collect();
    let mut lines = Vec::new();
    for doc in 0..8 {
        lines.push(document_line(&format!("doc{doc}"), &long));
        lines.push(document_line(&format!("doc{doc}"), &format!("short text of {doc}")));
    }
    let path = rig.input("in.jsonl", &lines);
    let report = rig.run(std::slice::from_ref(&path));
    assert!(report.adds_up(), "{report:?}");
    assert_eq!(written(&rig), (0..8).map(|doc| format!("doc{doc}")).collect::<Vec<_>>());
    assert_eq!(rig.folder().ledger.count().unwrap(), 8);
    assert_eq!(rig.run(&[path]).embedded, 0);
}

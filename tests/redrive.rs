//! Dead letters sent back: repaired, approved, by two hands at once, killed in the middle. Each vector exactly once.

mod common;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use common::{Home, corpus, poll};
use forebay::{
    ledger::Ledger,
    ops::{
        Context,
        command::{Command, How, execute},
    },
    queue::{dead::State, dlq::Filter},
    repair::Repair,
    testkit::rig::{Cut, Rig, chunk_line},
};
use rusqlite::Connection;
use serde_json::{Value, json};
use uuid::Uuid;

/// So long that a longer text is dead, and the same limit where it is cut.
const STRICT: [&str; 4] = ["--set", "model.truncation=bury", "--set", "model.max_length=50"];
const LOOSE: [&str; 2] = ["--set", "model.max_length=50"];

fn with<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [first, more].concat()
}

/// A chunk that the model finds too long.
fn long(id: &str) -> String {
    let text = format!("{id} {}", "water falls ".repeat(60));
    format!("{}\n", json!({ "id": id, "chunk_index": 0, "text": text }))
}

/// A record with half of a pair in its text.
fn half(id: &str) -> String {
    format!("{{\"id\":\"{id}\",\"text\":\"the gate {id} \\ud83d is shut\"}}\n")
}

/// A record with a control character that JSON does not allow.
fn control(id: &str) -> String {
    format!("{{\"id\":\"{id}\",\"chunk_index\":0,\"text\":\"the gate {id}\u{1} is open\"}}\n")
}

fn redrive(home: &Home, more: &[&str]) -> Value {
    home.forebay(&with(&["dlq", "redrive", "--all", "--json"], more)).exits(0).json()
}

fn numbers<const N: usize>(answer: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| answer[name].as_u64().unwrap_or_else(|| panic!("no {name} in {answer}")))
}

fn states(home: &Home, state: &str) -> usize {
    let ran = home.forebay(&["dlq", "list", "--json", "--state", state, "--limit", "5000"]).exits(0);
    ran.stdout.lines().count()
}

/// What an observer's queries say of an export: open rows, and resolved ones without a vector.
fn seen_by_sql(home: &Home) -> (i64, i64) {
    home.forebay(&["dlq", "export", "--closed", "--sqlite", "letters.db"]).exits(0);
    let db = Connection::open(home.at("letters.db")).unwrap();
    db.execute("ATTACH ?1 AS sink", [home.data("vectors.db").display().to_string()]).unwrap();
    let mut query = db
        .prepare(
            "SELECT error_class, count(*) open_rows, max(attempts) worst_attempts,
             julianday('now') - julianday(min(first_failed_at)) oldest_age_days FROM embedding_dlq
             WHERE resolved_at IS NULL GROUP BY error_class ORDER BY open_rows DESC",
        )
        .unwrap();
    let rows =
        query.query_map([], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?, row.get::<_, f64>(3)?)));
    let rows: Vec<_> = rows.unwrap().map(Result::unwrap).collect();
    assert!(rows.iter().all(|(_, worst, age)| *worst >= 1 && (0.0..1.0).contains(age)), "{rows:?}");
    let health = db.query_row(
        "SELECT coalesce(sum(d.resolved_at > datetime('now','-1 hour')), 0) replayed_1h,
         coalesce(sum(c.doc_id IS NULL), 0) resolved_without_vector, count(*)
         FROM embedding_dlq d LEFT JOIN sink.vectors c ON c.doc_id = d.payload->>'doc_id'
         AND c.chunk_index = CAST(d.payload->>'chunk_index' AS INTEGER) WHERE d.resolved_at IS NOT NULL",
        [],
        |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)),
    );
    let (lately, without, all) = health.unwrap();
    assert_eq!(lately, all, "all of it was done within the hour");
    (rows.iter().map(|(open, ..)| open).sum(), without)
}

#[test]
fn b03_a_repaired_record_is_written_once_and_its_file_is_as_good_as_read() {
    let home = Home::new();
    // Longer than a chunk, so that it comes back as several.
    let document =
        format!("{{\"id\":\"doc\",\"text\":\"{}\\udc99\"}}\n", "a sentence of the book. ".repeat(40));
    let input = home.file("in.jsonl", [corpus(3), half("h"), document, control("c")].concat());
    let run = with(&[&*input], &LOOSE);
    assert_eq!(home.run(&run, 1).numbers(["chunks", "dead"]), [3, 3]);
    let plain = redrive(&home, &LOOSE);
    assert_eq!(numbers(&plain, ["redriven", "repaired"]), [0, 0]);
    assert!(plain["staying"].as_array().unwrap().iter().all(|letter| letter["reason"] == "fails_again"));

    let journal = || std::fs::read(home.data("dead-letters.jsonl")).unwrap();
    let before = journal();
    let dry = redrive(&home, &with(&["--repair", "--dry-run"], &LOOSE));
    assert_eq!(numbers(&dry, ["redriven", "repaired"]), [3, 3], "{dry}");
    let letter =
        |id: &str| dry["letters"].as_array().unwrap().iter().find(|l| l["doc_id"] == id).unwrap().clone();
    assert_eq!((&letter("h")["repairs"]["fix_surrogates"], &letter("h")["chunks"]), (&1.into(), &1.into()));
    assert!(letter("doc")["chunks"].as_u64() > Some(1));
    assert_eq!(journal(), before, "a dry run changes nothing");
    assert_eq!((home.status().unwrap()["queue"]["pending"].clone(), states(&home, "open")), (0.into(), 3));

    let said = redrive(&home, &with(&["--repair"], &LOOSE));
    assert_eq!(numbers(&said, ["redriven", "repaired"]), [3, 3]);
    let report = home.run(&LOOSE, 0);
    let chunks = 2 + letter("doc")["chunks"].as_u64().unwrap();
    assert_eq!(report.n("chunks"), chunks);
    assert!(home.texts().iter().any(|(key, text)| key == "h#0" && text == "the gate h \u{fffd} is shut"));
    assert!(home.texts().iter().any(|(key, text)| key == "c#0" && text == "the gate c is open"));
    for letter in home.letters() {
        assert_eq!((&letter["state"], &letter["resolved_how"]), (&"resolved".into(), &"repaired".into()));
    }
    // The file is as broken as it was, and all of it is done.
    let again = home.run(&run, 0);
    assert_eq!(again.numbers(["embedded", "dead", "skipped"]), [0, 0, 6]);
    assert_eq!(home.letters().len(), 3);
    home.holds(3 + chunks);
    assert_eq!(seen_by_sql(&home), (0, 0));
}

#[test]
fn a_text_that_was_cut_or_mended_counts_as_what_was_read() {
    let home = Home::new();
    let bell =
        format!("{}\n", json!({ "id": "bell", "chunk_index": 0, "text": "ring \u{7} ring ".repeat(40) }));
    let input = home.file("in.jsonl", corpus(2) + &long("long") + &bell);
    let run = with(&[&*input], &STRICT);
    assert_eq!(home.run(&run, 1).numbers(["chunks", "dead"]), [2, 2]);
    let said = redrive(&home, &with(&["--repair", "strip_control"], &STRICT));
    assert_eq!(numbers(&said, ["redriven"]), [0], "they are still too long: {said}");
    let said = redrive(&home, &with(&["--repair", "strip_control,truncate"], &STRICT));
    assert_eq!(numbers(&said, ["redriven", "repaired"]), [2, 2], "{said}");
    assert_eq!(home.run(&STRICT, 0).n("chunks"), 2);
    let (read, embedded): (Vec<u8>, Vec<u8>) = Connection::open(home.data("vectors.db"))
        .unwrap()
        .query_row("SELECT source_hash, content_hash FROM vectors WHERE doc_id = 'long'", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_ne!(read, embedded, "that is the mark of a text that was mended");
    assert_eq!(home.run(&run, 0).numbers(["embedded", "skipped"]), [0, 4]);
    let id = home.letters()[1]["id"].as_str().unwrap().to_owned();
    let shown = home.forebay(&["dlq", "show", &id, "--json"]).exits(0).json();
    assert!(shown["audit"][0]["why"].as_str().unwrap().starts_with("strip_control 40, truncate "), "{shown}");
    home.holds(4);
    home.forebay(&["dlq", "redrive", "--all", "--repair", "iron"]).exits(2).says(&["unknown repair", "nfc"]);
}

#[test]
fn d12_redrive_never_loops_and_what_fails_again_needs_approval() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(1) + &long("long"));
    let run = with(&[&*input], &STRICT);
    home.run(&run, 1);
    assert_eq!(numbers(&redrive(&home, &LOOSE), ["redriven"]), [1]);
    home.run(&STRICT, 1);
    assert_eq!(states(&home, "quarantined"), 1);
    let said = redrive(&home, &LOOSE);
    assert_eq!((&said["redriven"], &said["staying"][0]["reason"]), (&0.into(), &"needs_approval".into()));
    assert!(said["staying"][0]["why"].as_str().unwrap().contains("--approve"));
    // It stands like an open one: reading its input again skips it, and the run says so.
    assert_eq!(home.run(&run, 1).numbers(["embedded", "dead"]), [0, 1]);
    let stats = home.forebay(&["dlq", "stats", "--json"]).exits(0).json();
    assert_eq!(stats[0]["open"], 1);
    // A new text of it is a new chance.
    let said = redrive(&home, &with(&["--approve"], &LOOSE));
    assert_eq!(numbers(&said, ["redriven", "approved"]), [1, 1]);
    home.run(&LOOSE, 0);
    let letter = &home.letters()[0];
    assert_eq!((&letter["state"], &letter["resolved_how"]), (&"resolved".into(), &"approved".into()));
    home.holds(2);
}

#[test]
fn a_letter_of_another_identity_is_left_unless_asked_for() {
    let home = Home::new();
    let input = home.file("in.jsonl", long("long"));
    home.run(&with(&[&*input], &STRICT), 1);
    let other = ["--set", "model.max_length=60"];
    let said = redrive(&home, &other);
    let why = said["staying"][0]["why"].as_str().unwrap();
    assert!(why.contains("/50#") && why.contains("/60#") && why.contains("--any-identity"), "{why}");
    assert_eq!(numbers(&redrive(&home, &with(&["--any-identity"], &other)), ["redriven"]), [1]);
}

#[test]
fn a_users_command_mends_drops_or_fails_letter_by_letter() {
    let home = Home::new();
    let input: String = ["a", "b", "c", "d", "e"].map(long).concat();
    let input = home.file("in.jsonl", input + &half("half"));
    home.run(&with(&[&*input], &STRICT), 1);
    let script = r#"
        letter=$(cat)
        case "$letter" in
            *'"doc_id":"a"'*) echo '{"text": "a new text", "meta": {"by": "hand"}}';;
            *'"doc_id":"b"'*) echo '{"drop": true, "reason": "a duplicate"}';;
            *'"doc_id":"c"'*) echo hush; exit 3;;
            *'"doc_id":"d"'*) echo hush;;
            *'"doc_id":"e"'*) sleep 600;;
            *) echo '{"text": "half is whole"}';;
        esac"#;
    let flags = ["--repair-with", script, "--repair-timeout-s", "1"];
    let dry = redrive(&home, &with(&with(&flags, &["--dry-run"]), &STRICT));
    assert_eq!(numbers(&dry, ["redriven", "repaired", "discarded"]), [2, 2, 1], "{dry}");
    assert_eq!(states(&home, "open"), 6);
    let said = redrive(&home, &with(&flags, &STRICT));
    assert_eq!(numbers(&said, ["redriven", "repaired", "discarded"]), [2, 2, 1], "{said}");
    let staying = said["staying"].to_string();
    for word in ["exit status: 3", "is not {", "--repair-timeout-s = 1"] {
        assert!(staying.contains(word), "{staying}");
    }
    assert!(!staying.contains("hush"));
    assert_eq!(home.run(&STRICT, 0).n("chunks"), 2);
    let texts = home.texts();
    assert_eq!(texts[0], ("a#0".into(), "a new text".into()));
    assert_eq!(texts[1], ("half#0".into(), "half is whole".into()));
    assert_eq!(home.run(&with(&[&*input], &STRICT), 1).numbers(["embedded", "skipped", "dead"]), [0, 3, 3]);
    home.holds(2);
    let all = home.letters();
    let dropped = all.iter().find(|letter| letter["state"] == "discarded").unwrap();
    assert_eq!(dropped["resolved_how"], "a duplicate");
    assert_eq!(seen_by_sql(&home), (3, 0));
}

#[test]
fn a_redrive_has_a_limit_and_a_pace_and_can_be_waited_for() {
    let home = Home::new();
    let many: String = (0..8).map(|i| long(&format!("l{i}"))).collect();
    let input = home.file("in.jsonl", many);
    home.run(&with(&[&*input], &STRICT), 1);
    assert_eq!(numbers(&redrive(&home, &with(&["--limit", "2"], &LOOSE)), ["redriven"]), [2]);
    let start = Instant::now();
    assert_eq!(numbers(&redrive(&home, &with(&["--limit", "4", "--rate", "8"], &LOOSE)), ["redriven"]), [4]);
    assert!(start.elapsed() >= Duration::from_millis(500));
    let discard = ["dlq", "discard", "--all", "--reason", "x", "--limit", "1", "--json"];
    assert_eq!(home.forebay(&discard).exits(0).json()["discarded"], 1);
    // Without a run there is nothing to wait for.
    let ran = home.forebay(&with(&["dlq", "redrive", "--all", "--wait", "--json"], &LOOSE)).exits(0);
    let said = ran.says(&["the next `forebay run`"]).json();
    assert_eq!(numbers(&said, ["redriven", "resolved", "failing", "waiting"]), [2, 0, 0, 2]);
    assert_eq!(home.run(&LOOSE, 0).n("chunks"), 7);
    home.holds(7);
}

#[test]
fn beside_a_run_a_redrive_waits_for_the_outcome() {
    let home = Home::new();
    let input = home.file("in.jsonl", ["a", "b"].map(long).concat());
    home.run(&with(&[&*input], &STRICT), 1);
    let more = home.file("more.jsonl", corpus(5_000));
    let slow = ["--set", "pipeline.batch_chunks=5"];
    let mut run = home.start(&with(&with(&["run", &*more], &slow), &STRICT));
    run.has_written(&home, 20);
    // The run's model says that they are still too long, so nothing is sent in vain.
    let said = redrive(&home, &with(&["--wait"], &STRICT));
    assert_eq!(numbers(&said, ["redriven", "failing", "waiting"]), [0, 0, 0], "{said}");
    let said = redrive(&home, &with(&["--repair", "truncate", "--wait"], &STRICT));
    assert_eq!(numbers(&said, ["redriven", "resolved", "failing", "waiting"]), [2, 2, 0, 0], "{said}");
    run.signal(libc::SIGTERM);
    run.wait();
    assert_eq!(states(&home, "resolved"), 2);
}

/// The acceptance test of the issue: 1,000 letters of three classes, dry run, repair, approve, two shells at once, a
/// kill in the middle, and again.
#[test]
fn a_thousand_letters_by_two_hands_killed_in_the_middle_are_each_written_once() {
    let home = Home::new();
    let n = 334;
    let input: String = (0..n)
        .map(|i| long(&format!("l{i}")) + &half(&format!("h{i}")) + &control(&format!("c{i}")))
        .collect();
    let input = home.file("in.jsonl", input);
    home.run(&with(&[&*input], &STRICT), 1);
    let all = 3 * n as u64;
    // One class goes through quarantine.
    let tried = redrive(&home, &with(&["--class", "too_long"], &LOOSE));
    assert_eq!(numbers(&tried, ["redriven"]), [n as u64]);
    home.run(&STRICT, 1);
    assert_eq!(states(&home, "quarantined"), n);
    let dry = redrive(
        &home,
        &with(&["--dry-run", "--approve", "--repair", "fix_surrogates,strip_control,truncate"], &STRICT),
    );
    assert_eq!(numbers(&dry, ["redriven", "repaired"]), [all, all]);

    let mend = [
        "dlq",
        "redrive",
        "--all",
        "--json",
        "--approve",
        "--repair",
        "fix_surrogates,strip_control,truncate",
    ];
    // Two shells at once: what one took the other leaves.
    let first = home.start(&with(&with(&mend, &["--limit", "300"]), &STRICT));
    let second = home.start(&with(&with(&mend, &["--limit", "300"]), &STRICT));
    let sent: u64 =
        [first, second].map(|ran| ran.wait().exits(0).json()["redriven"].as_u64().unwrap()).iter().sum();
    assert_eq!((sent, states(&home, "redriven")), (600, 600));
    // A redrive that is killed, and a run that is killed, with two shells beside it.
    let killed = home.start(&with(&mend, &STRICT));
    std::thread::park_timeout(Duration::from_millis(60));
    killed.kill();
    let mut run = home.start(&with(&["run", "--set", "pipeline.batch_chunks=3"], &STRICT));
    run.has_written(&home, 30);
    let beside = [home.start(&with(&mend, &STRICT)), home.start(&with(&mend, &STRICT))];
    run.has_written(&home, 120);
    run.kill();
    for shell in beside {
        // The answer of a process that was killed is not known; its work is, and the same again ends it.
        shell.wait();
    }
    redrive(&home, &with(&with(&mend[4..], &[]), &STRICT));
    home.run(&STRICT, 0);
    assert_eq!(
        numbers(&redrive(&home, &with(&mend[4..], &STRICT)), ["redriven"]),
        [0],
        "twice changes nothing"
    );
    let status = home.status().unwrap();
    assert_eq!((&status["dead_open"], &status["dead_redriven"]), (&0.into(), &0.into()));
    home.holds(all);
    assert_eq!(home.run(&with(&[&*input], &STRICT), 0).numbers(["embedded", "skipped"]), [0, all]);
    assert_eq!(seen_by_sql(&home), (0, 0));
    assert_eq!(home.verified()["resolved_without_vector"], 0);
}

fn all_with(repairs: Vec<Repair>) -> Command {
    let how = How { repairs, approve: true, ..How::default() };
    Command::DlqRedrive { filter: Filter::default(), dry_run: false, who: "test".into(), how }
}

fn verb(rig: &Rig, command: &Command) -> Value {
    let folder = rig.folder();
    let source = forebay::testkit::rig::settings().source;
    execute(Context { folder: &folder, line: None, source: &source, line_bytes: 1 << 20 }, command).unwrap()
}

/// Twelve records with half of a pair in each, repaired and on their way.
fn on_its_way(rig: &Rig) -> PathBuf {
    let bad = |i: usize| format!("{{\"id\":\"h{i}\",\"chunk_index\":0,\"text\":\"gate {i} \\ud83d\"}}");
    let lines: Vec<String> = (0..12).map(bad).chain([chunk_line("good", 0, "water")]).collect();
    let path = rig.input("in.jsonl", &lines);
    rig.run(std::slice::from_ref(&path));
    let said = verb(rig, &all_with(Repair::SAFE.to_vec()));
    assert_eq!(said["repaired"], 12, "{said}");
    path
}

fn resolved(rig: &Rig) -> Vec<(Uuid, String)> {
    let folder = rig.folder();
    assert_eq!((folder.ledger.count().unwrap(), folder.queue.depth().pending), (13, 0));
    let letters = folder.queue.letters(&Filter { closed_too: true, ..Filter::default() }, 99).unwrap();
    assert_eq!(letters.len(), 12);
    assert!(letters.iter().all(|letter| letter.state == State::Resolved), "{letters:?}");
    letters.into_iter().map(|letter| (letter.id, letter.resolved_how.unwrap())).collect()
}

const QUEUE: [&str; 2] = ["queue", "witness"];

fn keep(rig: &Rig, names: &[&str]) {
    names.iter().for_each(|name| copy(&rig.data().join(name), &rig.dir.join("kept").join(name)));
}

fn put_back(rig: &Rig, names: &[&str]) {
    for name in names {
        let path = rig.data().join(name);
        if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) }.unwrap();
        copy(&rig.dir.join("kept").join(name), &path);
    }
}

/// Killed after the ledger's commit and before the queue heard of it: the ledger alone knows what is resolved.
#[test]
fn a_crash_between_ledger_and_queue_embeds_nothing_twice_and_closes_the_letters() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    let path = on_its_way(&rig);
    let stores = [&QUEUE[..], &["dead-letters.jsonl"]].concat();
    keep(&rig, &stores);
    rig.run(&[]);
    let how = resolved(&rig);
    assert!(how.iter().all(|(_, how)| how == "repaired"));
    put_back(&rig, &stores);
    Ledger::open(&rig.data().join("ledger.db")).unwrap().commit(&[], &how).unwrap();
    let report = rig.run(std::slice::from_ref(&path));
    assert_eq!((report.embedded, report.dead), (0, 0), "{report:?}");
    assert_eq!(resolved(&rig), how);
    assert_eq!(rig.run(&[path]).embedded, 0);
}

/// The power goes with any part of the run done: what the queue's store was told is lost, ledger and journal are not.
#[test]
fn a_power_cut_while_redriven_letters_are_written_loses_and_doubles_none() {
    for cut in (1..40).step_by(3) {
        let dir = tempfile::tempdir().unwrap();
        let rig = Rig::new(dir.path());
        let path = on_its_way(&rig);
        keep(&rig, &QUEUE);
        rig.run_cut(&[], Cut::Drop(cut));
        let written = rig.folder().ledger.count().unwrap();
        put_back(&rig, &QUEUE);
        let report = rig.run(std::slice::from_ref(&path));
        assert_eq!((report.embedded, report.dead), (13 - written, 0), "cut at {cut}: {report:?}");
        assert!(resolved(&rig).iter().all(|(_, how)| how == "repaired"));
        assert_eq!(rig.run(&[path]).embedded, 0);
    }
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().flatten() {
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    }
}

#[test]
fn two_redrives_in_one_moment_take_each_letter_once() {
    let home = Home::new();
    let many: String = (0..200).map(|i| long(&format!("l{i}"))).collect();
    let input = home.file("in.jsonl", many);
    home.run(&with(&[&*input], &STRICT), 1);
    let more = home.file("more.jsonl", corpus(4_000));
    let mut run = home.start(&with(&["run", &*more, "--set", "pipeline.batch_chunks=5"], &STRICT));
    run.has_written(&home, 10);
    let mend = with(&["dlq", "redrive", "--all", "--json", "--repair", "truncate"], &STRICT);
    let shells: Vec<_> = (0..3).map(|_| home.start(&mend)).collect();
    let sent: u64 =
        shells.into_iter().map(|shell| shell.wait().exits(0).json()["redriven"].as_u64().unwrap()).sum();
    assert_eq!(sent, 200);
    poll("they are resolved", || (states(&home, "resolved") == 200).then_some(()));
    run.signal(libc::SIGTERM);
    run.wait();
    assert!(home.letters().iter().all(|letter| letter["redrives"] == 1));
}

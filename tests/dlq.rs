//! Dead letters as things to keep house with: moved to another machine, removed for good, many at once.

mod common;

use std::{collections::BTreeSet, path::Path, time::Instant};

use common::{Home, corpus, record};
use forebay::{
    chunk::{ChunkKey, Digest, chunk_id},
    error::{Class, Fault},
    ops::{
        Context,
        command::{Command, How, execute},
    },
    pipeline::report::Outcome,
    queue::{
        dead::{Burial, Origin, Payload, Subject},
        dlq::Filter,
    },
    testkit::rig::{Rig, chunk_line},
};
use rusqlite::Connection;
use serde_json::Value;

/// In no file by chance.
const CANARY: &str = "zebrafinch";

/// A home with `n` chunks too long for it, each with the canary in its text, and three good documents.
fn with_letters(n: usize) -> Home {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(3) + &long(n));
    home.run(&[&[&*input][..], &STRICT].concat(), 1);
    home
}

fn long(n: usize) -> String {
    let text = format!("{CANARY} ").repeat(60);
    let line =
        |i| serde_json::json!({ "id": format!("long-{i}"), "chunk_index": 0, "text": format!("{text}{i}") });
    (0..n).map(|i| format!("{}\n", line(i))).collect()
}

const STRICT: [&str; 4] = ["--set", "model.truncation=bury", "--set", "model.max_length=50"];
const LOOSE: [&str; 2] = ["--set", "model.max_length=50"];

fn ids(letters: &[Value]) -> Vec<&str> {
    letters.iter().map(|letter| letter["id"].as_str().unwrap()).collect()
}

/// Files below the data folder that hold the text, as it is or as base64.
fn holding(dir: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holding(&path, text));
        } else if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

#[test]
fn exported_letters_go_on_on_another_machine() {
    let here = with_letters(5);
    let there = Home::new();
    let good = there.file("good.jsonl", corpus(1));
    there.run(&[&[&*good][..], &LOOSE].concat(), 0);
    let file = here.at("letters.jsonl");
    let path = file.to_str().unwrap();
    assert_eq!(here.forebay(&["dlq", "export", path, "--json"]).exits(0).json()["exported"], 5);
    let written = std::fs::read_to_string(&file).unwrap();
    assert_eq!(here.forebay(&["dlq", "export"]).exits(0).stdout, written, "stdout has the same lines");
    assert!(written.lines().all(|line| line.contains("forebay-dead-letter-v1") && line.contains(CANARY)));
    assert!(!here.at("letters.jsonl.part").exists());

    let import = |expected: [u64; 5], code| {
        let said = there.forebay(&["dlq", "import", path, "--json"]).exits(code).json();
        let found =
            ["added", "updated", "unchanged", "standing", "refused"].map(|f| said[f].as_u64().unwrap());
        assert_eq!(found, expected);
    };
    import([5, 0, 0, 0, 0], 0);
    import([0, 0, 5, 0, 0], 0);
    assert_eq!(ids(&there.letters()), ids(&here.letters()));

    // What was decided there meanwhile comes over; what is older changes nothing.
    let first = here.letters()[0]["id"].as_str().unwrap().to_owned();
    here.forebay(&["dlq", "discard", &first, "--reason", "not needed"]).exits(0);
    here.forebay(&["dlq", "export", path, "--closed"]).exits(0);
    import([0, 1, 4, 0, 0], 0);
    std::fs::write(&file, &written).unwrap();
    import([0, 0, 5, 0, 0], 0);
    assert_eq!(there.letters()[0]["state"], "discarded");

    // And the others are embedded there.
    let said = there.forebay(&[&["dlq", "redrive", "--all", "--json"][..], &LOOSE].concat()).exits(0).json();
    assert_eq!(said["redriven"], 4, "{said}");
    assert_eq!(there.run(&LOOSE, 0).n("chunks"), 4);
    there.holds(5);
    let states: Vec<_> = there.letters().iter().map(|letter| letter["state"].clone()).collect();
    assert_eq!(states, ["discarded", "resolved", "resolved", "resolved", "resolved"]);
    import([0, 0, 5, 0, 0], 0);
}

#[test]
fn a_line_that_is_no_letter_is_refused_with_its_place_and_the_others_go_on() {
    let here = with_letters(2);
    let lines = here.forebay(&["dlq", "export"]).exits(0).stdout;
    let (first, second) = lines.split_once('\n').unwrap();
    let newer = first.replace("forebay-dead-letter-v1", "forebay-dead-letter-v9");
    let forged = first.replace(CANARY, "sparrow");
    let there = Home::new();
    let good = there.file("good.jsonl", corpus(1));
    there.run(&[&good], 0);
    let file = there.file("mixed.jsonl", format!("nonsense\n{newer}\n\n{forged}\n[1]\n{second}"));
    let ran = there.forebay(&["dlq", "import", &file, "--json"]).exits(1);
    let says = [
        "mixed.jsonl:1: not a dead letter",
        "mixed.jsonl:2: its form is \"forebay-dead-letter-v9\"",
        "mixed.jsonl:4: its text is not",
        "mixed.jsonl:5:",
    ];
    let ran = ran.says(&says);
    assert_eq!((&ran.json()["added"], &ran.json()["refused"]), (&1.into(), &4.into()));
    assert!(!ran.stderr.contains(CANARY) && !ran.stderr.contains("sparrow"), "{ran}");
    // Another letter of a subject that has one here is left out.
    let other = second.replacen(ids(&there.letters())[0], "01930000-0000-7000-8000-000000000000", 1);
    let file = there.file("other.jsonl", other);
    assert_eq!(there.forebay(&["dlq", "import", &file, "--json"]).exits(0).json()["standing"], 1);
    assert_eq!(there.letters().len(), 1);
    there.forebay(&["dlq", "import", "none.jsonl"]).exits(2).says(&["none.jsonl", "dlq export"]);
}

#[test]
fn letters_as_tables_answer_ordinary_sql() {
    let home = with_letters(4);
    let cut = home.file("cut.jsonl", format!("{{\"id\":\"cut\",\"text\":\"{CANARY}\n"));
    home.run(&[&[&*cut][..], &STRICT].concat(), 1);
    let id = home.letters()[1]["id"].as_str().unwrap().to_owned();
    home.forebay(&["dlq", "discard", &id, "--reason", "seen"]).exits(0);
    home.forebay(&["dlq", "export", "--sqlite", "letters.db"]).exits(0);
    let said = home.forebay(&["dlq", "export", "--sqlite", "letters.db", "--closed", "--json"]).exits(0);
    assert_eq!(said.json()["exported"], 5);
    let db = Connection::open(home.at("letters.db")).unwrap();
    let one = |sql: &str| db.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(
        one("SELECT group_concat(class || ' ' || n) FROM
             (SELECT class, count(*) n FROM letters WHERE state = 'open' GROUP BY class ORDER BY class)"),
        "json_syntax 1,too_long 3"
    );
    assert_eq!(
        one("SELECT doc_id || ' ' || why FROM letters JOIN audit ON letter = id WHERE what = 'discard'"),
        "long-1 seen"
    );
    assert_eq!(
        one("SELECT typeof(attempts) || typeof(chunk_index) FROM letters WHERE kind = 'chunk' LIMIT 1"),
        "integerinteger"
    );
    assert!(one("SELECT CAST(raw AS TEXT) FROM letters WHERE kind = 'record'").contains(CANARY));
    assert!(one("SELECT text FROM letters WHERE doc_id = 'long-2'").contains(CANARY));
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(home.at("letters.db")).unwrap().permissions().mode();
    assert_eq!((mode & 0o777, home.at("letters.db.part").exists()), (0o600, false));
    home.forebay(&["dlq", "export", "nowhere/x.jsonl"]).exits(2).says(&["nowhere/x.jsonl"]);
}

#[test]
fn d02_a_purge_leaves_no_byte_of_a_text_anywhere() {
    let home = with_letters(40);
    assert!(!holding(&home.data(""), CANARY).is_empty(), "the search sees");
    home.forebay(&["dlq", "purge", "--all"]).exits(0);
    assert_eq!(home.letters().len(), 40, "open ones are not purged by chance");
    let first = home.letters()[0]["id"].as_str().unwrap().to_owned();
    home.forebay(&["dlq", "purge", &first]).exits(2).says(&["--force"]);
    home.forebay(&["dlq", "purge"]).exits(2).says(&["which letters?", "--resolved"]);
    home.forebay(&["dlq", "discard", "--all", "--reason", "x"]).exits(0);
    assert_eq!(home.forebay(&["dlq", "purge", "--resolved", "--json"]).exits(0).json()["purged"], 0);
    // What a queue left behind that was moved aside goes, too.
    std::fs::create_dir(home.data("queue.damaged-1")).unwrap();
    std::fs::write(home.data("queue.damaged-1/db"), CANARY).unwrap();
    let ran = home.forebay(&["dlq", "purge", "--discarded", "--json"]).exits(0);
    assert_eq!(ran.json()["purged"], 40);
    assert_eq!(holding(&home.data(""), CANARY), [""; 0]);
    assert!(home.letters().is_empty());
    assert!(std::fs::metadata(home.data("dead-letters.jsonl")).unwrap().len() < 300, "compacted");
    home.holds(3);
    // Nothing is left that would make the next reading skip them.
    let report = home.run(&[&["in.jsonl"][..], &LOOSE].concat(), 0);
    assert_eq!(report.n("chunks"), 40);
}

#[test]
fn an_open_letter_is_purged_when_forced_and_what_it_sent_back_is_taken_back() {
    let home = with_letters(2);
    let all = home.letters();
    home.forebay(&[&["dlq", "redrive", ids(&all)[0]][..], &LOOSE].concat()).exits(0);
    let ran = home.forebay(&["dlq", "purge", "--all", "--force", "--json"]).exits(0);
    assert_eq!(ran.json()["purged"], 2);
    assert_eq!(home.status().unwrap()["queue"]["pending"], 0);
    assert_eq!(holding(&home.data(""), CANARY), [""; 0]);
    home.holds(3);
}

#[test]
fn closed_letters_are_purged_after_their_time_and_open_ones_are_not() {
    let home = with_letters(3);
    let all = home.letters();
    home.forebay(&["dlq", "discard", ids(&all)[0], "--reason", "x"]).exits(0);
    let run =
        |days: &str| home.run(&[&STRICT[..], &["--set", &format!("dlq.retain_days={days}")]].concat(), 0);
    run("30");
    assert_eq!(home.letters().len(), 3);
    // As if it had been closed long ago: brought over from a folder where it was.
    let file = home.at("old.jsonl");
    let lines = home.forebay(&["dlq", "export", "--state", "discarded"]).exits(0).stdout;
    let mut letter: Value = serde_json::from_str(&lines).unwrap();
    home.forebay(&["dlq", "purge", "--discarded"]).exits(0);
    let old = "2020-01-02T03:04:05.000Z";
    for field in ["first_failed_at", "last_failed_at", "resolved_at"] {
        letter[field] = old.into();
    }
    letter["audit"][0]["at"] = old.into();
    std::fs::write(&file, letter.to_string()).unwrap();
    home.forebay(&["dlq", "import", "old.jsonl"]).exits(0);
    run("0");
    assert_eq!(home.letters().len(), 3, "0 keeps all");
    run("30");
    let left = home.letters();
    assert_eq!(ids(&left), &ids(&all)[1..]);
    let journal = std::fs::read_to_string(home.data("dead-letters.jsonl")).unwrap();
    assert!(!journal.contains(ids(&all)[0]));
}

#[test]
fn a_purge_beside_a_run_is_done_and_its_last_bytes_go_with_the_next_open() {
    let home = with_letters(3);
    home.forebay(&["dlq", "discard", "--all", "--reason", "x"]).exits(0);
    let input = home.file("more.jsonl", corpus(5_000));
    let mut run = home.start(&[&["run", &*input, "--set", "pipeline.batch_chunks=5"][..], &LOOSE].concat());
    run.has_written(&home, 20);
    let lock = home.lock_sink();
    let ran = home.forebay(&["dlq", "purge", "--discarded", "--json"]).exits(0).says(&["a run holds"]);
    assert_eq!(ran.json()["purged"], 3);
    let left = holding(&home.data(""), CANARY);
    assert!(left.iter().all(|path| path.contains("/queue/")), "{left:?}");
    drop(lock);
    run.signal(libc::SIGTERM);
    run.wait().exits(130);
    home.status().unwrap();
    assert_eq!(holding(&home.data(""), CANARY), [""; 0]);
}

/// Killed wherever it stands, a purge loses no letter that was not meant, and the same again ends it.
#[test]
fn a_purge_killed_at_any_moment_is_finished_by_the_next() {
    let home = with_letters(60);
    let keep: BTreeSet<String> = ids(&home.letters())[..10].iter().map(|id| (*id).to_owned()).collect();
    let all = home.letters();
    let meant: Vec<&str> = ids(&all)[10..].to_vec();
    let discard = [&["dlq", "discard", "--reason", "x"][..], &meant].concat();
    home.forebay(&discard).exits(0);
    let start = Instant::now();
    home.forebay(&["dlq", "purge", meant[0]]).exits(0);
    let whole = start.elapsed();
    for round in 0..24 {
        let purge = home.start(&["dlq", "purge", "--discarded"]);
        std::thread::park_timeout(whole * round / 20);
        purge.kill();
        let left = home.letters();
        let open: BTreeSet<String> = left
            .iter()
            .filter(|l| l["state"] == "open")
            .map(|l| l["id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(open, keep);
    }
    home.forebay(&["dlq", "purge", "--discarded"]).exits(0);
    assert_eq!(home.letters().len(), 10);
    home.forebay(&["dlq", "purge", "--all", "--force"]).exits(0);
    assert_eq!(holding(&home.data(""), CANARY), [""; 0]);
    home.holds(3);
}

#[test]
fn the_journal_is_bounded_by_what_is_alive() {
    let home = with_letters(300);
    let journal = || std::fs::metadata(home.data("dead-letters.jsonl")).unwrap().len();
    let live = journal();
    for _ in 0..12 {
        home.forebay(&[&["dlq", "redrive", "--all", "--approve"][..], &LOOSE].concat()).exits(0);
        home.run(&STRICT, 1);
        assert!(journal() < 1024 * 1024 + 5 * live, "{} bytes for {live} live ones", journal());
    }
    assert_eq!(home.letters().len(), 300);
    std::fs::remove_dir_all(home.data("queue")).unwrap();
    let attempts = |letters: Vec<Value>| letters.iter().map(|l| l["attempts"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(attempts(home.letters()), 300 * 13, "the journal alone has all that was done");
}

#[test]
fn lists_come_page_by_page_and_by_state() {
    let home = with_letters(7);
    let all = home.letters();
    home.forebay(&["dlq", "discard", ids(&all)[2], "--reason", "x"]).exits(0);
    let list = |arguments: &[&str]| {
        let ran = home.forebay(&[&["dlq", "list", "--json"], arguments].concat()).exits(0);
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    assert_eq!(ids(&list(&["--limit", "2"])), &ids(&all)[..2]);
    assert_eq!(ids(&list(&["--limit", "3", "--after", ids(&all)[1]])), &ids(&all)[3..6]);
    assert_eq!(ids(&list(&["--state", "discarded"])), [ids(&all)[2]]);
    assert_eq!(ids(&list(&["--doc", "long-4"])), [ids(&all)[4]]);
    assert_eq!(ids(&list(&["--closed", "--class", "too_long", "--stage", "reader"])).len(), 7);
    assert_eq!(ids(&list(&["--older-than", "1h"])).len(), 0);
    home.forebay(&["dlq", "list", "--state", "dead"]).exits(2).says(&["unknown state", "quarantined"]);
    home.forebay(&["dlq", "list", "--limit", "2"]).exits(0).says(&["--after"]);
}

#[test]
fn a_letter_of_another_source_is_not_this_runs() {
    let home = Home::new();
    let cut = record("cut", "x").trim_end().trim_end_matches('}').to_owned();
    let input = home.file("in.jsonl", cut + "\n" + &corpus(3));
    assert_eq!(home.run(&[&input], 1).outcome(), "partial");
    let other = home.file("other.jsonl", record("fine", "water"));
    assert_eq!(home.run(&[&other], 0).outcome(), "complete");
    assert_eq!(home.run(&[&input], 1).outcome(), "partial");
}

#[test]
fn a_letter_resolved_within_its_run_is_not_left_by_it() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    let path = rig.input("in.jsonl", &["{".to_owned(), chunk_line("d", 0, "water")]);
    assert_eq!(rig.run(std::slice::from_ref(&path)).outcome, Outcome::Partial);
    let line = rig.line();
    let letter = line.folder.queue.letters(&Filter::default(), 9).unwrap().remove(0);
    assert!(!line.leaves_dead().unwrap(), "no source of it was read by this run");
    line.know_source(letter.origin.source_id, &letter.origin.source);
    assert!(line.leaves_dead().unwrap());
    line.folder.queue.resolve(&[(letter.id, "as_is".into())]).unwrap();
    assert!(!line.leaves_dead().unwrap());
}

/// `FOREBAY_LETTERS=100000` measures; the bounds are for a busy machine.
#[test]
fn many_letters_are_counted_and_given_up_quickly() {
    let n: usize = std::env::var("FOREBAY_LETTERS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::new(dir.path());
    let timed =
        |what: &str, start: Instant| println!("{n} letters: {what} {:.2} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let folder = rig.folder();
    let text = "some text of a chunk ".repeat(25);
    for page in (0..n).collect::<Vec<_>>().chunks(256) {
        let burials = page.iter().map(|i| (None, burial(*i, &text))).collect();
        folder.queue.bury(burials).unwrap();
    }
    timed("buried in", start);
    drop(folder);
    let start = Instant::now();
    let folder = rig.folder();
    timed("opened in", start);
    let start = Instant::now();
    let stats = folder.queue.letter_stats().unwrap();
    timed("stats in", start);
    assert!(start.elapsed().as_secs_f64() < 1.0);
    assert_eq!((stats.len(), stats.iter().map(|class| class.open).sum::<u64>()), (2, n as u64));
    assert_eq!(stats.iter().map(|class| class.attempts_worst).max(), Some(3));
    if n > 200_000 {
        // What follows takes minutes then, and this far it is what was asked: a look at very many.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap());
        return;
    }
    let settings = forebay::testkit::rig::settings();
    let context = Context { folder: &folder, line: None, source: &settings.source, line_bytes: 1 << 20 };
    let all = |mut command: Command, field: &str| {
        let (start, mut sum) = (Instant::now(), 0);
        loop {
            let answer = execute(context, &command).unwrap();
            sum += answer[field].as_u64().unwrap();
            match (command.filter_mut(), answer["next"].as_str().and_then(|id| id.parse().ok())) {
                (Some(filter), Some(next)) => filter.after = Some(next),
                _ => break,
            }
        }
        timed(field, start);
        assert_eq!(sum, n as u64);
        start.elapsed().as_secs_f64()
    };
    let (filter, who) = (Filter::default(), "test".to_owned());
    let redriven = all(
        Command::DlqRedrive { filter: filter.clone(), dry_run: false, who: who.clone(), how: How::default() },
        "redriven",
    );
    let discarded =
        all(Command::DlqDiscard { filter, reason: "x".into(), who: who.clone(), limit: None }, "discarded");
    let start = Instant::now();
    assert_eq!(folder.queue.purge_closed(u64::MAX).unwrap(), n as u64);
    timed("purged in", start);
    if n == 10_000 {
        assert!(redriven < 30.0 && discarded < 30.0, "{redriven} s, {discarded} s");
    }
}

fn burial(i: usize, text: &str) -> Burial {
    let (key, text) = (ChunkKey::new(format!("d{i}"), 0), format!("{text}{i}"));
    let class = if i.is_multiple_of(3) { Class::TooLong } else { Class::ModelFailed };
    let hash = Digest::of(text.as_bytes());
    Burial {
        chunk_id: Some(chunk_id(&key, &hash)),
        doc_id: Some(key.doc_id.clone()),
        subject: Subject::Chunk(key),
        identity: Some("i".into()),
        stage: class.stage(),
        fault: Fault::new(class, "why"),
        attempts: 3,
        origin: Origin { source_id: 1, source: "s".into(), line: 1, offset: i as u64 },
        payload: Payload::Chunk { text, meta: None, source_hash: hash },
    }
}

//! One poison record costs one record, is seen by whoever looks, and can be repaired or given up.

mod common;

use std::{collections::BTreeMap, sync::atomic::Ordering::Relaxed, time::Instant};

use common::{Home, case, poll, record};
use forebay::{
    chunk::{Chunk, ChunkKey, Digest},
    pipeline::report::Outcome,
    queue::{dead::DeadLetter, dlq::Filter},
    testkit::{
        faults::Poison,
        rig::{Cut, Rig},
    },
};
use serde_json::Value;

fn text<'a>(letter: &'a Value, name: &str) -> &'a str {
    letter[name].as_str().unwrap_or_else(|| panic!("no text {name} in {letter}"))
}

/// A home in which c02 was run once: 64 lines, two of which can never be embedded.
fn poisoned() -> Home {
    let home = Home::new();
    let report = home.run(&[&case("c02_poison_in_batch.jsonl")], 1);
    assert_eq!(
        report.numbers(["documents", "produced", "unreadable", "chunks", "dead", "embedded"]),
        [62, 62, 2, 62, 2, 62]
    );
    assert_eq!(report.outcome(), "partial");
    home
}

#[test]
fn c02_two_dead_letters_and_sixty_two_vectors_and_again_nothing_is_embedded() {
    let home = poisoned();
    home.holds(62);
    let lines = std::fs::read(case("c02_poison_in_batch.jsonl")).unwrap();
    let lines: Vec<&[u8]> = lines.split_inclusive(|byte| *byte == b'\n').collect();
    let letters = home.letters();
    let found: Vec<(&str, u64)> = letters
        .iter()
        .map(|letter| (text(letter, "class"), letter["origin"]["line"].as_u64().unwrap()))
        .collect();
    assert_eq!(found, [("blank_text", 18), ("json_lone_surrogate", 41)], "{letters:?}");
    for letter in &letters {
        assert_eq!((text(letter, "state"), text(letter, "stage")), ("open", "source"));
        assert!(text(&letter["origin"], "source").ends_with("c02_poison_in_batch.jsonl"));
        let line = usize::try_from(letter["origin"]["line"].as_u64().unwrap()).unwrap();
        let offset: usize = lines[..line - 1].iter().map(|line| line.len()).sum();
        assert_eq!(letter["origin"]["offset"], offset);
        assert!(letter.get("payload").is_none(), "text only where `dlq show` asked for it");
    }
    let again = home.run(&[&case("c02_poison_in_batch.jsonl")], 1);
    assert_eq!(again.numbers(["embedded", "passes", "chunks", "skipped", "dead"]), [0, 0, 0, 62, 2]);
    let ids = |letters: &[Value]| letters.iter().map(|letter| letter["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&home.letters()), ids(&letters), "the same letters, not new ones");
}

#[test]
fn letters_are_listed_by_what_they_are_shown_and_counted() {
    let home = poisoned();
    let list = |filter: &[&str]| {
        let ran = home.forebay(&[&["dlq", "list", "--json"][..], filter].concat()).exits(0);
        ran.stdout.lines().count()
    };
    assert_eq!(list(&[]), 2);
    assert_eq!(list(&["--class", "blank_text"]), 1);
    assert_eq!(list(&["--stage", "source"]), 2);
    assert_eq!(list(&["--stage", "writer"]), 0);
    assert_eq!(list(&["--limit", "1"]), 1);
    assert_eq!(list(&["--older-than", "1d"]), 0);
    assert_eq!(list(&["--doc", "c02-17"]), 1);
    let letters = home.letters();
    assert_eq!(list(&["--after", text(&letters[0], "id")]), 1);
    let id = text(&letters[0], "id");
    let shown = home.forebay(&["dlq", "show", id]).exits(0);
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(text(&shown, "id"), id);
    let raw = text(&shown["payload"]["raw"], "base64");
    let raw = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, raw).unwrap();
    assert_eq!(String::from_utf8(raw).unwrap(), r#"{"id":"c02-17","text":""}"#);
    let stats = home.forebay(&["dlq", "stats", "--json"]).exits(0).json();
    let stats: Vec<(&str, u64)> = stats
        .as_array()
        .unwrap()
        .iter()
        .map(|class| (text(class, "class"), class["open"].as_u64().unwrap()))
        .collect();
    assert_eq!(stats, [("json_lone_surrogate", 1), ("blank_text", 1)]);
    let people = home.forebay(&["dlq", "list"]).exits(0).stdout;
    assert_eq!(people.lines().count(), 2);
    assert!(people.contains("c02_poison_in_batch.jsonl:18") && people.contains("blank_text"), "{people}");
    let status = home.status().unwrap();
    assert_eq!((&status["dead_open"], &status["dead_by_class"]["blank_text"]), (&2.into(), &1.into()));
}

#[test]
fn what_is_given_up_no_longer_counts() {
    let home = poisoned();
    let arguments = [case("c02_poison_in_batch.jsonl")];
    let arguments = [arguments[0].as_str()];
    let discard = |class: &str| {
        let typed = ["dlq", "discard", "--class", class, "--reason", "empty on purpose", "--json"];
        home.forebay(&typed).exits(0).json()["discarded"].as_u64().unwrap()
    };
    assert_eq!(discard("blank_text"), 1);
    assert_eq!(home.run(&arguments, 1).numbers(["dead", "skipped"]), [1, 63]);
    assert_eq!((discard("json_lone_surrogate"), discard("json_lone_surrogate")), (1, 0));
    let report = home.run(&arguments, 0);
    assert_eq!(report.numbers(["dead", "skipped", "embedded"]), [0, 64, 0]);
    let letters = home.letters();
    assert!(letters.len() == 2 && letters.iter().all(|letter| letter["state"] == "discarded"), "{letters:?}");
    let shown = home.forebay(&["dlq", "show", text(&letters[0], "id")]).exits(0).stdout;
    assert!(shown.contains("empty on purpose") && shown.contains("cli:tester"), "who and why: {shown}");
}

#[test]
fn a_redrive_says_first_what_would_happen_and_leaves_what_would_fail_again() {
    let home = poisoned();
    let redrive =
        |more: &[&str]| home.forebay(&[&["dlq", "redrive", "--json"][..], more].concat()).exits(0).json();
    for said in [redrive(&["--all", "--dry-run"]), redrive(&["--all"])] {
        assert_eq!((&said["redriven"], &said["superseded"]), (&0.into(), &0.into()), "{said}");
        let staying = said["staying"].as_array().unwrap();
        assert_eq!(staying.len(), 2, "{said}");
        assert!(text(&staying[0], "why").starts_with("still blank_text"), "{said}");
    }
    assert!(home.letters().iter().all(|letter| letter["state"] == "open"));
}

#[test]
fn a_letter_whose_cause_was_mended_is_redriven_embedded_and_resolved() {
    let home = Home::new();
    let long: String = (0..30).map(|i| format!("word{i} ")).collect();
    let input = home.file(
        "in.jsonl",
        format!(
            "{{\"id\":\"long\",\"chunk_index\":0,\"text\":{long:?}}}\n{}",
            record("short", "a few words")
        ),
    );
    let strict = ["--set", "model.truncation=bury", "--set", "model.max_length=20"];
    let report = home.run(&[&[&*input][..], &strict].concat(), 1);
    assert_eq!(report.numbers(["chunks", "dead"]), [1, 1]);
    assert_eq!(text(&home.letters()[0], "class"), "too_long");
    let lax = ["--set", "model.truncation=truncate", "--set", "model.max_length=20"];
    let said = home
        .forebay(&[&["dlq", "redrive", "--class", "too_long", "--json"][..], &lax].concat())
        .exits(0)
        .json();
    assert_eq!(said["redriven"], 1, "{said}");
    assert_eq!(home.letters()[0]["state"], "redriven");
    let report = home.run(&lax, 0);
    assert_eq!(report.numbers(["chunks", "embedded", "truncated", "dead"]), [1, 1, 1, 0]);
    let letters = home.letters();
    assert_eq!((letters.len(), text(&letters[0], "state")), (1, "resolved"));
    home.holds(2);
    assert_eq!(home.run(&[&[&*input][..], &lax].concat(), 0).n("embedded"), 0);
}

#[test]
fn a_mended_input_resolves_its_letters_as_superseded() {
    let home = Home::new();
    let bad = record("a", "good") + "{\"id\":\"b\",\"chunk_index\":0,\"text\":\"one two three four\"}\n";
    let strict = ["--set", "model.truncation=bury", "--set", "model.max_length=3"];
    let input = home.file("in.jsonl", &bad);
    let arguments = [&[&*input][..], &strict].concat();
    home.run(&arguments, 1);
    home.file("in.jsonl", bad.replace("three four", "three"));
    assert_eq!(home.run(&arguments, 0).numbers(["chunks", "skipped", "dead"]), [1, 1, 0]);
    let letters = home.letters();
    assert_eq!((text(&letters[0], "state"), text(&letters[0], "resolved_how")), ("resolved", "superseded"));
    home.holds(2);
}

#[test]
fn a_record_mended_in_its_file_closes_its_letter_and_one_that_only_moved_is_counted_once() {
    let home = Home::new();
    let good = record("a", "good");
    let input = home.file("in.jsonl", format!("{good}{{\"id\":\"b\"}}\n{{\"id\":\"c\"}}\n"));
    assert_eq!(home.run(&[&input], 1).n("dead"), 2);
    home.file(
        "in.jsonl",
        format!("{good}{}{{\"id\":\"c\"}}\n", record("b", "mended, and longer than it was")),
    );
    assert_eq!(home.run(&[&input], 1).n("dead"), 1);
    let open = || -> Vec<String> {
        let letters = home.letters().into_iter().filter(|letter| letter["state"] == "open");
        letters.map(|letter| text(&letter, "doc_id").to_owned()).collect()
    };
    assert_eq!(open(), ["c"], "the letter of b is closed, c has one, not two");
    home.file("in.jsonl", format!("{good}{}{}", record("b", "mended"), record("c", "mended")));
    home.run(&[&input], 0);
    assert!(open().is_empty());
    home.holds(3);
}

/// A redrive is a person's deed: nothing brings a dead letter back by itself, however often the line runs.
#[test]
fn d12_no_letter_is_redriven_by_itself() {
    let home = poisoned();
    let before = home.letters();
    for _ in 0..3 {
        home.run(&[&case("c02_poison_in_batch.jsonl")], 1);
        home.run(&[], 0);
    }
    let after = home.letters();
    assert_eq!(before, after, "state, attempts and redrives are what they were");
    assert!(after.iter().all(|letter| letter["redrives"] == 0 && letter["attempts"] == 1), "{after:?}");
}

const POISONED: usize = 37;
const BATCH: usize = 64;

/// [`POISONED`] of `n` documents, scattered, and the kind of poison in each.
fn scattered(n: usize) -> BTreeMap<String, Poison> {
    let kinds = [Poison::Pass, Poison::Panic, Poison::Memory, Poison::NotFinite, Poison::Row];
    let (mut dice, mut poisoned) = (fastrand::Rng::with_seed(37), BTreeMap::new());
    while poisoned.len() < POISONED {
        let kind = kinds[poisoned.len() % kinds.len()];
        poisoned.entry(format!("d{}", dice.usize(..n))).or_insert(kind);
    }
    poisoned
}

/// All of them in the queue before the run, so that its batches are certain.
fn fill(rig: &Rig, n: usize, poisoned: &BTreeMap<String, Poison>) {
    let folder = rig.folder();
    for at in 0..n {
        let doc = format!("d{at}");
        let word = poisoned.get(&doc).map_or("good", |poison| poison.word());
        let text = format!("text number n{at} {word}");
        let source_hash = Digest::of(text.as_bytes());
        let (key, ordinal) = (ChunkKey::new(doc, 0), at as u64);
        let chunk = Chunk { key, text, meta: None, source_hash, source_id: 1, ordinal, line: ordinal + 1 };
        folder.queue.enqueue(chunk).unwrap();
    }
    folder.queue.flush().unwrap();
}

/// `FOREBAY_POISON_CHUNKS=N` takes another number of chunks.
#[test]
fn c02_thirty_seven_poison_chunks_among_a_hundred_thousand_cost_thirty_seven() {
    let n = std::env::var("FOREBAY_POISON_CHUNKS").map_or(100_000, |n| n.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    (rig.settings.pipeline.batch_chunks, rig.settings.window_chunks) = (BATCH, n);
    let poisoned = scattered(n);
    fill(&rig, n, &poisoned);
    let (start, mut retried) = (Instant::now(), 0);
    let report = rig.run_beside(&[], Cut::Never, |line| {
        let settled = || line.tally.chunks.get() + line.tally.buried.get();
        poll("all of it has come to its end", || (settled() == n as u64).then_some(()));
        retried = line.tally.retried.get();
    });
    let (report, wall) = (report.unwrap(), start.elapsed());
    assert_eq!((report.chunks, report.dead, report.pending), ((n - POISONED) as u64, POISONED as u64, 0));
    assert_eq!(report.outcome, Outcome::Partial);

    let letters = rig.folder().queue.letters(&Filter::default(), usize::MAX).unwrap();
    let class = |letter: &DeadLetter| (letter.doc_id.clone().unwrap(), Some(letter.class));
    let found: BTreeMap<_, _> = letters.iter().map(class).collect();
    let wanted: BTreeMap<_, _> = poisoned.iter().map(|(doc, poison)| (doc.clone(), poison.class())).collect();
    assert_eq!(found, wanted, "those, all of those, and each under its class");

    // Every charge but the last of each letter is a retry: none is left for a healthy chunk.
    let charged: u64 = letters.iter().map(|letter| u64::from(letter.attempts)).sum();
    assert_eq!(charged, POISONED as u64 + retried, "a healthy chunk was charged an attempt");
    assert_eq!(rig.faults.embedded_again(), 0, "a healthy chunk was embedded twice");

    // Golden texts are passes too. A further attempt has a pass and a golden text of its own.
    let passes = rig.faults.passes.load(Relaxed) + rig.faults.goldens.load(Relaxed);
    let needed = (n as u64 + retried).div_ceil(BATCH as u64);
    let extra = passes - needed - 2 * retried;
    println!("{n} chunks in {wall:.1?}: {needed} passes were needed, {extra} extra, {retried} retries");
    let bound = 2 * u64::from(BATCH.ilog2()) + 1;
    assert!(extra <= POISONED as u64 * bound, "{extra} extra passes");
}

//! `dlq.payload = "reference"`: a letter holds no text and no path; a redrive reads the source again.

mod common;

use std::{path::PathBuf, sync::atomic::Ordering::Relaxed};

use common::{Home, case};
use forebay::{
    chunk::ChunkKey,
    ops::{
        Context,
        command::{Command, How, execute},
    },
    queue::{
        dead::{DeadLetter, Payload, State, Subject},
        dlq::{Filter, Keep},
    },
    sink::Stored,
    testkit::{
        faults::Poison,
        rig::{Rig, document_line},
    },
};
use serde_json::Value;

const BY_REFERENCE: [&str; 2] = ["--set", "dlq.payload=reference"];

fn redrive(home: &Home) -> Value {
    home.forebay(&["dlq", "redrive", "--all", "--json"]).exits(0).json()
}

/// Why the letters stay, in order.
fn staying(home: &Home) -> Vec<String> {
    let answer = redrive(home);
    let stays = answer["staying"].as_array().unwrap();
    stays.iter().map(|letter| letter["why"].as_str().unwrap().to_owned()).collect()
}

fn all_say(whys: &[String], count: usize, words: &str) {
    assert!(
        whys.len() == count && whys.iter().all(|why| why.contains(words)),
        "{whys:?} do not say {words:?}"
    );
}

#[test]
fn a_record_that_cannot_be_read_is_found_again_or_said_to_be_gone_or_changed() {
    let home = Home::new();
    let content = std::fs::read_to_string(case("c02_poison_in_batch.jsonl")).unwrap();
    let input = home.file("secret-name.jsonl", &content);
    let arguments = [&[&*input][..], &BY_REFERENCE].concat();
    home.run(&arguments, 1);
    let journal = std::fs::read_to_string(home.data("dead-letters.jsonl")).unwrap();
    assert!(!journal.contains("secret-name") && !journal.contains("base64"), "{journal}");
    let line = content.lines().nth(40).unwrap();
    assert!(!journal.contains(&line[line.len() / 2..]), "{journal}");
    let ids = |home: &Home| home.letters().iter().map(|letter| letter["id"].clone()).collect::<Vec<_>>();
    let first = ids(&home);
    assert_eq!((first.len(), home.run(&arguments, 1).n("dead")), (2, 2));
    assert_eq!(ids(&home), first, "the same letters, not new ones");
    all_say(&staying(&home), 2, "still ");

    std::fs::remove_file(home.at("secret-name.jsonl")).unwrap();
    all_say(&staying(&home), 2, "source_gone");
    home.file("secret-name.jsonl", content.replace("ud800", "ud801").replace(":\"\"", ": \"\""));
    all_say(&staying(&home), 2, "source_changed");
    // What is mended in its source closes its letter, as with whole payloads.
    let mend = |(at, line): (usize, &str)| match at + 1 {
        18 | 41 => common::record(&format!("mended-{at}"), "mended"),
        _ => format!("{line}\n"),
    };
    home.file("secret-name.jsonl", content.lines().enumerate().map(mend).collect::<String>());
    let report = home.run(&[&[&*input][..], &BY_REFERENCE].concat(), 0);
    assert_eq!(report.n("unreadable"), 0, "{}", report.0);
    assert!(home.letters().iter().all(|letter| letter["resolved_how"] == "superseded"));
}

#[test]
fn standard_input_is_kept_while_a_letter_refers_to_it() {
    let home = Home::new();
    let content = std::fs::read(case("c02_poison_in_batch.jsonl")).unwrap();
    home.fed(&[&["run", "-"][..], &BY_REFERENCE].concat(), content).wait().exits(1);
    let spooled = || std::fs::read_dir(home.data("spool")).map_or(0, Iterator::count);
    assert_eq!(spooled(), 1);
    all_say(&staying(&home), 2, "still ");
    home.forebay(&["dlq", "discard", "--all", "--reason", "known"]).exits(0);
    home.run(&[], 0);
    assert_eq!(spooled(), 0, "nothing refers to it any more");
}

fn letters(rig: &Rig) -> Vec<DeadLetter> {
    rig.folder().queue.letters(&Filter { closed_too: true, ..Filter::default() }, usize::MAX).unwrap()
}

fn redriven(rig: &Rig, approve: bool) -> Value {
    let folder = rig.folder();
    let context = Context { folder: &folder, line: None, source: &rig.settings.source, line_bytes: 1 << 20 };
    let how = How { approve, ..How::default() };
    let command = Command::DlqRedrive { filter: Filter::default(), dry_run: false, who: "test".into(), how };
    execute(context, &command).unwrap()
}

#[test]
fn a_chunk_in_the_midst_of_a_document_is_found_again_and_embedded() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.settings.dlq_payload = Keep::Reference;
    rig.settings.source.chunk_tokens = 8;
    rig.settings.source.overlap_tokens = 2;
    rig.faults.flaky_failures.store(u32::MAX, Relaxed);
    let words: Vec<String> = (0..60).map(|n| format!("wörd{n}")).collect();
    let text = format!("{} {} {}", words.join(" "), Poison::Flaky.word(), words.join(" "));
    let lines = ["a", "b"].map(|doc| document_line(doc, &format!("{doc} {text}")));
    let input: PathBuf = rig.input("in.jsonl", &lines);
    let first = rig.run(std::slice::from_ref(&input));
    let dead = letters(&rig);
    assert!(dead.len() >= 2 && dead.len() as u64 == first.dead, "{first:?}");
    let mut keys: Vec<ChunkKey> = Vec::new();
    for letter in &dead {
        assert!(
            matches!(letter.payload, Payload::Reference { bytes: 1.., .. })
                && letter.origin.source.is_empty()
        );
        let stored = serde_json::to_string(letter).unwrap();
        assert!(!stored.contains("wörd") && !stored.contains("in.jsonl"), "{stored}");
        let Subject::Chunk(key) = &letter.subject else { panic!("{letter:?}") };
        assert!(key.chunk_index > 0, "in the midst of its document");
        keys.push(key.clone());
    }
    let again = rig.run(std::slice::from_ref(&input));
    assert_eq!((again.embedded, again.dead), (0, first.dead), "{again:?}");

    // It fails again: the same letter, and still findable.
    assert_eq!(redriven(&rig, false)["redriven"], first.dead);
    rig.run(&[]);
    assert_eq!(letters(&rig).len(), dead.len());
    assert!(
        letters(&rig).iter().zip(&dead).all(|(now, then)| now.payload == then.payload && now.redrives == 1)
    );

    rig.faults.flaky_failures.store(0, Relaxed);
    // It failed the same way after a redrive.
    assert_eq!(redriven(&rig, false)["redriven"], 0);
    assert_eq!(redriven(&rig, true)["redriven"], first.dead);
    rig.run(&[]);
    let folder = rig.folder();
    let mut found = 0;
    let mut each = |stored: Stored| {
        found += usize::from(keys.contains(&stored.key));
        Ok(())
    };
    rig.plain_sink().scan(Some(&folder.store), &mut each).unwrap();
    drop(folder);
    assert_eq!(found, keys.len());
    assert!(letters(&rig).iter().all(|letter| letter.state == State::Resolved));
    assert_eq!(rig.run(&[input]).embedded, 0);
}

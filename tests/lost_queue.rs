//! Any store may be lost: the queue comes back by itself, the ledger by `rebuild`, and nothing is embedded twice.

mod common;

use std::path::Path;

use common::{Home, Ran, corpus, record};
use serde_json::Value;

const CHUNKS: u64 = 400;

/// Two lines among the others that can never be embedded.
fn input() -> String {
    let good = corpus(usize::try_from(CHUNKS).unwrap());
    let (first, rest) = good.split_at(good.match_indices('\n').nth(99).unwrap().0 + 1);
    first.to_owned() + &record("blank", " ") + "{\"id\": \"cut\n" + rest
}

/// What a rebuild must bring back of the DLQ.
fn essence(letters: &[Value]) -> Vec<[Value; 5]> {
    letters
        .iter()
        .map(|l| ["id", "state", "class", "origin", "first_failed_at"].map(|name| l[name].clone()))
        .collect()
}

/// A home in which all is done: every chunk written, two letters, one of them given up.
fn done() -> (Home, String, Vec<[Value; 5]>) {
    let home = Home::new();
    let input = home.file("in.jsonl", input());
    home.run(&[&input], 1);
    home.forebay(&["dlq", "discard", "--class", "blank_text", "--reason", "on purpose"]).exits(0);
    let letters = essence(&home.letters());
    assert_eq!(letters.len(), 2);
    (home, input, letters)
}

/// Runs again: nothing is embedded, the letters are the same.
fn same_as_before(home: &Home, input: &str, letters: &[[Value; 5]]) -> Ran {
    let ran = home.forebay(&["run", "--json", input]).exits(1);
    assert_eq!(
        ran.report().numbers(["embedded", "chunks", "skipped", "dead"]),
        [0, 0, CHUNKS + 1, 1],
        "{ran}"
    );
    assert_eq!(essence(&home.letters()), letters);
    home.holds(CHUNKS);
    ran
}

#[test]
fn a_queue_deleted_after_a_kill_costs_nothing() {
    let home = Home::new();
    let input = home.file("in.jsonl", input());
    let mut run =
        home.start(&["run", &input, "--set", "pipeline.batch_chunks=4", "--set", "queue.window_chunks=50"]);
    // The letters stand a quarter into the input, so they are buried by now.
    run.has_written(&home, 200);
    run.kill();
    let (written, letters) = (home.ledger_rows(), essence(&home.letters()));
    assert_eq!(letters.len(), 2);
    std::fs::remove_dir_all(home.data("queue")).unwrap();
    // Without a path: the source was registered, and is read again by itself.
    let ran = home.forebay(&["run", "--json"]).exits(1);
    let ran = ran.says(&["the queue was rebuilt (it is gone)", "2 dead letters", "1 sources"]);
    let report = ran.report();
    assert_eq!(report.numbers(["embedded", "dead"]), [CHUNKS - written, 2], "{ran}");
    assert_eq!(essence(&home.letters()), letters);
    home.holds(CHUNKS);
}

#[test]
fn the_queue_of_a_finished_folder_may_vanish() {
    let (home, input, letters) = done();
    std::fs::remove_dir_all(home.data("queue")).unwrap();
    same_as_before(&home, &input, &letters).says(&["the queue was rebuilt", "2 dead letters"]);
    assert!(!same_as_before(&home, &input, &letters).stderr.contains("rebuilt"), "once is enough");
}

/// Overwrites `bytes` in the middle with a pattern that is neither zero nor valid.
fn garble(path: &Path, from: usize, bytes: usize) {
    let mut content = std::fs::read(path).unwrap();
    let end = content.len().min(from + bytes);
    content[from.min(end)..end].iter_mut().zip((0_u8..=255).cycle()).for_each(|(byte, i)| *byte ^= 0x5a ^ i);
    std::fs::write(path, content).unwrap();
}

/// Cuts a file to so many quarters.
fn cut(path: &Path, quarters: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() * quarters / 4).unwrap();
}

/// Something done to a file.
type Damage = Box<dyn Fn(&Path)>;

#[test]
fn damaged_files_of_the_queue_are_noticed_or_harmless_and_nothing_is_lost() {
    let (home, input, letters) = done();
    let files = || {
        let folder = std::fs::read_dir(home.data("queue")).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = folder.filter(|path| path.is_file()).collect();
        files.sort();
        files
    };
    let named = |start: &str| {
        let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        files().into_iter().find(|path| name(path).starts_with(start))
    };
    let mut rebuilt = 0;
    for name in ["db", "conf", "snap."] {
        let mut damages: Vec<(String, Damage)> = vec![
            ("deleted".into(), Box::new(|path| std::fs::remove_file(path).unwrap())),
            ("emptied".into(), Box::new(|path| cut(path, 0))),
            ("cut in half".into(), Box::new(|path| cut(path, 2))),
            ("garbled at its start".into(), Box::new(|path| garble(path, 0, 64))),
        ];
        if name == "db" {
            for from in [1_000, 5_000, 20_000, 70_000] {
                damages.push((format!("garbled at {from}"), Box::new(move |path| garble(path, from, 200))));
            }
        }
        for (what, damage) in damages {
            // Sled writes no snapshot while its log is short.
            let Some(path) = named(name) else { continue };
            println!("{name} {what}");
            damage(&path);
            let ran = same_as_before(&home, &input, &letters);
            rebuilt += u32::from(ran.stderr.contains("the queue was rebuilt"));
        }
    }
    assert!(rebuilt >= 5, "damage must be noticed: {rebuilt}");
    let aside = std::fs::read_dir(home.data("")).unwrap();
    let aside = aside
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("queue.damaged-"));
    assert!(aside.count() >= 5, "what was damaged is kept for whoever wants to look");
}

#[test]
fn a_lost_ledger_is_named_and_rebuilt_from_the_sink() {
    let (home, input, letters) = done();
    for file in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        let _ = std::fs::remove_file(home.data(file));
    }
    home.forebay(&["run", &input]).exits(2).says(&["ledger.db", "forebay rebuild"]);
    assert!(!home.data("ledger.db").exists(), "a refusal leaves nothing behind");
    // With the witness gone as well, the queue tells that there was one.
    std::fs::rename(home.data("witness"), home.at("witness")).unwrap();
    home.forebay(&["run", &input]).exits(2).says(&["ledger.db", "forebay rebuild"]);
    std::fs::rename(home.at("witness"), home.data("witness")).unwrap();
    let said = home.forebay(&["rebuild", "--json"]).exits(0).json();
    assert_eq!((&said["ledger_rows"], &said["forgotten"]), (&CHUNKS.into(), &0.into()), "{said}");
    same_as_before(&home, &input, &letters);
}

#[test]
fn a_damaged_ledger_is_named_with_what_to_do_and_doing_it_helps() {
    let (home, input, letters) = done();
    garble(&home.data("ledger.db"), 0, 4_096);
    let _ = std::fs::remove_file(home.data("ledger.db-wal"));
    home.forebay(&["run", &input]).exits(2).says(&["ledger.db", "move it aside", "forebay rebuild"]);
    std::fs::rename(home.data("ledger.db"), home.at("aside.db")).unwrap();
    home.forebay(&["rebuild"]).exits(0);
    same_as_before(&home, &input, &letters);
}

#[test]
fn a_ledger_that_differs_from_the_sink_is_found_and_mended() {
    let (home, input, letters) = done();
    let sink = rusqlite::Connection::open(home.data("vectors.db")).unwrap();
    sink.execute("DELETE FROM vectors WHERE doc_id IN ('doc-1', 'doc-2')", []).unwrap();
    drop(sink);
    let ran = home.forebay(&["verify", "--json"]).exits(1);
    let found = ran.json();
    assert_eq!((&found["missing_in_sink"], &found["ok"]), (&2.into(), &false.into()), "{found}");
    assert!(ran.stdout.contains("doc-1#0") && ran.stdout.contains("forebay rebuild"), "{ran}");
    home.forebay(&["rebuild"]).exits(0);
    assert_eq!(home.run(&[&input], 1).n("embedded"), 2);
    same_as_before(&home, &input, &letters);
}

#[test]
fn a_damaged_journal_is_refused_with_its_place_when_the_queue_needs_it() {
    let (home, input, letters) = done();
    let journal = home.data("dead-letters.jsonl");
    let whole = std::fs::read(&journal).unwrap();
    let second = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    // The queue knows these lines already and needs them no more.
    garble(&journal, second + 1, 1);
    same_as_before(&home, &input, &letters);
    let queue = home.at("queue");
    std::fs::rename(home.data("queue"), &queue).unwrap();
    home.forebay(&["run", &input]).exits(2).says(&[
        "dead-letters.jsonl",
        &format!("byte {second}"),
        "forebay rebuild",
    ]);
    // Restored, it helps.
    std::fs::write(&journal, &whole).unwrap();
    same_as_before(&home, &input, &letters).says(&["the queue was rebuilt"]);
}

#[test]
fn a_journal_that_lost_its_end_is_refused_and_made_again_from_the_queue() {
    let (home, input, letters) = done();
    let journal = home.data("dead-letters.jsonl");
    let whole = std::fs::read(&journal).unwrap();
    let end = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    std::fs::write(&journal, &whole[..end]).unwrap();
    home.forebay(&["run", &input]).exits(2).says(&[
        "dead-letters.jsonl",
        &format!("byte {end}"),
        "forebay rebuild",
    ]);
    std::fs::rename(&journal, home.at("aside.jsonl")).unwrap();
    home.forebay(&["rebuild"]).exits(0);
    same_as_before(&home, &input, &letters);
    // And the new journal is a second home again.
    std::fs::remove_dir_all(home.data("queue")).unwrap();
    same_as_before(&home, &input, &letters);
}

#[test]
fn a_sink_that_is_not_the_one_that_was_written_is_refused_by_name_and_rebuilt() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(20));
    home.run(&[&input], 0);
    std::fs::rename(home.data("vectors.db"), home.at("older.db")).unwrap();
    let told = ["ledger recorded last", "forebay rebuild"];
    home.forebay(&["run", &input]).exits(2).says(&told);
    std::fs::copy(home.at("older.db"), home.data("vectors.db")).unwrap();
    let more = home.file("more.jsonl", record("new", "one more"));
    home.run(&[&more], 0);
    std::fs::copy(home.at("older.db"), home.data("vectors.db")).unwrap();
    home.forebay(&["run", &input]).exits(2).says(&told);
    home.forebay(&["rebuild"]).exits(0);
    assert_eq!(home.run(&[], 0).n("embedded"), 1, "only what the older copy lacks");
    home.holds(21);
}

#[test]
fn a_lost_witness_does_not_orphan_what_was_written() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(20));
    home.run(&[&input], 0);
    std::fs::remove_file(home.data("witness")).unwrap();
    assert_eq!(home.run(&[&input], 0).n("embedded"), 0);
    home.holds(20);
}

#[test]
fn a_ledger_that_is_removed_under_a_run_ends_it_and_is_made_again() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(3_000));
    let mut run = home.start(&["run", "--json", "-v", &input, "--set", "pipeline.batch_chunks=4"]);
    run.has_written(&home, 50);
    std::fs::remove_file(home.data("ledger.db")).unwrap();
    let ran = run.wait().exits(3).says(&["ledger.db was removed or replaced", "forebay rebuild"]);
    assert_eq!(ran.report().outcome(), "halted");
    home.forebay(&["run", &input]).exits(2).says(&["ledger.db", "forebay rebuild"]);
    home.forebay(&["rebuild"]).exits(0);
    home.run(&[&input], 0);
    home.holds(3_000);
}

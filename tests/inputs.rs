//! Odd inputs through the whole program: what is in the sink, what a run says, what it costs.

mod common;

use std::{fs, io::Write as _, path::Path};

use common::{Home, case, corpus, record};
use forebay::{
    embed::tokens::TextTokenizer,
    source::{self, Item, Splitter},
};
use rusqlite::Connection;

fn incomplete(report: &common::Report) -> String {
    report.0["incomplete"].to_string()
}

/// Column `what` of the sink's rows, in key order.
fn column(home: &Home, what: &str) -> Vec<Option<String>> {
    let sink = Connection::open(home.data("vectors.db")).unwrap();
    let mut query = sink.prepare(&format!("SELECT {what} FROM vectors ORDER BY doc_id")).unwrap();
    query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn b02_a_nul_goes_through_the_whole_line_unchanged() {
    let home = Home::new();
    home.run(&[&case("b02_nul.jsonl")], 0);
    let texts = home.texts();
    assert!(texts.contains(&("b02-text#0".into(), "a great e\0ort".into())), "{texts:?}");
    let ids: Vec<_> = column(&home, "doc_id").into_iter().flatten().collect();
    assert!(ids.contains(&"b02-id\0x".to_owned()), "{ids:?}");
    assert!(column(&home, "meta").contains(&Some("{\"producer\":\"Scanner 9\\u0000\"}".into())));
    home.holds(4);
}

#[test]
fn b13_ids_arrive_in_the_sink_as_they_were_written() {
    let home = Home::new();
    let report = home.run(&[&case("b13_odd_ids.jsonl")], 1);
    assert_eq!(report.numbers(["chunks", "unreadable"]), [17, 2]);
    let mut read = source::open(Path::new(&case("b13_odd_ids.jsonl")), &settings(), 1 << 20).unwrap();
    let mut expected = Vec::new();
    while let Some(item) = read.next().unwrap() {
        if let Item::Record(record) = item {
            expected.push(Some(record.doc_id));
        }
    }
    expected.sort();
    assert_eq!(column(&home, "doc_id"), expected);
    home.holds(17);
}

#[test]
fn b04_a_file_of_another_shape_is_told_apart_from_bad_lines() {
    let pretty = "{\n  \"id\": 1,\n  \"text\": \"x\"\n}\n".repeat(500);
    for (content, words) in [
        ("[{\"id\":1,\"text\":\"x\"},{\"id\":2,\"text\":\"y\"}]", ["a JSON array", "jq -c '.[]'"]),
        ("[\n{\"id\":1,\"text\":\"x\"},\n{\"id\":2,\"text\":\"y\"}\n]\n", ["a JSON array", "jq -c '.[]'"]),
        (&pretty, ["JSON over several lines", "jq -c ."]),
        ("id,text\n1,x\n2,y\n", ["CSV", "one JSON object a line"]),
        ("{\"id\":1}\n{\"id\":2}\n", ["not one good record", ""]),
        ("", ["not one good record", ""]),
    ] {
        let home = Home::new();
        let input = home.file("in.jsonl", content);
        let report = home.run(&[&input], 1);
        let why = incomplete(&report);
        assert!(words.iter().all(|word| why.contains(word)) && why.contains("in.jsonl"), "{why}");
        assert_eq!(report.n("chunks"), 0);
        if !words[1].is_empty() {
            assert!(home.letters().is_empty(), "its lines are no dead letters");
        }
        home.run(&[], 1);
    }
}

#[test]
fn a_file_that_grows_while_a_run_reads_it_is_read_again() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(6_000));
    let mut running = home.start(&["run", "--json", &input, "--set", "queue.window_chunks=10"]);
    // The window is small and nothing is written while the sink is locked: the input is held half-read.
    running.has_written(&home, 1);
    let lock = home.lock_sink();
    let mut file = fs::OpenOptions::new().append(true).open(home.at("in.jsonl")).unwrap();
    file.write_all(record("late", "came late").as_bytes()).unwrap();
    drop((file, lock));
    let report = running.wait().exits(1).report();
    assert!(incomplete(&report).contains("changed while it was read; run again"), "{}", report.0);
    home.run(&[], 0);
    home.holds(6_001);
}

#[test]
fn one_input_that_cannot_be_read_does_not_stop_the_next() {
    let home = Home::new();
    let (first, second) = (home.file("a.jsonl", record("a", "a")), home.file("b.jsonl", record("b", "b")));
    fs::write(home.at("a.jsonl"), b"BZh9").unwrap();
    home.forebay(&["run", &first, &second]).exits(2).says(&["a.jsonl", "bzip2 -d"]);
    // Registered while it was fine, and spoilt since: known, so its neighbours need not wait for it.
    fs::write(home.at("a.jsonl"), &zstd::encode_all(corpus(50).as_bytes(), 1).unwrap()[..200]).unwrap();
    home.run(&[&first], 1);
    fs::write(home.at("a.jsonl"), b"BZh9").unwrap();
    let report = home.run(&[&second], 1);
    assert!(incomplete(&report).contains("bzip2 -d"), "{}", report.0);
    assert_eq!(report.n("chunks"), 1);
}

/// Peak resident memory of a run over one input, in KiB, as last seen before its end.
fn peak_kib(home: &Home, input: &str, code: i32) -> u64 {
    let mut running = home.start(&["run", input, "--set", "limits.line_bytes=1048576"]);
    let (status, mut peak) = (format!("/proc/{}/status", running.pid()), 0);
    common::poll("the run ends", || {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let high = text
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        peak = high.unwrap_or(peak).max(peak);
        running.ended().then_some(())
    });
    running.wait().exits(code);
    peak
}

#[test]
fn b06_what_has_no_end_costs_constant_memory() {
    let home = Home::new();
    let small = home.file("small.jsonl", corpus(3));
    let plain = peak_kib(&home, &small, 0);
    // A line of 48 MiB in 49 kB; a text of as much, compressed; and a line of 24 MiB without an end.
    let text = zstd::encode_all(vec![b'x'; 48 << 20].as_slice(), 1).unwrap();
    let inputs = [
        case("b06_huge_line.jsonl.gz"),
        home.file("huge.txt.zst", text),
        home.file("endless.jsonl", vec![b'x'; 24 << 20]),
    ];
    for input in inputs {
        let peak = peak_kib(&home, &input, 1);
        assert!(
            plain > 4_096 && peak < plain + 16 * 1024,
            "{input}: {peak} KiB, and {plain} KiB with three short lines"
        );
    }
    let classes: Vec<_> = home.letters().iter().map(|letter| letter["class"].clone()).collect();
    assert_eq!(classes, ["line_too_long"; 3]);
}

fn settings() -> source::Settings {
    let defaults: toml::Table = include_str!("../config.toml").parse().unwrap();
    defaults["source"].clone().try_into().unwrap()
}

#[test]
fn b07_unbroken_texts_are_split_in_bounded_work_by_a_real_tokenizer() {
    let Some(models) = std::env::var_os("FOREBAY_TEST_MODELS") else {
        println!("skipped: FOREBAY_TEST_MODELS names no folder of models");
        return;
    };
    let file = Path::new(&models).join("all-minilm-l6-v2/tokenizer.json");
    let tokenizer = TextTokenizer::open("minilm", &file, 30_522, 256).unwrap();
    let mut source = source::open(Path::new(&case("b07_unbroken.jsonl.gz")), &settings(), 16 << 20).unwrap();
    let splitter = Splitter::new(254, 64);
    let mut records = 0;
    while let Some(item) = source.next().unwrap() {
        let Item::Record(record) = item else { continue };
        records += 1;
        let work = std::cell::Cell::new(0);
        let measure = |text: &str| {
            work.set(work.get() + text.len());
            tokenizer.count(text).unwrap()
        };
        let chunks = splitter.split(&record.text, &measure);
        assert!(work.get() <= 2 * record.text.len() + 1_000, "{}: {}", record.doc_id, work.get());
        assert!(chunks.iter().all(|chunk| chunk.len() <= 254 * 16), "{}", record.doc_id);
        let brought: usize = chunks.iter().map(|chunk| chunk.len()).sum();
        assert!(brought <= 2 * record.text.len(), "{}: chunks of {brought} bytes", record.doc_id);
    }
    assert_eq!(records, 12);
}

#[test]
fn b07_a_chunk_without_an_end_is_cut_after_bounded_work() {
    let Some(models) = std::env::var_os("FOREBAY_TEST_MODELS") else {
        println!("skipped: FOREBAY_TEST_MODELS names no folder of models");
        return;
    };
    let file = Path::new(&models).join("all-minilm-l6-v2/tokenizer.json");
    let tokenizer = TextTokenizer::open("minilm", &file, 30_522, 256).unwrap();
    // One word is one token to this family, so the limit is never reached: only the cap ends it. What lies behind
    // the cap changes nothing.
    let head = "a".repeat(2 << 20);
    let (cut, longer) =
        (tokenizer.tokenize("", &head).unwrap(), format!("{head}{}", " the gate".repeat(2 << 20)));
    assert!(cut.truncated && cut.ids.len() < 256);
    assert_eq!(tokenizer.tokenize("", &longer).unwrap(), cut);
}

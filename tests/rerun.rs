//! Running again embeds nothing, and the newest text of a chunk wins.

mod common;

use common::{Home, case, corpus, record};

/// Nothing was read, tokenised or embedded twice.
fn idle(home: &Home, arguments: &[&str], code: i32) {
    let report = home.run(arguments, code);
    assert_eq!(report.numbers(["embedded", "passes", "chunks", "tokens"]), [0; 4], "{}", report.0);
}

#[test]
fn a_clean_input_is_embedded_once() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(300));
    let report = home.run(&[&input], 0);
    assert_eq!(report.numbers(["produced", "chunks", "embedded", "skipped"]), [300, 300, 300, 0]);
    assert_eq!(report.outcome(), "complete");
    let again = home.run(&[&input], 0);
    assert_eq!(again.numbers(["produced", "chunks", "embedded", "passes", "skipped"]), [300, 0, 0, 0, 300]);
    // Under another name it is another source, and its chunks are still written.
    let copy = home.file("copy.jsonl", corpus(300));
    idle(&home, &[&copy], 0);
    idle(&home, &[], 0);
    home.holds(300);
}

#[test]
fn every_public_case_of_a_broken_input_is_idle_when_run_again() {
    let folder = std::fs::read_dir(case("")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.filter(|name| name.contains(".jsonl")).collect();
    assert!(names.len() > 15, "{names:?}");
    let home = Home::new();
    for name in names {
        let first = home.forebay(&["run", "--json", &case(&name)]);
        match first.code {
            Some(0 | 1) => {
                first.report();
                idle(&home, &[&case(&name)], first.code.unwrap());
            }
            // Nothing of it can be read: said at once, before anything is done.
            Some(2) => assert!(first.stdout.is_empty() && first.stderr.contains(&name), "{name}: {first}"),
            _ => panic!("{name}: {first}"),
        }
    }
    home.verified();
}

#[test]
fn b11_the_last_of_equal_ids_wins_whatever_the_window_and_the_batches() {
    let expected = [
        ("B11-A#0", "case differs"),
        ("b11-a#0", "second version"),
        ("b11-a #0", "trailing space differs"),
        ("b11-b#0", "other doc"),
        ("b11-c#0", "other doc"),
    ];
    for (window, chunks, batches) in [(1, 1, 1), (1, 512, 3), (2, 1, 3), (3, 2, 1), (20_000, 512, 3)] {
        let home = Home::new();
        let window = format!("queue.window_chunks={window}");
        let (chunks, batches) =
            (format!("pipeline.batch_chunks={chunks}"), format!("pipeline.batches_in_flight={batches}"));
        let input = case("b11_duplicates.jsonl");
        let arguments = [&*input, "--set", &window, "--set", &chunks, "--set", &batches];
        let report = home.run(&arguments, 0);
        assert_eq!(report.n("produced"), 7, "{arguments:?}");
        assert_eq!(report.n("chunks") + report.n("duplicates"), 7, "{arguments:?}");
        let texts = home.texts();
        let texts: Vec<_> = texts.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
        assert_eq!(texts, expected, "{arguments:?}");
        idle(&home, &arguments, 0);
        assert_eq!(home.texts().len(), 5);
    }
}

#[test]
fn many_duplicates_end_with_their_last_text_and_are_idle_again() {
    // 40 ids, each 25 times, in an order that a seed decides: the same text often comes back.
    let mut random = fastrand::Rng::with_seed(7);
    let (mut input, mut last) = (String::new(), std::collections::BTreeMap::new());
    for _ in 0..1_000 {
        let (id, text) = (format!("d{}", random.u32(..40)), format!("version {}", random.u32(..4)));
        input += &record(&id, &text);
        last.insert(format!("{id}#0"), text);
    }
    for sizes in [
        ["queue.window_chunks=5", "pipeline.batch_chunks=2"],
        ["queue.window_chunks=64", "pipeline.batch_chunks=7"],
    ] {
        let home = Home::new();
        let input = home.file("in.jsonl", &input);
        let arguments = [&*input, "--set", sizes[0], "--set", sizes[1]];
        home.run(&arguments, 0);
        assert_eq!(home.texts(), last.clone().into_iter().collect::<Vec<_>>(), "{sizes:?}");
        idle(&home, &arguments, 0);
        home.holds(last.len() as u64);
    }
}

#[test]
fn a_changed_text_overwrites_its_vector_and_nothing_else() {
    let home = Home::new();
    let text = corpus(50);
    let input = home.file("in.jsonl", &text);
    home.run(&[&input], 0);
    home.file("in.jsonl", text.replace("basin 7 ", "basin seven "));
    let report = home.run(&[&input], 0);
    assert_eq!(report.numbers(["chunks", "skipped", "embedded"]), [1, 49, 1]);
    assert!(home.texts().contains(&("doc-7#0".into(), "the water of basin seven drives turbine 0".into())));
    idle(&home, &[&input], 0);
    home.holds(50);
}

#[test]
fn a_shorter_document_loses_its_tail_in_sink_and_ledger() {
    let document = |words: usize| {
        let words: Vec<String> = (0..words).map(|i| format!("word{i}")).collect();
        record("long", &words.join(" ")) + &record("other", "stays as it is")
    };
    let home = Home::new();
    let settings = ["--set", "source.chunk_tokens=20", "--set", "source.overlap_tokens=0"];
    let input = home.file("in.jsonl", document(200));
    let arguments: Vec<&str> = [&[&*input][..], &settings].concat();
    home.run(&arguments, 0);
    let before = home.sink_rows();
    assert!(before >= 11, "{before}");
    home.file("in.jsonl", document(50));
    let report = home.run(&arguments, 0);
    assert!(report.n("embedded") <= 3, "only what changed: {}", report.0);
    let keys: Vec<String> = home.texts().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["long#0", "long#1", "long#2", "other#0"]);
    idle(&home, &arguments, 0);
    home.holds(4);
}

#[test]
fn a_document_larger_than_the_window_keeps_to_it_and_a_drain_does_not_wait_for_its_end() {
    let home = Home::new();
    let words: Vec<String> = (0..60_000).map(|i| format!("w{i}")).collect();
    let input = home.file("in.jsonl", record("long", &words.join(" ")));
    let settings = ["--set", "source.chunk_tokens=10", "--set", "source.overlap_tokens=0"];
    let small = ["--set", "queue.window_chunks=50", "--set", "pipeline.batch_chunks=5"];
    let mut run = home.start(&[&["run", "--json", &*input][..], &settings, &small].concat());
    run.has_written(&home, 100);
    let pending = home.status().unwrap()["queue"]["pending"].as_u64().unwrap();
    assert!(pending <= 50, "{pending}");
    run.signal(libc::SIGTERM);
    let report = run.wait().exits(130).report();
    assert!(report.n("chunks") < 5_000, "{}", report.0);
    let report = home.run(&[&[&*input][..], &settings].concat(), 0);
    assert_eq!(report.n("produced"), 6_000);
    home.holds(6_000);
}

#[test]
fn another_identity_makes_everything_pending_once() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(40));
    home.run(&[&input], 0);
    let other = ["--set", "model.max_length=100", "--reembed"];
    let arguments = [&[&*input][..], &other].concat();
    assert_eq!(home.run(&arguments, 0).n("embedded"), 40);
    idle(&home, &arguments, 0);
    home.holds(40);
}

#[test]
fn one_id_in_two_files_ends_where_it_ended_and_costs_nothing_again() {
    let home = Home::new();
    let a = home.file("a.jsonl", record("x", "from a"));
    let b = home.file("b.jsonl", record("x", "from b"));
    let now = || home.texts().into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    home.run(&[&a, &b], 0);
    assert_eq!(now(), ["from b"], "the last wins");
    idle(&home, &[&a, &b], 0);
    idle(&home, &[&b, &a], 0);
    assert_eq!(now(), ["from b"]);
    home.file("a.jsonl", record("x", "from a, changed"));
    assert_eq!(home.run(&[&a], 0).n("embedded"), 1);
    assert_eq!(now(), ["from a, changed"], "what changed last is the newest");
    home.file("a.jsonl", record("x", "from a"));
    assert_eq!(home.run(&[&a], 0).n("embedded"), 1);
    assert_eq!(now(), ["from a"], "also when it changed back");
    idle(&home, &[&a, &b], 0);
}

/// `text` as one gzip member.
fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_source_that_was_cut_or_vanished_is_told_until_it_was_read_whole() {
    let home = Home::new();
    let whole = gzip(&corpus(2_000));
    let input = home.file("in.jsonl.gz", &whole[..whole.len() / 2]);
    let cut = home.run(&[&input], 1);
    assert!(cut.n("chunks") < 2_000 && cut.0["incomplete"].to_string().contains("cut"), "{}", cut.0);
    assert!(home.run(&[], 1).0["incomplete"].to_string().contains("cut"), "also without a path");
    std::fs::remove_file(home.at("in.jsonl.gz")).unwrap();
    assert!(home.run(&[], 1).0["incomplete"].to_string().contains("gone"));
    home.file("in.jsonl.gz", &whole);
    home.run(&[], 0);
    home.holds(2_000);
    idle(&home, &[&input], 0);
}

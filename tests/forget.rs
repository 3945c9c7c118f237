//! `forget`: a document leaves every store, and every file.

mod common;

use std::path::Path;

use common::{Home, corpus, record};

const CANARY: &str = "zebrafinch";

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

/// A document of many chunks with the canary in each, and in its id.
fn secret() -> String {
    let text: String = (0..900).map(|n| format!("the {CANARY} of river {n} sings. ")).collect();
    record(&format!("{CANARY}-doc"), &text)
}

const DOC: &str = "zebrafinch-doc";

/// With rows before and after the document's, so that pages of the database are split and merged round it.
fn written() -> Home {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(200) + &secret() + &corpus(400));
    home.run(&[&*input, "--set", "source.chunk_tokens=40", "--set", "source.overlap_tokens=4"], 0);
    home
}

#[test]
fn a_document_is_gone_from_every_file() {
    let home = written();
    let before = home.sink_rows();
    assert!(
        holding(&home.data(""), CANARY).iter().any(|path| path.ends_with("vectors.db")),
        "the search sees"
    );
    let ran = home.forebay(&["forget", DOC, "--json"]).exits(0).says(&["the source still has it"]);
    let said = ran.json();
    let rows = said["sink_rows"].as_u64().unwrap();
    assert!(rows > 50, "{said}");
    assert_eq!(
        (&said["ledger_rows"], &said["documents"], &said["scrubbed"]),
        (&rows.into(), &1.into(), &true.into())
    );
    assert_eq!(holding(&home.data(""), CANARY), [""; 0]);
    home.holds(before - rows);
    // Unknown now, and told so; nothing of it is kept.
    home.forebay(&["forget", DOC]).exits(1).says(&["nothing is known of document", DOC]);
    assert_eq!(holding(&home.data(""), CANARY), [""; 0]);
    home.forebay(&["forget"]).exits(2).says(&["<DOC>"]);
    // The next reading brings it back, as it said.
    assert_eq!(
        home.run(&["in.jsonl", "--set", "source.chunk_tokens=40", "--set", "source.overlap_tokens=4"], 0)
            .n("chunks"),
        rows
    );
}

#[test]
fn pending_chunks_and_dead_letters_of_it_go_too() {
    let home = Home::new();
    let long = format!("{CANARY} ").repeat(60);
    let chunk = |id: &str, index: u64| {
        format!(
            "{}\n",
            serde_json::json!({ "id": id, "chunk_index": index, "text": format!("{long}{index}") })
        )
    };
    let input = home.file(
        "in.jsonl",
        corpus(3)
            + &chunk(DOC, 0)
            + &chunk(DOC, 1)
            + &chunk("other", 0)
            + &format!("{{\"id\":\"{DOC}\",\"text\":[\"{CANARY}\"]}}\n"),
    );
    let strict = ["--set", "model.truncation=bury", "--set", "model.max_length=50"];
    home.run(&[&[&*input][..], &strict].concat(), 1);
    let letters = home.letters();
    assert_eq!(letters.len(), 4);
    let first =
        letters.iter().find(|letter| letter["doc_id"] == DOC && letter["class"] == "too_long").unwrap()["id"]
            .as_str()
            .unwrap()
            .to_owned();
    home.forebay(&["dlq", "redrive", &first, "--set", "model.max_length=50"]).exits(0);
    // Lines of the spool are overwritten where they stand.
    std::fs::create_dir(home.data("spool")).unwrap();
    let spool = home.data("spool/stdin-1.jsonl");
    let (keep, gone) = (record("kept", "water"), record(DOC, CANARY));
    std::fs::write(&spool, format!("{keep}{gone}{keep}")).unwrap();

    let said = home.forebay(&["forget", DOC, "nobody", "--json"]).exits(1).says(&["nobody"]).json();
    let numbers = ["documents", "pending", "letters", "sink_rows", "ledger_rows", "spool_lines"];
    assert_eq!(numbers.map(|field| said[field].as_u64().unwrap()), [1, 1, 3, 0, 0, 1]);
    assert_eq!(said["unknown"], serde_json::json!(["nobody"]));
    assert_eq!(home.letters().len(), 1, "that of another document stays");
    assert_eq!(holding(&home.data(""), DOC), [""; 0]);
    let blank = " ".repeat(gone.len() - 1);
    assert_eq!(std::fs::read_to_string(&spool).unwrap(), format!("{keep}{blank}\n{keep}"));
    home.holds(3);
}

#[test]
fn what_is_in_flight_goes_when_it_comes_back() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(4_000));
    let mut run = home.start(&["run", &*input, "--set", "pipeline.batch_chunks=5"]);
    run.has_written(&home, 20);
    let lock = home.lock_sink();
    let pending: Vec<String> = (0..4_000).map(|i| format!("doc-{i}")).collect();
    drop(lock);
    let last: Vec<&str> = pending[..40].iter().map(String::as_str).collect();
    let ran = home.forebay(&[&["forget", "--json"][..], &last].concat());
    assert!(matches!(ran.code, Some(0 | 1)), "{ran}");
    let known = ran.json()["documents"].as_u64().unwrap();
    assert!(known >= 20, "{ran}");
    run.wait().exits(0);
    home.holds(4_000 - known);
}

/// Killed wherever it stands: whatever opens the stores next finishes it, and they agree.
#[test]
fn a_forgetting_killed_at_any_moment_is_finished_by_the_next_verb() {
    let home = written();
    let start = std::time::Instant::now();
    home.forebay(&["forget", DOC]).exits(0);
    let whole = start.elapsed();
    for round in 0..16 {
        let home = written();
        let all = home.sink_rows();
        let forget = home.start(&["forget", DOC]);
        std::thread::park_timeout(whole * round / 16);
        forget.kill();
        let found = home.verified();
        let left = found["ledger_rows"].as_u64().unwrap();
        assert!(
            left == all || !home.texts().iter().any(|(key, _)| key.starts_with(DOC)),
            "all of it or nothing"
        );
        home.forebay(&["forget", DOC]);
        assert_eq!(holding(&home.data(""), CANARY), [""; 0]);
        assert!(home.verified()["ok"] == true);
    }
}

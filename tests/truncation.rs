//! A06: a text over the limit is cut and marked, or buried with its length; either way it is counted.

mod common;

use common::{Home, record};
use rusqlite::Connection;

const LIMIT: [&str; 2] = ["--set", "model.max_length=20"];
const BURY: [&str; 4] = ["--set", "model.max_length=20", "--set", "model.truncation=bury"];

/// Two chunks of 30 words and one of 3.
fn input(home: &Home) -> String {
    let long = |name: &str| {
        let text = (0..30).map(|n| format!("{name}{n}")).collect::<Vec<_>>().join(" ");
        format!("{{\"id\":\"{name}\",\"chunk_index\":0,\"text\":\"{text}\"}}\n")
    };
    home.file("in.jsonl", long("a") + &long("b") + &record("short", "a few words"))
}

/// Id, tokens, truncated, and whether the text is the one that was read; by id.
fn rows(home: &Home) -> Vec<(String, i64, i64, bool)> {
    let sink = Connection::open(home.data("vectors.db")).unwrap();
    let sql = "SELECT doc_id, n_tokens, truncated, source_hash = content_hash FROM vectors ORDER BY doc_id";
    let mut rows = sink.prepare(sql).unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

const COUNTS: [&str; 5] = ["chunks", "dead", "truncated", "too_long", "tokens"];

#[test]
fn what_is_cut_is_counted_and_marked_in_its_row() {
    let home = Home::new();
    let report = home.run(&[&[&*input(&home)][..], &LIMIT].concat(), 0);
    assert_eq!(report.numbers(COUNTS), [3, 0, 2, 0, 43]);
    let row = |id: &str, tokens, truncated| (id.to_owned(), tokens, truncated, true);
    assert_eq!(rows(&home), [row("a", 20, 1), row("b", 20, 1), row("short", 3, 0)]);
    let status = home.forebay(&["status"]).exits(0).stdout;
    assert!(status.contains("of texts over the limit 2 truncated, 0 buried"), "{status}");
}

#[test]
fn what_is_buried_says_how_long_it_is_and_comes_back_cut() {
    let home = Home::new();
    let input = input(&home);
    let named = [&[&*input][..], &BURY].concat();
    assert_eq!(home.run(&named, 1).numbers(COUNTS), [1, 2, 0, 2, 3]);
    for letter in home.letters() {
        assert_eq!((&*letter["class"].to_string(), &letter["state"]), ("\"too_long\"", &"open".into()));
        let message = letter["message"].as_str().unwrap();
        assert!(
            message.starts_with("it has 30 tokens, and 20 are taken (model.max_length); set"),
            "{message}"
        );
    }
    let status = home.forebay(&["status"]).exits(0).stdout;
    assert!(status.contains("too_long: 2") && status.contains("0 truncated, 2 buried"), "{status}");
    // Again: nothing is tried, and nothing buried anew.
    assert_eq!(home.run(&named, 1).numbers(COUNTS), [0, 2, 0, 0, 0]);

    let mend = ["dlq", "redrive", "--class", "too_long", "--repair", "truncate", "--json"];
    let said = home.forebay(&[&mend[..], &BURY].concat()).exits(0).json();
    assert_eq!(said["repaired"], 2, "{said}");
    assert_eq!(home.run(&BURY, 0).numbers(COUNTS), [2, 0, 2, 0, 40]);
    // What is stored is what was embedded; that it is not what was read is told by its hashes, and it is marked as cut.
    let row = |id: &str, tokens, cut, whole| (id.to_owned(), tokens, cut, whole);
    assert_eq!(rows(&home), [row("a", 20, 1, false), row("b", 20, 1, false), row("short", 3, 0, true)]);
    assert!(home.letters().iter().all(|letter| letter["resolved_how"] == "repaired"));
    assert_eq!(home.run(&named, 0).n("embedded"), 0);
    home.verified();
}

//! Slips of the finger at the dead letters cost nothing, and what stands in the guide can be typed.

mod common;

use common::{Home, case, corpus, record};

/// A home with two letters: c02's blank text and its lone surrogate.
fn with_letters(more: &[&str]) -> Home {
    let home = Home::new();
    let input = case("c02_poison_in_batch.jsonl");
    home.run(&[&[&*input][..], more].concat(), 1);
    home
}

#[test]
fn an_export_replaces_an_earlier_export_and_nothing_else() {
    let home = with_letters(&[]);
    let settings = home.file("forebay.toml", "");
    let corpus = home.file("corpus.jsonl", corpus(3));
    let own = ["vectors.db", "ledger.db", "dead-letters.jsonl", "witness"];
    let own: Vec<String> = own.iter().map(|name| home.data(name).display().to_string()).collect();
    std::fs::write(home.at(&settings), "[dlq]\nretain_days = 30\n").unwrap();
    for path in own.iter().chain([&settings, &corpus]) {
        let before = std::fs::read(home.at(path)).unwrap();
        for form in [&["--sqlite", path][..], &[path]] {
            let ran = home.forebay(&[&["dlq", "export"][..], form].concat()).exits(2);
            ran.says(&["is no export of dead letters", "name another file"]);
        }
        assert!(std::fs::read(home.at(path)).unwrap() == before, "{path} was changed");
    }
    home.forebay(&["dlq", "export", "/dev/null"]).exits(2).says(&["name another file"]);
    for _ in 0..2 {
        home.forebay(&["dlq", "export", "letters.jsonl"]).exits(0);
        home.forebay(&["dlq", "export", "--sqlite", "letters.db"]).exits(0);
    }
    home.verified();
}

#[test]
fn a_command_that_does_not_read_its_input_is_no_end() {
    let home = with_letters(&[]);
    for _ in 0..15 {
        let ran = home.forebay(&["dlq", "redrive", "--all", "--json", "--repair-with", "exit 1"]).exits(0);
        let staying = ran.json()["staying"].as_array().unwrap().clone();
        assert!(staying.len() == 2 && staying.iter().all(|letter| letter["reason"] == "command_failed"));
    }
    let answer = r#"printf '{"drop": true, "reason": "known"}'"#;
    let ran = home.forebay(&["dlq", "redrive", "--all", "--json", "--repair-with", answer]).exits(0);
    assert_eq!(ran.json()["discarded"], 2);
}

#[test]
fn closed_letters_are_not_sent_back_and_those_of_elsewhere_are_no_mismatch() {
    let home = with_letters(&[]);
    home.forebay(&["dlq", "redrive", "--class", "json_lone_surrogate", "--repair"]).exits(0);
    home.forebay(&["dlq", "discard", "--class", "blank_text", "--reason", "on purpose"]).exits(0);
    home.run(&[], 0);
    for which in [&["--all", "--closed"][..], &["--state", "discarded"]] {
        home.forebay(&[&["dlq", "redrive"][..], which].concat()).exits(2).says(&["not sent back", "purge"]);
    }
    home.forebay(&["dlq", "export", "--closed", "letters.jsonl"]).exits(0);
    let there = Home::new();
    let input = there.file("in.jsonl", corpus(2));
    there.run(&[&input], 0);
    std::fs::copy(home.at("letters.jsonl"), there.at("letters.jsonl")).unwrap();
    there.forebay(&["dlq", "import", "letters.jsonl"]).exits(0);
    there.holds(2);
}

#[test]
fn a_reference_is_shown_and_mended_as_a_whole_letter_is() {
    let strict = ["--set", "model.truncation=bury", "--set", "model.max_length=8"];
    let by_reference = ["--set", "dlq.payload=reference"];
    let home = Home::new();
    let long = (0..30).map(|n| format!("word{n}")).collect::<Vec<_>>().join(" ");
    let chunk = record("d", &long).replace('}', ",\"chunk_index\":0}");
    let input = home.file("named.jsonl", chunk);
    home.run(&[&[&*input][..], &strict, &by_reference].concat(), 1);
    let id = home.letters()[0]["id"].as_str().unwrap().to_owned();
    let shown = home.forebay(&[&["dlq", "show", &id, "--json"][..], &strict].concat()).exits(0).json();
    assert_eq!(shown["payload"]["chunk"]["text"], long.as_str(), "{shown}");
    assert!(shown["origin"]["source"].as_str().unwrap().ends_with("named.jsonl"));
    let mend = "python3 -c 'import json,sys; t=json.load(sys.stdin)[\"payload\"][\"chunk\"][\"text\"]; \
                print(json.dumps({\"text\": t[:11]}))'";
    let redrive = ["dlq", "redrive", "--all", "--json", "--repair-with", mend];
    let said = home.forebay(&[&redrive[..], &strict].concat()).exits(0).json();
    assert_eq!(said["repaired"], 1, "{said}");
    home.run(&[&strict[..], &by_reference].concat(), 0);
    assert_eq!(home.texts(), [("d#0".to_owned(), long[..11].to_owned())]);
}

//! Text of documents appears only where `dlq show` or `search` asked for it, and secrets nowhere.

mod common;

use std::path::Path;

use common::{Home, Ran, record};

/// In no log, report or answer by chance.
const TEXT: &str = "zebrafinch";
const META: &str = "quokkameta";
const TOKEN: &str = "hf_canarytoken0123456789";

/// Documents with the canary: good ones, and one of each kind that cannot be embedded.
fn input() -> Vec<u8> {
    let mut input: Vec<u8> =
        (0..60).flat_map(|i| record(&format!("d{i}"), &format!("a {TEXT} sings {i}")).into_bytes()).collect();
    let long = format!("{TEXT} ").repeat(60);
    let bad = [
        format!("{{\"id\":\"with-meta\",\"text\":\"{TEXT}\",\"meta\":{{\"k\":\"{META}\"}}}}\n"),
        format!("{{\"id\":\"cut\",\"text\":\"{TEXT}\n"),
        format!("{{\"id\":\"half\",\"text\":\"{TEXT} \\ud800\"}}\n"),
        format!("{{\"id\":7.5,\"text\":\"{TEXT}\"}}\n"),
        format!("{{\"id\":\"no-text\",\"body\":\"{TEXT}\"}}\n"),
        format!("{{\"id\":\"list\",\"text\":[\"{TEXT}\"]}}\n"),
        format!("[\"{TEXT}\"]\n{TEXT}\n"),
        format!("{{\"id\":\"long\",\"chunk_index\":0,\"text\":\"{long}\"}}\n"),
    ];
    bad.iter().for_each(|line| input.extend(line.as_bytes()));
    input.extend(format!("{{\"id\":\"bytes\",\"text\":\"{TEXT} ").as_bytes());
    input.extend(b"\xff\xfe\"}\n");
    input
}

const STRICT: [&str; 4] = ["--set", "model.truncation=bury", "--set", "model.max_length=50"];

fn silent(ran: &Ran, what: &str) {
    for canary in [TEXT, META, TOKEN] {
        assert!(!ran.stdout.contains(canary) && !ran.stderr.contains(canary), "{canary} in {what}:\n{ran}");
    }
}

/// Runs with secrets in the environment, everything logged.
fn spy(home: &Home, arguments: &[&str]) -> Ran {
    let mut command = home.command(&[arguments, &["-vv"]].concat());
    command.env("HF_TOKEN", TOKEN).env("HUGGING_FACE_HUB_TOKEN", TOKEN).env("FOREBAY_LOG", "trace");
    common::Running::of(command).wait()
}

fn contains(path: &Path, canary: &str) -> bool {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.windows(canary.len()).any(|window| window == canary.as_bytes())
}

#[test]
fn nothing_that_a_run_says_or_reports_quotes_a_document_or_a_secret() {
    let home = Home::new();
    let input = home.file("in.jsonl", input());
    for _ in 0..2 {
        let ran = spy(&home, &[&["run", "--json", &*input][..], &STRICT].concat()).exits(1);
        assert!(ran.report().n("dead") >= 9, "{ran}");
        silent(&ran, "a run");
    }
    for arguments in [
        &["status", "--json"][..],
        &["status"],
        &["dlq", "list", "--json"],
        &["dlq", "list"],
        &["dlq", "stats"],
        &["dlq", "redrive", "--all", "--dry-run"],
        &["verify"],
        &["verify", "--json"],
        &["check"],
        &["check", "--json"],
        &["model", "list"],
        &["rebuild"],
        &["dlq", "discard", "--all", "--reason", "seen"],
        &["run"],
    ] {
        silent(&spy(&home, arguments), &arguments.join(" "));
    }
    for name in ["runs.jsonl", "ledger.db", "ledger.db-wal", "witness", "lock"] {
        assert!(![TEXT, META, TOKEN].iter().any(|canary| contains(&home.data(name), canary)), "{name}");
    }
    // It can be found where it must be, so the search above is not blind.
    assert!(contains(&home.data("vectors.db"), TEXT) && contains(&home.data("dead-letters.jsonl"), TEXT));
    assert!(!contains(&home.data("vectors.db"), TOKEN) && !contains(&home.data("dead-letters.jsonl"), TOKEN));
}

#[test]
fn text_appears_where_it_was_asked_for() {
    let home = Home::new();
    let input = home.file("in.jsonl", input());
    home.run(&[&[&*input][..], &STRICT].concat(), 1);
    let found = spy(&home, &[&["search", "sings", "--limit", "3"][..], &STRICT].concat()).exits(0);
    assert!(found.stdout.contains(TEXT) && !found.stderr.contains(TEXT), "{found}");
    let long = home.letters().into_iter().find(|letter| letter["class"] == "too_long").unwrap();
    let shown = spy(&home, &["dlq", "show", long["id"].as_str().unwrap()]).exits(0);
    assert!(shown.stdout.contains(TEXT) && !shown.stderr.contains(TEXT), "{shown}");
}

#[test]
fn the_control_socket_of_a_run_answers_without_text() {
    let home = Home::new();
    let many: String = (0..5_000).map(|i| record(&format!("d{i}"), &format!("a {TEXT} sings {i}"))).collect();
    let input = home.file("in.jsonl", many + &format!("{{\"id\":\"cut\",\"text\":\"{TEXT}\n"));
    let mut run = home.start(&["run", &*input, "--set", "pipeline.batch_chunks=5"]);
    run.has_written(&home, 50);
    let lock = home.lock_sink();
    for arguments in [&["status", "--json"][..], &["dlq", "list", "--json"], &["dlq", "stats", "--json"]] {
        silent(&spy(&home, arguments).exits(0), &arguments.join(" "));
    }
    drop(lock);
    silent(&run.wait(), "the run");
}

#[test]
fn what_holds_text_is_private_to_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    let input = home.file("in.jsonl", input());
    home.run(&[&[&*input][..], &STRICT].concat(), 1);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&home.data("")), 0o700, "the folder");
    for name in ["ledger.db", "vectors.db", "dead-letters.jsonl", "runs.jsonl", "witness"] {
        assert_eq!(mode(&home.data(name)), 0o600, "{name}");
    }
}

#[test]
fn a_bad_setting_is_named_without_its_value_when_it_may_be_a_secret() {
    let home = Home::new();
    home.file("forebay.toml", format!("[sink]\npassword = {TOKEN}\n"));
    let ran = home.forebay(&["check"]).exits(2).says(&["forebay.toml:2"]);
    silent(&ran, "a settings file that cannot be read");
    home.file("forebay.toml", format!("[sink]\npassword = \"{TOKEN}\"\n"));
    let ran = home.forebay(&["check"]).exits(2).says(&["sink.password", "forebay.toml:2"]);
    silent(&ran, "a setting that does not exist");
}

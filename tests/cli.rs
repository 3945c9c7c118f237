//! Wrong uses get a message that says what, where and what next, and the promised exit code; what machines read
//! has the promised fields.

mod common;

use std::os::unix::fs::PermissionsExt as _;

use common::{Home, Mount, Ran, case, corpus};
use serde_json::Value;

/// What is typed, the exit code, and words of the message.
type Wrong<'a> = (&'a [&'a str], i32, &'a [&'a str]);

fn refused(home: &Home, (arguments, code, words): Wrong<'_>) -> Ran {
    let ran = home.forebay(arguments).exits(code).says(words);
    assert!(ran.stdout.is_empty(), "{arguments:?}: results only on stdout\n{ran}");
    ran
}

#[test]
fn a_wrong_use_is_told_what_where_and_what_next() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(3));
    let input = input.as_str();
    home.file("bad.toml", "[retry]\nmax_atempts = 3\n");
    home.file("broken.toml", "[retry\n");
    home.file("empty.jsonl", "");
    std::fs::create_dir(home.at("folder")).unwrap();
    let utf16 = case("b04_utf16le.jsonl");
    let wrong: &[Wrong<'_>] = &[
        (&[], 2, &["Usage: forebay"]),
        (&["rum"], 2, &["rum", "run"]),
        (&["run", input, "--nope"], 2, &["--nope", "--help"]),
        (&["run", input, "--model", "all-MiniLM-L6-v2"], 2, &["all-MiniLM-L6-v2", "forebay model pull"]),
        (&["run", input, "--model", "bge-m4"], 2, &["bge-m4", "bge-m3"]),
        (&["run", "nowhere.jsonl"], 2, &["nowhere.jsonl", "No such file"]),
        (&["run", input, "nowhere.jsonl"], 2, &["nowhere.jsonl"]),
        (&["run", &utf16], 2, &["b04_utf16le.jsonl", "UTF-16"]),
        (&["run", input, "--config", "none.toml"], 2, &["none.toml"]),
        (&["run", input, "--config", "bad.toml"], 2, &["bad.toml:2", "retry.max_atempts", "max_attempts"]),
        (&["run", input, "--config", "broken.toml"], 2, &["broken.toml:1", "not valid TOML"]),
        (&["run", input, "--set", "retry"], 2, &["--set retry", "KEY=VALUE"]),
        (&["run", input, "--set", "retry.max_atempts=3"], 2, &["retry.max_atempts", "max_attempts", "--set"]),
        (&["run", input, "--set", "retry.max_attempts=three"], 2, &["retry.max_attempts", "--set"]),
        (&["run", input, "--set", "retry.max_attempts=0"], 2, &["retry.max_attempts", "--set"]),
        (&["run", input, "--set", "sink.kind=qdrant"], 2, &["sink.kind", "sqlite"]),
        (&["run", input, "--set", "sink.path=/nowhere/v.db"], 2, &["/nowhere", "sink.path"]),
        (&["run", input, "--set", "sink.path=folder"], 2, &["is a folder", "sink.path"]),
        (&["run", input, "--set", "sink.path=bad.toml"], 2, &["bad.toml", "not an SQLite database"]),
        (&["run", input, "--data-dir", "in.jsonl/data"], 2, &["in.jsonl/data"]),
        (&["run", input, "--set", "model.device=tpu"], 2, &["model.device"]),
        (&["search"], 2, &["<QUERY>"]),
        (&["model", "pull", "bge-m4"], 2, &["bge-m4", "bge-m3"]),
        (&["model", "verify", "all-MiniLM-L6-v2"], 2, &["not installed", "forebay model pull"]),
    ];
    for wrong in wrong {
        refused(&home, *wrong);
    }
    // What is wrong in several places is said at once.
    let both = ["run", input, "--set", "retry.base_ms=x", "--set", "limits.min_free_mb=-1"];
    refused(&home, (&both, 2, &["retry.base_ms", "limits.min_free_mb"]));
    // An environment variable is named as such.
    let mut command = home.command(&["run", input]);
    command.env("FOREBAY__RETRY__MAX_ATTEMPTS", "many");
    common::Running::of(command).wait().exits(2).says(&["FOREBAY__RETRY__MAX_ATTEMPTS"]);
    // An input without one record is told, and not called done.
    assert_eq!(home.run(&["empty.jsonl"], 1).outcome(), "partial");
}

#[test]
fn verbs_that_need_a_data_folder_make_none() {
    let home = Home::new();
    for typed in [&["search", "water"][..], &["status"], &["verify"], &["rebuild"], &["dlq", "list"]] {
        refused(&home, (typed, 2, &["there is no data folder at", "forebay run PATH", "--data-dir"]));
    }
    assert!(!home.data("").exists());
}

#[test]
fn dlq_verbs_must_be_told_which_letters() {
    let home = Home::new();
    home.run(&[&case("c02_poison_in_batch.jsonl")], 1);
    let id = "01930000-0000-7000-8000-000000000000";
    let wrong: &[Wrong<'_>] = &[
        (&["dlq"], 2, &["Usage: forebay dlq"]),
        (&["dlq", "redrive"], 2, &["which letters?", "--all"]),
        (&["dlq", "discard", "--reason", "x"], 2, &["which letters?", "--all"]),
        (&["dlq", "discard", "--all"], 2, &["--reason"]),
        (&["dlq", "list", "--class", "nope"], 2, &["unknown class", "json_syntax"]),
        (&["dlq", "list", "--stage", "nope"], 2, &["unknown stage", "embedder"]),
        (&["dlq", "list", "--older-than", "7w"], 2, &["7w", "12h"]),
        (&["dlq", "show", "nonsense"], 2, &["nonsense"]),
        (&["dlq", "show", id], 2, &[id, "forebay dlq list"]),
    ];
    for wrong in wrong {
        refused(&home, *wrong);
    }
    assert_eq!(
        home.letters().iter().filter(|letter| letter["state"] == "open").count(),
        2,
        "nothing was changed"
    );
}

#[test]
fn a_second_run_on_the_same_folder_names_the_first() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(5_000));
    let mut run = home.start(&["run", &*input, "--set", "pipeline.batch_chunks=5"]);
    run.has_written(&home, 20);
    let lock = home.lock_sink();
    let pid = run.pid().to_string();
    refused(&home, (&["run", &input], 2, &["in use by process", &pid, "forebay status"]));
    refused(&home, (&["verify"], 2, &["in use by process", &pid]));
    // The verbs that work beside a run do.
    assert_eq!(home.status().unwrap()["run"]["pid"], run.pid());
    home.forebay(&["dlq", "list"]).exits(0);
    home.forebay(&["search", "basin"]).exits(0);
    drop(lock);
    run.signal(libc::SIGTERM);
    run.wait().exits(130);
}

#[test]
fn another_identity_is_refused_with_both_names_and_the_way_out() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(5));
    home.run(&[&input], 0);
    let both = ["instant@1/dense-64/f32/8192", "instant@1/dense-64/f32/99", "--reembed"];
    refused(&home, (&["run", &input, "--set", "model.max_length=99"], 2, &both));
    // A search in another space finds nothing, and says why.
    let ran = home.forebay(&["search", "basin", "--set", "model.max_length=99"]).exits(0);
    assert!(ran.says(&["no vector of this identity"]).stdout.is_empty());
    home.holds(5);
}

#[test]
fn folders_and_files_that_may_not_be_written_are_named() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(5));
    std::fs::create_dir(home.at("locked")).unwrap();
    std::fs::set_permissions(home.at("locked"), std::fs::Permissions::from_mode(0o500)).unwrap();
    let mut mount = None;
    if std::fs::write(home.at("locked/probe"), "").is_ok() {
        // Root may write anywhere but on a read-only file system.
        mount = Mount::new(home.at("locked"), &["-t", "tmpfs", "-o", "ro", "none"]);
        if mount.is_none() {
            return;
        }
    }
    refused(&home, (&["run", &input, "--data-dir", "locked/data"], 2, &["locked/data", "permissions"]));
    refused(&home, (&["run", &input, "--set", "sink.path=locked/v.db"], 2, &["locked/v.db", "sink.path"]));
    drop(mount);
}

#[test]
fn every_verb_has_help_with_an_example() {
    let home = Home::new();
    let verbs = |path: &[&str]| -> Vec<String> {
        let help = home.forebay(&[path, &["--help"]].concat()).exits(0).stdout;
        let listed = help.split_once("Commands:\n").map_or("", |(_, rest)| rest);
        let names = listed.lines().take_while(|line| !line.is_empty());
        let names =
            names.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next().map(str::to_owned));
        names.filter(|name| name != "help").collect()
    };
    let mut leaves = 0;
    for verb in verbs(&[]) {
        let below = verbs(&[&verb]);
        let paths = if below.is_empty() {
            vec![vec![verb]]
        } else {
            below.into_iter().map(|v| vec![verb.clone(), v]).collect()
        };
        for path in paths {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let help = home.forebay(&[&path[..], &["--help"]].concat()).exits(0).stdout;
            let example = format!("  forebay {}", path.join(" "));
            assert!(help.contains("Example") && help.contains(&example), "no example of {path:?}:\n{help}");
            leaves += 1;
        }
    }
    assert!(leaves >= 15, "{leaves}");
    assert!(home.forebay(&["--help"]).exits(0).stdout.contains("Exit codes: 0 all written"));
    assert!(home.forebay(&["--version"]).exits(0).stdout.starts_with("forebay "));
}

fn fields(value: &Value) -> Vec<&str> {
    value.as_object().unwrap_or_else(|| panic!("not an object: {value}")).keys().map(String::as_str).collect()
}

/// Scripts of users rest on these names: a change is a breaking one.
#[test]
fn the_fields_of_json_are_a_contract() {
    let home = Home::new();
    let report = home.run(&[&case("c02_poison_in_batch.jsonl")], 1);
    let run = "run documents produced unreadable duplicates chunks skipped dead pending tokens truncated embedded \
               passes wall_s tokens_per_s idle_pct cost identity outcome halted incomplete";
    assert_eq!(fields(&report.0).join(" "), run);
    let stored = std::fs::read_to_string(home.data("runs.jsonl")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&stored).unwrap(), report.0, "what is stored is what was said");
    let status = home.status().unwrap();
    assert_eq!(
        fields(&status).join(" "),
        "store queue written dead_open dead_redriven dead_by_class dead_oldest_at unread_sources run last_runs"
    );
    assert_eq!(fields(&status["queue"]).join(" "), "pending in_flight delayed");
    assert_eq!(status["last_runs"][0], report.0);
    assert_eq!(
        fields(&home.verified()).join(" "),
        "ledger_rows sink_rows foreign_rows missing_in_sink missing_in_ledger differing unsettled sampled bad_vectors \
         other_identity resolved_without_vector problems ok"
    );
    let check = home.forebay(&["check", "--json"]).exits(0).json();
    assert_eq!(fields(&check).join(" "), "ok checks settings recovery_worst_s");
    let whats: Vec<&str> =
        check["checks"].as_array().unwrap().iter().map(|tick| tick["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["model", "self-test", "data folder", "sink"]);
    assert_eq!(fields(&check["checks"][0]).join(" "), "what ok says");
    assert_eq!(fields(&check["settings"][0]).join(" "), "key value origin");
    let letters = home.letters();
    assert_eq!(
        fields(&letters[0]).join(" "),
        "form id subject doc_id chunk_id identity state stage class native_code message attempts redrives \
         first_failed_at last_failed_at quarantined_at resolved_at resolved_how origin"
    );
    assert_eq!(fields(&letters[0]["origin"]).join(" "), "source_id source line offset");
    let stats = home.forebay(&["dlq", "stats", "--json"]).exits(0).json();
    assert_eq!(fields(&stats[0]).join(" "), "class open attempts_worst oldest_at");
    let hits = home.forebay(&["search", "healthy row 3", "--json", "--limit", "2"]).exits(0);
    let hits: Vec<Value> = hits.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(hits.len(), 2);
    assert_eq!(fields(&hits[0]).join(" "), "doc_id chunk_index score text meta");
    let said = home.forebay(&["dlq", "redrive", "--all", "--dry-run", "--json"]).exits(0).json();
    assert_eq!(fields(&said).join(" "), "dry_run redriven superseded staying");
    let said = home.forebay(&["rebuild", "--json"]).exits(0).json();
    assert_eq!(fields(&said).join(" "), "ledger_rows forgotten sources");
}

#[test]
fn a_status_beside_a_run_has_its_numbers() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(5_000));
    let mut run = home.start(&["run", &*input, "--set", "pipeline.batch_chunks=5"]);
    run.has_written(&home, 20);
    let lock = home.lock_sink();
    let status = home.status().unwrap();
    assert_eq!(
        fields(&status["run"]).join(" "),
        "run pid identity wall_s produced chunks skipped dead tokens tokens_per_s sink_gate device_gate draining"
    );
    drop(lock);
    drop(run);
}

#[test]
fn results_for_people_are_one_line_on_stdout() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(5));
    let ran = home.forebay(&["run", &input]).exits(0);
    assert_eq!(ran.stdout.lines().count(), 1, "{ran}");
    for word in
        ["run=", " chunks=5 ", " skipped=0 ", " dlq=0 (0.00%) ", " identity=instant@1/dense-64/f32/8192"]
    {
        assert!(ran.stdout.contains(word), "{word}: {ran}");
    }
    assert!(home.forebay(&["verify"]).exits(0).stdout.starts_with("sound: 5 rows"));
    assert!(home.forebay(&["status"]).exits(0).stdout.contains("written   5"));
    let check = home.forebay(&["check"]).exits(0).stdout;
    assert!(check.contains("ok    sink") && check.contains("retry.max_attempts = 3"), "{check}");
}

//! What is typed and what is said: every verb has help with an example, and what machines read has the promised fields.

mod common;

use common::{Home, case, corpus};
use serde_json::Value;

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
    assert!(leaves >= 19, "{leaves}");
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
    let run = "run documents produced unreadable duplicates chunks skipped dead pending tokens truncated too_long \
               embedded passes wall_s tokens_per_s idle_pct cost self_test identity outcome halted incomplete";
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
    assert_eq!(
        fields(&check).join(" "),
        "ok checks settings recovery_worst_s resume_worst_s give_up_after_s"
    );
    let whats: Vec<&str> =
        check["checks"].as_array().unwrap().iter().map(|tick| tick["what"].as_str().unwrap()).collect();
    assert_eq!(
        whats.join(", "),
        "settings, threads, models, model, self-test, data folder, disk, sources, dead letters, sink"
    );
    assert_eq!(fields(&check["checks"][0]).join(" "), "what ok needed says");
    assert_eq!(fields(&check["settings"][0]).join(" "), "key value origin");
    let enqueued = home.forebay(&["enqueue", "--json", &case("c02_poison_in_batch.jsonl")]).exits(1).json();
    let names = "sources by_run documents produced unreadable enqueued pending skipped dead duplicates window_full \
                 incomplete halted interrupted";
    assert_eq!(fields(&enqueued).join(" "), names);
    let found = home.forebay(&["status", "--json", "--doc", "c02-7"]).exits(0).json();
    assert_eq!(fields(&found).join(" "), "doc_id known identity chunks records");
    assert_eq!(fields(&found["chunks"][0]).join(" "), "chunk_index written pending dead");
    assert_eq!(fields(&found["chunks"][0]["written"]).join(" "), "at run identity current source");
    let vector = home.forebay(&["embed", "--json", "some words"]).exits(0).json();
    assert_eq!(fields(&vector).join(" "), "index tokens truncated identity dense");
    let letters = home.letters();
    assert_eq!(
        fields(&letters[0]).join(" "),
        "form id subject doc_id chunk_id identity state stage class native_code message attempts redrives \
         first_failed_at last_failed_at quarantined_at resolved_at resolved_how origin"
    );
    assert_eq!(fields(&letters[0]["origin"]).join(" "), "source_id source line offset");
    let stats = home.forebay(&["dlq", "stats", "--json"]).exits(0).json();
    assert_eq!(fields(&stats[0]).join(" "), "class open quarantined attempts_worst oldest_at");
    let hits = home.forebay(&["search", "healthy row 3", "--json", "--limit", "2"]).exits(0);
    let hits: Vec<Value> = hits.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(hits.len(), 2);
    assert_eq!(fields(&hits[0]).join(" "), "doc_id chunk_index score text meta");
    let said = home.forebay(&["dlq", "redrive", "--all", "--dry-run", "--json"]).exits(0).json();
    assert_eq!(
        fields(&said).join(" "),
        "dry_run redriven repaired approved superseded reconciled staying letters"
    );
    assert_eq!(fields(&said["staying"][0]).join(" "), "id class reason why");
    assert_eq!(fields(&said["letters"][0]).join(" "), "id class state doc_id would reason why");
    let said = home.forebay(&["rebuild", "--json"]).exits(0).json();
    assert_eq!(fields(&said).join(" "), "ledger_rows forgotten sources");
}

#[test]
fn the_fields_of_the_verbs_for_letters_are_a_contract() {
    let home = Home::new();
    home.run(&[&case("c02_poison_in_batch.jsonl")], 1);
    let letters = home.letters();
    let lines = home.forebay(&["dlq", "export"]).exits(0).stdout;
    let letter: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    let whole = format!("{} payload audit", fields(&letters[0]).join(" "));
    assert_eq!(fields(&letter).join(" "), whole);
    home.file("letters.jsonl", lines);
    let said = home.forebay(&["dlq", "import", "letters.jsonl", "--json"]).exits(0).json();
    assert_eq!(fields(&said).join(" "), "added updated unchanged standing refused");
    let said = home.forebay(&["dlq", "export", "other.jsonl", "--json"]).exits(0).json();
    assert_eq!(fields(&said).join(" "), "exported");
    let said = home.forebay(&["dlq", "discard", "--all", "--reason", "x", "--json"]).exits(0).json();
    assert_eq!(fields(&said).join(" "), "discarded");
    let said = home.forebay(&["dlq", "purge", "--discarded", "--json"]).exits(0).json();
    assert_eq!(fields(&said).join(" "), "purged");
    let said = home.forebay(&["forget", "nobody", "--json"]).exits(1).json();
    let forgotten = "documents unknown pending letters sink_rows ledger_rows spool_lines scrubbed";
    assert_eq!(fields(&said).join(" "), forgotten);
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
        "run pid identity wall_s produced chunks skipped dead tokens truncated too_long pass_tokens tokens_per_s sink_gate device_gate disk_full_since sink_breaker device_breaker draining"
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

//! What the smaller verbs do: enqueue, a limited run, one document's whereabouts, settings, vectors, completions.

mod common;

use common::{Home, corpus, poll, record};
use serde_json::Value;

fn numbers<const N: usize>(value: &Value, names: [&str; N]) -> [u64; N] {
    names.map(|name| value[name].as_u64().unwrap_or_else(|| panic!("no {name} in {value}")))
}

fn adds_up(value: &Value) {
    let [pending, skipped, dead, duplicates, produced, unreadable] =
        numbers(value, ["pending", "skipped", "dead", "duplicates", "produced", "unreadable"]);
    assert_eq!(pending + skipped + dead + duplicates, produced + unreadable, "{value}");
}

fn enqueue(home: &Home, arguments: &[&str], code: i32) -> Value {
    let said = home.forebay(&[&["enqueue", "--json"][..], arguments].concat()).exits(code).json();
    adds_up(&said);
    said
}

#[test]
fn what_is_enqueued_is_embedded_by_the_next_run() {
    let home = Home::new();
    let text = corpus(30) + "not json\n" + &record("doc-3", "a later one of three");
    let input = home.file("in.jsonl", text);
    let said = enqueue(&home, &[&input], 1);
    let names = ["documents", "enqueued", "pending", "unreadable", "dead", "duplicates"];
    assert_eq!(numbers(&said, names), [31, 31, 30, 1, 1, 1], "{said}");
    assert_eq!((&said["window_full"], &said["by_run"]), (&false.into(), &Value::Null));
    assert_eq!(home.ledger_rows(), 0, "nothing is embedded");
    // Again: nothing more is pending.
    let again = enqueue(&home, &[&input], 1);
    assert_eq!(numbers(&again, ["pending", "dead"]), [30, 1], "{again}");
    let report = home.run(&[], 0);
    assert_eq!(report.numbers(["chunks", "documents", "embedded"]), [30, 0, 30], "{}", report.0);
    assert_eq!(numbers(&enqueue(&home, &[&input], 1), ["skipped", "pending"]), [30, 0]);
    home.holds(30);
}

#[test]
fn a_full_window_ends_enqueue_and_the_next_run_reads_on() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(100));
    let said = enqueue(&home, &[&input, "--set", "queue.window_chunks=10"], 0);
    assert_eq!((numbers(&said, ["pending"]), &said["window_full"]), ([10], &true.into()));
    assert_eq!(home.status().unwrap()["unread_sources"].as_array().unwrap().len(), 1);
    let report = home.run(&["--set", "queue.window_chunks=10"], 0);
    assert_eq!(report.numbers(["chunks", "documents", "duplicates"]), [100, 100, 0], "{}", report.0);
    home.holds(100);
}

#[test]
fn a_run_takes_up_what_is_enqueued_beside_it() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(3_000));
    let more = home.file("more.jsonl", record("more", "one more"));
    let mut run = home.start(&["run", "--json", &*input, "--set", "pipeline.batch_chunks=5"]);
    run.has_written(&home, 20);
    let lock = home.lock_sink();
    let said = home.forebay(&["enqueue", "--json", &more]).exits(0).json();
    let id = home.status().unwrap()["run"]["run"].clone();
    assert_eq!((&said["by_run"], &said["produced"]), (&id, &Value::Null), "{said}");
    let piped = home.fed(&["enqueue", "-"], record("piped", "words by a pipe")).wait().exits(0);
    assert!(piped.stdout.contains("reads them after its own"), "{piped}");
    home.forebay(&["enqueue", "nowhere.jsonl"]).exits(2).says(&["nowhere.jsonl"]);
    home.fed(&["enqueue", "-"], b"\xff\xfea\0").wait().exits(2).says(&["UTF-16"]);
    drop(lock);
    let report = run.wait().exits(0);
    let report = report.report();
    assert_eq!(report.numbers(["chunks", "dead"]), [3_002, 0], "{}", report.0);
    for doc in ["more", "piped"] {
        home.forebay(&["status", "--doc", doc]).exits(0);
    }
    home.holds(3_002);
    assert_eq!(std::fs::read_dir(home.data("spool")).unwrap().count(), 0, "refused, or done");
}

#[test]
fn enqueueing_while_a_run_ends_loses_nothing() {
    let home = Home::new();
    for round in 0..8 {
        // A file of its own each time: one that the next run is to read must not change before.
        let first = home.file("first.jsonl", record(&format!("first-{round}"), "some words"));
        let second =
            home.file(&format!("second-{round}.jsonl"), record(&format!("second-{round}"), "other words"));
        let mut run = home.start(&["run", &first]);
        // Beside it, at its end, or after it.
        poll("the run has begun", || (home.data("control.sock").exists() || run.ended()).then_some(()));
        home.forebay(&["enqueue", &second]).exits(0);
        run.wait().exits(0);
    }
    home.run(&[], 0);
    home.holds(16);
}

#[test]
fn a_limited_run_writes_so_many_and_the_next_ones_the_rest() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(100));
    let small = ["--set", "queue.window_chunks=40", "--set", "pipeline.batch_chunks=7"];
    let limited = |arguments: &[&str], code| home.run(&[arguments, &small].concat(), code);
    for written in [33, 66] {
        let report = limited(&[&input, "--limit", "33"], 0);
        assert_eq!((report.n("chunks"), report.outcome()), (33, "limited"), "{}", report.0);
        assert!(report.n("pending") > 0, "{}", report.0);
        assert_eq!(home.ledger_rows(), written);
    }
    // A limit that is met exactly by all there is has ended nothing early.
    let report = limited(&["--limit", "34"], 0);
    assert_eq!(
        (report.n("chunks"), report.n("pending"), report.outcome()),
        (34, 0, "complete"),
        "{}",
        report.0
    );
    assert_eq!(limited(&[&input, "--limit", "1"], 0).outcome(), "complete", "all is written");
    home.holds(100);
    let said = home.file("dead.jsonl", record("blank", " ") + &corpus(3).replace("doc-", "other-"));
    assert_eq!(limited(&[&said, "--limit", "1"], 1).outcome(), "limited", "a death is told by the exit code");
}

#[test]
fn a_documents_chunks_are_found_wherever_they_are() {
    let home = Home::new();
    let chunk = |index: u64, text: &str| {
        serde_json::json!({ "id": "d", "chunk_index": index, "text": text }).to_string() + "\n"
    };
    let input = home.file("in.jsonl", chunk(0, "written words") + &chunk(1, "some words that are too long"));
    home.run(&[&input, "--set", "model.truncation=bury", "--set", "model.max_length=3"], 1);
    let more = home.file("more.jsonl", chunk(2, "pending"));
    home.forebay(&["enqueue", &more, "--set", "model.max_length=3"]).exits(0);
    let look = |arguments: &[&str]| {
        home.forebay(&[&["status", "--json", "--doc", "d"][..], arguments].concat()).exits(0).json()
    };
    let found = look(&["--set", "model.max_length=3"]);
    let chunks = &found["chunks"];
    assert_eq!(chunks[0]["written"]["current"], true, "{found}");
    assert_eq!(
        (&chunks[1]["dead"][0]["class"], &chunks[1]["dead"][0]["state"]),
        (&"too_long".into(), &"open".into())
    );
    assert_eq!(
        (&chunks[2]["pending"][0]["place"], &chunks[2]["pending"][0]["attempts"]),
        (&"ready".into(), &0.into())
    );
    assert_eq!(look(&[])["chunks"][0]["written"]["current"], false, "the settings ask for another identity");
    let shown = home.forebay(&["status", "--doc", "d"]).exits(0).stdout;
    assert!(shown.contains("d#0\n  written") && shown.contains("class too_long"), "{shown}");
    let ran = home
        .forebay(&["status", "--json", "--doc", "nobody"])
        .exits(1)
        .says(&["nothing is known of \"nobody\""]);
    assert_eq!(ran.json()["known"], false);
}

#[test]
fn a_document_in_flight_is_found_beside_a_run() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(1_000));
    let mut run = home.start(&["run", &*input, "--set", "pipeline.batch_chunks=5"]);
    run.has_written(&home, 20);
    let lock = home.lock_sink();
    let taken_up = |status: &Value| {
        status["written"].as_u64().unwrap() + status["queue"]["pending"].as_u64().unwrap() >= 1_000
    };
    poll("all is taken up", || home.status().filter(taken_up));
    let states: Vec<String> = (0..1_000)
        .step_by(333)
        .map(|i| home.forebay(&["status", "--json", "--doc", &format!("doc-{i}")]).exits(0).stdout)
        .collect();
    assert!(states.iter().all(|state| state.contains("\"at\"") || state.contains("\"place\"")), "{states:?}");
    drop(lock);
    run.wait().exits(0);
}

#[test]
fn init_writes_a_file_that_changes_only_what_was_asked_for() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    let typed = ["init", "--model", "bge-m3", "--data-dir", "here", "--set", "source.id_fields=a,b"];
    home.forebay(&typed).exits(0);
    let path = home.at("forebay.toml");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("\nname = \"bge-m3\"\n") && text.contains("\n#max_attempts = 3\n"), "{text}");
    let mut command = home.command(&["check", "--json"]);
    command.env_remove("FOREBAY__MODEL__NAME").env_remove("FOREBAY__DATA__DIR");
    // The model is not installed, and this is all that fails.
    let check = common::Running::of(command).wait().exits(2).json();
    let settings = check["settings"].as_array().unwrap();
    let live: Vec<_> =
        settings.iter().filter(|s| s["origin"] != "default").map(|s| s["key"].as_str().unwrap()).collect();
    assert_eq!(live, ["data.dir", "model.name", "source.id_fields"]);
    let failed: Vec<_> =
        check["checks"].as_array().unwrap().iter().filter(|tick| tick["ok"] == false).collect();
    assert_eq!(failed.len(), 1, "{check}");
    assert!(failed[0]["says"].as_str().unwrap().contains("forebay model pull bge-m3"));
    let ran = home.forebay(&["init"]).exits(2);
    ran.says(&["forebay.toml is there already", "forebay init --config FILE"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "it was left as it is");
    home.forebay(&["init", "--config", "other.toml"]).exits(0);
    assert_eq!(home.run(&[&home.file("in.jsonl", corpus(2)), "--config", "other.toml"], 0).n("chunks"), 2);
}

#[test]
fn embed_gives_a_vector_a_text_and_needs_no_folder() {
    let home = Home::new();
    let lines = |ran: &common::Ran| -> Vec<Value> {
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let two = lines(&home.forebay(&["embed", "one text", "another one, longer"]).exits(0));
    assert_eq!(two.iter().map(|v| v["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(two[0]["dense"].as_array().unwrap().len(), 64);
    let many: String = (0..200).map(|i| format!("{}\n", "word ".repeat(1 + i % 9))).collect();
    let piped = lines(&home.fed(&["embed", "-"], many + "one text").wait().exits(0));
    assert_eq!(piped.len(), 201);
    assert!(piped.iter().enumerate().all(|(i, v)| v["index"] == i as u64));
    assert_eq!(piped[200]["dense"], two[0]["dense"]);
    assert!(!home.data("").exists());
}

#[test]
fn embed_ends_quietly_with_its_reader() {
    let home = Home::new();
    let many = "some words\n".repeat(20_000);
    home.file("many.txt", many);
    let program = env!("CARGO_BIN_EXE_forebay");
    let script = format!("set -o pipefail; {program} embed --model instant - < many.txt | head -1");
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", &script]).current_dir(home.at("")).env_clear();
    shell.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    shell
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let ran = common::Running::of(shell).wait();
    assert_eq!(ran.stdout.lines().count(), 1, "{ran}");
    assert!(!ran.stderr.contains("error"), "{ran}");
}

#[test]
fn shells_get_their_completions() {
    let home = Home::new();
    for (shell, word) in [("bash", "complete"), ("zsh", "#compdef forebay"), ("fish", "complete -c forebay")]
    {
        let script = home.forebay(&["completions", shell]).exits(0).stdout;
        assert!(script.contains(word) && script.contains("enqueue"), "{shell}");
    }
    home.forebay(&["completions", "tcl"]).exits(2).says(&["tcl", "bash"]);
}

#[test]
fn check_works_beside_a_run_and_says_what_to_type() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(3_000));
    let mut run = home.start(&["run", &*input, "--set", "pipeline.batch_chunks=5"]);
    run.has_written(&home, 20);
    let check = home.forebay(&["check"]).exits(0).stdout;
    assert!(check.contains(&format!("held by the run of process {}", run.pid())), "{check}");
    assert!(check.contains("note  sources: 1 were not read to their ends; `forebay run`"), "{check}");
    run.signal(libc::SIGTERM);
    run.wait().exits(130);
    let check = home.forebay(&["check"]).exits(0).stdout;
    assert!(check.contains("free; ") && check.contains("ok    self-test: "), "{check}");
    let ran = home.forebay(&["check", "--set", "limits.min_free_mb=1073741824"]).exits(2);
    assert!(ran.stdout.contains("FAIL  disk: ") && ran.stdout.contains("free some space"), "{ran}");
}

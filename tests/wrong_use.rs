//! Wrong uses get a message that says what happened, where, and what to type next, and the promised exit code.

mod common;

use std::os::unix::fs::PermissionsExt as _;

use common::{Home, Mount, Ran, case, corpus, may_mount};

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
        (&["run", input, "--limit", "0"], 2, &["--limit", "1.."]),
        (&["run", input, "--limit", "many"], 2, &["--limit", "many"]),
        (&["run", input, "--set", "model.outputs=sparse"], 2, &["model.outputs", "dense"]),
        (&["run", input, "--set", "retry.cap_ms=1"], 2, &["retry.cap_ms", "retry.base_ms"]),
        (&["run", input, "--set", "source.text_field=id"], 2, &["source.text_field", "no other field"]),
        (&["run", input, "--data-dir", "bad.toml"], 2, &["bad.toml", "check the path"]),
        (&["enqueue"], 2, &["<PATHS>", "--help"]),
        (&["enqueue", "nowhere.jsonl"], 2, &["nowhere.jsonl", "No such file"]),
        (&["enqueue", &utf16], 2, &["UTF-16", "iconv"]),
        (&["enqueue", "-"], 2, &["standard input is empty", "name a file instead of -"]),
        (&["run", "-"], 2, &["standard input is empty"]),
        (&["enqueue", input, "--model", "all-MiniLM-L6-v2"], 2, &["not installed", "forebay model pull"]),
        (&["embed"], 2, &["<TEXTS>"]),
        (&["embed", "words", " "], 2, &["text 1", "blank"]),
        (&["embed", "words", "--model", "all-MiniLM-L6-v2"], 2, &["not installed", "forebay model pull"]),
        (
            &["embed", "a b c d", "--set", "model.truncation=bury", "--set", "model.max_length=2"],
            2,
            &["text 0", "model.truncation"],
        ),
        (&["init", "--config", "bad.toml"], 2, &["bad.toml is there already", "forebay init --config FILE"]),
        (&["init", "--config", "folder/none/f.toml"], 2, &["folder/none/f.toml", "check the folder"]),
        (&["init", "--model", "bge-m4"], 2, &["bge-m4", "bge-m3"]),
        (&["init", "--set", "retry.max_atempts=3"], 2, &["retry.max_atempts", "max_attempts"]),
        (&["completions"], 2, &["<SHELL>"]),
        (&["completions", "tcl"], 2, &["tcl", "bash"]),
        (&["status", "--doc"], 2, &["--doc <ID>"]),
        (&["check", "--config", "none.toml"], 2, &["none.toml", "--config"]),
        (&["search", " "], 2, &["the query is empty", "some words"]),
        (&["search"], 2, &["<QUERY>"]),
        (&["model", "pull", "bge-m4"], 2, &["bge-m4", "bge-m3"]),
        (&["model", "verify", "all-MiniLM-L6-v2"], 2, &["not installed", "forebay model pull"]),
    ];
    for wrong in wrong {
        refused(&home, *wrong);
    }
    let mut uses: Vec<_> = wrong.iter().map(|wrong| wrong.0.to_vec()).collect();
    uses.sort();
    uses.dedup();
    assert!(uses.len() >= 48, "{}", uses.len());
}

#[test]
fn all_that_is_wrong_is_told_at_once_and_by_its_name() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(3));
    let input = input.as_str();
    home.file("empty.jsonl", "");
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
    assert!(ran.says(&["no vector of this identity", "last written with instant@1/"]).stdout.is_empty());
    home.holds(5);
}

#[test]
fn outputs_that_are_not_there_are_named_with_what_to_type() {
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(5));
    home.run(&[&input], 0);
    let multi = ["run", &input, "--set", "model.outputs=dense,multi"];
    let wrong: &[Wrong<'_>] = &[
        (&multi, 2, &["instant has no multi output", "\"dense\""]),
        (&["search", "x", "--mode", "words"], 2, &["words", "dense, sparse, multi, hybrid"]),
        (&["search", "x", "--mode", "hybrid", "--weights", "1,2"], 2, &["three numbers", "0.4,0.2,0.4"]),
        (&["search", "x", "--weights", "1,2,3"], 2, &["--weights", "--mode hybrid"]),
    ];
    wrong.iter().for_each(|wrong| drop(refused(&home, *wrong)));
    for (mode, missing) in [("sparse", "sparse"), ("multi", "multi"), ("hybrid", "sparse and multi")] {
        let what = format!("the store has no {missing} output (instant@1/dense-64/f32/8192)");
        refused(
            &home,
            (&["search", "basin", "--mode", mode], 2, &[&what, "--reembed --set model.outputs=dense,"]),
        );
    }
    // A weight of 0 asks for nothing.
    let ran = home.forebay(&["search", "basin", "--mode", "hybrid", "--weights", "1,0,0", "--json"]).exits(0);
    assert_eq!(ran.stdout, home.forebay(&["search", "basin", "--mode", "dense", "--json"]).exits(0).stdout);
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
fn a_document_nobody_knows_is_no_error_of_the_stores() {
    let home = Home::new();
    home.run(&[&home.file("in.jsonl", corpus(2))], 0);
    home.forebay(&["status", "--doc", "doc-9"]).exits(1).says(&["doc-9", "forebay status"]);
    home.forebay(&["search", " "]).exits(2).says(&["the query is empty"]);
}

#[test]
fn a_disk_without_room_is_told_before_anything_is_done() {
    if !may_mount() {
        return;
    }
    let folder =
        std::env::temp_dir().join(format!("forebay-room-{}-{}", std::process::id(), fastrand::u32(..)));
    let Some(mount) = Mount::new(folder, &["-t", "tmpfs", "-o", "size=16m", "none"]) else { return };
    let home = Home::with_data(mount.at.join("data"));
    let input = home.file("in.jsonl", corpus(5));
    let ran = home.forebay(&["enqueue", &input]).exits(3);
    ran.says(&["limits.min_free_mb = 64", "free some space", "forebay run"]);
    let check = home.forebay(&["check"]).exits(2).stdout;
    assert!(check.contains("FAIL  disk: ") && check.contains("limits.min_free_mb = 64"), "{check}");
}

#[test]
fn a_damaged_model_is_named_with_its_file_and_the_way_out() {
    let Some(models) = std::env::var_os("FOREBAY_TEST_MODELS") else {
        println!("skipped: FOREBAY_TEST_MODELS is not set");
        return;
    };
    let home = Home::new();
    let from = std::path::Path::new(&models).join("all-minilm-l6-v2");
    let from = format!("folder:{}", from.display());
    let model = "all-MiniLM-L6-v2";
    let dir = ["--set", "model.dir=models"];
    home.forebay(&[&["model", "pull", model, "--from", &from][..], &dir].concat()).exits(0);
    let mut folders =
        std::fs::read_dir(home.at("models").join(model.to_lowercase())).unwrap().map(Result::unwrap);
    let folder = folders.find(|entry| entry.path().is_dir()).unwrap();
    let (input, run) = (home.file("in.jsonl", corpus(2)), ["--model", model]);
    let damaged = |file: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let path = folder.path().join(file);
        let whole = std::fs::read(&path).unwrap();
        let mut changed = whole.clone();
        change(&mut changed);
        std::fs::write(&path, changed).unwrap();
        for verb in [&["run", &input][..], &["embed", "words"]] {
            let ran = home.forebay(&[verb, &run, &dir].concat()).exits(2);
            ran.says(&["is damaged", file, "forebay model pull all-MiniLM-L6-v2 --force"]);
        }
        let check = home.forebay(&[&["check"][..], &run, &dir].concat()).exits(2).stdout;
        assert!(check.contains("FAIL  model: ") && check.contains("--force"), "{check}");
        std::fs::write(&path, whole).unwrap();
    };
    damaged("model.safetensors", &|bytes| bytes.truncate(bytes.len() - 1));
    damaged("tokenizer.json", &|bytes| bytes[100] ^= 1);
    assert_eq!(home.run(&[&[&*input][..], &run, &dir].concat(), 0).n("chunks"), 2, "whole again, it works");
}

/// As when a log grows on a disk that is full: what cannot be said is not said, and the work goes on.
#[test]
fn a_full_disk_under_the_output_costs_the_output_and_no_panic() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
        println!("skipped: there is no /dev/full here");
        return;
    };
    let full = || std::process::Stdio::from(full.try_clone().unwrap());
    let home = Home::new();
    let input = home.file("in.jsonl", corpus(50) + "no json\n");
    let mut run = home.command(&["run", &input, "-vv"]);
    run.stdout(full()).stderr(full());
    assert_eq!(run.status().unwrap().code(), Some(1), "a run that has written ends as it would");
    for arguments in
        [&["status"][..], &["dlq", "list"], &["dlq", "list", "--json"], &["search", "x"], &["check"]]
    {
        let mut command = home.command(arguments);
        command.stdout(full());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("standard output: ") && !said.contains("panic"), "{arguments:?}: {said}");
    }
    home.holds(50);
}

//! A03, A08: a model that does not compute what it should embeds nothing, and `check --deep` says what is at fault.

mod common;

use std::path::{Path, PathBuf};

use common::{Home, corpus};
use serde_json::Value;

const NAME: &str = "all-MiniLM-L6-v2";
const DIR: [&str; 4] = ["--model", NAME, "--set", "model.dir=models"];

/// A home with the small real model in it, and its folder.
fn with_model() -> Option<(Home, PathBuf)> {
    let Some(models) = std::env::var_os("FOREBAY_TEST_MODELS") else {
        println!("skipped: FOREBAY_TEST_MODELS names no folder of models");
        return None;
    };
    let (home, from) = (Home::new(), Path::new(&models).join("all-minilm-l6-v2"));
    let pull = ["model", "pull", NAME, "--from", &format!("folder:{}", from.display())];
    home.forebay(&[&pull[..], &DIR[2..]].concat()).exits(0);
    let found = std::fs::read_dir(home.at("models").join(NAME.to_lowercase())).unwrap().map(Result::unwrap);
    let folder = found.map(|entry| entry.path()).find(|path| path.is_dir()).unwrap();
    Some((home, folder))
}

/// What `check --deep` says of one thing: whether it is well, and the words.
fn ticked(home: &Home, code: i32, more: &[&str], what: &str) -> (bool, String) {
    let found = home.forebay(&[&["check", "--deep", "--json"][..], more].concat()).exits(code).json();
    let ticks: Vec<&Value> = found["checks"].as_array().unwrap().iter().collect();
    let tick = ticks.iter().find(|tick| tick["what"] == what).unwrap_or_else(|| panic!("{what}: {found}"));
    (tick["ok"].as_bool().unwrap(), tick["says"].as_str().unwrap().to_owned())
}

#[test]
fn a_model_that_works_says_how_well() {
    let Some((home, _)) = with_model() else { return };
    let input = home.file("in.jsonl", corpus(3));
    for kernel in ["auto", "candle"] {
        let kernel = format!("model.kernel={kernel}");
        let report = home.run(&[&[&*input][..], &DIR, &["--set", &kernel]].concat(), 0);
        let cosine = report.0["self_test"].as_f64().unwrap();
        assert!((0.99999..1.000_001).contains(&cosine), "{kernel}: {cosine}");
    }
    for what in ["self-test", "model files", "contents", "kernels"] {
        let (ok, says) = ticked(&home, 0, &DIR, what);
        assert!(ok, "{what}: {says}");
    }
    assert!(ticked(&home, 0, &DIR, "kernels").1.starts_with("6 golden texts as candle computes them"));
    let other = Home::new();
    let instant = other.run(&[&other.file("in.jsonl", corpus(1))], 0);
    assert_eq!(instant.0["self_test"], Value::Null, "there is nothing to test");
}

#[test]
fn weights_that_rotted_on_the_disk_embed_nothing() {
    let Some((home, folder)) = with_model() else { return };
    // Same size, same time: what is looked at before each start does not see it.
    let path = folder.join("model.safetensors");
    let time = std::fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 2_000_000].fill(0);
    std::fs::write(&path, bytes).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();

    let input = home.file("in.jsonl", corpus(3));
    let ran = home.forebay(&[&["run", &*input][..], &DIR].concat()).exits(2);
    let ran = ran.says(&[
        "the self-test of all-MiniLM-L6-v2 failed: golden text",
        "reference",
        "Nothing was embedded",
    ]);
    assert!(ran.stderr.contains("`forebay check --deep`") && ran.stdout.is_empty(), "{ran}");
    assert!(!home.data("vectors.db").exists());

    let (ok, says) = ticked(&home, 2, &DIR, "self-test");
    assert!(!ok && says.contains("the reference"), "{says}");
    let (ok, says) = ticked(&home, 2, &DIR, "model files");
    assert!(
        !ok && says.starts_with("model.safetensors must not be used; type `forebay model pull"),
        "{says}"
    );
    assert!(ticked(&home, 2, &DIR, "kernels").0, "it is not the kernels: both compute the same");
}

#[test]
fn what_is_wrong_in_the_data_folder_is_named_with_what_to_type() {
    let home = Home::new();
    home.run(&[&home.file("in.jsonl", corpus(5))], 0);
    for what in ["model files", "data folder files", "contents", "kernels"] {
        assert!(ticked(&home, 0, &[], what).0, "{what}");
    }
    assert_eq!(
        ticked(&home, 0, &[], "contents").1,
        "5 rows in the ledger and in the sink, 5 vectors looked at"
    );
    std::fs::write(home.data("budgets.json"), "not json").unwrap();
    std::fs::write(home.data("runs.jsonl"), "{\"run\":").unwrap();
    let (ok, says) = ticked(&home, 0, &[], "data folder files");
    assert!(!ok && says.contains("runs.jsonl has 1 lines") && says.contains("budgets.json is no"), "{says}");
    home.run(&[], 0);

    let sink = rusqlite::Connection::open(home.data("vectors.db")).unwrap();
    sink.execute("DELETE FROM vectors WHERE doc_id = (SELECT min(doc_id) FROM vectors)", []).unwrap();
    let (ok, says) = ticked(&home, 2, &[], "contents");
    assert!(!ok && says.contains("forebay verify"), "{says}");
}

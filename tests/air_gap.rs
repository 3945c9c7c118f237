//! A site without a network: no home, a folder of models that cannot be written, a hub cache read in place, a model
//! carried in as one file; and a run that asks nobody (C07).

#[path = "common/mod.rs"]
mod common;

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use common::{Home, Ran, Running, corpus};
use forebay::{chunk::Digest, embed::entry::Entry};

const NAME: &str = "all-MiniLM-L6-v2";

/// The files of the small real model, if they are here.
fn small_model() -> Option<PathBuf> {
    let folder =
        std::env::var_os("FOREBAY_TEST_MODELS").map(|models| PathBuf::from(models).join("all-minilm-l6-v2"));
    if folder.is_none() {
        println!("skipped: FOREBAY_TEST_MODELS names no folder of models");
    }
    folder
}

/// Runs without any home.
fn homeless(home: &Home, arguments: &[&str]) -> Ran {
    let mut command = home.command(arguments);
    command.env_remove("HOME").env_remove("FOREBAY__MODEL__NAME");
    Running::of(command).wait()
}

/// Every file below a folder: bytes, time, mode.
fn tree(folder: &Path) -> BTreeMap<PathBuf, (Digest, SystemTime, u32)> {
    let mut found = BTreeMap::new();
    for item in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, meta) = (item.path(), item.metadata().unwrap());
        let bytes = if meta.is_file() { fs::read(&path).unwrap() } else { vec![] };
        found.insert(path.clone(), (Digest::of(&bytes), meta.modified().unwrap(), meta.permissions().mode()));
        if meta.is_dir() {
            found.extend(tree(&path));
        }
    }
    found
}

/// Takes the right to write from everything below a folder, or gives it back.
fn writable(folder: &Path, yes: bool) {
    for path in tree(folder).into_keys().chain([folder.to_owned()]) {
        if !path.is_symlink() {
            let bits = if path.is_dir() { 0o555 } else { 0o444 };
            fs::set_permissions(&path, fs::Permissions::from_mode(if yes { bits | 0o200 } else { bits }))
                .unwrap();
        }
    }
}

#[test]
fn without_a_home_the_message_says_to_set_model_dir() {
    let home = Home::new();
    for verb in [&["model", "list"][..], &["run", "corpus.jsonl", "--model", NAME], &["check"]] {
        home.file("corpus.jsonl", corpus(3));
        let ran = homeless(&home, verb).exits(2);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(said.contains("Set model.dir"), "{verb:?}: {ran}");
    }
    // What needs no folder of models needs no home.
    homeless(&home, &["run", "corpus.jsonl", "--model", "instant"]).exits(0);
}

#[test]
fn with_model_dir_no_home_is_needed_and_a_folder_that_cannot_be_written_will_do() {
    let Some(model) = small_model() else { return };
    let home = Home::new();
    home.file("corpus.jsonl", corpus(3));
    let models = home.at("models");
    let dir = format!("model.dir={}", models.display());
    let from = model.display().to_string();
    homeless(&home, &["model", "pull", NAME, "--from", &from, "--set", &dir]).exits(0);
    writable(&models, false);
    let before = tree(&models);
    homeless(&home, &["run", "corpus.jsonl", "--model", NAME, "--set", &dir]).exits(0);
    homeless(&home, &["model", "verify", NAME, "--set", &dir]).exits(0);
    homeless(&home, &["model", "list", "--set", &dir]).exits(0);
    assert_eq!(tree(&models), before, "nothing was written, no lock, no note");
    writable(&models, true);
}

#[test]
fn a_hub_cache_of_links_is_read_in_place_and_not_touched() {
    let Some(model) = small_model() else { return };
    let home = Home::new();
    home.file("corpus.jsonl", corpus(3));
    let cache = home.at("hub");
    let entry = Entry::find(NAME).unwrap();
    let repo = cache.join("models--sentence-transformers--all-MiniLM-L6-v2");
    let snapshot = repo.join("snapshots").join(&entry.revision);
    fs::create_dir_all(repo.join("blobs")).unwrap();
    for file in &entry.files {
        let blob = file.sha256.unwrap().to_string();
        fs::copy(model.join(&file.path), repo.join("blobs").join(&blob)).unwrap();
        let link = snapshot.join(&file.path);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let up = "../".repeat(2 + file.path.matches('/').count());
        symlink(format!("{up}blobs/{blob}"), link).unwrap();
    }
    let dir = format!("model.dir={}", cache.display());
    let before = tree(&cache);
    homeless(&home, &["run", "corpus.jsonl", "--model", NAME, "--set", &dir]).exits(0);
    assert_eq!(tree(&cache), before);

    // One changed byte behind a link is found.
    let blob = repo.join("blobs").join(entry.files[1].sha256.unwrap().to_string());
    let mut bytes = fs::read(&blob).unwrap();
    bytes[3] ^= 1;
    fs::write(&blob, bytes).unwrap();
    let ran = homeless(&home, &["run", "corpus.jsonl", "--model", NAME, "--set", &dir]).exits(2);
    assert!(ran.stderr.contains("tokenizer.json is not the pinned file"), "{ran}");
}

#[test]
fn a_model_is_carried_in_as_one_file() {
    let Some(model) = small_model() else { return };
    let (here, there) = (Home::new(), Home::new());
    let from = model.display().to_string();
    here.forebay(&["model", "pull", NAME, "--from", &from]).exits(0);
    let ran = here.forebay(&["model", "bundle", NAME, "--json"]).exits(0);
    let packed = ran.json();
    let file = here.at("all-minilm-l6-v2-c9745ed1.tar.zst");
    assert_eq!(packed["file"], "all-minilm-l6-v2-c9745ed1.tar.zst");
    assert_eq!(packed["sha256"], Digest::of(&fs::read(&file).unwrap()).to_string());

    there.file("corpus.jsonl", corpus(3));
    let bundle = file.display().to_string();
    let ran = there.forebay(&["model", "pull", NAME, "--from", &bundle]).exits(0);
    assert!(!ran.stderr.contains("asking"), "{ran}");
    there.forebay(&["model", "verify", NAME]).exits(0);
    there.forebay(&["run", "corpus.jsonl", "--model", NAME]).exits(0);
}

/// A server that counts who comes.
fn counting() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::<AtomicUsize>::default();
    let seen = Arc::clone(&count);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            seen.fetch_add(1, Ordering::SeqCst);
            // What is asked does not matter; whoever comes has broken the promise.
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n");
        }
    });
    (url, count)
}

#[test]
fn c07_no_verb_but_pull_asks_anybody() {
    let home = Home::new();
    home.file("corpus.jsonl", corpus(3));
    let (url, asked) = counting();
    let online = |arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.env_remove("FOREBAY__MODEL__NAME").env("HF_ENDPOINT", &url).env("HF_TOKEN", "hf_canary");
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env(proxy, &url);
        }
        Running::of(command).wait()
    };
    for name in ["bge-m3", NAME, "bge-small"] {
        let ran = online(&["run", "corpus.jsonl", "--model", name]).exits(2);
        assert!(ran.stderr.contains("is not installed. Type `forebay model pull"), "{ran}");
    }
    online(&["run", "corpus.jsonl", "--model", "instant"]).exits(0);
    online(&["search", "water", "--model", "instant"]).exits(0);
    online(&["status"]).exits(0);
    online(&["model", "list"]).exits(0);
    assert_eq!(asked.load(Ordering::SeqCst), 0, "somebody was asked");

    let ran = online(&["model", "pull", "bge-small", "--from", "hub"]).exits(2);
    assert!(asked.load(Ordering::SeqCst) > 0 && ran.stderr.contains("asking 127.0.0.1:"), "{ran}");
    assert!(!ran.stderr.contains("hf_canary"), "{ran}");
}

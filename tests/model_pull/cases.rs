//! Public cases of group C that concern getting a model: C07 (proxy, mirror, no network), C08 (partial downloads),
//! C09 (weights in another form). What the whole program does without a network is in `tests/air_gap.rs`.

use std::{fs, sync::Arc};

use forebay::embed::{cache, hub::Token, pull::PullFrom, verify::verify};

use crate::{
    fake_hub::{FakeHub, Reply, ranged, serve},
    from_hub::child_pull,
    scene::{Pinned, REVISION, Scene, entry, entry_of, files, write_all},
};

const CANARY: &str = "hf_canary_8b1f";

fn child(vars: &[(&str, &str)]) -> String {
    let output = child_pull(vars).output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn c07_a_mirror_under_a_path_prefix_is_asked_for_everything() {
    let hub = FakeHub::serving(files(), REVISION);
    let mut scene = Scene::at(&hub);
    scene.options.hub.endpoint = Some(format!("{}/mirror/hf", hub.url));
    scene.pull(&entry(), &PullFrom::Hub).unwrap();
    scene.holds(&files());
    let wanted = format!("/mirror/hf/someone/tiny/resolve/{REVISION}/");
    assert!(hub.log().iter().all(|request| request.path.starts_with(&wanted)), "{:?}", hub.log());
    assert_eq!(*scene.asked.borrow(), [hub.url.trim_start_matches("http://")]);
}

#[test]
fn c07_nobody_at_the_mirror_is_said_with_its_address() {
    let mut scene = Scene::new();
    scene.options.hub.endpoint = Some("http://127.0.0.1:9/prefix".into());
    let message = scene.fails(&entry(), &PullFrom::Hub);
    assert!(message.contains("http://127.0.0.1:9/prefix/someone/tiny"), "{message}");
    assert!(message.contains("HTTPS_PROXY") && message.contains("--from PATH"), "{message}");
    assert_eq!(*scene.asked.borrow(), ["127.0.0.1:9"]);
}

#[test]
fn c07_every_host_is_named_and_a_private_repository_s_token_goes_to_none_but_the_hub() {
    let store = Arc::new(FakeHub::new(|request| ranged(&files()["model.safetensors"], "", request)));
    let place = Arc::clone(&store);
    let hub = FakeHub::with_fault(files(), REVISION, move |request| {
        if request.authorization.as_deref() != Some("Bearer hf_canary_8b1f") {
            return Some(Reply::Whole(401, vec![], vec![]));
        }
        // First to another path of the hub itself, then to the store: as the hub does with renamed repositories.
        let to = match request.path.as_str() {
            path if path.contains("/renamed/") => format!("{}/blob/7?X-Signature=s", place.url),
            path if path.ends_with("model.safetensors") => "/renamed/weights".to_owned(),
            _ => return Some(serve(&files(), REVISION, request)),
        };
        Some(Reply::Whole(302, vec![("Location", to), ("X-Repo-Commit", REVISION.into())], vec![]))
    });
    let mut scene = Scene::at(&hub);
    scene.options.hub.token = Token::new(CANARY);
    scene.pull(&entry(), &PullFrom::Hub).unwrap();
    scene.holds(&files());
    assert_eq!(store.log().len(), 1);
    assert_eq!(store.log()[0].authorization, None, "the store saw the token");
    let asked = scene.asked.borrow().join(" ");
    assert_eq!(asked, format!("{} {}", hub.url, store.url).replace("http://", ""));
}

#[test]
fn c07_proxies_of_the_environment_are_used_but_for_the_hosts_of_no_proxy() {
    let proxy = FakeHub::new(|_| Reply::Whole(502, vec![], vec![]));
    let said = child(&[("HF_ENDPOINT", "https://hub.invalid/prefix"), ("HTTPS_PROXY", &proxy.url)]);
    assert!(said.contains("failed: "), "{said}");
    let asked = proxy.log();
    assert!(asked.iter().any(|request| request.path == "hub.invalid:443"), "{asked:?}: {said}");

    let hub = FakeHub::serving(files(), REVISION);
    let seen = proxy.log().len();
    let said =
        child(&[("HF_ENDPOINT", &hub.url), ("ALL_PROXY", &proxy.url), ("NO_PROXY", "127.0.0.1,localhost")]);
    assert!(said.contains("pulled from"), "{said}");
    assert_eq!(proxy.log().len(), seen, "NO_PROXY names the hub");
}

#[test]
fn c07_certificates_of_a_site_are_read_and_a_file_without_any_is_refused() {
    let mut scene = Scene::new();
    let file = scene.folder.path().join("ca.pem");
    scene.options.hub.ca_file = Some(file.clone());
    let message = scene.fails(&entry(), &PullFrom::Hub);
    assert!(message.contains("cannot read the certificates in") && message.contains("ca.pem"), "{message}");
    fs::write(&file, "no certificate at all").unwrap();
    assert!(scene.fails(&entry(), &PullFrom::Hub).contains("it holds none (SSL_CERT_FILE)"));
}

#[test]
fn c08_weights_cut_by_one_byte_are_named_at_start_and_on_the_way_in() {
    let scene = Scene::new();
    let from = scene.folder.path().join("from");
    write_all(&from, &files());
    let installed = scene.pull(&entry(), &PullFrom::Path(from.clone())).unwrap().installed;
    let cut = |path: &std::path::Path| {
        fs::File::options().write(true).open(path).unwrap().set_len(799_999).unwrap();
    };
    cut(&installed.weights());
    let message = cache::installed(&scene.options.dir, &entry()).unwrap_err().to_string();
    assert!(message.contains("model.safetensors has 799999 bytes instead of 800000"), "{message}");
    assert!(message.contains("forebay model pull Tiny-Model --force"), "{message}");

    cut(&from.join("model.safetensors"));
    let other = Scene::new();
    let message = other.fails(&entry(), &PullFrom::Path(from));
    assert!(
        message.contains("model.safetensors") && message.contains("799999 bytes instead of 800000"),
        "{message}"
    );
}

#[test]
fn c08_one_flipped_byte_of_the_tokenizer_is_named_at_start_and_by_verify() {
    let scene = Scene::new();
    let from = scene.folder.path().join("from");
    write_all(&from, &files());
    let installed = scene.pull(&entry(), &PullFrom::Path(from)).unwrap().installed;
    let mut bytes = fs::read(installed.tokenizer()).unwrap();
    bytes[3] ^= 1;
    fs::write(installed.tokenizer(), bytes).unwrap();
    let message = cache::installed(&scene.options.dir, &entry()).unwrap_err().to_string();
    assert!(message.contains("tokenizer.json was changed") && message.contains("--force"), "{message}");
    let report = verify(&scene.options.dir, &entry(), &|_, _| ()).unwrap().unwrap().to_string();
    assert!(report.contains("CHANGED  tokenizer.json") && report.contains("--force"), "{report}");
}

#[test]
fn c08_what_an_interrupted_download_left_is_no_model() {
    // A folder as other tools leave it: everything but the weights, which are there as `.incomplete` only.
    let scene = Scene::new();
    let from = scene.folder.path().join("from");
    let mut left = files();
    let weights = left.remove("model.safetensors").unwrap();
    left.insert("model.safetensors.incomplete".into(), weights[..400_000].to_vec());
    write_all(&from, &left);
    let message = scene.fails(&entry(), &PullFrom::Path(from));
    assert!(message.contains("model.safetensors is not in"), "{message}");
    assert!(message.contains("found: model.safetensors.incomplete"), "what is there is named: {message}");
    assert!(message.contains("was not finished") && message.contains("--from hub"), "{message}");

    // Our own: a folder without a manifest, and parts.
    let installed = scene.options.dir.join("tiny-model/01234567");
    write_all(&installed, &left);
    let message = cache::installed(&scene.options.dir, &entry()).unwrap_err().to_string();
    assert!(message.contains("manifest.toml") && message.contains("--force"), "{message}");
}

#[test]
fn c09_a_folder_with_only_a_pickle_says_so_and_how_to_convert_it() {
    let mut scene = Scene::new();
    let from = scene.folder.path().join("from");
    let mut found = files();
    found.remove("model.safetensors");
    found.insert("pytorch_model.bin".into(), include_bytes!("../golden/pytorch_model.bin").to_vec());
    write_all(&from, &found);
    let message = scene.fails(&entry(), &PullFrom::Path(from.clone()));
    assert!(message.contains("found: pytorch_model.bin"), "{message}");
    assert!(message.contains("--convert --trust"), "{message}");

    scene.options.convert = true;
    let message = scene.fails(&entry(), &PullFrom::Path(from.clone()));
    assert!(
        message.contains("no digest is known here") && message.contains("pytorch_model.bin"),
        "{message}"
    );
    scene.options.trust = true;
    let installed = scene.pull(&entry(), &PullFrom::Path(from)).unwrap().installed;
    assert!(installed.manifest.trusted && installed.weights().ends_with("model.safetensors"));
    assert!(candle_core::safetensors::load(installed.weights(), &candle_core::Device::Cpu).is_ok());
    assert_eq!(cache::installed(&scene.options.dir, &entry()).unwrap(), Some(installed));
    let report = verify(&scene.options.dir, &entry(), &|_, _| ()).unwrap().unwrap();
    assert!(report.is_sound() && report.to_string().contains("trusted  model.safetensors"), "{report}");
}

#[test]
fn c09_a_folder_with_only_onnx_says_what_it_found() {
    for (extra, found) in [
        (vec!["onnx/model.onnx"], "found: onnx/model.onnx;"),
        (vec!["onnx/model.onnx", "pytorch_model.bin"], "found: onnx/model.onnx, pytorch_model.bin"),
        (vec![], "no weights of any form"),
    ] {
        let scene = Scene::new();
        let from = scene.folder.path().join("from");
        let mut there = files();
        there.remove("model.safetensors");
        there.extend(extra.iter().map(|path| ((*path).to_owned(), b"onnx".to_vec())));
        write_all(&from, &there);
        let message = scene.fails(&entry_of(&files(), Pinned::All, ""), &PullFrom::Path(from));
        assert!(message.replace(". Next", ";").contains(found.trim_end_matches(';')), "{message}");
        assert!(message.contains("--from hub") || message.contains("--convert"), "{message}");
    }
}

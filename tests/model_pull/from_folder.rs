//! A folder: copied files, links, pickles that are converted, and what happens to a model once it is installed.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::Path};

use candle_core::{DType, Device, Tensor, safetensors};
use forebay::{
    chunk::Digest,
    embed::{cache, pull::PullFrom, verify::verify},
};

use crate::scene::{Pinned, REVISION, Scene, entry, entry_of, files, write_all};

const BIN: &[u8] = include_bytes!("../golden/pytorch_model.bin");

fn files_with_bin() -> BTreeMap<String, Vec<u8>> {
    let mut files = files();
    files.remove("model.safetensors");
    files.insert("pytorch_model.bin".into(), BIN.to_vec());
    files
}

#[test]
fn links_are_followed_and_copies_are_made() {
    let scene = Scene::new();
    let (blobs, from) = (scene.folder.path().join("blobs"), scene.folder.path().join("links"));
    write_all(&blobs, &files());
    fs::create_dir_all(from.join("1_Pooling")).unwrap();
    for path in files().keys() {
        symlink(blobs.join(path), from.join(path)).unwrap();
    }
    scene.pull(&entry(), &PullFrom::Folder(from)).unwrap();
    fs::remove_dir_all(blobs).unwrap();
    scene.holds(&files());
    assert!(!scene.home().join("01234567/tokenizer.json").is_symlink());
}

#[test]
fn a_hub_cache_is_understood() {
    for root in ["cache/models--someone--tiny", "cache"] {
        let scene = Scene::new();
        let snapshot = scene.folder.path().join("cache/models--someone--tiny/snapshots").join(REVISION);
        write_all(&snapshot, &files());
        scene.pull(&entry(), &PullFrom::Folder(scene.folder.path().join(root))).unwrap();
        scene.holds(&files());
    }
}

#[test]
fn a_missing_or_wrong_file_is_named_with_its_place() {
    let scene = Scene::new();
    let from = scene.folder.path().join("from");
    let mut wrong = files();
    wrong.insert("tokenizer.json".into(), b"{\"tokens\": [}}".to_vec());
    write_all(&from, &wrong);
    let message = scene.fails(&entry(), &PullFrom::Folder(from.clone()));
    assert!(message.contains("from/tokenizer.json is not the pinned file"), "{message}");
    fs::write(from.join("tokenizer.json"), vec![0; 100]).unwrap();
    assert!(scene.fails(&entry(), &PullFrom::Folder(from.clone())).contains("bytes instead of 14"));
    fs::remove_file(from.join("tokenizer.json")).unwrap();
    let message = scene.fails(&entry(), &PullFrom::Folder(from));
    assert!(message.contains("tokenizer.json is not in ") && message.contains("--from hub"), "{message}");
}

fn tensor(file: &Path, name: &str) -> Tensor {
    safetensors::load(file, &Device::Cpu).unwrap().remove(name).unwrap_or_else(|| panic!("{name} is there"))
}

#[test]
fn a_pickle_becomes_the_same_safetensors_each_time() {
    let entry = entry_of(&files_with_bin(), Pinned::All, "");
    let mut digests = Vec::new();
    for _ in 0..3 {
        let scene = Scene::new();
        let from = scene.folder.path().join("from");
        write_all(&from, &files_with_bin());
        let installed = scene.pull(&entry, &PullFrom::Folder(from)).unwrap().installed;
        let bytes = fs::read(installed.weights()).unwrap();
        assert!(installed.weights().ends_with("model.safetensors"));
        assert_eq!(installed.weights_sha256(), Digest::of(&bytes));
        let weights = installed.manifest.files.iter().find(|file| file.path == "model.safetensors").unwrap();
        assert_eq!(weights.converted_from.as_ref().unwrap().sha256, Digest::of(BIN));
        assert!(!installed.folder.join("pytorch_model.bin").exists());
        assert!(verify(&scene.options.dir, &entry, &|_, _| ()).unwrap().unwrap().is_sound());
        digests.push(installed.weights_sha256());
    }
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{digests:?}");
}

#[test]
fn a_converted_file_holds_the_numbers_and_types_that_torch_wrote() {
    let scene = Scene::new();
    let from = scene.folder.path().join("from");
    write_all(&from, &files_with_bin());
    let entry = entry_of(&files_with_bin(), Pinned::All, "");
    let weights = scene.pull(&entry, &PullFrom::Folder(from)).unwrap().installed.weights();

    assert_eq!(tensor(&weights, "pooler.weight").to_vec2::<f32>().unwrap(), [[0.5, -1.5], [2.25, 1e-7]]);
    let word: Vec<f32> = (0..6_u8).map(|n| f32::from(n) / 7.0).collect();
    assert_eq!(tensor(&weights, "embeddings.word").to_vec2::<f32>().unwrap(), [&word[..3], &word[3..]]);
    assert_eq!(tensor(&weights, "embeddings.position_ids").to_vec2::<i64>().unwrap(), [[0, 1, 2, 3, 4]]);
    assert_eq!(tensor(&weights, "tail").to_vec1::<f32>().unwrap(), [8.0, 9.0, 10.0, 11.0]);
    assert_eq!(
        tensor(&weights, "transposed").to_vec2::<f32>().unwrap(),
        [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    );
    for (name, dtype, last) in [("half", DType::F16, 65504.0), ("brain", DType::BF16, 3e38)] {
        let half = tensor(&weights, name);
        assert_eq!(half.dtype(), dtype);
        let wide = half.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(wide[..2], [1.0, -2.0]);
        assert!((wide[2] / last - 1.0).abs() < 0.01, "{wide:?}");
    }
}

#[test]
fn a_pickle_is_checked_before_it_is_read_and_a_bad_one_is_named() {
    let scene = Scene::new();
    let from = scene.folder.path().join("from");
    let mut bad = files_with_bin();
    bad.insert("pytorch_model.bin".into(), BIN.iter().map(|byte| byte ^ 0x55).collect());
    write_all(&from, &bad);
    let pinned = entry_of(&files_with_bin(), Pinned::All, "");
    assert!(scene.fails(&pinned, &PullFrom::Folder(from.clone())).contains("is not the pinned file"));
    let message = scene.fails(&entry_of(&bad, Pinned::All, ""), &PullFrom::Folder(from));
    assert!(message.contains("pytorch_model.bin cannot be converted to safetensors"), "{message}");
}

#[test]
fn a_model_that_was_converted_elsewhere_needs_trust() {
    let mut scene = Scene::new();
    let from = scene.folder.path().join("from");
    write_all(&from, &files());
    let entry = entry_of(&files_with_bin(), Pinned::All, "");
    assert!(scene.fails(&entry, &PullFrom::Folder(from.clone())).contains("--trust"));
    scene.options.trust = true;
    let pulled = scene.pull(&entry, &PullFrom::Folder(from)).unwrap();
    assert!(pulled.installed.manifest.trusted);
    assert_eq!(pulled.installed.weights_sha256(), Digest::of(&files()["model.safetensors"]));
}

#[test]
fn a_model_that_was_touched_is_hashed_once_and_a_changed_one_is_damaged() {
    let scene = Scene::new();
    let from = scene.folder.path().join("from");
    write_all(&from, &files());
    let installed = scene.pull(&entry(), &PullFrom::Folder(from.clone())).unwrap().installed;
    let look = || cache::installed(&scene.options.dir, &entry());
    assert_eq!(look().unwrap().as_ref(), Some(&installed));
    assert_eq!(installed.tokenizer_sha256(), Digest::of(&files()["tokenizer.json"]));

    // Copied by something that does not keep times: the same bytes.
    let bytes = fs::read(installed.weights()).unwrap();
    fs::write(installed.weights(), &bytes).unwrap();
    let touched = look().unwrap().unwrap();
    assert_ne!(touched.manifest, installed.manifest);
    assert_eq!(look().unwrap(), Some(touched));

    let mut changed = bytes;
    changed[5] ^= 1;
    fs::write(installed.weights(), &changed).unwrap();
    let message = look().unwrap_err().to_string();
    assert!(message.contains("model.safetensors was changed") && message.contains("--force"), "{message}");
    fs::write(installed.weights(), b"short").unwrap();
    assert!(look().unwrap_err().to_string().contains("has 5 bytes instead of 800000"));
    fs::remove_file(installed.weights()).unwrap();
    assert!(look().unwrap_err().to_string().contains("model.safetensors"));

    // A damaged model is pulled again without being asked to.
    scene.pull(&entry(), &PullFrom::Folder(from)).unwrap();
    scene.holds(&files());
}

#[test]
fn an_entry_that_changed_does_not_accept_what_is_installed() {
    let scene = Scene::new();
    let from = scene.folder.path().join("from");
    write_all(&from, &files());
    scene.pull(&entry(), &PullFrom::Folder(from)).unwrap();
    let mut other = files();
    other.insert("tokenizer.json".into(), b"{\"tokens\": [1]".to_vec());
    let message =
        cache::installed(&scene.options.dir, &entry_of(&other, Pinned::All, "")).unwrap_err().to_string();
    assert!(message.contains("tokenizer.json is not the pinned file"), "{message}");
    let listed = cache::list(&scene.options.dir).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].name.as_str(), listed[0].rev8.as_str()), ("tiny-model", "01234567"));
    assert_eq!(listed[0].manifest.as_ref().unwrap().name, "Tiny-Model");
}

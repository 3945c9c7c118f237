//! A tiny model, an entry for it, and a folder of models: what every test here starts from.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use forebay::{
    chunk::Digest,
    embed::{
        entry::Entry,
        fail::PullError,
        pull::{Progress, PullFrom, PullOptions, Pulled, Step, pull},
    },
};

use crate::fake_hub::FakeHub;

pub(crate) const REVISION: &str = "0123456789abcdef0123456789abcdef01234567";

/// The files of the tiny model: the weights are large enough to be cut.
pub(crate) fn files() -> BTreeMap<String, Vec<u8>> {
    let weights = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    BTreeMap::from([
        ("model.safetensors".to_owned(), weights),
        ("tokenizer.json".to_owned(), b"{\"tokens\": []}".to_vec()),
        ("1_Pooling/config.json".to_owned(), b"{}".to_vec()),
    ])
}

/// How much of the tiny model its entry pins.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Pinned {
    All,
    AllButTokenizer,
}

/// An entry for these files; `wheel` is put into its `[wheel]`.
pub(crate) fn entry_of(files: &BTreeMap<String, Vec<u8>>, pinned: Pinned, wheel: &str) -> Entry {
    let verified = pinned == Pinned::All;
    let mut text = format!(
        "name = \"Tiny-Model\"\nfamily = \"bert\"\nrevision = \"{REVISION}\"\ndim = 8\npooling = \"mean\"\n\
         normalize = true\nmax_length = 16\n[hub]\nrepo = \"someone/tiny\"\nverified = {verified}\n{wheel}\n"
    );
    for (path, bytes) in files {
        text += &format!("[[files]]\npath = \"{path}\"\n");
        match path.as_str() {
            "model.safetensors" => text += "role = \"weights\"\n",
            "pytorch_model.bin" => text += "role = \"weights\"\nconvert = \"model.safetensors\"\n",
            "tokenizer.json" => text += "role = \"tokenizer\"\n",
            _ => {}
        }
        if verified || path != "tokenizer.json" {
            text += &format!("sha256 = \"{}\"\nsize = {}\n", Digest::of(bytes), bytes.len());
        }
    }
    Entry::parse(&text).unwrap()
}

/// The entry of the tiny model, all pinned, hub only.
pub(crate) fn entry() -> Entry {
    entry_of(&files(), Pinned::All, "")
}

/// A folder of models of its own.
pub(crate) struct Scene {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) options: PullOptions,
    /// Every progress heard, as (done, total).
    pub(crate) heard: RefCell<Vec<(u64, u64)>>,
    /// Every host that was asked.
    pub(crate) asked: RefCell<Vec<String>>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut options = PullOptions::new(folder.path().join("models"));
        options.hub.endpoint = Some("http://127.0.0.1:9".into());
        (options.hub.token, options.hub.offline) = (None, false);
        (options.hub.tries, options.hub.retry_base) = (3, Duration::ZERO);
        options.pip = vec![];
        Self { folder, options, heard: RefCell::default(), asked: RefCell::default() }
    }

    pub(crate) fn at(hub: &FakeHub) -> Self {
        let mut scene = Self::new();
        scene.options.hub.endpoint = Some(hub.url.clone());
        scene
    }

    pub(crate) fn pull(&self, entry: &Entry, from: &PullFrom) -> Result<Pulled, PullError> {
        self.heard.borrow_mut().clear();
        self.asked.borrow_mut().clear();
        pull(entry, from, &self.options, &|progress: Progress<'_>| {
            self.heard.borrow_mut().push((progress.done, progress.total));
            if progress.step == Step::Ask {
                self.asked.borrow_mut().push(progress.file.to_owned());
            }
        })
    }

    /// The message of a pull that must fail, which leaves nothing installed and no loose end but parts.
    pub(crate) fn fails(&self, entry: &Entry, from: &PullFrom) -> String {
        let error = self.pull(entry, from).expect_err("this pull must fail");
        let names = self.names();
        let loose = names.iter().filter(|name| *name != ".lock" && !name.ends_with(".parts"));
        assert_eq!(loose.collect::<Vec<_>>(), Vec::<&String>::new(), "left behind by {error}");
        error.to_string()
    }

    /// Where the tiny model lives.
    pub(crate) fn home(&self) -> PathBuf {
        self.options.dir.join("tiny-model")
    }

    /// What lies there.
    pub(crate) fn names(&self) -> Vec<String> {
        let Ok(found) = fs::read_dir(self.home()) else { return vec![] };
        let mut names: Vec<_> = found.map(|item| item.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The installed files are exactly these.
    pub(crate) fn holds(&self, files: &BTreeMap<String, Vec<u8>>) {
        assert_eq!(self.names(), [".lock", "01234567"]);
        for (path, bytes) in files {
            assert!(fs::read(self.home().join("01234567").join(path)).unwrap() == *bytes, "{path} differs");
        }
    }
}

/// Writes files below a folder.
pub(crate) fn write_all(folder: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for (path, bytes) in files {
        let place = folder.join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, bytes).unwrap();
    }
}

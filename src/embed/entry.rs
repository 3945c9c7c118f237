//! The known models: what they are, where they come from, and the digest of every file. Pure; reads no file.

use std::{fmt, sync::LazyLock};

use serde::Deserialize;

use super::expect::{Family, Pooling};
use crate::chunk::Digest;

/// The files of `models/`, compiled in.
const SHIPPED: [(&str, &str); 7] = [
    ("all-minilm-l6-v2.toml", include_str!("../../models/all-minilm-l6-v2.toml")),
    ("bge-m3.toml", include_str!("../../models/bge-m3.toml")),
    ("bge-small-en-v1.5.toml", include_str!("../../models/bge-small-en-v1.5.toml")),
    ("bge-base-en-v1.5.toml", include_str!("../../models/bge-base-en-v1.5.toml")),
    ("bge-large-en-v1.5.toml", include_str!("../../models/bge-large-en-v1.5.toml")),
    ("multilingual-e5-small.toml", include_str!("../../models/multilingual-e5-small.toml")),
    ("multilingual-e5-large.toml", include_str!("../../models/multilingual-e5-large.toml")),
];

static KNOWN: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let parse = |(_, text): &(&str, &str)| Entry::parse(text).expect("shipped entries are tested");
    SHIPPED.iter().map(parse).collect()
});

/// What a file is to the loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The weights; one file.
    Weights,
    /// `tokenizer.json`; one file.
    Tokenizer,
    /// Anything else the loader reads.
    #[default]
    Other,
}

/// One file of a model, as its repository has it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Path in the repository, with `/`; stays inside it.
    pub path: String,
    /// What it is to the loader.
    #[serde(default)]
    pub role: Role,
    /// SHA-256, where it is known.
    pub sha256: Option<Digest>,
    /// Bytes, where known.
    pub size: Option<u64>,
    /// A torch pickle, stored as safetensors under this name.
    pub convert: Option<String>,
}

impl ModelFile {
    /// The name it has once installed.
    pub fn installed_path(&self) -> &str {
        self.convert.as_deref().unwrap_or(&self.path)
    }
}

/// The repository on the hub.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubSource {
    /// `owner/name`.
    pub repo: String,
    /// Whether every file's digest is pinned.
    pub verified: bool,
}

/// A wheel that ships the model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WheelSource {
    /// Name of the package.
    pub package: String,
    /// Its version; pinned.
    pub version: String,
    /// SHA-256 of the wheel, where known.
    pub sha256: Option<Digest>,
    /// Bytes of the wheel, where known.
    pub size: Option<u64>,
    /// Folder inside the wheel that holds the files.
    pub folder: String,
    /// Whether the wheel's or every file's digest is pinned.
    pub verified: bool,
}

/// One known model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The name users type, in its usual spelling: the published one.
    pub name: String,
    /// Shorter names that are taken for it.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Architecture.
    pub family: Family,
    /// Pinned commit of the hub's repository.
    pub revision: String,
    /// Numbers in a dense vector.
    pub dim: usize,
    /// How token vectors become one.
    pub pooling: Pooling,
    /// Whether vectors are scaled to norm 1.
    pub normalize: bool,
    /// Tokens at most, specials included.
    pub max_length: usize,
    /// Text put before each document.
    #[serde(default)]
    pub document_prefix: String,
    /// Text put before each query.
    #[serde(default)]
    pub query_prefix: String,
    /// Every file the loader needs, the same from all sources.
    pub files: Vec<ModelFile>,
    /// The hub, if it is there.
    pub hub: Option<HubSource>,
    /// The package mirror, if it is there.
    pub wheel: Option<WheelSource>,
}

/// A name nobody knows. Says which are known and which is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownModel {
    /// What was typed.
    pub name: String,
    /// The nearest known name, if one is near.
    pub nearest: Option<String>,
}

impl fmt::Display for UnknownModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<_> = Entry::known().iter().map(|entry| entry.name.as_str()).collect();
        write!(f, "no model is called {:?}; known: {}", self.name, known.join(", "))?;
        match &self.nearest {
            Some(nearest) => write!(f, ". Did you mean {nearest}? Set model.name = \"{nearest}\""),
            None => f.write_str(". Type `forebay model list`"),
        }
    }
}

impl std::error::Error for UnknownModel {}

impl Entry {
    /// All models of `models/`, by name.
    pub fn known() -> &'static [Self] {
        &KNOWN
    }

    /// The model of this name or alias; case does not matter.
    ///
    /// # Errors
    /// [`UnknownModel`], with the known names and the nearest one.
    pub fn find(name: &str) -> Result<&'static Self, UnknownModel> {
        let typed = name.trim().to_lowercase();
        let found = Self::known().iter().find(|entry| entry.names().any(|name| name == typed));
        found.ok_or_else(|| UnknownModel { name: name.to_owned(), nearest: nearest(&typed) })
    }

    /// Its name and aliases, in lower case.
    fn names(&self) -> impl Iterator<Item = String> {
        std::iter::once(&self.name).chain(&self.aliases).map(|name| name.to_lowercase())
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// A sentence: what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entry: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        entry.check()?;
        Ok(entry)
    }

    /// First eight digits of the revision: the folder it is installed in.
    pub fn rev8(&self) -> &str {
        self.revision.get(..8).unwrap_or(&self.revision)
    }

    /// The file of this role.
    pub fn file(&self, role: Role) -> &ModelFile {
        let found = self.files.iter().find(|file| file.role == role);
        found.expect("`check` saw one weights and one tokenizer file")
    }

    fn check(&self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let bad = |name: &String| name.is_empty() || name.starts_with('.') || !name.chars().all(plain);
        if let Some(name) = std::iter::once(&self.name).chain(&self.aliases).find(|name| bad(name)) {
            return Err(format!("name {name:?} is not a plain name"));
        }
        if self.revision.len() != 40 || !self.revision.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(format!("revision {:?} is not a commit of 40 hex digits", self.revision));
        }
        for role in [Role::Weights, Role::Tokenizer] {
            if self.files.iter().filter(|file| file.role == role).count() != 1 {
                return Err(format!("exactly one file must have the role {role:?}"));
            }
        }
        let paths = self.files.iter().flat_map(|file| [file.path.as_str(), file.installed_path()]);
        let folder = self.wheel.iter().map(|wheel| wheel.folder.as_str());
        if let Some(bad) = paths.chain(folder).find(|path| !stays_inside(path)) {
            return Err(format!("path {bad:?} leads out of the model's folder"));
        }
        let pinned = self.files.iter().all(|file| file.sha256.is_some() && file.size.is_some());
        if !pinned && self.hub.as_ref().is_some_and(|hub| hub.verified) {
            return Err("hub.verified = true needs sha256 and size of every file".into());
        }
        let wheel_pinned = |wheel: &WheelSource| pinned || wheel.sha256.is_some();
        if self.wheel.as_ref().is_some_and(|wheel| wheel.verified && !wheel_pinned(wheel)) {
            return Err("wheel.verified = true needs the sha256 of the wheel or of every file".into());
        }
        Ok(())
    }
}

/// Whether a path with `/` names something below its folder and nothing of ours.
pub(crate) fn stays_inside(path: &str) -> bool {
    let plain =
        |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['\\', '\0', ':']);
    path != super::manifest::FILE && path.split('/').all(plain)
}

/// The known name that a mistyped one is probably meant to be.
fn nearest(typed: &str) -> Option<String> {
    let scored = Entry::known().iter().flat_map(|entry| entry.names().map(move |name| (name, entry)));
    let scored = scored.map(|(name, entry)| {
        let contained = typed.len() >= 3 && (name.contains(typed) || typed.contains(&name));
        (if contained { 0 } else { distance(typed, &name) }, entry)
    });
    let (edits, entry) = scored.min_by_key(|(edits, _)| *edits)?;
    (edits <= entry.name.len() / 2).then(|| entry.name.clone())
}

/// Edits (insert, remove, replace) between two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_entry_parses_and_is_found_by_its_name() {
        for (file, text) in SHIPPED {
            let entry = Entry::parse(text).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert_eq!(file, format!("{}.toml", entry.name.to_lowercase()));
            assert_eq!(Entry::find(&entry.name.to_uppercase()).unwrap(), &entry);
        }
        let mut names: Vec<_> = Entry::known().iter().flat_map(Entry::names).collect();
        names.sort();
        names.windows(2).for_each(|two| assert_ne!(two[0], two[1], "one name for one model"));
        assert_eq!(Entry::find("bge-m3").unwrap().dim, 1024);
        assert_eq!(Entry::find("BGE-small").unwrap().name, "bge-small-en-v1.5");
        assert_eq!(Entry::find("all-minilm-l6-v2").unwrap().file(Role::Tokenizer).path, "tokenizer.json");
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let message = Entry::find("bge-me").unwrap_err().to_string();
        assert!(
            message.contains("Did you mean bge-m3?") && message.contains("all-MiniLM-L6-v2"),
            "{message}"
        );
        let long = Entry::find("sentence-transformers/all-MiniLM-L6-v2").unwrap_err();
        assert_eq!(long.nearest.as_deref(), Some("all-MiniLM-L6-v2"));
        assert_eq!(Entry::find("text-embedding-3-large-v2").unwrap_err().nearest, None);
    }

    #[test]
    fn what_is_called_verified_has_all_its_digests() {
        let text = SHIPPED[1].1.replace("size = 687\n", "");
        assert!(Entry::parse(&text).unwrap_err().contains("hub.verified"));
        assert!(Entry::parse(&text.replace("verified = true", "verified = false")).is_ok());
    }

    #[test]
    fn paths_and_names_that_lead_out_are_refused() {
        for (good, bad) in [
            ("path = \"config.json\"", "path = \"../config.json\""),
            ("path = \"config.json\"", "path = \"/etc/passwd\""),
            ("path = \"config.json\"", "path = \"manifest.toml\""),
            ("convert = \"model.safetensors\"", "convert = \"a/../../b\""),
            ("name = \"bge-m3\"", "name = \"../bge\""),
            ("revision = \"5617", "revision = \"main"),
        ] {
            assert!(Entry::parse(&SHIPPED[1].1.replacen(good, bad, 1)).is_err(), "{bad}");
        }
    }

    #[test]
    fn edits_are_counted() {
        assert_eq!((distance("kitten", "sitting"), distance("", "abc"), distance("a", "a")), (3, 3, 0));
    }
}

//! The folder of models: where it is, what is installed in it, and whether that is still what was installed.
//!
//! `<dir>/<name>/<first 8 of the revision>/` holds the files and their manifest. A name that starts with a dot
//! belongs to a pull under way or to one that died, and is never looked at here.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    entry::{Entry, Role},
    hub_cache,
    manifest::{self, InstalledFile, Manifest},
};
use crate::chunk::Digest;

/// A model as it lies in the folder of models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The folder with its files.
    pub folder: PathBuf,
    /// What they are.
    pub manifest: Manifest,
}

impl Installed {
    /// SHA-256 of the weights file as it lies here (after conversion, if it was converted).
    pub fn weights_sha256(&self) -> Digest {
        self.role(Role::Weights).sha256
    }

    /// SHA-256 of the tokenizer file.
    pub fn tokenizer_sha256(&self) -> Digest {
        self.role(Role::Tokenizer).sha256
    }

    /// SHA-256 of the file of this name, if the model has it.
    pub fn sha256_of(&self, path: &str) -> Option<Digest> {
        self.manifest.files.iter().find(|file| file.path == path).map(|file| file.sha256)
    }

    /// The weights file.
    pub fn weights(&self) -> PathBuf {
        manifest::below(&self.folder, &self.role(Role::Weights).path)
    }

    /// The tokenizer file.
    pub fn tokenizer(&self) -> PathBuf {
        manifest::below(&self.folder, &self.role(Role::Tokenizer).path)
    }

    fn role(&self, role: Role) -> &InstalledFile {
        self.manifest
            .file(role)
            .expect("an installed model was compared with its entry, which has one of each role")
    }
}

/// The installed model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// There is no place for models.
    #[error(
        "there is no folder for models: XDG_CACHE_HOME and HOME are not set. Set model.dir = \"/a/folder\""
    )]
    NoDir,
    /// What lies there is not what was installed.
    #[error("the model in {} is damaged: {why}. Type `forebay model pull {name} --force`", folder.display())]
    Damaged {
        /// Name of the model.
        name: String,
        /// Its folder.
        folder: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The file system refused.
    #[error("cannot read {}: {source}. Check its permissions, or set model.dir", path.display())]
    Io {
        /// What was read.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// One model found in the folder of models.
#[derive(Debug)]
pub struct Listed {
    /// Name of its folder: the model's name in lower case.
    pub name: String,
    /// First eight digits of its revision.
    pub rev8: String,
    /// Its manifest, or why it cannot be read.
    pub manifest: Result<Manifest, CacheError>,
}

/// The folder of models: `model.dir`, else `$XDG_CACHE_HOME/forebay/models`, else `$HOME/.cache/forebay/models`.
///
/// # Errors
/// [`CacheError::NoDir`] when none of them is set.
pub fn models_dir(setting: &str) -> Result<PathBuf, CacheError> {
    dir_from(setting, |name| std::env::var_os(name)).ok_or(CacheError::NoDir)
}

fn dir_from(setting: &str, env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if !setting.is_empty() {
        return Some(PathBuf::from(setting));
    }
    // A relative XDG_CACHE_HOME is to be ignored, says its specification.
    let absolute = |name| env(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("forebay").join("models"))
}

/// Where a model is, or will be, installed.
pub fn folder(dir: &Path, entry: &Entry) -> PathBuf {
    dir.join(entry.name.to_lowercase()).join(entry.rev8())
}

/// The installed model, if there is one; else the one in a hub cache, if `dir` is such a cache.
///
/// Cheap: files whose size and time are the manifest's are not read. One that was touched (copied, restored from a
/// backup) is hashed once, and its new time is noted.
///
/// # Errors
/// [`CacheError::Damaged`] when it is there but is not what the manifest and the entry say.
pub fn installed(dir: &Path, entry: &Entry) -> Result<Option<Installed>, CacheError> {
    let folder = folder(dir, entry);
    if !folder.exists() {
        return hub_cache::installed(dir, entry);
    }
    let damaged = |why: String| CacheError::Damaged { name: entry.name.clone(), folder: folder.clone(), why };
    let mut manifest = read_manifest(&entry.name, &folder)?;
    if let Some(why) = mismatch(&manifest, entry) {
        return Err(damaged(why));
    }
    let mut touched = false;
    for file in &mut manifest.files {
        let path = manifest::below(&folder, &file.path);
        let meta = fs::metadata(&path).map_err(|error| damaged(format!("{}: {error}", file.path)))?;
        if meta.len() != file.size {
            return Err(damaged(format!("{} has {} bytes instead of {}", file.path, meta.len(), file.size)));
        }
        let mtime_ns = manifest::mtime_ns(&meta);
        if mtime_ns != file.mtime_ns {
            let hashed = manifest::hash_file(&path, &mut |_| ());
            let (found, _) = hashed.map_err(|source| CacheError::Io { path, source })?;
            if found != file.sha256 {
                return Err(damaged(format!("{} was changed (sha256 {})", file.path, found.short(16))));
            }
            (file.mtime_ns, touched) = (mtime_ns, true);
        }
    }
    if touched && let Err(error) = manifest.write(&folder) {
        // A read-only folder works too; it is only hashed again at the next start.
        tracing::debug!(folder = %folder.display(), %error, "could not note the new times of the model's files");
    }
    Ok(Some(Installed { folder, manifest }))
}

pub(super) fn read_manifest(name: &str, folder: &Path) -> Result<Manifest, CacheError> {
    Manifest::read(folder).map_err(|error| CacheError::Damaged {
        name: name.to_owned(),
        folder: folder.to_owned(),
        why: format!("{}: {error}", manifest::FILE),
    })
}

/// What in a manifest is not as the entry says, if anything.
pub(super) fn mismatch(manifest: &Manifest, entry: &Entry) -> Option<String> {
    if manifest.name != entry.name || manifest.revision != entry.revision {
        return Some(format!(
            "it is {}@{}, not {}@{}",
            manifest.name, manifest.revision, entry.name, entry.revision
        ));
    }
    entry.files.iter().find_map(|wanted| {
        let path = wanted.installed_path();
        let Some(file) = manifest.files.iter().find(|file| file.path == path && file.role == wanted.role)
        else {
            return Some(format!("{path} is not in its manifest"));
        };
        let received = match (&wanted.convert, &file.converted_from) {
            // Made from a pickle that nothing pins, with --trust; likewise.
            (None, Some(_)) if manifest.trusted => return None,
            (None, _) => file.sha256,
            (Some(_), Some(from)) => from.sha256,
            // Taken as it was from a folder, with --trust: there is nothing to compare it with.
            (Some(_), None) => return None,
        };
        let pinned = wanted.sha256?;
        (received != pinned)
            .then(|| format!("{} is not the pinned file (sha256 {})", wanted.path, received.short(16)))
    })
}

/// Everything in the folder of models, by name.
///
/// # Errors
/// When the folder is there and cannot be read.
pub fn list(dir: &Path) -> Result<Vec<Listed>, CacheError> {
    let mut listed = Vec::new();
    for name in names(dir)? {
        for rev8 in names(&dir.join(&name))? {
            let manifest = read_manifest(&name, &dir.join(&name).join(&rev8));
            listed.push(Listed { name: name.clone(), rev8, manifest });
        }
    }
    Ok(listed)
}

/// Sub-folders that belong to nobody's pull, sorted. A folder that is not there has none.
fn names(dir: &Path) -> Result<Vec<String>, CacheError> {
    let failed = |source| CacheError::Io { path: dir.to_owned(), source };
    let found = match fs::read_dir(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for item in found {
        let item = item.map_err(failed)?;
        let name = item.file_name().to_string_lossy().into_owned();
        let ours = !name.starts_with('.') && !name.starts_with("models--");
        if item.path().is_dir() && ours {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(setting: &str, vars: &[(&str, &str)]) -> Option<String> {
        let env =
            |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
        dir_from(setting, env).map(|path| path.display().to_string())
    }

    #[test]
    fn the_setting_wins_then_xdg_then_home_then_nothing() {
        let both = [("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(dir("/m", &both).unwrap(), "/m");
        assert_eq!(dir("", &both).unwrap(), "/x/forebay/models");
        assert_eq!(dir("", &both[1..]).unwrap(), "/h/.cache/forebay/models");
        assert_eq!(
            dir("", &[("XDG_CACHE_HOME", "rel"), ("HOME", "/h")]).unwrap(),
            "/h/.cache/forebay/models"
        );
        assert_eq!(dir("", &[("HOME", "")]), None);
        assert!(CacheError::NoDir.to_string().contains("model.dir"));
    }
}

//! The layout in which the hub's own tools keep models: `models--OWNER--NAME/snapshots/REVISION/`, whose files are
//! links into `blobs/`. It can be read in place; nothing is written there.

use std::path::{Path, PathBuf};

use super::{
    cache::{CacheError, Installed},
    entry::Entry,
    manifest::{self, InstalledFile, Manifest},
};

/// The pinned snapshot of `entry` in `dir`: the cache, a folder that holds it as `hub`, or the repository's folder.
pub(super) fn snapshot(dir: &Path, entry: &Entry) -> Option<PathBuf> {
    let repo = format!("models--{}", entry.hub.as_ref()?.repo.replace('/', "--"));
    let places = [dir.join(&repo), dir.join("hub").join(&repo), dir.to_owned()];
    places.into_iter().map(|place| place.join("snapshots").join(&entry.revision)).find(|place| place.is_dir())
}

/// The model as a snapshot holds it, every byte hashed: there is no manifest to say that it was done before. `None`:
/// there is no snapshot, or it cannot be used as it is (a torch pickle is only read when a model is pulled).
pub(super) fn installed(dir: &Path, entry: &Entry) -> Result<Option<Installed>, CacheError> {
    let Some(folder) = snapshot(dir, entry) else { return Ok(None) };
    if entry.files.iter().any(|file| file.convert.is_some() || file.sha256.is_none()) {
        return Ok(None);
    }
    let damaged = |why: String| CacheError::Damaged { name: entry.name.clone(), folder: folder.clone(), why };
    let mut files = Vec::new();
    for file in &entry.files {
        let path = manifest::below(&folder, &file.path);
        let unread = |error: std::io::Error| damaged(format!("{}: {error}", file.path));
        let meta = path.metadata().map_err(unread)?;
        if let Some(size) = file.size.filter(|size| *size != meta.len()) {
            return Err(damaged(format!("{} has {} bytes instead of {size}", file.path, meta.len())));
        }
        let (sha256, size) = manifest::hash_file(&path, &mut |_| ()).map_err(unread)?;
        if file.sha256 != Some(sha256) {
            let sha256 = sha256.short(16);
            return Err(damaged(format!("{} is not the pinned file (sha256 {sha256})", file.path)));
        }
        let mtime_ns = manifest::mtime_ns(&meta);
        let (path, role) = (file.path.clone(), file.role);
        files.push(InstalledFile { path, role, sha256, size, mtime_ns, converted_from: None });
    }
    let manifest = Manifest {
        format: manifest::FORMAT,
        name: entry.name.clone(),
        revision: entry.revision.clone(),
        source: "hub cache".into(),
        origin: folder.display().to_string(),
        trusted: false,
        installed_at: String::new(),
        files,
    };
    Ok(Some(Installed { folder, manifest }))
}

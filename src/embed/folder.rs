//! A model from a folder: a plain one, one pulled before, or a hub cache (whose files are symlinks).

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use super::{
    entry::{Entry, ModelFile},
    fail::Trouble,
    pull::{Delivery, Meter, Received},
    stage::Stage,
};

/// Copies the files and hashes them on the way.
pub(super) fn fetch(
    entry: &Entry,
    from: &Path,
    trust: bool,
    stage: &Stage,
    meter: &Meter,
) -> Result<Delivery, Trouble> {
    let place = locate(entry, from);
    let found: Vec<_> = entry.files.iter().map(|file| find(file, &place)).collect::<Result<_, _>>()?;
    let unpinned = |(file, at): &(&ModelFile, &Found)| file.sha256.is_none() || at.ready;
    let untrusted: Vec<_> = entry
        .files
        .iter()
        .zip(&found)
        .filter(unpinned)
        .map(|(_, at)| at.path.display().to_string())
        .collect();
    if !untrusted.is_empty() && !trust {
        return Err(Trouble::Untrusted { from: "the folder".into(), what: untrusted.join(", ") });
    }
    let received = entry.files.iter().zip(&found).map(|(file, at)| copy(file, at, stage, meter));
    Ok(Delivery {
        source: "folder",
        origin: place.display().to_string(),
        received: received.collect::<Result<_, _>>()?,
        trusted: !untrusted.is_empty(),
    })
}

/// Where a file is, and whether it is there in its converted form only.
struct Found {
    path: PathBuf,
    ready: bool,
}

/// The folder itself, or the snapshot in it when it is a hub cache.
fn locate(entry: &Entry, from: &Path) -> PathBuf {
    let snapshot = |cache: &Path| cache.join("snapshots").join(&entry.revision);
    let in_cache =
        entry.hub.as_ref().map(|hub| from.join(format!("models--{}", hub.repo.replace('/', "--"))));
    let mut places = vec![snapshot(from)];
    places.extend(in_cache.iter().map(|cache| snapshot(cache)));
    places.into_iter().find(|place| place.is_dir()).unwrap_or_else(|| from.to_owned())
}

fn find(file: &ModelFile, place: &Path) -> Result<Found, Trouble> {
    let wanted = super::manifest::below(place, &file.path);
    if wanted.is_file() {
        return Ok(Found { path: wanted, ready: false });
    }
    let converted = super::manifest::below(place, file.installed_path());
    if converted.is_file() {
        return Ok(Found { path: converted, ready: true });
    }
    Err(Trouble::Missing { file: file.path.clone(), place: place.display().to_string() })
}

fn copy(file: &ModelFile, at: &Found, stage: &Stage, meter: &Meter) -> Result<Received, Trouble> {
    let name = if at.ready { file.installed_path() } else { &file.path };
    let mut source = File::open(&at.path).map_err(Trouble::io("read", &at.path))?;
    let received = meter.take(file, name, &mut source, &stage.place(name)?)?;
    if !at.ready {
        received.check(file, &at.path.display().to_string())?;
    }
    Ok(received)
}

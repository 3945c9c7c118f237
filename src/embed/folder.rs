//! A model from a folder: a plain one, one pulled before, or a hub cache (whose files are symlinks).

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use super::{
    entry::{Entry, ModelFile, Role},
    fail::Trouble,
    hub_cache,
    pull::{Delivery, Meter, Received},
    stage::Stage,
};

/// Copies the files and hashes them on the way.
pub(super) fn fetch(
    entry: &Entry,
    from: &Path,
    (trust, convert): (bool, bool),
    stage: &Stage,
    meter: &Meter,
) -> Result<Delivery, Trouble> {
    let place = hub_cache::snapshot(from, entry).unwrap_or_else(|| from.to_owned());
    let found: Vec<_> =
        entry.files.iter().map(|file| find(entry, file, &place, convert)).collect::<Result<_, _>>()?;
    let unpinned = |(file, at): &(&ModelFile, &Found)| file.sha256.is_none() || !at.pinned;
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

/// The weights as torch writes them.
const PICKLE: &str = "pytorch_model.bin";

/// Where a file is.
struct Found {
    path: PathBuf,
    /// The path it has in the model.
    name: String,
    /// Whether it is the file of the entry, and not one made from it or in its place.
    pinned: bool,
}

fn find(entry: &Entry, file: &ModelFile, place: &Path, convert: bool) -> Result<Found, Trouble> {
    let wanted = super::manifest::below(place, &file.path);
    if wanted.is_file() {
        return Ok(Found { path: wanted, name: file.path.clone(), pinned: true });
    }
    let converted = super::manifest::below(place, file.installed_path());
    if converted.is_file() {
        return Ok(Found { path: converted, name: file.installed_path().to_owned(), pinned: false });
    }
    let pickle = place.join(PICKLE);
    if convert && file.role == Role::Weights && pickle.is_file() {
        return Ok(Found { path: pickle, name: PICKLE.to_owned(), pinned: false });
    }
    let (file, place) = (file.path.clone(), place.to_owned());
    if file == entry.file(Role::Weights).path {
        return Err(Trouble::NoWeights { wanted: file, found: weights_in(&place), place });
    }
    Err(Trouble::Missing { file, place: place.display().to_string() })
}

/// Files that hold weights in some form, two folders deep (`onnx/model.onnx`).
fn weights_in(place: &Path) -> Vec<String> {
    const FORMS: [&str; 10] =
        ["safetensors", "bin", "pt", "pth", "ckpt", "onnx", "gguf", "h5", "incomplete", "part"];
    let names = |folder: &Path| -> Vec<PathBuf> {
        let found = std::fs::read_dir(folder).into_iter().flatten();
        found.filter_map(|item| Some(item.ok()?.path())).collect()
    };
    let top = names(place);
    let deeper: Vec<_> = top.iter().filter(|path| path.is_dir()).flat_map(|path| names(path)).collect();
    let is_form = |path: &&PathBuf| path.extension().is_some_and(|end| FORMS.iter().any(|form| end == *form));
    let within = |path: &PathBuf| path.strip_prefix(place).map(|path| path.display().to_string()).ok();
    let mut found: Vec<_> = top.iter().chain(&deeper).filter(is_form).filter_map(within).collect();
    found.sort();
    found
}

fn copy(file: &ModelFile, at: &Found, stage: &Stage, meter: &Meter) -> Result<Received, Trouble> {
    let mut source = File::open(&at.path).map_err(Trouble::io("read", &at.path))?;
    let received = meter.take(file, &at.name, &mut source, &stage.place(&at.name)?)?;
    if at.pinned {
        received.check(file, &at.path.display().to_string())?;
    }
    Ok(received)
}

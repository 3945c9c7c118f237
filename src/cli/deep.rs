//! What `check --deep` tries besides: every byte of the model's files, the fast kernels against the plain path, every
//! file of the data folder, and ledger against sink.

use std::{path::Path, sync::Arc};

use super::{setup, tick::Tick};
use crate::{
    config::Config,
    embed::{
        self, Embed, cache,
        entry::Entry,
        self_test::{cosine, cosine_min, vectors},
        verify::{self, FileState},
    },
    folder::{FolderError, budgets},
    ops::verify::verify as compare,
};

/// Every file of the model hashed against its manifest and its entry.
pub(super) fn model_files(config: &Config) -> Tick {
    Tick::needed("model files", hashed(config))
}

fn hashed(config: &Config) -> Result<String, String> {
    let name = &config.model.name;
    if name == "instant" {
        return Ok("\"instant\" has none".into());
    }
    let entry = Entry::find(name).map_err(|error| error.to_string())?;
    let dir = cache::models_dir(&config.model.dir).map_err(|error| error.to_string())?;
    let found = verify::verify(&dir, entry, &|_, _| ()).map_err(|error| error.to_string())?;
    let Some(found) = found else {
        // Of a hub cache every byte is hashed whenever it is opened.
        let installed = cache::installed(&dir, entry).map_err(|error| error.to_string())?;
        let files = installed.ok_or_else(|| format!("not installed; type `forebay model pull {name}`"))?;
        return Ok(format!("{} of a hub cache are what is pinned", files.manifest.files.len()));
    };
    if found.is_sound() {
        let bytes: u64 = found.files.iter().map(|file| file.size).sum();
        return Ok(format!("{} files, {} MiB, are what was installed", found.files.len(), bytes >> 20));
    }
    let bad =
        found.files.iter().filter(|file| matches!(file.state, FileState::Changed | FileState::Unreadable(_)));
    let bad: Vec<&str> = bad.map(|file| file.path.as_str()).chain(found.mismatch.as_deref()).collect();
    Err(format!("{} must not be used; type `forebay model pull {name} --force`", bad.join(", ")))
}

/// The fast kernels against the plain path. The model goes first: both at once may be too much for this machine.
pub(super) fn reference(config: &Config, model: Arc<dyn Embed>) -> Tick {
    let device = model.capacity().device;
    Tick::needed("kernels", compared(config, &device, model))
}

fn compared(config: &Config, device: &str, model: Arc<dyn Embed>) -> Result<String, String> {
    let settings = &config.model;
    if settings.name == "instant" {
        return Ok("\"instant\" has none".into());
    }
    if device == "cpu" && settings.kernel == "candle" {
        return Ok("model.kernel = \"candle\" is the plain path itself".into());
    }
    let found = vectors(model.as_ref(), settings)?;
    drop(model);
    let (device_set, kernel, compute) = ("cpu".into(), "candle".into(), "f32".into());
    let plain = embed::Settings { device: device_set, kernel, compute, ..settings.clone() };
    let plain_model = embed::open(&plain).map_err(|error| error.to_string())?;
    let wanted = vectors(plain_model.as_ref(), &plain)?;
    let lowest = found
        .iter()
        .zip(&wanted)
        .map(|(a, b)| cosine(a, b))
        .fold(1.0, |lowest, one| if one.is_nan() { one } else { one.min(lowest) });
    let limit = cosine_min(&settings.compute);
    if lowest >= limit {
        return Ok(format!(
            "{} golden texts as candle computes them, lowest cosine {lowest:.7}",
            wanted.len()
        ));
    }
    Err(format!(
        "they compute other vectors than candle does (lowest cosine {lowest:.6}, {limit} is needed); go on with \
         `--set model.device=cpu --set model.kernel=candle`, and report this"
    ))
}

/// Files that nothing is opened from, and so nobody has looked at yet.
pub(super) fn data_files(config: &Config) -> Tick {
    Tick::noted("data folder files", looked_at(&config.data.dir))
}

fn looked_at(dir: &Path) -> Result<String, String> {
    let (mut files, mut bytes, mut aside) = (0_u64, 0_u64, Vec::new());
    for entry in std::fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.contains(".damaged-") {
            aside.push(name);
        }
        if let Ok(meta) = entry.metadata() {
            (files, bytes) = (files + 1, bytes + if meta.is_file() { meta.len() } else { 0 });
        }
    }
    let reports = std::fs::read(dir.join("runs.jsonl")).unwrap_or_default();
    let lines = || reports.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let torn = lines().filter(|line| serde_json::from_slice::<serde_json::Value>(line).is_err()).count();
    let mut wrong = Vec::new();
    if torn > 0 {
        wrong.push(format!(
            "runs.jsonl has {torn} lines that are no reports; nothing rests on it: take them out"
        ));
    }
    if !budgets::is_sound(dir) {
        wrong.push(
            "budgets.json is no budget file; nothing rests on it: it is written anew when it is needed"
                .into(),
        );
    }
    if let Some(first) = aside.first() {
        let n = aside.len();
        wrong.push(format!(
            "{n} damaged queues lie aside, {first} for one; their work was made again: remove them"
        ));
    }
    if wrong.is_empty() {
        return Ok(format!("{files}, {} MiB beside the queue; {} run reports", bytes >> 20, lines().count()));
    }
    Err(wrong.join("; "))
}

/// Ledger against sink, both ways, and a sample of vectors.
pub(super) fn contents(config: &Config, model: &dyn Embed) -> Tick {
    let folder = match setup::try_folder(config) {
        Ok(folder) => folder,
        Err(FolderError::Held { .. }) => {
            let why = "a run holds the data folder; type `forebay verify` when it has ended";
            return Tick::noted("contents", Err(why.into()));
        }
        Err(error) => return Tick::needed("contents", Err(error.to_string())),
    };
    let found = setup::sink(config).and_then(|sink| compare(&folder, sink.as_ref(), Some(model.identity())));
    let says = found.and_then(|found| {
        let (rows, sampled) = (found.ledger_rows, found.sampled);
        let sound = format!("{rows} rows in the ledger and in the sink, {sampled} vectors looked at");
        let why = || format!("{}; type `forebay verify`", found.problems.join("; "));
        found.ok.then_some(sound).ok_or_else(why)
    });
    Tick::needed("contents", says)
}

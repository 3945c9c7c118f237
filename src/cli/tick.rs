//! What `check` tries, one after the other.

use std::{path::Path, sync::Arc};

use serde_json::Value;

use super::{deep, setup};
use crate::{
    config::{Config, Loaded},
    embed::{Embed, cache, self_test, threads::threads_of},
    folder::{FolderError, free_mb},
    ops::{command::Command, control},
};

/// One thing that was tried.
pub(super) struct Tick {
    pub(super) what: &'static str,
    pub(super) result: Result<String, String>,
    /// Whether a run needs it; else its failure is only pointed at.
    pub(super) needed: bool,
}

impl Tick {
    pub(super) fn needed(what: &'static str, result: Result<String, String>) -> Self {
        Self { what, result, needed: true }
    }

    pub(super) fn noted(what: &'static str, result: Result<String, String>) -> Self {
        Self { what, result, needed: false }
    }

    pub(super) fn passes(&self) -> bool {
        self.result.is_ok() || !self.needed
    }

    pub(super) fn says(&self) -> &str {
        self.result.as_ref().unwrap_or_else(|why| why)
    }
}

/// Everything, `deep` with what takes its time.
pub(super) fn all(loaded: &Loaded, deep: bool) -> Vec<Tick> {
    let config = &loaded.config;
    let file = loaded.file.as_ref().map_or_else(
        || "no settings file; `forebay init` writes one".to_owned(),
        |file| format!("from {}", file.display()),
    );
    let (threads, origin) = threads_of(config.model.threads);
    let mut ticks = vec![
        Tick::needed("settings", Ok(format!("{} values, {file}", loaded.origins.len()))),
        Tick::needed("threads", Ok(format!("{threads} for the forward pass ({origin})"))),
        Tick::needed("models", models(config)),
    ];
    let model = setup::model(config);
    let says = model
        .as_ref()
        .map(|model| {
            let (capacity, identity, dim) = (model.capacity(), model.identity(), model.dim());
            format!("{identity}, {dim} numbers; {}", capacity.says(capacity.tokens, capacity.source))
        })
        .map_err(Clone::clone);
    ticks.push(Tick::needed("model", says));
    if let Ok(model) = &model {
        ticks.push(Tick::needed("self-test", self_test(config, model.as_ref())));
    }
    let status = status(config);
    ticks.push(Tick::needed("data folder", folder(config, &status)));
    if config.data.dir.exists() {
        ticks.push(Tick::needed("disk", disk(config)));
    }
    if let Ok(status) = &status {
        ticks.push(Tick::noted("sources", sources(status)));
        ticks.push(Tick::noted("dead letters", dead_letters(config, status)));
        if let Ok(model) = &model {
            ticks.push(Tick::needed("sink", sink(config, model, status)));
        }
    }
    if deep {
        ticks.push(deep::model_files(config));
        ticks.push(deep::data_files(config));
        if let Ok(model) = model {
            ticks.push(deep::contents(config, model.as_ref()));
            ticks.push(deep::reference(config, model));
        }
    }
    ticks
}

fn models(config: &Config) -> Result<String, String> {
    if config.model.name == "instant" {
        return Ok(
            "none is needed: model.name = \"instant\" makes hashes, good for trying the line only".into()
        );
    }
    let dir = cache::models_dir(&config.model.dir).map_err(|error| error.to_string())?;
    let listed = cache::list(&dir).map_err(|error| error.to_string())?;
    let names: Vec<String> =
        listed.into_iter().map(|model| format!("{}@{}", model.name, model.rev8)).collect();
    let names = if names.is_empty() { "nothing installed".to_owned() } else { names.join(", ") };
    Ok(format!("{}: {names}", dir.display()))
}

/// Golden texts, alone, together, and against the reference where there is one.
fn self_test(config: &Config, model: &dyn Embed) -> Result<String, String> {
    let found = self_test::self_test(model, &config.model).map_err(|refused| refused.to_string())?;
    Ok(found.map_or_else(
        || "\"instant\" has nothing to test".into(),
        |found| {
            format!(
                "{} golden texts, {} with a reference, lowest cosine {:.7}",
                found.texts, found.golden, found.cosine
            )
        },
    ))
}

/// What the folder holds: from the run that has it, or from itself. It is made when it is not there.
fn status(config: &Config) -> Result<Value, String> {
    let dir = &config.data.dir;
    if let Some(answer) = control::ask(dir, &Command::Status) {
        return answer;
    }
    match setup::try_folder(config) {
        // Closed again at once: whoever asks must find it free.
        Ok(folder) => drop(folder),
        Err(FolderError::Held { .. }) => {}
        Err(error) => return Err(error.to_string()),
    }
    setup::command(config, &Command::Status)
}

fn folder(config: &Config, status: &Result<Value, String>) -> Result<String, String> {
    let status = status.as_ref().map_err(Clone::clone)?;
    let dir = config.data.dir.display();
    let store = status["store"].as_str().unwrap_or_default();
    let holder = match status.pointer("/run/pid") {
        Some(pid) => format!("held by the run of process {pid}"),
        None => "free".into(),
    };
    Ok(format!(
        "{dir}, store {store}, {holder}; {} chunks written, {} pending",
        status["written"], status["queue"]["pending"]
    ))
}

fn disk(config: &Config) -> Result<String, String> {
    let (dir, wanted) = (&config.data.dir, config.limits.min_free_mb);
    match free_mb(dir) {
        None => Ok("the free space cannot be told here".into()),
        Some(free) if free < wanted => Err(format!(
            "{} has {free} MiB free, less than limits.min_free_mb = {wanted}: no chunk would be taken up; free some \
             space, or set another data.dir",
            dir.display()
        )),
        Some(free) => Ok(format!("{free} MiB free, limits.min_free_mb = {wanted}")),
    }
}

fn sources(status: &Value) -> Result<String, String> {
    let unread: Vec<&str> =
        status["unread_sources"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let gone: Vec<&str> =
        unread.iter().copied().filter(|uri| uri.starts_with('/') && !Path::new(uri).exists()).collect();
    match (unread.len(), gone.first()) {
        (0, _) => Ok("none is left unread".into()),
        (n, None) => Err(format!("{n} were not read to their ends; `forebay run` reads them")),
        (n, Some(first)) => Err(format!(
            "{n} were not read to their ends, and {} of them are gone, {first} for one; bring them back and type \
             `forebay run`",
            gone.len()
        )),
    }
}

fn dead_letters(config: &Config, status: &Value) -> Result<String, String> {
    let (open, depth) = (status["dead_open"].as_u64().unwrap_or(0), config.dlq.alert_depth);
    match open {
        0 => Ok("none is open".into()),
        open if open < depth => Ok(format!("{open} are open; `forebay dlq stats` says why")),
        open => Err(format!("{open} are open, dlq.alert_depth = {depth}; look at `forebay dlq stats`")),
    }
}

fn sink(config: &Config, model: &Arc<dyn Embed>, status: &Value) -> Result<String, String> {
    let sink = setup::sink(config)?;
    let store = status["store"].as_str().unwrap_or_default();
    sink.preflight(model.identity(), model.dim(), store, false).map_err(|error| error.to_string())?;
    sink.probe().map_err(|error| {
        format!(
            "{error}; see what else writes to it (sink.busy_timeout_ms = {})",
            config.sink.busy_timeout_ms
        )
    })?;
    Ok(format!("{}: a probe row could be written", sink.kind()))
}

//! From what was typed to open parts, with messages that say what to type next.

use std::{path::Path, sync::Arc};

use super::{Shared, session::Session};
use crate::{
    config::{Config, Flag, Loaded, Request, Setting, may_hold_secret},
    embed::{
        self, Embed,
        self_test::{SelfTest, self_test},
    },
    folder::{Folder, FolderError},
    ops::{
        command::Command,
        forget::{self, Reading},
        verify::same_sink,
    },
    pipeline::{Line, RunSettings, alert, full::Before},
    queue::policy::wait_longest_ms,
    sink::{self, Sink},
};

/// Every setting, as the flags alone make it: no file, no environment.
pub(super) fn flags_alone(shared: &Shared) -> Result<Vec<Setting>, String> {
    // A folder that is not there holds no settings file.
    let nowhere = uuid::Uuid::now_v7().to_string().into();
    let request = Request { dir: nowhere, flags: flags(shared, &[])?, ..Request::default() };
    Config::load(&request).map(|loaded| loaded.origins).map_err(|error| error.to_string())
}

/// Loads the configuration; `defaults` are flags of the verb that the user's own come after.
pub(super) fn config(shared: &Shared, defaults: &[(&str, &str)]) -> Result<Loaded, String> {
    let env = std::env::vars_os().collect();
    let flags = flags(shared, defaults)?;
    let request = Request { file: shared.config.clone(), env, flags, ..Request::default() };
    Config::load(&request).map_err(|error| error.to_string())
}

/// A path that is an address is refused without showing it.
pub(super) fn is_local(what: &str, path: &Path) -> Result<(), String> {
    if path.to_str().is_some_and(may_hold_secret) {
        return Err(format!(
            "{what} takes paths of this machine, not an address; fetch it first, for example with curl"
        ));
    }
    Ok(())
}

fn flags(shared: &Shared, defaults: &[(&str, &str)]) -> Result<Vec<Flag>, String> {
    let flag = |key: &str, value: &str, typed: &str| Flag {
        key: key.into(),
        value: value.into(),
        typed: typed.into(),
    };
    let mut flags: Vec<Flag> = defaults.iter().map(|(key, value)| flag(key, value, "this verb")).collect();
    for setting in &shared.settings {
        // What is no key is not shown: it may be an address with a password in it.
        let is_key = |key: &str| key.chars().all(|c| c.is_ascii_alphanumeric() || "._- ".contains(c));
        let pair = setting.split_once('=').filter(|(key, _)| is_key(key));
        let (key, value) = pair.ok_or("--set: expected KEY=VALUE, for example --set retry.max_attempts=5")?;
        flags.push(flag(key.trim(), value.trim(), &format!("--set {}", key.trim())));
    }
    if let Some(dir) = &shared.data_dir {
        let dir = dir.to_str().ok_or("--data-dir: the path is not UTF-8; use another one")?;
        flags.push(flag("data.dir", dir, "--data-dir"));
    }
    if let Some(model) = &shared.model {
        flags.push(flag("model.name", model, "--model"));
    }
    Ok(flags)
}

/// Loads the model.
pub(super) fn model(config: &Config) -> Result<Arc<dyn Embed>, String> {
    let model = embed::open(&config.model).map_err(|error| error.to_string())?;
    if config.model.name == "instant" {
        tracing::warn!(
            "model.name = \"instant\": vectors are hashes, good for trying the line and nothing else"
        );
    }
    Ok(model)
}

/// A model, and what its self-test found.
pub(super) struct Tested {
    pub(super) model: Arc<dyn Embed>,
    /// Lowest cosine; `None`: there was nothing to test.
    pub(super) cosine: Option<f64>,
}

/// Loads the model, and refuses one that does not compute what it should.
pub(super) fn tested_model(config: &Config) -> Result<Tested, String> {
    let model = model(config)?;
    let found = self_test(model.as_ref(), &config.model).map_err(|refused| refused.to_string())?;
    if let Some(SelfTest { cosine, texts, golden }) = found {
        eprintln!("self-test: {texts} golden texts, {golden} with a reference, lowest cosine {cosine:.7}");
    }
    Ok(Tested { model, cosine: found.map(|found| found.cosine) })
}

/// Opens or makes the data folder and says what was mended.
pub(super) fn folder(config: &Config) -> Result<Folder, String> {
    try_folder(config).map_err(|error| error.to_string())
}

/// As [`folder`], with the error as it is.
pub(super) fn try_folder(config: &Config) -> Result<Folder, FolderError> {
    let folder = open_folder(config)?;
    say_recovered(&folder);
    Ok(folder)
}

/// Says what opening mended.
pub(super) fn say_recovered(folder: &Folder) {
    let recovered = &folder.recovered;
    if let Some(why) = &recovered.queue_rebuilt {
        eprintln!(
            "the queue was rebuilt ({why}): {} dead letters are back from the journal, {} sources will be read again; \
             what the ledger holds is not embedded again",
            recovered.letters, recovered.sources
        );
    }
    if recovered.unclean > 0 {
        tracing::info!(chunks = recovered.unclean, "were in flight when the last process died");
    }
}

/// As [`folder`], also when the ledger is gone: it is about to be made again.
pub(super) fn folder_to_rebuild(config: &Config) -> Result<Folder, String> {
    keep_private();
    Folder::open_without_ledger(&config.data.dir, &config.queue, wait_longest_ms(&config.retry))
        .map_err(|error| error.to_string())
}

pub(super) fn open_folder(config: &Config) -> Result<Folder, FolderError> {
    keep_private();
    let folder = Folder::open(&config.data.dir, &config.queue, wait_longest_ms(&config.retry))?;
    folder.queue.quarantine_after(config.dlq.max_redrives);
    Ok(folder)
}

/// From here on, whatever is made is its owner's alone: the files of sled and of SQLite, the socket, what is exported.
/// Not from the start: models and settings may be shared.
#[expect(unsafe_code, reason = "std has no call for the mask of new files")]
fn keep_private() {
    // SAFETY: a plain system call that cannot fail.
    unsafe { libc::umask(0o077) };
}

/// Opens the sink; nothing is touched before its preflight.
pub(super) fn sink(config: &Config) -> Result<Arc<dyn Sink>, String> {
    sink::open(&config.sink, &config.data.dir).map(Arc::from).map_err(|error| error.to_string())
}

/// A line over these parts, once it is certain that they belong together.
pub(super) fn line(
    config: &Config,
    tested: &Tested,
    folder: Folder,
    reembed: bool,
    limit: Option<u64>,
    before: Option<Before>,
) -> Result<Arc<Line>, String> {
    let (sink, model) = (sink(config)?, Arc::clone(&tested.model));
    sink.preflight(model.identity(), model.dim(), &folder.store, reembed)
        .map_err(|error| error.to_string())?;
    eprintln!(
        "model {} (dim {}, {} tokens at most), sink {}, data {}",
        model.identity(),
        model.dim(),
        model.max_length(),
        sink.kind(),
        config.data.dir.display()
    );
    // One that was cut short leaves rows in one store only.
    let reading = Reading { source: &config.source, line_bytes: config.limits.line_bytes };
    forget::finish(&folder, sink.as_ref(), reading)?;
    same_sink(&folder, sink.as_ref())?;
    let capacity = model.capacity();
    let settings = RunSettings { limit, self_test: tested.cosine, ..run_settings(config) };
    let line = Line::going_on(folder, model, sink, settings, before).map_err(|error| {
        format!("no thread could be started: {error}; raise the limits of this user (`ulimit -a`)")
    })?;
    let source = line.learning.learned().map_or(capacity.source, |_| "what fitted last, budgets.json");
    eprintln!("{}", capacity.says(line.learning.tokens(), source));
    Ok(line)
}

/// The settings of a run.
fn run_settings(config: &Config) -> RunSettings {
    RunSettings {
        pipeline: config.pipeline.clone(),
        retry: config.retry.clone(),
        breaker: config.breaker.clone(),
        source: config.source.clone(),
        window_chunks: config.queue.window_chunks,
        limits: config.limits.clone(),
        limit: None,
        self_test: None,
        dlq_payload: config.dlq.payload,
        alert: alert::Settings {
            depth: config.dlq.alert_depth,
            age_h: config.dlq.alert_age_h,
            command: config.dlq.alert_command.clone(),
        },
    }
}

/// Refuses to make a data folder where only one that exists makes sense.
pub(super) fn exists(dir: &Path) -> Result<(), String> {
    // Any of its parts may be the one that was lost.
    if ["witness", "ledger.db", "dead-letters.jsonl", "queue"].iter().any(|name| dir.join(name).exists()) {
        return Ok(());
    }
    Err(format!(
        "there is no data folder at {}; `forebay run PATH` makes one, --data-dir names another",
        dir.display()
    ))
}

/// Carries a verb of one step out: by the process that holds the folder, or here.
pub(super) fn command(config: &Config, command: &Command) -> Result<serde_json::Value, String> {
    Session::new(config)?.ask(command)
}

/// As [`folder`], with letters purged that were closed more than `dlq.retain_days` ago.
pub(super) fn folder_to_run(config: &Config) -> Result<Folder, String> {
    let opened = folder(config)?;
    if config.dlq.retain_days == 0 {
        return Ok(opened);
    }
    let keep_ms = config.dlq.retain_days.saturating_mul(86_400_000);
    let now_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    let purged =
        opened.queue.purge_closed(now_ms.saturating_sub(keep_ms)).map_err(|error| error.to_string())?;
    if purged == 0 {
        return Ok(opened);
    }
    tracing::info!(purged, "dead letters were closed more than dlq.retain_days ago");
    // Opened again, the store is written anew without their bytes.
    drop(opened);
    folder(config)
}

//! `enqueue`: register sources and fill the queue; the embedding is left to a run.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::Value;

use super::{Exit, Shared, run, setup, stdin};
use crate::{
    config::Config,
    embed::Embed,
    folder::{Folder, FolderError, spool::Spooled},
    ops::{
        command::Command,
        control::{self, Asked},
    },
    pipeline::enqueue,
    source,
};

/// How long a folder whose holder is starting or ending is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Files of JSON lines; `-` takes standard input
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

pub(super) fn enqueue(shared: &Shared, arguments: &Arguments) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    stdin::check_paths(&arguments.paths)?;
    let answer = carry_out(&config, &arguments.paths)?;
    print(&answer, shared.json);
    let empty = |name: &str| answer[name].as_array().is_none_or(Vec::is_empty);
    Ok(match &answer {
        _ if answer["halted"].is_string() => Exit::Halted,
        _ if answer["interrupted"] == true => Exit::Interrupted,
        _ if answer["dead"].as_u64().unwrap_or(0) > 0 || !empty("incomplete") => Exit::Partial,
        _ => Exit::Ok,
    })
}

/// By the run that holds the folder, or here.
fn carry_out(config: &Config, paths: &[PathBuf]) -> Result<Value, String> {
    let dir = &config.data.dir;
    let (start, mut spooled, mut model) = (Instant::now(), None, None);
    loop {
        if control::is_served(dir) {
            match ask_run(config, paths, &mut spooled)? {
                Some(answer) => return Ok(answer),
                // It ended meanwhile; what is spooled is not spooled twice.
                None => continue_after(start)?,
            }
        }
        if model.is_none() {
            model = Some(setup::model(config)?);
        }
        match setup::try_folder(config) {
            Ok(folder) => {
                let model: Arc<dyn Embed> = model.take().ok_or("the model is loaded once")?;
                return run::runtime()?.block_on(here(config, model, folder, paths, spooled.take()));
            }
            Err(FolderError::Held { .. }) if start.elapsed() < PATIENCE => {
                std::thread::park_timeout(Duration::from_millis(100));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn continue_after(start: Instant) -> Result<(), String> {
    let patient = start.elapsed() < PATIENCE.max(Duration::from_secs(30));
    patient.then_some(()).ok_or_else(|| "the run that holds the folder does not answer; try again".to_owned())
}

/// `None` when nobody serves the folder any more.
fn ask_run(
    config: &Config,
    paths: &[PathBuf],
    spooled: &mut Option<Spooled>,
) -> Result<Option<Value>, String> {
    if spooled.is_none() && paths.iter().any(|path| stdin::is_stdin(path)) {
        *spooled = Some(stdin::fill(config)?);
    }
    let named = spooled.as_ref().map_or_else(|| paths.to_vec(), |spooled| stdin::in_place(paths, spooled));
    // The run stands in a folder of its own: paths are made absolute here.
    let absolute = |path: &PathBuf| source::canonical_uri(path).map(PathBuf::from);
    let named: Result<Vec<_>, _> = named.iter().map(absolute).collect();
    let command = Command::Enqueue { paths: named.map_err(|error| error.to_string())? };
    match control::ask_for(&config.data.dir, &command) {
        Asked::Answered(value) => {
            if let Some(spooled) = spooled.take() {
                spooled.keep();
            }
            Ok(Some(value))
        }
        Asked::Refused(why) => Err(why),
        Asked::Nobody => Ok(None),
        Asked::Silent(why) => Err(match spooled.take() {
            // It may have been registered: removed, it would be missed.
            Some(spooled) => {
                let kept = format!("{why}. Standard input is kept in {}", spooled.path().display());
                spooled.keep();
                kept
            }
            None => why,
        }),
    }
}

async fn here(
    config: &Config,
    model: Arc<dyn Embed>,
    folder: Folder,
    paths: &[PathBuf],
    spooled: Option<Spooled>,
) -> Result<Value, String> {
    let place = run::Place::default();
    run::background(run::signals(Arc::clone(&place)))?;
    // Nothing is embedded here, so nothing was tested.
    let untested = setup::Tested { model, cosine: None };
    let line = &setup::line(config, &untested, folder, false, None, None)?;
    run::hear_for(&place, line);
    let registered = stdin::register_paths(line, config, paths, spooled, false).await?;
    let enqueued = enqueue::enqueue(line, registered).await.map_err(|error| error.to_string())?;
    serde_json::to_value(&enqueued).map_err(|error| error.to_string())
}

fn print(answer: &Value, json: bool) {
    for why in answer["incomplete"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        eprintln!("incomplete input: {why}");
    }
    if let Some(why) = answer["halted"].as_str() {
        eprintln!("halted: {why}");
    }
    if json {
        println!("{answer}");
        return;
    }
    let sources = answer["sources"].as_array().map_or(0, Vec::len);
    if let Some(run) = answer["by_run"].as_str() {
        println!("{sources} sources registered; run {run} reads them after its own");
        return;
    }
    let number = |name: &str| answer[name].as_u64().unwrap_or(0);
    println!(
        "{sources} sources registered: {} chunks enqueued, {} written before, {} read twice, {} dead; {} are pending",
        number("enqueued"),
        number("skipped"),
        number("duplicates"),
        number("dead"),
        number("pending")
    );
    if answer["window_full"] == true {
        eprintln!(
            "the window (queue.window_chunks) is full: `forebay run` embeds what is pending and reads on"
        );
    }
}

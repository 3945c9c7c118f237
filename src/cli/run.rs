//! `run`: register the sources, embed all that is pending, report.

use std::{
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::{Exit, Shared, full, progress, setup, stdin};
use crate::{
    config::Config,
    embed::threads::threads_of,
    folder::Folder,
    ops::control,
    pipeline::{
        self, Line, Stop,
        report::{Outcome, Report},
    },
};

/// A DLQ share above this is pointed at, in percent.
const DEAD_PCT_WARN: f64 = 0.5;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Folders of text and Markdown, text files, JSONL files (plain, gzip or zstd); `-` takes standard input, which is
    /// kept in the data folder until it is done
    pub(super) paths: Vec<PathBuf>,
    /// Take over a sink that holds another identity: its rows are written anew
    #[arg(long)]
    pub(super) reembed: bool,
    /// Write so many chunks at most, then end with exit 0; the next run goes on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) limit: Option<u64>,
}

pub(super) fn run(shared: &Shared, arguments: &Arguments) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    // What was mistyped is told before a model is loaded or a folder made.
    stdin::check_paths(&arguments.paths)?;
    if arguments.paths.is_empty() {
        setup::exists(&config.data.dir)?;
    }
    let report = embed(&config, &arguments.paths, arguments.reembed, arguments.limit)?;
    print(&report, shared.json);
    // A limited run ends well, unless something died in it.
    let dead = report.outcome == Outcome::Limited && report.dead > 0;
    Ok(if dead { Exit::Partial } else { report.outcome.into() })
}

/// Runs the line and stores its report.
pub(super) fn embed(
    config: &Config,
    paths: &[PathBuf],
    reembed: bool,
    limit: Option<u64>,
) -> Result<Report, String> {
    runtime()?.block_on(embed_on_runtime(config, paths, reembed, limit))
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|error| format!("no async runtime: {error}"))
}

async fn embed_on_runtime(
    config: &Config,
    paths: &[PathBuf],
    reembed: bool,
    limit: Option<u64>,
) -> Result<Report, String> {
    let place = Place::default();
    background(signals(Arc::clone(&place)))?;
    let tested = setup::tested_model(config)?;
    let folder = setup::folder_to_run(config)?;
    if reembed {
        // Another identity makes everything pending again, not only what is named now.
        folder.ledger.read_all_again().map_err(|error| error.to_string())?;
        warn_of_dropped(&folder)?;
    }
    let (threads, origin) = threads_of(config.model.threads);
    eprintln!("{threads} threads for the forward pass ({origin})");
    let line = setup::line(config, &tested, folder, reembed, limit, None)?;
    let mut report = one_line(config, &line, paths, &place).await?;
    let mut full = line.found_full().is_some().then_some(line);
    // Standard input was taken up by the first line.
    let named: Vec<PathBuf> = paths.iter().filter(|path| !stdin::is_stdin(path)).cloned().collect();
    while let Some(line) = full.take() {
        let paused = match full::pause(config, line) {
            Ok(paused) => paused,
            Err(why) => {
                report.halted = Some(why);
                break;
            }
        };
        let Some(folder) = paused.space(config).await? else {
            report.halted = Some(format!(
                "the disk of {} has been full for limits.disk_full_wait_s = {}; free some space and run again",
                config.data.dir.display(),
                config.limits.disk_full_wait_s
            ));
            break;
        };
        let line = setup::line(config, &tested, folder, false, limit, Some(paused.before))?;
        report = one_line(config, &line, &named, &place).await?;
        full = line.found_full().is_some().then_some(line);
    }
    let path = config.data.dir.join("runs.jsonl");
    if let Err(error) = append(&path, &report) {
        // What was written is written: the report is told all the same.
        eprintln!("warning: this report could not be stored in {}: {error}", path.display());
    }
    Ok(report)
}

/// One line from its start to its end, with what goes on beside it.
async fn one_line(
    config: &Config,
    line: &Arc<Line>,
    paths: &[PathBuf],
    place: &Place,
) -> Result<Report, String> {
    hear_for(place, line);
    let beside = async {
        tokio::join!(progress::show(Arc::clone(line)), async {
            if let Err(error) = control::serve(Arc::clone(line)).await {
                tracing::warn!(%error, "no control socket: `status` and `dlq` must wait for the end of the run");
            }
        })
    };
    let work = async {
        let registered = stdin::register_paths(line, config, paths, None, true).await?;
        pipeline::run_registered(line, registered).await.map_err(|error| error.to_string())
    };
    let report: Result<Report, String> = tokio::select! {
        report = work => report,
        _ = beside => return Err("the progress display ended by itself".into()),
    };
    control::remove(&config.data.dir);
    report
}

/// What came by standard input and is done was dropped: it cannot be embedded again from here.
fn warn_of_dropped(folder: &Folder) -> Result<(), String> {
    let dropped = folder.ledger.dropped_sources().map_err(|error| error.to_string())?;
    if dropped > 0 {
        eprintln!(
            "warning: {dropped} inputs came by standard input and are no longer kept; what was written of them keeps its \
             old identity until it is piped in again"
        );
    }
    Ok(())
}

/// One line, durable: what a run said it did must not vanish with the power.
fn append(path: &Path, report: &Report) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let mut text = serde_json::to_vec(report)?;
    text.push(b'\n');
    file.write_all(&text)?;
    file.sync_data()
}

/// The line that signals are meant for.
pub(super) type Place = Arc<Mutex<Weak<Line>>>;

/// From now on signals are meant for this line.
pub(super) fn hear_for(place: &Place, line: &Arc<Line>) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(line);
}

/// The first signal drains, a second one exits now; where there is no line, the first one does.
pub(super) async fn signals(place: Place) -> std::io::Result<()> {
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut next = async || {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
        }
    };
    next().await;
    let line = place.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
    if let Some(line) = line {
        eprintln!("draining; once more to exit now (nothing is lost either way)");
        line.stop(Stop::Interrupted);
        drop(line);
        next().await;
    }
    #[expect(clippy::disallowed_methods, reason = "asked for twice: every store is made for this")]
    std::process::exit(Exit::Interrupted.code().into());
}

#[expect(
    clippy::disallowed_methods,
    reason = "signals must be heard while the model loads, before any actor"
)]
pub(super) fn background(
    task: impl Future<Output = std::io::Result<()>> + Send + 'static,
) -> Result<(), String> {
    tokio::spawn(async move {
        if let Err(error) = task.await {
            tracing::error!(%error, "signals cannot be heard");
        }
    });
    Ok(())
}

/// The report, for people or for machines.
pub(super) fn print(report: &Report, json: bool) {
    for why in &report.incomplete {
        eprintln!("incomplete input: {why}");
    }
    if let Some(why) = &report.halted {
        eprintln!("halted: {why}");
    }
    if report.dead_pct() > DEAD_PCT_WARN {
        eprintln!("warning: {:.2} % went to the DLQ; see `forebay dlq stats`", report.dead_pct());
    }
    if report.outcome == Outcome::Limited {
        eprintln!(
            "stopped by --limit; sources that were not read to their ends are read on by the next `forebay run`"
        );
    }
    if report.pending > 0 {
        eprintln!("{} chunks are still pending; `forebay run` goes on with them", report.pending);
    }
    let line = if json { serde_json::to_string(report).unwrap_or_default() } else { report.to_string() };
    // A reader that went away must not turn a finished run into a failure.
    let _ = writeln!(std::io::stdout(), "{line}");
}

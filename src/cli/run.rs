//! `run`: register the sources, embed all that is pending, report.

use std::{
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::{Exit, Shared, progress, setup};
use crate::{
    config::Config,
    embed::threads::threads_of,
    ops::{control, verify::same_sink},
    pipeline::{self, Line, Stop, report::Report},
    source,
};

/// A DLQ share above this is pointed at, in percent.
const DEAD_PCT_WARN: f64 = 0.5;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Folders of text and Markdown, text files, JSONL files; plain, gzip or zstd
    pub(super) paths: Vec<PathBuf>,
    /// Take over a sink that holds another identity: its rows are written anew
    #[arg(long)]
    pub(super) reembed: bool,
}

pub(super) fn run(shared: &Shared, arguments: &Arguments) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    // What was mistyped is told before a model is loaded or a folder made.
    for path in &arguments.paths {
        source::canonical_uri(path).map_err(|error| error.to_string())?;
    }
    if arguments.paths.is_empty() {
        setup::exists(&config.data.dir)?;
    }
    let report = embed(&config, &arguments.paths, arguments.reembed)?;
    print(&report, shared.json);
    Ok(report.outcome.into())
}

/// Runs the line and stores its report.
pub(super) fn embed(config: &Config, paths: &[PathBuf], reembed: bool) -> Result<Report, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime
        .map_err(|error| format!("no async runtime: {error}"))?
        .block_on(embed_on_runtime(config, paths, reembed))
}

async fn embed_on_runtime(config: &Config, paths: &[PathBuf], reembed: bool) -> Result<Report, String> {
    let line = Arc::new(OnceLock::new());
    background(signals(Arc::clone(&line)))?;
    let model = setup::model(config)?;
    let folder = setup::folder(config)?;
    let sink = setup::sink(config)?;
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
    same_sink(&folder, sink.as_ref())?;
    if reembed {
        // Another identity makes everything pending again, not only what is named now.
        folder.ledger.read_all_again().map_err(|error| error.to_string())?;
    }
    let (threads, origin) = threads_of(config.model.threads);
    eprintln!("{threads} threads for the forward pass ({origin})");
    let started =
        Line::new(folder, model, sink, setup::run_settings(config)).map_err(|error| error.to_string())?;
    let line = line.get_or_init(|| started);
    let beside = async {
        tokio::join!(progress::show(Arc::clone(line)), async {
            if let Err(error) = control::serve(Arc::clone(line)).await {
                tracing::warn!(%error, "no control socket: `status` and `dlq` must wait for the end of the run");
            }
        })
    };
    let report = tokio::select! {
        report = pipeline::run(line, paths) => report,
        _ = beside => return Err("the progress display ended by itself".into()),
    };
    control::remove(&config.data.dir);
    let report = report.map_err(|error| error.to_string())?;
    let path = config.data.dir.join("runs.jsonl");
    if let Err(error) = append(&path, &report) {
        // What was written is written: the report is told all the same.
        eprintln!("warning: this report could not be stored in {}: {error}", path.display());
    }
    Ok(report)
}

/// One line, durable: what a run said it did must not vanish with the power.
fn append(path: &Path, report: &Report) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let mut text = serde_json::to_vec(report)?;
    text.push(b'\n');
    file.write_all(&text)?;
    file.sync_data()
}

/// The first signal drains, a second one exits now; before there is a line, the first one does.
async fn signals(line: Arc<OnceLock<Arc<Line>>>) -> std::io::Result<()> {
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut next = async || {
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
        }
    };
    next().await;
    if let Some(line) = line.get() {
        eprintln!("draining; once more to exit now (nothing is lost either way)");
        line.stop(Stop::Interrupted);
        next().await;
    }
    #[expect(clippy::disallowed_methods, reason = "asked for twice: every store is made for this")]
    std::process::exit(Exit::Interrupted.code().into());
}

#[expect(
    clippy::disallowed_methods,
    reason = "signals must be heard while the model loads, before any actor"
)]
fn background(task: impl Future<Output = std::io::Result<()>> + Send + 'static) -> Result<(), String> {
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
    if report.pending > 0 {
        eprintln!("{} chunks are still pending; `forebay run` goes on with them", report.pending);
    }
    let line = if json { serde_json::to_string(report).unwrap_or_default() } else { report.to_string() };
    // A reader that went away must not turn a finished run into a failure.
    let _ = writeln!(std::io::stdout(), "{line}");
}

//! A whole line in a folder of its own: instant embedder, a sink, faults round both, and an end that may be cut.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    faults::{Faults, FaultyEmbed, FaultySink},
    weather::{Odds, Weather},
};
use crate::{
    embed::{self, Embed},
    folder::Folder,
    pipeline::{self, Line, RunSettings, Stop, alert, circuit, full::Before, line, report::Report},
    queue::{self, policy},
    sink::{self, Sink},
    source,
};

/// How a run is cut short after some calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It is not.
    Never,
    /// By SIGTERM.
    Stop(u64),
    /// Every task and lease is dropped where it stands. (A killed process is tested with a process.)
    Drop(u64),
}

/// See the module.
pub struct Rig {
    /// Where its files lie; the data folder is `data` in it.
    pub dir: PathBuf,
    /// What a run is told.
    pub settings: RunSettings,
    /// What goes wrong.
    pub faults: Arc<Faults>,
    /// The sink; `None`: SQLite's in the data folder, opened anew for each run.
    pub sink: Option<Arc<dyn Sink>>,
    /// The embedder: the instant one, unless it is changed.
    pub model: Arc<dyn Embed>,
}

/// Small limits and short waits, so that every one of them is met.
pub fn settings() -> RunSettings {
    RunSettings {
        pipeline: line::Settings {
            batches_in_flight: 3,
            batch_ms: 2_000,
            batch_tokens: 100_000,
            batch_chunks: 64,
            grace_s: 10,
            watchdog_s: 60,
            restarts_max: 5,
        },
        retry: policy::Settings {
            max_attempts: 3,
            base_ms: 1,
            cap_ms: 4,
            max_elapsed_s: 900,
            retry_after_max_s: 1,
        },
        breaker: circuit::Settings {
            threshold: 3,
            window_s: 60,
            open_s: 0,
            probe_timeout_s: 10,
            give_up_after_s: 60,
        },
        source: source::Settings {
            id_fields: vec!["id".into()],
            text_field: "text".into(),
            chunk_index_field: "chunk_index".into(),
            meta_field: "meta".into(),
            chunk_tokens: 8,
            overlap_tokens: 2,
            include: vec!["*.md".into(), "*.txt".into()],
            exclude: Vec::new(),
            on_missing: "keep".into(),
        },
        window_chunks: 1_000,
        limits: line::Limits {
            line_bytes: 1 << 20,
            min_free_mb: 0,
            disk_full_wait_s: 1,
            max_dead_fraction: 1.0,
        },
        limit: None,
        self_test: None,
        dlq_payload: queue::dlq::Keep::Full,
        alert: alert::Settings { depth: 1_000, age_h: 0, command: String::new() },
    }
}

/// The instant model, with so many tokens in one forward pass at most.
pub fn instant(pass_tokens: usize) -> Arc<dyn Embed> {
    let settings = embed::Settings {
        name: "instant".into(),
        dir: String::new(),
        device: "cpu".into(),
        kernel: "auto".into(),
        compute: "f32".into(),
        max_length: 0,
        outputs: vec!["dense".into()],
        truncation: "truncate".into(),
        pass_tokens,
        memory_mb: 0,
        threads: 1,
    };
    embed::open(&settings).expect("the instant model opens everywhere")
}

/// A JSON line that is a chunk by itself.
pub fn chunk_line(doc: &str, index: u64, text: &str) -> String {
    serde_json::json!({ "id": doc, "chunk_index": index, "text": text }).to_string()
}

/// A JSON line that is a document, to be split.
pub fn document_line(doc: &str, text: &str) -> String {
    serde_json::json!({ "id": doc, "text": text }).to_string()
}

impl Rig {
    /// A rig in fair weather, with the SQLite sink.
    pub fn new(dir: &Path) -> Self {
        Self::in_weather(dir, Weather::new(0, Odds::default()))
    }

    /// A rig in this weather.
    pub fn in_weather(dir: &Path, weather: Weather) -> Self {
        let (dir, settings, faults) = (dir.to_owned(), settings(), Faults::new(weather));
        Self { dir, settings, faults, sink: None, model: instant(100_000) }
    }

    /// The data folder's path.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Writes an input of these lines.
    pub fn input(&self, name: &str, lines: &[String]) -> PathBuf {
        let path = self.dir.join(name);
        std::fs::write(&path, lines.join("\n") + "\n").expect("a test's own folder can be written");
        path
    }

    /// Opens the data folder, as a run does.
    pub fn folder(&self) -> Folder {
        let settings = queue::Settings { window_chunks: self.settings.window_chunks, cache_mb: 4 };
        Folder::open(&self.data(), &settings, policy::wait_longest_ms(&self.settings.retry))
            .expect("the data folder opens")
    }

    /// The sink without its faults.
    pub fn plain_sink(&self) -> Arc<dyn Sink> {
        if let Some(sink) = &self.sink {
            return Arc::clone(sink);
        }
        let settings = sink::Settings {
            kind: "sqlite".into(),
            path: String::new(),
            store_text: true,
            busy_timeout_ms: 1_000,
        };
        Arc::from(sink::open(&settings, &self.data()).expect("sqlite is a kind of sink"))
    }

    /// The identity of the embedder, as stored.
    pub fn identity(&self) -> String {
        self.model.identity().stored()
    }

    /// A line, not running yet.
    pub fn line(&self) -> Arc<Line> {
        self.going_on(None)
    }

    /// A line that goes on with a run that found the disk full.
    fn going_on(&self, before: Option<Before>) -> Arc<Line> {
        let folder = self.folder();
        let model =
            Arc::new(FaultyEmbed { inner: Arc::clone(&self.model), faults: Arc::clone(&self.faults) });
        let sink = self.plain_sink();
        sink.preflight(model.identity(), model.dim(), &folder.store, false).expect("the sink is fit");
        let sink = Arc::new(FaultySink { inner: sink, faults: Arc::clone(&self.faults) });
        let line = Line::going_on(folder, model, sink, self.settings.clone(), before)
            .expect("the system gives threads");
        self.faults.watch(&line);
        line
    }

    /// Runs to the end.
    pub fn run(&self, paths: &[PathBuf]) -> Report {
        self.run_cut(paths, Cut::Never).expect("an uncut run has a report")
    }

    /// Runs to the end or to the cut; no report when it was dropped.
    pub fn run_cut(&self, paths: &[PathBuf], cut: Cut) -> Option<Report> {
        self.run_beside(paths, cut, |_| {})
    }

    /// Runs with something going on beside it, on a thread of its own, from the start.
    pub fn run_beside(
        &self,
        paths: &[PathBuf],
        cut: Cut,
        beside: impl FnOnce(&Line) + Send,
    ) -> Option<Report> {
        self.faults.weather.cut_after(match cut {
            Cut::Never => u64::MAX,
            Cut::Stop(calls) | Cut::Drop(calls) => calls,
        });
        let mut line = self.line();
        let system = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let system = system.expect("the system gives threads");
        let report = std::thread::scope(|scope| {
            let first = Arc::clone(&line);
            scope.spawn(move || beside(&first));
            system.block_on(until_cut(&line, &self.faults.weather, paths, cut))
        });
        let mut report = report;
        while line.found_full().is_some() {
            // As `run` does: all is closed, and opened again.
            let before = line.before();
            close(line);
            line = self.going_on(Some(before));
            report = system.block_on(until_cut(&line, &self.faults.weather, paths, cut));
        }
        drop(system);
        // The intake's thread knows a line that was dropped only by its drain.
        line.stop(Stop::Interrupted);
        self.faults.release();
        close(line);
        report
    }
}

async fn until_cut(line: &Arc<Line>, weather: &Weather, paths: &[PathBuf], cut: Cut) -> Option<Report> {
    let run = pipeline::run(line, paths);
    tokio::pin!(run);
    let report = tokio::select! {
        report = &mut run => report,
        () = weather.cut() => match cut {
            Cut::Drop(_) => return None,
            Cut::Stop(_) | Cut::Never => {
                line.stop(Stop::Interrupted);
                run.await
            }
        },
    };
    Some(report.expect("the inputs of a test can be read"))
}

/// Threads end when their job does: the folder is free again only then.
fn close(line: Arc<Line>) {
    let (start, mut line) = (Instant::now(), line);
    loop {
        match Arc::try_unwrap(line) {
            Ok(_) => return,
            Err(shared) => line = shared,
        }
        assert!(start.elapsed() < Duration::from_secs(20), "something still holds the line after its end");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

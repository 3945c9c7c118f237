//! The program as a user meets it: a home of its own, commands typed into it, and what is then on disk.

#![allow(dead_code, reason = "each scenario uses a part of the vocabulary")]

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

/// Longer than anything here takes on a busy machine: a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A folder with a data folder in it, and an environment that nothing leaks into.
pub struct Home {
    folder: tempfile::TempDir,
    data: PathBuf,
}

impl Home {
    /// An empty one.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        Self { folder, data }
    }

    /// One whose data folder lies elsewhere.
    pub fn with_data(data: impl Into<PathBuf>) -> Self {
        Self { data: data.into(), ..Self::new() }
    }

    /// A path in the home.
    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A path in the data folder.
    pub fn data(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    /// Writes a file and gives its name, as it would be typed.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.at(name), content).unwrap();
        name.to_owned()
    }

    /// The program, ready to be started in this home with the instant model.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(arguments).current_dir(self.folder.path());
        command.env_clear().env("HOME", self.folder.path()).env("USER", "tester");
        command.env("FOREBAY__DATA__DIR", &self.data).env("FOREBAY__MODEL__NAME", "instant");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the program.
    pub fn start<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Running {
        Running::of(self.command(arguments))
    }

    /// The same, with this on its standard input.
    pub fn fed<S: AsRef<OsStr>>(&self, arguments: &[S], input: impl AsRef<[u8]>) -> Running {
        let path = self.at("standard-input");
        std::fs::write(&path, input).unwrap();
        let mut command = self.command(arguments);
        command.stdin(std::fs::File::open(path).unwrap());
        Running::of(command)
    }

    /// Runs the program to its end.
    pub fn forebay<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ran {
        self.start(arguments).wait()
    }

    /// `run --json` with these arguments; the exit code must be `code`.
    pub fn run(&self, arguments: &[&str], code: i32) -> Report {
        let mut all = vec!["run", "--json"];
        all.extend(arguments);
        self.forebay(&all).exits(code).report()
    }

    /// `status --json`, also beside a run; `None` while the folder is being made.
    pub fn status(&self) -> Option<Value> {
        let ran = self.forebay(&["status", "--json"]);
        (ran.code == Some(0)).then(|| ran.json())
    }

    /// `verify --json`; must be sound.
    pub fn verified(&self) -> Value {
        let ran = self.forebay(&["verify", "--json"]).exits(0);
        ran.json()
    }

    /// `dlq list --json`, closed letters too.
    pub fn letters(&self) -> Vec<Value> {
        let ran = self.forebay(&["dlq", "list", "--json", "--closed", "--limit", "100000"]).exits(0);
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Queues that were found damaged and moved aside.
    pub fn moved_aside(&self) -> usize {
        let entries = std::fs::read_dir(self.data("")).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("queue.damaged-")).count()
    }

    /// Rows of the ledger; 0 while there is none.
    pub fn ledger_rows(&self) -> u64 {
        count(&self.data("ledger.db"), "SELECT count(*) FROM chunks")
    }

    /// Rows of the sink; 0 while there is none.
    pub fn sink_rows(&self) -> u64 {
        count(&self.data("vectors.db"), "SELECT count(*) FROM vectors")
    }

    /// `(doc_id#chunk_index, text)` of the sink, in key order.
    pub fn texts(&self) -> Vec<(String, String)> {
        let sink = Connection::open(self.data("vectors.db")).unwrap();
        let mut query = sink
            .prepare("SELECT doc_id, chunk_index, text FROM vectors ORDER BY doc_id, chunk_index")
            .unwrap();
        let rows = query.query_map([], |row| {
            let (doc, index): (String, i64) = (row.get(0)?, row.get(1)?);
            Ok((format!("{doc}#{index}"), row.get(2)?))
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    /// Holds the sink's write lock, as another program might, until the value is dropped.
    pub fn lock_sink(&self) -> Connection {
        let sink = Connection::open(self.data("vectors.db")).unwrap();
        // SQLite's own waiting sleeps ever longer, and a line that writes batch after batch would starve it.
        sink.busy_timeout(Duration::ZERO).unwrap();
        poll("the sink's lock is free", || sink.execute_batch("BEGIN IMMEDIATE").ok());
        sink
    }

    /// All is written, once each, and nothing is left to do: `rows` in sink and ledger, and they agree.
    pub fn holds(&self, rows: u64) {
        assert_eq!((self.ledger_rows(), self.sink_rows()), (rows, rows), "rows of ledger and sink");
        let found = self.verified();
        assert_eq!((&found["ok"], &found["ledger_rows"]), (&true.into(), &rows.into()), "{found}");
    }
}

fn count(path: &Path, sql: &str) -> u64 {
    if !path.exists() {
        return 0;
    }
    // Not read-only: after a kill the first reader has to recover the write-ahead log.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let opened = Connection::open_with_flags(path, flags).and_then(|db| {
        db.busy_timeout(PATIENCE)?;
        db.query_row(sql, [], |row| row.get::<_, i64>(0))
    });
    // The tables come a moment after the file.
    opened.map_or(0, i64::cast_unsigned)
}

/// A program that has been started. It is killed when dropped.
pub struct Running {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
}

impl Running {
    /// Starts `command`, whose output is piped.
    pub fn of(mut command: Command) -> Self {
        Self::of_child(command.spawn().unwrap())
    }

    /// One that runs already, whose output is piped.
    pub fn of_child(mut child: Child) -> Self {
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let (stdout, stderr) = (Some(collect(stdout)), Some(collect(stderr)));
        Self { child, stdout, stderr }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal: `libc::SIGKILL`, say.
    pub fn signal(&self, signal: i32) {
        let sent = Command::new("kill").args([format!("-{signal}"), self.pid().to_string()]).status();
        assert!(sent.unwrap().success(), "signal {signal} could not be sent");
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until the ledger of `home` has more than `rows` rows.
    pub fn has_written(&mut self, home: &Home, rows: u64) {
        poll(&format!("{rows} rows are written"), || {
            let more = home.ledger_rows() > rows;
            assert!(more || !self.ended(), "it ended before it had written {rows} rows");
            more.then_some(())
        });
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Ran {
        let code = poll("the program ends", || self.child.try_wait().unwrap()).code();
        let text = |reader: &mut Option<JoinHandle<String>>| reader.take().unwrap().join().unwrap();
        let (stdout, stderr) = (text(&mut self.stdout), text(&mut self.stderr));
        let ran = Ran { code, stdout, stderr };
        // No panic reaches a user, and none is caught without a reason in these scenarios.
        assert!(!["panicked", "a panic was caught"].iter().any(|word| ran.stderr.contains(word)), "{ran}");
        ran
    }

    /// `kill -9`, and waits for its end.
    pub fn kill(mut self) -> Ran {
        // One that came to its end before is told by its exit code.
        if !self.ended() {
            self.signal(libc::SIGKILL);
        }
        self.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already when the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut pipe: impl std::io::Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// How a program ended.
pub struct Ran {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Results.
    pub stdout: String,
    /// Everything else.
    pub stderr: String,
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit {:?}\n--- stdout\n{}\n--- stderr\n{}", self.code, self.stdout, self.stderr)
    }
}

impl Ran {
    /// The exit code must be `code`.
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        self
    }

    /// stderr must contain each of these.
    pub fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in:\n{self}");
        }
        self
    }

    /// The object on the last line of stdout.
    pub fn json(&self) -> Value {
        let last = self.stdout.lines().last().unwrap_or_else(|| panic!("nothing on stdout\n{self}"));
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}\n{self}"))
    }

    /// The report of a run; its accounts must add up.
    pub fn report(&self) -> Report {
        let report = Report(self.json());
        let sum = |names: &[&str]| names.iter().map(|name| report.n(name)).sum::<u64>();
        let (outcomes, units) =
            (sum(&["chunks", "skipped", "dead", "duplicates"]), sum(&["produced", "unreadable"]));
        assert_eq!(outcomes, units, "every unit has one outcome\n{self}");
        report
    }
}

/// The report of a run.
pub struct Report(pub Value);

impl Report {
    /// A number of it.
    pub fn n(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {}", self.0))
    }

    /// Numbers of it, in the order asked for.
    pub fn numbers<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        names.map(|name| self.n(name))
    }

    /// How the run ended.
    pub fn outcome(&self) -> &str {
        self.0["outcome"].as_str().unwrap()
    }
}

/// A number set in the environment: the long form of a test.
pub fn number_set(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Tries until there is an answer.
pub fn poll<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = attempt() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} until {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// One record of JSONL.
pub fn record(id: &str, text: &str) -> String {
    format!("{}\n", serde_json::json!({ "id": id, "text": text }))
}

/// `n` records, each one chunk, with ids and texts of their own.
pub fn corpus(n: usize) -> String {
    (0..n)
        .map(|i| record(&format!("doc-{i}"), &format!("the water of basin {i} drives turbine {}", i % 7)))
        .collect()
}

/// A file of `tests/cases/`.
pub fn case(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name).display().to_string()
}

/// Whether this test may mount file systems; says why not, in the form that `./test` counts as skipped.
pub fn may_mount() -> bool {
    let root = std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|text| text.lines().any(|line| line.starts_with("Uid:\t0\t")));
    if !root {
        println!("skipped: mounting a file system needs root");
    }
    root
}

/// A mounted file system, unmounted when dropped.
pub struct Mount {
    /// Where.
    pub at: PathBuf,
}

impl Mount {
    /// `mount ARGUMENTS at`; `None` (and a line that says so) where the system refuses.
    pub fn new(at: PathBuf, arguments: &[&str]) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount").args(arguments).arg(&at).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self { at }),
            Ok(output) => {
                println!("skipped: mount refused: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("skipped: no mount here: {error}");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily: a failing test may still have a file open.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        let _ = std::fs::remove_dir(&self.at);
    }
}

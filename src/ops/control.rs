//! `control.sock`: the verbs beside a run. One JSON line in, one JSON line out. Private: mode 0700 of the folder.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream as UnixStreamAsync},
    sync::Mutex,
    task::JoinSet,
};

use super::{
    Context,
    command::{Command, execute},
};
use crate::pipeline::{Line, worker::Worker};

const FILE: &str = "control.sock";
/// Clients that are listened to at one time; the next ones wait.
const CLIENTS: usize = 32;
/// Longest request (letters that are imported are in it, and only the owner can ask) and, on the client's side, patience for the answer.
const REQUEST_BYTES: u64 = 512 * 1024 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for verbs that look at every letter or write files anew.
const PATIENCE_LONG: Duration = Duration::from_secs(600);
/// A socket's path is limited to 107 bytes; a longer one is reached through a descriptor of its folder.
const PATH_BYTES: usize = 100;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Ok(Value),
    Error(String),
}

/// The path to use, and the folder's descriptor that must live as long as it is used.
fn reach(dir: &Path) -> std::io::Result<(PathBuf, Option<std::fs::File>)> {
    let path = dir.join(FILE);
    if path.as_os_str().len() <= PATH_BYTES {
        return Ok((path, None));
    }
    let folder = std::fs::File::open(dir)?;
    Ok((PathBuf::from(format!("/proc/self/fd/{}/{FILE}", folder.as_raw_fd())), Some(folder)))
}

/// Serves the verbs of this run until the future is dropped.
///
/// # Errors
/// When the socket cannot be made.
pub async fn serve(line: Arc<Line>) -> std::io::Result<()> {
    let dir = line.folder.dir.clone();
    serve_with(&dir, Arc::new(move |request: &str| answer(&line, request))).await
}

/// Serves a folder that a run has closed because its disk is full: its status as it was then, and nothing else.
///
/// # Errors
/// When the socket cannot be made.
pub async fn serve_closed(dir: &Path, status: Value) -> std::io::Result<()> {
    let answer = move |request: &str| match serde_json::from_str(request) {
        Ok(Command::Status) => Answer::Ok(status.clone()),
        _ => Answer::Error(
            "the disk is full, and the run waits with its stores closed; free some space and try again"
                .into(),
        ),
    };
    serve_with(dir, Arc::new(answer)).await
}

type Answers = Arc<dyn Fn(&str) -> Answer + Send + Sync>;

async fn serve_with(dir: &Path, answers: Answers) -> std::io::Result<()> {
    let (path, _folder) = reach(dir)?;
    // We hold the folder's lock, so a socket that lies there belongs to nobody.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    let worker = Arc::new(Mutex::new(Worker::start("forebay-control")?));
    // Ends with this future, and every client with it.
    let mut clients = JoinSet::new();
    loop {
        while clients.len() >= CLIENTS {
            let _ = clients.join_next().await;
        }
        let (stream, _) = listener.accept().await?;
        while clients.try_join_next().is_some() {}
        clients.spawn(client(Arc::clone(&answers), Arc::clone(&worker), stream));
    }
}

/// One question and its answer. A client that does not speak or listen keeps nobody waiting but itself.
async fn client(answers: Answers, worker: Arc<Mutex<Worker>>, mut stream: UnixStreamAsync) {
    let (read, mut write) = stream.split();
    let mut request = String::new();
    let mut reader = tokio::io::BufReader::new(read.take(REQUEST_BYTES));
    if !matches!(tokio::time::timeout(PATIENCE, reader.read_line(&mut request)).await, Ok(Ok(_))) {
        tracing::debug!("a control client did not speak");
        return;
    }
    // Verbs are carried out one at a time.
    let answer = worker.lock().await.run(move || answers(&request)).await;
    let answer = answer.unwrap_or_else(|panicked| Answer::Error(panicked.to_string()));
    let Ok(mut text) = serde_json::to_vec(&answer) else { return };
    text.push(b'\n');
    if !matches!(tokio::time::timeout(PATIENCE, write.write_all(&text)).await, Ok(Ok(()))) {
        tracing::debug!("a control client went away");
    }
}

fn answer(line: &Line, request: &str) -> Answer {
    let context = Context {
        folder: &line.folder,
        line: Some(line),
        source: &line.settings.source,
        line_bytes: line.settings.limits.line_bytes,
    };
    let command: Result<Command, _> = serde_json::from_str(request);
    let result = match command {
        Ok(command) => execute(context, &command),
        Err(_) => Err("the request is not known to this version".to_owned()),
    };
    result.map_or_else(Answer::Error, Answer::Ok)
}

/// Removes the socket; to be called while the folder's lock is held.
pub fn remove(dir: &Path) {
    if let Ok((path, _folder)) = reach(dir) {
        let _ = std::fs::remove_file(path);
    }
}

/// What came of asking.
#[derive(Debug)]
pub enum Asked {
    /// Nobody serves the folder, or its server went away before it answered.
    Nobody,
    /// It was done.
    Answered(Value),
    /// It was not done.
    Refused(String),
    /// Nobody knows whether it was done.
    Silent(String),
}

/// Whether a process serves this folder.
pub fn is_served(dir: &Path) -> bool {
    reach(dir).is_ok_and(|(path, _folder)| UnixStream::connect(path).is_ok())
}

/// Asks the process that holds the folder; `None` when nobody answers there.
pub fn ask(dir: &Path, command: &Command) -> Option<Result<Value, String>> {
    match ask_for(dir, command) {
        Asked::Nobody => None,
        Asked::Answered(value) => Some(Ok(value)),
        Asked::Refused(why) | Asked::Silent(why) => Some(Err(why)),
    }
}

/// As [`ask`], telling apart what was refused and what is unknown.
pub fn ask_for(dir: &Path, command: &Command) -> Asked {
    let Ok((path, _folder)) = reach(dir) else { return Asked::Nobody };
    let Ok(mut stream) = UnixStream::connect(path) else { return Asked::Nobody };
    let talk = |stream: &mut UnixStream| -> std::io::Result<Answer> {
        let long = matches!(command, Command::Forget { .. } | Command::Scrub);
        stream.set_read_timeout(Some(if long { PATIENCE_LONG } else { PATIENCE }))?;
        let mut request = serde_json::to_vec(command)?;
        request.push(b'\n');
        stream.write_all(&request)?;
        let mut text = String::new();
        BufReader::new(stream.take(u64::MAX)).read_line(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    };
    match talk(&mut stream) {
        Ok(Answer::Ok(value)) => Asked::Answered(value),
        Ok(Answer::Error(why)) => Asked::Refused(why),
        // It went away in the middle: the folder is free, or soon will be.
        Err(error) if gone(&error) => Asked::Nobody,
        Err(error) => Asked::Silent(format!(
            "the process that holds the folder does not answer ({error}); its pid stands in the file `lock`"
        )),
    }
}

fn gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

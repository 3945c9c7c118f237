//! A server on 127.0.0.1 that answers `GET /{repo}/resolve/{rev}/{file}` as the hub does, and can be told not to.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
};

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Path with query.
    pub(crate) path: String,
    /// The last part of the path.
    pub(crate) file: String,
    /// First byte asked for, if not the whole.
    pub(crate) from: Option<usize>,
    pub(crate) authorization: Option<String>,
    /// How many requests for this path came before.
    pub(crate) before: usize,
}

/// What is answered.
pub(crate) enum Reply {
    /// Status line, headers, body; a length is announced.
    Whole(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Announces `length` (or nothing) and sends this much.
    Broken(u16, Vec<(&'static str, String)>, Option<usize>, Vec<u8>),
    /// Closes without a word.
    Close,
    /// Announces `length`, sends this much, and then nothing more until the hub is dropped.
    Stuck(Vec<(&'static str, String)>, usize, Vec<u8>),
    /// Says nothing until the hub is dropped.
    Silence,
}

type Answer = dyn Fn(&Request) -> Reply + Send + Sync;

/// The running server; it ends with the value.
pub(crate) struct FakeHub {
    pub(crate) url: String,
    log: Arc<Mutex<Vec<Request>>>,
    // Dropping it ends every silence.
    _speak: mpsc::SyncSender<()>,
}

impl FakeHub {
    /// Answers every request with `answer`.
    pub(crate) fn new(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (log, answer): (_, Arc<Answer>) = (Arc::default(), Arc::new(answer));
        let (speak, silence) = mpsc::sync_channel(0);
        let (heard, silence) = (Arc::clone(&log), Arc::new(Mutex::new(silence)));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (log, answer, silence) = (Arc::clone(&heard), Arc::clone(&answer), Arc::clone(&silence));
                thread::spawn(move || talk(stream, &log, &*answer, &silence));
            }
        });
        Self { url, log, _speak: speak }
    }

    /// Serves files as the hub does.
    pub(crate) fn serving(files: BTreeMap<String, Vec<u8>>, commit: &str) -> Self {
        Self::with_fault(files, commit, |_| None)
    }

    /// The same, but where `fault` has an answer of its own.
    pub(crate) fn with_fault(
        files: BTreeMap<String, Vec<u8>>,
        commit: &str,
        fault: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let commit = commit.to_owned();
        Self::new(move |request| fault(request).unwrap_or_else(|| serve(&files, &commit, request)))
    }

    pub(crate) fn log(&self) -> Vec<Request> {
        self.log.lock().unwrap().clone()
    }
}

/// The hub's answer.
pub(crate) fn serve(files: &BTreeMap<String, Vec<u8>>, commit: &str, request: &Request) -> Reply {
    let name = request.path.split_once("/resolve/").and_then(|(_, rest)| rest.split_once('/'));
    let Some(body) = name.and_then(|(_, name)| files.get(name)) else {
        return Reply::Whole(404, vec![], b"Entry not found".to_vec());
    };
    ranged(body, commit, request)
}

/// A body, or the part of it that was asked for.
pub(crate) fn ranged(body: &[u8], commit: &str, request: &Request) -> Reply {
    let (size, mut headers) = (body.len(), headers(body, commit));
    let Some(from) = request.from else { return Reply::Whole(200, headers, body.to_vec()) };
    if from >= size {
        return Reply::Whole(416, vec![("Content-Range", format!("bytes */{size}"))], vec![]);
    }
    headers.push(("Content-Range", format!("bytes {from}-{}/{size}", size - 1)));
    Reply::Whole(206, headers, body[from..].to_vec())
}

/// What the hub says of a file beside its bytes.
pub(crate) fn headers(body: &[u8], commit: &str) -> Vec<(&'static str, String)> {
    let etag = forebay::chunk::Digest::of(body).short(40);
    vec![("ETag", format!("\"{etag}\"")), ("X-Repo-Commit", commit.to_owned())]
}

fn talk(
    mut stream: TcpStream,
    log: &Mutex<Vec<Request>>,
    answer: &Answer,
    silence: &Mutex<mpsc::Receiver<()>>,
) {
    let Some(request) = hear(&stream, log) else { return };
    let reply = answer(&request);
    let stuck = matches!(reply, Reply::Stuck(..));
    let (status, headers, length, body) = match reply {
        Reply::Whole(status, headers, body) => (status, headers, Some(body.len()), body),
        Reply::Broken(status, headers, length, body) => (status, headers, length, body),
        Reply::Close => return,
        Reply::Stuck(headers, length, body) => (200, headers, Some(length), body),
        Reply::Silence => {
            let _ = silence.lock().unwrap().recv();
            return;
        }
    };
    let mut head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if let Some(length) = length {
        head += &format!("Content-Length: {length}\r\n");
    }
    // The client may have hung up: that is its business.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(b"\r\n"));
    let _ = stream.write_all(&body);
    if stuck {
        let _ = silence.lock().unwrap().recv();
    }
    let _ = stream.shutdown(Shutdown::Write);
}

fn hear(stream: &TcpStream, log: &Mutex<Vec<Request>>) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let (mut range, mut authorization) = (None, None);
    for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "range" => range = value.trim().strip_prefix("bytes=").map(str::to_owned),
            "authorization" => authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let from = range.and_then(|range| range.split('-').next()?.parse().ok());
    let mut log = log.lock().unwrap();
    let before = log.iter().filter(|old| old.path == path).count();
    let file = path.rsplit('/').next().unwrap_or_default().to_owned();
    let request = Request { path, file, from, authorization, before };
    log.push(request.clone());
    Some(request)
}

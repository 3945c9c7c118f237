//! Dead letters out of the folder: page by page, into JSON lines or SQL tables, in a file that appears whole or not
//! at all.

use std::{
    fs::{File, OpenOptions},
    io::{BufWriter, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{Context, reference};
use crate::{
    ledger::letters::{LetterTables, Row, Step},
    queue::{
        dead::{DeadLetter, FORM, Payload, Subject},
        dlq::{Filter, PAGE_BYTES},
    },
};

/// Letters on a page at most.
pub(super) const PAGE: usize = 500;

/// One page: whole letters (with `filled`, references with what they refer to, where that is to be had), and the id to go on after, if there may be more.
///
/// # Errors
/// A sentence, when the queue cannot be read.
pub(super) fn page(context: Context<'_>, filter: &Filter, filled: bool) -> Result<Value, String> {
    let queue = &context.folder.queue;
    let mut letters = queue.letters_within(filter, PAGE, PAGE_BYTES).map_err(|error| error.to_string())?;
    if filled {
        letters = reference::fill(context, letters)?.into_iter().map(|(letter, _)| letter).collect();
    }
    Ok(json!({ "next": letters.last().map(|letter| letter.id), "letters": letters }))
}

/// A file being written beside its place.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    part: PathBuf,
}

impl Part {
    /// Makes `FILE.part`, mode 0600.
    fn new(path: &Path) -> std::io::Result<(Self, File)> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        Ok((Self { path: path.to_owned(), part }, file))
    }

    fn finish(self) -> std::io::Result<()> {
        File::open(&self.part)?.sync_all()?;
        std::fs::rename(&self.part, &self.path)?;
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Part {
    /// After a success there is nothing under this name.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.part);
    }
}

/// JSON lines into a file.
#[derive(Debug)]
pub struct JsonlFile {
    part: Part,
    out: BufWriter<File>,
}

impl JsonlFile {
    /// Begins.
    ///
    /// # Errors
    /// A sentence with the path.
    pub fn new(path: &Path) -> Result<Self, String> {
        may_replace(path, is_jsonl)?;
        let (part, file) = Part::new(path).map_err(|error| cannot(path, &error))?;
        Ok(Self { part, out: BufWriter::new(file) })
    }

    /// One letter more.
    ///
    /// # Errors
    /// A sentence with the path.
    pub fn add(&mut self, letter: &Value) -> Result<(), String> {
        writeln!(self.out, "{letter}").map_err(|error| cannot(&self.part.path, &error))
    }

    /// Puts the file in its place, durable.
    ///
    /// # Errors
    /// A sentence with the path.
    pub fn finish(mut self) -> Result<(), String> {
        let path = self.part.path.clone();
        self.out.flush().and_then(|()| self.part.finish()).map_err(|error| cannot(&path, &error))
    }
}

/// SQL tables in a file.
#[derive(Debug)]
pub struct SqliteFile {
    part: Part,
    tables: LetterTables,
}

impl SqliteFile {
    /// Begins.
    ///
    /// # Errors
    /// A sentence with the path.
    pub fn new(path: &Path) -> Result<Self, String> {
        may_replace(path, LetterTables::is_one)?;
        let (part, _) = Part::new(path).map_err(|error| cannot(path, &error))?;
        let tables = LetterTables::create(&part.part).map_err(|error| error.to_string())?;
        Ok(Self { part, tables })
    }

    /// One letter more.
    ///
    /// # Errors
    /// A sentence with the path.
    pub fn add(&mut self, letter: &Value) -> Result<(), String> {
        let letter: DeadLetter = serde_json::from_value(letter.clone()).map_err(|error| error.to_string())?;
        self.tables.add(&row(&letter)).map_err(|error| error.to_string())
    }

    /// Puts the file in its place, durable.
    ///
    /// # Errors
    /// A sentence with the path.
    pub fn finish(self) -> Result<(), String> {
        let path = self.part.path.clone();
        self.tables.finish().map_err(|error| error.to_string())?;
        self.part.finish().map_err(|error| cannot(&path, &error))
    }
}

/// What stands there already is replaced only when it is an earlier export: a slip of the finger must not cost a sink, a
/// corpus or the settings.
fn may_replace(path: &Path, is_export: impl Fn(&Path) -> bool) -> Result<(), String> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() && (meta.len() == 0 || is_export(path)) => Ok(()),
        Ok(_) => {
            Err(format!("{} is there, and is no export of dead letters; name another file", path.display()))
        }
        Err(_) => Ok(()),
    }
}

/// Whether its first line is a letter's.
fn is_jsonl(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(64).read_to_end(&mut head));
    read.is_ok() && head.starts_with(format!("{{\"form\":\"{FORM}\"").as_bytes())
}

fn cannot(path: &Path, error: &std::io::Error) -> String {
    format!("{} cannot be written: {error}; name another file", path.display())
}

/// A letter as columns.
fn row(letter: &DeadLetter) -> Row<'_> {
    let (kind, chunk_index) = match &letter.subject {
        Subject::Chunk(key) => ("chunk", Some(key.chunk_index)),
        // What it came back as, once it could be read.
        Subject::Record { .. } => ("record", letter.sent.as_ref().map(|sent| sent.key.chunk_index)),
    };
    let (text, meta, raw, raw_bytes) = match &letter.payload {
        Payload::Chunk { text, meta, .. } => (Some(text.as_str()), meta.as_deref(), None, None),
        Payload::Raw { base64, bytes } => {
            let raw = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, base64).ok();
            (None, None, raw, Some(*bytes))
        }
        Payload::Reference { bytes, .. } => (None, None, None, Some(*bytes)),
    };
    let steps = letter.audit.iter();
    Row {
        id: letter.id.to_string(),
        kind,
        doc_id: letter.doc_id.as_deref().or_else(|| Some(&*letter.sent.as_ref()?.key.doc_id)),
        chunk_index,
        chunk_id: letter.chunk_id.map(|id| id.to_string()),
        identity: letter.identity.as_deref(),
        state: letter.state.as_str(),
        stage: serde_json::to_value(letter.stage).ok().and_then(|v| v.as_str().map(str::to_owned)),
        class: letter.class.as_str(),
        native_code: letter.native_code.as_deref(),
        message: &letter.message,
        attempts: letter.attempts,
        redrives: letter.redrives,
        first_failed_at: &letter.first_failed_at,
        last_failed_at: &letter.last_failed_at,
        quarantined_at: letter.quarantined_at.as_deref(),
        resolved_at: letter.resolved_at.as_deref(),
        resolved_how: letter.resolved_how.as_deref(),
        source: &letter.origin.source,
        source_id: letter.origin.source_id,
        line: letter.origin.line,
        byte_offset: letter.origin.offset,
        text,
        meta,
        raw,
        raw_bytes,
        audit: steps
            .map(|step| Step { at: &step.at, what: &step.what, who: &step.who, why: step.why.as_deref() })
            .collect(),
    }
}

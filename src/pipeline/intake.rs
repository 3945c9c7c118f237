//! Sources into the queue, on a thread of its own: read, split, admit, enqueue, and wait while the window is full.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use super::{
    admit::{Admission, Held, Incoming, admit},
    dead_letter::Dead,
    inbox::Next,
    line::{DeadLane, Line},
    splitting, tail,
    triage::burial,
};
use crate::{
    chunk::{Chunk, ChunkKey, Digest},
    clock::paced,
    error::{Class, Fault, Stage},
    folder::free_mb,
    ledger::{RegisteredSource, SourceState},
    queue::{
        dead::{Burial, Origin, Payload, State as LetterState, Subject, hidden},
        dlq::Keep,
    },
    source::{self, Item, Record, SourceError, Unreadable},
};

/// One input, registered.
#[derive(Clone, Debug)]
pub struct Input {
    /// Its row in the ledger.
    pub registered: RegisteredSource,
    /// Where to open it.
    pub path: PathBuf,
}

/// How one input ended.
#[derive(Clone, Debug)]
pub struct InputEnd {
    /// Its row in the ledger.
    pub registered: RegisteredSource,
    /// Whether something was missing.
    pub state: SourceState,
    /// Bytes read, as stored.
    pub bytes: u64,
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Read {
    /// Inputs that were read to their ends.
    pub ends: Vec<InputEnd>,
    /// Whether it ended because the window was full.
    pub window_full: bool,
}

/// Reads the inputs of a run.
pub struct Intake {
    line: Arc<Line>,
    dead: DeadLane,
    /// Chunks that were pending when the run began, and count as taken up already.
    adopted: HashSet<u128>,
    chunk_tokens: usize,
    /// When the free space was last looked at, and found to be enough.
    roomy_at: Option<Instant>,
    /// Whether a full window ends it; else it waits for room.
    stop_when_full: bool,
    window_full: bool,
}

/// How long the free space may go without being looked at.
const ROOMY: Duration = Duration::from_millis(100);

impl Intake {
    /// An intake; `adopted` are the chunks found pending.
    pub fn new(line: Arc<Line>, dead: DeadLane, adopted: HashSet<u128>) -> Self {
        let chunk_tokens = splitting::chunk_tokens(line.model.as_ref(), &line.settings.source);
        Self { line, dead, adopted, chunk_tokens, roomy_at: None, stop_when_full: false, window_full: false }
    }

    /// One that ends where a run's waits: when the window or the disk is full.
    pub fn stopping_when_full(self) -> Self {
        Self { stop_when_full: true, ..self }
    }

    /// Reads what comes into the line's inbox, until that is closed or the line drains.
    pub fn run(mut self) -> Read {
        let patience = paced(Duration::from_millis(200));
        let mut ends = Vec::new();
        while !self.line.draining() {
            let input = match self.line.inbox.next(patience) {
                Next::Input(input) => input,
                Next::Idle => {
                    // The reader may be waiting for just this.
                    self.line.folder.queue.nudge();
                    continue;
                }
                Next::Closed => break,
            };
            match self.read(&input) {
                Ok(Some(end)) => ends.push(end),
                Ok(None) => break,
                Err(why) => {
                    self.line.halt(why);
                    break;
                }
            }
        }
        self.line.inbox.ended();
        self.line.folder.queue.nudge();
        Read { ends, window_full: self.window_full }
    }

    fn read(&mut self, input: &Input) -> Result<Option<InputEnd>, String> {
        let settings = &self.line.settings;
        let opened = source::open(&input.path, &settings.source, settings.limits.line_bytes);
        let ended = |state, bytes| InputEnd { registered: input.registered.clone(), state, bytes };
        // What cannot be read on costs itself; its neighbours go on, and the next run tries it again.
        let failed = |error: &SourceError| SourceState::Incomplete(error.to_string());
        let mut source = match opened {
            Ok(source) => source,
            Err(error) => return Ok(Some(ended(failed(&error), 0))),
        };
        let (before, mut good) = (self.line.tally.bytes_read.load(Relaxed), 0_u64);
        let mut unreadable = HashSet::new();
        loop {
            if !self.room() {
                return Ok(None);
            }
            let item = match source.next() {
                Ok(item) => item,
                Err(error) => return Ok(Some(ended(failed(&error), source.bytes_read()))),
            };
            self.line.tally.bytes_read.store(before + source.bytes_read(), Relaxed);
            match item {
                Some(Item::Record(record)) => {
                    good += 1;
                    self.record(&input.registered, record)?;
                }
                Some(Item::Unreadable(bad)) => {
                    unreadable.insert(self.unreadable(&input.registered, bad)?);
                }
                None => break,
            }
        }
        self.line.folder.queue.flush().map_err(|error| self.line.told(error))?;
        let state = match source.incomplete() {
            Some(why) => SourceState::Incomplete(format!("{}: {why}", input.registered.uri)),
            None if good == 0 => {
                let hint = source.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                SourceState::Incomplete(format!("{}: not one good record in it{hint}", input.registered.uri))
            }
            None => SourceState::Done,
        };
        if state == SourceState::Done {
            tail::close_mended(&self.line, &input.registered.uri, &unreadable)?;
        }
        Ok(Some(ended(state, source.bytes_read())))
    }

    /// Waits for room in the window and on the disk; the reader says when that has taken too long. False when the
    /// line drains, or at once when it is not to be waited for.
    fn room(&mut self) -> bool {
        let patience = paced(Duration::from_millis(if self.stop_when_full { 0 } else { 200 }));
        while !self.line.draining() {
            let roomy = self.roomy();
            let line = &self.line;
            if !roomy && self.stop_when_full {
                line.halt(format!(
                    "the disk of {} has less than limits.min_free_mb = {}; free some space and type `forebay run`, \
                     which reads on",
                    line.folder.dir.display(),
                    line.settings.limits.min_free_mb
                ));
            } else if !roomy {
                std::thread::park_timeout(patience);
            } else if line.folder.queue.wait_for_room(line.settings.window_chunks, patience) {
                return true;
            } else if self.stop_when_full {
                self.window_full = true;
                return false;
            }
        }
        false
    }

    /// Whether the disk has room, looked at a few times a second: asking costs as much as reading a record.
    fn roomy(&mut self) -> bool {
        if self.roomy_at.is_some_and(|at| at.elapsed() < ROOMY) {
            return true;
        }
        let min = self.line.settings.limits.min_free_mb;
        let roomy = free_mb(&self.line.folder.dir).is_none_or(|free| free >= min);
        self.roomy_at = roomy.then(Instant::now);
        roomy
    }

    fn record(&mut self, source: &RegisteredSource, record: Record) -> Result<(), String> {
        self.line.tally.documents.add(1);
        let source_id = source.source_id;
        let chunk = |chunk_index: u64, text: String| Chunk {
            source_hash: Digest::of(text.as_bytes()),
            key: ChunkKey::new(record.doc_id.clone(), chunk_index),
            text,
            meta: record.meta.clone(),
            source_id,
            ordinal: record.at.offset,
            line: record.at.line,
        };
        if let Some(index) = record.chunk_index {
            return self.admit(chunk(index, record.text.clone()));
        }
        let Some(texts) = self.split(&record.text) else {
            self.line.tally.produced.add(1);
            let fault =
                Fault::new(Class::TokenizerFailed, "the tokenizer panicked while the document was split");
            return self.bury(burial(&self.line, &chunk(0, record.text.clone()), Stage::Source, fault, 1));
        };
        let count = texts.len() as u64;
        let first = ChunkKey::new(record.doc_id.clone(), 0);
        if self.is_older(&first, source_id, record.at.offset)? {
            // A later record of this source has the document: none of its chunks, however many, may come back.
            self.line.tally.produced.add(count);
            self.line.tally.duplicates.add(count);
            return Ok(());
        }
        for (index, text) in (0..).zip(texts) {
            // A document may be larger than the window, and a drain must not wait for its end. What is left of
            // it comes with the next reading: the source was not read to its end.
            if !self.room() {
                return Ok(());
            }
            self.admit(chunk(index, text))?;
        }
        tail::drop_stale(&self.line, &record.doc_id, count)
    }

    /// Chunk texts of a document; `None` when the tokenizer panicked.
    fn split(&self, text: &str) -> Option<Vec<String>> {
        splitting::split(self.line.model.as_ref(), &self.line.settings.source, self.chunk_tokens, text)
    }

    fn is_older(&self, key: &ChunkKey, source_id: i64, ordinal: u64) -> Result<bool, String> {
        let none = Digest([0; 32]);
        let admission = self.look_up(key, &none, &none, source_id, ordinal)?;
        Ok(admission == Admission::Older)
    }

    fn look_up(
        &self,
        key: &ChunkKey,
        chunk_id: &Digest,
        source_hash: &Digest,
        source_id: i64,
        ordinal: u64,
    ) -> Result<Admission, String> {
        let folder = &self.line.folder;
        // In the order in which a chunk moves on: what leaves one place after it was looked at there is found at
        // the next. The other way round a chunk settled in between is seen nowhere, and is done twice.
        let pending = folder.queue.held(key, chunk_id);
        let letter = folder.queue.standing(key.short_hash()).map_err(|error| self.line.told(error))?;
        let written = folder.ledger.held(key).map_err(|error| self.line.told(error))?;
        let held = Held { pending, written: written.as_ref(), letter: letter.as_ref() };
        let incoming = Incoming { source_hash, source_id, ordinal };
        Ok(admit(&incoming, &held, &self.line.identity, &self.line.run))
    }

    fn admit(&mut self, chunk: Chunk) -> Result<(), String> {
        let admission =
            self.look_up(&chunk.key, &chunk.id(), &chunk.source_hash, chunk.source_id, chunk.ordinal)?;
        let tally = &self.line.tally;
        let seen_at_start =
            matches!(admission, Admission::Pending | Admission::Dead | Admission::Written { now: true })
                && self.adopted.remove(&chunk.key.short_hash());
        if seen_at_start {
            return Ok(());
        }
        if admission == (Admission::Written { now: true }) && self.again(&chunk)? {
            return Ok(());
        }
        tally.produced.add(1);
        if admission == Admission::Dead {
            // Its letter may be of another source with the same text; it counts for this run, too.
            let letter = self.line.folder.queue.standing(chunk.key.short_hash());
            if let Some(letter) = letter.map_err(|error| self.line.told(error))? {
                let uri = self.line.folder.origin_uri(&letter.origin);
                self.line.know_source(letter.origin.source_id, &uri);
            }
        }
        match admission {
            Admission::Enqueue => {
                let made_way =
                    self.line.folder.queue.enqueue(chunk).map_err(|error| self.line.told(error))?;
                tally.enqueued.add(1);
                tally.duplicates.add(u64::from(made_way));
            }
            Admission::Pending | Admission::Older | Admission::Written { now: true } => {
                tally.duplicates.add(1);
            }
            Admission::Written { now: false } | Admission::Discarded => tally.skipped.add(1),
            Admission::Dead => tally.dead.add(1),
        }
        Ok(())
    }

    /// Whether this very record was written by this run before the disk was full: it is counted in the ledger.
    fn again(&self, chunk: &Chunk) -> Result<bool, String> {
        if self.line.before.is_none() {
            return Ok(false);
        }
        let held = self.line.folder.ledger.held(&chunk.key).map_err(|error| self.line.told(error))?;
        Ok(held.is_some_and(|held| (held.source_id, held.ordinal) == (chunk.source_id, chunk.ordinal)))
    }

    /// Gives the short hash of the record's subject.
    fn unreadable(&self, source: &RegisteredSource, bad: Unreadable) -> Result<u128, String> {
        let tally = &self.line.tally;
        tally.unreadable.add(1);
        let (uri, offset) = (bad.file.unwrap_or_else(|| source.uri.clone()), bad.at.offset);
        let keep = self.line.settings.dlq_payload;
        let (file, uri, payload) = match keep {
            Keep::Full => {
                let payload = Payload::Raw { base64: base64(&bad.raw), bytes: bad.raw_len };
                (uri.clone(), uri, payload)
            }
            Keep::Reference => {
                let payload = Payload::Reference { hash: bad.raw_hash, bytes: bad.raw_len, checksum: 0 };
                (hidden(&uri), String::new(), payload)
            }
        };
        let subject = Subject::Record { source: file, offset, raw_hash: bad.raw_hash };
        let known_as = subject.short_hash();
        let standing = self.line.folder.queue.standing_or_mended(known_as);
        match standing.map_err(|error| self.line.told(error))?.map(|letter| letter.state) {
            // It was given up, or is written as what it was repaired to.
            Some(LetterState::Discarded | LetterState::Resolved) => {
                tally.skipped.add(1);
                return Ok(known_as);
            }
            // What it was redriven as is on its way, and counted as that.
            Some(LetterState::Redriven) => {
                tally.duplicates.add(1);
                return Ok(known_as);
            }
            Some(LetterState::Open | LetterState::Quarantined) => {
                tally.dead.add(1);
                return Ok(known_as);
            }
            None => {}
        }
        self.bury(Burial {
            subject,
            doc_id: bad.doc_id,
            chunk_id: None,
            identity: None,
            stage: bad.class.stage(),
            fault: Fault::new(bad.class, bad.message),
            attempts: 1,
            origin: Origin { source_id: source.source_id, source: uri, line: bad.at.line, offset },
            payload,
        })?;
        Ok(known_as)
    }

    fn bury(&self, burial: Burial) -> Result<(), String> {
        // The lane closes only when the line is torn down; the input is then read again by the next run.
        self.dead
            .blocking_send(Dead { lease: None, burial })
            .map_err(|_| "the line ended before the input did; run again".to_owned())
    }
}

fn base64(bytes: &[u8]) -> String {
    base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes)
}

//! What would become of a letter if it were sent back now: looked at again, repaired as asked, compared with what is
//! written. Changes nothing.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use serde::Serialize;

use super::{
    Context,
    redrive::{Given, How},
};
use crate::{
    chunk::{Chunk, ChunkKey, DOC_ID_BYTES_MAX, Digest},
    embed::Embed,
    error::{Class, Fault},
    pipeline::splitting,
    queue::dead::{DeadLetter, Payload, State},
    repair::{self, Changes, Repair},
    source::{self, Item},
};

/// Loads a model, at most once; `None` when it is not here.
pub type ModelOf<'a> = &'a dyn Fn() -> Option<Arc<dyn Embed>>;

/// What would become of a letter.
pub(super) enum Diagnosis {
    /// Back into the queue.
    Back(Mended),
    /// Closed without: `superseded` (a newer text is written) or `reconciled` (it is written already).
    Closed(&'static str),
    /// Left alone.
    Stays(Reason, String),
}

/// What goes back.
pub(super) struct Mended {
    /// As these chunks.
    pub(super) chunks: Vec<Chunk>,
    /// The number of them that are a whole document.
    pub(super) document: Option<u64>,
    /// What was repaired.
    pub(super) changes: Vec<(String, u64)>,
    /// What could not be looked at here.
    pub(super) note: Option<&'static str>,
}

/// Why a letter stays, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    /// It is quarantined.
    NeedsApproval,
    /// It was to be embedded under another identity.
    OtherIdentity,
    /// A version of it is in the queue.
    Pending,
    /// It would fail the same way.
    FailsAgain,
    /// What it takes is not at hand here: its whole bytes, its file, the model.
    CannotHere,
}

type Found<T> = Result<T, Diagnosis>;

/// Looks at letters in one light.
pub(super) struct Doctor<'a> {
    pub(super) context: Context<'a>,
    pub(super) how: &'a How,
    pub(super) model: ModelOf<'a>,
}

impl Doctor<'_> {
    /// Looks at an open or quarantined letter.
    ///
    /// # Errors
    /// A sentence, when a store cannot be used.
    pub(super) fn diagnose(&self, letter: &DeadLetter) -> Result<Diagnosis, String> {
        let mended = self.allowed(letter).and_then(|()| self.mended(letter));
        match mended {
            Ok(mended) => self.newest(letter, mended),
            Err(diagnosis) => Ok(diagnosis),
        }
    }

    /// Identity of what is embedded now, if that is known.
    fn identity(&self) -> Option<&str> {
        self.context.line.map_or(self.how.identity.as_deref(), |line| Some(line.identity.as_str()))
    }

    fn model(&self) -> Option<Arc<dyn Embed>> {
        self.context.line.map_or_else(self.model, |line| Some(Arc::clone(&line.model)))
    }

    fn allowed(&self, letter: &DeadLetter) -> Found<()> {
        if letter.state == State::Quarantined && !self.how.approve {
            let why = if letter.class == Class::UnknownOutcome {
                "quarantined: nobody knows whether it was written; look into the sink, then add --approve"
            } else {
                "quarantined: it failed the same way after a redrive, or too often; add --approve"
            };
            return Err(stays(Reason::NeedsApproval, why));
        }
        match (&letter.identity, self.identity()) {
            (Some(theirs), Some(ours)) if theirs != ours && !self.how.any_identity => {
                let why = format!(
                    "it was to be embedded as {theirs}, and this would be {ours}; name that model, or add --any-identity"
                );
                Err(Diagnosis::Stays(Reason::OtherIdentity, why))
            }
            _ => Ok(()),
        }
    }

    fn mended(&self, letter: &DeadLetter) -> Found<Mended> {
        let given = self.how.given.iter().find(|given| given.id == letter.id);
        if given.is_some_and(|given| given.chunk_id != letter.chunk_id) {
            return Err(stays(Reason::Pending, "its text changed meanwhile; look at it again"));
        }
        if let Some(chunk) = letter.chunk() {
            return self.chunk(letter, chunk, given);
        }
        if let Some(given) = given {
            return self.given(letter, given);
        }
        match &letter.payload {
            // A file that is one document: its bytes are no record, and they lie in the file.
            Payload::Raw { .. } if letter.origin.line == 0 => {
                let why = "mend the file and run its folder again; that closes this letter";
                Err(stays(Reason::CannotHere, why))
            }
            Payload::Raw { base64, bytes } => {
                let raw = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, base64)
                    .map_err(|_| stays(Reason::CannotHere, "its payload is damaged"))?;
                if (raw.len() as u64) < *bytes {
                    let why = "only its first bytes were kept; mend the input and run it again";
                    return Err(stays(Reason::CannotHere, why));
                }
                self.record(letter, &raw)
            }
            Payload::Chunk { .. } | Payload::Reference { .. } => {
                Err(stays(Reason::CannotHere, "its payload does not fit its subject"))
            }
        }
    }

    /// A chunk, repaired and tokenised again where that was what it failed of.
    fn chunk(&self, letter: &DeadLetter, chunk: Chunk, given: Option<&Given>) -> Found<Mended> {
        let mut changes = Changes::new();
        let mut text = match given {
            Some(given) => given.text.clone(),
            None => repair::text(&chunk.text, &self.how.repairs, &mut changes).into_owned(),
        };
        let mut note = None;
        let tokens_matter = matches!(letter.class, Class::TooLong | Class::TokenizerFailed);
        let cuts = given.is_none() && self.how.repairs.contains(&Repair::Truncate);
        if tokens_matter || cuts {
            match self.model() {
                Some(model) => {
                    let fits = |text: &str| tokenized(model.as_ref(), text).is_ok_and(|whole| whole);
                    if cuts {
                        text = repair::cut(&text, &fits, &mut changes).into_owned();
                    }
                    if let Err(fault) = tokenized(model.as_ref(), &text) {
                        let why = format!("it would fail again, {}: {}", fault.class, fault.message);
                        return Err(Diagnosis::Stays(Reason::FailsAgain, why));
                    }
                }
                None if cuts => {
                    return Err(stays(Reason::CannotHere, "truncating needs the model, which is not here"));
                }
                None => note = Some("the model is not here to look at it again; it would be tried"),
            }
        }
        let meta = given.and_then(|given| given.meta.clone()).or_else(|| chunk.meta.clone());
        let by_command = given.is_some() && (text != chunk.text || meta != chunk.meta);
        let mended = Chunk { text, meta, ..chunk };
        let (chunks, changes) = (vec![not_blank(mended)?], named(&changes, by_command));
        Ok(Mended { chunks, document: None, changes, note })
    }

    /// Whether repairs, or settings that changed meanwhile, make the record readable.
    fn record(&self, letter: &DeadLetter, raw: &[u8]) -> Found<Mended> {
        let mut changes = Changes::new();
        let bytes = repair::record(raw, &self.how.repairs, &mut changes);
        match source::decode_line(&bytes, self.context.source, self.context.line_bytes) {
            Item::Record(record) => {
                let read = Digest::of(record.text.as_bytes());
                let text = repair::text(&record.text, &self.how.repairs, &mut changes).into_owned();
                let (doc_id, index) = (record.doc_id, record.chunk_index);
                let chunks = self.chunks(letter, doc_id, index, text, record.meta, read)?;
                let document = index.is_none().then_some(chunks.len() as u64);
                Ok(Mended { chunks, document, changes: named(&changes, false), note: None })
            }
            Item::Unreadable(still) => {
                let why = format!("still {}: {}", still.class, still.message);
                Err(Diagnosis::Stays(Reason::FailsAgain, why))
            }
        }
    }

    /// A record as a user's command says it is.
    fn given(&self, letter: &DeadLetter, given: &Given) -> Found<Mended> {
        let doc_id = given.doc_id.clone().or_else(|| letter.doc_id.clone());
        let doc_id = doc_id.filter(|id| (1..=DOC_ID_BYTES_MAX).contains(&id.len())).ok_or_else(|| {
            stays(
                Reason::FailsAgain,
                "the command must say its doc_id: none could be read, or it is too long",
            )
        })?;
        let read = Digest::of(given.text.as_bytes());
        let (text, meta) = (given.text.clone(), given.meta.clone());
        let chunks = self.chunks(letter, doc_id, given.chunk_index, text, meta, read)?;
        let document = given.chunk_index.is_none().then_some(chunks.len() as u64);
        Ok(Mended { chunks, document, changes: named(&Changes::new(), true), note: None })
    }

    /// A record as chunks: itself, or the document split as a run splits it.
    fn chunks(
        &self,
        letter: &DeadLetter,
        doc_id: String,
        index: Option<u64>,
        text: String,
        meta: Option<String>,
        read: Digest,
    ) -> Found<Vec<Chunk>> {
        let chunk = |index, text: String, source_hash| {
            not_blank(Chunk {
                key: ChunkKey::new(doc_id.clone(), index),
                text,
                meta: meta.clone(),
                source_hash,
                source_id: letter.origin.source_id,
                ordinal: letter.origin.offset,
                line: letter.origin.line,
            })
        };
        if let Some(index) = index {
            return Ok(vec![chunk(index, text, read)?]);
        }
        let Some(model) = self.model() else {
            let why = "it can be read now, but must be split by the model, which is not here; see `forebay model list`";
            return Err(stays(Reason::CannotHere, why));
        };
        let texts = splitting::chunk_texts(model.as_ref(), self.context.source, &text)
            .ok_or_else(|| stays(Reason::FailsAgain, "the tokenizer panicked while it was split"))?;
        if texts.is_empty() {
            return Err(stays(Reason::FailsAgain, "nothing but white space is left of its text"));
        }
        let hashed = |text: String| (Digest::of(text.as_bytes()), text);
        (0..).zip(texts.into_iter().map(hashed)).map(|(at, (hash, text))| chunk(at, text, hash)).collect()
    }

    /// A late redrive never overwrites newer text, and what is written is not done again.
    fn newest(&self, letter: &DeadLetter, mut mended: Mended) -> Result<Diagnosis, String> {
        let folder = self.context.folder;
        let identity = self.identity().or(letter.identity.as_deref());
        let mut todo = Vec::new();
        for chunk in std::mem::take(&mut mended.chunks) {
            if folder.queue.held(&chunk.key, &chunk.id()).is_some() {
                return Ok(stays(Reason::Pending, "a version of it is pending already"));
            }
            let written = folder.ledger.held(&chunk.key).map_err(|error| error.to_string())?;
            // Not by the clock: an older version that was on its way may be written after the newer one was buried. A
            // row rebuilt from the sink has no source.
            let newer = written.as_ref().is_some_and(|row| match row.source_id {
                0 => row.embedded_at > letter.last_failed_at,
                source => (source, row.ordinal) > (letter.origin.source_id, letter.origin.offset),
            });
            let same =
                |row: &crate::ledger::Written| row.chunk_id == chunk.id() && Some(&*row.identity) == identity;
            if written.as_ref().is_some_and(same) {
                continue;
            }
            if newer {
                return Ok(Diagnosis::Closed("superseded"));
            }
            todo.push(chunk);
        }
        if let (Some(count), Some(chunk)) = (mended.document, todo.first()) {
            let tail = folder.ledger.tail(&chunk.key.doc_id, count).map_err(|error| error.to_string())?;
            if !tail.is_empty() {
                let why = "an older version of its document has more chunks, which only a reading of its source \
                           removes: mend the record there";
                return Ok(stays(Reason::CannotHere, why));
            }
        }
        mended.chunks = todo;
        Ok(if mended.chunks.is_empty() { Diagnosis::Closed("reconciled") } else { Diagnosis::Back(mended) })
    }
}

fn stays(reason: Reason, why: &str) -> Diagnosis {
    Diagnosis::Stays(reason, why.to_owned())
}

fn not_blank(chunk: Chunk) -> Found<Chunk> {
    if chunk.text.trim().is_empty() {
        return Err(stays(Reason::FailsAgain, "nothing but white space is left of its text"));
    }
    Ok(chunk)
}

fn named(changes: &Changes, by_command: bool) -> Vec<(String, u64)> {
    let changes = changes.iter().map(|(repair, count)| (repair.as_str().to_owned(), *count));
    changes.chain(by_command.then(|| ("repair_with".to_owned(), 1))).collect()
}

/// Whether a text that the model takes fits as a whole.
fn tokenized(model: &dyn Embed, text: &str) -> Result<bool, Fault> {
    let tokens = catch_unwind(AssertUnwindSafe(|| model.tokenize(text)));
    let tokens = tokens
        .unwrap_or_else(|_| Err(Fault::new(Class::TokenizerFailed, "the tokenizer panicked on this text")))?;
    Ok(!tokens.truncated)
}

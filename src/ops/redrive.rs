//! Sending letters back: each is diagnosed first, and one that would fail again the same way is left open.

use serde_json::{Value, json};

use super::{Context, export::PAGE, reference};
use crate::{
    chunk::{Chunk, ChunkKey, Digest},
    queue::{
        dead::{DeadLetter, Payload, State},
        dlq::{Filter, PAGE_BYTES},
    },
    source::{self, Item},
};

/// What would become of a letter.
enum Diagnosis {
    /// Back into the queue as this.
    Chunk(Box<Chunk>),
    /// Left alone, because.
    Stays(String),
    /// A newer text of its key is written or pending.
    Superseded,
}

/// Redrives a page of what `filter` keeps, oldest first, with one fsync.
///
/// # Errors
/// A sentence, when a store cannot be used.
pub(super) fn redrive(
    context: Context<'_>,
    filter: &Filter,
    dry_run: bool,
    who: &str,
) -> Result<Value, String> {
    let queue = &context.folder.queue;
    let text = |error: crate::queue::QueueError| error.to_string();
    let (mut back, mut superseded, mut staying) = (Vec::new(), Vec::new(), Vec::new());
    let letters = queue.letters_within(filter, PAGE, PAGE_BYTES).map_err(text)?;
    let next = letters.last().map(|letter| letter.id);
    for (letter, filled) in reference::fill(context, letters)? {
        if letter.state != State::Open {
            continue;
        }
        if let Err(why) = filled {
            staying.push(json!({ "id": letter.id, "class": letter.class, "why": why }));
            continue;
        }
        match diagnose(context, &letter)? {
            Diagnosis::Stays(why) => {
                staying.push(json!({ "id": letter.id, "class": letter.class, "why": why }));
            }
            Diagnosis::Superseded => superseded.push((letter.id, "superseded".to_owned())),
            Diagnosis::Chunk(chunk) => back.push((letter.id, *chunk)),
        }
    }
    let mut redriven = back.len() as u64;
    if !dry_run {
        queue.resolve(&superseded).map_err(text)?;
        let back = || queue.redrive_all(back, who);
        redriven = match context.line {
            Some(line) => line.take_up(back).map_err(text)?,
            None => back().map_err(text)?,
        };
    }
    let superseded = superseded.len();
    Ok(json!({
        "dry_run": dry_run, "redriven": redriven, "superseded": superseded, "staying": staying, "next": next,
    }))
}

fn diagnose(context: Context<'_>, letter: &DeadLetter) -> Result<Diagnosis, String> {
    if let Some(chunk) = letter.chunk() {
        return newest(context, letter, chunk);
    }
    match &letter.payload {
        // A file that is one document: its bytes are no record, and they lie in the file.
        Payload::Raw { .. } if letter.origin.line == 0 => {
            Ok(Diagnosis::Stays("mend the file and run its folder again; that closes this letter".into()))
        }
        Payload::Raw { base64, bytes } => {
            let raw = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, base64)
                .map_err(|_| format!("the payload of {} is damaged", letter.id))?;
            if (raw.len() as u64) < *bytes {
                let why = "only its first bytes were kept; mend the input and run it again";
                return Ok(Diagnosis::Stays(why.into()));
            }
            decode(context, letter, &raw)
        }
        Payload::Chunk { .. } | Payload::Reference { .. } => {
            Ok(Diagnosis::Stays("its payload does not fit its subject".into()))
        }
    }
}

/// Whether settings that changed meanwhile make the record readable.
fn decode(context: Context<'_>, letter: &DeadLetter, raw: &[u8]) -> Result<Diagnosis, String> {
    match source::decode_line(raw, context.source, context.line_bytes) {
        Item::Record(record) => {
            let Some(index) = record.chunk_index else {
                let why = "it can be read now, but must be split: run its source again";
                return Ok(Diagnosis::Stays(why.into()));
            };
            let chunk = Chunk {
                key: ChunkKey::new(record.doc_id, index),
                source_hash: Digest::of(record.text.as_bytes()),
                text: record.text,
                meta: record.meta,
                source_id: letter.origin.source_id,
                ordinal: letter.origin.offset,
                line: letter.origin.line,
            };
            newest(context, letter, chunk)
        }
        Item::Unreadable(still) => Ok(Diagnosis::Stays(format!("still {}: {}", still.class, still.message))),
    }
}

/// A late redrive never overwrites newer text.
fn newest(context: Context<'_>, letter: &DeadLetter, chunk: Chunk) -> Result<Diagnosis, String> {
    let folder = context.folder;
    if folder.queue.held(&chunk.key, &chunk.id()).is_some() {
        return Ok(Diagnosis::Stays("a version of it is pending already".into()));
    }
    let written = folder.ledger.held(&chunk.key).map_err(|error| error.to_string())?;
    // Not by the clock: an older version that was on its way may be written after the newer one was buried. A row
    // rebuilt from the sink has no source.
    let newer = written.is_some_and(|row| match row.source_id {
        0 => row.embedded_at > letter.last_failed_at,
        source => (source, row.ordinal) > (letter.origin.source_id, letter.origin.offset),
    });
    Ok(if newer { Diagnosis::Superseded } else { Diagnosis::Chunk(Box::new(chunk)) })
}

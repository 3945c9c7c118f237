//! Failures to deeds, by fate: the only place that decides. Stages never choose.

use std::time::Duration;

use super::{batch::Item, dead_letter::Dead, line::DeadLane, line::Line};
use crate::{
    chunk::Chunk,
    error::{Class, Fate, Fault, Stage},
    queue::{
        Lease, Settlement,
        dead::{Burial, Origin, Payload, Subject},
        dlq::Keep,
        now_ms,
        policy::{Verdict, verdict},
    },
    source,
};

/// Deals with chunks that failed by their own fault.
pub async fn triage<T>(line: &Line, dead: &DeadLane, failed: Vec<(Item<T>, Fault)>) {
    for (item, fault) in failed {
        one(line, dead, item.lease, item.chunk, fault).await;
    }
}

async fn one(line: &Line, dead: &DeadLane, lease: Lease, chunk: Chunk, fault: Fault) {
    let record = lease.record();
    let attempts = record.attempts + 1;
    let elapsed = match record.first_failed_ms {
        0 => Duration::ZERO,
        first => Duration::from_millis(now_ms().saturating_sub(first)),
    };
    match verdict(&line.settings.retry, fate(&fault), attempts, elapsed, fastrand::f64()) {
        Verdict::Retry(after) => {
            line.tally.retried.add(1);
            tracing::info!(class = %fault.class, attempts, after_ms = after.as_millis(), "a chunk is tried again");
            match line.folder.queue.settle(vec![Settlement::Retry { lease, attempts, after }]) {
                Ok(settled) => line.tally.duplicates.add(settled.superseded),
                Err(error) => line.halt(line.told(error)),
            }
        }
        Verdict::Bury => {
            let burial = burial(line, &chunk, fault, attempts);
            // The lane closes only when the line is torn down; the chunk is then still queued.
            let _ = dead.send(Dead { lease: Some(lease), burial }).await;
        }
        Verdict::Halt => line.halt(format!("{fault}; the chunk stays queued")),
    }
}

/// What the class says: kept apart so that a test can walk all classes through it.
fn fate(fault: &Fault) -> Fate {
    fault.class.fate()
}

/// A chunk on its way to the DLQ.
pub fn burial(line: &Line, chunk: &Chunk, fault: Fault, attempts: u32) -> Burial {
    Burial {
        subject: Subject::Chunk(chunk.key.clone()),
        doc_id: Some(chunk.key.doc_id.clone()),
        chunk_id: Some(chunk.id()),
        identity: Some(line.identity.clone()),
        stage: fault.class.stage(),
        fault,
        attempts,
        origin: Origin {
            source_id: chunk.source_id,
            source: match line.settings.dlq_payload {
                Keep::Full => line.source_uri(chunk.source_id),
                Keep::Reference => String::new(),
            },
            line: chunk.line,
            offset: chunk.ordinal,
        },
        payload: payload(line.settings.dlq_payload, chunk),
    }
}

fn payload(keep: Keep, chunk: &Chunk) -> Payload {
    match keep {
        Keep::Full => Payload::Chunk {
            text: chunk.text.clone(),
            meta: chunk.meta.clone(),
            source_hash: chunk.source_hash,
        },
        Keep::Reference => Payload::Reference {
            hash: chunk.source_hash,
            bytes: chunk.text.len() as u64,
            checksum: source::checksum(&chunk.text),
        },
    }
}

/// A chunk that killed the process more than once when it was alone.
pub fn crash_burial(line: &Line, chunk: &Chunk, unclean: u8) -> Burial {
    let message = format!(
        "the process died {unclean} times while this chunk was worked on, the last times alone; \
         look for an abort or an out-of-memory kill in the system's log"
    );
    let burial = burial(line, chunk, Fault::new(Class::SuspectedCrash, message), u32::from(unclean));
    Burial { stage: Stage::Embedder, ..burial }
}

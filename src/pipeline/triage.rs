//! Failures to deeds: the only place that decides. Stages say what happened, and where; they never choose.

use std::time::Duration;

use super::{batch::Item, circuit::Event, dead_letter::Dead, line::DeadLane, line::Line};
use crate::{
    chunk::Chunk,
    error::{Class, Fate, Fault, Stage, Whom},
    queue::{
        Lease, Settlement,
        dead::{Burial, Origin, Payload, Subject},
        dlq::Keep,
        policy::{self, History, Verdict},
    },
    source,
};

/// Deals with chunks that were found to be the ones that fail at this stage.
pub async fn triage<T>(line: &Line, dead: &DeadLane, stage: Stage, failed: Vec<(Item<T>, Fault)>) {
    for (item, fault) in failed {
        line.dependency(stage).inspect(|dependency| {
            dependency.tell(match fault.class.whom() {
                Whom::Dependency => Event::Failure,
                Whom::Chunk | Whom::Nobody => Event::Neutral,
            });
        });
        one(line, dead, stage, item.lease, item.chunk, fault).await;
    }
}

async fn one(line: &Line, dead: &DeadLane, stage: Stage, lease: Lease, chunk: Chunk, fault: Fault) {
    let record = lease.record();
    let history = History { attempts: record.attempts, waited: Duration::from_millis(record.waited_ms) };
    match policy::verdict(&line.settings.retry, &fault, history, fastrand::f64()) {
        Verdict::Retry { attempts, after } => {
            line.tally.retried.add(1);
            let charged = attempts > history.attempts;
            tracing::info!(class = %fault.class, attempts, charged, after_ms = after.as_millis(), "a chunk is tried again");
            match line.folder.queue.settle(vec![Settlement::Retry { lease, attempts, after }]) {
                Ok(settled) => line.tally.duplicates.add(settled.superseded),
                Err(error) => line.halt(line.told(error)),
            }
        }
        Verdict::Bury { attempts } => {
            let burial = burial(line, &chunk, stage, fault, attempts);
            // The lane closes only when the line is torn down; the chunk is then still queued.
            let _ = dead.send(Dead { lease: Some(lease), burial }).await;
        }
        Verdict::Halt => halt(line, &fault),
    }
}

/// A dependency failed with a batch in hand: told to its breaker, charged to nobody. Gives the time to hold the batch
/// before it is tried again; `None` when nothing will work until someone acts, and the line halts.
pub fn outage(line: &Line, stage: Stage, fault: &Fault, tries: u32) -> Option<Duration> {
    /// So that a wait that was drawn short does not become a busy loop.
    const WAIT_MIN: Duration = Duration::from_millis(50);
    let Fault { class, native_code, message, .. } = fault;
    if class.fate() == Fate::Halt {
        halt(line, fault);
        return None;
    }
    let what = line.dependency(stage).map_or("input", |dependency| {
        dependency.tell(Event::Failure);
        dependency.name
    });
    tracing::warn!(%class, code = native_code, why = message, "the {what} is unavailable");
    Some(policy::wait(&line.settings.retry, tries, fault.retry_after, fastrand::f64()).max(WAIT_MIN))
}

fn halt(line: &Line, fault: &Fault) {
    line.halt(format!("{fault}; what is not yet written stays queued: {}", fault.class.remedy()));
}

/// A chunk on its way to the DLQ.
pub fn burial(line: &Line, chunk: &Chunk, stage: Stage, fault: Fault, attempts: u32) -> Burial {
    Burial {
        subject: Subject::Chunk(chunk.key.clone()),
        doc_id: Some(chunk.key.doc_id.clone()),
        chunk_id: Some(chunk.id()),
        identity: Some(line.identity.clone()),
        stage,
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
    burial(line, chunk, Stage::Embedder, Fault::new(Class::SuspectedCrash, message), u32::from(unclean))
}

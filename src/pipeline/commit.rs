//! One batch into sink, ledger and queue, in this order; on the sink's thread.
//!
//! A crash after the sink costs a repeated idempotent write; after the ledger, nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{batch::Item, line::Line, tail, worker::words};
use crate::{
    chunk::Embedding,
    error::{Class, Fault},
    ledger::Written,
    queue::{Settlement, now_text},
    sink::{Confirmed, Row, SinkError},
};

/// What came of recording a batch that the sink holds.
pub enum Recorded {
    /// Recorded, counted, settled.
    Done,
    /// It cannot be recorded: halt, or close when the disk is full. The batch is still queued.
    Broken(String),
}

/// A batch with its vectors.
pub type Items = Vec<Item<Embedding>>;

/// The rows of a batch. The receipts stay with the caller, so that a sink that hangs takes none of them along.
pub fn rows(items: &Items) -> Vec<Row> {
    items.iter().map(row).collect()
}

/// Writes rows. A sink that panics on one row must not take its neighbours along: the batch is halved like any other,
/// unless rows may have been written that cannot be written again.
pub fn write(line: &Line, rows: &[Row]) -> Result<(), SinkError> {
    let accept = || match line.sink.accept(rows)? {
        Confirmed::Now => Ok(()),
        Confirmed::Later => line.sink.confirm(),
    };
    catch_unwind(AssertUnwindSafe(accept)).unwrap_or_else(|panic| {
        let message = format!("the sink panicked: {}", words(panic.as_ref()));
        let fault = Fault::new(Class::InternalPanic, message);
        Err(if line.sink.is_idempotent() { SinkError::Batch(fault) } else { SinkError::Unknown(fault) })
    })
}

/// Records a batch that the sink confirmed.
pub fn record(line: &Line, items: Items, rows: Vec<Row>) -> Recorded {
    let at = now_text();
    let written: Vec<Written> =
        items.iter().zip(&rows).map(|(item, row)| written(line, item, row, &at)).collect();
    let leases: Vec<_> = items.iter().map(|item| (&item.lease, &item.chunk)).collect();
    let resolves = match line.folder.queue.resolves(&leases) {
        Ok(resolves) => resolves,
        Err(error) => return Recorded::Broken(line.told(error)),
    };
    if let Err(error) = line.folder.ledger.commit(&written, &resolves) {
        return Recorded::Broken(line.told(error));
    }
    count(line, &rows);
    match settle(line, items, &resolves) {
        Ok(()) => Recorded::Done,
        Err(why) => Recorded::Broken(why),
    }
}

fn row(item: &Item<Embedding>) -> Row {
    Row {
        key: item.chunk.key.clone(),
        chunk_id: *item.lease.chunk_id(),
        source_hash: item.chunk.source_hash,
        content_hash: item.chunk.content_hash(),
        text: item.chunk.text.clone(),
        meta: item.chunk.meta.clone(),
        embedding: item.value.clone(),
    }
}

fn written(line: &Line, item: &Item<Embedding>, row: &Row, at: &str) -> Written {
    Written {
        key: row.key.clone(),
        chunk_id: row.chunk_id,
        source_hash: row.source_hash,
        content_hash: row.content_hash,
        identity: line.identity.clone(),
        source_id: item.chunk.source_id,
        ordinal: item.chunk.ordinal,
        run: line.run.clone(),
        embedded_at: at.to_owned(),
    }
}

fn count(line: &Line, rows: &[Row]) {
    line.tally.chunks.add(rows.len() as u64);
    line.tally.tokens.add(rows.iter().map(|row| u64::from(row.embedding.n_tokens)).sum());
    line.tally.truncated.add(rows.iter().filter(|row| row.embedding.truncated).count() as u64);
}

fn settle(line: &Line, items: Items, resolves: &[(uuid::Uuid, String)]) -> Result<(), String> {
    if !resolves.is_empty() {
        // Before the chunks leave the queue: a letter whose chunk is not pending is then open only if nothing newer
        // was written, and a redrive needs no look into the ledger to know that.
        line.folder.queue.resolve(resolves).map_err(|error| line.told(error))?;
        let known: Vec<_> = resolves.iter().map(|(id, _)| *id).collect();
        line.folder.ledger.resolved_known(&known).map_err(|error| line.told(error))?;
    }
    let settlements = items.into_iter().map(|item| Settlement::Written(item.lease)).collect();
    let settled = line.folder.queue.settle(settlements).map_err(|error| line.told(error))?;
    if !settled.stale.is_empty() {
        // Their document lost them while they were on their way.
        line.folder.ledger.leaving(&settled.stale).map_err(|error| line.told(error))?;
        tail::delete(line, &settled.stale)?;
        line.folder.ledger.remove(&settled.stale).map_err(|error| line.told(error))?;
    }
    Ok(())
}

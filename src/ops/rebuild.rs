//! Making a lost store again from the others.

use serde::Serialize;

use crate::{
    folder::Folder,
    ledger::Written,
    sink::{Sink, SinkError},
};

/// Rows recorded with one commit.
const TOGETHER: usize = 1_000;

/// What was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rebuilt {
    /// Chunks recorded in the ledger from the sink.
    pub ledger_rows: u64,
    /// Rows the ledger had and the sink has not: forgotten, to be embedded again.
    pub forgotten: u64,
    /// Sources that the next run reads again.
    pub sources: usize,
}

/// Makes the ledger say what the sink holds of this data folder, and marks every source to be read again. Source
/// numbers and places are not in the sink; they count as unknown until the next reading.
///
/// # Errors
/// A sentence, when a store cannot be used.
pub fn ledger_from_sink(folder: &Folder, sink: &dyn Sink) -> Result<Rebuilt, String> {
    let text = |error: crate::ledger::LedgerError| error.to_string();
    let mut rebuilt = Rebuilt { forgotten: folder.ledger.count().map_err(text)?, ..Rebuilt::default() };
    folder.ledger.clear_chunks().map_err(text)?;
    let mut rows = Vec::new();
    let record = |rows: &mut Vec<Written>| folder.ledger.commit(rows, &[]).map(|()| rows.clear());
    let mut each = |row: crate::sink::Stored| {
        rebuilt.ledger_rows += 1;
        rows.push(Written {
            key: row.key,
            chunk_id: row.chunk_id,
            source_hash: row.source_hash,
            content_hash: row.content_hash,
            identity: row.identity,
            source_id: 0,
            ordinal: 0,
            run: "rebuild".into(),
            embedded_at: row.embedded_at,
        });
        if rows.len() == TOGETHER {
            record(&mut rows).map_err(|error| SinkError::Unusable(error.to_string()))?;
        }
        Ok(())
    };
    // A sink that was lost holds nothing; the next run makes a new one.
    if !sink.is_absent() {
        sink.scan(Some(&folder.store), &mut each).map_err(|error| error.to_string())?;
    }
    record(&mut rows).map_err(text)?;
    rebuilt.forgotten = rebuilt.forgotten.saturating_sub(rebuilt.ledger_rows);
    rebuilt.sources = folder.ledger.read_all_again().map_err(text)?;
    Ok(rebuilt)
}

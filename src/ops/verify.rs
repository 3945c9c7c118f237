//! Do ledger and sink say the same? Both ways, key by key, and a sample of vectors looked at closely.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    chunk::{ChunkKey, Digest},
    folder::Folder,
    identity::Identity,
    queue::{
        dead::{DeadLetter, State, Subject},
        dlq::Filter,
    },
    sink::{Sink, SinkError, Stored},
};

/// Vectors looked at closely.
const SAMPLE: usize = 256;
/// Rows whose vectors are read together.
const TOGETHER: usize = 8;
/// Mismatches named one by one.
const NAMED: usize = 10;
/// Ledger rows read at a time.
const PAGE: usize = 1_000;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verified {
    /// Rows in the ledger.
    pub ledger_rows: u64,
    /// Rows of this data folder in the sink.
    pub sink_rows: u64,
    /// Rows of other data folders in the sink.
    pub foreign_rows: u64,
    /// In the ledger, not in the sink.
    pub missing_in_sink: u64,
    /// In the sink, not in the ledger.
    pub missing_in_ledger: u64,
    /// In both, with another chunk id or identity.
    pub differing: u64,
    /// In the sink and still pending: a run was cut between sink and ledger, and the next one finishes it.
    pub unsettled: u64,
    /// Vectors looked at.
    pub sampled: u64,
    /// Of those: absent, or an output is wanting, of wrong dimension, not finite, not of norm 1.
    pub bad_vectors: u64,
    /// Rows of another identity than the one asked for; they are found by no search of this one.
    pub other_identity: u64,
    /// Resolved letters whose chunk is not in the ledger.
    pub resolved_without_vector: u64,
    /// The first mismatches, and what mends them.
    pub problems: Vec<String>,
    /// Whether all is as it should be.
    pub ok: bool,
}

impl Verified {
    fn problem(&mut self, text: String) {
        if self.problems.len() < NAMED {
            self.problems.push(text);
        }
    }
}

/// Whether the sink is the one that the ledger was written with: it must hold what was recorded last.
///
/// # Errors
/// A sentence, when it was deleted, moved, replaced, or is an older copy.
pub fn same_sink(folder: &Folder, sink: &dyn Sink) -> Result<(), String> {
    let Some(latest) = folder.ledger.latest().map_err(|error| error.to_string())? else { return Ok(()) };
    if !sink.keeps_rows()
        || sink.embeddings(std::slice::from_ref(&latest.key)).map_err(|e| e.to_string())? != [None]
    {
        return Ok(());
    }
    Err(format!(
        "{} lacks {}, which the ledger recorded last: it was deleted, replaced or restored from an older copy. Put it \
         back, or type `forebay rebuild` (the ledger is made from what the sink holds now) and `forebay run`",
        sink.place(),
        latest.key
    ))
}

/// Walks ledger and sink side by side, both in key order.
struct Walk<'a> {
    folder: &'a Folder,
    page: std::vec::IntoIter<(ChunkKey, Digest, String)>,
    last: Option<ChunkKey>,
    head: Option<(ChunkKey, Digest, String)>,
    found: Verified,
    sample: Vec<ChunkKey>,
    identities: Vec<String>,
    every: u64,
}

impl Walk<'_> {
    fn advance(&mut self) -> Result<(), String> {
        self.head = self.page.next();
        if self.head.is_none() {
            let page =
                self.folder.ledger.page(self.last.as_ref(), PAGE).map_err(|error| error.to_string())?;
            self.page = page.into_iter();
            self.head = self.page.next();
        }
        if let Some((key, ..)) = &self.head {
            self.last = Some(key.clone());
            self.found.ledger_rows += 1;
        }
        Ok(())
    }

    fn only_in_ledger(&mut self) -> Result<(), String> {
        if let Some((key, ..)) = &self.head {
            let text = format!("{key} is in the ledger and not in the sink");
            self.found.missing_in_sink += 1;
            self.found.problem(text);
        }
        self.advance()
    }

    fn row(&mut self, row: &Stored, identity: Option<&str>) -> Result<(), String> {
        self.found.sink_rows += 1;
        if identity.is_some_and(|identity| identity != row.identity) {
            self.found.other_identity += 1;
        }
        while self.head.as_ref().is_some_and(|(key, ..)| *key < row.key) {
            self.only_in_ledger()?;
        }
        let pending = self.folder.queue.held(&row.key, &row.chunk_id).is_some_and(|held| held.same);
        match &self.head {
            Some((key, chunk_id, stored)) if *key == row.key => {
                if (*chunk_id != row.chunk_id || *stored != row.identity) && pending {
                    self.found.unsettled += 1;
                } else if *chunk_id != row.chunk_id || *stored != row.identity {
                    let text = format!("{key} differs between ledger and sink");
                    self.found.differing += 1;
                    self.found.problem(text);
                }
                if self.found.sink_rows.is_multiple_of(self.every) && self.sample.len() < SAMPLE {
                    self.sample.push(row.key.clone());
                    self.identities.push(row.identity.clone());
                }
                self.advance()
            }
            _ if pending => {
                self.found.unsettled += 1;
                Ok(())
            }
            _ => {
                self.found.missing_in_ledger += 1;
                self.found.problem(format!("{} is in the sink and not in the ledger", row.key));
                Ok(())
            }
        }
    }
}

/// Reconciles. `identity` is the one of the settings, when the model could be told.
///
/// # Errors
/// A sentence, when a store cannot be read; mismatches are in the result.
pub fn verify(folder: &Folder, sink: &dyn Sink, identity: Option<&Identity>) -> Result<Verified, String> {
    let stored = identity.map(Identity::stored);
    let count = folder.ledger.count().map_err(|error| error.to_string())?;
    let mut walk = Walk {
        folder,
        page: Vec::new().into_iter(),
        last: None,
        head: None,
        found: Verified::default(),
        sample: Vec::new(),
        identities: Vec::new(),
        every: (count / SAMPLE as u64).max(1),
    };
    walk.advance()?;
    let mut total = 0_u64;
    sink.scan(None, &mut |row| {
        total += 1;
        if row.store != folder.store {
            return Ok(());
        }
        walk.row(&row, stored.as_deref()).map_err(SinkError::Unusable)
    })
    .map_err(|error| error.to_string())?;
    while walk.head.is_some() {
        walk.only_in_ledger()?;
    }
    let Walk { mut found, sample, identities, .. } = walk;
    found.foreign_rows = total - found.sink_rows;
    look_closely(sink, &sample, &identities, &mut found)?;
    letters(folder, &mut found)?;
    finish(&mut found);
    Ok(found)
}

fn look_closely(
    sink: &dyn Sink,
    sample: &[ChunkKey],
    identities: &[String],
    found: &mut Verified,
) -> Result<(), String> {
    let mut first: BTreeMap<&str, (usize, bool, bool)> = BTreeMap::new();
    // A few at a time: a multi-vector output is long.
    for (keys, identities) in sample.chunks(TOGETHER).zip(identities.chunks(TOGETHER)) {
        let embeddings = sink.embeddings(keys).map_err(|error| error.to_string())?;
        for ((key, identity), embedding) in keys.iter().zip(identities).zip(embeddings) {
            let embedding = embedding.unwrap_or_default();
            // All rows of one identity have the same outputs, of one length: those of the first.
            let has = (embedding.dense.len(), embedding.sparse.is_some(), embedding.multi.is_some());
            let wanted = *first.entry(identity).or_insert(has);
            found.sampled += 1;
            let sound = if (has.1, has.2) == (wanted.1, wanted.2) {
                embedding.check(wanted.0)
            } else {
                Err("its outputs are not those of other rows of its identity".into())
            };
            if let Err(what) = sound {
                found.bad_vectors += 1;
                found.problem(format!("the vector of {key} is not sound: {what}"));
            }
        }
    }
    Ok(())
}

/// A letter that is resolved must have its chunk in the ledger.
fn letters(folder: &Folder, found: &mut Verified) -> Result<(), String> {
    let filter = Filter { states: vec![State::Resolved], ..Filter::default() };
    let mut failed = None;
    let mut look = |letter: DeadLetter| -> Result<(), String> {
        let Subject::Chunk(key) = &letter.subject else { return Ok(()) };
        // A superseded one may have lost its key with its document's tail; one that came from elsewhere was resolved there.
        let elsewhere = letter.audit.iter().any(|step| step.what == "import");
        if letter.resolved_how.as_deref() != Some("superseded")
            && !elsewhere
            && folder.ledger.held(key).map_err(|error| error.to_string())?.is_none()
        {
            found.resolved_without_vector += 1;
            found.problem(format!("dead letter {} is resolved, and {key} is not written", letter.id));
        }
        Ok(())
    };
    let each = folder.queue.each_letter(&filter, &mut |letter| {
        failed = look(letter).err();
        failed.is_none()
    });
    each.map_err(|error| error.to_string())?;
    failed.map_or(Ok(()), Err)
}

fn finish(found: &mut Verified) {
    let missing = found.missing_in_sink + found.missing_in_ledger + found.differing;
    found.ok = missing + found.bad_vectors + found.resolved_without_vector == 0;
    if missing > 0 {
        found.problems.push(
            "to mend: `forebay run` first; if this stays, `forebay rebuild` (it makes the ledger from the sink) and \
             `forebay run` again"
                .into(),
        );
    }
    if found.bad_vectors > 0 {
        found.problems.push(
            "to mend: delete those rows from the sink, then `forebay rebuild` and `forebay run`".into(),
        );
    }
}

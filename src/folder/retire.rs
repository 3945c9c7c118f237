//! When a spooled input may go: it was read to its end, nothing of it is pending, and no dead letter still stands for
//! a record that could not be read (its letter may hold only the first bytes, and a document is split from its file) or
//! refers to it for its text.

use std::borrow::Cow;

use super::{Folder, FolderError, spool};
use crate::queue::{
    dead::{Origin, Payload, Subject},
    dlq::Filter,
    now_text,
};

impl Folder {
    /// Spooled inputs that no source names: a process died between the two, or the ledger was made anew.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn unnamed_spool(&self) -> Result<Vec<std::path::PathBuf>, FolderError> {
        let mut found = Vec::new();
        for path in spool::files(&self.dir) {
            let Some(uri) = spool::uri_of(&self.dir, &path) else { continue };
            if self.ledger.source(&uri)?.is_none() {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// Drops the spooled inputs that are done with. Gives their number.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn drop_spooled(&self) -> Result<usize, FolderError> {
        let mut dropped = 0;
        for path in spool::files(&self.dir) {
            let Some(uri) = spool::uri_of(&self.dir, &path) else { continue };
            let Some(known) = self.ledger.source(&uri)? else { continue };
            if !known.dropped {
                let pending = self.queue.pending_sources();
                if !known.done
                    || known.numbers.iter().any(|number| pending.contains(number))
                    || self.stands(&uri, &known.numbers)?
                {
                    continue;
                }
                // In this order: a file without a source is taken up again, a source without its file is not missed.
                self.ledger.drop_source(&uri, &now_text())?;
            }
            std::fs::remove_file(&path).map_err(|error| FolderError::io(&path, error))?;
            dropped += 1;
        }
        Ok(dropped)
    }

    /// The uri of what a letter was read from; empty when no letter and no ledger knows.
    pub fn origin_uri<'a>(&self, origin: &'a Origin) -> Cow<'a, str> {
        if !origin.source.is_empty() {
            return Cow::Borrowed(&origin.source);
        }
        Cow::Owned(self.ledger.source_uri(origin.source_id).ok().flatten().unwrap_or_default())
    }

    /// Whether a letter stands for a record of this source, or needs it for its text.
    fn stands(&self, uri: &str, numbers: &[i64]) -> Result<bool, FolderError> {
        let unresolved = self.queue.letter_counts().sum(|_, state| state.unresolved());
        if unresolved == 0 {
            return Ok(false);
        }
        let mut stands = false;
        self.queue.each_letter(&Filter::default(), &mut |letter| {
            let refers = matches!(letter.payload, Payload::Reference { .. });
            stands = (refers && numbers.contains(&letter.origin.source_id))
                || matches!(&letter.subject, Subject::Record { source, .. } if source == uri);
            !stands
        })?;
        Ok(stands)
    }
}

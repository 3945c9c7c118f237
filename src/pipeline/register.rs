//! From paths to registered sources: durable before anything of them is read.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::atomic::Ordering::Relaxed,
};

use super::{StartError, intake::Input, line::Line};
use crate::{
    folder::spool,
    queue::now_text,
    source::{self, SourceError},
};

/// Sources to read, and what is to be said of those that cannot be.
#[derive(Debug, Default)]
pub struct Registered {
    /// To read, in this order.
    pub inputs: Vec<Input>,
    /// Sentences on sources that were not read to their end and are gone.
    pub gone: Vec<String>,
}

/// Registers `paths`.
///
/// # Errors
/// An input that is not there or is nothing we can read: before any work is done.
pub fn register(line: &Line, paths: &[PathBuf]) -> Result<Registered, StartError> {
    let (mut registered, mut seen) = (Registered::default(), HashSet::new());
    for path in paths {
        add(line, &mut registered, &mut seen, Path::new(&source::canonical_uri(path)?), true)?;
    }
    Ok(registered)
}

/// Registers `paths`, whatever was registered before and not read to its end, and spooled inputs that no source names.
///
/// # Errors
/// As [`register`].
pub fn register_all(line: &Line, paths: &[PathBuf]) -> Result<Registered, StartError> {
    let (mut registered, mut seen) = (Registered::default(), HashSet::new());
    for path in paths {
        add(line, &mut registered, &mut seen, Path::new(&source::canonical_uri(path)?), true)?;
    }
    let dir = &line.folder.dir;
    for uri in line.folder.ledger.unread_sources()? {
        let path = spool::path_of(dir, &uri).unwrap_or_else(|| PathBuf::from(&uri));
        if seen.contains(&path) {
            continue;
        }
        if path.exists() {
            tracing::info!(source = uri, "was not read to its end before; it is read again");
            add(line, &mut registered, &mut seen, &path, false)?;
        } else {
            let gone = "was not read to its end before, and is gone; bring it back and run again";
            registered.gone.push(format!("{uri}: {gone}"));
        }
    }
    for path in line.folder.unnamed_spool()? {
        // Whole, and perhaps acknowledged before the ledger was made anew.
        match add(line, &mut registered, &mut seen, &path, true) {
            Ok(()) => tracing::info!(file = %path.display(), "a spooled input without a source is taken up"),
            Err(StartError::Source(error)) => {
                tracing::warn!(%error, "a spooled input cannot be read; remove it");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(registered)
}

/// Adds what a path leads to; `named` by a user, or only taken up again.
fn add(
    line: &Line,
    registered: &mut Registered,
    seen: &mut HashSet<PathBuf>,
    path: &Path,
    named: bool,
) -> Result<(), StartError> {
    let settings = &line.settings;
    let found = source::discover(path, &settings.source, settings.limits.line_bytes, named)?;
    if found.passed_over > 0 {
        let (folder, files) = (path.display(), found.passed_over);
        tracing::warn!(%folder, files, "files of other kinds are passed over; `source.include` names what is text");
    }
    for source::Found { path, fingerprint } in found.inputs {
        if !seen.insert(path.clone()) {
            continue;
        }
        line.tally.bytes_total.fetch_add(fingerprint.size, Relaxed);
        let uri = uri_of(&line.folder.dir, &path)?;
        let known = line.folder.ledger.register(&uri, &fingerprint.digest.to_string(), &now_text())?;
        line.know_source(known.source_id, &uri);
        registered.inputs.push(Input { registered: known, path });
    }
    Ok(())
}

/// The name a file is registered under: its absolute path, or its id when it lies in the spool.
///
/// # Errors
/// Missing, or a path that is not UTF-8.
pub fn uri_of(dir: &Path, path: &Path) -> Result<String, SourceError> {
    let canonical = source::canonical_uri(path)?;
    Ok(spool::uri_of(dir, Path::new(&canonical)).unwrap_or(canonical))
}

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
        add(line, &mut registered, &mut seen, PathBuf::from(source::canonical_uri(path)?))?;
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
        add(line, &mut registered, &mut seen, PathBuf::from(source::canonical_uri(path)?))?;
    }
    let dir = &line.folder.dir;
    for uri in line.folder.ledger.unread_sources()? {
        let path = spool::path_of(dir, &uri).unwrap_or_else(|| PathBuf::from(&uri));
        if seen.contains(&path) {
            continue;
        }
        if path.exists() {
            tracing::info!(source = uri, "was not read to its end before; it is read again");
            add(line, &mut registered, &mut seen, path)?;
        } else {
            let gone = "was not read to its end before, and is gone; bring it back and run again";
            registered.gone.push(format!("{uri}: {gone}"));
        }
    }
    for path in line.folder.unnamed_spool()? {
        // Whole, and perhaps acknowledged before the ledger was made anew.
        match add(line, &mut registered, &mut seen, path.clone()) {
            Ok(()) => tracing::info!(file = %path.display(), "a spooled input without a source is taken up"),
            Err(StartError::Source(error)) => {
                tracing::warn!(%error, "a spooled input cannot be read; remove it");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(registered)
}

fn add(
    line: &Line,
    registered: &mut Registered,
    seen: &mut HashSet<PathBuf>,
    path: PathBuf,
) -> Result<(), StartError> {
    if !seen.insert(path.clone()) {
        return Ok(());
    }
    // Opened once before anything starts: a missing file or a wrong encoding is told at once.
    let settings = &line.settings;
    let source = source::open(&path, &settings.source, settings.limits.line_bytes)?;
    line.tally.bytes_total.fetch_add(source.bytes_total().unwrap_or(0), Relaxed);
    let uri = uri_of(&line.folder.dir, &path)?;
    let fingerprint = source::fingerprint(&path)?.digest.to_string();
    let known = line.folder.ledger.register(&uri, &fingerprint, &now_text())?;
    line.know_source(known.source_id, &uri);
    registered.inputs.push(Input { registered: known, path });
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

//! Letters that keep no text: filled from their source again, which is read once for all letters of a page. What is
//! found must have the hash that was noted.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::Context;
use crate::{
    folder::spool,
    queue::dead::{DeadLetter, Payload, Subject},
    source::{self, Item, SourceError, Unreadable},
};

/// A letter with all it needs, or why that is not to be had.
pub(super) type Filled = (DeadLetter, Result<(), String>);

/// Fills the letters that are references; the others stay as they are.
///
/// # Errors
/// A sentence, when the ledger cannot be used.
pub(super) fn fill(context: Context<'_>, letters: Vec<DeadLetter>) -> Result<Vec<Filled>, String> {
    let mut sources = BTreeMap::<i64, Vec<usize>>::new();
    for (at, letter) in letters.iter().enumerate() {
        if matches!(letter.payload, Payload::Reference { .. }) {
            sources.entry(letter.origin.source_id).or_default().push(at);
        }
    }
    let mut filled: Vec<Filled> = letters.into_iter().map(|letter| (letter, Ok(()))).collect();
    for (source_id, wanted) in sources {
        let uri = context.folder.ledger.source_uri(source_id).map_err(|error| error.to_string())?;
        let found = match &uri {
            Some(uri) => search(context, uri, &wanted, &mut filled),
            None => Err("source_gone: it was read on another machine, or the ledger was made anew".into()),
        };
        for at in wanted {
            let (letter, state) = &mut filled[at];
            if matches!(letter.payload, Payload::Reference { .. }) {
                *state = Err(found.as_ref().err().cloned().unwrap_or_else(|| changed(uri.as_deref())));
            }
        }
    }
    Ok(filled)
}

fn changed(uri: Option<&str>) -> String {
    let uri = uri.unwrap_or_default();
    format!(
        "source_changed: {uri} no longer holds it as it was; run that source again, which closes this letter"
    )
}

/// Reads a source until all that is wanted of it is found.
fn search(context: Context<'_>, uri: &str, wanted: &[usize], letters: &mut [Filled]) -> Result<(), String> {
    let path = spool::path_of(&context.folder.dir, uri).unwrap_or_else(|| PathBuf::from(uri));
    let gone = |error: SourceError| match error {
        SourceError::Io { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            format!("source_gone: {uri} is not there; bring it back and redrive again")
        }
        other => other.to_string(),
    };
    let mut source = source::open(Path::new(&path), context.source, context.line_bytes).map_err(gone)?;
    let mut left = wanted.len();
    while left > 0 {
        let Some(item) = source.next().map_err(gone)? else { break };
        for at in wanted {
            let letter = &mut letters[*at].0;
            if let Some(payload) = found(letter, &item) {
                letter.payload = payload;
                left -= 1;
            }
        }
    }
    Ok(())
}

/// What the letter refers to, if this item is or holds it.
fn found(letter: &DeadLetter, item: &Item) -> Option<Payload> {
    let Payload::Reference { hash, bytes, checksum } = &letter.payload else { return None };
    match (&letter.subject, item) {
        (Subject::Chunk(key), Item::Record(record)) => {
            // A file that is one document has no place in its folder but its name, which is its id.
            let here = letter.origin.line == 0 || record.at.offset == letter.origin.offset;
            if !here || record.doc_id != key.doc_id {
                return None;
            }
            let length = usize::try_from(*bytes).ok()?;
            let text = source::locate(&record.text, length, *checksum, hash)?;
            Some(Payload::Chunk { text: text.to_owned(), meta: record.meta.clone(), source_hash: *hash })
        }
        (Subject::Record { .. }, Item::Unreadable(Unreadable { at, raw, raw_len, raw_hash, .. })) => {
            let here = at.offset == letter.origin.offset && at.line == letter.origin.line;
            let base64 = || base64::Engine::encode(&base64::engine::general_purpose::STANDARD, raw);
            (here && raw_hash == hash).then(|| Payload::Raw { base64: base64(), bytes: *raw_len })
        }
        _ => None,
    }
}

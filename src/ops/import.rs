//! Dead letters into the folder, line by line; one that is not ours is refused with its line, and its neighbours go
//! on.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Context;
use crate::queue::{
    dead::{DeadLetter, FORM, Payload},
    import::check,
};

/// A line as a letter.
///
/// # Errors
/// Why it is refused, without quoting it.
pub fn letter(line: &[u8]) -> Result<DeadLetter, String> {
    /// What every form has.
    #[derive(Deserialize)]
    struct Form {
        form: String,
    }
    match serde_json::from_slice::<DeadLetter>(line) {
        Ok(letter) => check(&letter).map(|()| letter),
        Err(error) => Err(match serde_json::from_slice::<Form>(line) {
            Ok(Form { form }) if form != FORM => {
                let form: String = form.chars().take(60).collect();
                format!("its form is {form:?}, this version knows {FORM}")
            }
            Ok(_) => format!("a field of it is missing or of another type ({:?} error)", error.classify()),
            Err(_) => format!("not a dead letter: a line of `forebay dlq export` is a JSON object of {FORM}"),
        }),
    }
}

/// Takes letters in; the numbers of sources are those of this folder.
///
/// # Errors
/// A sentence, when a store cannot be used or a letter should have been refused.
pub(super) fn merge(context: Context<'_>, letters: &[DeadLetter], who: &str) -> Result<Value, String> {
    let folder = context.folder;
    let mut merged = Vec::with_capacity(letters.len());
    for letter in letters {
        check(letter)?;
        let mut letter = letter.clone();
        let uri = folder.ledger.source_uri(letter.origin.source_id).map_err(|error| error.to_string())?;
        let ours = match &letter.payload {
            // Its number means something in the folder that wrote it, and only there.
            Payload::Reference { .. } => {
                let here = folder.queue.letter(letter.id).map_err(|error| error.to_string())?;
                here.is_some_and(|here| here.origin == letter.origin)
            }
            _ => uri.as_deref() == Some(&*letter.origin.source),
        };
        if !ours {
            // Not a source of this folder: whatever is read here is newer.
            letter.origin.source_id = 0;
        }
        merged.push(letter);
    }
    let merged = folder.queue.import(merged, who).map_err(|error| error.to_string())?;
    Ok(json!({
        "added": merged.added, "updated": merged.updated, "unchanged": merged.unchanged,
        "standing": merged.standing,
    }))
}

//! The verbs that work beside a run, as values: typed on the command line, sent over the socket, carried out here.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Context, document, redrive, status};
use crate::{pipeline::enqueue, queue::dlq::Filter};

/// A verb.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case")]
pub enum Command {
    /// Depth, rate, breakers, DLQ.
    Status,
    /// Where each chunk of a document is.
    StatusDoc {
        /// Which.
        doc_id: String,
        /// The identity of the settings, as stored; the run's own counts when there is one.
        identity: Option<String>,
    },
    /// Sources for the run to read after its own.
    Enqueue {
        /// Absolute paths.
        paths: Vec<std::path::PathBuf>,
    },
    /// Letters, oldest first.
    DlqList {
        /// Which.
        filter: Filter,
        /// How many at most.
        limit: usize,
    },
    /// One letter, payload included.
    DlqShow {
        /// Which.
        id: Uuid,
    },
    /// Letters by class.
    DlqStats,
    /// Send letters back.
    DlqRedrive {
        /// Which.
        filter: Filter,
        /// Only say what would happen.
        dry_run: bool,
        /// By whom.
        who: String,
    },
    /// Give letters up.
    DlqDiscard {
        /// Which.
        filter: Filter,
        /// Why.
        reason: String,
        /// By whom.
        who: String,
    },
}

/// Carries a verb out. The answer is what `--json` prints.
///
/// # Errors
/// A sentence for the user.
pub fn execute(context: Context<'_>, command: &Command) -> Result<Value, String> {
    let queue = &context.folder.queue;
    let text = |error: crate::queue::QueueError| error.to_string();
    match command {
        Command::Status => to_json(&status::status(context)?),
        Command::StatusDoc { doc_id, identity } => {
            to_json(&document::document(context, doc_id, identity.as_deref())?)
        }
        Command::Enqueue { paths } => match context.line {
            Some(line) => to_json(&enqueue::take_in(line, paths)?),
            None => Err("no run holds the folder; type `forebay enqueue` again".into()),
        },
        Command::DlqList { filter, limit } => {
            let letters = queue.letters(filter, *limit).map_err(text)?;
            letters.iter().map(list_form).collect::<Result<Vec<_>, _>>().map(Value::Array)
        }
        Command::DlqShow { id } => {
            let letter = queue.letter(*id).map_err(text)?;
            letter
                .as_ref()
                .map_or_else(|| Err(format!("no dead letter {id}; see `forebay dlq list`")), to_json)
        }
        Command::DlqStats => to_json(&queue.letter_stats().map_err(text)?),
        Command::DlqRedrive { filter, dry_run, who } => redrive::redrive(context, filter, *dry_run, who),
        Command::DlqDiscard { filter, reason, who } => {
            let mut discarded = 0;
            for letter in queue.letters(filter, usize::MAX).map_err(text)? {
                discarded += u64::from(queue.discard(letter.id, who, reason).map_err(text)?);
            }
            Ok(json!({ "discarded": discarded }))
        }
    }
}

/// A letter without its payload: text is shown only where `dlq show` asked for it.
fn list_form(letter: &crate::queue::dead::DeadLetter) -> Result<Value, String> {
    let mut value = to_json(letter)?;
    if let Some(fields) = value.as_object_mut() {
        fields.remove("payload");
        fields.remove("audit");
    }
    Ok(value)
}

fn to_json<T: Serialize>(value: &T) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

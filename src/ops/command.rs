//! The verbs that work beside a run, as values: typed on the command line, sent over the socket, carried out here.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Context, document, export, forget, import, purge, redrive, reference, status};
pub use super::{
    diagnose::ModelOf,
    redrive::{Given, How},
};
use crate::{
    pipeline::enqueue,
    queue::{
        dead::DeadLetter,
        dlq::{Filter, PAGE_BYTES},
    },
};

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
    /// Letters, oldest first; a page.
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
    /// Whole letters; a page.
    DlqExport {
        /// Which.
        filter: Filter,
        /// Whether those that are references come with what they refer to.
        #[serde(default)]
        filled: bool,
    },
    /// Take letters in.
    DlqImport {
        /// These.
        letters: Vec<DeadLetter>,
        /// By whom.
        who: String,
    },
    /// Remove letters for good; a page. Their bytes go with a `Scrub` after the last one.
    DlqPurge {
        /// Which.
        filter: Filter,
        /// By whom.
        who: String,
    },
    /// Leave no byte of what was purged.
    Scrub,
    /// Remove documents everywhere.
    Forget {
        /// Their ids.
        docs: Vec<String>,
        /// By whom.
        who: String,
    },
    /// Send letters back; a page.
    DlqRedrive {
        /// Which.
        filter: Filter,
        /// Only say what would happen.
        dry_run: bool,
        /// By whom.
        who: String,
        /// How.
        #[serde(default)]
        how: How,
    },
    /// Give letters up; a page.
    DlqDiscard {
        /// Which.
        filter: Filter,
        /// Why.
        reason: String,
        /// By whom.
        who: String,
        /// Letters on the page at most.
        #[serde(default)]
        limit: Option<usize>,
    },
}

impl Command {
    /// The filter of a verb that works page by page.
    pub fn filter_mut(&mut self) -> Option<&mut Filter> {
        match self {
            Self::DlqList { filter, .. }
            | Self::DlqExport { filter, .. }
            | Self::DlqPurge { filter, .. }
            | Self::DlqRedrive { filter, .. }
            | Self::DlqDiscard { filter, .. } => Some(filter),
            Self::Status
            | Self::StatusDoc { .. }
            | Self::Enqueue { .. }
            | Self::DlqShow { .. }
            | Self::DlqStats
            | Self::DlqImport { .. }
            | Self::Scrub
            | Self::Forget { .. } => None,
        }
    }
}

/// Carries a verb out. The answer is what `--json` prints; that of a page also has `next`, the id to go on after.
///
/// # Errors
/// A sentence for the user.
pub fn execute(context: Context<'_>, command: &Command) -> Result<Value, String> {
    execute_with(context, command, &|| None)
}

/// As [`execute`]; `model` loads the model of the settings where no run has one, for verbs that cannot do without.
///
/// # Errors
/// A sentence for the user.
pub fn execute_with(context: Context<'_>, command: &Command, model: ModelOf<'_>) -> Result<Value, String> {
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
            let named = letters.into_iter().map(|letter| named(context, letter));
            named.map(|letter| list_form(&letter)).collect::<Result<Vec<_>, _>>().map(Value::Array)
        }
        Command::DlqShow { id } => {
            let letter = queue.letter(*id).map_err(text)?;
            let letter = letter.ok_or_else(|| format!("no dead letter {id}; see `forebay dlq list`"))?;
            let filled = reference::fill(context, vec![letter])?.pop();
            filled.map_or_else(|| Ok(Value::Null), |(letter, _)| to_json(&named(context, letter)))
        }
        Command::DlqStats => to_json(&queue.letter_stats().map_err(text)?),
        Command::DlqRedrive { filter, dry_run, who, how } => {
            redrive::redrive(context, filter, *dry_run, who, how, model)
        }
        Command::DlqDiscard { filter, reason, who, limit } => {
            let page = limit.unwrap_or(export::PAGE).min(export::PAGE);
            let letters = queue.letters_within(filter, page, PAGE_BYTES).map_err(text)?;
            let ids: Vec<Uuid> = letters.iter().map(|letter| letter.id).collect();
            let discarded = queue.discard_all(&ids, who, reason).map_err(text)?;
            Ok(json!({ "discarded": discarded, "next": ids.last() }))
        }
        Command::DlqExport { filter, filled } => export::page(context, filter, *filled),
        Command::DlqImport { letters, who } => import::merge(context, letters, who),
        Command::DlqPurge { filter, who } => purge::page(context.folder, filter, who),
        Command::Scrub => purge::scrub(context.folder).map(|()| json!({})),
        Command::Forget { docs, who } => {
            let line = context.line.ok_or("forgetting needs the sink: it is not open here")?;
            let reading = forget::Reading { source: context.source, line_bytes: context.line_bytes };
            to_json(&forget::forget(context.folder, line.sink.as_ref(), reading, docs, who)?)
        }
    }
}

/// A letter with the path of its source, for whoever looks: one that is a reference has none of its own.
fn named(context: Context<'_>, mut letter: DeadLetter) -> DeadLetter {
    letter.origin.source = context.folder.origin_uri(&letter.origin).into_owned();
    letter
}

/// A letter without its payload: text is shown only where `dlq show` asked for it.
fn list_form(letter: &DeadLetter) -> Result<Value, String> {
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

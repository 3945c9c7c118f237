//! Sending letters back: each is diagnosed first, and one that would fail again the same way is left where it is.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{
    Context,
    diagnose::{Diagnosis, Doctor, Mended, ModelOf, Reason},
    export::PAGE,
    reference,
};
use crate::{
    chunk::Digest,
    queue::{
        dead::{DeadLetter, State},
        dlq::{Filter, PAGE_BYTES},
        redrive::{Back, SentBack},
    },
    repair::Repair,
};

/// How letters are sent back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct How {
    /// Quarantined ones, too.
    pub approve: bool,
    /// With these repairs.
    pub repairs: Vec<Repair>,
    /// Also those that were to be embedded under another identity.
    pub any_identity: bool,
    /// The identity of the settings, as stored; the run's own counts when there is one.
    pub identity: Option<String>,
    /// What a user's command made of letters.
    pub given: Vec<Given>,
    /// Letters on the page at most.
    pub limit: Option<usize>,
    /// Whether the answer names what was sent.
    pub named: bool,
}

/// What a user's command made of a letter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Given {
    /// Which letter.
    pub id: Uuid,
    /// The chunk id it had then: a newer text is not overwritten.
    pub chunk_id: Option<Digest>,
    /// The text to embed.
    pub text: String,
    /// Metadata as JSON text; `None`: as it was.
    pub meta: Option<String>,
    /// For a record that could not be read: its document.
    pub doc_id: Option<String>,
    /// The same: its place, when it is a chunk and not a document.
    pub chunk_index: Option<u64>,
}

/// What a page adds up to.
#[derive(Default)]
struct Page {
    back: Vec<Back>,
    closed: Vec<(Uuid, String)>,
    staying: Vec<Value>,
    letters: Vec<Value>,
}

/// Redrives a page of what `filter` keeps, oldest first, with one fsync.
///
/// # Errors
/// A sentence, when a store cannot be used.
pub(super) fn redrive(
    context: Context<'_>,
    filter: &Filter,
    dry_run: bool,
    who: &str,
    how: &How,
    model: ModelOf<'_>,
) -> Result<Value, String> {
    let queue = &context.folder.queue;
    let text = |error: crate::queue::QueueError| error.to_string();
    let limit = how.limit.unwrap_or(PAGE).clamp(1, PAGE);
    let letters = queue.letters_within(filter, limit, PAGE_BYTES).map_err(text)?;
    let next = letters.last().map(|letter| letter.id);
    let (doctor, mut page) = (Doctor { context, how, model }, Page::default());
    for (letter, filled) in reference::fill(context, letters)? {
        if matches!(letter.state, State::Open | State::Quarantined) {
            let diagnosis = match filled {
                Ok(()) => doctor.diagnose(&letter)?,
                Err(why) => Diagnosis::Stays(Reason::CannotHere, why),
            };
            page.add(&letter, diagnosis, how.approve);
        }
    }
    let count = |closed: &[(Uuid, String)], how: &str| closed.iter().filter(|(_, as_)| as_ == how).count();
    let (superseded, reconciled) = (count(&page.closed, "superseded"), count(&page.closed, "reconciled"));
    let ways: Vec<(Uuid, &str)> = page.back.iter().map(|back| (back.id, back.how)).collect();
    let mut sent = SentBack { letters: ways.iter().map(|(id, _)| *id).collect(), chunks: 0 };
    if !dry_run {
        queue.resolve(&page.closed).map_err(text)?;
        let back = page.back;
        let send = || {
            sent = queue.redrive_all(back, who)?;
            Ok(sent.chunks)
        };
        match context.line {
            Some(line) => line.take_up(send).map_err(text)?,
            None => send().map_err(text)?,
        };
    }
    let went: std::collections::HashSet<Uuid> = sent.letters.iter().copied().collect();
    let as_ = |how: &str| ways.iter().filter(|(id, way)| *way == how && went.contains(id)).count();
    let mut answer = json!({
        "dry_run": dry_run, "redriven": sent.letters.len(), "repaired": as_("repaired"),
        "approved": as_("approved"), "superseded": superseded, "reconciled": reconciled,
        "staying": page.staying, "next": next,
    });
    if dry_run {
        answer["letters"] = page.letters.into();
    }
    if how.named {
        answer["sent"] = json!(sent.letters);
    }
    Ok(answer)
}

impl Page {
    fn add(&mut self, letter: &DeadLetter, diagnosis: Diagnosis, approved: bool) {
        let mut said = json!({
            "id": letter.id, "class": letter.class, "state": letter.state, "doc_id": letter.doc_id,
        });
        match diagnosis {
            Diagnosis::Stays(reason, why) => {
                said["would"] = json!("stays");
                (said["reason"], said["why"]) = (json!(reason), json!(why));
                self.staying.push(json!({
                    "id": letter.id, "class": letter.class, "reason": reason, "why": why,
                }));
            }
            Diagnosis::Closed(how) => {
                said["would"] = json!(how);
                self.closed.push((letter.id, how.to_owned()));
            }
            Diagnosis::Back(Mended { chunks, changes, note, .. }) => {
                let how = match letter.state {
                    _ if !changes.is_empty() => "repaired",
                    State::Quarantined => "approved",
                    _ => "as_is",
                };
                said["would"] = json!(how);
                said["chunks"] = json!(chunks.len());
                said["repairs"] =
                    changes.iter().map(|(name, n)| (name.clone(), json!(n))).collect::<Map<_, _>>().into();
                if let Some(note) = note {
                    said["why"] = json!(note);
                }
                let repairs = changes.iter().map(|(name, n)| format!("{name} {n}")).collect();
                let cut = changes.iter().any(|(name, _)| name == Repair::Truncate.as_str());
                self.back.push(Back { id: letter.id, chunks, how, repairs, cut, approved });
            }
        }
        self.letters.push(said);
    }
}

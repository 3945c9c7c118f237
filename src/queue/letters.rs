//! Which letters are meant, and how many there are.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use super::dead::{DeadLetter, State as LetterState};
use crate::error::{Class, Stage};

/// `dlq.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// `full`: a letter keeps all that is needed to rebuild its chunk.
    pub payload: String,
    /// Open letters from which a warning is logged.
    pub alert_depth: u64,
}

/// Letters by class and state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<(Class, LetterState), u64>);

impl Counts {
    pub(super) fn moved(&mut self, before: Option<&DeadLetter>, after: &DeadLetter) {
        if let Some(before) = before
            && let Some(count) = self.0.get_mut(&(before.class, before.state))
        {
            *count = count.saturating_sub(1);
        }
        *self.0.entry((after.class, after.state)).or_default() += 1;
    }

    /// Letters for which `keep` holds.
    pub fn sum(&self, keep: impl Fn(Class, LetterState) -> bool) -> u64 {
        self.0.iter().filter(|((class, state), _)| keep(*class, *state)).map(|(_, count)| count).sum()
    }

    /// Open and quarantined letters by class, the empty classes left out.
    pub fn by_class(&self) -> BTreeMap<Class, u64> {
        let mut classes = BTreeMap::new();
        for ((class, state), count) in &self.0 {
            if matches!(state, LetterState::Open | LetterState::Quarantined) && *count > 0 {
                *classes.entry(*class).or_default() += count;
            }
        }
        classes
    }
}

/// Which letters are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Filter {
    /// These ids only.
    #[serde(default)]
    pub ids: Vec<Uuid>,
    /// This class only.
    #[serde(default)]
    pub class: Option<Class>,
    /// This stage only.
    #[serde(default)]
    pub stage: Option<Stage>,
    /// This document only.
    #[serde(default)]
    pub doc_id: Option<String>,
    /// Last failed before this time (RFC 3339 UTC).
    #[serde(default)]
    pub before: Option<String>,
    /// Resolved and discarded ones too.
    #[serde(default)]
    pub closed_too: bool,
    /// Only ids after this one (paging).
    #[serde(default)]
    pub after: Option<Uuid>,
}

impl Filter {
    /// Whether a letter is meant.
    pub fn keeps(&self, letter: &DeadLetter) -> bool {
        (self.ids.is_empty() || self.ids.contains(&letter.id))
            && self.class.is_none_or(|class| class == letter.class)
            && self.stage.is_none_or(|stage| stage == letter.stage)
            && self.doc_id.as_ref().is_none_or(|doc| letter.doc_id.as_ref() == Some(doc))
            && self.before.as_ref().is_none_or(|before| letter.last_failed_at < *before)
            && (self.closed_too || letter.state.unresolved())
            && self.after.is_none_or(|after| letter.id > after)
    }
}

/// One class in `dlq stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassStats {
    /// The class.
    pub class: Class,
    /// Open and quarantined letters.
    pub open: u64,
    /// Most attempts of one of them.
    pub attempts_worst: u32,
    /// First failure of the oldest, RFC 3339 UTC.
    pub oldest_at: String,
}

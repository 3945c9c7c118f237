//! Named repairs of texts and records, for a redrive: pure functions, each with what it changed. A repair leaves what
//! is clean as it is, and done twice it changes nothing more.

mod control;
mod nfc;
mod surrogate;
mod truncate;
mod utf8;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// A repair by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repair {
    /// Bytes that are not UTF-8 become U+FFFD.
    Utf8Lossy,
    /// `\uD800`-style escapes without their other half become `\uFFFD`.
    FixSurrogates,
    /// Control characters go, but for tab and line ends.
    StripControl,
    /// Unicode normal form C.
    Nfc,
    /// What is beyond the model's longest text goes.
    Truncate,
}

impl Repair {
    /// Every repair, in the order in which they are applied.
    pub const ALL: [Self; 5] =
        [Self::Utf8Lossy, Self::FixSurrogates, Self::StripControl, Self::Nfc, Self::Truncate];

    /// Those that take nothing away that anybody wrote on purpose.
    pub const SAFE: [Self; 3] = [Self::FixSurrogates, Self::StripControl, Self::Nfc];

    /// What is typed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Utf8Lossy => "utf8_lossy",
            Self::FixSurrogates => "fix_surrogates",
            Self::StripControl => "strip_control",
            Self::Nfc => "nfc",
            Self::Truncate => "truncate",
        }
    }
}

impl std::str::FromStr for Repair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|repair| repair.as_str() == text).ok_or_else(|| {
            format!("unknown repair {text:?}; known: {}", Self::ALL.map(Self::as_str).join(", "))
        })
    }
}

/// What was changed: each repair that did something, and at how many places.
pub type Changes = Vec<(Repair, u64)>;

/// Repairs a record's bytes, as far as these repairs can: what is wrong with them keeps it from being decoded.
pub fn record<'a>(bytes: &'a [u8], repairs: &[Repair], changes: &mut Changes) -> Cow<'a, [u8]> {
    let mut bytes = Cow::Borrowed(bytes);
    if repairs.contains(&Repair::Utf8Lossy)
        && let Some((text, count)) = utf8::lossy(&bytes)
    {
        note(changes, Repair::Utf8Lossy, count);
        bytes = Cow::Owned(text.into_bytes());
    }
    for (repair, mend) in [
        // Control characters first: an escape may be whole only without them.
        (Repair::StripControl, control::strip as fn(&str) -> Option<(String, u64)>),
        (Repair::FixSurrogates, surrogate::fix),
    ] {
        if repairs.contains(&repair)
            && let Ok(text) = std::str::from_utf8(&bytes)
            && let Some((text, count)) = mend(text)
        {
            note(changes, repair, count);
            bytes = Cow::Owned(text.into_bytes());
        }
    }
    bytes
}

/// Repairs a decoded text.
pub fn text<'a>(text: &'a str, repairs: &[Repair], changes: &mut Changes) -> Cow<'a, str> {
    let mut text = Cow::Borrowed(text);
    for (repair, mend) in [
        (Repair::StripControl, control::strip as fn(&str) -> Option<(String, u64)>),
        (Repair::Nfc, nfc::normalize),
    ] {
        if repairs.contains(&repair)
            && let Some((mended, count)) = mend(&text)
        {
            note(changes, repair, count);
            text = Cow::Owned(mended);
        }
    }
    text
}

/// Cuts a text so that `fits` holds; nothing when it does already, or nothing of it would be left.
pub fn cut<'a>(text: &'a str, fits: &dyn Fn(&str) -> bool, changes: &mut Changes) -> Cow<'a, str> {
    let Some((cut, count)) = truncate::to_fit(text, fits) else { return Cow::Borrowed(text) };
    note(changes, Repair::Truncate, count);
    Cow::Owned(cut)
}

fn note(changes: &mut Changes, repair: Repair, count: u64) {
    match changes.iter_mut().find(|(of, _)| *of == repair) {
        Some((_, sum)) => *sum += count,
        None => changes.push((repair, count)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_read_back() {
        for repair in Repair::ALL {
            assert_eq!(repair.as_str().parse(), Ok(repair));
            assert_eq!(serde_json::to_value(repair).unwrap(), repair.as_str());
        }
        assert!("nonsense".parse::<Repair>().unwrap_err().contains("strip_control"));
    }

    proptest! {
        /// Any bytes, any repairs: no panic, what is reported is what was changed, and once is enough.
        #[test]
        fn repairs_are_idempotent_and_say_what_they_did(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            escapes in proptest::collection::vec(prop_oneof!["\\\\u[dD][89abAB][0-9]{2}", "\\\\u[dD][c-f][0-9]{2}", "[a\\\\\"]"], 0..8),
            chosen in proptest::collection::vec(0..5_usize, 0..5),
        ) {
            let repairs: Vec<Repair> = chosen.into_iter().map(|at| Repair::ALL[at]).collect();
            let bytes = [bytes, escapes.concat().into_bytes()].concat();
            let mut changes = Changes::new();
            let once = record(&bytes, &repairs, &mut changes).into_owned();
            prop_assert_eq!(changes.is_empty(), once == bytes);
            let mut again = Changes::new();
            prop_assert_eq!(&record(&once, &repairs, &mut again)[..], &once[..]);
            prop_assert!(again.is_empty());
        }

        #[test]
        fn texts_too(
            chars in proptest::collection::vec(
                prop_oneof![any::<char>(), Just('e'), Just('\u{301}'), Just('\0')], 0..60,
            ),
        ) {
            let read: String = chars.into_iter().collect();
            let mut changes = Changes::new();
            let once = text(&read, &Repair::ALL, &mut changes).into_owned();
            prop_assert_eq!(changes.is_empty(), once == read);
            let mut again = Changes::new();
            prop_assert_eq!(&text(&once, &Repair::ALL, &mut again), &once);
            prop_assert!(again.is_empty());
        }

        #[test]
        fn what_is_clean_stays_as_it_is(read in "[a-zäß 漢字\t\n.,]{0,60}") {
            let mut changes = Changes::new();
            let line = serde_json::json!({ "id": "x", "text": read }).to_string();
            prop_assert!(matches!(record(line.as_bytes(), &Repair::ALL, &mut changes), Cow::Borrowed(_)));
            prop_assert!(matches!(text(&read, &Repair::ALL, &mut changes), Cow::Borrowed(_)));
            prop_assert!(changes.is_empty());
        }
    }
}

//! Golden texts: what the reference implementation makes of them with a model's published weights. Compiled in, for the
//! models whose weights the reference was run with; see `models/README.md`.

use std::sync::LazyLock;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;

/// Files of `models/`, by the name of their model.
const SHIPPED: [(&str, &str); 1] =
    [("all-MiniLM-L6-v2", include_str!("../../models/all-minilm-l6-v2.golden.jsonl"))];

static KNOWN: LazyLock<Vec<(&str, Vec<Golden>)>> = LazyLock::new(|| {
    let parse = |&(name, file): &(&'static str, &str)| (name, parse(file).expect("shipped files are tested"));
    SHIPPED.iter().map(parse).collect()
});

/// One text, and what the reference makes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Golden {
    /// The text.
    pub text: String,
    /// Its token ids, specials included.
    pub ids: Vec<u32>,
    /// Its dense vector, of norm 1.
    pub dense: Vec<f32>,
}

#[derive(Deserialize)]
struct Line {
    text: String,
    ids: Vec<u32>,
    /// Base64 of little-endian f32.
    vector: String,
}

/// The golden texts of a model, by the name of its entry; none where there are no reference vectors.
pub fn of(model: &str) -> &'static [Golden] {
    let found = KNOWN.iter().find(|(name, _)| name.eq_ignore_ascii_case(model));
    found.map_or(&[], |(_, golden)| golden)
}

/// The lines after the first, which says where they come from.
fn parse(file: &str) -> Option<Vec<Golden>> {
    let one = |line: &str| {
        let Line { text, ids, vector } = serde_json::from_str(line).ok()?;
        let bytes = BASE64_STANDARD.decode(vector).ok()?;
        let numbers = bytes.chunks_exact(4).map(|four| Some(f32::from_le_bytes(four.try_into().ok()?)));
        Some(Golden { text, ids, dense: numbers.collect::<Option<_>>()? })
    };
    file.lines().skip(1).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::entry::{Entry, Role};

    #[test]
    fn every_file_is_of_the_weights_of_its_entry_and_taken_from_the_whole_reference() {
        let reference = include_str!("../../tests/golden/minilm.jsonl");
        for (name, file) in SHIPPED {
            let entry = Entry::find(name).unwrap();
            let head: serde_json::Value = serde_json::from_str(file.lines().next().unwrap()).unwrap();
            let weights = entry.file(Role::Weights).sha256.unwrap();
            assert_eq!(head["weights_sha256"], weights.to_string(), "{name}");
            assert!(file.lines().skip(1).all(|line| reference.contains(line)), "{name}");
            let golden = of(&name.to_lowercase());
            assert_eq!(head["texts"], golden.len());
            assert!(golden.len() >= 5 && golden.iter().all(|one| one.dense.len() == entry.dim));
        }
        assert_eq!(of("bge-m3"), []);
    }
}

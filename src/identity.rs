//! Which embedding space a vector belongs to. Two vectors may be compared only if their identities are equal.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::chunk::Digest;

/// All that decides where a text lands in the space. Hashed as canonical JSON (keys sorted, no spaces).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityParts {
    /// Name in `models/`.
    pub name: String,
    /// Pinned revision (commit of the model's repository, or a version).
    pub revision: String,
    /// SHA-256 of the weights file; with heads, of the digests of all files whose numbers take part.
    pub weights: Digest,
    /// SHA-256 of the tokenizer file.
    pub tokenizer: Digest,
    /// `cls` or `mean`.
    pub pooling: String,
    /// Whether vectors are scaled to norm 1.
    pub normalize: bool,
    /// Tokens at most, specials included.
    pub max_length: usize,
    /// Outputs, in the order `dense`, `sparse`, `multi`.
    pub outputs: Vec<String>,
    /// Numbers in a dense vector.
    pub dim: usize,
    /// Class of arithmetic: `f32`, `i16`, `f16`, `bf16`.
    pub compute: String,
    /// Text put before each document, if any.
    pub document_prefix: String,
    /// Normalisation of the text before tokenising: `none`.
    pub text_normalization: String,
}

/// An identity: a line for people and a digest for machines. Both are stored with every vector.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// `NAME@REV8/OUTPUTS-DIM/COMPUTE/LEN[/PREFIX]`.
    pub label: String,
    /// SHA-256 of the canonical JSON of [`IdentityParts`].
    pub digest: Digest,
}

impl Identity {
    /// The identity of these parts.
    pub fn of(parts: &IdentityParts) -> Self {
        let rev8: String = parts.revision.chars().take(8).collect();
        let mut label = format!(
            "{}@{}/{}-{}/{}/{}",
            parts.name,
            rev8,
            parts.outputs.join("+"),
            parts.dim,
            parts.compute,
            parts.max_length
        );
        if !parts.document_prefix.is_empty() {
            label.push('/');
            label.push_str(parts.document_prefix.trim());
        }
        Self { label, digest: Digest::of(canonical_json(parts).as_bytes()) }
    }

    /// The one string that stores keep in their `identity` column: `LABEL#HEX16`, the label and the first
    /// 16 hex digits of the digest. Equal strings mean equal identities.
    pub fn stored(&self) -> String {
        format!("{}#{}", self.label, self.digest.short(16))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

/// The outputs that a label names.
///
/// ```
/// use forebay::identity::outputs;
/// assert_eq!(outputs("bge-m3@5617a9f6/dense+sparse-1024/f32/8192"), ["dense", "sparse"]);
/// ```
pub fn outputs(label: &str) -> Vec<&str> {
    let part = label.split('/').nth(1).and_then(|part| part.rsplit_once('-'));
    part.map_or_else(Vec::new, |(outputs, _)| outputs.split('+').collect())
}

/// Keys sorted, no white space: the bytes do not depend on the order of fields in the source code.
fn canonical_json(parts: &IdentityParts) -> String {
    let value = serde_json::to_value(parts).expect("plain data");
    let sorted: std::collections::BTreeMap<_, _> =
        value.as_object().expect("a struct").iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    serde_json::to_string(&sorted).expect("plain data")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> IdentityParts {
        IdentityParts {
            name: "bge-m3".into(),
            revision: "5617a9f61b028005a4858fdac845db406aefb181".into(),
            weights: Digest::of(b"w"),
            tokenizer: Digest::of(b"t"),
            pooling: "cls".into(),
            normalize: true,
            max_length: 8192,
            outputs: vec!["dense".into()],
            dim: 1024,
            compute: "f32".into(),
            document_prefix: String::new(),
            text_normalization: "none".into(),
        }
    }

    #[test]
    fn the_label_is_as_promised() {
        assert_eq!(Identity::of(&parts()).label, "bge-m3@5617a9f6/dense-1024/f32/8192");
        let all = ["dense", "sparse", "multi"].map(String::from).to_vec();
        let all = IdentityParts { outputs: all, ..parts() };
        assert_eq!(Identity::of(&all).label, "bge-m3@5617a9f6/dense+sparse+multi-1024/f32/8192");
        let prefixed = IdentityParts { document_prefix: "passage: ".into(), ..parts() };
        assert_eq!(Identity::of(&prefixed).label, "bge-m3@5617a9f6/dense-1024/f32/8192/passage:");
    }

    #[test]
    fn every_part_changes_the_digest() {
        let base = Identity::of(&parts()).digest;
        let others = [
            IdentityParts { weights: Digest::of(b"x"), ..parts() },
            IdentityParts { tokenizer: Digest::of(b"x"), ..parts() },
            IdentityParts { pooling: "mean".into(), ..parts() },
            IdentityParts { normalize: false, ..parts() },
            IdentityParts { max_length: 512, ..parts() },
            IdentityParts { outputs: vec!["dense".into(), "sparse".into()], ..parts() },
            IdentityParts { compute: "i16".into(), ..parts() },
            IdentityParts { document_prefix: "passage: ".into(), ..parts() },
        ];
        for other in others {
            assert_ne!(Identity::of(&other).digest, base);
        }
    }
}

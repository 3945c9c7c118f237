//! Inputs to records: decoding, validating, splitting. A bad record is an item like any other, with its
//! place and its reason; its neighbours go on.

mod decode;
mod discover;
mod encoding;
mod file;
mod glob;
mod json;
mod jsonl;
mod lines;
mod locate;
mod looks;
mod measure;
mod record;
mod split;
mod text;
mod walk;

use std::path::Path;

pub use discover::{Discovery, Found, discover, lies_in};
pub use file::{Fingerprint, canonical_uri, fingerprint};
pub use glob::is_glob;
pub use jsonl::{Jsonl, decode_line};
pub use locate::{checksum, locate};
pub use split::Splitter;

use crate::{chunk::Digest, error::Class};

/// Bytes that are kept of a record over the limit.
pub const RAW_BYTES_KEPT: usize = 1_024;

/// Where a record stands in its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line, from 1; 0 for a file that is one document.
    pub line: u64,
    /// Byte offset of the record's first byte in the decoded (decompressed) stream.
    pub offset: u64,
}

/// A good record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Id of the document.
    pub doc_id: String,
    /// Its text, not blank.
    pub text: String,
    /// `meta` as compact JSON.
    pub meta: Option<String>,
    /// Present when the record is a chunk by itself and must not be split.
    pub chunk_index: Option<u64>,
    /// Where it was read.
    pub at: Position,
}

/// A record that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Where it was read.
    pub at: Position,
    /// The file, when it is one of a folder's.
    pub file: Option<String>,
    /// Why, as a class of stage `source`.
    pub class: Class,
    /// One sentence, without quoting the record.
    pub message: String,
    /// Its id, when that much could be read.
    pub doc_id: Option<String>,
    /// Its bytes without the line end; only the first 1,024 when it was over the limit, or is a file.
    pub raw: Vec<u8>,
    /// Length of the whole record in bytes.
    pub raw_len: u64,
    /// SHA-256 of the whole record.
    pub raw_hash: Digest,
}

/// What a source yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A document or a chunk.
    Record(Record),
    /// A record that becomes a dead letter.
    Unreadable(Unreadable),
}

/// A stream of items from one input, with what cannot be said per item.
pub trait Source: Send {
    /// The next item; `None` at the end.
    ///
    /// # Errors
    /// The input as a whole cannot be read on (missing, unreadable, wrong encoding).
    fn next(&mut self) -> Result<Option<Item>, SourceError>;

    /// Bytes of the input read so far (as stored, that is, compressed), for progress.
    fn bytes_read(&self) -> u64;

    /// Bytes of the whole input as stored, when known.
    fn bytes_total(&self) -> Option<u64>;

    /// Set once the end was reached and something is missing or was ignored (a cut compressed stream,
    /// garbage after it): a sentence for the user. The run is then incomplete (exit 1).
    fn incomplete(&self) -> Option<&str>;

    /// What to say, beyond that, when there was not one good record.
    fn hint(&self) -> Option<String> {
        None
    }
}

/// An input cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Opening or reading failed.
    #[error("cannot read {path}: {error}; check the path and its permissions")]
    Io {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The bytes are not what a source can be.
    #[error("{path} {what}; {next}")]
    Format {
        /// The file.
        path: String,
        /// What was found.
        what: String,
        /// What to do.
        next: String,
    },
}

/// `source.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Names of the field that holds the id; the first one present counts.
    pub id_fields: Vec<String>,
    /// Name of the field that holds the text.
    pub text_field: String,
    /// Name of the field that marks a record as a chunk.
    pub chunk_index_field: String,
    /// Name of the field that holds metadata.
    pub meta_field: String,
    /// Tokens in a chunk at most when a document is split; 0: `min(512, max length)` less the specials.
    pub chunk_tokens: usize,
    /// Tokens that neighbouring chunks share.
    pub overlap_tokens: usize,
    /// Files of a folder that are documents; globs as in a `.gitignore`.
    pub include: Vec<String>,
    /// Files and folders that are passed over; the same.
    pub exclude: Vec<String>,
    /// What happens to documents that vanished from a source: `keep` (`delete` comes with directories).
    pub on_missing: String,
}

impl SourceError {
    pub(crate) fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.display().to_string(), error }
    }

    pub(crate) fn format(path: &Path, what: impl Into<String>, next: impl Into<String>) -> Self {
        Self::Format { path: path.display().to_string(), what: what.into(), next: next.into() }
    }
}

/// Opens an input: the text files of a folder, a text file, or else JSON lines, plain or compressed. Names say only
/// what is certainly not supported, and what is text; how it is compressed, its content says.
///
/// # Errors
/// Unreadable, or nothing we read, with what to do.
pub fn open(path: &Path, settings: &Settings, line_bytes: u64) -> Result<Box<dyn Source>, SourceError> {
    if path.is_dir() {
        return Ok(Box::new(text::Texts::of_folder(path, settings, line_bytes)?));
    }
    if is_text(path, settings) {
        return Ok(Box::new(text::Texts::of_file(path, line_bytes)?));
    }
    let name = glob::unpacked(path);
    let ending = name.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    if ["csv", "tsv", "parquet"].contains(&&*ending) && path.is_file() {
        let next = "write one JSON object a line first (.jsonl)";
        return Err(SourceError::format(path, format!("is a .{ending} file, which is not read yet"), next));
    }
    if ["txt", "md", "markdown", "html", "pdf", "xml", "docx", "rst"].contains(&&*ending) && path.is_file() {
        let what = format!("is a .{ending} file, and source.include does not name it as text");
        let next = format!(
            "take it as plain text: `--set 'source.include=[\"*.{ending}\"]'`, or convert it to text first"
        );
        return Err(SourceError::format(path, what, next));
    }
    Ok(Box::new(Jsonl::open(path, settings, line_bytes)?))
}

/// Whether a file named by itself is a document: `source.include` names it, as it names those of a folder.
fn is_text(path: &Path, settings: &Settings) -> bool {
    let name = Path::new(path.file_name().unwrap_or_default());
    glob::Globs::of(settings).is_ok_and(|globs| globs.kind(name) == glob::Kind::Text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::Settings;

    /// The shipped defaults.
    pub(crate) fn settings() -> Settings {
        let defaults: toml::Table = include_str!("../../config.toml").parse().unwrap();
        defaults["source"].clone().try_into().unwrap()
    }
}

//! Inputs as the library reads them, without a run.

#![allow(dead_code, reason = "each test file uses a part of the vocabulary")]

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use forebay::{
    error::Class,
    source::{self, Item, Record, Settings, Source, Unreadable},
};

/// `limits.line_bytes` of these tests.
pub const LIMIT: u64 = 16 << 20;

/// The shipped defaults.
pub fn settings() -> Settings {
    let defaults: toml::Table = include_str!("../../config.toml").parse().unwrap();
    defaults["source"].clone().try_into().unwrap()
}

/// A file of `tests/cases/`.
pub fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)
}

/// All that one input gave.
#[derive(Default)]
pub struct Read {
    /// Records.
    pub good: Vec<Record>,
    /// What becomes a dead letter.
    pub bad: Vec<Unreadable>,
    /// What is missing.
    pub incomplete: Option<String>,
}

impl Read {
    /// Reads to the end.
    pub fn all(source: &mut dyn Source) -> Self {
        let mut read = Self::default();
        while let Some(item) = source.next().unwrap() {
            match item {
                Item::Record(record) => read.good.push(record),
                Item::Unreadable(bad) => read.bad.push(bad),
            }
        }
        assert!(source.next().unwrap().is_none(), "the end stays the end");
        assert_eq!(Some(source.bytes_read()), source.bytes_total());
        read.incomplete = source.incomplete().map(str::to_owned);
        read
    }

    /// Reads a file.
    pub fn file(path: &Path, limit: u64) -> Self {
        Self::all(&mut *source::open(path, &settings(), limit).unwrap())
    }

    /// A file of `tests/cases/`.
    pub fn case(name: &str) -> Self {
        Self::file(&case(name), LIMIT)
    }

    /// Reads these bytes.
    pub fn bytes(bytes: &[u8], limit: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in.jsonl");
        std::fs::write(&path, bytes).unwrap();
        Self::file(&path, limit)
    }

    /// Reads bytes that are damaged: how many records came, and what is missing.
    pub fn started(bytes: &[u8]) -> (usize, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in");
        std::fs::write(&path, bytes).unwrap();
        let mut source = source::open(&path, &settings(), LIMIT).unwrap();
        let mut good = 0;
        while let Some(item) = source.next().unwrap() {
            good += usize::from(matches!(item, Item::Record(_)));
        }
        (good, source.incomplete().unwrap().to_owned())
    }

    /// Ids of the records.
    pub fn ids(&self) -> Vec<&str> {
        self.good.iter().map(|record| record.doc_id.as_str()).collect()
    }

    /// (line, class) of each bad record.
    pub fn faults(&self) -> Vec<(u64, Class)> {
        self.bad.iter().map(|bad| (bad.at.line, bad.class)).collect()
    }
}

/// Why an input is refused.
pub fn refused(path: &Path) -> String {
    source::open(path, &settings(), LIMIT).err().expect("refused").to_string()
}

/// As one gzip member.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// As one zstd frame.
pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

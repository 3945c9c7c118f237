//! Every architecture that `models/` lists beside bge-m3 and MiniLM, tiny, against the Python reference: BERT with
//! CLS pooling (bge-*-en-v1.5), BERT under XLM-R's tokenizer (multilingual-e5-small), XLM-R with mean pooling
//! (multilingual-e5-large), the last two with a prefix before each document.
#![cfg(feature = "testkit")]

#[path = "common/golden.rs"]
mod golden;
#[path = "common/ways.rs"]
mod ways;

use std::path::Path;

use forebay::{
    embed::{
        Embed, Settings,
        entry::Entry,
        expect::{Expect, Family},
        local::LocalModel,
    },
    testkit::tiny::{self, Like},
};
use golden::{COSINE_MIN, agrees_with_golden, alone, cosine, golden};
use ways::ways;

/// The seed the golden files were made with.
const SEED: u64 = 7;

fn settings() -> Settings {
    let defaults: forebay::config::Config = toml::from_str(forebay::config::DEFAULTS).unwrap();
    Settings { device: "cpu".into(), threads: 2, ..defaults.model }
}

fn open(folder: &Path, like: &Like) -> (Expect, LocalModel) {
    let expect = tiny::write_like(folder, like, SEED).unwrap();
    let model = LocalModel::open(folder, &expect, &settings()).unwrap();
    (expect, model)
}

#[test]
fn each_likeness_agrees_with_the_reference() {
    for like in [Like::BGE, Like::E5_SMALL, Like::E5_LARGE] {
        let folder = tempfile::tempdir().unwrap();
        let (expect, model) = open(folder.path(), &like);
        let (head, records) = golden(like.name);
        assert_eq!(
            expect.weights_sha256, head.weights_sha256,
            "{} is generated otherwise than when its golden file was made: run tests/golden/make.py again",
            like.name
        );
        for way in ways() {
            let model = way.open(folder.path(), &expect, &settings());
            let lowest = agrees_with_golden(&model, &records, way.cosine_min());
            println!("{}, {way:?}: {lowest:.8} at least", like.name);
        }
        let longest = records.iter().map(|record| record.ids.len()).max().unwrap();
        assert_eq!(longest, model.max_length(), "{}: the limit itself is reached", like.name);
    }
}

#[test]
fn what_the_entries_say_is_what_the_likenesses_are() {
    for (names, like) in [
        (&["bge-small-en-v1.5", "bge-base-en-v1.5", "bge-large-en-v1.5"][..], Like::BGE),
        (&["multilingual-e5-small"], Like::E5_SMALL),
        (&["multilingual-e5-large"], Like::E5_LARGE),
    ] {
        for name in names {
            let entry = Entry::find(name).unwrap();
            assert_eq!((entry.family, entry.pooling), (like.family, like.pooling), "{name}");
            assert_eq!(entry.document_prefix, like.document_prefix, "{name}");
            assert_eq!(entry.query_prefix, like.query_prefix, "{name}");
            assert_eq!(entry.max_length, 512, "{name}");
        }
    }
}

#[test]
fn a_prefix_is_in_the_ids_the_vector_and_the_identity() {
    let folder = tempfile::tempdir().unwrap();
    let (expect, model) = open(folder.path(), &Like::E5_SMALL);
    let plain = Expect { document_prefix: String::new(), query_prefix: String::new(), ..expect.clone() };
    let plain = LocalModel::open(folder.path(), &plain, &settings()).unwrap();
    let text = "the gate of the dam";
    let [document, query] = [model.tokenize(text).unwrap(), model.tokenize_query(text).unwrap()];
    assert_eq!(document, plain.tokenize(&format!("passage: {text}")).unwrap());
    assert_eq!(query, plain.tokenize(&format!("query: {text}")).unwrap());
    assert!(cosine(&alone(&model, &document), &alone(&model, &query)) < COSINE_MIN);
    assert_ne!(model.identity(), plain.identity());
    assert_ne!(model.identity().label, plain.identity().label, "and people can see it");
    let other = Expect { document_prefix: "passage:".into(), ..expect };
    let other = LocalModel::open(folder.path(), &other, &settings()).unwrap();
    assert_ne!(model.identity(), other.identity());
}

#[test]
fn a_prefix_counts_against_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let (_, model) = open(folder.path(), &Like::E5_SMALL);
    let prefix = model.tokenize("").unwrap().ids.len() - 2;
    assert!(prefix > 1);
    let room = model.max_length() - 2 - prefix;
    assert!(!model.tokenize(&"the ".repeat(room)).unwrap().truncated);
    assert!(model.tokenize(&"the ".repeat(room + 1)).unwrap().truncated);
}

#[test]
#[ignore = "writes the tiny models to FOREBAY_TINY_OUT for tests/golden/make.py"]
fn dump() {
    let out = std::env::var("FOREBAY_TINY_OUT").expect("FOREBAY_TINY_OUT names a folder");
    for family in [Family::Bert, Family::XlmRoberta] {
        tiny::write(&Path::new(&out).join(family.as_str()), family, SEED).unwrap();
    }
    for like in [Like::BGE, Like::E5_SMALL, Like::E5_LARGE] {
        tiny::write_like(&Path::new(&out).join(like.name), &like, SEED).unwrap();
    }
}

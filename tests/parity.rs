//! The truth of the vectors: token ids and vectors against golden files of the Python reference (see
//! `tests/golden/make.py`), against candle-transformers' own models, and against themselves in any company.
#![cfg(feature = "testkit")]

#[path = "common/golden.rs"]
mod golden;
#[path = "common/ways.rs"]
mod ways;

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, xlm_roberta};
use forebay::{
    chunk::Digest,
    embed::{
        Embed, Settings, Tokens,
        expect::{Expect, Family, Pooling},
        local::LocalModel,
        self_test::self_test,
    },
    error::Class,
    testkit::tiny::{self, Like, Shape},
};
use golden::{COSINE_MIN, agrees_with_golden, alone, cosine, golden, vectors};
use proptest::prelude::*;
use tempfile::TempDir;
use ways::{REFERENCE, Way, ways};

/// The seed the tiny golden files were made with.
const SEED: u64 = 7;

/// `FOREBAY_TEST_DEVICE=cuda` holds a GPU to the same truth (`benches/gpu.sh`).
fn settings() -> Settings {
    Settings {
        name: "test".into(),
        dir: String::new(),
        device: std::env::var("FOREBAY_TEST_DEVICE").unwrap_or_else(|_| "cpu".into()),
        kernel: "auto".into(),
        compute: "f32".into(),
        max_length: 0,
        outputs: vec!["dense".into()],
        truncation: "truncate".into(),
        pass_tokens: 2_048,
        memory_mb: 0,
        threads: 2,
    }
}

struct Tiny {
    folder: TempDir,
    expect: Expect,
    model: LocalModel,
}

fn tiny_model(family: Family) -> Tiny {
    let folder = tempfile::tempdir().unwrap();
    let expect = tiny::write(folder.path(), family, SEED).unwrap();
    let model = LocalModel::open(folder.path(), &expect, &settings()).unwrap();
    Tiny { folder, expect, model }
}

impl Tiny {
    /// The same model on every path of this processor.
    fn each(&self) -> impl Iterator<Item = (Way, LocalModel)> {
        ways().into_iter().map(|way| (way, way.open(self.folder.path(), &self.expect, &settings())))
    }
}

#[test]
fn a03_a08_the_tiny_models_agree_with_the_reference() {
    for (family, name) in [(Family::Bert, "tiny-bert"), (Family::XlmRoberta, "tiny-xlm-roberta")] {
        let tiny = tiny_model(family);
        let (head, records) = golden(name);
        assert_eq!(
            tiny.expect.weights_sha256, head.weights_sha256,
            "{name} is generated otherwise than when its golden file was made: run tests/golden/make.py again"
        );
        for (way, model) in tiny.each() {
            let lowest = agrees_with_golden(&model, &records, way.cosine_min());
            println!("{name}, {way:?}: {lowest:.8} at least");
        }
        let longest = records.iter().map(|record| record.ids.len()).max().unwrap();
        assert_eq!(longest, tiny.model.max_length(), "{name}: the limit itself is reached");
    }
}

#[test]
fn a08_a11_minilm_agrees_with_the_reference() {
    let Some(models) = std::env::var_os("FOREBAY_TEST_MODELS") else {
        eprintln!(
            "skipped: a08_a11_minilm_agrees_with_the_reference (FOREBAY_TEST_MODELS names no folder of models)"
        );
        return;
    };
    let folder = PathBuf::from(models).join("all-minilm-l6-v2");
    let (head, records) = golden("minilm");
    assert_eq!(Digest::of(&std::fs::read(folder.join("model.safetensors")).unwrap()), head.weights_sha256);
    let expect = Expect {
        name: "all-minilm-l6-v2".into(),
        revision: "test".into(),
        family: Family::Bert,
        pooling: Pooling::Mean,
        normalize: true,
        max_length: 256,
        dim: 384,
        document_prefix: String::new(),
        query_prefix: String::new(),
        weights_sha256: head.weights_sha256,
        tokenizer_sha256: head.weights_sha256,
        sparse_head: None,
        multi_head: None,
    };
    assert_eq!(records.len(), 60);
    for way in ways() {
        let lowest = agrees_with_golden(&way.open(&folder, &expect, &settings()), &records, way.cosine_min());
        println!("{way:?}: {lowest:.8} at least");
    }
    let model = LocalModel::open(&folder, &expect, &settings()).unwrap();
    let start = std::time::Instant::now();
    let found =
        self_test(&model, &Settings { name: "all-MiniLM-L6-v2".into(), ..settings() }).unwrap().unwrap();
    println!("self-test: {found:?} in {:?}", start.elapsed());
    assert!(found.golden == 6 && found.cosine >= COSINE_MIN, "{found:?}");
}

/// The same texts by candle-transformers' own model, one at a time, then pooled.
fn stock(tiny: &Tiny, ids: &[u32]) -> Vec<f32> {
    let folder = tiny.folder.path();
    let device = Device::Cpu;
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &device).unwrap();
    let weights = VarBuilder::from_tensors(tensors, DType::F32, &device);
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let input = Tensor::from_slice(ids, (1, ids.len()), &device).unwrap();
    let (types, ones) = (input.zeros_like().unwrap(), input.ones_like().unwrap());
    let hidden = match tiny.expect.family {
        Family::Bert => {
            let config: bert::Config = serde_json::from_value(config).unwrap();
            bert::BertModel::load(weights, &config).unwrap().forward(&input, &types, Some(&ones)).unwrap()
        }
        Family::XlmRoberta => {
            config["position_embedding_type"] = "absolute".into();
            let config: xlm_roberta::Config = serde_json::from_value(config).unwrap();
            let model = xlm_roberta::XLMRobertaModel::new(&config, weights).unwrap();
            model.forward(&input, &ones, &types, None, None, None).unwrap()
        }
    };
    let rows = hidden.get(0).unwrap();
    let pooled = match tiny.expect.pooling {
        Pooling::Cls => rows.get(0),
        Pooling::Mean => rows.mean(0),
    };
    pooled.unwrap().to_vec1().unwrap()
}

/// Some text as ids: the template's specials around `n - 2` others.
fn text_of(family: Family, n: usize, seed: usize) -> Tokens {
    let (first, last) = if family == Family::Bert { (2, 3) } else { (0, 2) };
    let inner =
        (0..n.saturating_sub(2)).map(|i| 5 + u32::try_from((i + 1) * (seed + 3) * 31 % 97).unwrap() % 60);
    let ids = std::iter::once(first).chain(inner).chain((n > 1).then_some(last)).collect();
    Tokens { ids, truncated: false }
}

#[test]
fn a03_a05_candle_transformers_models_agree() {
    for family in [Family::Bert, Family::XlmRoberta] {
        let tiny = tiny_model(family);
        for n in [1, 2, 3, 17, 64, 257, 300] {
            let text = text_of(family, n, n);
            let stock = stock(&tiny, &text.ids);
            for (way, model) in tiny.each() {
                let cosine = cosine(&alone(&model, &text), &stock);
                assert!(cosine >= way.cosine_min(), "{family:?}, {way:?}, {n} tokens: {cosine}");
            }
        }
    }
}

#[test]
fn a04_every_position_counts_up_to_the_limit() {
    // bge-m3's limit; one head, as the stock model holds the square of the length for each.
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { width: 32, inner: 64, layers: 1, heads: 1 };
    let like = Like { name: "tiny-long", max_length: 8_192, shape, ..Like::XLM_ROBERTA };
    let expect = tiny::write_like(folder.path(), &like, SEED).unwrap();
    let model = LocalModel::open(folder.path(), &expect, &settings()).unwrap();
    let tiny = Tiny { folder, expect, model };
    let long = [300, 2_100, 5_000, 8_190].map(|n| text_of(Family::XlmRoberta, n, n));
    let long = long.map(|text| (stock(&tiny, &text.ids), text));
    for (way, model) in tiny.each() {
        let same = |ids: Vec<u32>| alone(&model, &Tokens { ids, truncated: false });
        // One token moved by one place, far behind: only a position that is really its own can tell.
        for at in [256, 2_048, 4_098] {
            let mut ids = vec![9_u32; at + 2];
            ids[at] = 20;
            let here = same(ids.clone());
            ids.swap(at, at + 1);
            assert_ne!(here, same(ids), "{way:?}: positions {at} and {} are the same", at + 1);
        }
        for (stock, text) in &long {
            let (cosine, n) = (cosine(&alone(&model, text), stock), text.ids.len());
            println!("{way:?}, {n} tokens: {cosine:.9}");
            assert!(cosine >= way.cosine_min(), "{way:?}, {n} tokens: {cosine}");
        }
    }
}

/// Puts `number` over the first of the numbers of a tensor, `skipped` of them passed over.
fn spoil(folder: &Path, tensor: &str, skipped: usize, number: f32) {
    let path = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let header_len = usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap();
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
    let start = usize::try_from(header[tensor]["data_offsets"][0].as_u64().unwrap()).unwrap();
    let at = 8 + header_len + start + 4 * skipped;
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a01_what_is_not_finite_spoils_its_own_text_and_no_other_on_every_path() {
    for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let tiny = tiny_model(Family::XlmRoberta);
        let mut texts = [3, 40, 18, 5].map(|n| text_of(Family::XlmRoberta, n, n));
        let good: Vec<_> = tiny.each().map(|(_, model)| vectors(&model, &texts)).collect();
        // A word that only the second text has, in the middle of its row.
        assert!(texts.iter().all(|text| !text.ids.contains(&99)));
        texts[1].ids[30] = 99;
        spoil(tiny.folder.path(), "embeddings.word_embeddings.weight", 99 * 32 + 17, number);
        for ((way, model), good) in tiny.each().zip(good) {
            let results = model.embed(&texts.each_ref()).unwrap();
            for (at, (result, good)) in results.into_iter().zip(good).enumerate() {
                match result {
                    Err(fault) => {
                        assert!(at == 1 && fault.class == Class::NonFiniteVector, "{way:?}: {at}, {fault}");
                    }
                    Ok(embedding) => {
                        assert!(at != 1 && cosine(&embedding.dense, &good) >= COSINE_MIN, "{way:?}: {at}");
                    }
                }
            }
        }
        // A weight that rotted: no text comes out of it.
        spoil(tiny.folder.path(), "encoder.layer.1.intermediate.dense.weight", 5 * 32 + 9, number);
        for (way, model) in tiny.each() {
            let results = model.embed(&texts.each_ref()).unwrap();
            assert!(results.iter().all(Result::is_err), "{way:?}: {number} in a weight went unseen");
        }
    }
}

#[test]
fn a13_special_tokens_in_a_text_are_text() {
    for (family, specials, ids) in [
        (Family::XlmRoberta, ["<pad>", "</s>", "<s>", "<mask>", "<unk>"], [1, 2, 0, 112, 0]),
        (Family::Bert, ["[PAD]", "[SEP]", "[CLS]", "[MASK]", "[UNK]"], [0, 3, 2, 4, 0]),
    ] {
        let (tiny, mut texts) = (tiny_model(family), Vec::new());
        for special in specials {
            for text in
                [special.to_owned(), format!("the {special} gate"), format!("the{special}gate{special}")]
            {
                let tokens = tiny.model.tokenize(&text).unwrap();
                let inside = &tokens.ids[1..tokens.ids.len() - 1];
                assert!(inside.len() >= 3, "{text:?} is its letters: {inside:?}");
                assert!(inside.iter().all(|id| !ids.contains(id)), "{text:?} gives {inside:?}");
                assert_eq!(tiny.model.count(&text), inside.len());
                texts.push(tokens);
            }
        }
        // Ids as they come: what a mask by ids would leave out is there, and counts.
        let pad = u32::from(family == Family::XlmRoberta);
        texts.extend([vec![pad], vec![9, pad, 9], vec![9, 9]].map(|ids| Tokens { ids, truncated: false }));
        let reference = vectors(&REFERENCE.open(tiny.folder.path(), &tiny.expect, &settings()), &texts);
        for (way, model) in tiny.each() {
            let ours = vectors(&model, &texts);
            for ((ours, reference), text) in ours.iter().zip(&reference).zip(&texts) {
                assert!(cosine(ours, reference) >= way.cosine_min(), "{way:?}: {text:?}");
            }
            let [.., padded, plain] = &ours[..] else { unreachable!("there are many") };
            assert!(cosine(padded, plain) < COSINE_MIN, "{way:?}: a pad in a text is not looked at");
        }
    }
}

#[test]
fn stored_truncation_and_padding_are_cleared() {
    // The tiny files store a truncation to 16 and a padding to 16.
    for family in [Family::Bert, Family::XlmRoberta] {
        let model = tiny_model(family).model;
        assert_eq!(model.tokenize("the").unwrap().ids.len(), 3);
        assert_eq!(model.tokenize(&"the ".repeat(30)).unwrap().ids.len(), 32);
    }
}

#[test]
fn b07_a_text_far_over_the_limit_is_cut_where_the_whole_would_be() {
    let folder = tempfile::tempdir().unwrap();
    for family in [Family::Bert, Family::XlmRoberta] {
        let expect = tiny::write(folder.path(), family, SEED).unwrap();
        let open =
            |max_length| LocalModel::open(folder.path(), &expect, &Settings { max_length, ..settings() });
        let (short, long) = (open(40).unwrap(), open(0).unwrap());
        let texts = [
            "water and gate. ".repeat(4_000),
            "watergateofthebasin".repeat(4_000),
            format!("the {}gate", " ".repeat(60_000)),
            format!("{}{} the gate", " \u{200b}\n".repeat(9_000), "q".repeat(5_000)),
            format!("the gate {} {}", "x".repeat(40_000), "the gate of the dam ".repeat(90)),
            "東京水".repeat(9_000),
        ];
        for text in texts {
            let whole = short.count(&text);
            let cut = short.tokenize(&text).unwrap();
            assert_eq!(cut.truncated, whole > 38, "{whole} tokens of {} bytes", text.len());
            let reference = long.tokenize(&text).unwrap();
            let kept = cut.ids.len() - 1;
            assert_eq!(cut.ids[..kept], reference.ids[..kept]);
            assert_eq!(cut.ids[kept], *reference.ids.last().unwrap());
        }
    }
}

#[test]
fn a10_twins_and_equal_lengths_are_the_same_in_any_place() {
    for family in [Family::Bert, Family::XlmRoberta] {
        let texts: Vec<Tokens> = [12, 12, 12, 5, 200, 12, 1, 1].map(|n| text_of(family, n, 4)).into();
        for (way, model) in tiny_model(family).each() {
            let vectors = vectors(&model, &texts);
            for (text, vector) in texts.iter().zip(&vectors) {
                assert!(cosine(vector, &alone(&model, text)) >= COSINE_MIN, "{way:?}");
            }
            assert!(cosine(&vectors[0], &vectors[5]) >= COSINE_MIN, "{way:?}");
        }
    }
}

/// `(id, text)` of a file of `tests/cases/`.
fn case(name: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name);
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let record = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        (text(&record["id"]), text(&record["text"]))
    };
    std::fs::read_to_string(path).unwrap().lines().map(record).collect()
}

#[test]
fn a06_nothing_is_cut_before_the_models_own_limit() {
    let tiny = tiny_model(Family::XlmRoberta);
    let texts = ["water", "stone"].map(|last| format!("{}{last}", "the gate of the dam ".repeat(140)));
    let read = |model: &LocalModel| {
        let tokens: Vec<Tokens> = texts.iter().map(|text| model.tokenize(text).unwrap()).collect();
        (tokens.iter().map(|tokens| tokens.truncated).collect::<Vec<_>>(), vectors(model, &tokens))
    };
    for (way, model) in tiny.each() {
        let (truncated, whole) = read(&model);
        assert_eq!(truncated, vec![false; texts.len()], "the limit is {}", model.max_length());
        assert_ne!(whole[0], whole[1], "{way:?}: what differs behind token 512 differs");
        let cut = Settings { max_length: 512, ..settings() };
        let (truncated, short) = read(&way.open(tiny.folder.path(), &tiny.expect, &cut));
        assert!(truncated[0] && truncated[1], "and when it is cut, it is marked");
        assert!(cosine(&short[0], &short[1]) >= COSINE_MIN, "{way:?}");
    }
}

/// Every text of a case: finite, of norm 1, the same again, alone and in a batch.
fn is_steady(name: &str) {
    for family in [Family::Bert, Family::XlmRoberta] {
        let tiny = tiny_model(family);
        let tokens: Vec<Tokens> =
            case(name).iter().map(|(_, text)| tiny.model.tokenize(text).unwrap()).collect();
        let reference = vectors(&REFERENCE.open(tiny.folder.path(), &tiny.expect, &settings()), &tokens);
        for (way, model) in tiny.each() {
            let (batch, again) = (vectors(&model, &tokens), vectors(&model, &tokens));
            assert_eq!(batch, again);
            for ((text, vector), reference) in tokens.iter().zip(&batch).zip(&reference) {
                let name = format!("{name}, {way:?}, {} tokens", text.ids.len());
                let norm = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                assert!((norm - 1.0).abs() < 1e-3, "{name}: norm {norm}");
                assert!(cosine(vector, &alone(&model, text)) >= COSINE_MIN, "{name}");
                assert!(cosine(vector, reference) >= way.cosine_min(), "{name}");
            }
        }
    }
}

#[test]
fn a01_a10_b18_the_cases_are_finite_and_the_same_alone_and_together() {
    is_steady("a01_nan_suspects.jsonl");
    is_steady("a10_batch_invariance.jsonl");
    is_steady("b18_one_token.jsonl");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a10_a_text_alone_equals_itself_in_any_batch(
        lengths in prop::collection::vec(prop_oneof![1_usize..12, 12_usize..90, 90_usize..299], 1..24),
        xlmr in any::<bool>(),
        way in prop::sample::select(ways()),
        pass_tokens in 1_usize..3_000,
    ) {
        let family = if xlmr { Family::XlmRoberta } else { Family::Bert };
        let folder = tempfile::tempdir().unwrap();
        let expect = tiny::write(folder.path(), family, SEED).unwrap();
        let open = |pass_tokens, threads| {
            way.open(folder.path(), &expect, &Settings { pass_tokens, threads, ..settings() })
        };
        let texts: Vec<Tokens> = lengths.iter().enumerate().map(|(i, &n)| text_of(family, n, i)).collect();
        let single = open(1, 1);
        for (text, vector) in texts.iter().zip(vectors(&open(pass_tokens, 2), &texts)) {
            let cosine = cosine(&vector, &alone(&single, text));
            prop_assert!(cosine >= COSINE_MIN, "{} tokens: {cosine}", text.ids.len());
        }
    }
}

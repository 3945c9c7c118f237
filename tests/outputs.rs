//! bge-m3's three outputs from one pass: against the Python reference (see `tests/golden/make.py`) on every path that
//! computes them, alone and in company, refused where they are not, and from a run through the sink to a search.
#![cfg(feature = "testkit")]

#[path = "common/ways.rs"]
mod ways;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use forebay::{
    chunk::{ChunkKey, Digest, Embedding},
    embed::{
        Embed, Settings, Tokens,
        expect::{Expect, Family},
        local::{LocalModel, identity_before_loading},
    },
    sink::{Hit, Query},
    testkit::{
        rig::{Rig, chunk_line},
        tiny,
    },
};
use serde::Deserialize;
use tempfile::TempDir;
use ways::{REFERENCE, Way, ways};

/// The seed the golden files were made with.
const SEED: u64 = 7;

/// Distance of a sparse weight from the reference at most.
fn weight_off_max(way: Way) -> f32 {
    if way.is_exact() { 1e-4 } else { 0.01 }
}

fn settings(outputs: &[&str]) -> Settings {
    let defaults: forebay::config::Config = toml::from_str(forebay::config::DEFAULTS).unwrap();
    let outputs = outputs.iter().map(|name| (*name).to_owned()).collect();
    Settings { device: "cpu".into(), threads: 2, outputs, ..defaults.model }
}

const ALL: [&str; 3] = ["dense", "sparse", "multi"];

fn write(family: Family) -> (TempDir, Expect) {
    let folder = tempfile::tempdir().unwrap();
    let expect = tiny::write(folder.path(), family, SEED).unwrap();
    (folder, expect)
}

fn open(outputs: &[&str]) -> LocalModel {
    let (folder, expect) = write(Family::XlmRoberta);
    LocalModel::open(folder.path(), &expect, &settings(outputs)).unwrap()
}

/// Embeddings of all texts, in order, by the passes the model itself plans.
fn embedded(model: &dyn Embed, texts: &[Tokens]) -> Vec<Embedding> {
    let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
    let mut embeddings = vec![Embedding::default(); texts.len()];
    for group in model.plan(&lengths) {
        let batch: Vec<&Tokens> = group.iter().map(|&index| &texts[index]).collect();
        for (&index, result) in group.iter().zip(model.embed(&batch).unwrap()) {
            embeddings[index] = result.unwrap();
        }
    }
    embeddings
}

fn alone(model: &dyn Embed, text: &Tokens) -> Embedding {
    model.embed(&[text]).unwrap().remove(0).unwrap()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Largest distance of two lists of weights; an id that is wanting weighs nothing.
fn off(a: &[(u32, f32)], b: &[(u32, f32)]) -> f32 {
    let mut weights: BTreeMap<u32, f32> = a.iter().copied().collect();
    b.iter().for_each(|(id, weight)| *weights.entry(*id).or_default() -= weight);
    weights.values().fold(0.0, |off, distance| off.max(distance.abs()))
}

fn rows(numbers: &[f32], dim: usize) -> impl Iterator<Item = &[f32]> {
    numbers.chunks_exact(dim)
}

/// All three are the same, to the last digits.
fn same(a: &Embedding, b: &Embedding, what: &str) {
    let dim = a.dense.len();
    assert!(cosine(&a.dense, &b.dense) >= REFERENCE.cosine_min(), "{what}: dense");
    let off = off(a.sparse.as_ref().unwrap(), b.sparse.as_ref().unwrap());
    assert!(off <= weight_off_max(REFERENCE), "{what}: sparse, {off}");
    let (a, b) = (a.multi.as_ref().unwrap(), b.multi.as_ref().unwrap());
    assert_eq!(a.len(), b.len(), "{what}");
    for (at, (a, b)) in rows(a, dim).zip(rows(b, dim)).enumerate() {
        assert!(cosine(a, b) >= REFERENCE.cosine_min(), "{what}: multi, row {at}");
    }
}

#[derive(Deserialize)]
struct Head {
    files: BTreeMap<String, Digest>,
    texts: usize,
}

#[derive(Deserialize)]
struct Golden {
    text: String,
    ids: Vec<u32>,
    dense: String,
    sparse: Vec<(u32, f32)>,
    /// Every so many rows of `multi` are in the file.
    every: usize,
    multi: String,
}

fn numbers(text: &str) -> Vec<f32> {
    let bytes = BASE64_STANDARD.decode(text).unwrap();
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn golden() -> (Head, Vec<Golden>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny-outputs.jsonl");
    let file = std::fs::read_to_string(path).unwrap();
    let (head, lines) = file.split_once('\n').unwrap();
    let head: Head = serde_json::from_str(head).unwrap();
    let records: Vec<Golden> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), head.texts);
    (head, records)
}

#[test]
fn a06_all_three_agree_with_the_reference_on_every_path() {
    let (folder, expect) = write(Family::XlmRoberta);
    let (head, records) = golden();
    let files = [expect.weights_sha256, expect.sparse_head.unwrap(), expect.multi_head.unwrap()];
    let names = ["model", "sparse_linear", "colbert_linear"];
    for (name, digest) in names.into_iter().zip(files) {
        assert_eq!(head.files[name], digest, "{name} is generated otherwise: run tests/golden/make.py again");
    }
    for way @ Way { kernel, compute } in ways() {
        let (cosine_min, weight_off_max) = (way.cosine_min(), weight_off_max(way));
        let model = way.open(folder.path(), &expect, &settings(&ALL));
        let mut worst = (1.0_f64, 0.0_f32, 1.0_f64);
        let tokens: Vec<Tokens> =
            records.iter().map(|record| model.tokenize(&record.text).unwrap()).collect();
        for ((record, tokens), embedding) in records.iter().zip(&tokens).zip(embedded(&model, &tokens)) {
            let name: String = record.text.chars().take(40).collect();
            let name = format!("{kernel}, {compute}, {name:?}");
            assert_eq!(tokens.ids, record.ids, "{name}");
            assert_eq!(embedding.truncated, record.ids.len() == model.max_length(), "{name}");
            let near = cosine(&embedding.dense, &numbers(&record.dense));
            assert!(near >= cosine_min, "{name}: dense, {near}");
            worst.0 = worst.0.min(near);

            let sparse = embedding.sparse.unwrap();
            let ids = |pairs: &[(u32, f32)]| pairs.iter().map(|(id, _)| *id).collect::<Vec<_>>();
            if way.is_exact() {
                assert_eq!(ids(&sparse), ids(&record.sparse), "{name}");
            }
            let off = off(&sparse, &record.sparse);
            assert!(off <= weight_off_max, "{name}: sparse, {off}");
            worst.1 = worst.1.max(off);

            let (multi, reference, dim) = (embedding.multi.unwrap(), numbers(&record.multi), model.dim());
            assert_eq!(multi.len(), (record.ids.len() - 1) * dim, "{name}");
            let mine: Vec<&[f32]> = rows(&multi, dim).step_by(record.every).collect();
            assert_eq!(mine.len() * dim, reference.len(), "{name}");
            for (at, (row, reference)) in mine.into_iter().zip(rows(&reference, dim)).enumerate() {
                let near = cosine(row, reference);
                assert!(near >= cosine_min, "{name}: row {at}, {near}");
                worst.2 = worst.2.min(near);
            }
        }
        let (dense, sparse, multi) = worst;
        println!(
            "{kernel}, {compute}: worst cosine {dense:.8}, weight off by {sparse:.1e}, row's cosine {multi:.8}"
        );
    }
    assert!(records.iter().any(|record| record.ids.len() == expect.max_length), "one is over the limit");
    assert!(records.iter().any(|record| record.sparse.is_empty()), "one is nothing but specials");
}

#[test]
fn only_what_is_asked_for_is_there() {
    let text = "東京 水 мир שלום über naïve";
    let one = |outputs: &[&str]| {
        let model = open(outputs);
        alone(&model, &model.tokenize(text).unwrap())
    };
    let all = one(&ALL);
    assert!(!all.sparse.as_ref().unwrap().is_empty() && !all.multi.as_ref().unwrap().is_empty());
    assert_eq!(one(&["dense"]), Embedding { sparse: None, multi: None, ..all.clone() });
    assert_eq!(one(&["dense", "sparse"]), Embedding { multi: None, ..all.clone() });
    assert_eq!(one(&["multi", "dense"]), Embedding { sparse: None, ..all });
}

#[test]
fn a10_a_text_alone_equals_itself_in_any_batch() {
    let model = open(&ALL);
    let mut random = fastrand::Rng::with_seed(3);
    let word = |random: &mut fastrand::Rng| ["the", "gate", "water", "мир", "q", "basin"][random.usize(..6)];
    let texts: Vec<Tokens> = (0..60)
        .map(|i| {
            let words: Vec<&str> = (0..1 + i % 7 * (1 + i / 5)).map(|_| word(&mut random)).collect();
            model.tokenize(&words.join(" ")).unwrap()
        })
        .collect();
    let (folder, expect) = write(Family::XlmRoberta);
    for way in ways() {
        let model = way.open(folder.path(), &expect, &settings(&ALL));
        let once: Vec<Embedding> = texts.iter().map(|text| alone(&model, text)).collect();
        for round in 0..3 {
            let mut order: Vec<usize> = (0..texts.len()).collect();
            random.shuffle(&mut order);
            let mixed: Vec<Tokens> = order.iter().map(|&at| texts[at].clone()).collect();
            for (&at, embedding) in order.iter().zip(embedded(&model, &mixed)) {
                let n = texts[at].ids.len();
                same(&embedding, &once[at], &format!("{way:?}, round {round}, {n} tokens"));
            }
        }
    }
}

#[test]
fn a13_special_tokens_have_no_weight_and_their_names_in_a_text_have() {
    let (folder, expect) = write(Family::XlmRoberta);
    for way in ways() {
        let model = way.open(folder.path(), &expect, &settings(&ALL));
        for text in ["<pad>", "the </s> gate <s> <unk>", "☃ ☃", "水 the ☃"] {
            let tokens = model.tokenize(text).unwrap();
            let sparse = alone(&model, &tokens).sparse.unwrap();
            assert!(
                sparse.iter().all(|(id, weight)| *id > 3 && *weight > 0.0),
                "{way:?}, {text:?}: {sparse:?}"
            );
            let inside = tokens.ids.iter().any(|id| *id > 4);
            assert_eq!(inside, text != "☃ ☃", "{text:?} {tokens:?}");
        }
        // Ids as they come: a text of one token, and of specials alone.
        for ids in [vec![0], vec![0, 2], vec![3], vec![0, 1, 3, 2]] {
            let n = ids.len();
            let embedding = alone(&model, &Tokens { ids, truncated: false });
            assert_eq!(embedding.sparse, Some(vec![]), "{way:?}");
            assert_eq!(embedding.multi.unwrap().len(), (n - 1) * model.dim());
        }
    }
}

#[test]
fn a14_outputs_are_part_of_the_identity_and_so_are_their_heads() {
    let (folder, expect) = write(Family::XlmRoberta);
    let identity =
        |expect: &Expect, outputs: &[&str]| identity_before_loading(expect, &settings(outputs)).unwrap();
    let dense = identity(&expect, &["dense"]);
    let all = identity(&expect, &ALL);
    assert_eq!(all.label, "tiny-xlm-roberta@seed-7/dense+sparse+multi-32/f32/4200");
    assert_eq!(all, identity(&expect, &["multi", "sparse", "dense", "dense"]), "in whatever order");
    for way in ways() {
        // Kernels differ in the last digits, arithmetics in more.
        let found = identity_before_loading(&expect, &way.settings(&settings(&ALL))).unwrap();
        assert_eq!(found == all, way.is_exact(), "{way:?}: {}", found.label);
    }
    let some = ["sparse", "multi"].map(|one| identity(&expect, &["dense", one]));
    assert!(some[0] != some[1] && !some.contains(&dense) && !some.contains(&all));
    let loaded = LocalModel::open(folder.path(), &expect, &settings(&ALL)).unwrap();
    assert_eq!(*loaded.identity(), all);

    let other = Expect { multi_head: Some(Digest::of(b"another")), ..expect.clone() };
    assert_ne!(identity(&other, &ALL), all);
    assert_eq!(
        identity(&other, &["dense", "sparse"]),
        some[0],
        "a head that is not asked for does not count"
    );
    let headless = Expect { sparse_head: None, multi_head: None, ..expect };
    assert_eq!(identity(&headless, &["dense"]), dense);
}

#[test]
fn what_cannot_be_had_is_refused_and_never_made_up() {
    let (folder, expect) = write(Family::Bert);
    let refused = |folder: &Path, expect: &Expect, outputs: &[&str]| {
        LocalModel::open(folder, expect, &settings(outputs)).unwrap_err().to_string()
    };
    let message = refused(folder.path(), &expect, &["dense", "sparse"]);
    assert!(
        message.starts_with("model.outputs = [\"dense\", \"sparse\"]: tiny-bert has no sparse"),
        "{message}"
    );
    assert!(message.contains("set model.outputs = [\"dense\"], or model.name = \"bge-m3\""), "{message}");
    assert!(
        identity_before_loading(&expect, &settings(&ALL))
            .unwrap_err()
            .to_string()
            .contains("sparse or multi")
    );

    for (file, outputs) in [
        ("sparse_linear.safetensors", ["dense", "sparse"]),
        ("colbert_linear.safetensors", ["dense", "multi"]),
    ] {
        let (folder, expect) = write(Family::XlmRoberta);
        let path = folder.path().join(file);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
        assert!(refused(folder.path(), &expect, &outputs).contains("forebay model verify"), "cut");
        std::fs::remove_file(&path).unwrap();
        let message = refused(folder.path(), &expect, &outputs);
        assert!(
            message.contains(file) && message.contains("forebay model pull tiny-xlm-roberta"),
            "{message}"
        );
        // It is not needed for the dense vector.
        assert!(LocalModel::open(folder.path(), &expect, &settings(&["dense"])).is_ok());
    }
    let instant = Settings { name: "instant".into(), ..settings(&["dense", "multi"]) };
    let message = forebay::embed::open(&instant).err().unwrap().to_string();
    assert!(message.contains("instant has no multi output; set model.outputs = [\"dense\"]"), "{message}");
}

/// The score of one text, by the definitions, in f64.
fn likeness(query: &Embedding, row: &Embedding, [dense, sparse, multi]: [f32; 3]) -> f64 {
    let weights: BTreeMap<u32, f32> = row.sparse.iter().flatten().copied().collect();
    let words = query.sparse.iter().flatten();
    let words: f64 = words.map(|(id, w)| f64::from(*w) * f64::from(*weights.get(id).unwrap_or(&0.0))).sum();
    let (dim, ours) = (query.dense.len(), query.multi.as_ref().unwrap());
    let best = |ours: &[f32]| {
        rows(row.multi.as_ref().unwrap(), dim).map(|other| dot(ours, other)).fold(f64::MIN, f64::max)
    };
    let late = rows(ours, dim).map(best).sum::<f64>() / (ours.len() / dim) as f64;
    f64::from(dense) * dot(&query.dense, &row.dense) + f64::from(sparse) * words + f64::from(multi) * late
}

#[test]
fn from_a_run_through_the_sink_to_a_search_in_every_mode() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.model = Arc::new(open(&ALL));
    let words = ["water", "gate", "river", "stone", "light", "dam", "basin", "東京", "naïve"];
    let text = |i: usize| {
        (0..3 + i % 5).map(|k| words[(i * (k + 1) + k) % words.len()]).collect::<Vec<_>>().join(" ")
    };
    let lines: Vec<String> = (0..40).map(|i| chunk_line(&format!("d{i}"), 0, &text(i))).collect();
    let input = [rig.input("in.jsonl", &lines)];
    assert_eq!(rig.run(&input).chunks, 40);
    let passes = || rig.faults.passes.load(std::sync::atomic::Ordering::Relaxed);
    let before = passes();
    let again = rig.run(&input);
    assert_eq!((again.chunks, again.skipped, passes() - before), (0, 40, 0), "a second run embeds nothing");

    let sink = rig.plain_sink();
    let keys: Vec<ChunkKey> = (0..40).map(|i| ChunkKey::new(format!("d{i}"), 0)).collect();
    let stored: Vec<Embedding> = sink.embeddings(&keys).unwrap().into_iter().map(Option::unwrap).collect();
    for (i, stored) in stored.iter().enumerate() {
        same(stored, &alone(&*rig.model, &rig.model.tokenize(&text(i)).unwrap()), &text(i));
    }
    let query = alone(&*rig.model, &rig.model.tokenize_query("the river of light").unwrap());
    let find = |embedding: &Embedding, [dense, sparse, multi]: [f32; 3]| -> Vec<Hit> {
        let query = Query { embedding: embedding.clone(), dense, sparse, multi };
        sink.search(rig.model.identity(), &query, 7).unwrap()
    };
    let mut orders = Vec::new();
    for weights in [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.4, 0.2, 0.4], [0.7, 0.3, 0.0]] {
        let hits = find(&query, weights);
        let mut scores: Vec<f64> = stored.iter().map(|row| likeness(&query, row, weights)).collect();
        for hit in &hits {
            let at: usize = hit.doc_id[1..].parse().unwrap();
            assert!((f64::from(hit.score) - scores[at]).abs() < 1e-5, "{weights:?}: {hit:?} {}", scores[at]);
            assert_eq!(hit.text.as_deref(), Some(text(at).as_str()));
        }
        scores.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(hits.len(), 7, "{weights:?}");
        for (hit, score) in hits.iter().zip(scores) {
            assert!((f64::from(hit.score) - score).abs() < 1e-5, "{weights:?}: the best, best first");
        }
        orders.push(hits.into_iter().map(|hit| hit.doc_id).collect::<Vec<_>>());
    }
    assert!(orders[0] != orders[1] && orders[1] != orders[2] && orders[0] != orders[2], "{orders:?}");
    let nothing = Embedding { sparse: Some(vec![(3, 1.0)]), ..query.clone() };
    assert_eq!(find(&nothing, [0.0, 1.0, 0.0]), [], "no shared token is no answer");
    assert_eq!(find(&nothing, [0.4, 0.2, 0.4]).len(), 7, "among others it counts nothing");
    let blank = Embedding { sparse: Some(vec![]), multi: Some(vec![]), ..query };
    for weights in [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0; 3]] {
        assert_eq!(find(&blank, weights), [], "{weights:?}");
    }
    assert_eq!(sink.held().unwrap().unwrap(), rig.model.identity().label);

    let verified = forebay::ops::verify::verify(&rig.folder(), &*sink, Some(rig.model.identity())).unwrap();
    assert_eq!((verified.ok, verified.sampled, verified.bad_vectors), (true, 40, 0), "{verified:?}");

    // Other outputs are another identity: refused, and with --reembed everything is embedded again.
    rig.model = Arc::new(open(&["dense", "sparse"]));
    let store = rig.folder().store.clone();
    let prepare =
        |reembed| rig.plain_sink().preflight(rig.model.identity(), rig.model.dim(), &store, reembed);
    let message = prepare(false).unwrap_err().to_string();
    assert!(message.contains("dense+sparse+multi-32") && message.contains("--reembed"), "{message}");
    prepare(true).unwrap();
    assert_eq!(rig.run(&input).chunks, 40);
    let now = rig.plain_sink().embeddings(&keys).unwrap();
    for (now, before) in now.into_iter().zip(stored) {
        let now = now.unwrap();
        assert_eq!(now.multi, None, "nothing is left of what was there");
        same(&Embedding { multi: before.multi.clone(), ..now }, &before, "the same vectors");
    }
}

#[test]
fn verify_names_the_output_that_is_spoilt() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(dir.path());
    rig.model = Arc::new(open(&ALL));
    let lines: Vec<String> = (0..9).map(|i| chunk_line(&format!("d{i}"), 0, "the water gate")).collect();
    rig.run(&[rig.input("in.jsonl", &lines)]);
    let db = rusqlite::Connection::open(rig.data().join("vectors.db")).unwrap();
    for (doc, change) in [
        ("d2", "multi = substr(multi, 5)"),
        ("d3", "sparse = substr(sparse, 1, 7)"),
        ("d4", "sparse = NULL"),
        ("d5", "multi = zeroblob(length(multi))"),
        ("d6", "dense = NULL"),
    ] {
        assert_eq!(
            db.execute(&format!("UPDATE vectors SET {change} WHERE doc_id = '{doc}'"), []).unwrap(),
            1
        );
    }
    let found =
        forebay::ops::verify::verify(&rig.folder(), &*rig.plain_sink(), Some(rig.model.identity())).unwrap();
    assert!(!found.ok && found.bad_vectors == 5 && found.sampled == 9, "{found:?}");
    let all = found.problems.join("\n");
    for part in [
        "d2#0 is not sound: multi: ",
        "d3#0 is not sound: sparse: ",
        "d4#0 is not sound: its outputs",
        "d5#0 is not sound: multi, row 0",
        "d6#0 is not sound: dense: 0 numbers",
    ] {
        assert!(all.contains(part), "{part} in\n{all}");
    }
    // A spoilt row is passed over by a search, and the others are found.
    let embedding = alone(&*rig.model, &rig.model.tokenize_query("the water gate").unwrap());
    let query = Query { embedding, dense: 0.4, sparse: 0.2, multi: 0.4 };
    let hits = rig.plain_sink().search(rig.model.identity(), &query, 20).unwrap();
    let docs: Vec<&str> = hits.iter().map(|hit| hit.doc_id.as_str()).collect();
    assert_eq!(docs, ["d0", "d1", "d7", "d8", "d5"], "rows of zeros are like nothing");
}

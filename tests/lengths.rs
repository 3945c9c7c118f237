//! A04, A10: texts of every length up to 8,192 tokens have the same outputs on every path of this processor, and to the
//! bit the same alone, in company and on any number of threads.
#![cfg(feature = "testkit")]

#[path = "common/ways.rs"]
mod ways;

use forebay::{
    chunk::Embedding,
    embed::{
        Settings, Tokens, cpu,
        expect::{Expect, Family},
        local::LocalModel,
    },
    testkit::tiny::{self, Like, Shape},
};
use tempfile::TempDir;
use ways::{Off, REFERENCE, Way, text_of, together, ways};

/// bge-m3's limit, and an inner part that no tile divides.
const LONG: Like = Like {
    name: "tiny-long",
    shape: Shape { width: 64, inner: 150, layers: 2, heads: 2 },
    max_length: 8_192,
    ..Like::XLM_ROBERTA
};
/// Heads of bge-m3's width; more numbers than a block has.
const WIDE: Like = Like {
    name: "tiny-wide",
    shape: Shape { width: 128, inner: 600, layers: 2, heads: 2 },
    ..Like::XLM_ROBERTA
};
/// A width that no tile divides.
const BERT: Like = Like {
    name: "tiny-odd",
    shape: Shape { width: 72, inner: 200, layers: 3, heads: 3 },
    max_length: 512,
    ..Like::BERT
};

/// Around the rows and columns of the tiles of all kernels (4 to 32), and the tokens that a lane takes at a time (512).
const SHORT: [usize; 41] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 23, 24, 25, 31, 32, 33, 35, 36, 37, 47, 48, 49, 63,
    64, 65, 95, 96, 97, 127, 129, 255, 257, 300, 301, 511, 512,
];
/// What A04 asks for.
const LENGTHY: [usize; 3] = [2_100, 5_000, 8_190];

/// How far a path may be from the reference: some times what was measured.
fn most(way: Way) -> Off {
    if way.is_exact() {
        // A cosine of 1 - 5·10⁻¹¹, of a row 1 - 2·10⁻¹⁰.
        Off { dense: 1e-5, sparse: 4e-5, multi: 2e-5 }
    } else {
        // A cosine of 0.9999, of a row 0.9998.
        Off { dense: 0.014, sparse: 0.06, multi: 0.02 }
    }
}

struct Made {
    like: Like,
    folder: TempDir,
    expect: Expect,
}

impl Made {
    fn new(like: Like) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let expect = tiny::write_like(folder.path(), &like, 11).unwrap();
        Self { like, folder, expect }
    }

    fn texts(&self, lengths: &[usize]) -> Vec<Tokens> {
        let ends = if self.like.family == Family::Bert { [2, 3] } else { [0, 2] };
        let mut random = fastrand::Rng::with_seed(5);
        lengths.iter().map(|&n| text_of(ends, n, &mut random)).collect()
    }

    fn settings(&self, threads: usize) -> Settings {
        let defaults: forebay::config::Config = toml::from_str(forebay::config::DEFAULTS).unwrap();
        let outputs: &[&str] = if self.like.heads { &["dense", "sparse", "multi"] } else { &["dense"] };
        let outputs = outputs.iter().map(|name| (*name).to_owned()).collect();
        Settings { device: "cpu".into(), threads, outputs, ..defaults.model }
    }

    fn open(&self, way: Way, threads: usize) -> LocalModel {
        way.open(self.folder.path(), &self.expect, &self.settings(threads))
    }
}

#[test]
fn a04_every_path_agrees_at_every_length() {
    for (like, long) in [(LONG, &LENGTHY[..]), (WIDE, &[1_025]), (BERT, &[])] {
        let made = Made::new(like);
        let lengths = [&SHORT[..], long].concat();
        let texts = made.texts(&lengths);
        let embedded = |way| {
            let model = made.open(way, 2);
            let (short, long) = texts.split_at(SHORT.len());
            let mut all = together(&model, &short.iter().collect::<Vec<_>>());
            all.extend(long.iter().map(|text| together(&model, &[text]).remove(0)));
            all
        };
        let reference: Vec<Embedding> = embedded(REFERENCE);
        for way in ways().into_iter().skip(1) {
            let (start, mut worst) = (std::time::Instant::now(), Off::default());
            for ((ours, theirs), n) in embedded(way).iter().zip(&reference).zip(&lengths) {
                let off = Off::of(ours, theirs);
                assert!(off.is_within(most(way)), "{}, {way:?}, {n} tokens: {off:?}", like.name);
                worst = worst.max(off);
            }
            println!("{}, {way:?}: {worst:?} in {:?}", like.name, start.elapsed());
        }
    }
}

#[test]
fn a10_alone_in_any_company_and_on_any_threads_it_is_the_same_to_the_bit() {
    let lengths =
        [[1, 700, 33, 2, 12, 513].as_slice(), &[1_100, 5, 700, 300, 64, 1, 97, 16, 31, 129]].concat();
    for like in [WIDE, BERT] {
        let made = Made::new(like);
        let lengths: Vec<usize> = lengths.iter().map(|n| (*n).min(like.max_length)).collect();
        let mut texts = made.texts(&lengths);
        // Twins in other places.
        texts.extend([texts[1].clone(), texts[9].clone()]);
        for way in ways() {
            let single = made.open(way, 1);
            let alone: Vec<Embedding> =
                texts.iter().map(|text| together(&single, &[text]).remove(0)).collect();
            let mut random = fastrand::Rng::with_seed(6);
            for threads in [1, 2, 5] {
                let model = made.open(way, threads);
                let mut order: Vec<usize> = (0..texts.len()).collect();
                let mut passes = vec![order.clone()];
                random.shuffle(&mut order);
                passes.extend(order.chunks(5).map(<[usize]>::to_vec));
                passes.extend(order.iter().map(|&at| vec![at]));
                for pass in passes {
                    let batch: Vec<&Tokens> = pass.iter().map(|&at| &texts[at]).collect();
                    for (&at, embedding) in pass.iter().zip(together(&model, &batch)) {
                        let off = Off::of(&embedding, &alone[at]);
                        let n = texts[at].ids.len();
                        // Candle's own matrices are cut otherwise with the number of rows.
                        let most = if way == REFERENCE { most(way) } else { Off::default() };
                        assert!(
                            off.is_within(most),
                            "{way:?}, {threads} threads, {n} tokens in {pass:?}: {off:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn every_kernel_that_can_be_set_is_among_those_that_are_tested() {
    // What can be set, as the page of settings says (and `tests/config.rs` holds it to).
    let (_, page) = include_str!("../docs/settings.md").split_once("### `model.kernel`").unwrap();
    let line = page.lines().find(|line| line.starts_with("- takes: one of ")).unwrap();
    let made = Made::new(BERT);
    for name in line.split('"').skip(1).step_by(2).filter(|name| !["auto", "candle"].contains(name)) {
        let settings = Settings { kernel: name.to_owned(), ..made.settings(1) };
        match LocalModel::open(made.folder.path(), &made.expect, &settings) {
            Ok(_) => assert!(cpu::kernels().contains(&name), "{name} runs here, and no test goes through it"),
            Err(error) => {
                assert!(error.to_string().contains("this processor has no such instructions"), "{error}");
                assert!(!cpu::kernels().contains(&name));
                println!("skipped: the kernel {name}: this processor has no such instructions");
            }
        }
    }
    assert!(cpu::kernels().contains(&"portable"));
}

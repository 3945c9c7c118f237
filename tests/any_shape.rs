//! Models and batches of any shape, on any kernel, in both arithmetics and on any number of threads: never a panic, and
//! the numbers of the reference. Some seconds by default; `FOREBAY_FUZZ_MINUTES=10 cargo test --release --features testkit
//! --test any_shape -- --nocapture` goes on for that long. Either way it says how far off the worst was.
#![cfg(feature = "testkit")]

#[path = "common/ways.rs"]
mod ways;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use forebay::{
    chunk::Embedding,
    embed::{Settings, Tokens, expect::Family},
    testkit::tiny::{self, Like, Shape},
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use ways::{Off, REFERENCE, Way, text_of, together, ways};

/// Cases without a time, and cases between two looks at the clock.
const CASES: u32 = 60;

/// A model, a batch, and how it is computed.
#[derive(Clone, Debug)]
struct Case {
    like: Like,
    seed: u64,
    lengths: Vec<usize>,
    way: Way,
    threads: usize,
}

fn case() -> impl Strategy<Value = Case> {
    let like = prop::sample::select(vec![Like::XLM_ROBERTA, Like::BERT, Like::BGE, Like::E5_LARGE]);
    let head = prop_oneof![4 => 1_usize..40, 1 => Just(64_usize)];
    let inner = prop_oneof![4 => 1_usize..200, 1 => 500_usize..1_100];
    let length = prop_oneof![3 => 1_usize..20, 3 => 20_usize..100, 1 => 100_usize..300];
    let lengths = prop::collection::vec(length, 1..20);
    let rest = (any::<u64>(), prop::sample::select(ways()), 1_usize..5);
    (like, 1_usize..5, head, inner, 1_usize..4, lengths, rest).prop_map(
        |(like, heads, head, inner, layers, lengths, (seed, way, threads))| {
            // Over fewer numbers than these a normalisation can make anything of nothing, in any arithmetic.
            let width = heads * head.max(32_usize.div_ceil(heads));
            let like = Like { shape: Shape { width, inner, layers, heads }, ..like };
            Case { like, seed, lengths, way, threads }
        },
    )
}

/// What was seen of a path against another.
#[derive(Default)]
struct Pair {
    worst: Off,
    /// Distances of dense vectors, in sum.
    dense: f64,
    texts: u32,
}

#[derive(Default)]
struct Seen {
    cases: u64,
    pairs: BTreeMap<(&'static str, &'static str, &'static str), Pair>,
}

impl Seen {
    /// Takes in one text; gives a sentence if it is too far off. A model of random weights can make much of a small
    /// difference, and now and then one does: the limit of a text is wide, that of the average is not.
    fn add(&mut self, way: Way, against: &'static str, off: Off) -> Result<(), String> {
        let pair = self.pairs.entry((way.kernel, way.compute, against)).or_default();
        pair.worst = pair.worst.max(off);
        pair.dense += off.dense;
        pair.texts += 1;
        let most = if way.is_exact() {
            Off { dense: 3e-4, sparse: 3e-4, multi: 3e-4 }
        } else {
            Off { dense: 0.1, sparse: 0.3, multi: 0.15 }
        };
        let is_within = off.is_within(most);
        if is_within { Ok(()) } else { Err(format!("{way:?} against {against}: {off:?}")) }
    }

    /// Says it all; each average is what the arithmetic allows for.
    fn end(&self) {
        for ((kernel, compute, against), Pair { worst, dense, texts }) in &self.pairs {
            let mean = dense / f64::from(*texts);
            println!("{kernel}, {compute} against {against}: {worst:?} at most, dense {mean:.1e} on average");
            let most = if *compute == "f32" { 5e-6 } else { 0.005 };
            assert!(mean <= most, "{kernel}, {compute} against {against}: {mean:e} on average");
        }
    }
}

fn agrees(case: &Case, seen: &RefCell<Seen>) -> Result<(), TestCaseError> {
    let Case { like, seed, lengths, way, threads } = case;
    let folder = tempfile::tempdir().unwrap();
    let expect = tiny::write_like(folder.path(), like, *seed).unwrap();
    let defaults: forebay::config::Config = toml::from_str(forebay::config::DEFAULTS).unwrap();
    let outputs: &[&str] = if like.heads { &["dense", "sparse", "multi"] } else { &["dense"] };
    let outputs = outputs.iter().map(|name| (*name).to_owned()).collect();
    let settings = Settings { device: "cpu".into(), threads: *threads, outputs, ..defaults.model };
    let ends = if like.family == Family::Bert { [2, 3] } else { [0, 2] };
    let mut random = fastrand::Rng::with_seed(*seed);
    let texts: Vec<Tokens> = lengths.iter().map(|&n| text_of(ends, n, &mut random)).collect();
    let embedded = |way: Way, threads| -> Vec<Embedding> {
        let model = way.open(folder.path(), &expect, &Settings { threads, ..settings.clone() });
        together(&model, &texts.iter().collect::<Vec<_>>())
    };
    let ours = embedded(*way, *threads);
    let plain = embedded(Way { kernel: "portable", ..*way }, 1);
    let reference = embedded(REFERENCE, 2);
    let mut seen = seen.borrow_mut();
    seen.cases += 1;
    for ((ours, plain), reference) in ours.iter().zip(&plain).zip(&reference) {
        for (against, theirs) in [("candle", reference), ("portable", plain)] {
            if against != way.kernel {
                seen.add(*way, against, Off::of(ours, theirs)).map_err(TestCaseError::fail)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a10_whatever_the_shape_every_path_gives_the_same_numbers() {
    let minutes = std::env::var("FOREBAY_FUZZ_MINUTES").ok().and_then(|text| text.parse::<f64>().ok());
    let (start, seen) = (Instant::now(), RefCell::new(Seen::default()));
    loop {
        let mut runner =
            TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
        let found = runner.run(&case(), |case| agrees(&case, &seen));
        assert!(found.is_ok(), "{}", found.unwrap_err());
        if minutes.is_none_or(|minutes| start.elapsed() >= Duration::from_secs_f64(60.0 * minutes)) {
            break;
        }
    }
    let seen = seen.into_inner();
    println!("{} cases in {:?}", seen.cases, start.elapsed());
    seen.end();
}

//! Tokens per second of the forward pass: the tiny model (overhead), all-MiniLM-L6-v2 where it is installed, and six
//! layers of bge-m3's shape with generated weights. `cargo bench --features testkit --bench embed`

use std::{path::Path, time::Duration};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forebay::{
    embed::{
        Embed, Settings, Tokens,
        expect::{Expect, Family},
        local::LocalModel,
    },
    testkit::tiny,
};

fn settings(name: &str, dir: &str) -> Settings {
    Settings {
        name: name.into(),
        dir: dir.into(),
        device: "cpu".into(),
        kernel: "auto".into(),
        compute: "f32".into(),
        max_length: 0,
        outputs: vec!["dense".into()],
        truncation: "truncate".into(),
        pass_tokens: 4_096,
        memory_mb: 0,
        threads: 0,
    }
}

/// Texts of mixed lengths, as a corpus has them: many short, few long; `tokens` in all, about.
fn texts(model: &dyn Embed, tokens: usize) -> Vec<Tokens> {
    let (mut random, mut texts, mut sum) = (fastrand::Rng::with_seed(7), Vec::new(), 0);
    while sum < tokens {
        let words = 8 + random.usize(0..18).pow(2);
        let text: Vec<String> = (0..words).map(|_| word(&mut random)).collect();
        let text = model.tokenize(&text.join(" ")).expect("words can be tokenised");
        sum += text.ids.len();
        texts.push(text);
    }
    texts
}

fn word(random: &mut fastrand::Rng) -> String {
    (0..random.usize(2..9)).map(|_| random.lowercase()).collect()
}

fn measure(c: &mut Criterion, name: &str, model: &dyn Embed, tokens: usize) {
    let texts = texts(model, tokens);
    let lengths: Vec<usize> = texts.iter().map(|tokens| tokens.ids.len()).collect();
    let mut group = c.benchmark_group("embed");
    group.sample_size(10).measurement_time(Duration::from_secs(8));
    group.throughput(Throughput::Elements(lengths.iter().sum::<usize>() as u64));
    group.bench_function(BenchmarkId::new("tokens", name), |b| {
        b.iter(|| {
            for pass in model.plan(&lengths) {
                let batch: Vec<&Tokens> = pass.iter().map(|at| &texts[*at]).collect();
                let vectors = model.embed(&batch).expect("the pass succeeds");
                assert!(vectors.iter().all(Result::is_ok), "every text has its vector");
            }
        });
    });
    group.finish();
}

fn generated(c: &mut Criterion, name: &str, write: impl Fn(&Path) -> std::io::Result<Expect>, tokens: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let expect = write(folder.path()).expect("the model is written");
    let model = LocalModel::open(folder.path(), &expect, &settings(name, "")).expect("it opens");
    measure(c, name, &model, tokens);
}

fn embed(c: &mut Criterion) {
    generated(c, "tiny", |folder| tiny::write(folder, Family::XlmRoberta, 1), 20_000);
    let like = tiny::Like { shape: tiny::BGE_M3_OF_6, ..tiny::Like::XLM_ROBERTA };
    let write = |folder: &Path| tiny::write_like(folder, &like, 1);
    generated(c, "bge-m3 shape, 6 layers", write, 3_000);
    // Where the demo puts it.
    match forebay::embed::open(&settings("all-MiniLM-L6-v2", "")) {
        Ok(model) => measure(c, "all-MiniLM-L6-v2", model.as_ref(), 10_000),
        Err(why) => println!("skipped: all-MiniLM-L6-v2: {why}"),
    }
}

criterion_group!(benches, embed);
criterion_main!(benches);

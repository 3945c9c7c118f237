//! The whole line with the instant embedder: a JSONL file of 10⁵ records into the null sink, and into SQLite. Queue and
//! ledger are durable in both. `cargo bench --features testkit --bench pipeline`

use std::{path::PathBuf, sync::Arc, time::Duration};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use forebay::{
    sink::Null,
    testkit::rig::{Rig, document_line},
};

const RECORDS: u64 = 100_000;

fn lines() -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(3);
    let mut word = move || -> String { (0..random.usize(2..9)).map(|_| random.lowercase()).collect() };
    (0..RECORDS)
        .map(|n| {
            let mut text = String::new();
            while text.len() < 200 {
                text.push_str(&word());
                text.push(' ');
            }
            document_line(&format!("doc-{n}"), &text)
        })
        .collect()
}

fn rig(null: bool, lines: &[String]) -> (Rig, PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a real disk");
    let mut rig = Rig::new(dir.path());
    // As shipped, where the rig is small to meet its limits.
    rig.settings.pipeline.batch_chunks = 512;
    rig.settings.pipeline.batch_tokens = 65_536;
    rig.settings.window_chunks = 20_000;
    rig.settings.source.chunk_tokens = 512;
    if null {
        rig.sink = Some(Arc::new(Null::default()));
    }
    let input = rig.input("in.jsonl", lines);
    (rig, input, dir)
}

fn pipeline(c: &mut Criterion) {
    let lines = lines();
    let mut group = c.benchmark_group("pipeline");
    group.sample_size(10).measurement_time(Duration::from_secs(60)).throughput(Throughput::Elements(RECORDS));
    for (name, null) in [("null sink", true), ("SQLite sink", false)] {
        group.bench_function(name, |b| {
            let run = |(rig, input, _): &mut (Rig, PathBuf, tempfile::TempDir)| {
                let report = rig.run(std::slice::from_ref(input));
                assert_eq!(report.chunks, RECORDS, "every record is written");
            };
            b.iter_batched_ref(|| rig(null, &lines), run, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, pipeline);
criterion_main!(benches);

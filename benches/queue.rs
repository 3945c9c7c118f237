//! The durable queue alone: enqueue → lease → settle of 10⁵ chunks in batches of 512, every lease flushed to disk.
//! `cargo bench --features testkit --bench queue`

use std::{path::Path, time::Duration};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use forebay::{
    chunk::{Chunk, ChunkKey, Digest},
    queue::{Expect, Leased, Queue, Settings, Settlement, journal::Journal},
};

const CHUNKS: u64 = 100_000;
const BATCH: usize = 512;
const WINDOW: usize = 20_000;

fn open(dir: &Path) -> Queue {
    let expect = Expect { store: 1, generation: 0, boot: 1, fresh: true, retry_cap_ms: 30_000 };
    let journal = Journal::open(&dir.join("dead-letters.jsonl")).expect("a new journal");
    let settings = Settings { window_chunks: WINDOW, cache_mb: 32 };
    Queue::open(&dir.join("queue"), &settings, expect, journal).expect("a new queue").0
}

fn chunk(n: u64) -> Chunk {
    let text = format!("the water of basin {n} drives a turbine ").repeat(5);
    Chunk {
        key: ChunkKey::new(format!("doc-{n}"), 0),
        source_hash: Digest::of(text.as_bytes()),
        text,
        meta: None,
        source_id: 1,
        ordinal: n,
        line: n,
    }
}

/// Fills the window, empties it, until all chunks went through.
fn through(queue: &Queue) {
    let (mut enqueued, mut settled) = (0, 0);
    while settled < CHUNKS {
        while enqueued < CHUNKS && queue.depth().pending < WINDOW {
            queue.enqueue(chunk(enqueued)).expect("the queue takes it");
            enqueued += 1;
        }
        while let Leased::Chunks(chunks) = queue.lease(BATCH, usize::MAX).expect("the queue gives") {
            settled += chunks.len() as u64;
            let written = chunks.into_iter().map(|(lease, _)| Settlement::Written(lease)).collect();
            queue.settle(written).expect("the queue settles");
        }
    }
    queue.flush().expect("the queue is flushed");
}

fn queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("queue");
    group.sample_size(10).measurement_time(Duration::from_secs(20)).throughput(Throughput::Elements(CHUNKS));
    let fresh = || {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a real disk");
        let queue = open(dir.path());
        (queue, dir)
    };
    group.bench_function("enqueue, lease, settle", |b| {
        b.iter_batched_ref(fresh, |(queue, _)| through(queue), BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(benches, queue);
criterion_main!(benches);

//! A buffer that the system refuses is a pass that did not fit: halved, charged to nobody, remembered. In a process of its
//! own, whose allocator refuses for real.
#![cfg(feature = "testkit")]
#![expect(unsafe_code, reason = "an allocator")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use forebay::{
    embed::{Embed, Settings, local::LocalModel},
    error::Class,
    queue::dlq::Filter,
    testkit::{
        rig::{Rig, chunk_line},
        tiny::{self, Like, Shape},
    },
};

/// Gives no more than so many bytes at once for numbers of 32 bits; what else asks for much (the queue's engine does) gets
/// it.
struct Miserly;

#[global_allocator]
static ALLOCATOR: Miserly = Miserly;

static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);
static REFUSED: AtomicUsize = AtomicUsize::new(0);

fn gives(layout: Layout, bytes: usize) -> bool {
    let gives = layout.align() != align_of::<f32>() || bytes <= MOST.load(Relaxed);
    REFUSED.fetch_add(usize::from(!gives), Relaxed);
    gives
}

// SAFETY: the system's allocator, or null, which is the answer to a request that is refused.
unsafe impl GlobalAlloc for Miserly {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        if gives(layout, layout.size()) { unsafe { System.alloc(layout) } } else { std::ptr::null_mut() }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(block, layout) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's.
        if gives(layout, bytes) {
            unsafe { System.realloc(block, layout, bytes) }
        } else {
            std::ptr::null_mut()
        }
    }
}

/// 768 numbers a token in the largest buffer.
const WIDE: Like = Like { shape: Shape { width: 256, inner: 512, layers: 1, heads: 4 }, ..Like::XLM_ROBERTA };
const TOKEN_BYTES: usize = 3 * 256 * size_of::<f32>();

/// A text of 900 words and eight of 30: not to be dealt to two threads evenly, so that the long one is computed together
/// with some of the others.
fn lines() -> Vec<String> {
    let text = |words: usize, at: usize| format!("{} {at}", "water ".repeat(words));
    let short = (0..8).map(|at| chunk_line(&format!("short-{at}"), 0, &text(30, at)));
    short.chain([chunk_line("long", 0, &text(900, 9))]).collect()
}

#[test]
fn a_buffer_that_is_refused_halves_the_pass_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let expect = tiny::write_like(&dir.path().join("model"), &WIDE, 7).unwrap();
    let defaults: forebay::config::Config = toml::from_str(forebay::config::DEFAULTS).unwrap();
    let settings = Settings { device: "cpu".into(), threads: 2, ..defaults.model };
    let model: Arc<dyn Embed> =
        Arc::new(LocalModel::open(&dir.path().join("model"), &expect, &settings).unwrap());
    let run = |name: &str, tokens: usize| {
        let folder = dir.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let mut rig = Rig::new(&folder);
        rig.model = Arc::clone(&model);
        let input = rig.input("in.jsonl", &lines());
        REFUSED.store(0, Relaxed);
        MOST.store(tokens * TOKEN_BYTES, Relaxed);
        let report = rig.run(&[input]);
        MOST.store(usize::MAX, Relaxed);
        let remembered = std::fs::read_to_string(rig.data().join("budgets.json")).unwrap_or_default();
        (rig, report, REFUSED.load(Relaxed), remembered)
    };

    // The long one does not fit by itself: it alone is buried. (First, as buffers that were had once are kept.)
    let (rig, report, refused, _) = run("buried", 800);
    assert_eq!((report.chunks, report.dead, report.pending), (8, 1, 0), "{report:?}");
    assert!(refused >= 3, "tried three times: {refused}");
    let letters = rig.folder().queue.letters(&Filter::default(), 9).unwrap();
    assert_eq!(letters[0].class, Class::OutOfMemory);

    // The pass of all nine does not fit; the long one does, and the others together do.
    let (_, report, refused, remembered) = run("halved", 980);
    assert_eq!((report.chunks, report.dead, report.pending), (9, 0, 0), "{report:?}");
    assert!((1..=3).contains(&refused) && report.passes <= 7, "refused {refused} times: {report:?}");
    let tokens: serde_json::Value = serde_json::from_str(&remembered).unwrap();
    let tokens = tokens.as_object().unwrap().values().next().unwrap().as_u64().unwrap();
    assert!((256..4_096).contains(&tokens), "{remembered}");

    // With the memory back everything is written.
    let (_, report, refused, _) = run("plenty", usize::MAX / TOKEN_BYTES);
    assert_eq!((report.chunks, report.passes, refused), (9, 1, 0), "{report:?}");
}

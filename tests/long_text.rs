//! C01: a text of 8,190 tokens costs memory by its length and not by its square, on every path. In a process of its own:
//! what it holds at most is what is measured.
#![cfg(feature = "testkit")]

#[path = "common/ways.rs"]
mod ways;

use forebay::{
    embed::{Settings, heap},
    testkit::tiny::{self, Like, Shape},
};
use ways::{text_of, together, ways};

/// The scores of one head over the whole text are 268 MB, and there are two heads.
const GROWTH_KB: u64 = 96 << 10;

/// Resident memory of this process in kB, by its name in the status: now, or at most.
fn resident_kb(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim_matches(&[':', ' ', '\t', 'k', 'B'][..]).parse().ok()
}

#[test]
fn c01_a_long_text_costs_memory_by_its_length() {
    // 5: forget the peak so far.
    if resident_kb("VmHWM").is_none() || std::fs::write("/proc/self/clear_refs", "5").is_err() {
        println!("skipped: this system does not tell a process its peak memory");
        return;
    }
    heap::keep_flat();
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape { width: 64, inner: 256, layers: 1, heads: 2 };
    let like = Like { name: "tiny-long", shape, max_length: 8_192, ..Like::XLM_ROBERTA };
    let expect = tiny::write_like(folder.path(), &like, 11).unwrap();
    let defaults: forebay::config::Config = toml::from_str(forebay::config::DEFAULTS).unwrap();
    let outputs = ["dense", "sparse", "multi"].map(str::to_owned).to_vec();
    let settings = Settings { device: "cpu".into(), threads: 2, outputs, ..defaults.model };
    let mut random = fastrand::Rng::with_seed(1);
    let (short, long) = (text_of([0, 2], 20, &mut random), text_of([0, 2], 8_190, &mut random));
    for way in ways() {
        let model = way.open(folder.path(), &expect, &settings);
        together(&model, &[&short]);
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = resident_kb("VmRSS").unwrap();
        together(&model, &[&long]);
        let grown = resident_kb("VmHWM").unwrap().saturating_sub(before);
        println!("{way:?}: {} MB", grown >> 10);
        assert!(grown > 0 && grown < GROWTH_KB, "{way:?}: grew by {grown} kB");
    }
}

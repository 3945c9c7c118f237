//! C04 and C05: as many threads as were set and not one more, whatever the machine has; memory that does not grow with
//! the number of batches, with 2 threads or with 64. In a process of its own: all threads in it are counted.
#![cfg(feature = "testkit")]

#[path = "common/ways.rs"]
mod ways;

use std::collections::BTreeMap;

use forebay::{
    embed::{Embed, Settings, Tokens, heap, local::LocalModel, threads::threads_of},
    testkit::tiny::{self, Like},
};
use ways::{Way, ways};

fn open(way: Way, threads: usize) -> (tempfile::TempDir, LocalModel) {
    let folder = tempfile::tempdir().unwrap();
    let expect = tiny::write_like(folder.path(), &Like::XLM_ROBERTA, 7).unwrap();
    let defaults: forebay::config::Config = toml::from_str(forebay::config::DEFAULTS).unwrap();
    let settings = Settings { device: "cpu".into(), threads, ..defaults.model };
    let model = way.open(folder.path(), &expect, &settings);
    (folder, model)
}

/// Threads of this process by name; `None` without /proc.
fn threads() -> Option<BTreeMap<String, usize>> {
    let mut names = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        // A thread may end while it is looked at.
        let Ok(name) = std::fs::read_to_string(task.ok()?.path().join("comm")) else { continue };
        *names.entry(name.trim().to_owned()).or_default() += 1;
    }
    Some(names)
}

/// Resident bytes; `None` without /proc.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10)
}

/// One batch of texts of many lengths, another one for each `round`.
fn batch(model: &LocalModel, round: usize) {
    let text = |i: usize| "the water and the gate ".repeat(1 + (i * 37 + round * 101) % 50);
    let tokens: Vec<Tokens> = (0..16).map(|i| model.tokenize(&text(i)).unwrap()).collect();
    let lengths: Vec<usize> = tokens.iter().map(|tokens| tokens.ids.len()).collect();
    for pass in model.plan(&lengths) {
        let texts: Vec<&Tokens> = pass.iter().map(|&index| &tokens[index]).collect();
        assert!(model.embed(&texts).unwrap().iter().all(Result::is_ok));
    }
}

#[test]
fn c04_c05_threads_and_memory_are_what_was_set() {
    let (Some(before), Some(_)) = (threads(), resident()) else {
        println!("skipped: there is no /proc here");
        return;
    };
    // As in the program: what is measured is what a user gets.
    heap::keep_flat();
    // Many threads where there is a difference: with candle, and with our kernels, which share what runs them.
    let many = ways().into_iter().take(2).map(|way| (way, 64));
    for (way, threads_set) in ways().into_iter().flat_map(|way| [(way, 1), (way, 2)]).chain(many) {
        let (_folder, model) = open(way, threads_set);
        for round in 0..3 {
            batch(&model, round);
        }
        let mut now = threads().unwrap();
        now.retain(|name, _| !before.contains_key(name));
        // A lane each, and one pool that works on a single long text.
        let (ours, others): (Vec<_>, Vec<_>) = now.iter().partition(|(name, _)| name.starts_with("embed-"));
        let count: usize = ours.iter().map(|(_, count)| **count).sum();
        assert!(
            (threads_set..=2 * threads_set).contains(&count),
            "{way:?}, {threads_set} threads were set: {now:?}"
        );
        assert!(others.is_empty(), "{way:?}: threads that nobody set: {now:?}");

        for round in 0..16 {
            batch(&model, round);
        }
        let early = resident().unwrap();
        for round in 16..64 {
            batch(&model, round);
        }
        let late = resident().unwrap();
        let growth_mb = late.saturating_sub(early) >> 20;
        println!("{way:?}, {threads_set} threads: {} MB, then {} MB", early >> 20, late >> 20);
        assert!(growth_mb < 32, "{way:?}, {threads_set} threads: grew by {growth_mb} MB in 48 batches");
    }
}

#[test]
fn c04_the_number_is_never_more_than_the_process_may_use() {
    let (number, source) = threads_of(0);
    assert_eq!(number, std::thread::available_parallelism().unwrap().get(), "{source}");
    assert_eq!(threads_of(3), (3, "model.threads"));
}

#[test]
fn c04_affinity_is_counted_and_named() {
    let me = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new("taskset");
    child.args(["-c", "0"]).arg(me).args(["--ignored", "--exact", "--nocapture", "child_says_its_threads"]);
    let Ok(output) = child.output() else {
        println!("skipped: there is no taskset here");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        println!("skipped: taskset may not choose processor 0");
        return;
    }
    let single =
        std::fs::read_to_string("/sys/devices/system/cpu/online").is_ok_and(|list| list.trim() == "0");
    let source = if single { "processors of the machine" } else { "CPU affinity" };
    assert!(said.contains(&format!("threads: 1 ({source})")), "{said}");
}

#[test]
#[ignore = "run by c04_affinity_is_counted_and_named, on one processor"]
fn child_says_its_threads() {
    let (threads, source) = threads_of(0);
    println!("threads: {threads} ({source})");
}

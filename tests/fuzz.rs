//! Damaged bytes into the JSONL reader and the config loader: no panic, every byte accounted for, memory within the
//! limit. A few hundred executions by default; `FOREBAY_FUZZ_S=600 cargo test --release --features testkit --test fuzz
//! -- --nocapture` goes on for that long and says how many there were.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use forebay::{
    config::{Config, Flag, Request},
    source::{self, Item, Settings},
};

/// Longest line the reader may hold.
const LINE_BYTES: u64 = 64 * 1024;
/// Executions when no time is given.
const EXECUTIONS: u64 = 500;
/// What the process may grow by while it reads damaged input: the inputs are smaller than this by far.
const GROWTH_KB: u64 = 192 * 1024;

/// Calls `one` as often as asked for, with a generator of its own each time; a failure names its seed.
fn fuzz(name: &str, mut one: impl FnMut(&mut fastrand::Rng)) {
    let seconds = std::env::var("FOREBAY_FUZZ_S").ok().and_then(|text| text.parse().ok());
    let first = std::env::var("FOREBAY_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1_u64);
    let (start, before, mut executions) = (Instant::now(), peak_kb(), 0);
    let more = |executions: u64| match seconds {
        Some(seconds) => start.elapsed() < Duration::from_secs(seconds),
        None => executions < EXECUTIONS,
    };
    while more(executions) {
        let seed = first.wrapping_add(executions);
        let run = std::panic::AssertUnwindSafe(|| one(&mut fastrand::Rng::with_seed(seed)));
        assert!(std::panic::catch_unwind(run).is_ok(), "{name}: FOREBAY_FUZZ_SEED={seed} fails");
        executions += 1;
    }
    let grown = peak_kb().saturating_sub(before);
    println!("{name}: {executions} executions in {:?}, peak memory grew by {grown} kB", start.elapsed());
    assert!(grown < GROWTH_KB, "{name}: peak memory grew by {grown} kB");
}

/// Peak resident memory of this process.
fn peak_kb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
}

/// Overwrites, inserts, repeats, cuts and splices, a few times.
fn damage(bytes: &mut Vec<u8>, words: &[&[u8]], random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..8) {
        let at = random.usize(0..=bytes.len());
        match random.u8(0..7) {
            0 if at < bytes.len() => bytes[at] = random.u8(..),
            1 => bytes.insert(at, random.u8(..)),
            2 => bytes.truncate(at),
            3 => {
                let end = random.usize(at..=bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = random.usize(at..=bytes.len().min(at + 64));
                let part = bytes[at..end].repeat(random.usize(1..2_000));
                bytes.splice(at..at, part);
            }
            _ => {
                let word = random.choice(words).copied().unwrap_or_default();
                bytes.splice(at..at, word.repeat(random.usize(1..4)));
            }
        }
        bytes.truncate(1 << 20);
    }
}

fn seeds(folder: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let small = |path: &Path| path.is_file() && fs::metadata(path).is_ok_and(|meta| meta.len() < 40_000);
    paths.iter().filter(|path| small(path)).map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn whatever_a_file_holds_the_reader_accounts_for_it() {
    let settings: Settings = {
        let defaults: toml::Table = include_str!("../config.toml").parse().unwrap();
        defaults["source"].clone().try_into().unwrap()
    };
    let seeds = seeds("tests/cases");
    let words: [&[u8]; 14] = [
        b"\n",
        b"\r\n",
        b"{",
        b"}",
        b"\"",
        b"\\ud83d",
        b"\\u0000",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\x1f\x8b\x08",
        b"\x28\xb5\x2f\xfd",
        b"{\"id\":\"a\",\"text\":\"b\"}\n",
        b"[[[[[[[[",
        b"1e999",
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.jsonl");
    fuzz("jsonl", |random| {
        let mut bytes = random.choice(&seeds).unwrap().clone();
        damage(&mut bytes, &words, random);
        fs::write(&path, &bytes).unwrap();
        let Ok(mut source) = source::open(&path, &settings, LINE_BYTES) else { return };
        let mut last = None;
        while let Ok(Some(item)) = source.next() {
            let at = match &item {
                Item::Record(record) => {
                    assert!(!record.text.trim().is_empty() && !record.doc_id.is_empty());
                    record.at
                }
                Item::Unreadable(bad) => {
                    assert!(bad.raw.len() as u64 <= LINE_BYTES.max(1_024) && !bad.message.is_empty());
                    bad.at
                }
            };
            assert!(last < Some((at.line, at.offset)), "places move forward");
            last = Some((at.line, at.offset));
        }
    });
}

#[test]
fn whatever_the_settings_say_the_loader_answers() {
    let shipped = include_bytes!("../config.toml");
    let words: [&[u8]; 14] = [
        b"[",
        b"]",
        b"[[",
        b"=",
        b"\"",
        b"\"\"\"",
        b"\n",
        b"#",
        b"retry.max_attempts = 5\n",
        b"[model]\n",
        b"1_000",
        b"nan",
        b"\xff",
        b"1979-05-27",
    ];
    let dir = tempfile::tempdir().unwrap();
    fuzz("config", |random| {
        let start = random.usize(0..shipped.len());
        let mut bytes = shipped[start..random.usize(start..=shipped.len())].to_vec();
        damage(&mut bytes, &words, random);
        fs::write(dir.path().join("forebay.toml"), &bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let part = |random: &mut fastrand::Rng| -> String {
            text.chars().skip(random.usize(0..=text.len())).take(random.usize(0..40)).collect()
        };
        let flag = Flag { key: part(random), value: part(random), typed: "--set".into() };
        let env = (format!("FOREBAY__{}", part(random)).into(), part(random).into());
        let request = Request {
            dir: dir.path().to_owned(),
            env: if random.bool() { vec![env] } else { Vec::new() },
            flags: if random.bool() { vec![flag] } else { Vec::new() },
            ..Request::default()
        };
        match Config::load(&request) {
            Ok(loaded) => {
                assert!(loaded.config.retry.max_attempts >= 1 && loaded.config.queue.window_chunks >= 1);
            }
            Err(error) => assert!(!error.problems.is_empty() && !error.to_string().is_empty()),
        }
    });
}

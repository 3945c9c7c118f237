//! The whole line against the bare encoder: the same texts through the same loaded model, once from tokens to vectors and
//! nothing else, once from a JSONL file through queue, embedder and SQLite sink, everything durable. In turn, in one
//! process, so that what disturbs the machine disturbs both.
//!
//! `cargo bench --features testkit --bench line`, and after `--`: `minilm` or `bge-m3` (else both), `i16`, `rounds=5`,
//! `seconds=12` (of a bare round, about).

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use forebay::{
    embed::{Embed, Settings, Tokens, expect::Family, expect::Pooling, heap, local::LocalModel},
    pipeline::report::Report,
    testkit::{
        rig::{Rig, chunk_line},
        tiny::{self, Like, Shape},
    },
};

/// What is measured, and what the line is to reach of the bare encoder.
const MODELS: [(&str, Like); 2] = [
    (
        "minilm",
        Like {
            shape: Shape { width: 384, inner: 1_536, layers: 6, heads: 12 },
            family: Family::Bert,
            pooling: Pooling::Mean,
            unigram: false,
            max_length: 512,
            ..Like::BERT
        },
    ),
    ("bge-m3", Like { shape: tiny::BGE_M3_OF_6, max_length: 512, ..Like::XLM_ROBERTA }),
];
const FLOOR: f64 = 0.97;
const GOAL: f64 = 0.99;

/// Tokens that the speed is looked at with before the texts are made.
const TRIAL: usize = 4_000;

struct Asked {
    models: Vec<(&'static str, Like)>,
    compute: &'static str,
    rounds: usize,
    seconds: f64,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !words.iter().any(|word| word == "--bench") {
        println!("line: run by cargo bench");
        return;
    }
    heap::keep_flat();
    let asked = asked(&words);
    for (name, like) in &asked.models {
        measure(name, like, &asked);
    }
}

fn asked(words: &[String]) -> Asked {
    let said = |name: &str| words.iter().any(|word| word == name);
    let number = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.parse::<f64>().ok());
    let named = |(name, _): &(&str, Like)| said(name) || MODELS.iter().all(|(name, _)| !said(name));
    Asked {
        models: MODELS.into_iter().filter(named).collect(),
        compute: if said("i16") { "i16" } else { "f32" },
        rounds: number("rounds=").map_or(5, whole_of).max(1),
        seconds: number("seconds=").unwrap_or(12.0),
    }
}

/// Seconds of the clock and of the processor.
#[derive(Clone, Copy)]
struct Took {
    wall: f64,
    cpu: f64,
}

fn measure(name: &str, like: &Like, asked: &Asked) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a real disk");
    let model = open(&dir.path().join("model"), like, asked.compute);
    let trial = texts(TRIAL);
    let tokens = tokens_of(model.as_ref(), &trial);
    bare(model.as_ref(), &tokens);
    let speed = count(&tokens) as f64 / bare(model.as_ref(), &tokens).wall;
    let texts = texts(whole_of(speed * asked.seconds).max(TRIAL));
    let tokens = tokens_of(model.as_ref(), &texts);
    let all = count(&tokens);
    println!("{name}, {}: {} texts, {all} tokens, load {}", asked.compute, texts.len(), load());
    let (mut ratios, mut of_cpu) = (Vec::new(), Vec::new());
    for round in 0..asked.rounds {
        let line = |at: &str| whole(&dir.path().join(at), &model, &texts);
        let (bare, (line, report)) = if round % 2 == 0 {
            let bare = bare(model.as_ref(), &tokens);
            (bare, line(&format!("{round}")))
        } else {
            let line = line(&format!("{round}"));
            (bare(model.as_ref(), &tokens), line)
        };
        assert_eq!((report.tokens, report.dead), (all as u64, 0), "the line embedded other texts");
        ratios.push(report.tokens_per_s * bare.wall / all as f64);
        of_cpu.push(bare.cpu / line.cpu);
        println!(
            "  bare {:.0} tokens/s, line {:.0} tokens/s ({} passes, idle {:.2} %): {:.4}; by CPU time {:.4}",
            all as f64 / bare.wall,
            report.tokens_per_s,
            report.passes,
            report.idle_pct,
            ratios[round],
            of_cpu[round],
        );
    }
    let ratio = median(&mut ratios);
    let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
    let verdict = match ratio {
        ratio if ratio >= GOAL => "the goal is reached",
        ratio if ratio >= FLOOR => "over the floor",
        _ => "BELOW THE FLOOR",
    };
    println!(
        "{name}, {}: line / bare = {ratio:.4} [{least:.4}..{most:.4}], by CPU time {:.4}; floor {FLOOR}, goal {GOAL}: \
         {verdict}",
        asked.compute,
        median(&mut of_cpu)
    );
}

fn open(folder: &Path, like: &Like, compute: &str) -> Arc<dyn Embed> {
    let expect = tiny::write_like(folder, like, 1).expect("the model is written");
    let defaults: forebay::config::Config =
        toml::from_str(forebay::config::DEFAULTS).expect("they are tested");
    let settings = Settings { device: "cpu".into(), compute: compute.into(), ..defaults.model };
    Arc::new(LocalModel::open(folder, &expect, &settings).expect("it opens"))
}

/// Texts of lengths as a corpus has them (log-normal, median 133, 8 to 512 tokens); `tokens` in all, about.
fn texts(tokens: usize) -> Vec<String> {
    const WORDS: [&str; 8] = ["water", "gate", "turbine", "river", "flow", "basin", "light", "stone"];
    let (mut random, mut texts, mut sum) = (fastrand::Rng::with_seed(7), Vec::new(), 0);
    while sum < tokens {
        let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let words = whole_of((133.0_f64.ln() + 0.8 * normal).exp()).clamp(8, 510) - 2;
        let text: Vec<&str> = (0..words).map(|_| WORDS[random.usize(0..WORDS.len())]).collect();
        texts.push(text.join(" "));
        sum += words + 2;
    }
    texts
}

fn tokens_of(model: &dyn Embed, texts: &[String]) -> Vec<Tokens> {
    let tokens = texts.iter().map(|text| model.tokenize(text).expect("words can be tokenised"));
    tokens.inspect(|tokens| assert!(!tokens.truncated, "every word is a token")).collect()
}

fn count(tokens: &[Tokens]) -> usize {
    tokens.iter().map(|tokens| tokens.ids.len()).sum()
}

/// From tokens to vectors, all texts planned at once.
fn bare(model: &dyn Embed, tokens: &[Tokens]) -> Took {
    let lengths: Vec<usize> = tokens.iter().map(|tokens| tokens.ids.len()).collect();
    let since = Since::now();
    for pass in model.plan(&lengths) {
        let batch: Vec<&Tokens> = pass.iter().map(|at| &tokens[*at]).collect();
        let vectors = model.embed(&batch).expect("the pass succeeds");
        assert!(vectors.iter().all(Result::is_ok), "every text has its vector");
    }
    since.took()
}

/// From a JSONL file to rows, in a data folder of its own, with the settings that are shipped.
fn whole(dir: &Path, model: &Arc<dyn Embed>, texts: &[String]) -> (Took, Report) {
    std::fs::create_dir_all(dir).expect("a folder");
    let mut rig = Rig::new(dir);
    let shipped: forebay::config::Config =
        toml::from_str(forebay::config::DEFAULTS).expect("they are tested");
    (rig.settings.pipeline, rig.settings.source) = (shipped.pipeline, shipped.source);
    (rig.settings.retry, rig.settings.breaker) = (shipped.retry, shipped.breaker);
    rig.settings.window_chunks = shipped.queue.window_chunks;
    rig.model = Arc::clone(model);
    let lines: Vec<String> =
        texts.iter().enumerate().map(|(at, text)| chunk_line(&format!("doc-{at}"), 0, text)).collect();
    let input = rig.input("in.jsonl", &lines);
    let since = Since::now();
    let report = rig.run(&[input]);
    let took = since.took();
    std::fs::remove_dir_all(dir).expect("its own folder");
    (took, report)
}

struct Since {
    wall: Instant,
    cpu: Duration,
}

impl Since {
    fn now() -> Self {
        Self { wall: Instant::now(), cpu: cpu() }
    }

    fn took(&self) -> Took {
        let (wall, cpu) = (self.wall.elapsed(), cpu().saturating_sub(self.cpu));
        Took { wall: wall.as_secs_f64(), cpu: cpu.as_secs_f64() }
    }
}

/// Time of the processor that this process had, from /proc; ticks are hundredths of a second on Linux.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().next().unwrap_or("unknown").to_owned()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count, of no great size")]
fn whole_of(number: f64) -> usize {
    number as usize
}

/// Sorts.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

//! Our side of the comparison, a process like `engine.py`: loads a model folder, then does what each line of stdin asks.
//! `peer serve FOLDER (--ids|--texts) FILE [key=value …]` · `peer peak THREADS`. See README.md.

use std::{
    error::Error,
    io::{BufRead as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use forebay::{
    chunk::Digest,
    embed::{
        Embed, Settings, Tokens,
        cpu::peak,
        expect::{Expect, Family, Pooling},
        heap,
        local::LocalModel,
    },
};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [] => println!("peer: run by benches/peers/run"),
        ["peak", threads] => peaks(threads.parse()?),
        ["serve", model, "--ids", ids, ref set @ ..] => {
            serve(&open(Path::new(model), set)?, &Texts::of_ids(ids)?)?;
        }
        ["serve", model, "--texts", texts, ref set @ ..] => {
            let model = open(Path::new(model), set)?;
            let texts = Texts::of_lines(&model, texts)?;
            serve(&model, &texts)?;
        }
        _ => {
            return Err(
                "usage: peer serve MODEL (--ids|--texts) FILE [key=value …] | peer peak THREADS".into()
            );
        }
    }
    Ok(())
}

/// One line a way: operations a second.
fn peaks(threads: usize) {
    for way in peak::ways() {
        let ops = way.measure(threads, 5, Duration::from_millis(100));
        println!("{}", json!({"way": way.name, "threads": threads, "gops": ops / 1e9}));
    }
}

fn open(folder: &Path, set: &[&str]) -> Outcome<LocalModel> {
    heap::keep_flat();
    let defaults: toml::Table = toml::from_str(include_str!("../../config.toml"))?;
    let mut model = defaults["model"].as_table().ok_or("config.toml has no [model]")?.clone();
    for pair in set {
        let (key, value) = pair.split_once('=').ok_or("expected key=value")?;
        let value = value.parse::<i64>().map_or_else(|_| toml::Value::from(value), toml::Value::from);
        model.insert(key.into(), value);
    }
    let settings: Settings = model.try_into()?;
    Ok(LocalModel::open(folder, &expect(folder)?, &settings)?)
}

/// What the folder's own files say. Digests matter to the identity alone, which is of no matter here.
fn expect(folder: &Path) -> Outcome<Expect> {
    let read =
        |name: &str| -> Outcome<Value> { Ok(serde_json::from_slice(&std::fs::read(folder.join(name))?)?) };
    let (config, pooling) = (read("config.json")?, read("1_Pooling/config.json")?);
    let size = |file: &Value, key: &str| {
        file[key].as_u64().and_then(|n| usize::try_from(n).ok()).ok_or(format!("no {key}"))
    };
    Ok(Expect {
        name: "peer".into(),
        revision: "generated".into(),
        family: serde_json::from_value::<Family>(config["model_type"].clone())?,
        pooling: if pooling["pooling_mode_cls_token"] == true { Pooling::Cls } else { Pooling::Mean },
        normalize: true,
        max_length: size(&read("sentence_bert_config.json")?, "max_seq_length")?,
        dim: size(&config, "hidden_size")?,
        document_prefix: String::new(),
        query_prefix: String::new(),
        weights_sha256: Digest::of(b""),
        tokenizer_sha256: Digest::of(b""),
        sparse_head: None,
        multi_head: None,
    })
}

struct Texts {
    every: Vec<Tokens>,
    short: Tokens,
    long: Tokens,
}

impl Texts {
    fn of_ids(file: &str) -> Outcome<Self> {
        let mut given: Value = serde_json::from_slice(&std::fs::read(file)?)?;
        let text = |ids: Value| {
            Ok::<_, Box<dyn Error>>(Tokens { ids: serde_json::from_value(ids)?, truncated: false })
        };
        let every: Vec<Value> = serde_json::from_value(given["texts"].take())?;
        Ok(Self {
            every: every.into_iter().map(text).collect::<Result<_, _>>()?,
            short: text(given["short"].take())?,
            long: text(given["long"].take())?,
        })
    }

    /// The texts of a JSONL file, as the line would embed them.
    fn of_lines(model: &LocalModel, file: &str) -> Outcome<Self> {
        let lines = std::fs::read_to_string(file)?;
        let text = |line: &str| -> Outcome<Tokens> {
            let record: Value = serde_json::from_str(line)?;
            model
                .tokenize(record["text"].as_str().ok_or("no text")?)
                .map_err(|fault| fault.to_string().into())
        };
        let every: Vec<Tokens> = lines.lines().map(text).collect::<Result<_, _>>()?;
        let by_length = |tokens: &&Tokens| tokens.ids.len();
        let (short, long) = (every.iter().min_by_key(by_length), every.iter().max_by_key(by_length));
        let (short, long) = (short.ok_or("no texts")?.clone(), long.ok_or("no texts")?.clone());
        Ok(Self { every, short, long })
    }
}

fn serve(model: &LocalModel, texts: &Texts) -> Outcome<()> {
    let every: Vec<&Tokens> = texts.every.iter().collect();
    let tokens = every.iter().map(|text| text.ids.len()).sum::<usize>();
    let timed = |texts: &[&Tokens]| -> Outcome<(f64, Vec<Vec<f32>>)> {
        let start = Instant::now();
        let vectors = embed(model, texts)?;
        Ok((start.elapsed().as_secs_f64(), vectors))
    };
    answer(&json!({"ready": model.identity().label, "texts": every.len(), "tokens": tokens}))?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        answer(&match words[..] {
            ["warm"] => json!({"s": timed(&every)?.0}),
            ["all"] => json!({"s": timed(&every)?.0}),
            ["long"] => json!({"s": timed(&[&texts.long])?.0}),
            ["one", times] => {
                let times: Result<Vec<f64>, _> =
                    (0..times.parse()?).map(|_| Ok::<_, Box<dyn Error>>(timed(&[&texts.short])?.0)).collect();
                json!({"s": times?})
            }
            ["vectors", path] => {
                let vectors = timed(&every)?.1;
                let bytes: Vec<u8> = vectors.concat().into_iter().flat_map(f32::to_le_bytes).collect();
                std::fs::write(PathBuf::from(path), bytes)?;
                json!({"dim": model.dim()})
            }
            _ => json!({"error": format!("unknown: {line}")}),
        })?;
    }
    Ok(())
}

/// All texts, in passes as the line would make them.
fn embed(model: &LocalModel, texts: &[&Tokens]) -> Outcome<Vec<Vec<f32>>> {
    let lengths: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
    let mut vectors = vec![Vec::new(); texts.len()];
    for pass in model.plan(&lengths) {
        let batch: Vec<&Tokens> = pass.iter().map(|at| texts[*at]).collect();
        for (at, embedding) in pass.into_iter().zip(model.embed(&batch)?) {
            vectors[at] = embedding.map_err(|fault| fault.to_string())?.dense;
        }
    }
    Ok(vectors)
}

fn answer(value: &Value) -> Outcome<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

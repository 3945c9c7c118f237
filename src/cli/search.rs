//! `search`: the chunks of the sink that are most like a query, exact.

use clap::{Args, ValueEnum};

use super::{Exit, Shared, setup};
use crate::{
    config::Config,
    embed::Embed,
    identity,
    sink::{Hit, Query, Sink},
};

/// Characters of a text that are shown to people.
const SHOWN: usize = 160;

/// The outputs, in the order of weights.
const OUTPUTS: [&str; 3] = ["dense", "sparse", "multi"];

/// Weights of `--mode hybrid` that are not given: those of the model's own examples.
const HYBRID: [f32; 3] = [0.4, 0.2, 0.4];

/// Which outputs are compared, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// Cosine of the dense vectors
    Dense,
    /// Sum of products of the weights of shared tokens: by words
    Sparse,
    /// For each token of the query its nearest token of the chunk, averaged
    Multi,
    /// Weighted sum of the three: see --weights
    Hybrid,
}

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What to look for
    query: String,
    /// How many answers
    #[arg(long, default_value_t = 10)]
    limit: usize,
    /// What is compared; all but dense need a model and a store with these outputs (`model.outputs`)
    #[arg(long, value_enum, default_value_t = Mode::Dense)]
    mode: Mode,
    /// Weights of --mode hybrid, 0.4,0.2,0.4 when not given; an output of weight 0 is not needed
    #[arg(long, value_name = "DENSE,SPARSE,MULTI", value_parser = weights)]
    weights: Option<[f32; 3]>,
}

pub(super) fn search(shared: &Shared, arguments: &Arguments) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    setup::exists(&config.data.dir)?;
    let weights = weights_of(arguments.mode, arguments.weights)?;
    if weights != weights_of(Mode::Dense, None)? {
        // Told before a model is loaded.
        let held = setup::sink(&config)?.held().map_err(|error| error.to_string())?;
        are_there(weights, &config.model.outputs, held.as_deref())?;
    }
    let hits = hits(&config, &arguments.query, weights, arguments.limit)?;
    if hits.is_empty() && !shared.json {
        let held = setup::sink(&config)?.held().ok().flatten();
        eprintln!("{}", nothing(weights, held.as_deref()));
    }
    print(&hits, shared.json);
    Ok(Exit::Ok)
}

/// The weights of a mode.
pub(super) fn weights_of(mode: Mode, given: Option<[f32; 3]>) -> Result<[f32; 3], String> {
    match (mode, given) {
        (Mode::Hybrid, given) => Ok(given.unwrap_or(HYBRID)),
        (_, Some(_)) => Err("--weights belongs to --mode hybrid; add that, or leave the weights out".into()),
        (Mode::Dense, None) => Ok([1.0, 0.0, 0.0]),
        (Mode::Sparse, None) => Ok([0.0, 1.0, 0.0]),
        (Mode::Multi, None) => Ok([0.0, 0.0, 1.0]),
    }
}

/// Reads `--weights`.
fn weights(text: &str) -> Result<[f32; 3], String> {
    let numbers: Vec<f32> = text.split(',').map_while(|number| number.trim().parse().ok()).collect();
    let weights: Result<[f32; 3], _> = numbers.try_into();
    let good = weights.ok().filter(|_| text.split(',').count() == 3);
    good.filter(|weights| weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0))
        .filter(|weights| weights.iter().sum::<f32>() > 0.0)
        .ok_or_else(|| {
            "expected three numbers of 0 or more, one of them more, for example 0.4,0.2,0.4".into()
        })
}

/// Refuses outputs that the settings do not ask for, or that the store (`held`: the label of its identity) has not.
fn are_there(weights: [f32; 3], asked: &[String], held: Option<&str>) -> Result<(), String> {
    let needed = |at: usize| weights[at] > 0.0;
    let wanting = |has: &dyn Fn(&str) -> bool| {
        let missing = OUTPUTS.into_iter().enumerate().filter(|(at, name)| needed(*at) && !has(name));
        missing.map(|(_, name)| name).collect::<Vec<_>>().join(" and ")
    };
    let held_outputs = held.map(identity::outputs);
    if let (Some(label), Some(outputs)) = (held, &held_outputs) {
        let missing = wanting(&|name| outputs.contains(&name));
        if !missing.is_empty() {
            let all = OUTPUTS
                .into_iter()
                .enumerate()
                .filter(|(at, name)| *at == 0 || needed(*at) || outputs.contains(name));
            let all = all.map(|(_, name)| name).collect::<Vec<_>>().join(",");
            return Err(format!(
                "the store has no {missing} output ({label}); search it with --mode dense, or embed everything again \
                 with: forebay run --reembed --set model.outputs={all}"
            ));
        }
    }
    let missing = wanting(&|name| asked.iter().any(|output| output == name));
    if missing.is_empty() {
        return Ok(());
    }
    let all = held_outputs.map_or_else(|| OUTPUTS.join(","), |outputs| outputs.join(","));
    Err(format!("model.outputs = {asked:?} has no {missing}: type --set model.outputs={all}"))
}

/// Why there may be no answer.
fn nothing(weights: [f32; 3], held: Option<&str>) -> String {
    let words = if weights[0] + weights[2] == 0.0 { " that shares a token with the query" } else { "" };
    let held = held.map(|label| format!("; it was last written with {label}")).unwrap_or_default();
    format!("nothing found: the sink holds no vector of this identity{words}{held}")
}

pub(super) fn hits(
    config: &Config,
    query: &str,
    weights: [f32; 3],
    limit: usize,
) -> Result<Vec<Hit>, String> {
    if query.trim().is_empty() {
        return Err("the query is empty; type some words".into());
    }
    let (model, sink) = (setup::model(config)?, setup::sink(config)?);
    find(model.as_ref(), sink.as_ref(), query, weights, limit)
}

fn find(
    model: &dyn Embed,
    sink: &dyn Sink,
    query: &str,
    [dense, sparse, multi]: [f32; 3],
    limit: usize,
) -> Result<Vec<Hit>, String> {
    let tokens = model.tokenize_query(query).map_err(|fault| fault.to_string())?;
    let embedded = model.embed(&[&tokens]).map_err(|error| error.to_string())?;
    let embedding =
        embedded.into_iter().next().ok_or("the model gave no vector")?.map_err(|fault| fault.to_string())?;
    let query = Query { embedding, dense, sparse, multi };
    sink.search(model.identity(), &query, limit).map_err(|error| error.to_string())
}

pub(super) fn print(hits: &[Hit], json: bool) {
    for hit in hits {
        if json {
            println!("{}", serde_json::to_string(hit).unwrap_or_default());
        } else {
            let text: String =
                hit.text.as_deref().unwrap_or("").split_whitespace().collect::<Vec<_>>().join(" ");
            let shown: String = text.chars().take(SHOWN).collect();
            println!("{:.3}  {}#{}  {shown}", hit.score, hit.doc_id, hit.chunk_index);
        }
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;

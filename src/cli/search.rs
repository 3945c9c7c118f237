//! `search`: the nearest chunks of the sink, exact.

use clap::Args;

use super::{Exit, Shared, setup};
use crate::{config::Config, sink::Hit};

/// Characters of a text that are shown to people.
const SHOWN: usize = 160;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What to look for
    query: String,
    /// How many answers
    #[arg(long, default_value_t = 10)]
    limit: usize,
}

pub(super) fn search(shared: &Shared, arguments: &Arguments) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    setup::exists(&config.data.dir)?;
    print(&hits(&config, &arguments.query, arguments.limit)?, shared.json);
    Ok(Exit::Ok)
}

pub(super) fn hits(config: &Config, query: &str, limit: usize) -> Result<Vec<Hit>, String> {
    if query.trim().is_empty() {
        return Err("the query is empty; type some words".into());
    }
    let (model, sink) = (setup::model(config)?, setup::sink(config)?);
    let tokens = model.tokenize_query(query).map_err(|fault| fault.to_string())?;
    let vectors = model.embed(&[&tokens]).map_err(|error| error.to_string())?;
    let vector =
        vectors.into_iter().next().ok_or("the model gave no vector")?.map_err(|fault| fault.to_string())?;
    sink.search(model.identity(), &vector.dense, limit).map_err(|error| error.to_string())
}

pub(super) fn print(hits: &[Hit], json: bool) {
    if hits.is_empty() && !json {
        eprintln!("nothing found: the sink holds no vector of this identity");
    }
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

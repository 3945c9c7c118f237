//! `demo`: the main job on a small bundled corpus with a small real model, then a search and a verify.

use super::{Exit, Shared, model, run, search, setup, verify};

/// Public-domain entries of the Jargon File; see `demo/README.md`.
const CORPUS: &str = include_str!("../../demo/corpus.jsonl");
const QUERY: &str = "a bug that disappears when you try to debug it";

pub(super) fn demo(shared: &Shared) -> Result<Exit, String> {
    let config =
        setup::config(shared, &[("data.dir", "./forebay-demo"), ("model.name", "all-MiniLM-L6-v2")])?.config;
    eprintln!("1. the model: {}", config.model.name);
    if config.model.name != "instant" {
        model::ensure(&config)?;
    }
    let io = |error: std::io::Error| format!("{}: {error}", config.data.dir.display());
    std::fs::create_dir_all(&config.data.dir).map_err(io)?;
    let corpus = config.data.dir.join("corpus.jsonl");
    if std::fs::read_to_string(&corpus).ok().as_deref() != Some(CORPUS) {
        std::fs::write(&corpus, CORPUS).map_err(io)?;
    }
    eprintln!("2. the run: {} records of the Jargon File", CORPUS.lines().count());
    let report = run::embed(&config, &[corpus], false, None)?;
    eprintln!("3. a search: {QUERY:?}");
    let dense = search::weights_of(search::Mode::Dense, None)?;
    let hits = search::hits(&config, QUERY, dense, 3)?;
    if !shared.json {
        search::print(&hits, false);
    }
    eprintln!("4. verify");
    let verified = verify::compare(&config)?;
    if !shared.json {
        verify::print(&verified, false);
    }
    run::print(&report, shared.json);
    let verified = if verified.ok { Exit::Ok } else { Exit::Partial };
    Ok(Exit::from(report.outcome).and(verified))
}

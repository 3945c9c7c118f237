//! `verify` and `rebuild`: do ledger and sink agree, and make them.

use super::{Exit, Shared, setup};
use crate::{
    config::Config,
    ops::{
        forget::{self, Reading},
        rebuild as making, verify as checking,
        verify::Verified,
    },
};

pub(super) fn verify(shared: &Shared) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    setup::exists(&config.data.dir)?;
    let found = compare(&config)?;
    print(&found, shared.json);
    Ok(if found.ok { Exit::Ok } else { Exit::Partial })
}

pub(super) fn compare(config: &Config) -> Result<Verified, String> {
    let (folder, sink) = (setup::folder(config)?, setup::sink(config)?);
    let reading = Reading { source: &config.source, line_bytes: config.limits.line_bytes };
    forget::finish(&folder, sink.as_ref(), reading)?;
    // Without its model the identities of ledger and sink are still compared with each other.
    let model = setup::model(config).map_err(|why| tracing::info!(why, "verifying without the model")).ok();
    checking::verify(&folder, sink.as_ref(), model.as_ref().map(|model| model.identity()))
}

pub(super) fn print(found: &Verified, json: bool) {
    if json {
        println!("{}", serde_json::to_string(found).unwrap_or_default());
        return;
    }
    let Verified { ledger_rows, sink_rows, foreign_rows, sampled, other_identity, .. } = found;
    let word = if found.ok { "sound" } else { "MISMATCH" };
    println!(
        "{word}: {ledger_rows} rows in the ledger, {sink_rows} in the sink ({foreign_rows} of other stores), \
         {sampled} vectors looked at"
    );
    if *other_identity > 0 {
        println!(
            "note: {other_identity} rows are of another identity than model.name; search does not find them"
        );
    }
    found.problems.iter().for_each(|problem| println!("  {problem}"));
}

pub(super) fn rebuild(shared: &Shared) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    setup::exists(&config.data.dir)?;
    let folder = setup::folder_to_rebuild(&config)?;
    let sink = setup::sink(&config)?;
    let rebuilt = making::ledger_from_sink(&folder, sink.as_ref())?;
    if shared.json {
        println!("{}", serde_json::to_string(&rebuilt).unwrap_or_default());
    } else {
        println!(
            "the ledger holds {} rows from the sink, {} were forgotten; {} sources are read again by the next \
             `forebay run`",
            rebuilt.ledger_rows, rebuilt.forgotten, rebuilt.sources
        );
    }
    Ok(Exit::Ok)
}

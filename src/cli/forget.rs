//! `forget`: remove documents everywhere.

use clap::Args;

use super::{Exit, Shared, dlq::who, session::Session, setup};
use crate::ops::{command::Command, forget::Forgotten};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Ids of the documents
    #[arg(required = true, value_name = "DOC")]
    docs: Vec<String>,
}

pub(super) fn forget(shared: &Shared, arguments: Arguments) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    let mut session = Session::new(&config)?;
    let answer = session.ask(&Command::Forget { docs: arguments.docs, who: who() })?;
    let forgotten: Forgotten = serde_json::from_value(answer.clone()).map_err(|error| error.to_string())?;
    let later = session.end_purged()?;
    if shared.json {
        println!("{answer}");
    } else {
        print(&forgotten);
    }
    if later {
        eprintln!(
            "a run holds the data folder: what is being worked on goes when it comes back, and the last bytes leave \
             the queue's files with the next open after the run"
        );
    }
    if !forgotten.scrubbed {
        eprintln!(
            "another program reads the sink or the ledger: removed bytes may stand in its -wal file until it is done; \
             the same again empties it"
        );
    }
    if forgotten.documents > 0 {
        eprintln!("the source still has it: take it out there, too, or the next reading brings it back");
    }
    for doc in &forgotten.unknown {
        eprintln!("nothing is known of document {doc}; ids are compared byte by byte, see `forebay search`");
    }
    Ok(if forgotten.unknown.is_empty() { Exit::Ok } else { Exit::Partial })
}

fn print(forgotten: &Forgotten) {
    println!(
        "forgotten: {} documents ({} rows of the sink, {} of the ledger, {} pending chunks, {} dead letters, {} lines \
         of the spool)",
        forgotten.documents,
        forgotten.sink_rows,
        forgotten.ledger_rows,
        forgotten.pending,
        forgotten.letters,
        forgotten.spool_lines
    );
}

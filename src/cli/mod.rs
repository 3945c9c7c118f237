//! What can be typed. Results go to stdout, everything else to stderr; one verb, one file.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is the room that prints")]

mod check;
mod demo;
mod dlq;
mod exit;
mod log;
mod model;
mod progress;
mod run;
mod search;
mod setup;
mod status;
mod verify;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use exit::Exit;

/// Embed text where the data lives: durable, exactly accounted, on this machine.
#[derive(Debug, Parser)]
#[command(
    version,
    about,
    max_term_width = 110,
    after_help = "Exit codes: 0 all written, 1 finished with dead \
letters or incomplete input, 2 could not run, 3 halted, 130 interrupted and drained."
)]
struct Cli {
    #[command(flatten)]
    shared: Shared,
    #[command(subcommand)]
    verb: Verb,
}

/// Options of every verb.
#[derive(Debug, Clone, Args)]
struct Shared {
    /// Settings file; without it `forebay.toml` is read if it is there
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where everything durable lives (`data.dir`)
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The model (`model.name`); `instant` tries the line without one
    #[arg(long, global = true, value_name = "NAME")]
    model: Option<String>,
    /// Set any key of the configuration, as often as needed
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Print machine-readable results: one object on the last line of stdout
    #[arg(long, global = true)]
    json: bool,
    /// Say more: -v what is retried and buried, -vv everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Embed a small bundled corpus with a small real model, search it, verify it
    #[command(after_help = "Example:\n  forebay demo")]
    Demo,
    /// Register sources and embed all that is pending
    #[command(
        after_help = "Example:\n  forebay run corpus.jsonl.gz --model all-MiniLM-L6-v2\n\nWithout PATH: \
whatever is pending, and sources that were not read to their end."
    )]
    Run(run::Arguments),
    /// Depth, rate, breakers, dead letters, last runs; works beside a run
    #[command(after_help = "Example:\n  forebay status --json")]
    Status,
    /// Compare ledger and sink, both ways, and look at a sample of vectors
    #[command(after_help = "Example:\n  forebay verify && echo sound")]
    Verify,
    /// Make a lost store again: the ledger from the sink, the rest from journal and sources
    #[command(
        after_help = "Example:\n  forebay rebuild\n\nA lost or damaged queue needs no verb: the next run \
makes it anew from the journal and the sources. `rebuild` is for a lost ledger, or one that differs from the sink."
    )]
    Rebuild,
    /// Dead letters: look at them, send them back, give them up; works beside a run
    #[command(subcommand)]
    Dlq(dlq::Verb),
    /// Models: list, pull, verify
    #[command(subcommand)]
    Model(model::Verb),
    /// The nearest chunks to a query
    #[command(after_help = "Example:\n  forebay search \"a bug that hides when you look\" --limit 5")]
    Search(search::Arguments),
    /// Try everything a run needs and tick it off
    #[command(after_help = "Example:\n  forebay check --model bge-m3")]
    Check,
}

/// `forebay search … | head -1` ends quietly when `head` does. Not for runs: a client of the control socket that goes
/// away must not end them.
#[expect(unsafe_code, reason = "std ignores SIGPIPE and has no call to change that")]
fn end_with_reader() {
    // SAFETY: sets a signal's default action, before any thread of ours is started.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Parses, runs, reports.
pub fn main() -> ExitCode {
    let Cli { shared, verb } = Cli::parse();
    log::start(shared.verbose);
    crate::embed::heap::keep_flat();
    if !matches!(verb, Verb::Run(_) | Verb::Demo) {
        end_with_reader();
    }
    let result = match verb {
        Verb::Demo => demo::demo(&shared),
        Verb::Run(arguments) => run::run(&shared, &arguments),
        Verb::Status => status::status(&shared),
        Verb::Verify => verify::verify(&shared),
        Verb::Rebuild => verify::rebuild(&shared),
        Verb::Dlq(verb) => dlq::dlq(&shared, verb),
        Verb::Model(verb) => model::model(&shared, verb),
        Verb::Search(arguments) => search::search(&shared, &arguments),
        Verb::Check => check::check(&shared),
    };
    result
        .unwrap_or_else(|why| {
            eprintln!("error: {why}");
            Exit::CannotRun
        })
        .into()
}

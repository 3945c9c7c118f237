//! What can be typed. Results go to stdout, everything else to stderr; one verb, one file.

// std's own panic when what they print cannot be written: on a disk that is full a log would end the run.
macro_rules! println {
    ($($what:tt)*) => { $crate::cli::tell(format_args!($($what)*)) };
}
macro_rules! eprintln {
    ($($what:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($what)*);
    }};
}

mod check;
mod completions;
mod deep;
mod demo;
mod dlq;
mod embed;
mod enqueue;
mod exit;
mod forget;
mod full;
mod init;
mod letters;
mod log;
mod model;
mod progress;
mod redrive;
mod repair_with;
mod run;
mod search;
mod session;
mod setup;
mod status;
mod stdin;
mod tick;
mod totals;
mod transfer;
mod verify;

use std::{
    fmt,
    io::Write as _,
    path::PathBuf,
    process::ExitCode,
    sync::{Mutex, PoisonError},
};

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
        after_help = "Examples:\n  forebay run corpus.jsonl.gz --model all-MiniLM-L6-v2\n  producer | forebay run -\n\nWithout PATH: \
whatever is pending, and sources that were not read to their end."
    )]
    Run(run::Arguments),
    /// Register sources and fill the queue, without embedding; works beside a run
    #[command(
        after_help = "Examples:\n  forebay enqueue corpus.jsonl\n  zcat old.jsonl.gz | forebay enqueue -\n\nWhen it \
returns, the sources and every chunk that it counted are durable. A full window ends it; the next run reads on. Beside a \
run it returns once the sources are registered, and the run reads them after its own."
    )]
    Enqueue(enqueue::Arguments),
    /// Depth, rate, breakers, dead letters, last runs, or one document; works beside a run
    #[command(after_help = "Examples:\n  forebay status --json\n  forebay status --doc doc-1")]
    Status(status::Arguments),
    /// Compare ledger and sink, both ways, and look at a sample of vectors
    #[command(after_help = "Example:\n  forebay verify && echo sound")]
    Verify,
    /// Make a lost store again: the ledger from the sink, the rest from journal and sources
    #[command(
        after_help = "Example:\n  forebay rebuild\n\nA lost or damaged queue needs no verb: the next run \
makes it anew from the journal and the sources. `rebuild` is for a lost ledger, or one that differs from the sink."
    )]
    Rebuild,
    /// Dead letters: look at them, send them back, give them up, move them; works beside a run
    #[command(subcommand)]
    Dlq(dlq::Verb),
    /// Remove documents everywhere: sink, ledger, queue, dead letters, spool; works beside a run
    #[command(
        after_help = "Example:\n  forebay forget doc-17 doc-18\n\nThe source of a document must be changed, too, or \
the next reading brings it back."
    )]
    Forget(forget::Arguments),
    /// Models: list, pull, verify
    #[command(subcommand)]
    Model(model::Verb),
    /// The nearest chunks to a query
    #[command(
        after_help = "Examples:\n  forebay search \"a bug that hides when you look\" --limit 5\n  forebay search \"error 0x8007\" \
--mode hybrid --weights 0.3,0.5,0.2"
    )]
    Search(search::Arguments),
    /// Vectors of a few texts, one JSON object a line; needs no data folder
    #[command(
        after_help = "Examples:\n  forebay embed \"some words\"\n  forebay embed --query - < questions.txt"
    )]
    Embed(embed::Arguments),
    /// Write a commented settings file
    #[command(
        after_help = "Examples:\n  forebay init --model all-MiniLM-L6-v2\n  forebay init --config other.toml --set \
queue.window_chunks=5000\n\nWhat is given by --model, --data-dir and --set stands in the file; everything else is \
commented out, so that later defaults hold."
    )]
    Init,
    /// A completion script for a shell: bash, zsh, fish
    #[command(
        after_help = "Example:\n  forebay completions bash > ~/.local/share/bash-completion/completions/forebay"
    )]
    Completions(completions::Arguments),
    /// Try everything a run needs and tick it off
    #[command(after_help = "Examples:\n  forebay check --model bge-m3\n  forebay check --deep")]
    Check(check::Arguments),
}

/// Why the first result that was not written was not.
static UNWRITTEN: Mutex<Option<String>> = Mutex::new(None);

/// One line of results. That it could not be written is told at the end, by [`delivered`].
fn tell(line: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(std::io::stdout(), "{line}") {
        UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.to_string());
    }
}

/// A verb whose answer did not arrive has not done what was asked.
fn delivered(exit: Exit) -> Result<Exit, String> {
    match UNWRITTEN.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(why) => Err(format!("standard output: {why}; give it room, and ask again")),
        None => Ok(exit),
    }
}

/// `forebay search … | head -1` ends quietly when `head` does. Not for runs: a client of the control socket that goes
/// away must not end them.
#[expect(unsafe_code, reason = "std ignores SIGPIPE and has no call to change that")]
fn end_with_reader() {
    // SAFETY: sets a signal's default action, before any thread of ours is started.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// For one thread the opposite: what it writes to may go away.
#[expect(unsafe_code, reason = "std has no call for the signals of a thread")]
fn pipes_may_close() {
    // SAFETY: plain system calls on a set of our own; a thread that blocks the signal gets an error from its write.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Parses, runs, reports.
pub fn main() -> ExitCode {
    let Cli { shared, verb } = Cli::parse();
    log::start(shared.verbose);
    crate::embed::heap::keep_flat();
    if !matches!(verb, Verb::Run(_) | Verb::Enqueue(_) | Verb::Demo) {
        end_with_reader();
    }
    let result = match verb {
        Verb::Demo => demo::demo(&shared),
        Verb::Run(arguments) => run::run(&shared, &arguments),
        Verb::Enqueue(arguments) => enqueue::enqueue(&shared, &arguments),
        Verb::Status(arguments) => status::status(&shared, &arguments),
        Verb::Verify => verify::verify(&shared),
        Verb::Rebuild => verify::rebuild(&shared),
        Verb::Dlq(verb) => dlq::dlq(&shared, verb),
        Verb::Forget(arguments) => forget::forget(&shared, arguments),
        Verb::Model(verb) => model::model(&shared, verb),
        Verb::Search(arguments) => search::search(&shared, &arguments),
        Verb::Embed(arguments) => embed::embed(&shared, &arguments),
        Verb::Init => init::init(&shared),
        Verb::Completions(arguments) => Ok(completions::completions(&arguments)),
        Verb::Check(arguments) => check::check(&shared, &arguments),
    };
    result
        .and_then(delivered)
        .unwrap_or_else(|why| {
            eprintln!("error: {why}");
            Exit::CannotRun
        })
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Class;

    #[test]
    fn every_remedy_can_be_typed() {
        let mut typed = 0;
        for class in Class::ALL {
            let words = class.remedy().split('`').skip(1).step_by(2);
            for command in words.filter(|words| words.starts_with("forebay ")) {
                let command = command.replace("ID", "01932e3f-0000-7000-8000-000000000000");
                let parsed = Cli::try_parse_from(command.split_whitespace());
                assert!(parsed.is_ok(), "{class}: {command}: {}", parsed.unwrap_err());
                typed += 1;
            }
        }
        assert!(typed > 20);
    }
}

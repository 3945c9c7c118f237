//! `dlq`: look at dead letters, send them back, give them up, move them, remove them.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Exit, Shared, letters, redrive,
    session::Session,
    setup,
    totals::Totals,
    transfer::{self, Target},
};
use crate::{
    error::{Class, Stage},
    ops::command::Command,
    queue::{dead::State, dlq::Filter},
};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Dead letters, oldest first, without their texts
    #[command(after_help = "Example:\n  forebay dlq list --class json_syntax --limit 20")]
    List {
        #[command(flatten)]
        which: Which,
        /// How many at most
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// Only letters after this one (paging)
        #[arg(long, value_name = "ID")]
        after: Option<Uuid>,
    },
    /// One dead letter with its text and history
    #[command(after_help = "Example:\n  forebay dlq show 0193…")]
    Show {
        /// Its id
        id: Uuid,
    },
    /// Per class: open letters, worst attempts, oldest
    #[command(after_help = "Example:\n  forebay dlq stats")]
    Stats,
    /// Send letters back into the queue, repaired or as they are; the next run embeds them
    #[command(after_help = redrive::EXAMPLES)]
    Redrive(redrive::Arguments),
    /// Give letters up, with a reason
    #[command(
        after_help = "Example:\n  forebay dlq discard --class blank_text --reason \"empty on purpose\""
    )]
    Discard {
        #[command(flatten)]
        which: Which,
        /// All of them
        #[arg(long)]
        all: bool,
        /// Why
        #[arg(long)]
        reason: String,
        /// As many at most, the oldest
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
    /// Remove closed letters for good: entry, text and history, from every file of the data folder
    #[command(
        after_help = "Examples:\n  forebay dlq purge --resolved\n  forebay dlq purge --discarded --older-than 7d\n  \
forebay dlq purge 0193… --force\n\nClosed letters are purged by themselves after dlq.retain_days."
    )]
    Purge {
        #[command(flatten)]
        which: Which,
        /// Those that were resolved
        #[arg(long)]
        resolved: bool,
        /// Those that were discarded
        #[arg(long)]
        discarded: bool,
        /// All that are closed
        #[arg(long)]
        all: bool,
        /// Open ones too: what they hold is lost
        #[arg(long)]
        force: bool,
    },
    /// Whole letters, texts included, as JSON lines or SQL tables
    #[command(
        after_help = "Examples:\n  forebay dlq export letters.jsonl\n  forebay dlq export --closed --sqlite \
letters.db\n\nThe tables are `letters` and `audit`; every field of a letter is a column."
    )]
    Export {
        /// File of JSON lines, one letter a line; without it they go to stdout
        #[arg(conflicts_with = "sqlite")]
        file: Option<PathBuf>,
        /// SQLite file with tables instead; one that is there is replaced
        #[arg(long, value_name = "FILE")]
        sqlite: Option<PathBuf>,
        #[command(flatten)]
        which: Filters,
    },
    /// Take letters in that `dlq export` wrote, here or on another machine
    #[command(
        after_help = "Example:\n  forebay dlq import letters.jsonl\n\nThe same file again changes nothing; a letter \
that has moved on here stays as it is; one whose chunk has another letter here is left out (`standing`)."
    )]
    Import {
        /// File of JSON lines; `-` is stdin
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Which letters are meant.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// These ids
    ids: Vec<Uuid>,
    #[command(flatten)]
    filters: Filters,
}

/// Which letters are meant, ids apart.
#[derive(Debug, Default, Args)]
pub(super) struct Filters {
    /// This class
    #[arg(long)]
    class: Option<Class>,
    /// This stage: source, reader, embedder, writer
    #[arg(long, value_parser = stage)]
    stage: Option<Stage>,
    /// This document
    #[arg(long, value_name = "DOC_ID")]
    doc: Option<String>,
    /// Last failed longer ago than this: 30s, 15m, 12h, 7d
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Option<u64>,
    /// This state: open, redriven, quarantined, resolved, discarded
    #[arg(long, value_parser = state)]
    state: Option<State>,
    /// Resolved and discarded ones too
    #[arg(long, conflicts_with = "state")]
    closed: bool,
}

impl Filters {
    fn filter(self) -> Filter {
        let before = self.older_than.map(|seconds| {
            let now = jiff::Timestamp::now();
            let back = i64::try_from(seconds).unwrap_or(i64::MAX);
            // Nothing failed before time itself: an age that is too great matches nothing.
            let then = jiff::Timestamp::from_second(now.as_second().saturating_sub(back));
            then.unwrap_or(jiff::Timestamp::MIN).to_string()
        });
        Filter {
            class: self.class,
            stage: self.stage,
            doc_id: self.doc,
            before,
            states: self.state.into_iter().collect(),
            closed_too: self.closed,
            ..Filter::default()
        }
    }

    fn is_empty(&self) -> bool {
        self.class.is_none()
            && self.stage.is_none()
            && self.doc.is_none()
            && self.older_than.is_none()
            && self.state.is_none()
    }
}

impl Which {
    pub(super) fn filter(self) -> Filter {
        Filter { ids: self.ids, ..self.filters.filter() }
    }

    fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.filters.is_empty()
    }
}

fn state(text: &str) -> Result<State, String> {
    serde_json::from_value(Value::String(text.to_owned())).map_err(|_| {
        format!("unknown state {text:?}; known: open, redriven, quarantined, resolved, discarded")
    })
}

fn stage(text: &str) -> Result<Stage, String> {
    serde_json::from_value(Value::String(text.to_owned()))
        .map_err(|_| format!("unknown stage {text:?}; known: source, reader, embedder, writer"))
}

fn age(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not an age; expected a number and s, m, h or d, for example 12h");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).ok_or_else(wrong)
}

pub(super) fn who() -> String {
    format!("cli:{}", std::env::var("USER").unwrap_or_else(|_| "unknown".into()))
}

/// A verb that changes letters must be told which.
pub(super) fn chosen(which: &Which, all: bool, also: &str) -> Result<(), String> {
    if which.is_empty() && !all {
        return Err(format!(
            "which letters? Give ids, --class, --stage, --doc, --older-than, --state{also}, or --all"
        ));
    }
    Ok(())
}

pub(super) fn dlq(shared: &Shared, verb: Verb) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    let json = shared.json;
    let session = || Session::new(&config);
    match verb {
        Verb::List { which, limit, after } => {
            letters::list(&mut session()?, Filter { after, ..which.filter() }, limit, json)?;
        }
        Verb::Show { id } => letters::object(&with_remedy(session()?.ask(&Command::DlqShow { id })?), json),
        Verb::Stats => letters::stats(&session()?.ask(&Command::DlqStats)?, json),
        Verb::Redrive(arguments) => return redrive::redrive(&config, arguments, json),
        Verb::Discard { which, all, reason, limit } => {
            chosen(&which, all, "")?;
            let command = Command::DlqDiscard { filter: which.filter(), reason, who: who(), limit: None };
            letters::object(&changed(&mut session()?, command, limit)?, json);
        }
        Verb::Purge { which, resolved, discarded, all, force } => {
            chosen(&which, all || resolved || discarded, ", --resolved, --discarded")?;
            let filter = which.filter();
            let states = purgeable(&filter, resolved, discarded, force)?;
            let command = Command::DlqPurge { filter: Filter { states, ..filter }, who: who() };
            let mut session = session()?;
            let answer = changed(&mut session, command, None)?;
            session.ask(&Command::Scrub)?;
            letters::object(&answer, json);
            if session.end_purged()? {
                eprintln!(
                    "a run holds the data folder: the last bytes leave the queue's files with the next open after it"
                );
            }
        }
        Verb::Export { file, sqlite, which } => {
            let target = match (file, sqlite) {
                (Some(file), _) => Target::Jsonl(file),
                (None, Some(file)) => Target::Sqlite(file),
                (None, None) => Target::Stdout,
            };
            let count = transfer::export(&mut session()?, which.filter(), &target)?;
            if !matches!(target, Target::Stdout) {
                letters::object(&json!({ "exported": count }), json);
            }
        }
        Verb::Import { file } => {
            let (answer, exit) = transfer::import(&mut session()?, &file)?;
            letters::object(&answer, json);
            return Ok(exit);
        }
    }
    Ok(Exit::Ok)
}

/// States that may be purged: closed ones, unless forced.
fn purgeable(filter: &Filter, resolved: bool, discarded: bool, force: bool) -> Result<Vec<State>, String> {
    let closed = [State::Resolved, State::Discarded];
    let mut states = match (resolved, discarded) {
        (true, false) => vec![State::Resolved],
        (false, true) => vec![State::Discarded],
        _ => closed.to_vec(),
    };
    if force && !resolved && !discarded {
        states.extend([State::Open, State::Redriven, State::Quarantined]);
    }
    if !filter.states.is_empty() {
        states.retain(|state| filter.states.contains(state));
    }
    if states.is_empty() {
        return Err("letters that are not closed are purged with --force only: what they hold is lost".into());
    }
    Ok(states)
}

/// Carries out a verb that changes letters, to its last page or to as many as `limit`; gives the answers as one.
fn changed(session: &mut Session<'_>, mut command: Command, limit: Option<u64>) -> Result<Value, String> {
    let by_id = command.filter_mut().is_some_and(|filter| !filter.ids.is_empty());
    let purge = matches!(command, Command::DlqPurge { .. });
    let mut all = Totals::default();
    loop {
        if let (Command::DlqDiscard { limit: page, .. }, Some(limit)) = (&mut command, limit) {
            *page = usize::try_from(limit.saturating_sub(all.touched())).ok();
        }
        let next = all.add(session.ask(&command)?);
        match (command.filter_mut(), next) {
            (Some(filter), Some(next)) if limit.is_none_or(|limit| all.touched() < limit) => {
                filter.after = Some(next);
            }
            _ => break,
        }
    }
    // Ids that mean no letter are a mistake, not a success.
    match by_id && all.touched() == 0 {
        true if purge => {
            Err("no closed dead letter has such an id; open ones are purged with --force only".into())
        }
        true => Err("no open dead letter has such an id; see `forebay dlq list`".into()),
        false => Ok(all.answer),
    }
}

/// A letter, and what a person can do about its class.
fn with_remedy(mut letter: Value) -> Value {
    let class = letter["class"].as_str().and_then(|class| class.parse::<Class>().ok());
    let remedy = match letter["state"].as_str() {
        Some("resolved" | "discarded") => None,
        _ => class.map(Class::remedy),
    };
    if let Some(fields) = letter.as_object_mut() {
        fields.insert("remedy".to_owned(), remedy.into());
    }
    letter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_before_all_time_matches_nothing() {
        for older_than in [10_000_000 * 86_400, u64::MAX] {
            let before =
                Filters { older_than: Some(older_than), ..Filters::default() }.filter().before.unwrap();
            assert!(before.as_str() < "0", "{before}");
        }
    }

    #[test]
    fn ages_have_units() {
        assert_eq!([age("30s"), age("2m"), age("1h"), age("7d")], [Ok(30), Ok(120), Ok(3_600), Ok(604_800)]);
        for wrong in ["", "7", "d", "7w", "-1d", "99999999999999999999d", "7é"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }
}

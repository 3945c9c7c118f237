//! `dlq`: look at dead letters, send them back, give them up.

use clap::{Args, Subcommand};
use serde_json::Value;
use uuid::Uuid;

use super::{Exit, Shared, setup};
use crate::{
    error::{Class, Stage},
    ops::command::Command,
    queue::dlq::Filter,
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
        /// Resolved and discarded ones too
        #[arg(long)]
        closed: bool,
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
    /// Send letters back into the queue; the next run embeds them
    #[command(
        after_help = "Examples:\n  forebay dlq redrive --all --dry-run\n  forebay dlq redrive --class \
sink_unavailable"
    )]
    Redrive {
        #[command(flatten)]
        which: Which,
        /// All of them
        #[arg(long)]
        all: bool,
        /// Only say what would happen
        #[arg(long)]
        dry_run: bool,
    },
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
    },
}

/// Which letters are meant.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// These ids
    ids: Vec<Uuid>,
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
}

impl Which {
    fn filter(self) -> Filter {
        let before = self.older_than.map(|seconds| {
            let now = jiff::Timestamp::now();
            let back = i64::try_from(seconds).unwrap_or(i64::MAX);
            jiff::Timestamp::from_second(now.as_second().saturating_sub(back)).unwrap_or(now).to_string()
        });
        Filter {
            ids: self.ids,
            class: self.class,
            stage: self.stage,
            doc_id: self.doc,
            before,
            ..Filter::default()
        }
    }

    fn is_empty(&self) -> bool {
        self.ids.is_empty()
            && self.class.is_none()
            && self.stage.is_none()
            && self.doc.is_none()
            && self.older_than.is_none()
    }
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

fn who() -> String {
    format!("cli:{}", std::env::var("USER").unwrap_or_else(|_| "unknown".into()))
}

/// A verb that changes letters must be told which.
fn chosen(which: &Which, all: bool) -> Result<(), String> {
    if which.is_empty() && !all {
        return Err("which letters? Give ids, --class, --stage, --doc, --older-than, or --all".into());
    }
    Ok(())
}

pub(super) fn dlq(shared: &Shared, verb: Verb) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    let command = match verb {
        Verb::List { which, limit, after, closed } => {
            Command::DlqList { filter: Filter { after, closed_too: closed, ..which.filter() }, limit }
        }
        Verb::Show { id } => Command::DlqShow { id },
        Verb::Stats => Command::DlqStats,
        Verb::Redrive { which, all, dry_run } => {
            chosen(&which, all)?;
            Command::DlqRedrive { filter: which.filter(), dry_run, who: who() }
        }
        Verb::Discard { which, all, reason } => {
            chosen(&which, all)?;
            Command::DlqDiscard { filter: which.filter(), reason, who: who() }
        }
    };
    let answer = setup::command(&config, &command)?;
    nothing_meant(&command, &answer)?;
    print(&command, &answer, shared.json);
    Ok(Exit::Ok)
}

/// Ids that mean no letter are a mistake, not a success.
fn nothing_meant(command: &Command, answer: &Value) -> Result<(), String> {
    let (Command::DlqRedrive { filter, .. } | Command::DlqDiscard { filter, .. }) = command else {
        return Ok(());
    };
    let touched =
        ["redriven", "superseded", "discarded"].iter().any(|field| answer[field].as_u64() > Some(0));
    let staying = answer["staying"].as_array().is_some_and(|letters| !letters.is_empty());
    if filter.ids.is_empty() || touched || staying {
        return Ok(());
    }
    Err("no open dead letter has such an id; see `forebay dlq list`".into())
}

fn print(command: &Command, answer: &Value, json: bool) {
    let rows = || answer.as_array().into_iter().flatten();
    match command {
        // One object a line: a contract.
        Command::DlqList { .. } if json => rows().for_each(|letter| println!("{letter}")),
        _ if json => println!("{answer}"),
        Command::DlqList { .. } => {
            rows().for_each(|letter| println!("{}", line(letter)));
            if rows().next().is_none() {
                eprintln!("no dead letter matches");
            }
        }
        Command::DlqStats => {
            for class in rows() {
                println!(
                    "{}: {} open, at most {} attempts, oldest since {}",
                    word(&class["class"]),
                    class["open"],
                    class["attempts_worst"],
                    word(&class["oldest_at"])
                );
            }
            if rows().next().is_none() {
                println!("the DLQ is empty");
            }
        }
        _ => println!("{}", serde_json::to_string_pretty(answer).unwrap_or_default()),
    }
}

fn line(letter: &Value) -> String {
    let origin = &letter["origin"];
    // A file that is one document has no line.
    let place = if origin["line"] == 0 { String::new() } else { format!(":{}", origin["line"]) };
    format!(
        "{} {} {} {}{place} {} ({} attempts): {}",
        word(&letter["id"]),
        word(&letter["state"]),
        word(&letter["class"]),
        word(&origin["source"]),
        letter["doc_id"].as_str().map_or_else(|| format!("byte {}", origin["offset"]), ToOwned::to_owned),
        letter["attempts"],
        word(&letter["message"])
    )
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_units() {
        assert_eq!([age("30s"), age("2m"), age("1h"), age("7d")], [Ok(30), Ok(120), Ok(3_600), Ok(604_800)]);
        for wrong in ["", "7", "d", "7w", "-1d", "99999999999999999999d", "7é"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }
}

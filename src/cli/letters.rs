//! Dead letters for people and for machines.

use serde_json::Value;

use super::session::Session;
use crate::{error::Class, ops::command::Command, queue::dlq::Filter};

/// Letters asked for at once.
const PAGE: usize = 500;

/// Letters, one a line.
pub(super) fn list(
    session: &mut Session<'_>,
    mut filter: Filter,
    limit: usize,
    json: bool,
) -> Result<(), String> {
    let mut shown = 0;
    while shown < limit {
        let wanted = PAGE.min(limit - shown);
        let command = Command::DlqList { filter: filter.clone(), limit: wanted };
        let answer = session.ask(&command)?;
        let letters = answer.as_array().map_or(&[][..], Vec::as_slice);
        for letter in letters {
            // One object a line: a contract.
            if json { println!("{letter}") } else { println!("{}", line(letter)) }
        }
        shown += letters.len();
        filter.after = letters.last().and_then(|letter| letter["id"].as_str()?.parse().ok());
        if letters.len() < wanted || filter.after.is_none() {
            break;
        }
    }
    if shown == 0 && !json {
        eprintln!("no dead letter matches");
    }
    if shown == limit && !json {
        let after = filter.after.map(|id| id.to_string()).unwrap_or_default();
        eprintln!("{limit} shown; there may be more: --after {after}");
    }
    Ok(())
}

/// Any answer.
pub(super) fn object(answer: &Value, json: bool) {
    let pretty = || serde_json::to_string_pretty(answer).unwrap_or_default();
    println!("{}", if json { answer.to_string() } else { pretty() });
}

/// Per class.
pub(super) fn stats(answer: &Value, json: bool) {
    let classes = answer.as_array().map_or(&[][..], Vec::as_slice);
    if json {
        println!("{answer}");
    } else if classes.is_empty() {
        println!("the DLQ is empty");
    }
    for class in classes.iter().filter(|_| !json) {
        println!(
            "{}: {} open{}, at most {} attempts, oldest since {}",
            word(&class["class"]),
            class["open"],
            match class["quarantined"].as_u64() {
                None | Some(0) => String::new(),
                Some(count) => format!(" ({count} quarantined: they need --approve)"),
            },
            class["attempts_worst"],
            word(&class["oldest_at"])
        );
        if let Ok(class) = word(&class["class"]).parse::<Class>() {
            println!("    {}", class.remedy());
        }
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

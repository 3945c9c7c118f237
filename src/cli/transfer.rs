//! `dlq export` and `dlq import`: letters out of one data folder and into another.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::{Exit, dlq::who, session::Session};
use crate::{
    ops::{
        command::Command,
        export::{JsonlFile, SqliteFile},
        import,
    },
    queue::{dead::DeadLetter, dlq::Filter},
};

/// A line over this is no letter: the longest input line there can be, as base64 and more.
const LINE_BYTES: u64 = 256 * 1024 * 1024;
/// Letters sent at once, in number and bytes.
const TOGETHER: (usize, usize) = (500, 8 * 1024 * 1024);

/// Where letters go.
pub(super) enum Target {
    /// One a line on stdout.
    Stdout,
    /// One a line in a file.
    Jsonl(PathBuf),
    /// SQL tables.
    Sqlite(PathBuf),
}

pub(super) fn export(session: &mut Session<'_>, filter: Filter, target: &Target) -> Result<u64, String> {
    match target {
        Target::Stdout => {
            let mut out = std::io::stdout().lock();
            each_letter(session, filter, &mut |letter| {
                writeln!(out, "{letter}").map_err(|error| format!("stdout: {error}"))
            })
        }
        Target::Jsonl(path) => {
            let mut file = JsonlFile::new(path)?;
            let count = each_letter(session, filter, &mut |letter| file.add(letter))?;
            file.finish().map(|()| count)
        }
        Target::Sqlite(path) => {
            let mut file = SqliteFile::new(path)?;
            let count = each_letter(session, filter, &mut |letter| file.add(letter))?;
            file.finish().map(|()| count)
        }
    }
}

fn each_letter(
    session: &mut Session<'_>,
    filter: Filter,
    each: &mut dyn FnMut(&Value) -> Result<(), String>,
) -> Result<u64, String> {
    let mut count = 0;
    session.ask_pages(Command::DlqExport { filter, filled: false }, &mut |answer| {
        for letter in answer["letters"].as_array().into_iter().flatten() {
            each(letter)?;
            count += 1;
        }
        Ok(())
    })?;
    Ok(count)
}

/// Takes in what `path` holds (`-`: stdin). Gives the counts and how it ends.
pub(super) fn import(session: &mut Session<'_>, path: &Path) -> Result<(Value, Exit), String> {
    let (name, reader): (String, Box<dyn Read>) = if path == Path::new("-") {
        ("stdin".into(), Box::new(std::io::stdin().lock()))
    } else {
        let name = path.display().to_string();
        let file =
            File::open(path).map_err(|error| format!("{name}: {error}; name a file of `dlq export`"))?;
        (name, Box::new(file))
    };
    let mut reader = BufReader::new(reader);
    let (mut counts, mut refused) = (Counts::default(), 0_u64);
    let (mut batch, mut bytes, mut line) = (Vec::new(), 0, Vec::new());
    for number in 1_u64.. {
        line.clear();
        let read = reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line);
        if read.map_err(|error| format!("{name}:{number}: {error}"))? == 0 {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        match import::letter(line.trim_ascii()) {
            Ok(letter) => batch.push(letter),
            Err(why) => {
                refused += 1;
                eprintln!("{name}:{number}: {why}");
                continue;
            }
        }
        bytes += line.len();
        if batch.len() == TOGETHER.0 || bytes >= TOGETHER.1 {
            counts.send(session, &mut batch)?;
            bytes = 0;
        }
    }
    counts.send(session, &mut batch)?;
    let Counts { added, updated, unchanged, standing } = counts;
    let answer = json!({
        "added": added, "updated": updated, "unchanged": unchanged, "standing": standing, "refused": refused,
    });
    Ok((answer, if refused == 0 { Exit::Ok } else { Exit::Partial }))
}

#[derive(Default)]
struct Counts {
    added: u64,
    updated: u64,
    unchanged: u64,
    standing: u64,
}

impl Counts {
    fn send(&mut self, session: &mut Session<'_>, letters: &mut Vec<DeadLetter>) -> Result<(), String> {
        if letters.is_empty() {
            return Ok(());
        }
        let answer = session.ask(&Command::DlqImport { letters: std::mem::take(letters), who: who() })?;
        let number = |field: &str| answer[field].as_u64().unwrap_or(0);
        self.added += number("added");
        self.updated += number("updated");
        self.unchanged += number("unchanged");
        self.standing += number("standing");
        Ok(())
    }
}

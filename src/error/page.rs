//! The table of classes as Markdown, for `docs/failures.md`: made from the code, so that the page cannot say otherwise.

use std::fmt::Write as _;

use super::{Class, Fate, Stage, Whom};

/// The table, and under it what to do about each class.
pub fn table() -> String {
    let mut table = "| class | met at | fate | charges | attempts |\n|---|---|---|---|---|\n".to_owned();
    for class in Class::ALL.iter().copied() {
        let stages: Vec<&str> = class.stages().iter().map(|stage| stage_word(*stage)).collect();
        let attempts = match (class.fate(), class.whom(), class.attempts_max()) {
            (Fate::Retry, Whom::Chunk, Some(most)) => format!("`retry.max_attempts`, {most} at most"),
            (Fate::Retry, Whom::Chunk, None) => "`retry.max_attempts`".to_owned(),
            (Fate::Retry, ..) => "not counted".to_owned(),
            (Fate::Bury, Whom::Chunk, _) => "1".to_owned(),
            (Fate::Bury | Fate::Halt, ..) => "none".to_owned(),
        };
        let (fate, whom) = (fate_word(class.fate()), whom_word(class.whom()));
        let _ = writeln!(table, "| `{class}` | {} | {fate} | {whom} | {attempts} |", stages.join(", "));
    }
    table.push('\n');
    for class in Class::ALL.iter().copied() {
        let _ = writeln!(table, "- `{class}`: {} *What to do:* {}.", class.meaning().trim(), class.remedy());
    }
    table
}

const fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Source => "source",
        Stage::Reader => "reader",
        Stage::Embedder => "embedder",
        Stage::Writer => "writer",
    }
}

const fn fate_word(fate: Fate) -> &'static str {
    match fate {
        Fate::Retry => "retry",
        Fate::Bury => "bury",
        Fate::Halt => "halt",
    }
}

const fn whom_word(whom: Whom) -> &'static str {
    match whom {
        Whom::Chunk => "the chunk",
        Whom::Dependency => "the dependency",
        Whom::Nobody => "nobody",
    }
}

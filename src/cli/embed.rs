//! `embed`: vectors of a few texts, for a look or a script. Knows no data folder.

use std::io::BufRead;

use clap::Args;
use serde_json::{Value, json};

use super::{Exit, Shared, setup};
use crate::{
    chunk::Embedding,
    embed::{Embed, Tokens},
};

/// Texts that go through the model together.
const TOGETHER: usize = 64;
/// Longest line of standard input: a text of more is no question.
const LINE_BYTES: u64 = 16 * 1024 * 1024;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Texts; a single `-` takes each line of standard input as one
    #[arg(required = true)]
    texts: Vec<String>,
    /// They are search queries: the model's query prefix is put before them
    #[arg(long)]
    query: bool,
}

pub(super) fn embed(shared: &Shared, arguments: &Arguments) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    let from_stdin = arguments.texts == ["-"];
    if !from_stdin {
        // Told before a model is loaded.
        arguments.texts.iter().enumerate().try_for_each(|(index, text)| not_blank(index, text))?;
    }
    let model = setup::model(&config)?;
    let mut batch = Vec::new();
    let mut take = |index: usize, text: &str| -> Result<(), String> {
        not_blank(index, text)?;
        let tokens = if arguments.query { model.tokenize_query(text) } else { model.tokenize(text) };
        batch.push((index, tokens.map_err(|fault| format!("text {index}: {fault}"))?));
        if batch.len() == TOGETHER { print(model.as_ref(), &mut batch) } else { Ok(()) }
    };
    if from_stdin {
        each_line(&mut take)?;
    } else {
        arguments.texts.iter().enumerate().try_for_each(|(index, text)| take(index, text))?;
    }
    print(model.as_ref(), &mut batch)?;
    Ok(Exit::Ok)
}

fn not_blank(index: usize, text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err(format!("text {index} (counted from 0) is blank; leave it out, or type some words"));
    }
    Ok(())
}

fn each_line(take: &mut dyn FnMut(usize, &str) -> Result<(), String>) -> Result<(), String> {
    let (mut input, mut line) = (std::io::stdin().lock(), Vec::new());
    for index in 0.. {
        line.clear();
        let mut limited = std::io::Read::take(&mut input, LINE_BYTES + 1);
        let read =
            limited.read_until(b'\n', &mut line).map_err(|error| format!("standard input: {error}"))?;
        if read == 0 {
            break;
        }
        if line.len() as u64 > LINE_BYTES {
            return Err(format!("line {} is longer than {LINE_BYTES} bytes; use `forebay run -`", index + 1));
        }
        let text = std::str::from_utf8(&line);
        let text =
            text.map_err(|_| format!("line {} is not UTF-8; convert it with iconv first", index + 1))?;
        take(index, text.trim_end_matches(['\n', '\r']))?;
    }
    Ok(())
}

/// Embeds what was gathered and prints it, in order.
fn print(model: &dyn Embed, batch: &mut Vec<(usize, Tokens)>) -> Result<(), String> {
    let lengths: Vec<usize> = batch.iter().map(|(_, tokens)| tokens.ids.len()).collect();
    let mut lines = vec![String::new(); batch.len()];
    for group in model.plan(&lengths) {
        let tokens: Vec<&Tokens> = group.iter().map(|at| &batch[*at].1).collect();
        let vectors = model.embed(&tokens).map_err(|error| error.to_string())?;
        for (at, vector) in group.into_iter().zip(vectors) {
            let (index, _) = batch[at];
            let vector = vector.map_err(|fault| format!("text {index}: {fault}"))?;
            lines[at] = line(index, &model.identity().stored(), vector).to_string();
        }
    }
    lines.iter().for_each(|line| println!("{line}"));
    batch.clear();
    Ok(())
}

/// What is printed of one text; outputs that were not asked for are left out.
fn line(index: usize, identity: &str, embedding: Embedding) -> Value {
    let Embedding { dense, sparse, multi, n_tokens, truncated } = embedding;
    let rows = multi.map(|multi| multi.chunks_exact(dense.len()).map(|row| json!(row)).collect::<Value>());
    let mut line = json!({
        "index": index, "tokens": n_tokens, "truncated": truncated, "identity": identity, "dense": dense,
    });
    if let Some(sparse) = sparse {
        line["sparse"] = sparse.into_iter().map(|(id, weight)| (id.to_string(), json!(weight))).collect();
    }
    if let Some(rows) = rows {
        line["multi"] = rows;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_were_not_asked_for_are_left_out() {
        let dense = Embedding { dense: vec![0.5, 0.25], n_tokens: 3, ..Embedding::default() };
        let all = Embedding {
            sparse: Some(vec![(7, 0.5), (10, 2.0)]),
            multi: Some(vec![1.0, 0.0, 0.5, 0.25]),
            ..dense.clone()
        };
        let start = r#"{"index":4,"tokens":3,"truncated":false,"identity":"i","dense":[0.5,0.25]"#;
        assert_eq!(line(4, "i", dense).to_string(), format!("{start}}}"));
        let rest = r#","sparse":{"7":0.5,"10":2.0},"multi":[[1.0,0.0],[0.5,0.25]]}"#;
        assert_eq!(line(4, "i", all).to_string(), format!("{start}{rest}"));
    }
}

//! `status`: one moment, from the process that holds the folder or from the folder itself.

use clap::Args;
use serde_json::Value;

use super::{Exit, Shared, setup};
use crate::{config::Config, embed, ops::command::Command};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Where each chunk of this document is, and why; exit 1 when nothing is known of it
    #[arg(long, value_name = "ID")]
    doc: Option<String>,
}

pub(super) fn status(shared: &Shared, arguments: &Arguments) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    if let Some(doc_id) = &arguments.doc {
        return document(&config, doc_id, shared.json);
    }
    let status = setup::command(&config, &Command::Status)?;
    if shared.json {
        println!("{status}");
    } else {
        print(&status);
    }
    Ok(Exit::Ok)
}

fn document(config: &Config, doc_id: &str, json: bool) -> Result<Exit, String> {
    // Without its model there is still all to be told but whether a vector is of the settings' identity.
    let identity = embed::identity(&config.model)
        .map_err(|why| tracing::info!(%why, "the identity of the settings is not known"))
        .ok()
        .map(|identity| identity.stored());
    let found = setup::command(config, &Command::StatusDoc { doc_id: doc_id.to_owned(), identity })?;
    let known = found["known"] == true;
    if json {
        println!("{found}");
    } else {
        for chunk in found["chunks"].as_array().into_iter().flatten() {
            println!("{doc_id}#{}", chunk["chunk_index"]);
            for state in ["written", "pending", "dead"] {
                print_state(state, &chunk[state]);
            }
        }
        for letter in found["records"].as_array().into_iter().flatten() {
            println!("{doc_id}, a record that could not be read");
            print_state("dead", letter);
        }
    }
    if !known {
        eprintln!(
            "nothing is known of {doc_id:?}: it is neither written nor pending nor dead; ids are compared as they are, \
             and a source that was not read to its end may still hold it (`forebay status` names those)"
        );
    }
    Ok(if known { Exit::Ok } else { Exit::Partial })
}

/// One line: what is known, field by field.
fn print_state(state: &str, value: &Value) {
    for value in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
        let Some(fields) = value.as_object() else { continue };
        let shown = fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("{name} {text}")
        });
        println!("  {state:<8} {}", shown.collect::<Vec<_>>().join(", "));
    }
}

fn print(status: &Value) {
    let number = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let text = |pointer: &str| status.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned();
    let of_long = |run: &Value| match (run["truncated"].as_u64(), run["too_long"].as_u64()) {
        (None | Some(0), None | Some(0)) => String::new(),
        (cut, buried) => {
            let (cut, buried) = (cut.unwrap_or(0), buried.unwrap_or(0));
            format!("; of texts over the limit {cut} truncated, {buried} buried")
        }
    };
    println!("store     {}", text("/store"));
    println!("written   {}", number("/written"));
    println!(
        "queue     {} pending, {} in flight, {} waiting for another attempt",
        number("/queue/pending"),
        number("/queue/in_flight"),
        number("/queue/delayed")
    );
    println!("dlq       {} open, {} redriven", number("/dead_open"), number("/dead_redriven"));
    for (class, count) in status["dead_by_class"].as_object().into_iter().flatten() {
        println!("            {class}: {count}");
    }
    if let Some(oldest) = status["dead_oldest_at"].as_str() {
        println!("            oldest since {oldest}");
    }
    for source in status["unread_sources"].as_array().into_iter().flatten() {
        println!("unread    {}", source.as_str().unwrap_or_default());
    }
    if status["run"].is_object() {
        println!(
            "running   pid {}: {} of {} chunks, {:.0} tok/s{}; breaker of the sink {}, of the device {} (closed: work flows)",
            number("/run/pid"),
            number("/run/chunks"),
            number("/run/produced"),
            status.pointer("/run/tokens_per_s").and_then(Value::as_f64).unwrap_or(0.0),
            of_long(&status["run"]),
            text("/run/sink_gate"),
            text("/run/device_gate"),
        );
    } else {
        println!("running   no");
    }
    for run in status["last_runs"].as_array().into_iter().flatten() {
        println!(
            "last run  {} {}: {} chunks, {} dead{}",
            run["run"],
            run["outcome"],
            run["chunks"],
            run["dead"],
            of_long(run)
        );
    }
}

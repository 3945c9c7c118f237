//! `status`: one moment, from the process that holds the folder or from the folder itself.

use serde_json::Value;

use super::{Exit, Shared, setup};
use crate::ops::command::Command;

pub(super) fn status(shared: &Shared) -> Result<Exit, String> {
    let config = setup::config(shared, &[])?.config;
    let status = setup::command(&config, &Command::Status)?;
    if shared.json {
        println!("{status}");
    } else {
        print(&status);
    }
    Ok(Exit::Ok)
}

fn print(status: &Value) {
    let number = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let text = |pointer: &str| status.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned();
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
            "running   pid {}: {} of {} chunks, {:.0} tok/s; breaker of the sink {}, of the device {} (closed: work flows)",
            number("/run/pid"),
            number("/run/chunks"),
            number("/run/produced"),
            status.pointer("/run/tokens_per_s").and_then(Value::as_f64).unwrap_or(0.0),
            text("/run/sink_gate"),
            text("/run/device_gate"),
        );
    } else {
        println!("running   no");
    }
    for run in status["last_runs"].as_array().into_iter().flatten() {
        println!(
            "last run  {} {}: {} chunks, {} dead",
            run["run"], run["outcome"], run["chunks"], run["dead"]
        );
    }
}

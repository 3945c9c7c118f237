//! `check`: try everything a run needs, and tick it off. Works beside a run.

use clap::Args;
use serde_json::{Value, json};

use super::{Exit, Shared, setup, tick, tick::Tick};
use crate::{
    config::{Config, Loaded},
    pipeline::{circuit, report::duration},
    queue::policy::recovery_worst,
};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Also hash every file of the model, hold its kernels against the plain path, look at every file of the data folder,
    /// and compare ledger and sink; takes its time
    #[arg(long)]
    deep: bool,
}

pub(super) fn check(shared: &Shared, arguments: &Arguments) -> Result<Exit, String> {
    let with_keys = |why| format!("{why}\n\nEvery setting and its default:\n\n{}", crate::config::DEFAULTS);
    let loaded = setup::config(shared, &[]).map_err(with_keys)?;
    let ticks = tick::all(&loaded, arguments.deep);
    let ok = ticks.iter().all(Tick::passes);
    let times = times(&loaded);
    if shared.json {
        let ticks: Vec<_> = ticks
            .iter()
            .map(|tick| json!({ "what": tick.what, "ok": tick.result.is_ok(), "needed": tick.needed, "says": tick.says() }))
            .collect();
        let mut said = json!({ "ok": ok, "checks": ticks, "settings": loaded.origins });
        if let (Some(said), Some(times)) = (said.as_object_mut(), times.as_object()) {
            said.extend(times.clone());
        }
        println!("{said}");
    } else {
        for setting in &loaded.origins {
            println!("  {} = {}  ({})", setting.key, setting.value, setting.origin);
        }
        println!("{}", words(&loaded.config));
        for tick in &ticks {
            let word = match (&tick.result, tick.needed) {
                (Ok(_), _) => "ok   ",
                (Err(_), true) => "FAIL ",
                (Err(_), false) => "note ",
            };
            println!("{word} {}: {}", tick.what, tick.says());
        }
    }
    Ok(if ok { Exit::Ok } else { Exit::CannotRun })
}

/// The worst cases for people.
fn words(config: &Config) -> String {
    let (retry, breaker) = (&config.retry, &config.breaker);
    let time = |seconds| duration(seconds as f64);
    format!(
        "worst cases:\n  a chunk that keeps failing is tried {} times, with waits of {} at most in all, and is then a dead \
         letter\n  a sink or server that asks for a pause gets up to {}, which no chunk pays for\n  \
         a sink or device that comes back is noticed within {} (a probe that just failed, {} of pause, the next probe)\n  \
         one that stays away halts the run after {}, with exit 3 and everything still queued",
        retry.max_attempts,
        duration(recovery_worst(retry).as_secs_f64()),
        time(retry.retry_after_max_s),
        time(resume_worst_s(breaker)),
        time(breaker.open_s),
        time(breaker.give_up_after_s),
    )
}

/// It may come back just after a probe has begun, which fails, and then the gate stays shut once more.
const fn resume_worst_s(breaker: &circuit::Settings) -> u64 {
    2 * breaker.probe_timeout_s + breaker.open_s
}

/// Worst cases of `retry.*` and `breaker.*`, in seconds.
fn times(loaded: &Loaded) -> Value {
    let (retry, breaker) = (&loaded.config.retry, &loaded.config.breaker);
    json!({
        "recovery_worst_s": recovery_worst(retry).as_secs_f64(),
        "resume_worst_s": resume_worst_s(breaker),
        "give_up_after_s": breaker.give_up_after_s,
    })
}

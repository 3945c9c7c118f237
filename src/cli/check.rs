//! `check`: try everything a run needs, and tick it off.

use serde_json::json;

use super::{Exit, Shared, setup};
use crate::{config::Config, queue::policy::recovery_worst};

/// One thing that was tried.
struct Tick {
    what: &'static str,
    result: Result<String, String>,
}

pub(super) fn check(shared: &Shared) -> Result<Exit, String> {
    let with_keys = |why| format!("{why}\n\nEvery setting and its default:\n\n{}", crate::config::DEFAULTS);
    let loaded = setup::config(shared, &[]).map_err(with_keys)?;
    let ticks = tick_off(&loaded.config);
    let ok = ticks.iter().all(|tick| tick.result.is_ok());
    let recovery = recovery_worst(&loaded.config.retry).as_secs_f64();
    if shared.json {
        let ticks: Vec<_> = ticks
            .iter()
            .map(|Tick { what, result }| json!({ "what": what, "ok": result.is_ok(), "says": result.as_ref().unwrap_or_else(|why| why) }))
            .collect();
        println!(
            "{}",
            json!({ "ok": ok, "checks": ticks, "settings": loaded.origins, "recovery_worst_s": recovery })
        );
    } else {
        for setting in &loaded.origins {
            println!("  {} = {}  ({})", setting.key, setting.value, setting.origin);
        }
        println!("a chunk that keeps failing is buried after waits of at most {recovery} s");
        for Tick { what, result } in &ticks {
            match result {
                Ok(says) => println!("ok    {what}: {says}"),
                Err(why) => println!("FAIL  {what}: {why}"),
            }
        }
    }
    Ok(if ok { Exit::Ok } else { Exit::CannotRun })
}

fn tick_off(config: &Config) -> Vec<Tick> {
    let mut ticks = Vec::new();
    let model = setup::model(config);
    let says = model
        .as_ref()
        .map(|model| format!("{}, {} numbers", model.identity(), model.dim()))
        .map_err(Clone::clone);
    ticks.push(Tick { what: "model", result: says });
    if let Ok(model) = &model {
        let golden = model.golden();
        let passed = model.embed(&[&golden]).map_err(|error| error.to_string());
        let passed = passed
            .and_then(|vectors| vectors.into_iter().try_for_each(|v| v.map(drop).map_err(|f| f.to_string())));
        ticks.push(Tick {
            what: "self-test",
            result: passed.map(|()| "the golden text gives a sound vector".into()),
        });
    }
    let folder = setup::folder(config);
    let says = folder
        .as_ref()
        .map(|folder| format!("{}, store {}", folder.dir.display(), folder.store))
        .map_err(Clone::clone);
    ticks.push(Tick { what: "data folder", result: says });
    if let (Ok(model), Ok(folder)) = (&model, &folder) {
        let tried = setup::sink(config).and_then(|sink| {
            sink.preflight(model.identity(), model.dim(), &folder.store, false)
                .map_err(|error| error.to_string())?;
            sink.probe().map_err(|error| error.to_string())?;
            Ok(format!("{}: a probe row could be written", sink.kind()))
        });
        ticks.push(Tick { what: "sink", result: tried });
    }
    ticks
}

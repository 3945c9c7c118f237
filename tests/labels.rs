//! F06: every label of every metric comes from a closed list, whatever ids, paths and messages go by. In a process of its
//! own: it is the recorder of all of it.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use forebay::{
    error::Class,
    testkit::{
        faults::Poison,
        rig::{Rig, chunk_line},
        weather::{Odds, Weather},
    },
};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Series of one metric and its labels.
type Series = (String, Vec<(String, String)>);

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeSet<Series>>>);

impl Seen {
    fn note(&self, key: &Key) {
        let labels = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        self.0.lock().unwrap().insert((key.name().to_owned(), labels));
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.note(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.note(key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.note(key);
        Histogram::noop()
    }
}

#[test]
fn f06_a_thousand_ids_and_messages_make_no_more_series_than_ten() {
    let seen = Seen::default();
    metrics::set_global_recorder(seen.clone()).map_err(|_| "another recorder").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let odds = Odds { pass: 30, device: 10, batch: 30, sink: 20, ..Odds::default() };
    let run = |n: usize| {
        let rig = Rig::in_weather(&dir.path().join(format!("{n}")), Weather::new(6, odds));
        std::fs::create_dir_all(&rig.dir).unwrap();
        let kinds = Poison::LETHAL;
        let line = |at: usize| match at % 4 {
            0 => chunk_line(
                &format!("id-{n}-{at}"),
                0,
                &format!("{} {at}", kinds[at / 4 % kinds.len()].word()),
            ),
            1 => format!("{{\"id\":\"broken-{at}\", \"text\": {at}}}"),
            2 => format!("no json at all {at}"),
            _ => chunk_line(&format!("id-{n}-{at}"), 0, "good"),
        };
        let path = rig.input(&format!("input-{n}.jsonl"), &(0..n).map(line).collect::<Vec<_>>());
        assert!(rig.run(&[path]).dead > 0);
        seen.0.lock().unwrap().clone()
    };
    let (few, many) = (run(80), run(1_000));
    println!("{} series", many.len());
    assert!(few.len() > 5 && many.len() < 100, "{} and {} series", few.len(), many.len());
    let mut closed: BTreeSet<String> = Class::ALL.iter().map(ToString::to_string).collect();
    closed.extend(["sink", "device", "source", "reader", "embedder", "writer"].map(str::to_owned));
    closed.extend(["closed", "open", "half_open"].map(str::to_owned));
    closed.extend(["first_of_class", "first_quarantine", "depth", "age"].map(str::to_owned));
    for (name, labels) in &many {
        assert!(name.starts_with("forebay_"), "{name}");
        for (label, value) in labels {
            assert!(closed.contains(value), "{name}: the value {value:?} of {label} is from no closed list");
        }
    }
}

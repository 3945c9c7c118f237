//! The breaker as a value: driven by events and the time handed in, and by nothing else.
//!
//! ```text
//! closed ──threshold failures within the window──> open ──open_s──> half-open ──probe ok──> closed
//!                                                   ^                  └──probe failed──> open
//! ```

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// `breaker.*` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Failures within the window that open it.
    pub threshold: u32,
    /// The window.
    pub window_s: u64,
    /// How long it stays open before one probe.
    pub open_s: u64,
    /// A probe that takes longer has failed.
    pub probe_timeout_s: u64,
    /// Not closed for longer than this in one go: the run halts.
    pub give_up_after_s: u64,
}

/// What a stage tells the breaker, and what the breaker tells itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The dependency worked.
    Ok,
    /// The dependency failed.
    Failure,
    /// A row failed by its own fault: says nothing about the dependency.
    Neutral,
    /// Time passed.
    Tick,
    /// The probe worked.
    ProbeOk,
    /// The probe failed or took too long.
    ProbeFailed,
}

/// What the gate shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Work flows.
    Closed,
    /// Work waits.
    Open,
    /// Work waits, one probe is out.
    HalfOpen,
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Circuit {
    settings: Settings,
    gate: Gate,
    failures: VecDeque<Instant>,
    shut_since: Option<Instant>,
    opened_at: Option<Instant>,
}

impl Circuit {
    /// A closed one.
    pub fn new(settings: Settings) -> Self {
        Self { settings, gate: Gate::Closed, failures: VecDeque::new(), shut_since: None, opened_at: None }
    }

    /// What the gate shows.
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// Takes an event in. In half-open only the probe counts: the rest may be late news from before.
    pub fn on(&mut self, event: Event, now: Instant) -> Gate {
        match (self.gate, event) {
            (Gate::Closed, Event::Ok) => self.failures.clear(),
            (Gate::Closed, Event::Failure) => self.failed(now),
            (Gate::Open, Event::Tick) if self.open_for(now) >= Duration::from_secs(self.settings.open_s) => {
                self.gate = Gate::HalfOpen;
            }
            (Gate::HalfOpen, Event::ProbeOk) => {
                self.gate = Gate::Closed;
                self.failures.clear();
                (self.shut_since, self.opened_at) = (None, None);
            }
            (Gate::HalfOpen, Event::ProbeFailed) => self.open(now),
            _ => {}
        }
        self.gate
    }

    /// Whether the dependency has been down for longer than anyone should wait.
    pub fn hopeless(&self, now: Instant) -> bool {
        let limit = Duration::from_secs(self.settings.give_up_after_s);
        self.shut_since.is_some_and(|since| now.saturating_duration_since(since) >= limit)
    }

    fn failed(&mut self, now: Instant) {
        let window = Duration::from_secs(self.settings.window_s);
        while self.failures.front().is_some_and(|at| now.saturating_duration_since(*at) > window) {
            self.failures.pop_front();
        }
        self.failures.push_back(now);
        if self.failures.len() >= self.settings.threshold as usize {
            self.open(now);
        }
    }

    fn open(&mut self, now: Instant) {
        self.gate = Gate::Open;
        self.opened_at = Some(now);
        self.shut_since.get_or_insert(now);
        self.failures.clear();
    }

    fn open_for(&self, now: Instant) -> Duration {
        self.opened_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn circuit() -> Circuit {
        Circuit::new(Settings {
            threshold: 3,
            window_s: 60,
            open_s: 5,
            probe_timeout_s: 30,
            give_up_after_s: 100,
        })
    }

    #[test]
    fn f08_opens_at_the_threshold_probes_once_and_closes() {
        let (mut circuit, start) = (circuit(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert_eq!(circuit.on(Event::Failure, at(0)), Gate::Closed);
        assert_eq!(circuit.on(Event::Neutral, at(1)), Gate::Closed);
        assert_eq!(circuit.on(Event::Failure, at(1)), Gate::Closed);
        assert_eq!(circuit.on(Event::Failure, at(2)), Gate::Open);
        assert_eq!(circuit.on(Event::Ok, at(3)), Gate::Open, "late news does not close it");
        assert_eq!(circuit.on(Event::Tick, at(6)), Gate::Open);
        assert_eq!(circuit.on(Event::Tick, at(7)), Gate::HalfOpen);
        assert_eq!(circuit.on(Event::Failure, at(7)), Gate::HalfOpen);
        assert_eq!(circuit.on(Event::ProbeFailed, at(8)), Gate::Open);
        assert!(!circuit.hopeless(at(101)) && circuit.hopeless(at(102)), "counted from the first opening");
        assert_eq!(circuit.on(Event::Tick, at(13)), Gate::HalfOpen);
        assert_eq!(circuit.on(Event::ProbeOk, at(14)), Gate::Closed);
        assert!(!circuit.hopeless(at(900)));
    }

    #[test]
    fn f08_failures_outside_the_window_or_before_a_success_do_not_add_up() {
        let (mut circuit, start) = (circuit(), Instant::now());
        for n in 0..10 {
            assert_eq!(circuit.on(Event::Failure, start + Duration::from_secs(n * 40)), Gate::Closed);
        }
        let late = start + Duration::from_secs(1_000);
        for _ in 0..10 {
            circuit.on(Event::Failure, late);
            assert_eq!(circuit.on(Event::Ok, late), Gate::Closed);
        }
    }

    proptest! {
        #[test]
        fn f08_random_walks_keep_to_the_table(steps in proptest::collection::vec((0_u8..6, 0_u64..20), 0..200)) {
            let (mut circuit, mut now) = (circuit(), Instant::now());
            for (event, seconds) in steps {
                now += Duration::from_secs(seconds);
                let events = [Event::Ok, Event::Failure, Event::Neutral, Event::Tick, Event::ProbeOk, Event::ProbeFailed];
                let (before, event) = (circuit.gate(), events[event as usize]);
                let after = circuit.on(event, now);
                let allowed = before == after || matches!(
                    (before, event, after),
                    (Gate::Closed, Event::Failure, Gate::Open)
                        | (Gate::Open, Event::Tick, Gate::HalfOpen)
                        | (Gate::HalfOpen, Event::ProbeOk, Gate::Closed)
                        | (Gate::HalfOpen, Event::ProbeFailed, Gate::Open)
                );
                prop_assert!(allowed, "{:?} --{:?}--> {:?}", before, event, after);
            }
        }
    }
}

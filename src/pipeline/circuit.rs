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
    /// The probe was refused for a fault of its own: says nothing about the dependency.
    ProbeNeutral,
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

impl Gate {
    /// The text form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// The state machine.
///
/// It opens when `threshold` of the last `2 · threshold` outcomes within the window are failures. So a dependency that
/// went away is known after `threshold` tries, one of which every other try fails soon after, and a success now and then
/// neither hides an outage nor does a failure now and then, among many successes, shut the gate.
#[derive(Clone, Debug)]
pub struct Circuit {
    settings: Settings,
    gate: Gate,
    /// When, and whether it was a failure.
    outcomes: VecDeque<(Instant, bool)>,
    /// Since when it has been in trouble: a probe that works ends it only when work succeeds too.
    trouble_since: Option<Instant>,
    opened_at: Option<Instant>,
    closed_at: Option<Instant>,
}

impl Circuit {
    /// A closed one.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            gate: Gate::Closed,
            outcomes: VecDeque::new(),
            trouble_since: None,
            opened_at: None,
            closed_at: None,
        }
    }

    /// What the gate shows.
    pub fn gate(&self) -> Gate {
        self.gate
    }

    /// Since when the gate has been shut, with no work done in between.
    pub fn shut_since(&self) -> Option<Instant> {
        self.trouble_since.filter(|_| self.gate != Gate::Closed)
    }

    /// Failures that count at this time.
    pub fn failures(&self, now: Instant) -> usize {
        self.outcomes.iter().filter(|(at, failed)| *failed && self.counts(*at, now)).count()
    }

    /// When the next probe is due.
    pub fn next_probe(&self) -> Option<Instant> {
        let open_for = Duration::from_secs(self.settings.open_s);
        self.opened_at.filter(|_| self.gate == Gate::Open).map(|at| at + open_for)
    }

    /// Takes an event in. In half-open only the probe counts: the rest may be late news from before.
    pub fn on(&mut self, event: Event, now: Instant) -> Gate {
        match (self.gate, event) {
            (Gate::Closed, Event::Ok) => {
                self.note(false, now);
                self.trouble_since = None;
            }
            (Gate::Closed, Event::Failure) => {
                self.note(true, now);
                if self.failures(now) >= self.settings.threshold as usize {
                    self.trip(now);
                }
            }
            (Gate::Open, Event::Tick) if self.next_probe().is_some_and(|at| now >= at) => {
                self.gate = Gate::HalfOpen;
            }
            (Gate::HalfOpen, Event::ProbeOk) => {
                self.gate = Gate::Closed;
                self.outcomes.clear();
                self.closed_at = Some(now);
            }
            // Neutral: the slot is free, nothing is counted, and the next probe takes its time.
            (Gate::HalfOpen, Event::ProbeFailed | Event::ProbeNeutral) => {
                (self.gate, self.opened_at) = (Gate::Open, Some(now));
            }
            _ => {}
        }
        self.gate
    }

    /// Whether the dependency has been down for longer than anyone should wait.
    pub fn hopeless(&self, now: Instant) -> bool {
        let limit = Duration::from_secs(self.settings.give_up_after_s);
        self.shut_since().is_some_and(|since| now.saturating_duration_since(since) >= limit)
    }

    fn counts(&self, at: Instant, now: Instant) -> bool {
        now.saturating_duration_since(at) <= Duration::from_secs(self.settings.window_s)
    }

    fn note(&mut self, failed: bool, now: Instant) {
        self.outcomes.push_back((now, failed));
        if self.outcomes.len() > 2 * self.settings.threshold as usize {
            self.outcomes.pop_front();
        }
    }

    /// The trouble is the old one when it comes back within the window of a probe that worked: else a probe that works
    /// while all work fails would go on for ever.
    fn trip(&mut self, now: Instant) {
        (self.gate, self.opened_at) = (Gate::Open, Some(now));
        let again = self.closed_at.is_some_and(|at| self.counts(at, now));
        if !again || self.trouble_since.is_none() {
            self.trouble_since = Some(now);
        }
        self.outcomes.clear();
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
    fn f08_failures_outside_the_window_or_among_many_successes_do_not_add_up() {
        let (mut circuit, start) = (circuit(), Instant::now());
        for n in 0..10 {
            assert_eq!(circuit.on(Event::Failure, start + Duration::from_secs(n * 40)), Gate::Closed);
        }
        let late = start + Duration::from_secs(1_000);
        for _ in 0..10 {
            assert_eq!(circuit.on(Event::Failure, late), Gate::Closed, "one of three");
            circuit.on(Event::Ok, late);
            circuit.on(Event::Ok, late);
        }
    }

    #[test]
    fn a_dependency_of_which_every_other_try_fails_opens_it() {
        let (mut circuit, now) = (circuit(), Instant::now());
        let gates: Vec<Gate> = (0..3)
            .map(|_| {
                circuit.on(Event::Ok, now);
                circuit.on(Event::Failure, now)
            })
            .collect();
        assert_eq!(gates, [Gate::Closed, Gate::Closed, Gate::Open]);
    }

    #[test]
    fn f08_a_neutral_probe_frees_the_slot_and_counts_for_nothing() {
        let (mut circuit, start) = (circuit(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        (0..3).for_each(|_| _ = circuit.on(Event::Failure, start));
        assert_eq!(circuit.on(Event::Tick, at(5)), Gate::HalfOpen);
        assert_eq!(
            circuit.on(Event::Neutral, at(5)),
            Gate::HalfOpen,
            "a row's own fault is no answer of the probe"
        );
        assert_eq!(circuit.on(Event::ProbeNeutral, at(6)), Gate::Open);
        assert_eq!((circuit.next_probe(), circuit.failures(at(6))), (Some(at(11)), 0));
        assert_eq!(circuit.on(Event::Tick, at(11)), Gate::HalfOpen, "the slot is free");
        assert!(circuit.hopeless(at(100)), "and waiting for it is not endless");
    }

    #[test]
    fn a_probe_that_works_while_all_work_fails_does_not_go_on_for_ever() {
        let (mut circuit, start) = (circuit(), Instant::now());
        let mut now = start;
        while !circuit.hopeless(now) {
            (0..3).for_each(|_| _ = circuit.on(Event::Failure, now));
            now += Duration::from_secs(6);
            circuit.on(Event::Tick, now);
            circuit.on(Event::ProbeOk, now);
            assert!(now - start < Duration::from_secs(120), "it never gives up");
            (0..3).for_each(|_| _ = circuit.on(Event::Failure, now));
        }
        // Work succeeded in between: the next trouble is a new one.
        circuit.on(Event::Tick, now + Duration::from_secs(6));
        circuit.on(Event::ProbeOk, now);
        circuit.on(Event::Ok, now);
        (0..3).for_each(|_| _ = circuit.on(Event::Failure, now));
        assert_eq!(circuit.shut_since(), Some(now));
    }

    proptest! {
        #[test]
        fn f08_random_walks_keep_to_the_table(steps in proptest::collection::vec((0_u8..7, 0_u64..20), 0..200)) {
            let (mut circuit, mut now) = (circuit(), Instant::now());
            for (event, seconds) in steps {
                now += Duration::from_secs(seconds);
                let events = [Event::Ok, Event::Failure, Event::Neutral, Event::Tick, Event::ProbeOk, Event::ProbeFailed, Event::ProbeNeutral];
                let (before, event) = (circuit.gate(), events[event as usize]);
                let after = circuit.on(event, now);
                let allowed = before == after || matches!(
                    (before, event, after),
                    (Gate::Closed, Event::Failure, Gate::Open)
                        | (Gate::Open, Event::Tick, Gate::HalfOpen)
                        | (Gate::HalfOpen, Event::ProbeOk, Gate::Closed)
                        | (Gate::HalfOpen, Event::ProbeFailed | Event::ProbeNeutral, Gate::Open)
                );
                prop_assert!(allowed, "{:?} --{:?}--> {:?}", before, event, after);
                prop_assert!(circuit.outcomes.len() <= 6);
                prop_assert_eq!(circuit.shut_since().is_some(), after != Gate::Closed);
            }
        }
    }
}

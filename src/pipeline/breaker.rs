//! An actor round the circuit, one a dependency: takes outcomes in, publishes the gate, runs the probe.
//!
//! It probes by itself, so that a gate never stays shut because no stage happens to hold a batch.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ractor::{Actor, ActorProcessingErr, ActorRef};

use super::{
    circuit::{Circuit, Event, Gate},
    dependency::{Dependency, Seen},
    line::Line,
    worker::{Worker, words},
};
use crate::{
    error::{Fate, Whom},
    sink::SinkError,
};

/// A probe that did not work. In words without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The dependency is down.
    Failed(String),
    /// The probe was refused for a fault of its own: the dependency answered.
    Neutral(String),
    /// Nothing will work until someone acts.
    Hopeless(String),
}

impl From<SinkError> for Unanswered {
    fn from(error: SinkError) -> Self {
        let words = error.to_string();
        match error {
            SinkError::Unavailable(fault) | SinkError::Unknown(fault) if fault.class.fate() == Fate::Halt => {
                Self::Hopeless(format!("{fault}; {}", fault.class.remedy()))
            }
            SinkError::Unavailable(_) | SinkError::Unknown(_) => Self::Failed(words),
            SinkError::Row { fault, .. } | SinkError::Batch(fault) => match fault.class.whom() {
                Whom::Dependency => Self::Failed(words),
                Whom::Chunk | Whom::Nobody => Self::Neutral(words),
            },
            SinkError::Unusable(why) => Self::Hopeless(why),
        }
    }
}

/// Tries the dependency.
pub type Probe = Arc<dyn Fn() -> Result<(), Unanswered> + Send + Sync>;

/// Picks the dependency out of the line.
pub type Which = fn(&Line) -> &Dependency;

/// The actor.
#[derive(Debug)]
pub struct Breaker;

/// Its arguments.
pub struct Arguments {
    /// The run.
    pub line: Arc<Line>,
    /// Which dependency.
    pub which: Which,
    /// How to try it.
    pub probe: Probe,
}

/// Probes that hang at one time, at most: each has a thread, and what hangs one may hang the next.
const HANGING_MAX: u32 = 3;

/// Its state.
pub struct State {
    arguments: Arguments,
    circuit: Circuit,
    probing: bool,
    /// Probes that have not come back yet, in time or not.
    out: Arc<AtomicU32>,
}

impl Actor for Breaker {
    type Msg = Event;
    type State = State;
    type Arguments = Arguments;

    async fn pre_start(
        &self,
        me: ActorRef<Event>,
        arguments: Arguments,
    ) -> Result<State, ActorProcessingErr> {
        // A restarted breaker starts closed: the dependency itself says soon enough if it is still down.
        let dependency = (arguments.which)(&arguments.line);
        dependency.gate.send_replace(Gate::Closed);
        dependency.watched_by(me.clone());
        me.send_interval(crate::clock::paced(Duration::from_millis(200)), || Event::Tick);
        let circuit = Circuit::new(arguments.line.settings.breaker.clone());
        Ok(State { arguments, circuit, probing: false, out: Arc::default() })
    }

    async fn handle(
        &self,
        me: ActorRef<Event>,
        event: Event,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (before, now) = (state.circuit.gate(), Instant::now());
        if matches!(event, Event::ProbeOk | Event::ProbeFailed | Event::ProbeNeutral) {
            state.probing = false;
        }
        let after = state.circuit.on(event, now);
        let Arguments { line, which, .. } = &state.arguments;
        let dependency = which(line);
        let what = dependency.name;
        dependency.seen(Seen {
            failures: state.circuit.failures(now),
            shut_since: state.circuit.shut_since(),
            next_probe: state.circuit.next_probe(),
        });
        if before != after {
            tracing::warn!(what, gate = ?after, "breaker");
            metrics::gauge!("forebay_breaker_open", "dependency" => what)
                .set(f64::from(after != Gate::Closed));
            metrics::counter!("forebay_breaker_transitions_total", "dependency" => what, "to" => after.as_str())
                .increment(1);
            dependency.gate.send_replace(after);
        }
        if state.circuit.hopeless(now) && !line.draining() {
            let seconds = line.settings.breaker.give_up_after_s;
            line.halt(format!(
                "the {what} has been down for more than breaker.give_up_after_s = {seconds}; \
                 everything not yet written is still queued: mend it and run again"
            ));
        }
        if after == Gate::HalfOpen && !state.probing {
            state.probing = true;
            if state.out.load(Relaxed) >= HANGING_MAX {
                tracing::warn!(what, probes = HANGING_MAX, "the last probes still hang");
                me.cast(Event::ProbeFailed)?;
            } else {
                probe(&me, state)?;
            }
        }
        Ok(())
    }
}

/// One probe on a thread of its own: a probe that hangs must not hold up what stands behind it.
fn probe(me: &ActorRef<Event>, state: &State) -> Result<(), ActorProcessingErr> {
    let Arguments { line, which, probe } = &state.arguments;
    let what = which(line).name;
    let limit = Duration::from_secs(line.settings.breaker.probe_timeout_s);
    let (me, probe, worker) = (me.clone(), Arc::clone(probe), Worker::start("forebay-probe")?);
    let (out, line) = (Arc::clone(&state.out), Arc::downgrade(line));
    out.fetch_add(1, Relaxed);
    let job = move || {
        let answer = catch_unwind(AssertUnwindSafe(|| probe()));
        out.fetch_sub(1, Relaxed);
        answer.unwrap_or_else(|panic| Err(Unanswered::Failed(format!("panicked: {}", words(panic.as_ref())))))
    };
    super::spawn(async move {
        let answer = match tokio::time::timeout(limit, worker.run(job)).await {
            Ok(answer) => answer.unwrap_or_else(|panicked| Err(Unanswered::Failed(panicked.to_string()))),
            Err(_) => Err(Unanswered::Failed(format!("no answer for {} s", limit.as_secs()))),
        };
        let event = match answer {
            Ok(()) => Event::ProbeOk,
            Err(Unanswered::Failed(why)) => {
                tracing::info!(what, why, "the probe failed");
                Event::ProbeFailed
            }
            Err(Unanswered::Neutral(why)) => {
                tracing::warn!(what, why, "the probe was refused for a fault of its own");
                Event::ProbeNeutral
            }
            Err(Unanswered::Hopeless(why)) => {
                line.upgrade().inspect(|line| line.halt(why));
                Event::ProbeFailed
            }
        };
        // The breaker may be gone by now: then nobody waits for the answer.
        let _ = me.cast(event);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Class, Fault};

    #[test]
    fn f08_what_a_probe_says_of_the_sink() {
        let fault = |class| Fault::new(class, "why");
        let of = Unanswered::from;
        assert!(matches!(of(SinkError::Unavailable(fault(Class::Timeout))), Unanswered::Failed(_)));
        assert!(matches!(of(SinkError::Batch(fault(Class::SinkConflict))), Unanswered::Failed(_)));
        let row = SinkError::Row { index: 0, fault: fault(Class::SinkRejectedRow) };
        assert!(matches!(of(row), Unanswered::Neutral(_)));
        assert!(matches!(of(SinkError::Unavailable(fault(Class::AuthFailed))), Unanswered::Hopeless(_)));
        assert!(matches!(of(SinkError::Unusable("moved".into())), Unanswered::Hopeless(_)));
    }
}

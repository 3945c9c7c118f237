//! An actor round the circuit, one a dependency: takes outcomes in, publishes the gate, runs the probe.
//!
//! It probes by itself, so that a gate never stays shut because no stage happens to hold a batch.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    circuit::{Circuit, Event, Gate},
    line::{Dependency, Line},
    worker::Worker,
};
use ractor::{Actor, ActorProcessingErr, ActorRef};

/// Tries the dependency; what went wrong, in words without secrets.
pub type Probe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

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

/// Its state.
pub struct State {
    arguments: Arguments,
    circuit: Circuit,
    probing: bool,
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
        Ok(State { arguments, circuit, probing: false })
    }

    async fn handle(
        &self,
        me: ActorRef<Event>,
        event: Event,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (before, now) = (state.circuit.gate(), Instant::now());
        if matches!(event, Event::ProbeOk | Event::ProbeFailed) {
            state.probing = false;
        }
        let after = state.circuit.on(event, now);
        let Arguments { line, which, .. } = &state.arguments;
        let Dependency { name: what, gate, .. } = which(line);
        if before != after {
            tracing::warn!(what, gate = ?after, "breaker");
            metrics::gauge!("forebay_breaker_open", "dependency" => *what)
                .set(f64::from(after != Gate::Closed));
            gate.send_replace(after);
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
            probe(&me, state)?;
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
    super::spawn(async move {
        let event = match tokio::time::timeout(limit, worker.run(move || probe())).await {
            Ok(Ok(Ok(()))) => Event::ProbeOk,
            Ok(Ok(Err(why))) => {
                tracing::info!(what, why, "the probe failed");
                Event::ProbeFailed
            }
            Ok(Err(panicked)) => {
                tracing::warn!(what, %panicked, "the probe failed");
                Event::ProbeFailed
            }
            Err(_) => {
                tracing::warn!(what, seconds = limit.as_secs(), "the probe took too long");
                Event::ProbeFailed
            }
        };
        // The breaker may be gone by now: then nobody waits for the answer.
        let _ = me.cast(event);
    });
    Ok(())
}

//! Something the line depends on (the sink, the device): its gate, and the way to its breaker.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use ractor::ActorRef;
use tokio::sync::watch;

use super::circuit::{Event, Gate};

/// Something the line depends on, its gate and its breaker.
#[derive(Debug)]
pub struct Dependency {
    /// `sink` or `device`.
    pub name: &'static str,
    /// What the breaker publishes.
    pub gate: watch::Sender<Gate>,
    breaker: Mutex<Option<ActorRef<Event>>>,
    seen: Mutex<Seen>,
}

/// What a breaker last saw, beside its gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Failures that count now.
    pub failures: usize,
    /// Since when it has been shut, with no work done in between.
    pub shut_since: Option<Instant>,
    /// When it is probed next.
    pub next_probe: Option<Instant>,
}

impl Dependency {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            gate: watch::Sender::new(Gate::Closed),
            breaker: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// What the breaker publishes beside its gate.
    pub fn seen(&self, seen: Seen) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// What the breaker last saw.
    pub fn last_seen(&self) -> Seen {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether work may flow.
    pub fn is_up(&self) -> bool {
        *self.gate.borrow() == Gate::Closed
    }

    /// Returns once work may flow.
    pub async fn up(&self) {
        // The sender lives as long as `self`.
        let _ = self.gate.subscribe().wait_for(|gate| *gate == Gate::Closed).await;
    }

    /// Tells the breaker an outcome; one that is just being restarted misses it, and learns from the next.
    pub fn tell(&self, event: Event) {
        if let Some(breaker) = &*self.breaker.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = breaker.cast(event);
        }
    }

    /// The breaker of this incarnation.
    pub fn watched_by(&self, breaker: ActorRef<Event>) {
        *self.breaker.lock().unwrap_or_else(PoisonError::into_inner) = Some(breaker);
    }
}

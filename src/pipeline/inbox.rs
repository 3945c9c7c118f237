//! Sources on their way to the intake: those a run begins with, and those that `enqueue` brings while it goes on.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::intake::Input;

/// See the module.
#[derive(Debug)]
pub struct Inbox {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Input>,
    /// The intake has not said yet that it is done with the last one it took; so it is before the first.
    reading: bool,
    closed: bool,
}

/// What is next for the intake.
#[derive(Debug)]
pub enum Next {
    /// Read this one.
    Input(Input),
    /// All was read; said once, and from then on whenever the wait for more was in vain.
    Idle,
    /// All was read, and nothing will come any more.
    Closed,
}

impl Default for Inbox {
    fn default() -> Self {
        let state = State { waiting: VecDeque::new(), reading: true, closed: false };
        Self { state: Mutex::new(state), moved: Condvar::new() }
    }
}

impl Inbox {
    /// Adds sources. False when the line comes to its end and reads nothing any more.
    pub fn push(&self, inputs: Vec<Input>) -> bool {
        let mut state = self.state();
        if state.closed {
            return false;
        }
        state.waiting.extend(inputs);
        drop(state);
        self.moved.notify_all();
        true
    }

    /// The next source; waits for one at most `patience`.
    pub fn next(&self, patience: Duration) -> Next {
        let mut state = self.state();
        if state.waiting.is_empty() && !state.closed {
            if std::mem::take(&mut state.reading) {
                return Next::Idle;
            }
            let idle = |state: &mut State| state.waiting.is_empty() && !state.closed;
            let waited = self.moved.wait_timeout_while(state, patience, idle);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match state.waiting.pop_front() {
            Some(input) => {
                state.reading = true;
                Next::Input(input)
            }
            None if state.closed => {
                state.reading = false;
                Next::Closed
            }
            None => Next::Idle,
        }
    }

    /// Whether all that came was read.
    pub fn all_read(&self) -> bool {
        let state = self.state();
        state.waiting.is_empty() && !state.reading
    }

    /// Takes in nothing more, if all that came was read: what decides that a run is at its end. False when a source
    /// came in between.
    pub fn close_if_read(&self) -> bool {
        let mut state = self.state();
        let read = state.waiting.is_empty() && !state.reading;
        state.closed |= read;
        drop(state);
        self.moved.notify_all();
        read
    }

    /// Takes in nothing more; what waits is still handed out.
    pub fn close(&self) {
        self.state().closed = true;
        self.moved.notify_all();
    }

    /// The intake has ended: nothing is read any more.
    pub fn ended(&self) {
        let mut state = self.state();
        state.waiting.clear();
        (state.closed, state.reading) = (true, false);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::RegisteredSource;

    fn input(source_id: i64) -> Input {
        let uri = format!("/{source_id}");
        Input { path: uri.clone().into(), registered: RegisteredSource { source_id, uri } }
    }

    fn next(inbox: &Inbox) -> String {
        match inbox.next(Duration::ZERO) {
            Next::Input(input) => input.registered.uri,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn an_end_is_an_end_only_when_nothing_came_in_between() {
        let inbox = Inbox::default();
        assert!(!inbox.all_read() && !inbox.close_if_read(), "the intake has not begun");
        assert!(inbox.push(vec![input(1), input(2)]));
        assert_eq!([next(&inbox), next(&inbox)], ["/1", "/2"]);
        assert!(!inbox.all_read(), "the second one is being read");
        assert_eq!(next(&inbox), "Idle");
        assert!(inbox.all_read());
        assert!(inbox.push(vec![input(3)]));
        assert!(!inbox.close_if_read(), "it came in time");
        assert_eq!([next(&inbox), next(&inbox), next(&inbox)], ["/3", "Idle", "Idle"]);
        assert!(inbox.close_if_read());
        assert!(!inbox.push(vec![input(4)]), "it came too late, and is told so");
        assert_eq!(next(&inbox), "Closed");
    }

    #[test]
    fn a_closed_inbox_hands_out_what_waits() {
        let inbox = Inbox::default();
        inbox.push(vec![input(1)]);
        inbox.close();
        assert_eq!([next(&inbox), next(&inbox)], ["/1", "Closed"]);
        assert!(inbox.all_read());
    }
}

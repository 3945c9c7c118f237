//! Whether a letter whose subject failed once more waits for a redrive, or for somebody's approval of one. Pure.

use super::dead::State;
use crate::error::Class;

/// `dlq.max_redrives` where nobody set it.
pub const MAX_REDRIVES: u32 = 3;

/// What is known of the letter when its subject fails again: the same text, to be embedded under the same identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Where it stands.
    pub state: State,
    /// Class of its last failure.
    pub class: Class,
    /// Times it was redriven, this one included.
    pub redrives: u32,
}

/// The state after a failure of this class. `standing` is `None` for a first failure, and for that of a new text or
/// under a new identity, as that is a new chance.
pub fn state_after(standing: Option<Standing>, class: Class, max_redrives: u32) -> State {
    match standing {
        // Nobody knows whether it was carried out: only a person may say that it is safe to send it again.
        _ if class == Class::UnknownOutcome => State::Quarantined,
        Some(Standing { state: State::Redriven, class: before, redrives }) => {
            if before == class || redrives >= max_redrives { State::Quarantined } else { State::Open }
        }
        // Another chunk of the record that it was redriven as failed before this one.
        Some(Standing { state: State::Quarantined, .. }) => State::Quarantined,
        Some(Standing { state: State::Open | State::Resolved | State::Discarded, .. }) | None => State::Open,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queue::index::STATES;

    fn class() -> impl Strategy<Value = Class> {
        (0..Class::ALL.len()).prop_map(|at| Class::ALL[at])
    }

    proptest! {
        #[test]
        fn a_failure_ends_open_or_quarantined_and_the_rule_is_the_documented_one(
            state in 0..STATES.len(), before in class(), class in class(), redrives in 0_u32..9, max in 1_u32..9,
            first: bool,
        ) {
            let state = STATES[state];
            let standing = (!first).then_some(Standing { state, class: before, redrives });
            let after = state_after(standing, class, max);
            prop_assert!(matches!(after, State::Open | State::Quarantined));
            let again = !first && state == State::Redriven && (before == class || redrives >= max);
            let stays = !first && state == State::Quarantined;
            let expected = class == Class::UnknownOutcome || again || stays;
            prop_assert_eq!(after == State::Quarantined, expected);
        }

        /// However the classes alternate, nothing is sent round more often than the setting says without a person.
        #[test]
        fn redriving_alone_ends(classes in proptest::collection::vec(class(), 12), max in 1_u32..6) {
            let (mut state, mut last, mut redrives) = (State::Open, None, 0);
            for class in classes {
                if state == State::Quarantined {
                    break;
                }
                let standing = last.map(|before| {
                    redrives += 1;
                    Standing { state: State::Redriven, class: before, redrives }
                });
                state = state_after(standing, class, max);
                last = Some(class);
            }
            prop_assert!(redrives <= max);
            prop_assert_eq!(state, State::Quarantined);
        }
    }
}

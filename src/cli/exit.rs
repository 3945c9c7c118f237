//! Exit codes: a documented promise.

use std::process::ExitCode;

use crate::pipeline::report::Outcome;

/// How the program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All is written, or the verb did what was asked.
    Ok,
    /// Finished, with dead letters, incomplete input or a mismatch.
    Partial,
    /// Could not run: config, model, sink, damaged store.
    CannotRun,
    /// Halted: a dependency was down too long, the disk was full too long, too much died.
    Halted,
    /// Interrupted and drained.
    Interrupted,
}

impl Exit {
    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Partial => 1,
            Self::CannotRun => 2,
            Self::Halted => 3,
            Self::Interrupted => 130,
        }
    }

    /// Two endings as one: 3 beats 130 beats 2 beats 1 beats 0.
    pub fn and(self, other: Self) -> Self {
        let rank = |exit| match exit {
            Self::Ok => 0,
            Self::Partial => 1,
            Self::CannotRun => 2,
            Self::Interrupted => 3,
            Self::Halted => 4,
        };
        if rank(self) >= rank(other) { self } else { other }
    }
}

impl From<Outcome> for Exit {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Complete | Outcome::Limited => Self::Ok,
            Outcome::Partial => Self::Partial,
            Outcome::Halted => Self::Halted,
            Outcome::Interrupted => Self::Interrupted,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_beats_130_beats_one() {
        let all = [Exit::Ok, Exit::Partial, Exit::CannotRun, Exit::Interrupted, Exit::Halted];
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate() {
                assert_eq!(a.and(*b), all[i.max(j)]);
            }
        }
        assert_eq!(all.map(Exit::code), [0, 1, 2, 130, 3]);
    }
}

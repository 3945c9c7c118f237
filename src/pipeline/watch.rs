//! A call that never comes back is noticed: the line halts and says which, so that the process can be started anew.

use std::time::Duration;

use super::{
    line::Line,
    worker::{Panicked, Worker},
};

/// What is watched, and what to type when it hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Leasing and tokenising.
    Tokenizer,
    /// A forward pass.
    Pass,
    /// A call of the sink, or of the ledger after it.
    Sink,
}

impl Watched {
    const fn words(self) -> (&'static str, &'static str) {
        const APART: &str =
            "start the process again, and the chunks it was working on are tried apart from the others";
        match self {
            Self::Tokenizer => ("the tokenizer", APART),
            Self::Pass => ("a forward pass", APART),
            Self::Sink => (
                "a call of the sink",
                "look at the sink (`forebay check`) and start the process again; no chunk is charged",
            ),
        }
    }
}

/// Does a job on a worker. `None`: it did not come back within `pipeline.watchdog_s`, and the line halts; the worker
/// must not be given another one.
pub async fn watched<T: Send + 'static>(
    line: &Line,
    worker: &Worker,
    what: Watched,
    job: impl FnOnce() -> T + Send + 'static,
) -> Option<Result<T, Panicked>> {
    let limit = line.settings.pipeline.watchdog_s;
    let result = tokio::time::timeout(Duration::from_secs(limit), worker.run(job)).await.ok();
    if result.is_none() {
        let (what, remedy) = what.words();
        line.halt(format!("{what} has not come back for pipeline.watchdog_s = {limit}; {remedy}"));
    }
    result
}

//! A thread of its own for blocking work: tokenising, the forward pass, the sink. Never the async runtime.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
};

use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// A named thread that does one job after the other. It ends when the worker is dropped and its jobs are done.
#[derive(Debug)]
pub struct Worker {
    jobs: mpsc::SyncSender<Job>,
}

/// The job panicked; its message, without the text it was working on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("panicked: {0}")]
pub struct Panicked(pub String);

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(name: &str) -> std::io::Result<Self> {
        // One job waits at most: a stage asks for one thing at a time.
        let (jobs, queue) = mpsc::sync_channel::<Job>(1);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || queue.into_iter().for_each(|job| job()))?;
        Ok(Self { jobs })
    }

    /// Does a job on the thread. Dropping the future does not stop the job; its result is then dropped.
    ///
    /// # Errors
    /// When it panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(job)).map_err(|panic| Panicked(words(panic.as_ref())));
            // Nobody listening means the stage was stopped: the result is dropped, and leases go back.
            let _ = reply.send(result);
        });
        if self.jobs.send(job).is_err() {
            return Err(Panicked("its thread is gone".into()));
        }
        answer.await.unwrap_or_else(|_| Err(Panicked("its thread is gone".into())))
    }
}

/// What a panic said. Only literal messages are kept: a formatted one may quote a document.
pub fn words(panic: &(dyn std::any::Any + Send)) -> String {
    panic.downcast_ref::<&str>().map_or_else(|| "(message withheld)".to_owned(), |text| (*text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer_and_the_thread_goes_on() {
        let worker = Worker::start("t").unwrap();
        assert_eq!(worker.run(|| -> u8 { panic!("boom") }).await, Err(Panicked("boom".into())));
        assert_eq!(worker.run(|| 7).await, Ok(7));
    }
}

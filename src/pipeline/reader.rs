//! In: the queue. Out: `Batch<Tokens>`. Permit first, lease second: nothing is leased that cannot be passed on.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use super::{
    batch::{Batch, Item},
    line::{DeadLane, Line, Stop},
    triage,
    watch::{Watched, watched},
};
use crate::{
    chunk::Chunk,
    clock::paced,
    embed::Tokens,
    error::{Class, Fault, Stage},
    folder::free_mb,
    queue::{Lease, Leased, QueueError},
};

/// Bytes of stored text taken for one token when a batch is put together, before anything is counted.
const BYTES_A_TOKEN: usize = 4;

/// Prepare the next batch.
#[derive(Debug)]
pub struct Tick;

/// The actor.
#[derive(Debug)]
pub struct Reader;

/// Its state.
pub struct State {
    /// The run.
    pub line: Arc<Line>,
    /// To the embedder.
    pub out: mpsc::Sender<Batch<Tokens>>,
    /// To the dead-letter actor.
    pub dead: DeadLane,
    /// Moves when the queue changes.
    pub changed: watch::Receiver<u64>,
}

impl Actor for Reader {
    type Msg = Tick;
    type State = State;
    type Arguments = State;

    async fn pre_start(&self, me: ActorRef<Tick>, state: State) -> Result<State, ActorProcessingErr> {
        me.cast(Tick)?;
        Ok(state)
    }

    async fn handle(&self, me: ActorRef<Tick>, _: Tick, state: &mut State) -> Result<(), ActorProcessingErr> {
        let line = Arc::clone(&state.line);
        let permit = tokio::select! { biased;
            () = line.drained() => None,
            permit = permit(&line) => Some(permit?),
        };
        let Some(permit) = permit else {
            me.stop(Some("eof".into()));
            return Ok(());
        };
        if state.room_on_disk().await && state.step(permit).await? == Step::End {
            me.stop(Some("eof".into()));
            return Ok(());
        }
        Ok(me.cast(Tick)?)
    }
}

/// Both dependencies work, and a batch less is in flight than may be.
async fn permit(line: &Line) -> Result<OwnedSemaphorePermit, ActorProcessingErr> {
    loop {
        let permit = Arc::clone(&line.permits).acquire_owned().await?;
        if line.device_state.is_up() && line.sink_state.is_up() {
            return Ok(permit);
        }
        drop(permit);
        line.device_state.up().await;
        line.sink_state.up().await;
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Again,
    End,
}

/// What the reader's thread brings back.
type Prepared = Result<(Leased, Vec<Result<Tokens, Fault>>), QueueError>;

impl State {
    async fn step(&mut self, permit: OwnedSemaphorePermit) -> Result<Step, ActorProcessingErr> {
        // Looked at before the queue is: a chunk enqueued in between moves the watch.
        let all_read = self.line.all_read();
        if is_done(&self.line) {
            self.line.stop(Stop::Limited);
            return Ok(Step::Again);
        }
        self.changed.mark_unchanged();
        let shared = Arc::clone(&self.line);
        let job = move || prepare(&shared);
        // Hung, the started marks stay, so that the next process finds the culprit.
        let Some(prepared) = watched(&self.line, &self.line.reader_thread, Watched::Tokenizer, job).await
        else {
            return Ok(Step::Again);
        };
        match prepared? {
            Ok((Leased::Chunks(chunks), tokens)) => self.pass_on(chunks, tokens, permit).await,
            Ok((Leased::Wait(until), _)) => {
                drop(permit);
                self.wait(until).await;
            }
            Ok((Leased::Empty, _)) if all_read && self.line.inbox.close_if_read() => return Ok(Step::End),
            Ok((Leased::Empty, _)) => {
                drop(permit);
                self.wait(None).await;
            }
            // A full disk too: after one failed flush the store refuses everything until it is opened again.
            Err(error) => self.line.halt(self.line.told(error)),
        }
        Ok(Step::Again)
    }

    async fn pass_on(
        &mut self,
        chunks: Vec<(Lease, Chunk)>,
        tokens: Vec<Result<Tokens, Fault>>,
        permit: OwnedSemaphorePermit,
    ) {
        let (mut good, mut failed) = (Vec::with_capacity(chunks.len()), Vec::new());
        for ((lease, chunk), tokens) in chunks.into_iter().zip(tokens) {
            match tokens {
                Ok(value) => good.push(Item { lease, chunk, value }),
                Err(fault) => failed.push((Item { lease, chunk, value: () }, fault)),
            }
        }
        triage::triage(&self.line, &self.dead, Stage::Reader, failed).await;
        if !good.is_empty() {
            // A closed lane means that the line is torn down: the batch is dropped, and so still queued.
            let _ = self.out.send(Batch::new(good, permit)).await;
        }
    }

    /// Until the queue changes, the given time has come, or the line drains.
    async fn wait(&mut self, until: Option<Instant>) {
        let at = until.unwrap_or_else(|| Instant::now() + Duration::from_secs(1));
        tokio::select! {
            _ = self.changed.changed() => {}
            () = tokio::time::sleep_until(at.into()) => {}
            () = self.line.drained() => {}
        }
    }

    /// True when there is enough room to take up new work.
    async fn room_on_disk(&mut self) -> bool {
        let free = free_mb(&self.line.folder.dir);
        if free.is_none_or(|free| free >= self.line.settings.limits.min_free_mb) {
            self.line.set_full(false);
            return true;
        }
        self.wait_for_space().await;
        false
    }

    async fn wait_for_space(&mut self) {
        let limits = &self.line.settings.limits;
        if self.line.full_since().is_none() {
            tracing::warn!(min_free_mb = limits.min_free_mb, "the disk is full; waiting for space");
        }
        let waited = self.line.set_full(true).map_or(Duration::ZERO, |full| full.since.elapsed());
        if waited >= Duration::from_secs(limits.disk_full_wait_s) {
            self.line.halt(format!(
                "the disk of {} has been full for limits.disk_full_wait_s = {}; free some space and run again",
                self.line.folder.dir.display(),
                limits.disk_full_wait_s
            ));
        }
        self.line.pause(paced(Duration::from_secs(1))).await;
    }
}

/// Leases and tokenises, on the reader's thread.
fn prepare(line: &Line) -> Prepared {
    let queue = &line.folder.queue;
    let leased = match allowance(line) {
        0 if queue.depth().pending > 0 => Leased::Wait(None),
        0 => Leased::Empty,
        chunks => queue.lease(chunks, batch_tokens(line) * BYTES_A_TOKEN)?,
    };
    let tokens = match &leased {
        Leased::Chunks(chunks) => {
            chunks.iter().map(|(lease, chunk)| tokens(line, lease, chunk)).collect::<Result<_, _>>()?
        }
        Leased::Wait(_) | Leased::Empty => Vec::new(),
    };
    Ok((leased, tokens))
}

/// Chunks that the next batch may have: with what is in flight never more than are left of `--limit`.
fn allowance(line: &Line) -> usize {
    let most = line.settings.pipeline.batch_chunks;
    let Some(limit) = line.settings.limit else { return most };
    // In this order: a chunk is counted before it leaves the window, so it is seen here twice or once, never not.
    let in_flight = line.folder.queue.depth().in_flight as u64;
    let left = limit.saturating_sub(in_flight + line.written());
    usize::try_from(left).unwrap_or(most).min(most)
}

/// Whether `--limit` is reached and there is more to do.
fn is_done(line: &Line) -> bool {
    line.settings.limit.is_some_and(|limit| line.written() >= limit) && line.folder.queue.depth().pending > 0
}

/// Tokens for the next batch: enough to keep the model busy for a while, few enough that a kill costs little. Before
/// the model's speed is known, a small batch finds it out. However slow it is, a batch fills a pass: of a few texts one
/// thread has more than its share, and the others wait for it (8 % of the time with 700 tokens on two threads, 0.4 %
/// with 4,096).
fn batch_tokens(line: &Line) -> usize {
    const LEAST: usize = 4_096;
    let settings = &line.settings.pipeline;
    let wanted = line.tally.tokens_in(Duration::from_millis(settings.batch_ms)).unwrap_or(LEAST);
    wanted.max(LEAST.min(line.learning.tokens())).clamp(1, settings.batch_tokens)
}

/// Tokens of a chunk's text, marked as cut where a repair cut it, too.
fn tokens(line: &Line, lease: &Lease, chunk: &Chunk) -> Result<Result<Tokens, Fault>, QueueError> {
    let was_cut = line.folder.queue.was_cut(lease)?;
    let tokens = tokenize(line, &chunk.text);
    Ok(tokens.map(|tokens| Tokens { truncated: tokens.truncated || was_cut, ..tokens }))
}

/// A tokenizer that panics on one text must not take its neighbours along.
fn tokenize(line: &Line, text: &str) -> Result<Tokens, Fault> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| line.model.tokenize(text)))
        .unwrap_or_else(|_| Err(Fault::new(Class::TokenizerFailed, "the tokenizer panicked on this text")))
}

//! In: `Batch<Tokens>`. Out: `Batch<Embedding>`. A pass that fails as a whole is halved until its culprit stands
//! alone (`bisect`); a device that is down is waited for, and nobody is charged.

use std::{sync::Arc, time::Instant};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{Mutex, mpsc};

use super::{
    batch::{Batch, Item},
    bisect::{Bisect, Step},
    circuit::Event,
    line::{DeadLane, Line},
    triage,
    watch::{Watched, watched},
};
use crate::{
    chunk::{Chunk, Embedding},
    embed::{EmbedError, Tokens},
    error::{Class, Fault, Stage},
    queue::Lease,
};

/// Embed the next batch.
#[derive(Debug)]
pub struct Tick;

/// The actor.
#[derive(Debug)]
pub struct Embedder;

/// Its state.
pub struct State {
    /// The run.
    pub line: Arc<Line>,
    /// From the reader; outlives this incarnation.
    pub lane: Arc<Mutex<mpsc::Receiver<Batch<Tokens>>>>,
    /// To the writer.
    pub out: mpsc::Sender<Batch<Embedding>>,
    /// To the dead-letter actor.
    pub dead: DeadLane,
}

impl Actor for Embedder {
    type Msg = Tick;
    type State = State;
    type Arguments = State;

    async fn pre_start(&self, me: ActorRef<Tick>, state: State) -> Result<State, ActorProcessingErr> {
        me.cast(Tick)?;
        Ok(state)
    }

    async fn handle(&self, me: ActorRef<Tick>, _: Tick, state: &mut State) -> Result<(), ActorProcessingErr> {
        let Some(batch) = state.lane.lock().await.recv().await else {
            me.stop(Some("eof".into()));
            return Ok(());
        };
        // While draining, what has not been started goes back to the queue.
        if !state.line.draining() {
            state.embed(batch).await;
        }
        Ok(me.cast(Tick)?)
    }
}

/// Which texts share a pass. One that failed by itself before has its own: its neighbours were halved for it once.
fn plan(line: &Line, tokens: &[Tokens], failed_before: impl Iterator<Item = bool>) -> Vec<Vec<usize>> {
    let (alone, together): (Vec<_>, Vec<_>) = failed_before.enumerate().partition(|(_, failed)| *failed);
    let lengths: Vec<usize> = together.iter().map(|(at, _)| tokens[*at].ids.len()).collect();
    let planned = line.model.plan_within(&lengths, line.learning.tokens());
    let shared = planned.into_iter().map(|group| group.into_iter().map(|at| together[at].0).collect());
    shared.chain(alone.iter().map(|(at, _)| vec![*at])).collect()
}

/// What became of each text of a batch; `None`: not tried.
type Results = Vec<Option<Result<Embedding, Fault>>>;

impl State {
    async fn embed(&self, batch: Batch<Tokens>) {
        let (items, permit) = batch.open();
        let (mut receipts, mut tokens) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
        for Item { lease, chunk, value } in items {
            receipts.push((lease, chunk));
            tokens.push(value);
        }
        let tokens = Arc::new(tokens);
        let failed_before = |(lease, _): &(Lease, Chunk)| lease.record().attempts > 0;
        let groups = plan(&self.line, &tokens, receipts.iter().map(failed_before));
        let Some(results) = self.passes(&tokens, groups).await else {
            // The forward pass hangs: the started marks stay, so that the next process finds the culprit.
            receipts.into_iter().for_each(|(lease, _)| lease.abandon());
            return;
        };
        let (mut done, mut failed) = (Vec::with_capacity(receipts.len()), Vec::new());
        for ((lease, chunk), result) in receipts.into_iter().zip(results) {
            match result {
                Some(Ok(value)) => done.push(Item { lease, chunk, value }),
                Some(Err(fault)) => failed.push((Item { lease, chunk, value: () }, fault)),
                None => drop(lease),
            }
        }
        triage::triage(&self.line, &self.dead, Stage::Embedder, failed).await;
        if !done.is_empty() {
            let _ = self.out.send(Batch::new(done, permit)).await;
        }
    }

    /// Forward passes over all texts. `None`: one of them hangs.
    async fn passes(&self, tokens: &Arc<Vec<Tokens>>, groups: Vec<Vec<usize>>) -> Option<Results> {
        let mut results: Results = vec![None; tokens.len()];
        let (mut bisect, mut tries) = (Bisect::new(groups), 0);
        while !self.line.draining() {
            bisect.guilty().into_iter().for_each(|(at, fault)| results[at] = Some(Err(fault)));
            match bisect.step() {
                Step::Done => break,
                Step::Golden => {
                    let golden = self.golden().await?;
                    bisect.golden(golden.is_ok());
                    if let Err(why) = golden {
                        tries += 1;
                        self.device_down(&Fault::new(Class::ModelFailed, why), tries).await;
                    }
                }
                Step::Pass(group) => match self.pass(tokens, group.clone()).await? {
                    Ok(vectors) => {
                        group.iter().zip(vectors).for_each(|(at, vector)| results[*at] = Some(vector));
                        self.line.device_state.tell(Event::Ok);
                        bisect.passed();
                        tries = 0;
                    }
                    Err(EmbedError::Unavailable(fault)) => {
                        bisect.put_back(group);
                        tries += 1;
                        self.device_down(&fault, tries).await;
                    }
                    Err(error) => {
                        tracing::info!(texts = group.len(), class = %error.class(), "a pass failed");
                        bisect.failed(group, Fault::new(error.class(), error.to_string()));
                    }
                },
            }
        }
        Some(results)
    }

    /// One forward pass on the model's thread. `None`: it did not come back in time.
    async fn pass(
        &self,
        tokens: &Arc<Vec<Tokens>>,
        group: Vec<usize>,
    ) -> Option<Result<Vec<Result<Embedding, Fault>>, EmbedError>> {
        let (line, tokens) = (Arc::clone(&self.line), Arc::clone(tokens));
        let job = move || {
            let began = Instant::now();
            let texts: Vec<&Tokens> = group.iter().map(|at| &tokens[*at]).collect();
            let result = line.model.embed(&texts);
            let n_tokens = texts.iter().map(|tokens| tokens.ids.len()).sum();
            line.tally.passed(texts.len(), n_tokens, began);
            line.learn(texts.len(), n_tokens, &result);
            let vectors = result?;
            if vectors.len() != texts.len() {
                let why = format!("{} vectors for {} texts", vectors.len(), texts.len());
                return Err(EmbedError::Failed(why));
            }
            Ok(vectors)
        };
        let result = watched(&self.line, &self.line.model_thread, Watched::Pass, job).await?;
        Some(result.unwrap_or_else(|panicked| Err(EmbedError::Panicked(panicked.0))))
    }

    /// Whether the golden text passes, else why not. `None`: it did not come back in time.
    async fn golden(&self) -> Option<Result<(), String>> {
        let line = Arc::clone(&self.line);
        let passed =
            watched(&self.line, &self.line.model_thread, Watched::Pass, move || golden_passes(&line));
        Some(passed.await?.unwrap_or_else(|panicked| Err(panicked.to_string())))
    }

    /// Waits until the device may be tried again, or the line drains.
    async fn device_down(&self, fault: &Fault, tries: u32) {
        let Some(wait) = triage::outage(&self.line, Stage::Embedder, fault, tries) else { return };
        if !self.line.pause(wait).await {
            tokio::select! {
                () = self.line.device_state.up() => {}
                () = self.line.drained() => {}
            }
        }
    }
}

/// Embeds the text that is known to work.
pub fn golden_passes(line: &Line) -> Result<(), String> {
    let (golden, began) = (line.model.golden(), Instant::now());
    let result = line.model.embed(&[&golden]);
    line.tally.tried(golden.ids.len(), began);
    match result {
        Ok(vectors) if vectors.iter().all(Result::is_ok) => Ok(()),
        Ok(_) => Err("the golden text gives no finite vector".into()),
        Err(error) => Err(error.to_string()),
    }
}

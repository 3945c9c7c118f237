//! In: `Batch<Embedding>`. Out: rows in the sink, then in the ledger, and only then counted and settled.
//!
//! A sink that is down is waited for with the batch in hand: nothing embedded is thrown away, nothing is charged.

use std::{sync::Arc, time::Duration};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{Mutex, OwnedSemaphorePermit, mpsc};

use super::{
    batch::{Batch, Item},
    circuit::Event,
    commit::{self, Committed},
    line::{DeadLane, Line, Stop},
    triage,
};
use crate::{
    chunk::Embedding,
    clock::paced,
    error::{Class, Fault},
    queue::policy::wait_max,
    sink::SinkError,
};

/// Write the next batch.
#[derive(Debug)]
pub struct Tick;

/// The actor.
#[derive(Debug)]
pub struct Writer;

/// Its state.
pub struct State {
    /// The run.
    pub line: Arc<Line>,
    /// From the embedder; outlives this incarnation.
    pub lane: Arc<Mutex<mpsc::Receiver<Batch<Embedding>>>>,
    /// To the dead-letter actor.
    pub dead: DeadLane,
}

impl Actor for Writer {
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
        state.write(batch).await?;
        Ok(me.cast(Tick)?)
    }
}

type Items = Vec<Item<Embedding>>;

impl State {
    async fn write(&self, batch: Batch<Embedding>) -> Result<(), ActorProcessingErr> {
        let (items, _permit): (Items, OwnedSemaphorePermit) = batch.open();
        let (mut parts, mut tries) = (vec![items], 0);
        while let Some(items) = parts.pop() {
            if items.is_empty() {
                continue;
            }
            self.line.sink_state.up().await;
            let line = Arc::clone(&self.line);
            let committed = self.line.sink_thread.run(move || commit::commit(&line, items)).await?;
            match committed {
                Committed::Done => {
                    tries = 0;
                    self.line.sink_state.tell(Event::Ok);
                }
                Committed::Refused(items, error) => {
                    tries += 1;
                    self.refused(&mut parts, items, error, tries).await?;
                }
                Committed::Broken(why) => {
                    self.line.halt(why);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn refused(
        &self,
        parts: &mut Vec<Items>,
        mut items: Items,
        error: SinkError,
        tries: u32,
    ) -> Result<(), ActorProcessingErr> {
        match error {
            SinkError::Unavailable(fault) if fault.class == Class::DiskFull => {
                self.line.stop(Stop::Full(fault.message));
                // Dropped, and so still queued.
                parts.clear();
            }
            SinkError::Unavailable(fault) => {
                parts.push(items);
                self.down(&fault, tries).await;
            }
            SinkError::Row { index, fault } if index < items.len() => {
                self.line.sink_state.tell(Event::Neutral);
                let item = items.remove(index);
                parts.push(items);
                triage::triage(&self.line, &self.dead, vec![(item, fault)]).await;
            }
            SinkError::Row { fault, .. } | SinkError::Batch(fault) if items.len() > 1 => {
                tracing::info!(rows = items.len(), class = %fault.class, "a write failed; halving it");
                let right = items.split_off(items.len() / 2);
                parts.extend([right, items]);
            }
            SinkError::Row { fault, .. } | SinkError::Batch(fault) => {
                let line = Arc::clone(&self.line);
                if matches!(self.line.sink_thread.run(move || line.sink.probe()).await, Ok(Ok(()))) {
                    self.line.sink_state.tell(Event::Neutral);
                    let failed = items.into_iter().map(|item| (item, fault.clone())).collect();
                    triage::triage(&self.line, &self.dead, failed).await;
                } else {
                    parts.push(items);
                    self.down(&fault, tries).await;
                }
            }
            SinkError::Unusable(why) => {
                self.line.halt(why);
                // Dropped, and so still queued.
                parts.clear();
            }
        }
        Ok(())
    }

    /// The dependency failed: told to the breaker, charged to nobody.
    async fn down(&self, fault: &Fault, tries: u32) {
        tracing::warn!(class = %fault.class, code = fault.native_code, why = fault.message, "the sink is unavailable");
        self.line.sink_state.tell(Event::Failure);
        let wait = wait_max(&self.line.settings.retry, tries).mul_f64(fastrand::f64());
        tokio::time::sleep(paced(wait.max(Duration::from_millis(50)))).await;
    }
}

//! In: `Batch<Embedding>`. Out: rows in the sink, then in the ledger, and only then counted and settled.
//!
//! A sink that is down is waited for with the batch in hand: nothing embedded is thrown away, nothing is charged.

use std::sync::Arc;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::{Mutex, OwnedSemaphorePermit, mpsc};

use super::{
    batch::{Batch, Item},
    bisect::{Bisect, Step},
    circuit::Event,
    commit::{self, Items, Recorded},
    line::{DeadLane, Line, Stop},
    triage,
    watch::{Watched, watched},
};
use crate::{
    chunk::Embedding,
    clock::paced,
    error::{Class, Fault, Stage},
    sink::{Row, SinkError},
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
    /// The sink was given up: what still comes down the lane is let go of.
    pub gone: bool,
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
        // A sink that was given up is not waited for by the batches behind: they are dropped, and so still queued.
        if !state.gone {
            state.gone = state.write(batch).await?.is_none();
        }
        Ok(me.cast(Tick)?)
    }
}

/// `None`: the sink was given up, and the line halts.
type Going = Option<()>;

impl State {
    async fn write(&self, batch: Batch<Embedding>) -> Result<Going, ActorProcessingErr> {
        let (items, _permit): (Items, OwnedSemaphorePermit) = batch.open();
        let (mut bisect, mut tries) = (Bisect::new(vec![items]), 0);
        loop {
            if !self.line.up_or_halted(&self.line.sink_state).await {
                return Ok(None);
            }
            triage::triage(&self.line, &self.dead, Stage::Writer, bisect.guilty()).await;
            let step = match bisect.step() {
                Step::Done => return Ok(Some(())),
                Step::Golden => self.probe(&mut bisect, &mut tries).await,
                Step::Pass(items) => self.pass(&mut bisect, items, &mut tries).await?,
            };
            if step.is_none() {
                return Ok(None);
            }
        }
    }

    /// One write of these rows together.
    async fn pass(
        &self,
        bisect: &mut Bisect<Item<Embedding>>,
        items: Items,
        tries: &mut u32,
    ) -> Result<Going, ActorProcessingErr> {
        let (line, rows) = (Arc::clone(&self.line), commit::rows(&items));
        let job = move || {
            let result = commit::write(&line, &rows);
            (rows, result)
        };
        let Some(result) = watched(&self.line, &self.line.sink_thread, Watched::Sink, job).await else {
            return Ok(None);
        };
        let (rows, result) = result?;
        let Err(error) = result else {
            bisect.passed();
            *tries = 0;
            return self.record(items, rows).await;
        };
        *tries += 1;
        Ok(self.refused(bisect, items, error, *tries).await)
    }

    async fn refused(
        &self,
        bisect: &mut Bisect<Item<Embedding>>,
        mut items: Items,
        error: SinkError,
        tries: u32,
    ) -> Going {
        match error {
            SinkError::Unavailable(fault) if fault.class == Class::DiskFull => {
                self.line.stop(Stop::Full(fault.message));
                None
            }
            SinkError::Unknown(fault) if !self.line.sink.is_idempotent() => {
                let message = format!("sent, and nobody knows what became of it: {}", fault.message);
                let fault = Fault { class: Class::UnknownOutcome, message, ..fault };
                let failed = items.into_iter().map(|item| (item, fault.clone())).collect();
                triage::triage(&self.line, &self.dead, Stage::Writer, failed).await;
                self.line.sink_state.tell(Event::Failure);
                Some(())
            }
            SinkError::Unavailable(fault) | SinkError::Unknown(fault) => {
                bisect.put_back(items);
                self.down(&fault, tries).await
            }
            SinkError::Row { index, fault } if index < items.len() => {
                let item = items.remove(index);
                bisect.put_back(items);
                triage::triage(&self.line, &self.dead, Stage::Writer, vec![(item, fault)]).await;
                Some(())
            }
            SinkError::Row { fault, .. } | SinkError::Batch(fault) => {
                tracing::info!(rows = items.len(), class = %fault.class, "a write failed");
                bisect.failed(items, fault);
                Some(())
            }
            SinkError::Unusable(why) => {
                self.line.halt(why);
                None
            }
        }
    }

    /// Whether the sink takes a probe row: it decides between it and the rows that failed.
    async fn probe(&self, bisect: &mut Bisect<Item<Embedding>>, tries: &mut u32) -> Going {
        let line = Arc::clone(&self.line);
        let job = move || line.sink.probe();
        let probed = watched(&self.line, &self.line.sink_thread, Watched::Sink, job).await?;
        bisect.golden(matches!(probed, Ok(Ok(()))));
        let fault = match probed {
            Ok(Ok(())) => return Some(()),
            Ok(Err(SinkError::Unusable(why))) => {
                self.line.halt(why);
                return None;
            }
            Ok(Err(
                SinkError::Unavailable(fault)
                | SinkError::Unknown(fault)
                | SinkError::Batch(fault)
                | SinkError::Row { fault, .. },
            )) => fault,
            Err(panicked) => Fault::new(Class::SinkUnavailable, panicked.to_string()),
        };
        *tries += 1;
        self.down(&fault, *tries).await
    }

    /// Records what the sink confirmed.
    async fn record(&self, items: Items, rows: Vec<Row>) -> Result<Going, ActorProcessingErr> {
        let line = Arc::clone(&self.line);
        let job = move || commit::record(&line, items, rows);
        let Some(recorded) = watched(&self.line, &self.line.sink_thread, Watched::Sink, job).await else {
            return Ok(None);
        };
        match recorded? {
            Recorded::Done => {
                self.line.sink_state.tell(Event::Ok);
                Ok(Some(()))
            }
            Recorded::Broken(why) => {
                self.line.halt(why);
                Ok(None)
            }
        }
    }

    /// The sink failed: told to its breaker, charged to nobody. Waits, unless the line halts.
    async fn down(&self, fault: &Fault, tries: u32) -> Going {
        let wait = triage::outage(&self.line, Stage::Writer, fault, tries)?;
        tokio::select! {
            () = tokio::time::sleep(paced(wait)) => {}
            () = self.line.halted() => {}
        }
        Some(())
    }
}

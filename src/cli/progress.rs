//! Live progress: a bar on a terminal, a plain line now and then elsewhere.

use std::{
    io::IsTerminal,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::pipeline::{
    Gate, Line,
    report::{duration, grouped, short},
};

const REDRAW: Duration = Duration::from_millis(250);
const PLAIN: Duration = Duration::from_secs(10);

/// Shows progress until the future is dropped.
pub(super) async fn show(line: Arc<Line>) {
    if std::io::stderr().is_terminal() { bar(&line).await } else { plain(&line).await }
}

struct Shown(ProgressBar);

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

async fn bar(line: &Line) {
    let bar = Shown(ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr()));
    let style = ProgressStyle::with_template("{bar:20} {percent:>3}% {wide_msg}");
    bar.0.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    super::log::above(&bar.0);
    loop {
        let moment = Moment::of(line);
        bar.0.set_length(moment.total.unwrap_or(0).max(1));
        bar.0.set_position(moment.done);
        bar.0.set_message(moment.text());
        tokio::time::sleep(REDRAW).await;
    }
}

async fn plain(line: &Line) {
    let mut next = Instant::now() + PLAIN;
    loop {
        tokio::time::sleep_until(next.into()).await;
        next += PLAIN;
        eprintln!("{}", Moment::of(line).text());
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate, not negative; it saturates"
)]
fn whole(estimate: f64) -> u64 {
    estimate as u64
}

/// One moment of a run.
struct Moment {
    done: u64,
    total: Option<u64>,
    skipped: u64,
    chunks: u64,
    tokens: u64,
    dead: u64,
    wall: f64,
    gate: Option<&'static str>,
}

impl Moment {
    fn of(line: &Line) -> Self {
        let tally = &line.tally;
        let done = tally.chunks.get() + tally.skipped.get() + tally.duplicates.get() + tally.dead.get();
        let seen = tally.produced.get() + tally.unreadable.get();
        let (read, bytes) = (tally.bytes_read.load(Relaxed), tally.bytes_total.load(Relaxed));
        // The rest of the input is taken to be like what was read of it.
        let total = match (line.all_read(), read, bytes) {
            (true, ..) => Some(seen),
            (false, 0, _) | (false, _, 0) => None,
            (false, read, bytes) => Some(whole(seen as f64 * (bytes as f64 / read as f64).max(1.0))),
        };
        let down =
            [&line.sink_state, &line.device_state].into_iter().find(|d| *d.gate.borrow() != Gate::Closed);
        Self {
            done,
            total,
            skipped: tally.skipped.get() + tally.duplicates.get(),
            chunks: tally.chunks.get(),
            tokens: tally.tokens.get(),
            dead: tally.dead.get(),
            wall: tally.wall().as_secs_f64().max(1e-9),
            gate: down.map(|dependency| dependency.name),
        }
    }

    fn text(&self) -> String {
        let eta = match self.total {
            // What was skipped took no time; what is left is taken to be work.
            Some(total) if self.done > self.skipped && total > self.done => {
                duration(self.wall * (total - self.done) as f64 / (self.done - self.skipped) as f64)
            }
            Some(total) if total > self.done => "?".into(),
            Some(_) => "0s".into(),
            None => "?".into(),
        };
        let total = self.total.map_or_else(|| "?".into(), grouped);
        let waits = self.gate.map(|name| format!(" WAITING for the {name}")).unwrap_or_default();
        format!(
            "{}/{total} chunks  {} tok/s  {} chunks/s  eta {eta}  dlq {}{waits}",
            grouped(self.done),
            short(self.tokens as f64 / self.wall),
            short(self.chunks as f64 / self.wall),
            grouped(self.dead),
        )
    }
}

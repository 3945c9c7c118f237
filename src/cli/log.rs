//! Logs go to stderr, above the progress bar if there is one.

use std::{
    io::{self, Write},
    sync::OnceLock,
};

use indicatif::ProgressBar;
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

static BAR: OnceLock<ProgressBar> = OnceLock::new();

/// Log lines stand above this bar from now on.
pub(super) fn above(bar: &ProgressBar) {
    // A second bar in one process (the demo has one run) would keep the first; lines are then merely less neat.
    let _ = BAR.set(bar.clone());
}

struct Above;

impl Write for Above {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A log that cannot be written is no reason to stop: the subscriber would say so on stderr, and panic there.
        let _ = match BAR.get() {
            Some(bar) => bar.suspend(|| io::stderr().write_all(line)),
            None => io::stderr().write_all(line),
        };
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::stderr().flush();
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Above {
    type Writer = Above;

    fn make_writer(&'a self) -> Above {
        Above
    }
}

/// Starts logging: warnings, and with `-v` and `-vv` more. `FOREBAY_LOG` (tracing's filter syntax) overrides it.
pub(super) fn start(verbose: u8) {
    let level = ["warn", "forebay=info,warn", "forebay=debug,info"][usize::from(verbose.min(2))];
    let filter = EnvFilter::try_from_env("FOREBAY_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Above).with_target(false);
    // Only one subscriber can be set, and this is the only place that does.
    let _ = subscriber.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).try_init();
    // What a panic says may quote a document; where it was is enough for a report.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        if place.contains("/sled-") {
            // A damaged store: caught, and the queue is made again.
            tracing::info!(place, "the queue's store gave up");
            return;
        }
        tracing::error!(place, "a panic was caught; please report it");
    }));
}

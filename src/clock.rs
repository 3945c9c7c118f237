//! Time: the wall clock, for what is stored, and the pace of our own waits. Waits are measured by `Instant`, which does
//! not jump; a test may set the one clock ahead or back, and quicken the other.

use std::time::Duration;

/// What `testkit` does to time.
#[cfg(feature = "testkit")]
pub mod hooks {
    use std::sync::atomic::{AtomicI64, AtomicU32};

    /// Milliseconds by which the wall clock is ahead.
    pub static AHEAD_MS: AtomicI64 = AtomicI64::new(0);
    /// Our waits are so many times shorter.
    pub static QUICKER: AtomicU32 = AtomicU32::new(1);
}

/// Wall clock, milliseconds since 1970.
pub fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    #[cfg(feature = "testkit")]
    let now = now.saturating_add_signed(hooks::AHEAD_MS.load(std::sync::atomic::Ordering::Relaxed));
    now
}

/// How long to wait, in the pace of this process.
pub fn paced(wait: Duration) -> Duration {
    #[cfg(feature = "testkit")]
    let wait = wait / hooks::QUICKER.load(std::sync::atomic::Ordering::Relaxed).max(1);
    wait
}

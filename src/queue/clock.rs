//! The wall clock, for what is stored; waits inside the process are measured by `Instant`.

/// Wall clock, milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    crate::clock::wall_ms()
}

/// Wall clock, RFC 3339 UTC with milliseconds.
pub(crate) fn now_text() -> String {
    let millis = i64::try_from(now_ms()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| String::new(), |time| format!("{time:.3}"))
}

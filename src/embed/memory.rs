//! Memory of forward passes: how many tokens may go together, and whether there is still room for a pass.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{Capacity, budget, machine::Machine, plan::tokens_within};

const MIB: u64 = 1024 * 1024;

/// What passes of one model hold, and the machine they hold it on.
#[derive(Debug)]
pub struct Memory {
    /// `None`: a device that has its own, and says itself when that is used up.
    machine: Option<Machine>,
    token_bytes: usize,
    /// Of the largest pass so far: its buffers are kept, and used again.
    held: AtomicUsize,
}

impl Memory {
    /// For passes that hold `token_bytes` for each token.
    pub fn new(machine: Option<Machine>, token_bytes: usize) -> Self {
        Self { machine, token_bytes, held: AtomicUsize::new(0) }
    }

    /// What a pass may hold on `device`, under `model.pass_tokens` and `model.memory_mb`.
    pub fn capacity(&self, device: String, pass_tokens: usize, memory_mb: u64) -> Capacity {
        let (token_bytes, free) = (self.token_bytes, self.available());
        let within = tokens_within(memory_mb, free, token_bytes);
        let (tokens, source) = match (within < pass_tokens, memory_mb) {
            (false, _) => (pass_tokens, "model.pass_tokens"),
            (true, 0) => (within, "half of the free memory"),
            (true, _) => (within, "model.memory_mb"),
        };
        Capacity { device, tokens, source, token_bytes, free }
    }

    /// Whether a pass of so many tokens still fits, by our own estimate.
    ///
    /// The system promises more than it has, and ends the process once it is used, and with it the whole batch. So a text
    /// that needs more than there is is told before, and dealt with like any other failure. A pass of a few tokens is tried whatever
    /// is left: who is that short of memory is in trouble over something else, and no text of ordinary length is to be
    /// blamed for it.
    ///
    /// # Errors
    /// What is needed and what is there, in words.
    pub fn has_room_for(&self, tokens: usize) -> Result<(), String> {
        if tokens <= budget::LEAST {
            return Ok(());
        }
        let need = tokens.saturating_mul(self.token_bytes);
        let more = need.saturating_sub(self.held.load(Relaxed)) as u64;
        match self.available() {
            Some(free) if more > free => Err(format!(
                "it needs about {} MiB more, and {} MiB are free",
                more.div_ceil(MIB),
                free / MIB
            )),
            _ => Ok(()),
        }
    }

    /// A pass of so many tokens was done: what it held is kept, and need not be free for the next one.
    pub fn was_enough_for(&self, tokens: usize) {
        self.held.fetch_max(tokens.saturating_mul(self.token_bytes), Relaxed);
    }

    fn available(&self) -> Option<u64> {
        self.machine.as_ref().and_then(Machine::available)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Memory of a machine with so many KiB free.
    pub(crate) fn with_free(root: &std::path::Path, kib: u64, token_bytes: usize) -> Memory {
        std::fs::create_dir_all(root.join("proc")).unwrap();
        std::fs::write(root.join("proc/meminfo"), format!("MemAvailable: {kib} kB\n")).unwrap();
        Memory::new(Some(Machine::below(root)), token_bytes)
    }

    #[test]
    fn the_tighter_setting_is_named() {
        let root = tempfile::tempdir().unwrap();
        let of = |memory: Memory, pass_tokens, memory_mb| {
            let capacity = memory.capacity("cpu".into(), pass_tokens, memory_mb);
            (capacity.tokens, capacity.source)
        };
        let tokens = |pass_tokens, mb| of(with_free(root.path(), 8 * 1024, 1024), pass_tokens, mb);
        assert_eq!(tokens(4_000, 0), (4_000, "model.pass_tokens"));
        assert_eq!(tokens(5_000, 0), (4_096, "half of the free memory"));
        assert_eq!(tokens(5_000, 2), (2_048, "model.memory_mb"));
        assert_eq!(tokens(5_000, 64), (5_000, "model.pass_tokens"), "a setting counts over what is free");
        assert_eq!(of(Memory::new(None, 1024), 5_000, 0), (5_000, "model.pass_tokens"));
    }

    #[test]
    fn a_capacity_says_what_it_was_reckoned_from() {
        let root = tempfile::tempdir().unwrap();
        let capacity = with_free(root.path(), 8 * 1024, 1_500).capacity("cpu".into(), 2_000, 0);
        assert_eq!(
            capacity.says(capacity.tokens, capacity.source),
            "2000 tokens in a pass at most on cpu (model.pass_tokens), at most 3 MiB by the model's shape, 2 KiB a \
             token; 8 MiB were free"
        );
        let other = Capacity { token_bytes: 0, free: None, ..capacity };
        assert_eq!(other.says(7, "a reason"), "7 tokens in a pass at most on cpu (a reason)");
    }

    #[test]
    fn what_does_not_fit_is_told_and_what_is_held_is_not_asked_for_again() {
        let root = tempfile::tempdir().unwrap();
        let memory = with_free(root.path(), 8 * 1024, 1024);
        let why = memory.has_room_for(9_000).unwrap_err();
        assert_eq!(why, "it needs about 9 MiB more, and 8 MiB are free");
        memory.has_room_for(8_000).unwrap();
        memory.was_enough_for(8_000);
        // Another program took the rest: what the last pass held is ours still.
        with_free(root.path(), 100, 1024);
        memory.has_room_for(8_000).unwrap();
        memory.has_room_for(8_100).unwrap();
        for _ in 0..2 {
            let why = memory.has_room_for(8_300).unwrap_err();
            assert!(
                why.contains("1 MiB more, and 0 MiB are free"),
                "what was only asked for is not held: {why}"
            );
        }
        let nothing = with_free(root.path(), 0, 1024);
        assert!(nothing.has_room_for(budget::LEAST).is_ok() && nothing.has_room_for(300).is_err());
        Memory::new(None, usize::MAX).has_room_for(usize::MAX).unwrap();
    }
}

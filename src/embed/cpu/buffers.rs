//! What passes work in, kept and used again: memory grows with the largest pass and not with the number of passes, and
//! one that there is no memory for is an error of this pass, not the end of the process.

use std::sync::{Mutex, PoisonError};

/// Buffers of one pass.
#[derive(Default)]
pub struct Buffers {
    /// `[tokens, width]`: what goes from layer to layer.
    pub rows: Vec<f32>,
    /// `[tokens, 3 · width]`.
    pub qkv: Vec<f32>,
    /// `[tokens, width]`.
    pub mixed: Vec<f32>,
    /// `[some of the tokens, inner]`.
    pub inner: Vec<f32>,
}

/// Numbers that a pass needs in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// In `rows`.
    pub rows: usize,
    /// In `qkv`.
    pub qkv: usize,
    /// In `mixed`.
    pub mixed: usize,
    /// In `inner`.
    pub inner: usize,
}

/// Buffers that no pass works in at the moment.
#[derive(Default)]
pub struct Free(Mutex<Vec<Buffers>>);

impl Free {
    /// Works in buffers with this room: in the smallest that have it, else in the largest, made larger. So one long pass
    /// after another takes the same ones, and short passes beside them do not hold several of that size.
    ///
    /// # Errors
    /// The system does not give that much memory.
    pub fn with<T>(&self, room: Room, work: impl FnOnce(&mut Buffers) -> T) -> Result<T, String> {
        let taken = self.take(room);
        // What could not be made large enough is given back to the system: a smaller pass may need it.
        let mut buffers = taken.enlarged(room)?;
        let result = work(&mut buffers);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
        Ok(result)
    }

    fn take(&self, room: Room) -> Buffers {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sizes = free.iter().map(Buffers::held).enumerate();
        let holding = sizes.clone().filter(|(at, _)| free[*at].holds(room)).min_by_key(|(_, held)| *held);
        let best = holding.or_else(|| sizes.max_by_key(|(_, held)| *held));
        best.map_or_else(Buffers::default, |(at, _)| free.swap_remove(at))
    }
}

impl Buffers {
    /// Numbers that there is room for, in sum.
    fn held(&self) -> usize {
        let Self { rows, qkv, mixed, inner } = self;
        [rows, qkv, mixed, inner].map(Vec::capacity).into_iter().sum()
    }

    fn holds(&self, room: Room) -> bool {
        self.rows.capacity() >= room.rows
            && self.qkv.len() >= room.qkv
            && self.mixed.len() >= room.mixed
            && self.inner.len() >= room.inner
    }

    /// The same with this room: `rows` empty, the others at least as long.
    fn enlarged(mut self, room: Room) -> Result<Self, String> {
        self.rows.clear();
        let each = [
            (&mut self.rows, room.rows, false),
            (&mut self.qkv, room.qkv, true),
            (&mut self.mixed, room.mixed, true),
            (&mut self.inner, room.inner, true),
        ];
        for (buffer, numbers, filled) in each {
            if buffer.capacity() < numbers {
                // The old one first: nothing in it is needed any more, and both together would be the peak.
                *buffer = Vec::new();
                buffer.try_reserve_exact(numbers).map_err(|_| refused(numbers))?;
            }
            if filled && buffer.len() < numbers {
                buffer.resize(numbers, 0.0);
            }
        }
        Ok(self)
    }
}

fn refused(numbers: usize) -> String {
    let mib = numbers.saturating_mul(size_of::<f32>()).div_ceil(1 << 20);
    format!("the system refuses a buffer of {mib} MiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(tokens: usize) -> Room {
        Room { rows: tokens, qkv: tokens.saturating_mul(3), mixed: tokens, inner: tokens.min(512) }
    }

    /// Numbers held by each of the free buffers, ascending.
    fn held(free: &Free) -> Vec<usize> {
        let mut held: Vec<usize> = free.0.lock().unwrap().iter().map(Buffers::held).collect();
        held.sort_unstable();
        held
    }

    /// Buffers for so many tokens at once, as lanes take them.
    fn lanes(free: &Free, tokens: &[usize]) {
        let Some((first, rest)) = tokens.split_first() else { return };
        free.with(room(*first), |_| lanes(free, rest)).unwrap();
    }

    #[test]
    fn one_long_pass_after_another_takes_the_same_buffers() {
        let free = Free::default();
        lanes(&free, &[512, 512]);
        assert_eq!(held(&free), [512 * 6, 512 * 6]);
        let long = 8_192 * 5 + 512;
        free.with(room(8_192), |_| ()).unwrap();
        assert_eq!(held(&free), [512 * 6, long], "one grew");
        for _ in 0..3 {
            lanes(&free, &[512, 300]);
            free.with(room(8_192), |buffers| assert_eq!(buffers.held(), long)).unwrap();
            free.with(room(20), |buffers| assert_eq!(buffers.held(), 512 * 6, "the least that will do"))
                .unwrap();
        }
        assert_eq!(held(&free), [512 * 6, long]);
    }

    #[test]
    fn room_is_exact_and_what_a_pass_left_is_neither_copied_nor_seen_as_rows() {
        let free = Free::default();
        for tokens in [10, 1_000, 10] {
            free.with(room(tokens), |buffers| {
                assert!(buffers.rows.is_empty() && buffers.holds(room(tokens)));
                buffers.rows.resize(tokens, 1.0);
                buffers.qkv.fill(1.0);
            })
            .unwrap();
        }
        assert_eq!(held(&free), [1_000 * 5 + 512]);
    }

    #[test]
    fn what_the_system_refuses_is_told_and_smaller_passes_go_on() {
        let free = Free::default();
        free.with(room(100), |_| ()).unwrap();
        for absurd in [usize::MAX, usize::MAX / 64] {
            let why = free.with(room(absurd), |_| panic!("there is no such memory")).unwrap_err();
            assert!(why.starts_with("the system refuses a buffer of ") && why.ends_with(" MiB"), "{why}");
        }
        assert!(held(&free).is_empty(), "nothing is held for a pass that was not to be");
        free.with(room(100), |buffers| assert!(buffers.holds(room(100)))).unwrap();
    }
}

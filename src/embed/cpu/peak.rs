//! What this processor can do at most: loops that touch registers only, to measure the encoder against.
#![expect(
    unsafe_code,
    reason = "assembler, as a compiler would see through loops that compute nothing of use"
)]

use std::time::{Duration, Instant};

/// One way of multiplying and adding.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Its numbers and its instructions, such as `f32-avx2`.
    pub name: &'static str,
    /// Multiplications and additions, each counted, in one round.
    ops: u32,
    run: fn(u64),
}

/// The ways that this processor has.
pub fn ways() -> Vec<Way> {
    #[cfg(target_arch = "x86_64")]
    return x86::ways();
    #[cfg(not(target_arch = "x86_64"))]
    return Vec::new();
}

impl Way {
    /// Operations a second of `threads` threads together: the best of `turns` turns, each of about `turn`.
    pub fn measure(&self, threads: usize, turns: usize, turn: Duration) -> f64 {
        let timed = |threads: usize, rounds: u64| {
            let start = Instant::now();
            std::thread::scope(|scope| {
                (0..threads).for_each(|_| drop(scope.spawn(|| (self.run)(rounds))));
            });
            start.elapsed()
        };
        let mut rounds = 1 << 10;
        while timed(1, rounds) < turn / 2 {
            rounds *= 2;
        }
        let ops = f64::from(self.ops) * rounds as f64 * threads as f64;
        (0..turns).map(|_| ops / timed(threads, rounds).as_secs_f64()).fold(0.0, f64::max)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;

    use super::{super::amx::Amx, Way};
    use crate::embed::cpu::kernel::Kernel as _;

    pub fn ways() -> Vec<Way> {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
        let amx = Amx::detect().is_some();
        // Nothing else calls these functions, so they run only where the processor has their instructions.
        let all = [
            (avx2, Way { name: "f32-avx2", ops: 12 * 8 * 2, run: f32_avx2 }),
            (avx512, Way { name: "f32-avx512", ops: 12 * 16 * 2, run: f32_avx512 }),
            (avx2, Way { name: "i16-avx2", ops: 10 * 16 * 2, run: i16_avx2 }),
            (avx512, Way { name: "i16-avx512", ops: 10 * 32 * 2, run: i16_avx512 }),
            (vnni, Way { name: "i16-vnni", ops: 12 * 32 * 2, run: i16_vnni }),
            // Six products of bf16 pieces are one of f32, three of bytes one of i16.
            (amx, Way { name: "f32-amx", ops: 4 * 16 * 16 * 32 * 2 / 6, run: f32_amx }),
            (amx, Way { name: "i16-amx", ops: 4 * 16 * 16 * 64 * 2 / 3, run: i16_amx }),
        ];
        all.into_iter().filter(|(has, _)| *has).map(|(_, way)| way).collect()
    }

    /// 0.0078 as f32, an ordinary pair as i16: sums stay ordinary numbers however long it runs.
    static NUMBER: u32 = 0x3c00_1a2b;

    /// `$op` of the registers 12 and 13 into each register named.
    macro_rules! each {
        ($op:literal, $r:literal, $($n:literal)*) => {
            concat!($($op, " ", $r, $n, ", ", $r, "12, ", $r, "13\n"),*)
        };
    }

    /// Pairs of i16 multiplied and added into `$t`, and that added to `$n`.
    macro_rules! pairs {
        ($r:literal, $($n:literal $t:literal),*) => {
            concat!($(
                "vpmaddwd ", $r, $t, ", ", $r, "14, ", $r, "15\n",
                "vpaddd ", $r, $n, ", ", $r, $n, ", ", $r, $t, "\n"
            ),*)
        };
    }

    /// Runs `$steps` as often as asked, from registers `$r` that all hold [`NUMBER`].
    macro_rules! rounds {
        ($name:ident, $r:literal, $steps:expr) => { rounds!($name, $r, $steps, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15); };
        ($name:ident, $r:literal, $steps:expr, $($n:literal)*) => {
            fn $name(rounds: u64) {
                // SAFETY: it reads NUMBER, changes registers that are named, and ends as `rounds` is never 0.
                unsafe {
                    asm!(
                        concat!($("vpbroadcastd ", $r, $n, ", dword ptr [{number}]\n"),*),
                        "2:",
                        $steps,
                        "dec {rounds}",
                        "jnz 2b",
                        "vzeroupper",
                        rounds = inout(reg) rounds.max(1) => _,
                        number = in(reg) &raw const NUMBER,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                        out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                        out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(readonly, nostack)
                    );
                }
            }
        };
    }

    rounds!(f32_avx2, "ymm", each!("vfmadd231ps", "ymm", 0 1 2 3 4 5 6 7 8 9 10 11));
    rounds!(f32_avx512, "zmm", each!("vfmadd231ps", "zmm", 0 1 2 3 4 5 6 7 8 9 10 11));
    rounds!(i16_avx2, "ymm", pairs!("ymm", 0 10, 1 11, 2 12, 3 13, 4 10, 5 11, 6 12, 7 13, 8 10, 9 11));
    rounds!(i16_avx512, "zmm", pairs!("zmm", 0 10, 1 11, 2 12, 3 13, 4 10, 5 11, 6 12, 7 13, 8 10, 9 11));
    /// Sixteen rows of 64 bytes that are no zeros: a unit that multiplies those may be quicker.
    static ROWS: [[u8; 64]; 16] = [[0x3b; 64]; 16];

    /// Runs `$op` on four registers of AMX as often as asked.
    macro_rules! amx {
        ($name:ident, $op:literal) => {
            fn $name(rounds: u64) {
                let Some(amx) = Amx::detect() else { return };
                // SAFETY: the processor has it; it reads ROWS, changes registers that are named, and ends as `rounds` is
                // never 0.
                unsafe {
                    amx.start();
                    asm!(
                        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        "tileloadd tmm4, [{rows} + 1*{wide}]", "tileloadd tmm5, [{rows} + 1*{wide}]",
                        "tileloadd tmm6, [{rows} + 1*{wide}]", "tileloadd tmm7, [{rows} + 1*{wide}]",
                        "2:",
                        concat!($op, " tmm0, tmm4, tmm6"), concat!($op, " tmm1, tmm4, tmm7"),
                        concat!($op, " tmm2, tmm5, tmm6"), concat!($op, " tmm3, tmm5, tmm7"),
                        "dec {rounds}",
                        "jnz 2b",
                        rounds = inout(reg) rounds.max(1) => _, rows = in(reg) &raw const ROWS, wide = in(reg) 64_usize,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(readonly, nostack)
                    );
                    amx.end();
                }
            }
        };
    }

    amx!(f32_amx, "tdpbf16ps");
    amx!(i16_amx, "tdpbssd");

    rounds!(i16_vnni, "zmm", each!("vpdpwssd", "zmm", 0 1 2 3 4 5 6 7 8 9 10 11));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_runs_here() {
        for way in ways() {
            assert!(way.measure(1, 1, Duration::from_micros(100)) > 1e6, "{way:?}");
        }
    }
}

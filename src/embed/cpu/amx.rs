//! The tile registers of Intel's AMX, which multiply bytes and bf16 many at a time, put to work on numbers that are
//! neither, without losing any of them.
//!
//! - f32: a number is the sum of three bf16 pieces of 8 bits each, exactly. Of the nine products of two numbers' pieces six
//!   are added, in f32; the three left out are below the last bit of the product.
//! - i16: a number of 12 bits is 64 · high + low. `high · high`, `low · low` and `(high + low) · (high + low)` fit in bytes
//!   and give all four products (Karatsuba): the same integers, to the bit, as from the other kernels.
//!
//! A step is 64 bytes of each piece: 32 numbers in f32, 64 in i16. The registers hold 16 rows of 64 bytes; four of them are
//! the sums of a tile of 32 × 32. Layouts and instructions: Intel's manual, volume 1, chapter 18.
#![expect(unsafe_code, reason = "instructions that not every processor has, and that Rust has no names for")]

use std::{
    arch::{asm, x86_64::__cpuid_count},
    mem::MaybeUninit,
    ops::Range,
};

use super::{
    avx::{Avx512, ask_for, ask_later},
    finish::Place,
    kernel::{Kernel, Pair, Tiles},
    pieces::{Bytes, Halves, bytes, bytes_of, halves, halves_of},
    product::Tile,
    wide::{self, finish_wide},
};

/// AMX with bytes and bf16.
#[derive(Clone, Copy, Debug)]
pub struct Amx {
    /// For what these registers do not help.
    pub avx512: Avx512,
}

/// Eight registers of 16 rows of 64 bytes, as `ldtilecfg` reads it.
#[repr(C, align(64))]
struct Shapes([u8; 64]);

static SHAPES: Shapes = {
    let mut shapes = [0; 64];
    shapes[0] = 1;
    let mut register = 0;
    while register < 8 {
        shapes[16 + 2 * register] = 64;
        shapes[48 + register] = 16;
        register += 1;
    }
    Shapes(shapes)
};

impl Amx {
    /// Where the processor has it and the system lets this process use it.
    pub fn detect() -> Option<Self> {
        // Bits of leaf 7, register EDX: AMX-BF16, AMX-TILE, AMX-INT8.
        const AMX: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        let avx512 = Avx512::detect()?;
        (__cpuid_count(7, 0).edx & AMX == AMX && is_allowed()).then_some(Self { avx512 })
    }
}

/// Asks Linux for the registers, which are large, so that it gives them only to who asks: `ARCH_REQ_XCOMP_PERM` for
/// `XTILEDATA` in `asm/prctl.h`.
#[cfg(target_os = "linux")]
fn is_allowed() -> bool {
    // SAFETY: a system call that takes two numbers and changes nothing but what this process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, 0x1023, 18) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn is_allowed() -> bool {
    false
}

impl Kernel<32, 32> for Amx {
    const NAME: &'static str = "amx";

    #[inline(always)]
    unsafe fn start(self) {
        // SAFETY: `self` exists only where the processor has it and it is allowed.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, readonly)) };
    }

    #[inline(always)]
    unsafe fn end(self) {
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Loads piece `$at` of sixteen rows (columns) into register `$to`.
macro_rules! load {
    ($to:literal, $from:literal, $at:literal) => {
        concat!("tileloadd tmm", $to, ", [{", $from, "} + 1*{wide} + ", $at, "]\n")
    };
}

/// Adds the products of what is in registers 4 and 5 (rows) and 6 and 7 (columns) to the sums in the registers 0 to 3, after
/// loading what is named: loads stand between products, which takes turns of the units for both.
macro_rules! add {
    (16, $op:literal, [$($a:literal)?], [$($b:literal)?]) => {
        concat!(
            $(load!(4, "a", $a),)? $(load!(6, "b", $b),)?
            $op, " tmm0, tmm4, tmm6\n",
            $("tileloadd tmm7, [{b} + 1*{wide} + 3072 + ", $b, "]\n",)?
            $op, " tmm1, tmm4, tmm7\n"
        )
    };
    (32, $op:literal, [$($a:literal)?], [$($b:literal)?]) => {
        concat!(
            $(load!(4, "a", $a),)? $(load!(6, "b", $b),)?
            $op, " tmm0, tmm4, tmm6\n",
            $("tileloadd tmm5, [{a} + 1*{wide} + 3072 + ", $a, "]\n",)?
            $op, " tmm2, tmm5, tmm6\n",
            $("tileloadd tmm7, [{b} + 1*{wide} + 3072 + ", $b, "]\n",)?
            $op, " tmm1, tmm4, tmm7\n",
            $op, " tmm3, tmm5, tmm7\n"
        )
    };
}

/// Sums of `$rows` rows over all steps of `$a` and `$b`, which `$products` adds step by step, into `$to`.
macro_rules! sums {
    ($rows:tt, $products:expr, $a:expr, $b:expr, $steps:expr, $to:expr) => {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            "2:",
            $products,
            "add {a}, 6144",
            "add {b}, 6144",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{to} + 1*{row}], tmm0",
            "tilestored [{to} + 1*{row} + 64], tmm1",
            "tilestored [{to} + 1*{row} + 2048], tmm2",
            "tilestored [{to} + 1*{row} + 2112], tmm3",
            a = inout(reg) $a => _, b = inout(reg) $b => _, steps = inout(reg) $steps => _,
            to = in(reg) $to, wide = in(reg) 192_usize, row = in(reg) 128_usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        )
    };
}

/// The six products of three pieces, in an order in which half the operands stay where they are.
macro_rules! six {
    ($rows:tt) => {
        concat!(
            add!($rows, "tdpbf16ps", [0], [0]),
            add!($rows, "tdpbf16ps", [], [64]),
            add!($rows, "tdpbf16ps", [64], []),
            add!($rows, "tdpbf16ps", [], [0]),
            add!($rows, "tdpbf16ps", [128], []),
            add!($rows, "tdpbf16ps", [0], [128])
        )
    };
}

impl Tiles<f32, 32, 32> for Amx {
    type Row = Halves;
    type Columns = [Halves; 32];
    const NUMBERS: usize = 32;
    const TOGETHER: usize = 256;
    const BLOCKS: usize = 1;
    finish_wide!(f32, 32, 32);

    #[inline(always)]
    fn spread(numbers: &[f32], _: f32, at: usize, steps: &mut [[Halves; 32]]) {
        let (full, rest) = numbers.as_chunks::<32>();
        for (numbers, step) in full.iter().zip(&mut *steps) {
            step[at] = halves(numbers);
        }
        if !rest.is_empty() {
            let mut numbers = [0.0; 32];
            numbers[..rest.len()].copy_from_slice(rest);
            steps[full.len()][at] = halves(&numbers);
        }
    }

    #[inline(always)]
    fn prepare(self, packed: &[[f32; 32]], each: usize, room: &mut Vec<[Halves; 32]>) {
        // SAFETY: `self` exists only where the processor has what is needed.
        unsafe { halves_of(packed, each, room) };
    }

    #[inline(always)]
    fn prepared<'a>(_: &'a [[f32; 32]], room: &'a [[Halves; 32]]) -> &'a [[Halves; 32]] {
        room
    }

    #[inline(always)]
    fn later(self, weights: &[[f32; 32]]) {
        weights.iter().for_each(|columns| ask_later(columns));
    }

    #[inline(always)]
    fn soon(self, numbers: &[f32]) {
        ask_for(numbers);
    }

    #[inline(always)]
    unsafe fn tile(self, rows: usize, a: &[[Halves; 32]], b: &[[Halves; 32]], tile: &mut [[f32; 32]; 32]) {
        debug_assert!(a.len() == b.len() && !a.is_empty());
        let (steps, to) = (a.len(), tile.as_mut_ptr());
        // SAFETY: the caller vouches for the instructions. Each step reads 32 × 192 bytes of both, as long as they are;
        // `tile` is 32 rows of 128 bytes.
        unsafe {
            if rows > 16 {
                sums!(32, six!(32), a.as_ptr(), b.as_ptr(), steps, to);
            } else {
                sums!(16, six!(16), a.as_ptr(), b.as_ptr(), steps, to);
            }
        }
    }
}

impl Tiles<Pair, 32, 32> for Amx {
    type Row = Bytes;
    type Columns = [Bytes; 32];
    const NUMBERS: usize = 64;
    const TOGETHER: usize = 256;
    const BLOCKS: usize = 2;
    finish_wide!(Pair, 32, 32);

    #[inline(always)]
    fn spread(numbers: &[f32], factor: f32, at: usize, steps: &mut [[Bytes; 32]]) {
        let (full, rest) = numbers.as_chunks::<64>();
        for (numbers, step) in full.iter().zip(&mut *steps) {
            step[at] = bytes(numbers, factor);
        }
        if !rest.is_empty() {
            let mut numbers = [0.0; 64];
            numbers[..rest.len()].copy_from_slice(rest);
            steps[full.len()][at] = bytes(&numbers, factor);
        }
    }

    #[inline(always)]
    fn prepare(self, packed: &[[Pair; 32]], each: usize, room: &mut Vec<[Bytes; 32]>) {
        // SAFETY: `self` exists only where the processor has what is needed.
        unsafe { bytes_of(packed, each, room) };
    }

    #[inline(always)]
    fn prepared<'a>(_: &'a [[Pair; 32]], room: &'a [[Bytes; 32]]) -> &'a [[Bytes; 32]] {
        room
    }

    #[inline(always)]
    fn later(self, weights: &[[Pair; 32]]) {
        weights.iter().for_each(|columns| ask_later(columns));
    }

    #[inline(always)]
    fn soon(self, numbers: &[f32]) {
        ask_for(numbers);
    }

    #[inline(always)]
    unsafe fn tile(self, rows: usize, a: &[[Bytes; 32]], b: &[[Bytes; 32]], tile: &mut [[i32; 32]; 32]) {
        debug_assert!(a.len() == b.len() && !a.is_empty());
        // SAFETY: the caller's.
        unsafe { tile_bytes(rows, a, b, tile) };
    }
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl")]
unsafe fn tile_bytes(rows: usize, a: &[[Bytes; 32]], b: &[[Bytes; 32]], tile: &mut [[i32; 32]; 32]) {
    let mut parts = [const { MaybeUninit::<Tile<i32, 32, 32>>::uninit() }; 3];
    let steps = a.len();
    // SAFETY: the caller vouches for the instructions. Each step reads 32 × 192 bytes of both, as long as they are;
    // each part is 32 rows of 128 bytes.
    unsafe {
        let (a, b) = (a.as_ptr(), b.as_ptr());
        if rows > 16 {
            sums!(32, add!(32, "tdpbssd", [0], [0]), a, b, steps, parts[0].as_mut_ptr());
            sums!(32, add!(32, "tdpbssd", [64], [64]), a, b, steps, parts[1].as_mut_ptr());
            sums!(32, add!(32, "tdpbssd", [128], [128]), a, b, steps, parts[2].as_mut_ptr());
        } else {
            sums!(16, add!(16, "tdpbssd", [0], [0]), a, b, steps, parts[0].as_mut_ptr());
            sums!(16, add!(16, "tdpbssd", [64], [64]), a, b, steps, parts[1].as_mut_ptr());
            sums!(16, add!(16, "tdpbssd", [128], [128]), a, b, steps, parts[2].as_mut_ptr());
        }
    }
    // SAFETY: all of each has been stored above.
    let [high, low, both] = unsafe { parts.each_ref().map(|part| &part.assume_init_ref().0) };
    for (((sums, high), low), both) in tile.iter_mut().zip(high).zip(low).zip(both).take(rows) {
        for (((sum, high), low), both) in sums.iter_mut().zip(high).zip(low).zip(both) {
            *sum = (high << 12) + ((both - high - low) << 6) + low;
        }
    }
}

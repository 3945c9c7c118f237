//! A processor's instructions as a value: who has one may use them. Everything that is computed goes through here, so
//! that it is compiled once for each set.
#![expect(unsafe_code, reason = "functions compiled for instructions that not every processor has")]

use std::ops::Range;

use super::{
    attention::{Heads, Room, attention},
    finish::Then,
    kernel::{Kernel, Portable},
    product::{Linear, Side, product},
};
use crate::embed::math;

/// Scale and shift of a normalisation.
pub struct Norm {
    /// Scale.
    pub scale: Vec<f32>,
    /// Shift.
    pub shift: Vec<f32>,
    /// Added to the variance.
    pub eps: f32,
}

/// What the encoder computes, for one set of instructions.
pub trait Isa<const MR: usize, const NR: usize>: Kernel<MR, NR> {
    /// See [`product`].
    fn product(
        self,
        rows: &[f32],
        linear: &Linear<NR>,
        panels: Range<usize>,
        then: Then<'_>,
        out: &mut [f32],
        side: &mut Side<Self, MR, NR>,
    );

    /// What attention works in.
    type Room: Default + Send;

    /// See [`attention`].
    fn attention(self, heads: Heads, qkv: &[f32], first: usize, out: &mut [f32], room: &mut Self::Room);

    /// Normalises each row.
    fn norm(self, rows: &mut [f32], norm: &Norm);
}

/// The product by `$kernel`, compiled for its instructions.
macro_rules! product_by {
    ($kernel:ident, $mr:literal, $nr:literal $(, $features:literal)?) => {
        fn product(
            self,
            rows: &[f32],
            linear: &Linear<$nr>,
            panels: Range<usize>,
            then: Then<'_>,
            out: &mut [f32],
            side: &mut Side<$kernel, $mr, $nr>,
        ) {
            $(#[target_feature(enable = $features)])?
            unsafe fn run(
                kernel: $kernel,
                rows: &[f32],
                linear: &Linear<$nr>,
                panels: Range<usize>,
                then: Then<'_>,
                out: &mut [f32],
                side: &mut Side<$kernel, $mr, $nr>,
            ) {
                // SAFETY: compiled for the instructions of this kernel.
                unsafe {
                    kernel.start();
                    product(kernel, rows, linear, panels, then, out, side);
                    kernel.end();
                }
            }
            // SAFETY: `self` exists only where the processor has them.
            unsafe { run(self, rows, linear, panels, then, out, side) }
        }
    };
}

/// `$kernel` with its instructions; the value exists only where the processor has them.
macro_rules! isa {
    ($(#[$on:meta])* $kernel:ident, $mr:literal, $nr:literal $(, $features:literal)?) => {
        $(#[$on])*
        impl Isa<$mr, $nr> for $kernel {
            type Room = Room<$mr, $nr>;

            product_by!($kernel, $mr, $nr $(, $features)?);

            fn attention(
                self,
                heads: Heads,
                qkv: &[f32],
                first: usize,
                out: &mut [f32],
                room: &mut Self::Room,
            ) {
                $(#[target_feature(enable = $features)])?
                unsafe fn run(
                    kernel: $kernel,
                    heads: Heads,
                    qkv: &[f32],
                    first: usize,
                    out: &mut [f32],
                    room: &mut Room<$mr, $nr>,
                ) {
                    // SAFETY: as above.
                    unsafe {
                        kernel.start();
                        attention(kernel, heads, qkv, first, out, room);
                        kernel.end();
                    }
                }
                // SAFETY: as above.
                unsafe { run(self, heads, qkv, first, out, room) }
            }

            fn norm(self, rows: &mut [f32], norm: &Norm) {
                $(#[target_feature(enable = $features)])?
                unsafe fn run(rows: &mut [f32], norm: &Norm) {
                    for row in rows.chunks_exact_mut(norm.scale.len()) {
                        math::norm(row, &norm.scale, &norm.shift, norm.eps);
                    }
                }
                // SAFETY: as above.
                unsafe { run(rows, norm) }
            }
        }
    };
}

isa!(Portable, 4, 16);
#[cfg(target_arch = "x86_64")]
use super::avx::{Avx2, Avx512};
isa!(
    #[cfg(target_arch = "x86_64")]
    Avx2,
    6,
    16,
    "avx2,fma"
);
isa!(
    #[cfg(target_arch = "x86_64")]
    Avx512,
    12,
    32,
    "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"
);

#[cfg(target_arch = "x86_64")]
use super::amx::Amx;
/// Attention is many small products, which take longer to get into these registers than to compute without them.
#[cfg(target_arch = "x86_64")]
impl Isa<32, 32> for Amx {
    type Room = Room<12, 32>;

    product_by!(Amx, 32, 32, "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma");

    fn attention(self, heads: Heads, qkv: &[f32], first: usize, out: &mut [f32], room: &mut Self::Room) {
        self.avx512.attention(heads, qkv, first, out, room);
    }

    fn norm(self, rows: &mut [f32], norm: &Norm) {
        self.avx512.norm(rows, norm);
    }
}

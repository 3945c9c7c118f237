//! The encoder for processors: packed tokens, packed weights, one set of instructions chosen at start.
//!
//! `kernel` (a tile in registers; `avx`, and `amx` with its `pieces`), `isa` (the instructions as a value), `packed`, `product`
//! and `finish` (matrices, and what follows them; `wide` by AVX-512), `attention`, `layers`, `buffers` (what a pass works in).
//! It computes what `candle.rs` computes, which stays the reference and the path of every other device.
#![expect(clippy::cast_possible_truncation, reason = "f32 is the model's precision")]

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx;
mod buffers;
mod finish;
mod isa;
mod kernel;
mod layers;
mod load;
mod packed;
#[cfg(feature = "testkit")]
pub mod peak;
#[cfg(target_arch = "x86_64")]
mod pieces;
mod product;
mod step;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod wide;

use buffers::{Buffers, Free};
use isa::{Isa, Norm};
use kernel::Portable;
use layers::Layers;

use super::{
    EmbedError, Settings,
    encoder::Encoder,
    expect::{Expect, OpenError, Pooling},
    heads::{Encoded, Heads, encoded},
    lanes::Lanes,
    layout::ModelFiles,
    words::Words,
};

/// An encoder with its weights, for one set of instructions.
struct CpuEncoder<I: Isa<MR, NR>, const MR: usize, const NR: usize> {
    words: Words,
    /// Position table with the one token type added.
    positions: Vec<f32>,
    embedded_norm: Norm,
    layers: Layers<I, MR, NR>,
    dim: usize,
    first_position: usize,
    pooling: Pooling,
    lanes: Lanes,
    buffers: Free,
}

/// Loads the weights for `model.kernel`, with `auto` for the best that this processor has.
///
/// # Errors
/// See [`super::weights::Weights::tensor`]; the processor lacks what the setting asks for.
pub fn load(
    files: &ModelFiles,
    expect: &Expect,
    settings: &Settings,
    threads: usize,
) -> Result<Box<dyn Encoder>, OpenError> {
    let (kernel, is_i16) = (settings.kernel.as_str(), settings.compute == "i16");
    let wanted = |name: &str| kernel == name || kernel == "auto";
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(isa) = amx::Amx::detect().filter(|_| wanted("amx")) {
            return Ok(Box::new(load::load(isa, files, expect, is_i16, threads)?));
        }
        if let Some(isa) = avx::Avx512::detect().filter(|_| wanted("avx512")) {
            return Ok(Box::new(load::load(isa, files, expect, is_i16, threads)?));
        }
        if let Some(isa) = avx::Avx2::detect().filter(|_| wanted("avx2")) {
            return Ok(Box::new(load::load(isa, files, expect, is_i16, threads)?));
        }
    }
    if wanted("portable") {
        return Ok(Box::new(load::load(Portable, files, expect, is_i16, threads)?));
    }
    Err(OpenError::Setting {
        key: "model.kernel",
        value: format!("{kernel:?}"),
        what: "this processor has no such instructions; set model.kernel = \"auto\"".into(),
    })
}

/// The kernels that this processor has, as `model.kernel` spells them: what the tests go through.
#[cfg(feature = "testkit")]
pub fn kernels() -> Vec<&'static str> {
    use kernel::Kernel as _;

    let mut names = vec![Portable::NAME];
    #[cfg(target_arch = "x86_64")]
    {
        names.extend(avx::Avx2::detect().map(|_| avx::Avx2::NAME));
        names.extend(avx::Avx512::detect().map(|_| avx::Avx512::NAME));
        names.extend(amx::Amx::detect().map(|_| amx::Amx::NAME));
    }
    names
}

impl<I: Isa<MR, NR>, const MR: usize, const NR: usize> CpuEncoder<I, MR, NR> {
    /// A part of a pass, or all of it.
    fn forward(&self, batch: &[&[u32]], heads: Option<&Heads>) -> Result<Vec<Encoded>, EmbedError> {
        let lengths: Vec<usize> = batch.iter().map(|ids| ids.len()).collect();
        let room = self.layers.room(lengths.iter().sum());
        let work = |buffers: &mut Buffers| {
            self.embed(batch, &mut buffers.rows)?;
            self.layers.run(&lengths, buffers);
            Ok(self.pooled(batch, &buffers.rows, heads))
        };
        let full = |message| EmbedError::OutOfMemory { texts: batch.len(), message };
        let failed = |error: std::io::Error| EmbedError::Failed(error.to_string());
        self.buffers.with(room, work).map_err(full)?.map_err(failed)
    }

    /// Words and positions, normalised.
    fn embed(&self, batch: &[&[u32]], rows: &mut Vec<f32>) -> std::io::Result<()> {
        rows.clear();
        let mut bytes = Vec::new();
        for ids in batch {
            let positions = self.positions.chunks_exact(self.dim).skip(self.first_position);
            for (id, position) in ids.iter().zip(positions) {
                let start = rows.len();
                self.words.push(*id, &mut bytes, rows)?;
                rows[start..].iter_mut().zip(position).for_each(|(value, position)| *value += position);
            }
        }
        self.layers.norm(rows, &self.embedded_norm);
        Ok(())
    }

    /// What the final rows of each text come to.
    fn pooled(&self, batch: &[&[u32]], rows: &[f32], heads: Option<&Heads>) -> Vec<Encoded> {
        let mut rest = rows;
        let each = batch.iter().map(|ids| {
            let (own, others) = rest.split_at(ids.len() * self.dim);
            rest = others;
            encoded(self.pooling, heads, ids, own)
        });
        each.collect()
    }
}

impl<I: Isa<MR, NR>, const MR: usize, const NR: usize> Encoder for CpuEncoder<I, MR, NR> {
    fn dim(&self) -> usize {
        self.dim
    }

    fn encode(&self, batch: &[&[u32]], heads: Option<&Heads>) -> Result<Vec<Encoded>, EmbedError> {
        self.lanes.run(batch, |part: &[&[u32]]| self.forward(part, heads))
    }
}

#[cfg(test)]
#[cfg(feature = "testkit")]
mod finite_tests;

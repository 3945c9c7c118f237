//! The encoder for processors: packed tokens, packed weights, one set of instructions chosen at start.
//!
//! `kernel` (a tile in registers), `isa` (the instructions as a value), `packed` and `product` (matrices), `attention`,
//! `layers`. It computes what `candle.rs` computes, which stays the reference and the path of every other device.
#![expect(clippy::cast_possible_truncation, reason = "f32 is the model's precision")]

mod attention;
mod isa;
mod kernel;
mod layers;
mod load;
mod packed;
mod product;

use std::sync::{Mutex, PoisonError};

use isa::{Isa, Norm};
use kernel::Portable;
use layers::{Buffers, Layers};

use super::{
    EmbedError,
    encoder::Encoder,
    expect::{Expect, OpenError, Pooling},
    heads::{Encoded, Heads, encoded},
    lanes::Lanes,
    layout::ModelFiles,
};

/// An encoder with its weights, for one set of instructions.
struct CpuEncoder<I, const MR: usize, const NR: usize> {
    words: Vec<f32>,
    /// Position table with the one token type added.
    positions: Vec<f32>,
    embedded_norm: Norm,
    layers: Layers<I, MR, NR>,
    dim: usize,
    first_position: usize,
    pooling: Pooling,
    lanes: Lanes,
    buffers: Mutex<Vec<Buffers>>,
}

/// Loads the weights for `kernel`, or with `auto` for the best that this processor has.
///
/// # Errors
/// See [`super::weights::Weights::tensor`]; the processor lacks what `kernel` asks for.
pub fn load(
    files: &ModelFiles,
    expect: &Expect,
    kernel: &str,
    threads: usize,
) -> Result<Box<dyn Encoder>, OpenError> {
    let wanted = |name: &str| kernel == name || kernel == "auto";
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(isa) = kernel::Avx512::detect().filter(|_| wanted("avx512")) {
            return Ok(Box::new(load::load(isa, files, expect, threads)?));
        }
        if let Some(isa) = kernel::Avx2::detect().filter(|_| wanted("avx2")) {
            return Ok(Box::new(load::load(isa, files, expect, threads)?));
        }
    }
    if wanted("portable") {
        return Ok(Box::new(load::load(Portable, files, expect, threads)?));
    }
    Err(OpenError::Setting {
        key: "model.kernel",
        value: format!("{kernel:?}"),
        what: "this processor has no such instructions; set model.kernel = \"auto\"".into(),
    })
}

impl<I: Isa<MR, NR>, const MR: usize, const NR: usize> CpuEncoder<I, MR, NR> {
    fn forward(&self, batch: &[&[u32]], heads: Option<&Heads>) -> Vec<Encoded> {
        let free = || self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = free().pop();
        let mut buffers = kept.unwrap_or_default();
        let lengths: Vec<usize> = batch.iter().map(|ids| ids.len()).collect();
        self.embed(batch, &mut buffers.rows);
        self.layers.run(&lengths, &mut buffers);
        let outputs = self.pooled(batch, &buffers.rows, heads);
        free().push(buffers);
        outputs
    }

    /// Words and positions, normalised.
    fn embed(&self, batch: &[&[u32]], rows: &mut Vec<f32>) {
        rows.clear();
        for ids in batch {
            let positions = self.positions.chunks_exact(self.dim).skip(self.first_position);
            for (id, position) in ids.iter().zip(positions) {
                let word = &self.words[*id as usize * self.dim..][..self.dim];
                rows.extend(word.iter().zip(position).map(|(word, position)| word + position));
            }
        }
        self.layers.norm(rows, &self.embedded_norm);
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
        let run = |part: &[&[u32]]| Ok(self.forward(part, heads));
        self.lanes.run(batch, run).map_err(|error| EmbedError::Failed(error.to_string()))
    }
}

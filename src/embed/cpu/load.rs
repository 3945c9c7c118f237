//! Weights from their file into packed form, tensor by tensor.

use super::{
    CpuEncoder, Isa, Layers, Norm,
    attention::Heads,
    buffers::Free,
    layers::Layer,
    packed::Packed,
    product::{Linear, Weights as Form},
};
use crate::embed::{
    expect::{Expect, OpenError},
    lanes::Lanes,
    layout::{ModelConfig, ModelFiles},
    weights::Weights,
};

/// Loads the weights of `files`.
///
/// # Errors
/// See [`Weights::tensor`].
pub fn load<I: Isa<MR, NR>, const MR: usize, const NR: usize>(
    isa: I,
    files: &ModelFiles,
    expect: &Expect,
    is_i16: bool,
    threads: usize,
) -> Result<CpuEncoder<I, MR, NR>, OpenError> {
    tracing::info!(kernel = I::NAME, is_i16, "packing the weights");
    let config = &files.config;
    let width = config.hidden_size;
    let weights = Weights::open(&expect.name, &files.weights)?;
    let mut loader = Loader { weights, eps: config.layer_norm_eps as f32, is_i16 };
    let words = loader.weights.words("embeddings.word_embeddings.weight", [config.vocab_size, width])?;
    let table = [config.max_position_embeddings, width];
    let mut positions = loader.numbers("embeddings.position_embeddings.weight", &table)?;
    let types =
        loader.numbers("embeddings.token_type_embeddings.weight", &[config.type_vocab_size, width])?;
    for row in positions.chunks_exact_mut(width) {
        row.iter_mut().zip(&types).for_each(|(value, first)| *value += first);
    }
    let embedded_norm = loader.norm("embeddings.LayerNorm", width)?;
    let lanes = Lanes::open(threads)?;
    let mut layers = || (0..config.num_hidden_layers).map(|index| loader.layer(index, config)).collect();
    let layers: Result<_, _> = lanes.on_all(&mut layers);
    let layers = layers?;
    let heads = Heads { count: config.num_attention_heads, width: width / config.num_attention_heads };
    Ok(CpuEncoder {
        words,
        positions,
        embedded_norm,
        layers: Layers::new(isa, heads, layers),
        dim: width,
        first_position: config.first_position(expect.family),
        pooling: expect.pooling,
        lanes,
        buffers: Free::default(),
    })
}

struct Loader {
    weights: Weights,
    eps: f32,
    is_i16: bool,
}

impl Loader {
    fn numbers(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, OpenError> {
        self.weights.numbers(name, shape)
    }

    fn norm(&mut self, name: &str, width: usize) -> Result<Norm, OpenError> {
        Ok(Norm {
            scale: self.numbers(&format!("{name}.weight"), &[width])?,
            shift: self.numbers(&format!("{name}.bias"), &[width])?,
            eps: self.eps,
        })
    }

    fn linear<const NR: usize>(
        &mut self,
        name: &str,
        out: usize,
        width: usize,
    ) -> Result<Linear<NR>, OpenError> {
        let weights = self.numbers(&format!("{name}.weight"), &[out, width])?;
        let bias = self.numbers(&format!("{name}.bias"), &[out])?;
        Ok(self.packed(&weights, width, bias))
    }

    fn packed<const NR: usize>(&self, weights: &[f32], width: usize, bias: Vec<f32>) -> Linear<NR> {
        let weights = if self.is_i16 {
            Form::I16(Packed::new(weights, width))
        } else {
            Form::F32(Packed::new(weights, width))
        };
        Linear { weights, bias }
    }

    /// Query, key and value of one layer in one product; the query's part is scaled.
    fn qkv<const NR: usize>(
        &mut self,
        name: &str,
        width: usize,
        scale: f64,
    ) -> Result<Linear<NR>, OpenError> {
        let (mut weights, mut bias) = (Vec::with_capacity(3 * width * width), Vec::with_capacity(3 * width));
        for (part, scale) in [("query", scale), ("key", 1.0), ("value", 1.0)] {
            let scaled = |value: f32| (f64::from(value) * scale) as f32;
            let part_weights = self.numbers(&format!("{name}.{part}.weight"), &[width, width])?;
            weights.extend(part_weights.into_iter().map(scaled));
            bias.extend(self.numbers(&format!("{name}.{part}.bias"), &[width])?.into_iter().map(scaled));
        }
        Ok(self.packed(&weights, width, bias))
    }

    fn layer<const NR: usize>(&mut self, index: usize, config: &ModelConfig) -> Result<Layer<NR>, OpenError> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let at = |name: &str| format!("encoder.layer.{index}.{name}");
        let scale = 1.0 / ((width / config.num_attention_heads) as f64).sqrt();
        Ok(Layer {
            qkv: self.qkv(&at("attention.self"), width, scale)?,
            attended: self.linear(&at("attention.output.dense"), width, width)?,
            attended_norm: self.norm(&at("attention.output.LayerNorm"), width)?,
            up: self.linear(&at("intermediate.dense"), inner, width)?,
            down: self.linear(&at("output.dense"), width, inner)?,
            norm: self.norm(&at("output.LayerNorm"), width)?,
        })
    }
}

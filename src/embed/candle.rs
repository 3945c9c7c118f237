//! A lean BERT and XLM-R encoder on candle tensors: the plain path, right on every device.
//!
//! The tokens of a pass lie one after another in one matrix, without padding, so there is no mask to get
//! wrong: attention runs per run of equally long texts, everything else over all tokens at once. Positions are
//! integers made here from lengths.
#![expect(clippy::cast_possible_truncation, reason = "f32 is the model's precision; positions fit 32 bits")]

use candle_core::{DType, Device, Result, Tensor};

use super::{
    EmbedError,
    encoder::Encoder,
    expect::{Expect, OpenError, Pooling},
    fused::{self, Norm, Row},
    heads::{Encoded, Heads, encoded},
    lanes::Lanes,
    layout::{ModelConfig, ModelFiles},
    math,
    weights::Weights,
};

/// A part of the model, or why its file does not give it.
type Loaded<T> = std::result::Result<T, OpenError>;

/// Attention scores held at once, in numbers. Longer rows are computed in blocks of queries, so that memory
/// does not grow with the square of the length.
const SCORES_MAX: usize = 1 << 22;

/// The encoder with its weights.
pub struct CandleEncoder {
    model: Model,
    lanes: Lanes,
}

/// A matrix multiplication with bias. Weights are stored `[out, in]`.
struct Linear {
    weight: Tensor,
    bias: Row,
}

/// One layer of the encoder.
struct Layer {
    /// Query, key and value in one; the query's part carries the scale `1/√d`.
    qkv: Linear,
    attended: Linear,
    attended_norm: Norm,
    up: Linear,
    down: Linear,
    norm: Norm,
}

struct Model {
    device: Device,
    words: Tensor,
    /// Position table with the one token type added.
    positions: Tensor,
    embedded_norm: Norm,
    layers: Vec<Layer>,
    heads: usize,
    first_position: usize,
    pooling: Pooling,
    dim: usize,
}

impl CandleEncoder {
    /// Loads the weights of `files`.
    ///
    /// # Errors
    /// See [`Weights::tensor`].
    pub fn load(files: &ModelFiles, expect: &Expect, device: &Device, threads: usize) -> Loaded<Self> {
        let mut weights = Weights::open(&expect.name, &files.weights)?;
        let model = Model::load(&mut weights, &files.config, expect, device)?;
        let lanes = Lanes::open(if device.is_cpu() { threads } else { 1 })?;
        Ok(Self { model, lanes })
    }
}

impl Encoder for CandleEncoder {
    fn dim(&self) -> usize {
        self.model.dim
    }

    fn encode(
        &self,
        batch: &[&[u32]],
        heads: Option<&Heads>,
    ) -> std::result::Result<Vec<Encoded>, EmbedError> {
        let run = |part: &[&[u32]]| self.model.forward(part, heads);
        self.lanes.run(batch, run).map_err(|error| {
            let message = error.to_string();
            if message.to_lowercase().contains("out of memory") {
                return EmbedError::OutOfMemory { texts: batch.len(), message };
            }
            EmbedError::Failed(message)
        })
    }
}

/// Loads the tensors of one model, so that names and shapes stand in one place.
struct Loader<'a> {
    weights: &'a mut Weights,
    device: &'a Device,
    eps: f64,
}

impl Loader<'_> {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Loaded<Tensor> {
        self.weights.tensor(name, shape, self.device)
    }

    fn row(&mut self, name: &str, width: usize) -> Loaded<Row> {
        let tensor = self.tensor(name, &[width])?;
        Row::new(tensor).map_err(|error| self.weights.unusable(&error))
    }

    fn linear(&mut self, name: &str, out: usize, width: usize) -> Loaded<Linear> {
        Ok(Linear {
            weight: self.tensor(&format!("{name}.weight"), &[out, width])?,
            bias: self.row(&format!("{name}.bias"), out)?,
        })
    }

    /// Query, key and value of one layer in one product; the query's part is scaled.
    fn qkv(&mut self, name: &str, width: usize, scale: f64) -> Loaded<Linear> {
        let (mut weights, mut biases) = (Vec::new(), Vec::new());
        for (part, scale) in [("query", Some(scale)), ("key", None), ("value", None)] {
            let scaled = |tensor: Tensor| match scale {
                Some(scale) => host_map(&tensor, |_, value| (f64::from(value) * scale) as f32),
                None => Ok(tensor),
            };
            let weight = self.tensor(&format!("{name}.{part}.weight"), &[width, width])?;
            let bias = self.tensor(&format!("{name}.{part}.bias"), &[width])?;
            weights.push(scaled(weight).map_err(|error| self.weights.unusable(&error))?);
            biases.push(scaled(bias).map_err(|error| self.weights.unusable(&error))?);
        }
        let fused =
            || Ok(Linear { weight: Tensor::cat(&weights, 0)?, bias: Row::new(Tensor::cat(&biases, 0)?)? });
        fused().map_err(|error| self.weights.unusable(&error))
    }

    fn norm(&mut self, name: &str, width: usize) -> Loaded<Norm> {
        Ok(Norm {
            weight: self.row(&format!("{name}.weight"), width)?,
            bias: self.row(&format!("{name}.bias"), width)?,
            eps: self.eps as f32,
        })
    }

    fn layer(&mut self, index: usize, config: &ModelConfig) -> Loaded<Layer> {
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

impl Linear {
    /// Without the bias, which the next step adds.
    fn product(&self, rows: &Tensor) -> Result<Tensor> {
        rows.matmul(&self.weight.t()?)
    }
}

impl Model {
    fn load(weights: &mut Weights, config: &ModelConfig, expect: &Expect, device: &Device) -> Loaded<Self> {
        let width = config.hidden_size;
        let mut loader = Loader { weights, device, eps: config.layer_norm_eps };
        let words = loader.tensor("embeddings.word_embeddings.weight", &[config.vocab_size, width])?;
        let positions = loader
            .tensor("embeddings.position_embeddings.weight", &[config.max_position_embeddings, width])?;
        let types =
            loader.tensor("embeddings.token_type_embeddings.weight", &[config.type_vocab_size, width])?;
        let positions = types
            .get(0)
            .and_then(|first| first.to_vec1::<f32>())
            .and_then(|first| host_map(&positions, |at, value| value + first[at % width]))
            .map_err(|error| loader.weights.unusable(&error))?;
        Ok(Self {
            device: device.clone(),
            words,
            positions,
            embedded_norm: loader.norm("embeddings.LayerNorm", width)?,
            layers: (0..config.num_hidden_layers)
                .map(|index| loader.layer(index, config))
                .collect::<std::result::Result<_, _>>()?,
            heads: config.num_attention_heads,
            first_position: config.first_position(expect.family),
            pooling: expect.pooling,
            dim: width,
        })
    }

    fn forward(&self, batch: &[&[u32]], heads: Option<&Heads>) -> Result<Vec<Encoded>> {
        let lengths: Vec<usize> = batch.iter().map(|ids| ids.len()).collect();
        let mut rows = self.embedded(batch, &lengths)?;
        for layer in &self.layers {
            let qkv = fused::add(layer.qkv.product(&rows)?, &layer.qkv.bias)?;
            let attended = layer.attended.product(&self.attention(&qkv, &lengths)?)?;
            rows = fused::add_norm(attended, Some(&layer.attended.bias), &rows, &layer.attended_norm)?;
            let inner = fused::add_gelu(layer.up.product(&rows)?, &layer.up.bias)?;
            rows = fused::add_norm(layer.down.product(&inner)?, Some(&layer.down.bias), &rows, &layer.norm)?;
        }
        match heads {
            Some(heads) => self.with_heads(&rows, batch, heads),
            None => self.pooled(&rows, &lengths),
        }
    }

    /// `[tokens, width]`: words and positions, normalised.
    fn embedded(&self, batch: &[&[u32]], lengths: &[usize]) -> Result<Tensor> {
        let ids = batch.concat();
        let first = self.first_position as u32;
        let positions: Vec<u32> = lengths.iter().flat_map(|&n| first..first + n as u32).collect();
        let count = ids.len();
        let words = self.words.index_select(&Tensor::from_vec(ids, count, &self.device)?, 0)?;
        let positions = self.positions.index_select(&Tensor::from_vec(positions, count, &self.device)?, 0)?;
        fused::add_norm(words, None, &positions, &self.embedded_norm)
    }

    /// Attention of every text over itself: `[tokens, 3 · width]` to `[tokens, width]`.
    fn attention(&self, qkv: &Tensor, lengths: &[usize]) -> Result<Tensor> {
        let mut parts = Vec::new();
        let (mut start, mut text) = (0, 0);
        while text < lengths.len() {
            let n = lengths[text];
            let fit = (SCORES_MAX / (self.heads * n * n)).max(1);
            let texts = lengths[text..].iter().take(fit).take_while(|&&other| other == n).count();
            parts.push(self.attend(&qkv.narrow(0, start, texts * n)?, texts, n)?);
            start += texts * n;
            text += texts;
        }
        if parts.len() == 1 { Ok(parts.remove(0)) } else { Tensor::cat(&parts, 0) }
    }

    /// The same for `texts` texts of `n` tokens each.
    fn attend(&self, qkv: &Tensor, texts: usize, n: usize) -> Result<Tensor> {
        let (heads, head) = (self.heads, self.dim / self.heads);
        let qkv = qkv.reshape((texts, n, 3, heads, head))?.permute((2, 0, 3, 1, 4))?.contiguous()?;
        let part = |which: usize| qkv.get(which)?.reshape((texts * heads, n, head));
        let (query, key, value) = (part(0)?, part(1)?.t()?, part(2)?);
        let block = (SCORES_MAX / (texts * heads * n)).clamp(1, n);
        let mut blocks = Vec::new();
        for first in (0..n).step_by(block) {
            let scores = query.narrow(1, first, block.min(n - first))?.contiguous()?.matmul(&key)?;
            blocks.push(fused::softmax(scores)?.matmul(&value)?);
        }
        let mixed = if blocks.len() == 1 { blocks.remove(0) } else { Tensor::cat(&blocks, 1)? };
        mixed.reshape((texts, heads, n, head))?.transpose(1, 2)?.reshape((texts * n, self.dim))
    }

    /// All outputs, on the host: the rows of every token leave the device.
    fn with_heads(&self, rows: &Tensor, batch: &[&[u32]], heads: &Heads) -> Result<Vec<Encoded>> {
        let rows = rows.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let mut rest = rows.as_slice();
        let each = batch.iter().map(|ids| {
            let (own, others) = rest.split_at(ids.len() * self.dim);
            rest = others;
            encoded(self.pooling, Some(heads), ids, own)
        });
        Ok(each.collect())
    }

    /// The dense vector of each text, scaled to norm 1 on the host: pooled before it leaves the device.
    fn pooled(&self, rows: &Tensor, lengths: &[usize]) -> Result<Vec<Encoded>> {
        let mut start = 0;
        let mut pooled = Vec::with_capacity(lengths.len());
        for &n in lengths {
            pooled.push(match self.pooling {
                Pooling::Cls => rows.narrow(0, start, 1)?,
                Pooling::Mean => rows.narrow(0, start, n)?.mean_keepdim(0)?,
            });
            start += n;
        }
        let mut vectors = Tensor::cat(&pooled, 0)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        vectors.iter_mut().for_each(|vector| math::scale_to_1(vector));
        Ok(vectors.into_iter().map(Encoded::dense).collect())
    }
}

/// `change(place, number)` of every number, on the host: candle's own operations would start a pool of threads that
/// nobody can size, and keep it.
fn host_map(tensor: &Tensor, change: impl Fn(usize, f32) -> f32) -> Result<Tensor> {
    let mut values = tensor.flatten_all()?.to_vec1::<f32>()?;
    values.iter_mut().enumerate().for_each(|(at, value)| *value = change(at, *value));
    Tensor::from_vec(values, tensor.shape(), tensor.device())
}

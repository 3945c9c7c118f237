//! A lean BERT and XLM-R encoder on candle tensors: the plain path, right on every device.
//!
//! The tokens of a pass lie one after another in one matrix, without padding, so there is no mask to get
//! wrong: attention runs per run of equally long texts, everything else over all tokens at once. Positions are
//! integers made here from lengths.
#![expect(clippy::cast_possible_truncation, reason = "f32 is the model's precision; positions fit 32 bits")]

use std::sync::Arc;

use candle_core::{DType, Device, DeviceLocation, Result, Tensor};

use super::{
    EmbedError,
    attention::{Attention, Group},
    cuda,
    encoder::Encoder,
    exact::Exact,
    expect::{Expect, OpenError, Pooling},
    fused::{self, Norm, Row},
    heads::{Encoded, Heads, encoded},
    lanes::{Lanes, parts},
    layout::{ModelConfig, ModelFiles},
    math,
    weights::Weights,
};

/// A part of the model, or why its file does not give it.
type Loaded<T> = std::result::Result<T, OpenError>;

/// Attention scores held at once, in numbers: on a processor few enough for its caches, on a GPU enough to fill it.
const SCORES_MAX: (usize, usize) = (1 << 22, 1 << 26);

/// Tokens of a part of a pass that is handed to a GPU in one go.
const STREAM_TOKENS: usize = 8_192;

/// The encoder with its weights.
pub struct CandleEncoder {
    model: Model,
    /// How the parts of a pass run. `None`: streamed to a device that queues what it is given.
    lanes: Option<Lanes>,
    exact: Option<Exact>,
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
    attention: Attention,
    first_position: usize,
    pooling: Pooling,
    dim: usize,
    dtype: DType,
}

/// A part of a pass, on the device.
struct Input {
    ids: Tensor,
    positions: Tensor,
    lengths: Vec<usize>,
    groups: Vec<Group>,
}

impl CandleEncoder {
    /// Loads the weights of `files`, to be computed with in `dtype` (f16 and bf16: on a GPU) by `threads` threads where
    /// `device` is the processor.
    ///
    /// # Errors
    /// See [`Weights::tensor`].
    pub fn load(
        files: &ModelFiles,
        expect: &Expect,
        device: &Device,
        dtype: DType,
        threads: usize,
    ) -> Loaded<Self> {
        let lanes = if device.is_cpu() { Some(Lanes::open(threads)?) } else { None };
        Self::with_lanes(files, expect, device, dtype, lanes)
    }

    fn with_lanes(
        files: &ModelFiles,
        expect: &Expect,
        device: &Device,
        dtype: DType,
        lanes: Option<Lanes>,
    ) -> Loaded<Self> {
        let weights = Weights::open(&expect.name, &files.weights)?;
        let loader = Loader { weights: &weights, device, dtype, eps: files.config.layer_norm_eps };
        let model = Model::load(loader, &files.config, expect, lanes.is_none())?;
        let exact = (dtype != DType::F32).then(|| Exact::new(files, expect, device));
        Ok(Self { model, lanes, exact })
    }

    /// Everything goes up before anything is computed, is queued without waiting, and comes back in one piece: the
    /// device is busy from the first part to the last.
    fn stream(&self, batch: &[&[u32]], heads: Option<&Heads>) -> Result<Vec<Encoded>> {
        let lengths: Vec<usize> = batch.iter().map(|ids| ids.len()).collect();
        let order: Vec<usize> = (0..batch.len()).collect();
        let parts = parts(&order, &lengths, STREAM_TOKENS).into_iter();
        if heads.is_some() {
            let each = parts.map(|part| self.model.forward(&batch[part[0]..part[0] + part.len()], heads));
            return Ok(each.collect::<Result<Vec<_>>>()?.concat());
        }
        let inputs = parts.map(|part| self.model.input(&batch[part[0]..part[0] + part.len()]));
        let inputs = inputs.collect::<Result<Vec<Input>>>()?;
        let pooled = inputs.iter().map(|input| self.model.pooled(&self.model.rows(input)?, &input.lengths));
        vectors(&pooled.collect::<Result<Vec<_>>>()?)
    }
}

impl Encoder for CandleEncoder {
    fn dim(&self) -> usize {
        self.model.dim
    }

    fn device(&self) -> String {
        match self.model.device.location() {
            DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
            DeviceLocation::Cpu | DeviceLocation::Metal { .. } => "cpu".into(),
        }
    }

    /// Every step has its result beside its input, and attention orders queries, keys and values anew.
    fn rows_a_token(&self) -> (usize, usize) {
        (12, 2)
    }

    fn encode(
        &self,
        batch: &[&[u32]],
        heads: Option<&Heads>,
    ) -> std::result::Result<Vec<Encoded>, EmbedError> {
        let failed = |error: candle_core::Error| {
            failed(batch.len(), cuda::is_out_of_memory(&error), error.to_string())
        };
        match &self.lanes {
            Some(lanes) => {
                lanes.run(batch, |part: &[&[u32]]| self.model.forward(part, heads).map_err(failed))
            }
            None => self.stream(batch, heads).map_err(failed),
        }
    }

    fn exact(&self) -> std::result::Result<Option<Arc<dyn Encoder>>, EmbedError> {
        let Some(exact) = &self.exact else { return Ok(None) };
        let failed = |error: OpenError| {
            let message = error.to_string();
            failed(1, cuda::says_so(&message), message)
        };
        exact.get().map(Some).map_err(failed)
    }
}

fn failed(texts: usize, is_full: bool, message: String) -> EmbedError {
    if is_full { EmbedError::OutOfMemory { texts, message } } else { EmbedError::Failed(message) }
}

/// Loads the tensors of one model, so that names and shapes stand in one place.
struct Loader<'a> {
    weights: &'a Weights,
    device: &'a Device,
    dtype: DType,
    eps: f64,
}

impl Loader<'_> {
    /// In f32.
    fn tensor(&mut self, name: &str, shape: &[usize]) -> Loaded<Tensor> {
        self.weights.tensor(name, shape, self.device)
    }

    /// In the type that is computed with.
    fn narrowed(&mut self, name: &str, shape: &[usize]) -> Loaded<Tensor> {
        let tensor = self.tensor(name, shape)?;
        tensor.to_dtype(self.dtype).map_err(|error| self.weights.unusable(&error))
    }

    fn row(&mut self, name: &str, width: usize) -> Loaded<Row> {
        let tensor = self.tensor(name, &[width])?;
        Row::new(&tensor, self.dtype).map_err(|error| self.weights.unusable(&error))
    }

    fn linear(&mut self, name: &str, out: usize, width: usize) -> Loaded<Linear> {
        Ok(Linear {
            weight: self.narrowed(&format!("{name}.weight"), &[out, width])?,
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
        let fused = || {
            let weight = Tensor::cat(&weights, 0)?.to_dtype(self.dtype)?;
            Ok(Linear { weight, bias: Row::new(&Tensor::cat(&biases, 0)?, self.dtype)? })
        };
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
    fn load(mut loader: Loader<'_>, config: &ModelConfig, expect: &Expect, streamed: bool) -> Loaded<Self> {
        let width = config.hidden_size;
        let words = loader.narrowed("embeddings.word_embeddings.weight", &[config.vocab_size, width])?;
        let positions = loader
            .tensor("embeddings.position_embeddings.weight", &[config.max_position_embeddings, width])?;
        let types =
            loader.tensor("embeddings.token_type_embeddings.weight", &[config.type_vocab_size, width])?;
        let positions = types
            .get(0)
            .and_then(|first| first.to_vec1::<f32>())
            .and_then(|first| host_map(&positions, |at, value| value + first[at % width]))
            .and_then(|positions| positions.to_dtype(loader.dtype))
            .map_err(|error| loader.weights.unusable(&error))?;
        let scores_max = if streamed { SCORES_MAX.1 } else { SCORES_MAX.0 };
        Ok(Self {
            device: loader.device.clone(),
            dtype: loader.dtype,
            words,
            positions,
            embedded_norm: loader.norm("embeddings.LayerNorm", width)?,
            layers: (0..config.num_hidden_layers)
                .map(|index| loader.layer(index, config))
                .collect::<std::result::Result<_, _>>()?,
            attention: Attention { heads: config.num_attention_heads, scores_max, ragged: streamed },
            first_position: config.first_position(expect.family),
            pooling: expect.pooling,
            dim: width,
        })
    }

    fn forward(&self, batch: &[&[u32]], heads: Option<&Heads>) -> Result<Vec<Encoded>> {
        let input = self.input(batch)?;
        let rows = self.rows(&input)?;
        match heads {
            Some(heads) => self.with_heads(&rows, batch, heads),
            None => vectors(&[self.pooled(&rows, &input.lengths)?]),
        }
    }

    fn input(&self, batch: &[&[u32]]) -> Result<Input> {
        let lengths: Vec<usize> = batch.iter().map(|ids| ids.len()).collect();
        let ids = batch.concat();
        let first = self.first_position as u32;
        let positions: Vec<u32> = lengths.iter().flat_map(|&n| first..first + n as u32).collect();
        let count = ids.len();
        Ok(Input {
            ids: Tensor::from_vec(ids, count, &self.device)?,
            positions: Tensor::from_vec(positions, count, &self.device)?,
            groups: self.attention.groups(&lengths, self.dtype, &self.device)?,
            lengths,
        })
    }

    /// The last layer's rows, `[tokens, width]`.
    fn rows(&self, input: &Input) -> Result<Tensor> {
        let words = self.words.index_select(&input.ids, 0)?;
        let positions = self.positions.index_select(&input.positions, 0)?;
        let mut rows = fused::add_norm(words, None, &positions, &self.embedded_norm)?;
        for layer in &self.layers {
            let qkv = fused::add(layer.qkv.product(&rows)?, &layer.qkv.bias)?;
            let attended = layer.attended.product(&self.attention.run(&qkv, &input.groups)?)?;
            rows = fused::add_norm(attended, Some(&layer.attended.bias), &rows, &layer.attended_norm)?;
            let inner = fused::add_gelu(layer.up.product(&rows)?, &layer.up.bias)?;
            rows = fused::add_norm(layer.down.product(&inner)?, Some(&layer.down.bias), &rows, &layer.norm)?;
        }
        Ok(rows)
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

    /// `[texts, width]`, still on the device, in f32: a mean of many tokens is not to be rounded to half.
    fn pooled(&self, rows: &Tensor, lengths: &[usize]) -> Result<Tensor> {
        let mut start = 0;
        let mut pooled = Vec::with_capacity(lengths.len());
        for &n in lengths {
            pooled.push(match self.pooling {
                Pooling::Cls => rows.narrow(0, start, 1)?.to_dtype(DType::F32)?,
                Pooling::Mean => rows.narrow(0, start, n)?.to_dtype(DType::F32)?.mean_keepdim(0)?,
            });
            start += n;
        }
        Tensor::cat(&pooled, 0)
    }
}

/// From the device, scaled to norm 1 on the host.
fn vectors(pooled: &[Tensor]) -> Result<Vec<Encoded>> {
    let mut vectors = Tensor::cat(pooled, 0)?.to_vec2::<f32>()?;
    vectors.iter_mut().for_each(|vector| math::scale_to_1(vector));
    Ok(vectors.into_iter().map(Encoded::dense).collect())
}

/// `change(place, number)` of every number, on the host: candle's own operations would start a pool of threads that
/// nobody can size, and keep it.
fn host_map(tensor: &Tensor, change: impl Fn(usize, f32) -> f32) -> Result<Tensor> {
    let mut values = tensor.flatten_all()?.to_vec1::<f32>()?;
    values.iter_mut().enumerate().for_each(|(at, value)| *value = change(at, *value));
    Tensor::from_vec(values, tensor.shape(), tensor.device())
}

#[cfg(test)]
#[path = "candle_tests.rs"]
mod tests;

//! Attention on candle tensors, of texts that lie one after another without padding.
//!
//! Texts of one length are computed together. On a device where a call costs as much as the work of a short text, texts
//! of *about* one length are: spread to the longest, what is too much masked exactly, and gathered again.
#![expect(clippy::cast_possible_truncation, reason = "places of tokens fit 32 bits")]

use candle_core::{DType, Device, Result, Tensor};

use super::fused;

/// How attention is computed.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Heads; they divide the width.
    pub heads: usize,
    /// Scores held at once, in numbers. Longer rows are computed in blocks of queries, so that memory does not grow with
    /// the square of the length.
    pub scores_max: usize,
    /// Whether texts of about one length share a call.
    pub ragged: bool,
}

/// Texts that share a call.
pub struct Group {
    start: usize,
    tokens: usize,
    texts: usize,
    longest: usize,
    padding: Option<Padding>,
}

/// How the texts of a group come to one length, and back.
struct Padding {
    /// For each place, padding included, the row of the group it is read from.
    spread: Tensor,
    /// For each token its place.
    gather: Tensor,
    /// `[texts, 1, 1, longest]`: 0 for a token, −∞ for what is too much.
    mask: Tensor,
}

impl Attention {
    /// Groups of consecutive texts, made once a pass for all layers.
    ///
    /// # Errors
    /// Candle's.
    pub fn groups(&self, lengths: &[usize], dtype: DType, device: &Device) -> Result<Vec<Group>> {
        let (mut start, mut first) = (0, 0);
        let mut groups = Vec::new();
        for texts in self.cut(lengths) {
            let own = &lengths[first..first + texts];
            let (tokens, longest) = (own.iter().sum(), own.iter().copied().max().unwrap_or(0));
            let even = own.iter().all(|&n| n == longest);
            let padding = if even { None } else { Some(padding(own, longest, dtype, device)?) };
            groups.push(Group { start, tokens, texts, longest, padding });
            start += tokens;
            first += texts;
        }
        Ok(groups)
    }

    /// How many texts each group has.
    fn cut(&self, lengths: &[usize]) -> Vec<usize> {
        let mut counts = Vec::new();
        let mut rest = lengths;
        while let Some((&n, others)) = rest.split_first() {
            let (mut longest, mut shortest, mut texts) = (n, n, 1);
            for &other in others {
                longest = longest.max(other);
                shortest = shortest.min(other);
                // A third of padding at most: attention is a small part of the work of such texts.
                let alike = longest == shortest || (self.ragged && 3 * shortest >= 2 * longest);
                if !alike || (texts + 1) * self.heads * longest * longest > self.scores_max {
                    break;
                }
                texts += 1;
            }
            counts.push(texts);
            rest = &rest[texts..];
        }
        counts
    }

    /// Attention of every text over itself: `[tokens, 3 · width]` (queries, scaled, then keys, then values) to
    /// `[tokens, width]`.
    ///
    /// # Errors
    /// Candle's.
    pub fn run(&self, qkv: &Tensor, groups: &[Group]) -> Result<Tensor> {
        let parts = groups.iter().map(|group| self.attend(qkv, group));
        let mut parts = parts.collect::<Result<Vec<_>>>()?;
        if parts.len() == 1 { Ok(parts.remove(0)) } else { Tensor::cat(&parts, 0) }
    }

    fn attend(&self, qkv: &Tensor, group: &Group) -> Result<Tensor> {
        let Group { start, tokens, texts, longest: n, ref padding } = *group;
        let qkv = qkv.narrow(0, start, tokens)?;
        let qkv = if let Some(padding) = padding { qkv.index_select(&padding.spread, 0)? } else { qkv };
        let (heads, width) = (self.heads, qkv.dim(1)? / 3);
        let head = width / heads;
        let qkv = qkv.reshape((texts, n, 3, heads, head))?.permute((2, 0, 3, 1, 4))?.contiguous()?;
        let part = |which: usize| qkv.get(which)?.reshape((texts * heads, n, head));
        let (query, key, value) = (part(0)?, part(1)?.t()?, part(2)?);
        let block = (self.scores_max / (texts * heads * n)).clamp(1, n);
        let mut blocks = Vec::new();
        for first in (0..n).step_by(block) {
            let queries = block.min(n - first);
            let mut scores = query.narrow(1, first, queries)?.contiguous()?.matmul(&key)?;
            if let Some(padding) = padding {
                let masked = scores.reshape((texts, heads, queries, n))?.broadcast_add(&padding.mask)?;
                scores = masked.reshape((texts * heads, queries, n))?;
            }
            blocks.push(fused::softmax(scores)?.matmul(&value)?);
        }
        let mixed = if blocks.len() == 1 { blocks.remove(0) } else { Tensor::cat(&blocks, 1)? };
        let mixed = mixed.reshape((texts, heads, n, head))?.transpose(1, 2)?.reshape((texts * n, width))?;
        if let Some(padding) = padding { mixed.index_select(&padding.gather, 0) } else { Ok(mixed) }
    }
}

fn padding(lengths: &[usize], longest: usize, dtype: DType, device: &Device) -> Result<Padding> {
    let (mut spread, mut gather, mut mask) = (Vec::new(), Vec::new(), Vec::new());
    let mut start = 0;
    for (text, &n) in lengths.iter().enumerate() {
        // What is too much repeats the last token: any finite row would do.
        spread.extend((0..longest).map(|at| (start + at.min(n - 1)) as u32));
        gather.extend((0..n).map(|at| (text * longest + at) as u32));
        mask.extend((0..longest).map(|at| if at < n { 0.0 } else { f32::NEG_INFINITY }));
        start += n;
    }
    let mask = Tensor::from_vec(mask, (lengths.len(), 1, 1, longest), device)?;
    let places = |list: Vec<u32>| Tensor::from_vec(list.clone(), list.len(), device);
    Ok(Padding { spread: places(spread)?, gather: places(gather)?, mask: mask.to_dtype(dtype)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVEN: Attention = Attention { heads: 2, scores_max: 1 << 20, ragged: false };
    const RAGGED: Attention = Attention { ragged: true, ..EVEN };

    #[test]
    fn texts_of_about_one_length_share_a_call_where_calls_are_dear() {
        let lengths = [9, 9, 8, 6, 5, 5, 1];
        assert_eq!(EVEN.cut(&lengths), [2, 1, 1, 2, 1]);
        assert_eq!(RAGGED.cut(&lengths), [4, 2, 1]);
        assert_eq!(RAGGED.cut(&[5, 9, 6, 6]), [1, 3], "in any order");
        // Two texts of 9 with two heads are 324 scores.
        assert_eq!(Attention { scores_max: 323, ..RAGGED }.cut(&lengths), [1, 1, 2, 2, 1]);
        assert_eq!(RAGGED.cut(&[]), [0; 0]);
    }

    #[test]
    fn a_shared_call_gives_what_each_text_alone_gives() {
        let device = Device::Cpu;
        for lengths in [&[9, 8, 6, 5, 5, 1][..], &[4, 6, 5], &[7, 7]] {
            let tokens = lengths.iter().sum::<usize>();
            let qkv = Tensor::randn(0_f32, 1.0, (tokens, 24), &device).unwrap();
            let run = |attention: Attention| {
                let groups = attention.groups(lengths, DType::F32, &device).unwrap();
                attention.run(&qkv, &groups).unwrap()
            };
            let reference = run(EVEN);
            // With so few scores the queries come in blocks.
            for attention in [RAGGED, Attention { scores_max: 60, ..RAGGED }] {
                let distance = (run(attention) - &reference).unwrap().abs().unwrap().max_all().unwrap();
                assert!(distance.to_scalar::<f32>().unwrap() < 1e-6, "{lengths:?}: {distance}");
            }
        }
    }
}

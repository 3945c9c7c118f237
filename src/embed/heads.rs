//! What the final rows of a text come to: the dense vector, and by the heads of bge-m3 a weight for each token it has
//! (sparse) and a vector for each token (multi). All three come from one forward pass.

use std::path::Path;

use rayon::{
    iter::{IndexedParallelIterator as _, ParallelIterator as _},
    slice::{ParallelSlice as _, ParallelSliceMut as _},
};

use super::{
    expect::{Expect, OpenError, Pooling},
    linear::Linear,
    math,
    outputs::Outputs,
    tokens::TextTokenizer,
    weights::Weights,
};

/// The head of the sparse output, in a model's folder: `weight` is `[1, width]`, `bias` is `[1]`.
pub const SPARSE_FILE: &str = "sparse_linear.safetensors";
/// The head of the multi-vector output: `weight` is `[width, width]`, `bias` is `[width]`.
pub const MULTI_FILE: &str = "colbert_linear.safetensors";

/// Tokens that have no sparse weight: they stand for no part of the text.
const SPECIALS: [&str; 4] = ["<s>", "</s>", "<pad>", "<unk>"];

/// Rows of the multi-vector output that a thread computes at a time.
const BLOCK_ROWS: usize = 64;

/// What one text of `n` tokens comes to in a model of `width` numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    /// `[width]`, of norm 1.
    pub dense: Vec<f32>,
    /// Pairs of a token id and its weight, over 0, in ascending order of ids; each id once.
    pub sparse: Option<Vec<(u32, f32)>>,
    /// `[n - 1, width]`: a row for each token but the first, of norm 1.
    pub multi: Option<Vec<f32>>,
}

impl Encoded {
    /// A dense vector and nothing else.
    pub const fn dense(dense: Vec<f32>) -> Self {
        Self { dense, sparse: None, multi: None }
    }
}

/// The heads that were asked for.
pub struct Heads {
    sparse: Option<Linear>,
    multi: Option<Linear>,
    /// Ids of [`SPECIALS`].
    specials: Vec<u32>,
}

impl Heads {
    /// Loads the heads of `outputs` from a model's folder; `None` when only the dense vector is asked for.
    ///
    /// # Errors
    /// A file is missing, is damaged, or has a tensor of another shape; the tokenizer lacks a special token.
    pub fn load(
        folder: &Path,
        expect: &Expect,
        outputs: Outputs,
        tokenizer: &TextTokenizer,
    ) -> Result<Option<Self>, OpenError> {
        if outputs == Outputs::default() {
            return Ok(None);
        }
        let load = |file: &str, out: usize| linear(&expect.name, &folder.join(file), out, expect.dim);
        let special = |token: &&str| {
            tokenizer.id(token).ok_or_else(|| {
                let path = folder.join("tokenizer.json");
                OpenError::damaged(&expect.name, &path, format!("it has no token {token}"))
            })
        };
        Ok(Some(Self {
            sparse: outputs.sparse.then(|| load(SPARSE_FILE, 1)).transpose()?,
            multi: outputs.multi.then(|| load(MULTI_FILE, expect.dim)).transpose()?,
            specials: SPECIALS.iter().map(special).collect::<Result<_, _>>()?,
        }))
    }

    /// The largest weight of each token, by id; tokens that stand for no text and weights of 0 left out.
    fn weigh(&self, head: &Linear, ids: &[u32], rows: &[f32]) -> Vec<(u32, f32)> {
        let mut weights = vec![0.0; ids.len()];
        head.product(rows, &mut weights);
        // What is no number is kept, whatever its sign, as the largest: the check behind the encoder must see it.
        let seen = |weight: f32| if weight.is_nan() { f32::NAN } else { weight };
        let pairs = ids.iter().zip(weights).map(|(&id, weight)| (id, seen(weight)));
        let kept = |&(id, weight): &(u32, f32)| !(weight <= 0.0 || self.specials.contains(&id));
        let mut pairs: Vec<(u32, f32)> = pairs.filter(kept).collect();
        pairs.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        pairs.dedup_by_key(|(id, _)| *id);
        pairs
    }
}

/// A head from its file.
fn linear(model: &str, path: &Path, out: usize, width: usize) -> Result<Linear, OpenError> {
    let weights = Weights::open(model, path)?;
    let weight = weights.numbers("weight", &[out, width])?;
    Ok(Linear::new(&weight, weights.numbers("bias", &[out])?))
}

/// What one text comes to: `ids` are its tokens, at least one; `rows` is `[ids.len(), width]`, the last layer's.
pub fn encoded(pooling: Pooling, heads: Option<&Heads>, ids: &[u32], rows: &[f32]) -> Encoded {
    let width = rows.len() / ids.len();
    let dense = pooled(pooling, rows, width);
    let Some(heads) = heads else { return Encoded::dense(dense) };
    Encoded {
        dense,
        sparse: heads.sparse.as_ref().map(|head| heads.weigh(head, ids, rows)),
        multi: heads.multi.as_ref().map(|head| project(head, &rows[width..], width)),
    }
}

/// `[n, width]` to `[width]`, of norm 1.
#[expect(clippy::cast_possible_truncation, reason = "f32 is the model's precision")]
fn pooled(pooling: Pooling, rows: &[f32], width: usize) -> Vec<f32> {
    let counted = if pooling == Pooling::Cls { 1 } else { usize::MAX };
    let mut sums = vec![0.0_f64; width];
    for row in rows.chunks_exact(width).take(counted) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    let norm = sums.iter().map(|sum| sum * sum).sum::<f64>().sqrt();
    sums.iter().map(|sum| (sum / norm) as f32).collect()
}

/// `[n, width]` to `[n, width]`, each row of norm 1, on the threads of the pool that this runs in.
fn project(head: &Linear, rows: &[f32], width: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows.len()];
    let block = BLOCK_ROWS * width;
    rows.par_chunks(block).zip(out.par_chunks_mut(block)).for_each(|(rows, out)| {
        head.product(rows, out);
        out.chunks_exact_mut(width).for_each(math::scale_to_1);
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sparse: the first number of a row less a half. Multi: the row, its numbers swapped.
    fn heads() -> Heads {
        Heads {
            sparse: Some(Linear::new(&[1.0, 0.0], vec![-0.5])),
            multi: Some(Linear::new(&[0.0, 1.0, 1.0, 0.0], vec![0.0; 2])),
            specials: vec![0, 2, 1, 3],
        }
    }

    #[test]
    fn each_output_is_as_defined() {
        let ids = [0, 9, 7, 9, 3, 8, 2];
        let rows = [3.0, 4.0, 1.0, 0.0, 0.75, 1.0, 2.0, 0.0, 9.0, 0.0, 0.5, 1.0, 5.0, 0.0];
        let all = encoded(Pooling::Cls, Some(&heads()), &ids, &rows);
        assert_eq!(all.dense, [0.6, 0.8]);
        // 9 twice, the larger counts; 8 weighs nothing; 0, 2 and 3 are specials, however much they weigh.
        assert_eq!(all.sparse.unwrap(), [(7, 0.25), (9, 1.5)]);
        let multi = all.multi.unwrap();
        assert_eq!(multi.len(), 6 * 2, "a row for each token but the first");
        assert_eq!(multi[..6], [0.0, 1.0, 0.8, 0.6, 0.0, 1.0]);
        assert_eq!(
            encoded(Pooling::Mean, None, &[9, 9], &[0.0, 3.0, 4.0, 0.0]),
            Encoded::dense(vec![0.8, 0.6])
        );
    }

    #[test]
    fn a_text_of_specials_or_of_one_token_has_outputs_that_are_empty_and_not_absent() {
        let only = encoded(Pooling::Cls, Some(&heads()), &[0, 2], &[3.0, 4.0, 1.0, 0.0]);
        assert_eq!((only.sparse, only.multi), (Some(vec![]), Some(vec![0.0, 1.0])));
        let one = encoded(Pooling::Cls, Some(&heads()), &[9], &[3.0, 4.0]);
        assert_eq!((one.sparse, one.multi), (Some(vec![(9, 2.5)]), Some(vec![])));
    }

    #[test]
    fn what_is_no_number_is_not_dropped() {
        for nan in [f32::NAN, -f32::NAN] {
            let all = encoded(Pooling::Cls, Some(&heads()), &[0, 9, 9], &[1.0, 0.0, nan, 0.0, 1.0, 0.0]);
            let sparse = all.sparse.unwrap();
            assert!(sparse.len() == 1 && sparse[0].1.is_nan(), "{sparse:?}");
        }
    }

    #[test]
    fn a_head_as_its_repository_has_it_is_converted_and_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let pickle = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sparse_linear.pt");
        let file = folder.path().join(SPARSE_FILE);
        crate::embed::convert::to_safetensors(&pickle, &file, &|_, _| ()).unwrap();
        let head = linear("m", &file, 1, 32).unwrap();
        // A row with a single 1 finds a single weight.
        for at in 0_u8..32 {
            let (mut row, mut out) = ([0.0; 32], [0.0]);
            row[usize::from(at)] = 1.0;
            head.product(&row, &mut out);
            assert_eq!(out, [f32::from(at) / 64.0 - 0.25 + 0.5]);
        }
        let message = linear("m", &file, 1, 64).err().unwrap().to_string();
        assert!(message.contains("the tensor weight is [1, 32], not [1, 64]"), "{message}");
        let message = linear("m", &folder.path().join(MULTI_FILE), 32, 32).err().unwrap().to_string();
        assert!(message.contains("colbert_linear.safetensors is missing"), "{message}");
        assert!(message.contains("forebay model pull m"), "{message}");
    }
}

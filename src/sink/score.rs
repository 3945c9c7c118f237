//! How like a stored row is to a query, output by output. Pure; the stored forms are read in place, a row at a time.

/// Lanes that are summed apart, so that the compiler may use wide registers without changing any sum.
const LANES: usize = 16;

/// Norm of a vector.
pub fn norm(vector: &[f32]) -> f32 {
    vector.iter().map(|x| x * x).sum::<f32>().sqrt()
}

/// Dot product, and the square of the norm of `numbers`, which are little-endian f32.
fn dot_and_square(query: &[f32], numbers: &[[u8; 4]]) -> (f32, f32) {
    let (mut dot, mut square) = ([0.0_f32; LANES], [0.0_f32; LANES]);
    let (wide_q, tail_q) = query.as_chunks::<LANES>();
    let (wide_x, tail_x) = numbers.as_chunks::<LANES>();
    for (q, x) in wide_q.iter().zip(wide_x) {
        for lane in 0..LANES {
            let x = f32::from_le_bytes(x[lane]);
            dot[lane] += q[lane] * x;
            square[lane] += x * x;
        }
    }
    for (lane, (q, x)) in tail_q.iter().zip(tail_x).enumerate() {
        let x = f32::from_le_bytes(*x);
        dot[lane] += q * x;
        square[lane] += x * x;
    }
    (dot.iter().sum(), square.iter().sum())
}

/// Cosine of `query`, whose norm is given, and the little-endian f32 in `blob`; `None` when it is not a vector of this
/// dimension.
pub fn cosine(query: &[f32], query_norm: f32, blob: &[u8]) -> Option<f32> {
    let (numbers, rest) = blob.as_chunks::<4>();
    if !rest.is_empty() || numbers.len() != query.len() {
        return None;
    }
    let (dot, square) = dot_and_square(query, numbers);
    let score = dot / (query_norm * square.sqrt());
    score.is_finite().then_some(score.clamp(-1.0, 1.0))
}

/// Sum of the products of the weights of the tokens that both have; ids ascend in both. `None` when `blob` does not hold
/// such pairs.
pub fn lexical(query: &[(u32, f32)], blob: &[u8]) -> Option<f32> {
    let pairs = super::rows::decode_pairs(blob)?;
    if !pairs.is_sorted_by(|a, b| a.0 < b.0) {
        return None;
    }
    let (mut rest, mut sum) = (query, 0.0);
    for (id, weight) in pairs {
        rest = &rest[rest.partition_point(|(other, _)| *other < id)..];
        match rest.first() {
            Some((other, factor)) if *other == id => sum += weight * factor,
            Some(_) => {}
            None => break,
        }
    }
    sum.is_finite().then_some(sum)
}

/// Mean, over the rows of `query`, of the largest dot product with a row of `blob`; rows of `dim` numbers of norm 1.
/// `None` when one of them has no rows, or `blob` does not hold such rows.
pub fn max_sim(query: &[f32], dim: usize, blob: &[u8]) -> Option<f32> {
    let (numbers, rest) = blob.as_chunks::<4>();
    let count = query.len() / dim.max(1);
    if count == 0 || numbers.is_empty() || !rest.is_empty() || !numbers.len().is_multiple_of(dim) {
        return None;
    }
    let mut tops = vec![f32::NEG_INFINITY; count];
    let mut row = vec![0.0; dim];
    for stored in numbers.chunks_exact(dim) {
        row.iter_mut().zip(stored).for_each(|(x, bytes)| *x = f32::from_le_bytes(*bytes));
        for (top, query) in tops.iter_mut().zip(query.chunks_exact(dim)) {
            *top = top.max(dot(query, &row));
        }
    }
    let score = tops.iter().sum::<f32>() / count as f32;
    score.is_finite().then_some(score)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut parts = [0.0_f32; LANES];
    let ((wide_a, tail_a), (wide_b, tail_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in wide_a.iter().zip(wide_b) {
        parts.iter_mut().zip(a).zip(b).for_each(|((part, a), b)| *part += a * b);
    }
    parts.iter().sum::<f32>() + tail_a.iter().zip(tail_b).map(|(a, b)| a * b).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::{
        super::rows::{encode, encode_pairs},
        *,
    };

    fn wave(n: usize, step: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * step).sin() + 0.1).collect()
    }

    #[test]
    fn cosine_is_the_cosine_at_every_length() {
        for n in [1_usize, 3, 15, 16, 17, 384] {
            let (a, b) = (wave(n, 0.7), wave(n, 1.3));
            let blob = encode(&b);
            let norm_of = |v: &[f32]| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let dot: f64 = a.iter().zip(&b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            let got = cosine(&a, norm(&a), &blob).unwrap();
            assert!((f64::from(got) - dot / (norm_of(&a) * norm_of(&b))).abs() < 1e-5, "{n}");
            assert!(cosine(&a, 1.0, &blob[..4 * n - 1]).is_none());
        }
    }

    #[test]
    fn tokens_that_both_have_count() {
        let query = [(1, 0.5), (4, 2.0), (9, 1.0)];
        assert_eq!(lexical(&query, &encode_pairs(&[(0, 9.0), (1, 0.5), (4, 0.25), (8, 7.0)])), Some(0.75));
        assert_eq!(lexical(&query, &encode_pairs(&[(2, 9.0), (10, 9.0), (11, 1.0)])), Some(0.0));
        assert_eq!(lexical(&query, &[]), Some(0.0));
        assert_eq!(lexical(&[], &encode_pairs(&[(1, 1.0)])), Some(0.0));
        assert_eq!(lexical(&query, &encode_pairs(&[(4, 1.0), (1, 1.0)])), None, "not in order: not ours");
        assert_eq!(lexical(&query, &encode_pairs(&[(1, f32::NAN)])), None);
        assert_eq!(lexical(&query, &[1, 0, 0, 0]), None);
    }

    #[test]
    fn each_row_of_the_query_takes_its_best() {
        let query = [1.0, 0.0, 0.6, 0.8];
        let stored = encode(&[0.0, 1.0, 0.6, 0.8, -1.0, 0.0]);
        assert!((max_sim(&query, 2, &stored).unwrap() - f32::midpoint(0.6, 1.0)).abs() < 1e-6);
        assert_eq!(max_sim(&query, 2, &[]), None);
        assert_eq!(max_sim(&[], 2, &stored), None);
        assert_eq!(max_sim(&query, 2, &stored[4..]), None);
        assert_eq!(max_sim(&query, 2, &encode(&[f32::NAN; 2])), None, "no number is no best");
    }
}

//! A matrix multiplication for what stands beside the layers, in plain Rust for every processor. The layers have kernels
//! of their own.

/// Columns that are computed together: two registers of the narrowest kind.
const COLUMNS: usize = 8;
/// Rows that are computed together: their sums fill the registers.
const ROWS: usize = 4;

/// Weights and bias. The weights lie in panels of [`COLUMNS`] columns, in each one a step of the common dimension after
/// the other, so that the sums of a tile are lanes and never added across; columns that are wanting are zero.
pub struct Linear {
    width: usize,
    panels: Vec<[f32; COLUMNS]>,
    bias: Vec<f32>,
}

impl Linear {
    /// Of `weights`, row-major `[bias.len(), width]`, and a bias of at least one number.
    pub fn new(weights: &[f32], bias: Vec<f32>) -> Self {
        let width = weights.len() / bias.len();
        let mut panels = Vec::with_capacity(width * bias.len().div_ceil(COLUMNS));
        for rows in weights.chunks(COLUMNS * width) {
            let step = |k: usize| std::array::from_fn(|j| rows.get(j * width + k).copied().unwrap_or(0.0));
            panels.extend((0..width).map(step));
        }
        Self { width, panels, bias }
    }

    /// `out = rows · weightsᵀ + bias`: `rows` is `[n, width]`, `out` is `[n, bias.len()]`.
    pub fn product(&self, rows: &[f32], out: &mut [f32]) {
        let (width, wide) = (self.width, self.bias.len());
        for (at, panel) in self.panels.chunks_exact(width).enumerate() {
            let columns = at * COLUMNS..wide.min((at + 1) * COLUMNS);
            let bias = &self.bias[columns.clone()];
            for (rows, out) in rows.chunks(ROWS * width).zip(out.chunks_mut(ROWS * wide)) {
                // Where fewer rows are left, the first stands for those that are wanting.
                let row = |i: usize| rows.chunks_exact(width).nth(i).unwrap_or(&rows[..width]);
                let tile = tile(std::array::from_fn(row), panel);
                for (out, sums) in out.chunks_exact_mut(wide).zip(tile) {
                    let sums = sums.iter().zip(bias).map(|(sum, bias)| sum + bias);
                    out[columns.clone()].iter_mut().zip(sums).for_each(|(out, sum)| *out = sum);
                }
            }
        }
    }
}

/// Dot products of rows with the columns of a panel.
fn tile([a, b, c, d]: [&[f32]; ROWS], panel: &[[f32; COLUMNS]]) -> [[f32; COLUMNS]; ROWS] {
    let mut sums = [[0.0_f32; COLUMNS]; ROWS];
    for ((((step, a), b), c), d) in panel.iter().zip(a).zip(b).zip(c).zip(d) {
        for (sums, x) in sums.iter_mut().zip([a, b, c, d]) {
            sums.iter_mut().zip(step).for_each(|(sum, y)| *sum += x * y);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_product_at_every_shape() {
        for (n, m, width) in [(1, 1, 1), (3, 5, 7), (4, 8, 8), (9, 37, 33), (6, 1, 100), (0, 3, 4)] {
            let numbers = |count: usize, step: f32| (0..count).map(|i| (i as f32 * step).sin()).collect();
            let (rows, weights): (Vec<f32>, Vec<f32>) = (numbers(n * width, 0.7), numbers(m * width, 1.3));
            let bias: Vec<f32> = numbers(m, 2.1);
            let mut out = vec![9.0; n * m];
            Linear::new(&weights, bias.clone()).product(&rows, &mut out);
            for (i, row) in rows.chunks_exact(width).enumerate() {
                for (j, column) in weights.chunks_exact(width).enumerate() {
                    let dot: f64 = row.iter().zip(column).map(|(x, y)| f64::from(x * y)).sum();
                    let off = f64::from(out[i * m + j]) - dot - f64::from(bias[j]);
                    assert!(off.abs() < 1e-5, "{n} x {m} x {width} at {i}, {j}: {off}");
                }
            }
        }
    }
}

//! Final norm, output projection and log-softmax, restricted to the scored rows.

use rayon::prelude::*;

use super::linear::normalize_selected_rows;
use super::tasks::task_rows;
use super::{Norm, PackedWeights, Prediction, ScoredRow, with_panels};
use crate::linalg::gemm::{MatrixView, Update, l2_cache_bytes};
use crate::linalg::panel_product::PanelProduct;
use crate::linalg::panels::{PackedFormat, Panels};
use crate::linalg::simd;
use crate::scratch::take_scratch;

/// Number of tokens per tile of logits. A tile fits into a core's cache regardless of the vocabulary size.
pub(super) const TILE_VOCAB: usize = 1024;

/// Returns the maximum number of rows per tile of logits. Taller tiles read the weights less often. Results do not
/// depend on this number.
pub(super) fn tile_rows<K: PackedFormat>(weight: &Panels<K>) -> usize {
    const LARGE_L2_BYTES: usize = 2 << 20;
    if l2_cache_bytes() >= LARGE_L2_BYTES { weight.max_task_rows() } else { 128 }
}

/// Final norm before the output projection, and soft cap on the logits after it.
#[derive(Clone, Copy)]
pub struct HeadParams<'a> {
    pub norm: Norm<'a>,
    pub cap: Option<f32>,
}

/// Softmax denominator and most likely token of a row, accumulated tile by tile.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    /// Maximum logit so far.
    pub(super) max: f32,
    /// Lowest token id with the maximum logit.
    pub(super) argmax: usize,
    /// `Σ e^(logit − max)`
    sum: f32,
}

impl Default for Softmax {
    fn default() -> Self {
        Self { max: f32::NEG_INFINITY, argmax: 0, sum: 0.0 }
    }
}

impl Softmax {
    /// Adds the logits of a tile that starts at token `first`.
    #[inline(always)]
    pub(super) fn add(&mut self, first: usize, logits: &[f32]) {
        let tile_max = simd::max(logits);
        let top = if tile_max > self.max { tile_max } else { self.max };
        if tile_max > self.max {
            // Rare: few tiles contain a new maximum.
            self.argmax = first + logits.iter().position(|&logit| logit == tile_max).unwrap_or(0);
        }
        // The first tile has no previous sum.
        let carried = if first == 0 { 0.0 } else { self.sum * simd::exp(self.max - top) };
        self.sum = carried + simd::sum_exp(logits, top);
        self.max = top;
    }

    /// Returns the prediction for a token with the given logit.
    pub(super) fn predict(&self, token: u32, logit: f32) -> Prediction {
        Prediction { log_probability: logit - (self.max + self.sum.ln()), is_greedy: token as usize == self.argmax }
    }
}

/// Computes the log-probability of each target, and whether the target is the most likely token. With bf16 weights,
/// rows are rounded to bf16 before the product. The log-softmax over the vocabulary is always f32. Targets must be
/// sorted by row.
///
/// # Shapes
/// `x [tokens, C]`, `weight [C, vocab]`; one value per target.
pub fn predictions(
    x: &[f32],
    channels: usize,
    head_params: HeadParams<'_>,
    weight: &PackedWeights,
    targets: &[ScoredRow],
) -> Vec<Prediction> {
    with_panels!(weight, |weight| predict_with_panels(x, channels, head_params, weight, targets))
}

fn predict_with_panels<K: PackedFormat>(
    x: &[f32],
    channels: usize,
    head_params: HeadParams<'_>,
    weight: &Panels<K>,
    targets: &[ScoredRow],
) -> Vec<Prediction> {
    // All targets of a row stay in one task, so that the row is projected once.
    let rows: Vec<&[ScoredRow]> = targets.chunk_by(|a, b| a.row == b.row).collect();
    // A few rows are enough work for a task, because each is multiplied by the entire vocabulary.
    let step = task_rows(rows.len(), 1, tile_rows(weight));
    rows.par_chunks(step).map(|rows| predict_rows(x, channels, head_params, weight, rows)).flatten_iter().collect()
}

fn predict_rows<K: PackedFormat>(
    x: &[f32],
    channels: usize,
    head_params: HeadParams<'_>,
    weight: &Panels<K>,
    rows: &[&[ScoredRow]],
) -> Vec<Prediction> {
    let vocab = weight.outer();
    let mut normed = take_scratch(rows.len() * channels);
    normalize_selected_rows(x, channels, head_params.norm, rows.iter().map(|targets| targets[0].row), &mut normed);
    let packed_rows = K::pack_rows(MatrixView::rows(&normed, rows.len(), channels));
    let mut tile = PanelProduct::new::<K>(rows.len(), TILE_VOCAB.min(vocab));
    let mut logits = [0.0; TILE_VOCAB];
    let mut softmax = vec![Softmax::default(); rows.len()];
    let mut target_logits: Vec<Vec<f32>> = rows.iter().map(|targets| vec![f32::NAN; targets.len()]).collect();
    for first in (0..vocab).step_by(TILE_VOCAB) {
        let width = TILE_VOCAB.min(vocab - first);
        tile.multiply(&packed_rows, weight, first..first + width);
        let logits = &mut logits[..width];
        for (i, softmax) in softmax.iter_mut().enumerate() {
            simd::in_widest!({
                tile.copy_row(i, logits);
                apply_soft_cap(logits, head_params.cap);
                softmax.add(first, logits);
            });
            for (target, value) in rows[i].iter().zip(&mut target_logits[i]) {
                if let Some(&logit) = (target.token as usize).checked_sub(first).and_then(|column| logits.get(column)) {
                    *value = logit;
                }
            }
        }
    }
    let mut predictions = Vec::with_capacity(rows.iter().map(|targets| targets.len()).sum());
    for (i, targets) in rows.iter().enumerate() {
        predictions.extend(
            targets.iter().zip(&target_logits[i]).map(|(target, &logit)| softmax[i].predict(target.token, logit)),
        );
    }
    predictions
}

/// Computes the logits of the given rows.
///
/// # Shapes
/// `x [tokens, C]`, `weight [C, vocab]`; result `[rows, vocab]`.
pub fn logits(
    x: &[f32],
    channels: usize,
    head_params: HeadParams<'_>,
    weight: &PackedWeights,
    rows: &[usize],
) -> Vec<f32> {
    let vocab = weight.outer();
    let mut normed = vec![0.0; rows.len() * channels];
    normalize_selected_rows(x, channels, head_params.norm, rows.iter().copied(), &mut normed);
    let mut out = vec![0.0; rows.len() * vocab];
    weight.matmul(MatrixView::rows(&normed, rows.len(), channels), true, Update::Replace, &mut out);
    apply_soft_cap(&mut out, head_params.cap);
    out
}

pub(super) fn apply_soft_cap(logits: &mut [f32], cap: Option<f32>) {
    let Some(cap) = cap else { return };
    simd::in_widest!(simd::soft_cap(logits, cap));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::linalg::bf16::Bf16;
    use crate::linalg::bf16_split::Bf16Split;
    use crate::linalg::float32::F32;

    #[test]
    fn lowest_token_wins_among_equal_logits() {
        let vocab = 2 * TILE_VOCAB;
        let mut weight = vec![0.0; vocab]; // [1, vocab]
        for token in [7, 9, TILE_VOCAB + 3] {
            weight[token] = 1.0;
        }
        let panels = PackedWeights::F32(Arc::new(Panels::from_rows(&weight, 1, vocab)));
        let norm = HeadParams { norm: Norm { weight: &[1.0], eps: 1e-5 }, cap: None };
        let targets = [7, 9, TILE_VOCAB + 3, 0].map(|token| ScoredRow { row: 0, token: token as u32 });
        let greedy_flags: Vec<bool> =
            predictions(&[2.0], 1, norm, &panels, &targets).iter().map(|p| p.is_greedy).collect();
        assert_eq!(greedy_flags, [true, false, false, false]);
    }

    #[test]
    fn tiled_log_softmax_covers_the_whole_vocabulary() {
        // The vocabulary has two and a half tiles. One row is requested twice.
        let channels = 8;
        let vocab = 2 * TILE_VOCAB + TILE_VOCAB / 2;
        let x: Vec<f32> = (0..3 * channels).map(|i| (i as f32 * 0.37).sin() * 4.0).collect();
        let weight: Vec<f32> = (0..channels * vocab).map(|i| (i as f32 * 0.011).cos()).collect();
        let ones = vec![1.0; channels];
        let norm = HeadParams { norm: Norm { weight: &ones, eps: 1e-5 }, cap: None };
        let targets = [(0, 5), (2, 0), (2, vocab as u32 - 1)].map(|(row, token)| ScoredRow { row, token });
        let single = Arc::new(Panels::<F32>::from_rows(&weight, channels, vocab));
        let half = Arc::new(Panels::<Bf16>::from_rows(&weight, channels, vocab));
        let tiled = Arc::new(Panels::<Bf16Split<1>>::from_rows(&weight, channels, vocab));
        for (ours, all) in
            [PackedWeights::F32(single), PackedWeights::Bf16(half), PackedWeights::Bf16Amx(tiled)].map(|weight| {
                (predictions(&x, channels, norm, &weight, &targets), logits(&x, channels, norm, &weight, &[0, 1, 2]))
            })
        {
            for (target, ours) in targets.iter().zip(ours) {
                let row = &all[target.row * vocab..(target.row + 1) * vocab];
                let denominator = row.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
                let exact = f64::from(row[target.token as usize]) - denominator;
                assert!((f64::from(ours.log_probability) - exact).abs() < 1e-5, "{ours:?} {exact}");
                let max_logit = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let first = row.iter().position(|&logit| logit == max_logit).unwrap();
                assert_eq!(ours.is_greedy, target.token as usize == first);
            }
        }
    }
}

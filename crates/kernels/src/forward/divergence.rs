//! Divergence between two models' predictions, computed without storing the logits for the entire vocabulary.

use rayon::prelude::*;

use super::head::{HeadParams, Softmax, TILE_VOCAB, apply_soft_cap, tile_rows};
use super::linear::normalize_selected_rows;
use super::tasks::task_rows;
use super::{PackedWeights, Prediction, ScoredRow, with_panels};
use crate::linalg::gemm::MatrixView;
use crate::linalg::panel_product::PanelProduct;
use crate::linalg::panels::{PackedFormat, Panels};
use crate::linalg::simd;
use crate::scratch::take_scratch;

/// Divergence between two next-token distributions: `p` of a reference model and `q` of a variant of it, such as a
/// pruned model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Divergence {
    /// Prediction of the variant, bit-identical to that of [`super::predictions`].
    pub prediction: Prediction,
    /// `ln p(token)`
    pub ln_p: f64,
    /// `ln q(token)`
    pub ln_q: f64,
    /// `Σ p ln(p / q)`, in nats.
    pub kl_pq: f64,
    /// `Σ q ln(q / p)`, in nats.
    pub kl_qp: f64,
    /// Whether both distributions have the same most likely token. Ties go to the lowest token id.
    pub same_top: bool,
}

/// Computes the divergence at each target between two models with the same output projection. Targets must be sorted by
/// row. A thread keeps only one tile of each model's logits in memory.
///
/// # Shapes
/// `reference [tokens, C]`, `variant [tokens, C]`, `weight [C, vocab]`; one value per target.
pub fn divergences(
    [reference, variant]: [&[f32]; 2],
    channels: usize,
    head_params: HeadParams<'_>,
    weight: &PackedWeights,
    targets: &[ScoredRow],
) -> Vec<Divergence> {
    with_panels!(weight, |weight| compute_divergences([reference, variant], channels, head_params, weight, targets))
}

/// Computes the divergence at each target from the logits of two models. Targets must be sorted by row.
///
/// # Shapes
/// `reference [rows, vocab]`, `variant [rows, vocab]`; one value per target.
pub fn divergences_of_logits(
    [reference, variant]: [&[f32]; 2],
    vocab: usize,
    targets: &[ScoredRow],
) -> Vec<Divergence> {
    let rows: Vec<&[ScoredRow]> = targets.chunk_by(|a, b| a.row == b.row).collect();
    rows.into_par_iter()
        .map(|targets| {
            let range = targets[0].row * vocab..(targets[0].row + 1) * vocab;
            let mut pair = SoftmaxPair::new(targets);
            simd::in_widest!(pair.add(0, &reference[range.clone()], &variant[range.clone()]));
            pair.finish()
        })
        .flatten_iter()
        .collect()
}

fn compute_divergences<K: PackedFormat>(
    streams: [&[f32]; 2],
    channels: usize,
    head_params: HeadParams<'_>,
    weight: &Panels<K>,
    targets: &[ScoredRow],
) -> Vec<Divergence> {
    // All targets of a row stay in one task, so that the row is projected once.
    let rows: Vec<&[ScoredRow]> = targets.chunk_by(|a, b| a.row == b.row).collect();
    let step = task_rows(rows.len(), 1, tile_rows(weight)).max(1);
    rows.par_chunks(step)
        .map(|rows| compare_rows(streams, channels, head_params, weight, rows))
        .flatten_iter()
        .collect()
}

fn compare_rows<K: PackedFormat>(
    streams: [&[f32]; 2],
    channels: usize,
    head_params: HeadParams<'_>,
    weight: &Panels<K>,
    rows: &[&[ScoredRow]],
) -> Vec<Divergence> {
    let vocab = weight.outer();
    let mut normed = streams.map(|_| take_scratch(rows.len() * channels));
    let mut tiles = streams.map(|_| PanelProduct::new::<K>(rows.len(), TILE_VOCAB.min(vocab)));
    let mut logits = [[0.0; TILE_VOCAB]; 2];
    for (x, normed) in streams.iter().zip(&mut normed) {
        normalize_selected_rows(x, channels, head_params.norm, rows.iter().map(|targets| targets[0].row), normed);
    }
    let packed_rows = normed.each_ref().map(|normed| K::pack_rows(MatrixView::rows(normed, rows.len(), channels)));
    let mut pairs: Vec<SoftmaxPair<'_>> = rows.iter().map(|targets| SoftmaxPair::new(targets)).collect();
    for first in (0..vocab).step_by(TILE_VOCAB) {
        let width = TILE_VOCAB.min(vocab - first);
        for (tile, packed_rows) in tiles.iter_mut().zip(&packed_rows) {
            tile.multiply(packed_rows, weight, first..first + width);
        }
        let [p, q] = logits.each_mut().map(|logits| &mut logits[..width]);
        for (row, pair) in pairs.iter_mut().enumerate() {
            simd::in_widest!({
                for (tile, logits) in tiles.iter().zip([&mut *p, &mut *q]) {
                    tile.copy_row(row, logits);
                    apply_soft_cap(logits, head_params.cap);
                }
                pair.add(first, p, q);
            });
        }
    }
    pairs.iter().flat_map(SoftmaxPair::finish).collect()
}

/// Softmax statistics of one row for both models, accumulated tile by tile. `z` are the logits of the reference, and
/// `w` are the logits of the variant.
struct SoftmaxPair<'a> {
    targets: &'a [ScoredRow],
    /// Logits `[z, w]` of each target.
    target_logits: Vec<[f32; 2]>,
    p: Softmax,
    q: Softmax,
    sums: Sums,
}

/// Sums over the vocabulary in f64. The exponentials are computed in f32, which suffices because their rounding errors
/// are independent and relative to each term.
#[derive(Clone, Copy, Default)]
struct Sums {
    /// `Σ e^(z − max z)`
    p: f64,
    /// `Σ e^(w − max w)`
    q: f64,
    /// `Σ e^(z − max z)·(z − w)`
    pq: f64,
    /// `Σ e^(w − max w)·(w − z)`
    qp: f64,
}

impl<'a> SoftmaxPair<'a> {
    fn new(targets: &'a [ScoredRow]) -> Self {
        let target_logits = vec![[f32::NAN; 2]; targets.len()];
        Self { targets, target_logits, p: Softmax::default(), q: Softmax::default(), sums: Sums::default() }
    }

    /// Adds the logits of a tile that starts at token `first`.
    #[inline(always)]
    fn add(&mut self, first: usize, z: &[f32], w: &[f32]) {
        let previous_max = [self.p.max, self.q.max];
        self.p.add(first, z);
        self.q.add(first, w);
        if first > 0 {
            let [p, q] = [self.p.max, self.q.max];
            let carried = [f64::from(previous_max[0] - p).exp(), f64::from(previous_max[1] - q).exp()];
            self.sums.p *= carried[0];
            self.sums.pq *= carried[0];
            self.sums.q *= carried[1];
            self.sums.qp *= carried[1];
        }
        self.sums.add(z, w, [self.p.max, self.q.max]);
        for (target, target_logits) in self.targets.iter().zip(&mut self.target_logits) {
            if let Some(column) = (target.token as usize).checked_sub(first).filter(|&column| column < z.len()) {
                *target_logits = [z[column], w[column]];
            }
        }
    }

    fn finish(&self) -> Vec<Divergence> {
        let ln_p = f64::from(self.p.max) + self.sums.p.ln();
        let ln_q = f64::from(self.q.max) + self.sums.q.ln();
        let kl_pq = self.sums.pq / self.sums.p - (ln_p - ln_q);
        let kl_qp = self.sums.qp / self.sums.q - (ln_q - ln_p);
        let divergences = self.targets.iter().zip(&self.target_logits).map(|(target, &[z, w])| Divergence {
            prediction: self.q.predict(target.token, w),
            ln_p: f64::from(z) - ln_p,
            ln_q: f64::from(w) - ln_q,
            kl_pq,
            kl_qp,
            same_top: self.p.argmax == self.q.argmax,
        });
        divergences.collect()
    }
}

impl Sums {
    #[inline(always)]
    fn add(&mut self, z: &[f32], w: &[f32], max: [f32; 2]) {
        const LANES: usize = 8;
        let mut lanes = [[0.0f64; LANES]; 4];
        let (z_chunks, z_rest) = z.as_chunks::<LANES>();
        let (w_chunks, w_rest) = w.as_chunks::<LANES>();
        #[inline(always)]
        fn add_terms(lanes: &mut [[f64; LANES]; 4], lane: usize, [z, w]: [f32; 2], [max_z, max_w]: [f32; 2]) {
            let p = f64::from(simd::exp(z - max_z));
            let q = f64::from(simd::exp(w - max_w));
            let difference = f64::from(z) - f64::from(w);
            lanes[0][lane] += p;
            lanes[1][lane] += q;
            lanes[2][lane] += p * difference;
            lanes[3][lane] -= q * difference;
        }
        for (z, w) in z_chunks.iter().zip(w_chunks) {
            for lane in 0..LANES {
                add_terms(&mut lanes, lane, [z[lane], w[lane]], max);
            }
        }
        for (lane, (&z, &w)) in z_rest.iter().zip(w_rest).enumerate() {
            add_terms(&mut lanes, lane, [z, w], max);
        }
        let [p, q, pq, qp] = lanes.map(|lane| lane.iter().sum::<f64>());
        self.p += p;
        self.q += q;
        self.pq += pq;
        self.qp += qp;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::forward::{Norm, logits, predictions};

    const CHANNELS: usize = 8;
    /// Vocabulary size of two and a half tiles.
    const VOCAB: usize = 2 * TILE_VOCAB + TILE_VOCAB / 2;
    const HEAD_PARAMS: HeadParams<'_> = HeadParams { norm: Norm { weight: &[1.0; CHANNELS], eps: 1e-5 }, cap: None };

    fn sample_streams() -> [Vec<f32>; 2] {
        [0.37f32, 0.41].map(|turn| (0..3 * CHANNELS).map(|i| (i as f32 * turn).sin() * 4.0).collect())
    }

    fn sample_weight() -> Vec<f32> {
        (0..CHANNELS * VOCAB).map(|i| (i as f32 * 0.011).cos()).collect()
    }

    fn sample_targets() -> Vec<ScoredRow> {
        [(0, 5), (2, 0), (2, VOCAB as u32 - 1)].map(|(row, token)| ScoredRow { row, token }).into()
    }

    /// Computes the log-probabilities of all tokens in f64.
    fn log_softmax(logits: &[f32]) -> Vec<f64> {
        let greatest = logits.iter().fold(f64::NEG_INFINITY, |top, &logit| top.max(f64::from(logit)));
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - greatest).exp()).sum();
        logits.iter().map(|&logit| f64::from(logit) - greatest - sum.ln()).collect()
    }

    fn kl(p: &[f64], q: &[f64]) -> f64 {
        p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum()
    }

    fn argmax(logits: &[f32]) -> usize {
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        logits.iter().position(|&logit| logit == greatest).unwrap()
    }

    #[test]
    fn divergences_match_an_f64_reference() {
        let [x, y] = sample_streams();
        let single = Arc::new(Panels::from_rows(&sample_weight(), CHANNELS, VOCAB));
        let half = Arc::new(Panels::from_rows(&sample_weight(), CHANNELS, VOCAB));
        for weight in &[PackedWeights::F32(single), PackedWeights::Bf16(half)] {
            let [all_x, all_y] = [&x, &y].map(|x| logits(x, CHANNELS, HEAD_PARAMS, weight, &[0, 1, 2]));
            let tiled = divergences([&x, &y], CHANNELS, HEAD_PARAMS, weight, &sample_targets());
            let untiled = divergences_of_logits([&all_x, &all_y], VOCAB, &sample_targets());
            let predicted = predictions(&y, CHANNELS, HEAD_PARAMS, weight, &sample_targets());
            for (index, target) in sample_targets().iter().enumerate() {
                let range = target.row * VOCAB..(target.row + 1) * VOCAB;
                let [p, q] = [&all_x, &all_y].map(|all| log_softmax(&all[range.clone()]));
                let token = target.token as usize;
                for ours in [tiled[index], untiled[index]] {
                    for (ours, exact) in [
                        (ours.ln_p, p[token]),
                        (ours.ln_q, q[token]),
                        (ours.kl_pq, kl(&p, &q)),
                        (ours.kl_qp, kl(&q, &p)),
                    ] {
                        assert!((ours - exact).abs() <= 3e-7 * exact.abs(), "{ours} {exact}");
                    }
                    let same = argmax(&all_x[range.clone()]) == argmax(&all_y[range.clone()]);
                    assert_eq!(ours.same_top, same);
                }
                assert_eq!(tiled[index].prediction, predicted[index]);
            }
        }
    }

    #[test]
    fn divergence_of_a_model_from_itself_is_zero() {
        let [x, _] = sample_streams();
        let weight = PackedWeights::F32(Arc::new(Panels::from_rows(&sample_weight(), CHANNELS, VOCAB)));
        for ours in divergences([&x, &x], CHANNELS, HEAD_PARAMS, &weight, &sample_targets()) {
            assert_eq!((ours.kl_pq, ours.kl_qp, ours.same_top), (0.0, 0.0, true));
            assert_eq!(ours.ln_p.to_bits(), ours.ln_q.to_bits());
        }
    }
}

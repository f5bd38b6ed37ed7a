//! Cosine similarities between the residual streams at two sites ([`HookPoint`]s).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rayon::prelude::*;
use serde::Serialize;

use super::activations::HookPoint;
use crate::linalg::simd;
use crate::model::Sublayer;

/// Kind of similarity: the axis along which it is computed, and the streams that it compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SimilarityAxis {
    /// Cosine over the positions of a sequence for each channel, averaged over channels, as in the reference code of
    /// LLM-Streamline.
    ChannelSeries,
    /// Cosine over the channels of each token, averaged over tokens.
    Token,
    /// Angle `arccos(cosine)/π` at the last token of each sequence, averaged over sequences (Gromov et al., "The
    /// unreasonable ineffectiveness of the deeper layers", eq. 4).
    LastTokenAngle,
    /// Like [`Self::Token`], between the streams before and after the attention of layer `from`.
    Attention,
    /// Like [`Self::Token`], between the streams before and after the MLP of layer `from`.
    Mlp,
}

/// Pair of residual streams whose mean similarity a criterion needs: `X_from` and `X_to`, or the streams before and
/// after a sublayer of layer `from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Pair {
    pub axis: SimilarityAxis,
    pub from: usize,
    pub to: usize,
}

impl Pair {
    /// Returns the pair that compares the streams before and after a sublayer.
    pub fn around(layer: usize, sublayer: Sublayer) -> Self {
        let axis = match sublayer {
            Sublayer::Attention => SimilarityAxis::Attention,
            Sublayer::Mlp => SimilarityAxis::Mlp,
        };
        Self { axis, from: layer, to: layer + 1 }
    }

    /// Returns the sites of the two streams.
    pub fn ends(&self) -> [HookPoint; 2] {
        match self.axis {
            SimilarityAxis::Attention => [HookPoint::Stream(self.from), HookPoint::Middle(self.from)],
            SimilarityAxis::Mlp => [HookPoint::Middle(self.from), HookPoint::Stream(self.to)],
            _ => [HookPoint::Stream(self.from), HookPoint::Stream(self.to)],
        }
    }
}

/// Lower bound on a norm, as in `torch.nn.functional.cosine_similarity`, so that an all-zero channel has cosine 0.
const MIN_NORM: f64 = 1e-8;

/// Mean similarities over all sequences of a pass, accumulated in f64.
#[derive(Debug, Clone, Default)]
pub struct Similarities {
    sums: BTreeMap<Pair, f64>,
    sequences: usize,
}

impl Similarities {
    pub fn new(pairs: &BTreeSet<Pair>) -> Self {
        Self { sums: pairs.iter().map(|&pair| (pair, 0.0)).collect(), sequences: 0 }
    }

    /// Returns the mean similarity of a pair, or `None` if it was not measured.
    pub fn get(&self, pair: Pair) -> Option<f64> {
        self.sums.get(&pair).map(|sum| sum / self.sequences as f64)
    }

    /// Returns the pairs whose second stream is at `site`.
    pub(super) fn ending_at(&self, site: HookPoint) -> Vec<Pair> {
        self.sums.keys().filter(|pair| pair.ends()[1] == site).copied().collect()
    }

    /// Returns the [`HookPoint::position`] of the last stream that is compared with the stream at `site`.
    pub(super) fn last_use(&self, site: HookPoint) -> Option<usize> {
        let ends = self.sums.keys().map(Pair::ends);
        ends.filter(|[from, _]| *from == site).map(|[_, to]| to.position()).max()
    }

    /// Adds the similarities of the given pairs for the sequences in one batch.
    ///
    /// # Shapes
    /// `streams(site)` returns `[tokens, C]`.
    pub(super) fn add<'a>(
        &mut self,
        pairs: &[Pair],
        channels: usize,
        segments: &[Range<usize>],
        streams: impl Fn(HookPoint) -> &'a [f32] + Sync,
    ) {
        let sums: Vec<f64> = pairs
            .par_iter()
            .map(|pair| {
                let [x, y] = pair.ends().map(&streams);
                let sums = segments.iter().map(|rows| {
                    let range = rows.start * channels..rows.end * channels;
                    let x = &x[range.clone()];
                    let y = &y[range];
                    match pair.axis {
                        SimilarityAxis::ChannelSeries => mean_channel_cosine(x, y, channels),
                        SimilarityAxis::Token | SimilarityAxis::Attention | SimilarityAxis::Mlp => {
                            mean_token_cosine(x, y, channels)
                        }
                        SimilarityAxis::LastTokenAngle => last_token_angle(x, y, channels),
                    }
                });
                sums.sum()
            })
            .collect();
        for (pair, sum) in pairs.iter().zip(sums) {
            *self.sums.entry(*pair).or_default() += sum;
        }
    }

    pub(super) fn add_sequences(&mut self, sequences: usize) {
        self.sequences += sequences;
    }

    /// Returns each pair's sum of similarities over all sequences so far, in the order of the pairs.
    pub fn sums(&self) -> Vec<f64> {
        self.sums.values().copied().collect()
    }

    /// Adds the [`sums`](Self::sums) of another accumulator with the same pairs.
    pub fn add_sums(&mut self, sums: &[f64], sequences: usize) {
        for (sum, more) in self.sums.values_mut().zip(sums) {
            *sum += more;
        }
        self.sequences += sequences;
    }
}

fn cosine(dot: f64, x_square: f64, y_square: f64) -> f64 {
    dot / (x_square.sqrt().max(MIN_NORM) * y_square.sqrt().max(MIN_NORM))
}

fn mean_channel_cosine(x: &[f32], y: &[f32], channels: usize) -> f64 {
    let mut dots = vec![0.0f64; channels];
    let mut xs = vec![0.0f64; channels];
    let mut ys = vec![0.0f64; channels];
    simd::in_widest!({
        for (x, y) in x.chunks_exact(channels).zip(y.chunks_exact(channels)) {
            let sums = dots.iter_mut().zip(&mut xs).zip(&mut ys);
            for (((dot, xx), yy), (&x, &y)) in sums.zip(x.iter().zip(y)) {
                let x = f64::from(x);
                let y = f64::from(y);
                *dot += x * y;
                *xx += x * x;
                *yy += y * y;
            }
        }
    });
    let sums = dots.iter().zip(&xs).zip(&ys);
    sums.map(|((&dot, &x), &y)| cosine(dot, x, y)).sum::<f64>() / channels as f64
}

fn last_token_angle(x: &[f32], y: &[f32], channels: usize) -> f64 {
    let cosine = mean_token_cosine(&x[x.len() - channels..], &y[y.len() - channels..], channels);
    cosine.clamp(-1.0, 1.0).acos() / std::f64::consts::PI
}

fn mean_token_cosine(x: &[f32], y: &[f32], channels: usize) -> f64 {
    let rows = x.len() / channels;
    x.chunks_exact(channels).zip(y.chunks_exact(channels)).map(row_cosine).sum::<f64>() / rows as f64
}

fn row_cosine((x, y): (&[f32], &[f32])) -> f64 {
    let mut dot = 0.0;
    let mut xx = 0.0;
    let mut yy = 0.0;
    for (&x, &y) in x.iter().zip(y) {
        let x = f64::from(x);
        let y = f64::from(y);
        dot += x * y;
        xx += x * x;
        yy += y * y;
    }
    cosine(dot, xx, yy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarities_match_hand_computed_values() {
        let (x, y) = ([1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0]); // [2, 2]
        // The cosines by channel are 1 for (1, 0) and (1, 0), and 1/√2 for (0, 1) and (1, 1). The cosines by token are
        // 1/√2 for (1, 0) and (1, 1), and 1 for (0, 1) and (0, 1).
        let expected = (1.0 + 0.5f64.sqrt()) / 2.0;
        assert!((mean_channel_cosine(&x, &y, 2) - expected).abs() < 1e-12);
        assert!((mean_token_cosine(&x, &y, 2) - expected).abs() < 1e-12);
    }

    #[test]
    fn last_token_angle_is_measured_in_half_turns() {
        // The last tokens (1, 0) and (-1, 0) are half a turn apart, and (1, 0) and (0, 2) are a quarter turn apart.
        assert_eq!(last_token_angle(&[9.0, 9.0, 1.0, 0.0], &[1.0, 1.0, -1.0, 0.0], 2), 1.0);
        assert!((last_token_angle(&[1.0, 0.0], &[0.0, 2.0], 2) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn all_zero_channel_has_cosine_zero() {
        assert_eq!(mean_channel_cosine(&[0.0, 1.0], &[0.0, 1.0], 2), 0.5);
    }
}

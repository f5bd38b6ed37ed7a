//! Distance between the logits of a variant and those of the dense backbone.

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::trunks::{Progress, compare_windows};
use crate::corpus::Windows;
use crate::error::Result;
use crate::model::{Engine, HostRows, Program};
use crate::named::named;

/// Distance measure between the logits of two models at a token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogitDistance {
    /// `acos(clamp(cos, 0, 1))` of the two logit vectors.
    #[default]
    Angle,
    /// Jensen-Shannon divergence `½ KL(m‖p) + ½ KL(m‖q)`, where `m` is the mean of the probabilities `p` and `q`,
    /// divided by the vocabulary size.
    Js,
}

named!(LogitDistance: Angle = "angle", Js = "js");

/// Number of logit rows per model that are in memory at once.
const BLOCK_ROWS: usize = 64;

impl LogitDistance {
    /// Computes the distance between two rows of logits, accumulated in f64.
    fn between(self, dense: &[f32], variant: &[f32]) -> f64 {
        match self {
            Self::Angle => angle(dense, variant),
            Self::Js => jensen_shannon(dense, variant),
        }
    }

    /// Computes the mean distance of each program from the dense backbone over the tokens of each window. The result is
    /// indexed by `[program][window]`. `progress` is called with the number of tokens of each finished window.
    ///
    /// # Errors
    /// Fails if the engine cannot run a program, or if `progress` fails.
    pub fn by_window(
        self,
        engine: &dyn Engine,
        programs: &[Program],
        windows: &Windows,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Vec<f64>>> {
        compare_windows(engine, programs, windows, progress, |streams, tokens| {
            self.compute_window_means(engine, streams, tokens)
        })
    }

    /// Computes the mean distance of each stream in a window from the first stream, which belongs to the dense
    /// backbone.
    fn compute_window_means(self, engine: &dyn Engine, streams: &[HostRows], tokens: usize) -> Result<Vec<f64>> {
        let vocab = engine.config().vocab;
        let mut sums = vec![0.0; streams.len() - 1];
        for first in (0..tokens).step_by(BLOCK_ROWS) {
            let rows: Vec<usize> = (first..(first + BLOCK_ROWS).min(tokens)).collect();
            let dense = engine.logits(&streams[0].values()?, &rows)?;
            let dense = dense.values()?;
            for (sum, stream) in sums.iter_mut().zip(&streams[1..]) {
                let variant = engine.logits(&stream.values()?, &rows)?;
                let variant = variant.values()?;
                let pairs = dense.par_chunks_exact(vocab).zip(variant.par_chunks_exact(vocab));
                // Collect before summing, so that the order of summation does not depend on the threads.
                let row_distances: Vec<f64> = pairs.map(|(dense, variant)| self.between(dense, variant)).collect();
                *sum += row_distances.iter().sum::<f64>();
            }
        }
        Ok(sums.into_iter().map(|sum| sum / tokens as f64).collect())
    }
}

fn angle(a: &[f32], b: &[f32]) -> f64 {
    let mut dot = 0.0;
    let mut aa = 0.0;
    let mut bb = 0.0;
    for (&a, &b) in a.iter().zip(b) {
        dot += f64::from(a) * f64::from(b);
        aa += f64::from(a) * f64::from(a);
        bb += f64::from(b) * f64::from(b);
    }
    (dot / (aa.sqrt() * bb.sqrt())).clamp(0.0, 1.0).acos()
}

fn jensen_shannon(a: &[f32], b: &[f32]) -> f64 {
    let log_normalizers = [a, b].map(log_sum_exp);
    let mut sum = 0.0;
    for (&a, &b) in a.iter().zip(b) {
        let p = f64::from(a) - log_normalizers[0];
        let q = f64::from(b) - log_normalizers[1];
        let mean = 0.5 * (p.exp() + q.exp());
        // Skip terms with a mean of 0, because their limit is 0.
        if mean > 0.0 {
            sum += mean * (mean.ln() - 0.5 * (p + q));
        }
    }
    sum / a.len() as f64
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    f64::from(max) + logits.iter().map(|&logit| (f64::from(logit) - f64::from(max)).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logit_distances_match_hand_computed_values() {
        assert!((angle(&[1.0, 0.0], &[1.0, 1.0]) - std::f64::consts::FRAC_PI_4).abs() < 1e-12);
        assert_eq!(angle(&[1.0, 0.0], &[-1.0, 0.0]), std::f64::consts::FRAC_PI_2);
        // The probabilities are (1/2, 1/2) and (1/4, 3/4), and their mean is (3/8, 5/8).
        let expected = 0.375 * (0.375f64 / 0.125f64.sqrt()).ln() + 0.625 * (0.625f64 / 0.375f64.sqrt()).ln();
        let found = jensen_shannon(&[0.0, 0.0], &[0.0, 3f32.ln()]);
        assert!((found - expected / 2.0).abs() < 1e-8, "{found}");
        assert!(jensen_shannon(&[4.0, 1.0], &[4.0, 1.0]).abs() < 1e-15);
    }
}

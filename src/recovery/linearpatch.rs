//! LinearPatch: one scale a channel, in the given basis or in a rotated one (reference: the LinearPatch repository; design §7).

use std::sync::Arc;

use serde::Deserialize;

use super::{Boundary, Recovery};
use crate::error::{Error, Result};
use crate::linalg::hadamard;
use crate::model::Operator;
use crate::options::{self, Options};

pub(super) const DIAG: &str = "linearpatch-diag";
pub(super) const ROTATE: &str = "linearpatch-rotate";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {}

/// `W = diag(d)`, or `W = H·diag(d)·Hᵀ` with `d` measured on `X·H`; `d` is the mean over sequences of `mean_t|X_post| / mean_t|X_pre|`.
struct LinearPatch {
    rotate: bool,
}

pub(super) fn build_diag(options: &Options) -> Result<Box<dyn Recovery>> {
    let Settings {} = options::read(DIAG, options)?;
    Ok(Box::new(LinearPatch { rotate: false }))
}

pub(super) fn build_rotate(options: &Options) -> Result<Box<dyn Recovery>> {
    let Settings {} = options::read(ROTATE, options)?;
    Ok(Box::new(LinearPatch { rotate: true }))
}

impl Recovery for LinearPatch {
    fn check(&self, channels: usize) -> Result<()> {
        if !self.rotate || hadamard::exists(channels) {
            return Ok(());
        }
        Err(Error::bad_input(format!("`{ROTATE}` has no Hadamard matrix of the backbone's hidden size"))
            .expected("a power of two, or one times 12, 20, 28, 36, 40, 52 or 60")
            .found(channels.to_string())
            .hint(format!("use `{DIAG}`")))
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Option<Arc<Operator>>> {
        let channels = boundary.channels();
        let scale = self.scale(boundary)?;
        if !self.rotate {
            return Operator::diagonal(scale).map(Some);
        }
        Operator::dense(channels, rotated(&scale)).map(Some)
    }
}

/// `H·diag(d)·Hᵀ [C, C]`, row-major: rows of `H` scaled by channel, then each times `Hᵀ`, which is not `H` for every size.
fn rotated(scale: &[f32]) -> Vec<f32> {
    let mut matrix = hadamard::matrix(scale.len());
    for row in matrix.chunks_exact_mut(scale.len()) {
        row.iter_mut().zip(scale).for_each(|(v, d)| *v *= d);
    }
    hadamard::inverse(&mut matrix, scale.len());
    matrix
}

impl LinearPatch {
    /// `d [C]`. One region is measured on all sequences, several on the operator's (design §1).
    fn scale(&self, boundary: &Boundary<'_>) -> Result<Vec<f32>> {
        let channels = boundary.channels();
        let sequences = if boundary.only { boundary.sequences } else { boundary.operator_sequences };
        let mut sums = vec![0.0f64; channels];
        for index in 0..sequences {
            let (pre, post) = boundary.sequence(index)?;
            let (pre, post) = (self.magnitudes(pre, channels), self.magnitudes(post, channels));
            for (channel, ((sum, pre), post)) in sums.iter_mut().zip(pre).zip(post).enumerate() {
                if pre == 0.0 {
                    return Err(Error::job("a channel is silent before the boundary: its scale is undefined")
                        .at(format!("boundary of layer {}, calibration sequence {index}", boundary.start))
                        .expected("some activation in each channel of each sequence")
                        .found(format!("none in channel {channel}")));
                }
                *sum += post / pre;
            }
        }
        Ok(sums.iter().map(|sum| (sum / sequences as f64) as f32).collect())
    }

    /// `Σ_t |x|` of each channel of one sequence, rotated first where asked.
    fn magnitudes(&self, x: &[f32], channels: usize) -> Vec<f64> {
        let rotated = self.rotate.then(|| {
            let mut x = x.to_vec();
            hadamard::transform(&mut x, channels);
            x
        });
        let mut sums = vec![0.0; channels];
        for row in rotated.as_deref().unwrap_or(x).chunks_exact(channels) {
            for (sum, v) in sums.iter_mut().zip(row) {
                *sum += f64::from(v.abs());
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_every_basis_equal_scales_scale_and_unequal_ones_stay_symmetric() {
        // 40 and 24 have matrices that are not symmetric.
        for channels in [16, 24, 28, 40] {
            let matrix = rotated(&vec![3.0; channels]);
            let uneven = rotated(&(0..channels).map(|i| i as f32).collect::<Vec<_>>());
            for (at, v) in matrix.iter().enumerate() {
                let (i, j) = (at / channels, at % channels);
                assert!((v - if i == j { 3.0 } else { 0.0 }).abs() < 1e-5, "{channels}: {v} at {i}, {j}");
                assert!((uneven[at] - uneven[j * channels + i]).abs() < 1e-5, "{channels}: asymmetry at {i}, {j}");
            }
        }
    }
}

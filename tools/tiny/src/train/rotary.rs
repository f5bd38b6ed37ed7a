//! Steps between projection and attention: optional normalization, rotation and scaling of queries and keys.

use super::attention::Heads;
use super::norm::{row_backward, row_forward};
use super::parameters::LayerPlaces;
use super::real::Real;
use ghostlab_core::in_widest;

/// Cosine and sine tables with a row of `D/2` per position, and the relevant parts of the shape.
#[derive(Debug, Clone)]
pub(super) struct Rotary {
    heads: Heads,
    eps: f64,
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Rotary {
    pub(super) fn new(theta: f64, heads: Heads, eps: f64, positions: usize) -> Self {
        let head_dim = heads.head_dim;
        let half = heads.head_dim / 2;
        let frequencies: Vec<f32> =
            (0..half).map(|i| (1.0 / theta.powf(f64::from((2 * i) as f32 / head_dim as f32))) as f32).collect();
        // Compute the angle in f32 before its cosine, like transformers.
        let angles = (0..positions).flat_map(|p| frequencies.iter().map(move |f| f64::from(p as f32 * f)));
        let (cos, sin) = angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip();
        Self { heads, eps, cos, sin, half }
    }

    fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let range = position * self.half..(position + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }

    /// Rotates queries and keys.
    ///
    /// # Shapes
    /// `projected [rows, (H + 2K)·D]`, `rotated [rows, (H + K)·D]`; positions restart every `span` rows.
    pub(super) fn forward<R: Real>(
        &self,
        places: &LayerPlaces,
        weights: &[R],
        span: usize,
        projected: &[R],
        rotated: &mut Vec<R>,
    ) {
        let heads = self.heads;
        let eps = self.eps;
        let width = heads.rotated();
        let q_width = heads.query_width();
        let d = heads.head_dim;
        rotated.resize(projected.len() / heads.projected() * width, R::ZERO);
        let scale = R::of(1.0 / (d as f64).sqrt());
        let norms = [&places.query_norm, &places.key_norm].map(|norm| norm.clone().map(|range| &weights[range]));
        in_widest!({
            let rows = projected.chunks_exact(heads.projected()).zip(rotated.chunks_exact_mut(width));
            for (row, (x, out)) in rows.enumerate() {
                let (cos, sin) = self.at(row % span);
                let parts = [(0..q_width, scale), (q_width..width, R::ONE)];
                for ((part, scale), norm) in parts.into_iter().zip(norms) {
                    let x = &x[part.clone()];
                    let out = &mut out[part];
                    match norm {
                        None => out.copy_from_slice(x),
                        // The weight's width determines whether one head or all heads are normalized together.
                        Some(weight) => {
                            for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
                                row_forward(x, weight, eps, out, false);
                            }
                        }
                    }
                    for head in out.chunks_exact_mut(d) {
                        turn(head, cos, sin, scale, R::ONE);
                    }
                }
            }
        });
    }

    /// Computes the gradient of [`Rotary::forward`]. Overwrites `d_rotated`, writes the gradients of queries and keys
    /// to `d_projected`, and adds those of the norms to `gradient`.
    #[expect(clippy::too_many_arguments, reason = "what a layer has at this place")]
    pub(super) fn backward<R: Real>(
        &self,
        places: &LayerPlaces,
        weights: &[R],
        span: usize,
        projected: &[R],
        d_rotated: &mut [R],
        d_projected: &mut [R],
        gradient: &mut [R],
    ) {
        let heads = self.heads;
        let eps = self.eps;
        let width = heads.rotated();
        let q_width = heads.query_width();
        let d = heads.head_dim;
        let scale = R::of(1.0 / (d as f64).sqrt());
        let norms = [&places.query_norm, &places.key_norm];
        in_widest!({
            let rows = projected.chunks_exact(heads.projected()).zip(d_rotated.chunks_exact_mut(width));
            let rows = rows.zip(d_projected.chunks_exact_mut(heads.projected()));
            for (row, ((x, d_out), d_x)) in rows.enumerate() {
                let (cos, sin) = self.at(row % span);
                let parts = [(0..q_width, scale), (q_width..width, R::ONE)];
                for ((part, scale), norm) in parts.into_iter().zip(norms) {
                    let x = &x[part.clone()];
                    let d_out = &mut d_out[part.clone()];
                    let d_x = &mut d_x[part];
                    for head in d_out.chunks_exact_mut(d) {
                        // The transpose of a rotation is its inverse.
                        turn(head, cos, sin, scale, -R::ONE);
                    }
                    let Some(range) = norm else {
                        d_x.copy_from_slice(d_out);
                        continue;
                    };
                    let weight = &weights[range.clone()];
                    let d_weight = &mut gradient[range.clone()];
                    let rows = x.chunks_exact(weight.len()).zip(d_out.chunks_exact(weight.len()));
                    for ((x, d_out), d_x) in rows.zip(d_x.chunks_exact_mut(weight.len())) {
                        row_backward(x, weight, eps, d_out, d_weight, d_x, false);
                    }
                }
            }
        });
    }
}

/// Applies RoPE to one head in Hugging Face's half-split layout: pairs are `(x_i, x_{i + D/2})`. `direction` is 1, or
/// −1 for the inverse.
#[inline(always)]
fn turn<R: Real>(x: &mut [R], cos: &[f32], sin: &[f32], scale: R, direction: R) {
    let (low, high) = x.split_at_mut(cos.len());
    for (((low, high), &cos), &sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        let cos = R::of_f32(cos) * scale;
        let sin = R::of_f32(sin) * scale * direction;
        (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
    }
}

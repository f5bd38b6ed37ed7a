//! Handwritten forward and backward passes of the decoder, without autograd.
//!
//! One call processes one chunk of text on one thread; chunks are distributed across threads. candle's autograd would
//! allocate a tensor for every intermediate, and its fused norm, softmax and RoPE silently stop gradients
//! (huggingface/candle#2168).

use super::attention::{self, Heads, SavedAttention};
use super::norm;
use super::parameters::Parameters;
use super::real::{LANES, Real, add};
use super::rotary::Rotary;
use ghostlab_core::in_widest;
use ghostlab_core::linalg::gemm::{MatrixView, MatrixViewMut, Update, gemm};
use ghostlab_core::model::config::Config;

/// Shape of a backbone, and the layout of its weights.
#[derive(Debug, Clone)]
pub struct Network {
    pub config: Config,
    pub parameters: Parameters,
    pub(super) heads: Heads,
    pub(super) eps: f64,
    rotary: Rotary,
}

/// Intermediates that the backward pass of one chunk needs, and scratch buffers. Each thread reuses its tape for every
/// chunk.
#[derive(Debug, Default)]
pub struct Tape<R> {
    layers: Vec<LayerTape<R>>,
    /// Residual stream after the last layer, `[rows, C]`.
    pub(super) stream: Vec<R>,
    /// Gradient of the residual stream, `[rows, C]`.
    pub(super) d_stream: Vec<R>,
    pub(super) normed: Vec<R>,
    d_normed: Vec<R>,
    d_branch: Vec<R>,
    /// `[rows, F]` in the MLP, `[rows, H·D]` in attention.
    inner: Vec<R>,
    d_inner: Vec<R>,
    d_rotated: Vec<R>,
    d_projected: Vec<R>,
    scores: Vec<R>,
    d_scores: Vec<R>,
    pub(super) logits: Vec<R>,
}

#[derive(Debug, Default)]
struct LayerTape<R> {
    /// Residual stream before attention, `[rows, C]`.
    before: Vec<R>,
    /// Residual stream before the MLP, `[rows, C]`.
    middle: Vec<R>,
    projected: Vec<R>,
    rotated: Vec<R>,
    attended: Vec<R>,
    sums: Vec<R>,
    /// Gate and up projections, concatenated; the backward pass overwrites them with their gradients.
    gate_up: Vec<R>,
    /// Outputs of attention and MLP before their post-norms; only used if the architecture has post-norms.
    branches: [Vec<R>; 2],
}

/// Computes `out ← x · Wᵀ`, or adds it to `out`, depending on `into`. `x [rows, inner]`, `weight [outer, inner]`, `out
/// [rows, outer]`.
fn project<R: Real>(out: &mut Vec<R>, into: Update, x: &[R], weight: &[R], inner: usize) {
    let rows = x.len() / inner;
    let outer = weight.len() / inner;
    out.resize(rows * outer, R::ZERO);
    gemm(
        MatrixViewMut::rows(out, rows, outer),
        into,
        MatrixView::rows(x, rows, inner),
        MatrixView::rows(weight, outer, inner).t(),
    );
}

/// Computes the gradient of [`project`]: `d_weight ← d_weight + d_outᵀ · x`, `d_x ← d_out · W`.
fn project_back<R: Real>(d_x: &mut Vec<R>, d_weight: &mut [R], d_out: &[R], x: &[R], weight: &[R], inner: usize) {
    let rows = x.len() / inner;
    let outer = weight.len() / inner;
    let d_out = MatrixView::rows(d_out, rows, outer);
    gemm(MatrixViewMut::rows(d_weight, outer, inner), Update::Add, d_out.t(), MatrixView::rows(x, rows, inner));
    d_x.resize(rows * inner, R::ZERO);
    gemm(MatrixViewMut::rows(d_x, rows, inner), Update::Replace, d_out, MatrixView::rows(weight, outer, inner));
}

fn copy<R: Real>(to: &mut Vec<R>, from: &[R]) {
    to.clear();
    to.extend_from_slice(from);
}

impl Network {
    /// Creates a network for windows of at most `positions` tokens.
    pub fn new(config: Config, positions: usize) -> Self {
        let heads = Heads { queries: config.heads, keys: config.kv_heads, head_dim: config.head_dim };
        let eps = f64::from(config.norm_eps);
        let rotary = Rotary::new(config.rope.theta, heads, eps, positions);
        Self { parameters: Parameters::of(&config), heads, eps, rotary, config }
    }

    /// Computes the residual stream before the final norm, in `tape.stream`. Tokens attend within windows of `span`.
    ///
    /// # Shapes
    /// `ids [rows]`, a multiple of `span`; every id is below the vocabulary size.
    pub fn forward<R: Real>(&self, weights: &[R], ids: &[u32], span: usize, tape: &mut Tape<R>) {
        let c = self.config.hidden;
        let table = &weights[self.parameters.embedding.clone()];
        let Tape { layers, stream, normed, d_branch: branch, inner, scores, .. } = tape;
        stream.clear();
        for &id in ids {
            stream.extend_from_slice(&table[id as usize * c..][..c]);
        }
        layers.resize_with(self.config.layers, LayerTape::default);
        for (places, layer) in self.parameters.layers.iter().zip(layers) {
            let weight = |range: &std::ops::Range<usize>| &weights[range.clone()];
            let norms = places.norms.clone().map(|range| range.map(|range| &weights[range]));

            copy(&mut layer.before, stream);
            let x = self.normed(norms[0], stream, normed);
            project(&mut layer.projected, Update::Replace, x, weight(&places.qkv), c);
            self.rotary.forward(places, weights, span, &layer.projected, &mut layer.rotated);
            self.attend(layer, ids.len(), span, scores);
            let out = if norms[1].is_some() { &mut layer.branches[0] } else { &mut *branch };
            project(out, Update::Replace, &layer.attended, weight(&places.output), self.heads.query_width());
            self.join(norms[1], out, stream);

            copy(&mut layer.middle, stream);
            let x = self.normed(norms[2], stream, normed);
            project(&mut layer.gate_up, Update::Replace, x, weight(&places.gate_up), c);
            gated(&layer.gate_up, self.config.intermediate, inner);
            let out = if norms[3].is_some() { &mut layer.branches[1] } else { &mut *branch };
            project(out, Update::Replace, inner, weight(&places.down), self.config.intermediate);
            self.join(norms[3], out, stream);
        }
    }

    /// Backpropagates `tape.d_stream` through [`Network::forward`], and adds the result to `gradient`.
    pub fn backward<R: Real>(&self, weights: &[R], ids: &[u32], span: usize, tape: &mut Tape<R>, gradient: &mut [R]) {
        let c = self.config.hidden;
        for index in (0..self.config.layers).rev() {
            self.mlp_back(weights, index, tape, gradient);
            self.attention_back(weights, index, span, tape, gradient);
        }
        let table = &mut gradient[self.parameters.embedding.clone()];
        for (&id, row) in ids.iter().zip(tape.d_stream.chunks_exact(c)) {
            add(&mut table[id as usize * c..][..c], row);
        }
    }

    /// Normalizes `x` into `out`, or returns `x` if the architecture lacks this norm.
    fn normed<'a, R: Real>(&self, weight: Option<&[R]>, x: &'a [R], out: &'a mut Vec<R>) -> &'a [R] {
        let Some(weight) = weight else {
            return x;
        };
        out.resize(x.len(), R::ZERO);
        norm::forward(x, weight, self.eps, out, false);
        out
    }

    /// Adds the output of attention or MLP to the stream, through its post-norm if there is one.
    fn join<R: Real>(&self, weight: Option<&[R]>, branch: &[R], stream: &mut [R]) {
        match weight {
            Some(weight) => norm::forward(branch, weight, self.eps, stream, true),
            None => in_widest!(add(stream, branch)),
        }
    }

    fn attend<R: Real>(&self, layer: &mut LayerTape<R>, rows: usize, span: usize, scores: &mut Vec<R>) {
        let heads = self.heads;
        layer.attended.resize(rows * heads.query_width(), R::ZERO);
        layer.sums.resize(rows * heads.queries, R::ZERO);
        let windows = layer.attended.chunks_exact_mut(span * heads.query_width());
        let windows = windows.zip(layer.sums.chunks_exact_mut(span * heads.queries));
        let rotated = layer.rotated.chunks_exact(span * heads.rotated());
        let projected = layer.projected.chunks_exact(span * heads.projected());
        for (((out, sums), rotated), projected) in windows.zip(rotated).zip(projected) {
            attention::forward(heads, rotated, projected, out, sums, scores);
        }
    }

    /// Backpropagates `tape.d_stream` through the MLP of one layer, in place.
    fn mlp_back<R: Real>(&self, weights: &[R], index: usize, tape: &mut Tape<R>, gradient: &mut [R]) {
        let c = self.config.hidden;
        let f = self.config.intermediate;
        let places = &self.parameters.layers[index];
        let Tape { layers, d_stream, normed, d_normed, d_branch, inner, d_inner, .. } = tape;
        let layer = &mut layers[index];
        let d_out = self.split(&places.norms[3], weights, &layer.branches[1], d_stream, d_branch, gradient);
        let down = &weights[places.down.clone()];
        d_inner.resize(d_out.len() / c * f, R::ZERO);
        let d_rows = MatrixView::rows(d_out, d_out.len() / c, c);
        let rows = d_out.len() / c;
        gemm(MatrixViewMut::rows(d_inner, rows, f), Update::Replace, d_rows, MatrixView::rows(down, c, f));
        gated_back(&mut layer.gate_up, f, d_inner, inner);
        let d_down = MatrixViewMut::rows(&mut gradient[places.down.clone()], c, f);
        gemm(d_down, Update::Add, d_rows.t(), MatrixView::rows(inner, rows, f));

        let norm = places.norms[2].clone();
        let x = self.normed(norm.clone().map(|range| &weights[range]), &layer.middle, normed);
        let range = places.gate_up.clone();
        project_back(d_normed, &mut gradient[range.clone()], &layer.gate_up, x, &weights[range], c);
        self.merge(norm, weights, &layer.middle, d_normed, d_stream, gradient);
    }

    /// Backpropagates `tape.d_stream` through the attention of one layer, in place.
    fn attention_back<R: Real>(
        &self,
        weights: &[R],
        index: usize,
        span: usize,
        tape: &mut Tape<R>,
        gradient: &mut [R],
    ) {
        let c = self.config.hidden;
        let heads = self.heads;
        let places = &self.parameters.layers[index];
        let Tape { layers, d_stream, normed, d_normed, d_branch, d_inner, d_rotated, d_projected, .. } = tape;
        let layer = &layers[index];
        let d_out = self.split(&places.norms[1], weights, &layer.branches[0], d_stream, d_branch, gradient);
        let range = places.output.clone();
        let width = heads.query_width();
        project_back(d_inner, &mut gradient[range.clone()], d_out, &layer.attended, &weights[range], width);

        for (gradient, like) in [(&mut *d_rotated, &layer.rotated), (&mut *d_projected, &layer.projected)] {
            gradient.clear();
            gradient.resize(like.len(), R::ZERO);
        }
        let rows = layer.before.len() / c;
        for first in (0..rows).step_by(span) {
            let window = |width: usize| first * width..(first + span) * width;
            let kept = SavedAttention {
                rotated: &layer.rotated[window(heads.rotated())],
                projected: &layer.projected[window(heads.projected())],
                out: &layer.attended[window(width)],
                sums: &layer.sums[window(heads.queries)],
            };
            attention::backward(
                heads,
                kept,
                &d_inner[window(width)],
                &mut d_rotated[window(heads.rotated())],
                &mut d_projected[window(heads.projected())],
                &mut tape.scores,
                &mut tape.d_scores,
            );
        }
        let projected = &layer.projected;
        self.rotary.backward(places, weights, span, projected, d_rotated, d_projected, gradient);

        let norm = places.norms[0].clone();
        let x = self.normed(norm.clone().map(|range| &weights[range]), &layer.before, normed);
        let range = places.qkv.clone();
        project_back(d_normed, &mut gradient[range.clone()], d_projected, x, &weights[range], c);
        self.merge(norm, weights, &layer.before, d_normed, d_stream, gradient);
    }

    /// Returns the gradient of a branch's output before its post-norm, which is the stream's gradient if there is no
    /// post-norm.
    fn split<'a, R: Real>(
        &self,
        norm: &Option<std::ops::Range<usize>>,
        weights: &[R],
        branch: &[R],
        d_stream: &'a [R],
        out: &'a mut Vec<R>,
        gradient: &mut [R],
    ) -> &'a [R] {
        let Some(range) = norm.clone() else {
            return d_stream;
        };
        out.resize(d_stream.len(), R::ZERO);
        norm::backward(branch, &weights[range.clone()], self.eps, d_stream, &mut gradient[range], out, false);
        out
    }

    /// Adds the gradient through the branch to that of the residual connection.
    fn merge<R: Real>(
        &self,
        norm: Option<std::ops::Range<usize>>,
        weights: &[R],
        x: &[R],
        d_normed: &[R],
        d_stream: &mut [R],
        gradient: &mut [R],
    ) {
        match norm {
            Some(range) => {
                let d_weight = &mut gradient[range.clone()];
                norm::backward(x, &weights[range], self.eps, d_normed, d_weight, d_stream, true);
            }
            None => in_widest!(add(d_stream, d_normed)),
        }
    }
}

/// Computes `silu(gate) · up`.
///
/// # Shapes
/// `gate_up [rows, 2F]`, `out [rows, F]`.
fn gated<R: Real>(gate_up: &[R], width: usize, out: &mut Vec<R>) {
    out.resize(gate_up.len() / 2, R::ZERO);
    in_widest!({
        for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
            let (gate, up) = row.split_at(width);
            for ((out, &g), &u) in out.iter_mut().zip(gate).zip(up) {
                *out = g / (R::ONE + (-g).exp()) * u;
            }
        }
    });
}

/// Overwrites `gate_up` with the gradient of [`gated`], and recomputes the result of [`gated`] in `inner`.
fn gated_back<R: Real>(gate_up: &mut [R], width: usize, d_inner: &[R], inner: &mut Vec<R>) {
    inner.resize(d_inner.len(), R::ZERO);
    in_widest!({
        let rows = gate_up.chunks_exact_mut(2 * width).zip(d_inner.chunks_exact(width));
        for ((row, d_inner), inner) in rows.zip(inner.chunks_exact_mut(width)) {
            let (gate, up) = row.split_at_mut(width);
            let (gate, gate_rest) = gate.as_chunks_mut::<LANES>();
            let (up, up_rest) = up.as_chunks_mut::<LANES>();
            let (d, d_rest) = d_inner.as_chunks::<LANES>();
            let (inner, inner_rest) = inner.as_chunks_mut::<LANES>();
            for (((gate, up), d), inner) in gate.iter_mut().zip(up).zip(d).zip(inner) {
                // Copy to local arrays: with four slices that might alias, the compiler does not vectorize the loop.
                let mut g = *gate;
                let mut u = *up;
                let mut h = [R::ZERO; LANES];
                for i in 0..LANES {
                    (h[i], g[i], u[i]) = gate_back(g[i], u[i], d[i]);
                }
                (*inner, *gate, *up) = (h, g, u);
            }
            for (((g, u), &d), h) in gate_rest.iter_mut().zip(up_rest).zip(d_rest).zip(inner_rest) {
                (*h, *g, *u) = gate_back(*g, *u, d);
            }
        }
    });
}

/// Returns `silu(g)·u`, and the gradients of `g` and `u` for an output gradient `d`.
#[inline(always)]
fn gate_back<R: Real>(g: R, u: R, d: R) -> (R, R, R) {
    let sigmoid = R::ONE / (R::ONE + (-g).exp());
    let silu = g * sigmoid;
    (silu * u, d * u * (sigmoid + silu * (R::ONE - sigmoid)), d * silu)
}

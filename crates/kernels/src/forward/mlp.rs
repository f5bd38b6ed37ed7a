//! Gated MLP, with norms and residual additions fused in.

use super::linear::{Linear, Weight, compute_blocks, direct_residual, linear_into, normalize};
use super::{Activation, Norm, with_panels};
use crate::linalg::gemm::{MatrixView, Update};
use crate::linalg::panel_product::PanelProduct;
use crate::linalg::panels::{LANES, PackedFormat, Panels};
use crate::linalg::simd;
use crate::scratch::{Scratch, take_scratch};

/// Number of columns that are computed at once. For 512 rows, the inputs of the activation take 2 MiB.
const PIECE_COLUMNS: usize = 16 * LANES;

/// Gated MLP with `gate_up [C, 2F]` (gate first) and `down [F, C]`.
#[derive(Clone, Copy)]
pub struct Mlp<'a> {
    pub gate_up: Linear<'a>,
    pub down: Linear<'a>,
    pub activation: Activation,
}

/// Computes `act(norm(x)·G) * (norm(x)·U) · D`, followed by the optional steps of [`linear`](super::linear()).
///
/// # Shapes
/// `x [rows, C]`, result `[rows, C]`.
pub fn mlp(
    x: &[f32],
    channels: usize,
    input_norm: Option<Norm<'_>>,
    mlp_weights: Mlp<'_>,
    output_norm: Option<Norm<'_>>,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let width = mlp_weights.gate_up.weight.outer() / 2;
    let residual_start = direct_residual(output_norm, residual);
    compute_blocks(x, channels, mlp_weights.down.weight, residual_start, |x, first, out, on_all_cores| {
        let block = x.len() / channels;
        let normed = input_norm.map(|norm| normalize(x, norm));
        let x = MatrixView::rows(normed.as_deref().unwrap_or(x), block, channels);
        let residual = residual.map(|stream| &stream[first * channels..][..out.len()]);
        let gated = if on_all_cores { None } else { mlp_weights.compute_gated_in_pieces(x, width) };
        if let Some(gated) = gated {
            let activations = MatrixView::rows(&gated, block, width);
            return linear_into(activations, mlp_weights.down, on_all_cores, out, output_norm, residual);
        }
        let mut hidden = take_scratch(block * 2 * width);
        mlp_weights.gate_up.matmul(x, on_all_cores, Update::Replace, &mut hidden); // [block, 2F]
        simd::in_widest!({
            for row in hidden.chunks_exact_mut(2 * width) {
                let (gate, up) = row.split_at_mut(width);
                mlp_weights.activation.gate(gate, up);
            }
        });
        // The activations occupy the first half of each row: [block, F] with row stride 2F.
        let activations = MatrixView::strided(&hidden, block, width, 2 * width);
        linear_into(activations, mlp_weights.down, on_all_cores, out, output_norm, residual);
    })
}

impl Activation {
    /// Computes `gate ← act(gate) * up`.
    #[inline(always)]
    fn gate(self, gate: &mut [f32], up: &[f32]) {
        match self {
            Self::Silu => simd::silu_mul(gate, up),
            Self::Gelu => simd::gelu_mul(gate, up),
        }
    }
}

impl Mlp<'_> {
    /// Computes `act(x·G) * (x·U)` in pieces of columns, so that the inputs of the activation stay in the cache.
    /// Returns `None` if the weights are not packed, or `F` is not a multiple of the panel width.
    ///
    /// # Shapes
    /// `x [rows, C]`, result `[rows, F]`.
    fn compute_gated_in_pieces(&self, x: MatrixView<'_, f32>, width: usize) -> Option<Scratch> {
        let Weight::Packed(weights) = self.gate_up.weight else { return None };
        let has_whole_panels = width.is_multiple_of(LANES);
        has_whole_panels.then(|| with_panels!(weights, |panels| self.compute_gated(x, width, panels)))
    }

    /// Implements [`Self::compute_gated_in_pieces`] for the panels of [`Self::gate_up`].
    fn compute_gated<K: PackedFormat>(&self, x: MatrixView<'_, f32>, width: usize, panels: &Panels<K>) -> Scratch {
        let height = x.row_count();
        let rows = K::pack_rows(x);
        let mut gated = take_scratch(height * width);
        let mut gates = PanelProduct::new::<K>(height, PIECE_COLUMNS);
        let mut ups = PanelProduct::new::<K>(height, PIECE_COLUMNS);
        for first in (0..width).step_by(PIECE_COLUMNS) {
            let piece = PIECE_COLUMNS.min(width - first);
            gates.multiply(&rows, panels, first..first + piece);
            ups.multiply(&rows, panels, width + first..width + first + piece);
            simd::in_widest!({
                for (row, gated) in gated.chunks_exact_mut(width).enumerate() {
                    let out = gated[first..first + piece].chunks_exact_mut(K::lanes());
                    let columns = (first..).step_by(K::lanes());
                    for (((gate, up), out), column) in gates.row_mut(row).zip(ups.row_mut(row)).zip(out).zip(columns) {
                        if let Some(bias) = self.gate_up.bias {
                            simd::add(gate, &bias[column..][..gate.len()]);
                            simd::add(up, &bias[width + column..][..up.len()]);
                        }
                        self.activation.gate(gate, up);
                        out.copy_from_slice(gate);
                    }
                }
            });
        }
        gated
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::forward::PackedWeights;

    fn noise(i: usize) -> f32 {
        (i * 7919 % 1009) as f32 / 1009.0 - 0.5
    }

    /// Compares activations computed in several pieces with those computed in one piece.
    fn assert_equal_in_pieces<K: PackedFormat>(pack: fn(Arc<Panels<K>>) -> PackedWeights) {
        let [height, channels, width] = [5, 70, 2 * PIECE_COLUMNS + LANES];
        let weights: Vec<f32> = (0..channels * 2 * width).map(|i| noise(i + 3)).collect();
        let panels = Arc::new(Panels::from_rows(&weights, channels, 2 * width));
        let packed = pack(Arc::clone(&panels));
        let x: Vec<f32> = (0..height * channels).map(noise).collect();
        let bias: Vec<f32> = (0..2 * width).map(noise).collect();
        let gate_up = Linear { weight: Weight::Packed(&packed), bias: Some(&bias) };
        let mlp = Mlp { gate_up, down: gate_up, activation: Activation::Silu };
        let rows = MatrixView::rows(&x, height, channels);
        let pieces = mlp.compute_gated(rows, width, &panels);
        let mut hidden = vec![0.0; height * 2 * width];
        gate_up.matmul(rows, false, Update::Replace, &mut hidden);
        for (hidden, piece) in hidden.chunks_exact_mut(2 * width).zip(pieces.chunks_exact(width)) {
            let (gate, up) = hidden.split_at_mut(width);
            simd::in_widest!(mlp.activation.gate(gate, up));
            assert!(gate.iter().zip(piece).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }

    #[test]
    fn mlp_activations_are_independent_of_piece_boundaries() {
        assert_equal_in_pieces(PackedWeights::F32);
        assert_equal_in_pieces(PackedWeights::Bf16);
        assert_equal_in_pieces(PackedWeights::Bf16Amx);
        assert_equal_in_pieces(PackedWeights::Bf16x3);
        assert_equal_in_pieces(PackedWeights::Bf16x6);
    }
}

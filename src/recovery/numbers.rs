//! What is known of an operator on the activations that made it (design §7, last point).

use serde::Serialize;

use super::Boundary;
use super::boundary::pre_and_delta;
use crate::error::Result;
use crate::linalg::gemm::{Into, View, ViewMut, gemm_parallel};
use crate::model::Operator;

/// Norms and errors at one boundary, over all calibration sequences; `M = W − I`, `Δ = X_post − X_pre`.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Numbers {
    /// Mean of |X_pre·W − X_post| over tokens and channels.
    pub boundary_mae: f64,
    /// ‖X_pre·M − Δ‖ / ‖Δ‖
    pub relative_residual: f64,
    /// ‖Δ‖
    pub delta_norm: f64,
    /// ‖M‖
    pub m_norm: f64,
    /// ‖(M + Mᵀ)/2‖
    pub m_symmetric_norm: f64,
    /// ‖(M − Mᵀ)/2‖
    pub m_antisymmetric_norm: f64,
}

impl Numbers {
    /// Measures an operator, or the bare cut where there is none.
    pub fn of(boundary: &Boundary<'_>, operator: Option<&Operator>) -> Result<Self> {
        let c = boundary.channels();
        let mut m: Vec<f64> = match operator {
            Some(operator) => operator.to_dense()?.into_iter().map(f64::from).collect(),
            None => (0..c * c).map(|i| if i % (c + 1) == 0 { 1.0 } else { 0.0 }).collect(),
        };
        m.iter_mut().step_by(c + 1).for_each(|diagonal| *diagonal -= 1.0);
        let (mut absolute, mut residual, mut delta_square, mut count) = (0.0, 0.0, 0.0, 0usize);
        for block in boundary.blocks(boundary.sequences) {
            let (pre, post) = block?;
            let (pre, delta) = pre_and_delta(pre, post);
            let rows = pre.len() / c;
            let mut error = vec![0.0f64; pre.len()]; // X_pre·M
            // A bare cut has M = 0.
            if operator.is_some() {
                let (pre, m) = (View::rows(&pre, rows, c), View::rows(&m, c, c));
                gemm_parallel(ViewMut::rows(&mut error, rows, c), Into::Replace, pre, m);
            }
            for (e, d) in error.iter().zip(&delta) {
                let e = e - d;
                absolute += e.abs();
                residual += e * e;
                delta_square += d * d;
            }
            count += error.len();
        }
        let halves = |sign: f64| {
            let half = |i: usize, j: usize| (m[i * c + j] + sign * m[j * c + i]) / 2.0;
            (0..c).flat_map(|i| (0..c).map(move |j| (i, j))).map(|(i, j)| half(i, j).powi(2)).sum::<f64>().sqrt()
        };
        Ok(Self {
            boundary_mae: absolute / count as f64,
            relative_residual: (residual / delta_square).sqrt(),
            delta_norm: delta_square.sqrt(),
            m_norm: m.iter().map(|v| v * v).sum::<f64>().sqrt(),
            m_symmetric_norm: halves(1.0),
            m_antisymmetric_norm: halves(-1.0),
        })
    }
}

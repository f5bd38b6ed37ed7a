//! RMS norm with its weight in host memory, computed in f64.

/// RMS norm, `x / √(mean(x²) + eps) · weight`.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsNorm {
    pub eps: f32,
    /// Weight `[C]`, or `None` if the norm has no weight.
    pub weight: Option<Vec<f32>>,
}

impl RmsNorm {
    /// Computes the norm of each row in f64.
    ///
    /// # Shapes
    /// `x` and the result are `[rows, channels]`.
    pub fn apply(&self, x: &[f32], channels: usize) -> Vec<f64> {
        let mut out: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        for row in out.chunks_exact_mut(channels) {
            let square = row.iter().map(|v| v * v).sum::<f64>() / channels as f64;
            let scale = 1.0 / (square + f64::from(self.eps)).sqrt();
            row.iter_mut().for_each(|v| *v *= scale);
            if let Some(weight) = &self.weight {
                row.iter_mut().zip(weight).for_each(|(v, &factor)| *v *= f64::from(factor));
            }
        }
        out
    }
}

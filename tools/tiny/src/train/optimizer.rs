//! AdamW on one flat vector, with gradient clipping, warm-up and cosine decay.

use std::f64::consts::PI;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::parameters::Parameters;
use ghostlab_core::in_widest;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Peak learning rate, reached after the warm-up.
    pub rate: f64,
    /// Number of steps in which the learning rate rises from 0.
    pub warmup: usize,
    /// Final learning rate as a share of the peak.
    pub final_share: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    /// Weight decay of matrices; norms and the embedding are not decayed.
    pub weight_decay: f64,
    /// Maximum Euclidean norm of the gradient over all weights.
    pub clip: f64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            rate: 3e-3,
            warmup: 100,
            final_share: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            clip: 1.0,
        }
    }
}

/// Running moments of the gradient.
#[derive(Debug, Clone, Default)]
pub struct Moments {
    pub first: Vec<f32>,
    pub second: Vec<f32>,
}

/// Elements per task; independent of the number of threads, so that sums are deterministic.
const BLOCK: usize = 1 << 15;

impl Optimizer {
    /// Returns the learning rate of a zero-based step out of `steps`: a linear warm-up, then a cosine decay.
    pub fn rate_at(&self, step: usize, steps: usize) -> f64 {
        if step < self.warmup {
            return self.rate * (step + 1) as f64 / self.warmup as f64;
        }
        let part = (step - self.warmup) as f64 / (steps.saturating_sub(self.warmup + 1)).max(1) as f64;
        let cosine = 0.5 * (1.0 + (PI * part.min(1.0)).cos());
        self.rate * (self.final_share + (1.0 - self.final_share) * cosine)
    }

    /// Applies one update with the sum of `gradients`, and resets them to zero. Returns the norm of the sum before
    /// clipping.
    pub fn update(
        &self,
        step: usize,
        rate: f64,
        parameters: &Parameters,
        weights: &mut [f32],
        moments: &mut Moments,
        gradients: &mut [Vec<f32>],
    ) -> f64 {
        let Some((sum, rest)) = gradients.split_first_mut() else {
            return 0.0;
        };
        let norm = add_up(sum, rest);
        let scale = if norm > self.clip { self.clip / norm } else { 1.0 } as f32;
        let count = step as i32 + 1;
        let m_scale = 1.0 / (1.0 - self.beta1.powi(count));
        let v_scale = 1.0 / (1.0 - self.beta2.powi(count));
        let m_scale = m_scale as f32;
        let v_scale = v_scale as f32;
        let rate_ = rate as f32;
        let beta1 = self.beta1 as f32;
        let beta2 = self.beta2 as f32;
        let eps = self.eps as f32;
        let keep1 = (1.0 - self.beta1) as f32;
        let keep2 = (1.0 - self.beta2) as f32;
        for parameter in &parameters.list {
            let decay = if parameter.kind.decays() { (1.0 - rate * self.weight_decay) as f32 } else { 1.0 };
            let range = parameter.range.clone();
            let blocks = weights[range.clone()].par_chunks_mut(BLOCK).zip(sum[range.clone()].par_chunks_mut(BLOCK));
            let blocks = blocks.zip(moments.first[range.clone()].par_chunks_mut(BLOCK));
            blocks.zip(moments.second[range].par_chunks_mut(BLOCK)).for_each(|(((w, g), m), v)| {
                in_widest!({
                    for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
                        let gradient = *g * scale;
                        *g = 0.0;
                        *m = *m * beta1 + gradient * keep1;
                        *v = *v * beta2 + gradient * gradient * keep2;
                        *w = *w * decay - rate_ * (*m * m_scale) / ((*v * v_scale).sqrt() + eps);
                    }
                });
            });
        }
        norm
    }
}

/// Adds `rest` to `sum` in order, and resets it to zero. Returns the norm of the sum.
fn add_up(sum: &mut [f32], rest: &mut [Vec<f32>]) -> f64 {
    let mut parts: Vec<Vec<&mut [f32]>> = sum.chunks(BLOCK).map(|_| Vec::with_capacity(rest.len())).collect();
    for gradient in rest {
        for (part, block) in parts.iter_mut().zip(gradient.chunks_mut(BLOCK)) {
            part.push(block);
        }
    }
    let squares: Vec<f64> = sum
        .par_chunks_mut(BLOCK)
        .zip(parts)
        .map(|(sum, parts)| {
            in_widest!({
                for part in parts {
                    for (sum, x) in sum.iter_mut().zip(part) {
                        *sum += *x;
                        *x = 0.0;
                    }
                }
                let mut squares = [0.0f64; 8];
                for chunk in sum.chunks(8) {
                    for (square, &x) in squares.iter_mut().zip(chunk) {
                        *square += f64::from(x) * f64::from(x);
                    }
                }
                squares.iter().sum::<f64>()
            })
        })
        .collect();
    squares.iter().sum::<f64>().sqrt()
}

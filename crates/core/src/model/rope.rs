//! Tables of the rotary position embedding.

use std::sync::{Arc, PoisonError, RwLock};

use super::config::Rope;

/// Cosines and sines, one row of `head_dim / 2` for each position.
pub(super) struct RotaryTable {
    pub(super) cos: Vec<f32>,
    pub(super) sin: Vec<f32>,
    half: usize,
}

impl RotaryTable {
    /// `(cos, sin)` of one position, each `[head_dim / 2]`.
    pub(super) fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let range = position * self.half..(position + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// The rotary embedding of one backbone; its table grows with the longest segment seen.
pub(super) struct Rotary {
    frequencies: Vec<f32>,
    table: RwLock<Arc<RotaryTable>>,
}

impl Rotary {
    pub(super) fn new(rope: &Rope, head_dim: usize) -> Self {
        let empty = RotaryTable { cos: Vec::new(), sin: Vec::new(), half: head_dim / 2 };
        Self { frequencies: frequencies(rope, head_dim), table: RwLock::new(Arc::new(empty)) }
    }

    /// A table for at least `positions` positions.
    pub(super) fn table(&self, positions: usize) -> Arc<RotaryTable> {
        let half = self.frequencies.len();
        let current = Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner));
        if current.cos.len() >= positions * half {
            return current;
        }
        // The angle is formed in f32 like in transformers, then its cosine exactly.
        let angles = (0..positions).flat_map(|p| self.frequencies.iter().map(move |f| f64::from(p as f32 * f)));
        let (cos, sin) = angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip();
        let grown = Arc::new(RotaryTable { cos, sin, half });
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&grown);
        grown
    }
}

/// Angular frequency of each channel pair, `theta^(−2i/D)`, rescaled for `llama3` (transformers, `_compute_llama3_parameters`).
fn frequencies(rope: &Rope, head_dim: usize) -> Vec<f32> {
    let plain = (0..head_dim / 2).map(|i| {
        let exponent = (2 * i) as f32 / head_dim as f32;
        (1.0 / rope.theta.powf(f64::from(exponent))) as f32
    });
    let Some(scaling) = rope.scaling else {
        return plain.collect();
    };
    let context = scaling.original_max_position_embeddings;
    let (longest, shortest) = (context / scaling.low_freq_factor, context / scaling.high_freq_factor);
    plain
        .map(|plain| {
            let frequency = f64::from(plain);
            let wavelength = std::f64::consts::TAU / frequency;
            let scaled = if wavelength < shortest {
                frequency
            } else if wavelength > longest {
                frequency / scaling.factor
            } else {
                let keep = (context / wavelength - scaling.low_freq_factor)
                    / (scaling.high_freq_factor - scaling.low_freq_factor);
                (1.0 - keep) * frequency / scaling.factor + keep * frequency
            };
            scaled as f32
        })
        .collect()
}

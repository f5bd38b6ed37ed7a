//! What scores of attention, and logits, are scaled and bounded by.

use candle_core::Tensor;

use crate::error::Result;
use crate::model::config::Config;

/// What scores of attention are multiplied by, and what bounds them then ([`capped`]).
#[derive(Debug, Clone, Copy)]
pub struct Scores {
    pub scale: f64,
    pub cap: Option<f32>,
}

impl Scores {
    /// Those of a backbone.
    pub fn of(config: &Config) -> Self {
        let plain = config.scale == 1.0 / (config.head_dim as f32).sqrt();
        let scale = if plain { 1.0 / (config.head_dim as f64).sqrt() } else { f64::from(config.scale) };
        Self { scale, cap: config.score_cap }
    }
}

/// `cap·tanh(x / cap)`, where there is a cap.
pub fn capped(x: Tensor, cap: Option<f32>) -> Result<Tensor> {
    match cap {
        Some(cap) => Ok(((x / f64::from(cap))?.tanh()? * f64::from(cap))?),
        None => Ok(x),
    }
}

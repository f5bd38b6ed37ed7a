//! How an operator is trained.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The text that an operator is trained on: sequences of the calibration's corpus, drawn by its rule. One step a sequence,
/// each read once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Finetune {
    /// How many sequences, and so steps.
    #[schemars(range(min = 1))]
    pub sequences: usize,
    /// Tokens of a sequence.
    #[schemars(range(min = 2))]
    pub length: usize,
    /// Of the draw.
    #[serde(default)]
    pub seed: u64,
}

/// Constants of the paper's appendix D, which are those of LinearPatch.
impl Finetune {
    /// Of AdamW, the same at every step.
    pub const LEARNING_RATE: f32 = 1e-4;
    pub const WEIGHT_DECAY: f32 = 1e-4;
    /// The teacher's tokens that count at a position.
    pub const TOP_TOKENS: usize = 100;
}

//! Distillation of an operator (design §7, the paper's "+ FT"): trains the unstructured matrix at one boundary, so that
//! the pruned backbone predicts the dense backbone's tokens.
//!
//! | file | content |
//! | --- | --- |
//! | `teacher` | the dense backbone's likeliest tokens at each position |
//! | `layers_after` | the frozen layers after the boundary, in differentiable operations |
//! | `training` | amount of text, optimizer constants, steps, and the checkpoint to resume from |
//!
//! Teacher and students share all layers before the boundary, so their stream `X_pre` is read from the calibration.

mod layers_after;
mod teacher;
mod training;

pub use layers_after::LayersAfter;
pub use teacher::{TopTokens, top_tokens};
pub use training::{Checkpoint, Finetune, Training};

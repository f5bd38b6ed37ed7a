//! Distillation of an operator (design §7, "+ FT" in the Ghosted Layers paper): trains the dense matrix that replaces
//! the removed layers, so that the pruned backbone predicts the dense backbone's tokens.
//!
//! | file | content |
//! | --- | --- |
//! | `teacher` | the dense backbone's most likely tokens at each position |
//! | `training` | training text, optimizer constants, steps, and the checkpoint to resume from |
//!
//! Teacher and student share all layers before the operator, so the operator's input `X_pre` is read from the stored
//! calibration activations.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use ghostlab_core::distill::top_tokens;
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! let logits = Tensor::new(&[[0.5_f32, 3.0, -1.0, 2.0]], &Device::Cpu)?;
//! let teacher = top_tokens(&logits, 2)?;
//! assert_eq!((teacher.tokens, teacher.logits), (vec![1, 3], vec![3.0, 2.0]));
//! # Ok(())
//! # }
//! ```

mod teacher;
mod training;

pub use crate::model::LayersAfter;
pub use teacher::{TopTokens, top_tokens};
pub use training::{Checkpoint, Finetune, Training};

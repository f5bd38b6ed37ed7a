//! Distillation of an operator (design §7, the paper's "+ FT"): only the matrix at one boundary trains, without structure,
//! so that the pruned backbone predicts what the whole one does.
//!
//! | file | noun |
//! | --- | --- |
//! | `teacher` | what the whole backbone predicts: its likeliest tokens at each position |
//! | `tail` | the layers after the boundary, frozen, in operations that can be differentiated |
//! | `training` | how much text is read, the optimizer's constants, the steps, and the checkpoint from which they go on |
//!
//! What stands before the boundary is the same for the teacher and for every student: its stream `X_pre` is read, not
//! computed again.

mod layers_after;
mod teacher;
mod training;

pub use layers_after::LayersAfter;
pub use teacher::{TopTokens, top_tokens};
pub use training::{Checkpoint, Finetune, Training};

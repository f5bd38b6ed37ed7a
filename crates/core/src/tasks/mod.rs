//! Nine zero-shot multiple-choice tasks: what is known of them, the requests put to a model, and what its answers amount to.
//!
//! Splits, tokens and metrics are those of lm-evaluation-harness 0.4.13, so that a number made here may stand beside one made
//! there. Documents and their texts come from definitions (the crate `ghostlab-definitions`). [`continuation`], [`rolling`] and
//! [`prompt`] turn texts into token ids, a model gives a [`Score`] for each, [`Solutions`] and [`TaskResult::of`] turn scores
//! into accuracies, and [`export`] writes them in the harness' layout.

mod export;
mod length;
mod limit;
pub mod python;
mod request;
mod result;
mod solutions;
mod split;
mod task;

pub use export::export;
pub use length::max_length;
pub use limit::DocumentLimit;
pub use request::{Bos, Encoder, Prefix, Tokenised, continuation, prompt, rolling};
pub use result::{ChoiceResult, DocumentResult, Measure, Score, TaskResult, average};
pub use solutions::{Answered, Questions, Solutions};
pub use split::{Split, split_files};
pub use task::{AccuracyKind, TASKS, Task};

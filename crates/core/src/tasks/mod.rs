//! Built-in zero-shot multiple-choice tasks: their properties, the requests sent to a model, and the scores of its
//! answers.
//!
//! Splits, tokens and metrics follow lm-evaluation-harness 0.4.13, so that accuracies are comparable. Documents and
//! their texts come from definitions (the crate `ghostlab-definitions`). [`continuation`], [`rolling`] and [`prompt`]
//! convert texts to token ids. A model returns a [`Score`] for each of the resulting requests. [`ScoredTask`] combines
//! them with the answer key ([`Solutions`]) and computes accuracies.
//!
//! ```
//! use std::sync::Arc;
//!
//! use ghostlab_core::tasks::{Questions, Score, ScoredTask, Solutions, Task};
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! // The second of two choices is more likely, and it is correct. Each choice has 4 characters, 4 bytes and 1 token.
//! let document = Questions { id: 0, gold: 1, choices: vec![[4, 4, 1, 0]; 2] };
//! let key = Solutions::new(Task::find("copa")?, 1, vec![document]);
//! let scores = [-2.0, -1.0].map(|log_likelihood| Score { log_likelihood, greedy: false });
//! let answered = ScoredTask::new(&Arc::new(key), scores.into())?;
//! assert_eq!(answered.acc.value, 1.0);
//! # Ok(())
//! # }
//! ```

mod builtin_tasks;
mod document_limit;
mod flip;
mod length;
mod non_finite_score;
pub mod python;
mod request;
mod scored_task;
mod solutions;
mod split;
mod task_result;

pub use builtin_tasks::{AccuracyKind, TASKS, Task};
pub use document_limit::DocumentLimit;
pub use flip::Flip;
pub use length::max_length;
pub use non_finite_score::NonFiniteScore;
pub use request::{Bos, Encoder, Prefix, TokenizedRequest, continuation, prompt, rolling};
pub use scored_task::ScoredTask;
pub use solutions::{Questions, Solutions};
pub use split::{Split, split_files};
pub use task_result::{ChoiceResult, DocumentResult, Measure, Score, average};

//! Built-in zero-shot multiple-choice tasks: their properties, the requests sent to a model, and the scores of its
//! answers.
//!
//! Splits, tokens and metrics follow lm-evaluation-harness 0.4.13, so that accuracies are comparable. Documents and
//! their texts come from definitions (the crate `ghostlab-definitions`). [`continuation`], [`rolling`] and [`prompt`]
//! convert texts to token ids. A model returns a [`Score`] for each of the resulting requests. [`Solutions`] and
//! [`TaskResult::from_documents`] convert scores to accuracies.
//!
//! ```
//! use ghostlab_core::tasks::{ChoiceResult, DocumentResult, Task, TaskResult};
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! // The second of two choices is more likely, and it is correct.
//! let choice = |log_likelihood: f64| ChoiceResult {
//!     log_likelihood,
//!     characters: 4,
//!     bytes: 4,
//!     tokens: 1,
//!     truncated_left: 0,
//!     greedy: false,
//! };
//! let task = Task::find("copa")?;
//! let document = DocumentResult::new(0, 1, vec![choice(-2.0), choice(-1.0)], task.non_finite);
//! let result = TaskResult::from_documents(task, 1, &[document])?;
//! assert_eq!(result.acc.value, 1.0);
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
mod solutions;
mod split;
mod task_result;

pub use builtin_tasks::{AccuracyKind, TASKS, Task};
pub use document_limit::DocumentLimit;
pub use flip::Flip;
pub use length::max_length;
pub use non_finite_score::NonFiniteScore;
pub use request::{Bos, Encoder, Prefix, TokenizedRequest, continuation, prompt, rolling};
pub use solutions::{Questions, ScoredTask, Solutions};
pub use split::{Split, split_files};
pub use task_result::{ChoiceResult, DocumentResult, Measure, Score, TaskResult, average};

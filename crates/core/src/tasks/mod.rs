//! Nine zero-shot multiple-choice tasks: their data, the requests put to a model, and what its answers amount to.
//!
//! Strings, splits, tokens and metrics are those of lm-evaluation-harness 0.4.13, so that a number made here may stand
//! beside one made there. In order: [`Items::read`] turns a file of the task's split into documents with choices,
//! [`requests`] turns these into token ids (all of them, before any model is loaded: what cannot be scored is an error
//! there), a model gives a [`Score`] for each request, [`document_results`] and [`TaskResult::of`] turn scores into
//! accuracies, and [`export`] writes them in the harness' layout.
//!
//! A task is an entry of [`TASKS`] and one function that makes a row's prompt; all else is shared.

mod export;
mod item;
mod length;
mod limit;
mod literal;
mod measure;
mod parquet;
mod prompt;
mod python;
mod request;
mod result;
mod row;
mod solutions;
mod split;
mod task;

pub use export::export;
pub use item::{Document, Items};
pub use length::max_length;
pub use limit::DocumentLimit;
pub use measure::Measure;
pub use prompt::{Choice, Prompt};
pub use request::{Bos, Encoder, Prefix, Request, Tokenised, continuation, prompt, requests, rolling};
pub use result::{ChoiceResult, DocumentResult, Score, TaskResult, average};
pub use row::{TaskRow, format, read_rows};
pub use solutions::{Answered, Solutions, document_results};
pub use split::{Split, split_files};
pub use task::{AccuracyKind, TASKS, Task};

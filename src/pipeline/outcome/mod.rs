//! Results of a grid, read from the store cell by cell.

mod cell_result;
mod drawn_errors;
mod read;

pub use super::stage::task_scores::{Answers, NO_FILTER, TaskScores, displayed_score, harness_scores};
pub use cell_result::{CellResult, EvalResult, GridOutcome, TaskExtent, TextExtent, UsedObject};

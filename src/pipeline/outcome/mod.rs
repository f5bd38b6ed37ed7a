//! Results of a grid, read from the store cell by cell.

mod cell_result;
mod drawn_errors;
mod read;

pub use cell_result::{
    Answers, CellResult, EvalResult, GridOutcome, TaskExtent, TaskScores, TextExtent, UsedObject, harness_scores,
    right_answers,
};

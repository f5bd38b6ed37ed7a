//! Floor 2: what a grid measured, as one tidy table, and how it is shown.
//!
//! What is stored of a plan is read cell by cell with its samples ([`GridOutcome::read`]), and becomes [`Results`]
//! (`collect`): a number for each cell, metric and protocol, with its error and the items behind it. `run`, `reproduce`, the
//! page and `compare` all read it. A [`Table`] lays some of it out in rows
//! and columns: `long` and `wide` are those of `run`, the paper's are laid out by [`crate::artifact`]. Best marks and
//! paired tests are made there, once, and each form writes the same table: `screen`, `markdown`, `latex`, `frame` (CSV and
//! Parquet), `saved_table` (`page.json`, which the page shows). `stored` has the numbers as JSON, which `differences` compares.

mod asked;
mod cell_result;
mod channels;
mod collect;
mod comparison;
mod csv;
mod description;
mod differences;
mod documents;
mod drawn;
mod drawn_errors;
mod engines;
mod equal_cuts;
mod extent;
pub mod factors;
mod file;
mod forms;
mod frame;
mod groups;
mod harness;
mod latency;
mod latex;
mod long;
mod markdown;
mod measurement;
mod outcome;
mod over;
mod paired;
mod pairing;
mod parquet;
mod protocol;
mod protocol_line;
mod provenance;
mod read;
pub mod record;
mod renamed;
#[cfg(test)]
mod run_tables_test;
mod saved_table;
mod scores;
mod screen;
mod stored;
mod stored_form;
mod stored_identities;
mod table;
mod text;
mod tolerance;
mod wide;

pub use asked::Question;
pub use cell_result::{CellResult, DefinedScores, MadeFrom, Measured, TaskScores, harness_scores};
pub use channels::{CHANNELS, write_channels};
pub use collect::collect;
pub use comparison::{PaperComparison, PaperVerdict};
pub use csv::{csv_text, failed, write_csv};
pub use description::{By, RunDescription};
pub use differences::{
    CoincidingNumbers, Differences, SettingDifference, Unpaired, ValueDifference, other_than_kept, settings_that_differ,
};
pub use documents::{CellAnswers, DOCUMENTS, LM_EVAL, write_documents, write_lm_eval};
pub use engines::{engine_notes, rounding_notes};
pub use extent::{DefinedExtent, TaskExtent, TextExtent};
pub use factors::Factors;
pub use file::put;
pub use forms::{EVAL_RESULTS, EVERY_EVAL_EVER, FORMS, may_be_left_out, write_forms};
pub use frame::{drawn_frame, run_frame, tidy_frame, write_frame};
pub use groups::{distinct, grouped};
pub use harness::with_definitions;
pub use latency::{LATENCY, NOISY, latency_notes, write_latencies};
pub use latex::latex;
pub use long::long;
pub use markdown::markdown;
pub use measurement::{Calibrated, CellSummary, Measurement, OfSeed, Results, Sample, Setup};
pub use outcome::GridOutcome;
pub use paired::Paired;
pub use protocol::{Protocol, stem};
pub use protocol_line::protocol_sentence;
pub use provenance::Provenance;
pub use saved_table::{SavedCell, SavedColumn, SavedComparison, SavedMark, SavedRow, SavedTable};
pub use scores::{ModelScore, ModelScores};
pub use screen::screen;
pub use stored::{StoredNumber, StoredResults};
pub use table::{Lead, LeadKind, LeadPlace, NumberColumn, PrintedNumber, Table, TableRow};
pub use text::{capital, escaped};
pub use wide::wide;

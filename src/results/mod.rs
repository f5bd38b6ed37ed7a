//! Results of a grid as one tidy table, and their display (layer 2 of the architecture).
//!
//! [`collect`] converts a [`GridOutcome`](crate::pipeline::outcome::GridOutcome) into [`Results`]: one number per cell,
//! metric and protocol, with its error and per-item values. `run`, `reproduce`, the results page and `compare` all use
//! [`Results`]. A [`Table`] arranges numbers in rows and columns: `run_tables` builds the tables for `run`, and
//! [`crate::artifact`] those of the paper. Ranks and paired tests are computed once, on the table. The output formats
//! are `text` (terminal and Markdown), `latex`, `frame` (CSV and Parquet) and `saved_table` (`page.json`, which the
//! page shows). `stored` reads and writes the numbers as JSON, and `differences` compares the numbers of two runs.

mod aggregate_seeds;
mod atomic_file;
mod best_counts;
mod differences;
mod documents;
mod equal_selections;
mod frame;
mod frame_difference;
mod latex;
mod model_scores;
mod notes;
pub mod number_record;
mod outcome_results;
mod paired;
mod pairing;
mod protocol;
mod protocol_text;
mod provenance;
mod public_formats;
mod result_row;
mod run_tables;
#[cfg(test)]
mod run_tables_test;
mod same_measurement;
mod saved_table;
mod screen;
#[cfg(test)]
mod screen_test;
pub mod settings;
mod stored;
mod stored_form;
mod table;
mod text;
mod timed_passes;

pub use aggregate_seeds::{deviation, mean};
pub use atomic_file::{csv_text, polars_error, put, write_csv};
pub use best_counts::{BestCounts, BestQuestion, SeedCounts};
pub use differences::{
    CoincidingNumbers, Differences, Unpaired, ValueDifference, changed_settings, settings_that_differ,
};
pub use documents::{CHANNELS_FILE, DOCUMENTS, write_channels, write_documents};
pub use frame::{REPLACED, cut_frame, drawn_frame, run_frame, spread_header, tidy_frame, write_frame};
pub use frame_difference::{FrameDifference, damaged_frame_error, read_frame};
pub use latex::{latex, latex_notes, notes_file};
pub use model_scores::{ModelScore, ModelScores, add_task, empty_file, harness_files};
pub use notes::{WARNING, engine_notes, protocol_sentence, ranges, removed_text, rounding_notes};
pub use outcome_results::collect;
pub use paired::{Paired, PaperComparison, PaperVerdict};
pub use protocol::{Protocol, stem};
pub use provenance::{Provenance, RunCommand, RunDescription};
pub use public_formats::{
    EVAL_RESULTS, EVERY_EVAL_EVER, LM_EVAL, NOT_RECORDED, PUBLIC_FORMAT_FOLDERS, may_be_left_out, write_public_formats,
};
pub use result_row::{CalibrationSummary, CellSummary, ResultRow, Results, Sample, Setup};
pub use run_tables::{long, wide};
pub use same_measurement::{MIN_EQUAL_SCORES, MeasuredProgram, RowContent, is_one_measurement};
pub use saved_table::{SavedCell, SavedColumn, SavedComparison, SavedRow, SavedSignificance, SavedTable};
pub use screen::{screen, wrap};
pub use settings::{Settings, distinct, group_by_key};
pub use stored::StoredResults;
pub use table::{NumberColumn, PrintedNumber, RowHeader, RowHeaderKind, Table, TableRow, Visibility};
pub use text::{capital, escape_markdown, markdown};
pub use timed_passes::{LATENCY, NOISY, NoisyTimes, latency_notes, write_latencies};

//! Produces the paper's tables and figures (layer 4 of the architecture, docs/design.md §11).
//!
//! `pipeline` reproduces an artifact (a table or figure) from the `catalog`. `comparison` compares numbers with the
//! paper. Its gate skips the pruned cells of backbones whose dense scores do not match. `results_folder`, `files`,
//! `recorded` and `page_part` store the results of a run. The grid executor is passed in so that tests need no model.
//!
//! [`figure`], [`page`], [`paper`], [`claims`] and [`audit`] never run a grid.

pub mod audit;
mod catalog;
pub mod claims;
mod comparison;
mod differing_files;
mod drawer;
pub mod figure;
mod files;
mod finished;
#[cfg(test)]
mod formats_test;
mod layout;
mod lists;
mod loss_curves;
pub mod page;
mod page_part;
pub mod paper;
mod paper_columns;
mod paper_model_check;
mod pipeline;
#[cfg(test)]
mod pipeline_bench;
#[cfg(test)]
mod pipeline_test;
#[cfg(test)]
mod print_facts;
#[cfg(test)]
mod print_test;
mod recorded;
mod results_folder;
mod search_results;
mod seeds;
#[cfg(test)]
mod size_test;
mod tradeoff;
#[cfg(test)]
mod tradeoff_test;
#[cfg(test)]
mod views_test;

pub use catalog::{Artifact, PaperPlace, all, all_for, partition_by_profile, printed, select};
pub use comparison::{Gate, GateFailure};
pub use files::{TableShape, run_files, write_run};
pub use finished::{UpToDateCheck, hash_paths};
pub use page_part::PagePart;
pub use paper_model_check::{ExaminedInput, check_pins, examine, identify, weight_bytes};
pub use pipeline::{ArtifactOutcome, Executor, GateMode, artifact_files, list, make, run_gate};
pub use results_folder::{PublishedFiles, ResultsFolder, local_run_folder};
pub use search_results::{SearchResults, search_file_names, search_files};

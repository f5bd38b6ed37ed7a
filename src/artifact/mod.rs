//! Layer 4: producing the paper's tables and figures (design §11).
//!
//! `catalogue` lists the artifacts and `pipeline` makes one. `layout` arranges a table and `print` formats it next to
//! the paper's values. `comparison` judges numbers and gates the dense backbones. `draw` makes figures. `folder`,
//! `files`, `recorded` and `page_part` store a run's results. `raced` handles searches. The grid executor is passed in,
//! so that everything can be tested without a model.
//!
//! Independent of runs are [`figure`] (drawing), [`page`] (the results page), [`paper`] (the paper's values),
//! [`claims`] (checks of the paper's sentences) and [`audit`] (consistency of the paper's tables).

pub mod audit;
mod catalogue;
pub mod claims;
mod comparison;
mod differing_files;
mod draw;
pub mod figure;
mod files;
mod finished;
mod folder;
#[cfg(test)]
mod formats_test;
mod identity;
mod layout;
mod lists;
pub mod page;
mod page_part;
pub mod paper;
mod pipeline;
#[cfg(test)]
mod pipeline_test;
mod print;
#[cfg(test)]
mod print_test;
mod raced;
mod recorded;
mod seeds;
#[cfg(test)]
mod size_test;

pub use catalogue::{Artifact, PaperPlace, all, chosen, of_profile, printed};
pub use comparison::{Gate, GateFailure};
pub use files::{TableShape, run_files, write_run};
pub use finished::{Finished, contents};
pub use folder::{Published, ResultsFolder, here};
pub use identity::{ExaminedInput, examine, hold, identify, weight_bytes};
pub use page_part::PagePart;
pub use pipeline::{ArtifactOutcome, Executor, Gated, Runner, artifact_files, gated, list, make};
pub use raced::{Raced, search_files, search_names};
pub use recorded::NOT_RECORDED;

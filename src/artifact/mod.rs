//! Floor 4: making the paper's tables and figures (design §11).
//!
//! Which there are (`catalogue`), how one is made (`pipeline`), how a table is laid out (`layout`), printed (`print`) beside the
//! paper's values (`comparison`, which also says what the dense backbones have to hold first), what is drawn (`draw`), and the folder
//! that holds what came of one run (`folder`, `files`, `recorded`, `page_part`). Races (`raced`) have a table of their own. Who runs a
//! grid is passed in, so that all of it can be tried without a model.
//!
//! Rooms of their own, which know nothing of a run: [`figure`] draws data, [`page`] is the page of all artifacts,
//! [`paper`] has the paper's values, [`claims`] its sentences as checks, [`audit`] holds its tables against themselves.

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

pub use catalogue::{Artifact, PaperPlace, all, chosen, printed};
pub use comparison::{Gate, GateFailure};
pub use files::{TableShape, run_files, write_run};
pub use finished::{Finished, contents};
pub use folder::{Published, ResultsFolder, here};
pub use identity::{ExaminedInput, examine, hold, identify, weight_bytes};
pub use page_part::PagePart;
pub use pipeline::{ArtifactOutcome, Executor, Gated, Runner, artifact_files, gated, list, make};
pub use raced::{Raced, search_files, search_names};
pub use recorded::NOT_RECORDED;

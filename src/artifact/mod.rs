//! Floor 4: making the paper's tables and figures (design §11). Which there are (`catalogue`), how one is made
//! (`pipeline`), what the dense backbones have to hold first (`gate`), and the folder that holds what came of one run
//! (`folder`, `files`, `provenance`). Who runs a grid is passed in, so that all of it can be tried without a model.

mod catalogue;
mod comparison;
mod draw;
mod files;
mod folder;
#[cfg(test)]
mod formats_test;
mod gate;
mod layout;
mod lists;
mod other_protocol;
mod pipeline;
#[cfg(test)]
mod pipeline_test;
mod provenance;
mod sheet;

pub use catalogue::{Artifact, all, chosen, order};
pub use comparison::{Gate, GateFailure};
pub use files::{TableShape, write_run};
pub use folder::{ResultsFolder, Staging};
pub use pipeline::{Executor, Gated, Made, Runner, list, make};
pub use sheet::PageSheet;

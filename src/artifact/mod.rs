//! Floor 4: making the paper's tables and figures (design §11). Which there are (`catalogue`), how one is made
//! (`pipeline`), what the dense backbones have to hold first (`gate`), and the folder that holds what came of one run
//! (`folder`, `files`, `provenance`). Who runs a grid is passed in, so that all of it can be tried without a model.

mod catalogue;
mod files;
mod folder;
mod gate;
mod pipeline;
#[cfg(test)]
mod pipeline_test;
mod provenance;

pub use catalogue::{Artifact, all, chosen, order};
pub use files::{TableShape, write_run};
pub use folder::{ResultsFolder, Staging};
pub use pipeline::{Executor, Gated, Made, Runner, list, make};

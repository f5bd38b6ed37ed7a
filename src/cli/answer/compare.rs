//! Two results folders side by side.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use crate::results::{Differences, StoredResults};

/// Two results, and what is not the same in them.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Comparison {
    pub(crate) first: Side,
    pub(crate) second: Side,
    #[serde(flatten)]
    pub(crate) differences: Differences,
}

/// One of two results.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Side {
    /// The artifact, or the grid.
    pub(crate) name: String,
    /// The profile; empty without one.
    pub(crate) profile: String,
    /// The folder, as it was named.
    pub(crate) folder: String,
    /// Version and commit of the program that wrote it.
    pub(crate) program: String,
}

impl Side {
    pub(crate) fn of(stored: &StoredResults, folder: &Path) -> Self {
        Self {
            name: stored.name.clone(),
            profile: stored.profile.clone(),
            folder: folder.display().to_string(),
            program: stored.program.clone(),
        }
    }
}

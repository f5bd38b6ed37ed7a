//! What `search` answers.

use schemars::JsonSchema;
use serde::Serialize;

use super::done::ExportedCell;
use crate::search::Found;

/// Candidates were raced under a budget.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Searched {
    /// A search for each backbone and each number of layers of the budget.
    pub(crate) searches: Vec<Found>,
    /// Each search's result in one sentence.
    pub(crate) sentences: Vec<String>,
    /// What was written: the report, its data, the figures.
    pub(crate) files: Vec<String>,
    /// The winner as a folder for other programs; null where none was asked for.
    pub(crate) exported: Option<ExportedCell>,
    /// The command that exports the winner; null where it is exported, or there are several searches.
    pub(crate) export: Option<String>,
    /// How long it took, in seconds; what was stored before took none.
    pub(crate) seconds: f64,
}

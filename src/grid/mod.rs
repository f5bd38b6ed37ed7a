//! Grid files: parsing, validation and expansion into cells.
//!
//! A grid is loaded in these steps:
//!
//! 1. The YAML text is parsed into a tree in which every value has its source position (`yaml`).
//! 2. Four layers are merged, each over the previous one: named entries (`library`), the grid, a profile (`profile`)
//!    and overrides (`overrides`).
//! 3. The tree is deserialized into typed structs (`deserialize`, `schema`).
//! 4. The values are validated, defaults are filled in, and methods are built (`check`, `validate`, `cell`, `depth`,
//!    `calibration`, `pattern`, `definitions`).
//! 5. The axes are multiplied into cells (`cells`), based on the layer counts of the backbones (`definitions`). The
//!    cells are then named (`name`).
//!
//! `artifact` describes the table or figure made from the cells. `schema_json` exports the schema for editors.

mod artifact;
mod calibration;
mod cell;
mod cells;
mod check;
mod defined_tasks;
mod definitions;
mod depth;
mod deserialize;
mod draw;
mod entry_kind;
mod eval_task;
mod evaluate;
mod file;
mod input;
mod library;
mod name;
mod one_or_many;
mod overrides;
mod pattern;
mod profile;
mod schema;
mod schema_json;
mod search;
mod shards;
mod validate;
mod weights;
mod yaml;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use artifact::{
    Description, FigureEntry, FigureKind, Highlight, ListEntry, Over, RacesEntry, RowEntry, RowHeader, TableEntry,
    Tolerance,
};
pub use calibration::Calibration;
pub use cell::{Cell, Method, MethodAxis};
pub use defined_tasks::{DefinedColumn, GroupUse, columns as defined_columns};
pub use definitions::{Backbone, Corpus, RoundedWeights, rule_names, task_names};
pub use draw::Draw;
pub use entry_kind::EntryKind;
pub use eval_task::{EvalTask, TaskData, TaskSettings, TaskSource};
pub use evaluate::{Evaluate, Latency, Perplexity};
pub use file::GridFile;
pub use input::{HubSource, InputRef, InputResolver, ResolvedInput};
pub use library::{BackboneFile, available_names, backbone_files};
pub use name::assign_names;
pub use schema_json::json_schema;
pub use search::{Budget, Search, UnselectableCut};
pub use shards::Stream;
pub use weights::CalibratedOn;
pub use yaml::is_yaml;

use crate::criterion::Criterion;
use crate::criterion::Depth;
use crate::error::{Error, Result};
use crate::recovery::Recovery;

/// Filter that selects evaluations of a grid.
pub struct AxisChoice<'a> {
    /// Predicate that selects the perplexity corpora.
    pub text: &'a dyn Fn(&str) -> bool,
    /// Predicate that selects the tasks.
    pub task: &'a dyn Fn(&str) -> bool,
    /// Whether to include latencies.
    pub latency: bool,
}

impl AxisChoice<'_> {
    /// Filter that includes all evaluations.
    pub const ALL: Self = AxisChoice { text: &|_| true, task: &|_| true, latency: true };
}

/// Validated grid. All its inputs exist, and all its cells (variants of a backbone) can be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// Name of the results directory: the value of the key `name`, or else the file stem.
    pub name: String,
    #[serde(serialize_with = "crate::files::serialize_path::one")]
    pub file: PathBuf,
    /// Files that define the named entries in use.
    #[serde(serialize_with = "crate::files::serialize_path::many")]
    pub entries: Vec<PathBuf>,
    pub profile: Option<String>,
    /// Lock file for inputs from the hub. It need not exist.
    #[serde(skip)]
    pub lock_file: PathBuf,
    /// Backbones of the cells, by name. Unused definitions are dropped, so their files need not exist.
    pub backbones: BTreeMap<String, Backbone>,
    /// Corpora used for calibration or evaluation, by name. Unused corpora are dropped.
    pub corpora: BTreeMap<String, Corpus>,
    /// Data of the built-in tasks that are evaluated, by name. Unused tasks are dropped.
    pub tasks: BTreeMap<String, TaskData>,
    /// Definitions and data of the lm-evaluation-harness tasks that are evaluated, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub definitions: BTreeMap<String, TaskData>,
    /// Distinct backbones in the cells, in order of first appearance. The next four fields list the values on the other
    /// axes in the same way.
    pub backbone: Vec<String>,
    pub criterion: Vec<Method<dyn Criterion>>,
    pub depth: Vec<Depth>,
    pub recovery: Vec<Method<dyn Recovery>>,
    pub calibration: Vec<Calibration>,
    pub evaluate: Evaluate,
    /// Search settings, if the file has `search` instead of `evaluate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
    /// All distinct cells, grouped by backbone: the dense cell, then the product of the axes without excluded cells,
    /// then the included cells. The product is ordered by criterion, depth, recovery and calibration, each in file
    /// order.
    pub cells: Vec<Cell>,
}

impl Grid {
    /// Loads and validates the grid file at `path`. A profile and the `--set` arguments (each `key=value`) are applied
    /// to it in order. If `profile` is `None`, the key `profile` in the file selects the profile, if present.
    ///
    /// Paths in a file are relative to the file's directory. Paths in `overrides` are relative to the current
    /// directory.
    ///
    /// # Errors
    /// Fails if the grid is invalid or inputs are missing. The error gives the file, line and column, the expected
    /// value and the value found.
    pub fn load(path: &Path, profile: Option<&str>, overrides: &[String]) -> Result<Grid> {
        GridFile::read(path)?.grid(profile, overrides)
    }

    /// Loads a grid from a string. Names and paths are resolved as if the string were in a file at `path`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Grid::load`].
    pub fn from_text(text: &str, path: &Path) -> Result<Grid> {
        GridFile::from_text(text, path)?.grid(None, &[])
    }

    /// Returns the grid as JSON, with overrides and defaults filled in and paths resolved.
    ///
    /// # Errors
    /// Never fails for a loaded grid.
    pub fn resolved(&self) -> Result<Value> {
        serde_json::to_value(self)
            .map_err(|error| Error::bad_input("cannot write the grid as JSON").found(error.to_string()))
    }

    /// Returns the grid with absolute paths so that [`Grid::from_frozen`] can load it in any directory.
    ///
    /// # Errors
    /// Fails if the current directory no longer exists.
    pub fn frozen(&self) -> Result<Value> {
        let mut grid = self.clone();
        make_absolute(&mut grid.file)?;
        grid.entries.iter_mut().try_for_each(make_absolute)?;
        grid.backbones.values_mut().try_for_each(|backbone| make_absolute(&mut backbone.path))?;
        grid.corpora.values_mut().try_for_each(|corpus| make_absolute(&mut corpus.path))?;
        let tasks = grid.tasks.values_mut().chain(grid.definitions.values_mut());
        tasks.flat_map(TaskData::paths_mut).try_for_each(make_absolute)?;
        grid.resolved()
    }

    /// Loads a grid from the JSON that [`Grid::frozen`] returns.
    ///
    /// # Errors
    /// Fails if the JSON comes from an incompatible version, or if a criterion or recovery is unknown.
    pub fn from_frozen(frozen: &Value) -> Result<Self> {
        Self::deserialize(frozen)
            .map_err(|error| Error::bad_input("cannot read the frozen grid").found(error.to_string()))
    }
}

fn make_absolute(path: &mut PathBuf) -> Result<()> {
    *path = std::path::absolute(&*path).map_err(|error| Error::path_io("resolve", path, &error))?;
    Ok(())
}

/// Inputs to which a grid refers.
#[derive(Debug)]
pub struct InputList {
    pub needs: Vec<InputRef>,
    /// Lock file for inputs from the hub. It need not exist.
    pub lock_file: PathBuf,
    grid: PathBuf,
    pub profile: Option<String>,
    overrides: Vec<String>,
    /// Whether the grid evaluates any perplexity or task.
    pub scored: bool,
}

impl InputList {
    /// Returns a resolver that looks up inputs in the hub cache and the lock file.
    pub fn resolver(&self) -> InputResolver<'_> {
        InputResolver::new(self.lock_file.clone(), &self.grid, self.profile.as_deref(), &self.overrides)
    }
}

//! Grid files: parsing, validation and expansion into cells.
//!
//! A grid is loaded in these steps:
//!
//! 1. The YAML text is parsed into a tree in which every value has its source position (`yaml`, `node`).
//! 2. Four layers are merged, each over the previous one: named entries (`named`), the grid, a profile (`profile`)
//!    and overrides (`overrides`).
//! 3. The tree is deserialized into typed structs (`deserialize`, `schema`).
//! 4. The values are validated, defaults are filled in and methods are built (`check`, with `cell`, `pattern`,
//!    `definitions`).
//! 5. The axes are multiplied into cells (`cells`), using the layer counts of the backbones (`definitions`), and the
//!    cells are named (`name`).
//!
//! `artifact` describes the table or figure made from the cells. `schema_json` exports the schema for editors.

mod artifact;
mod cell;
mod cells;
mod check;
mod defined;
mod definitions;
mod depth;
mod deserialize;
mod draw;
mod eval_task;
mod evaluate;
mod impossible;
mod input;
mod name;
mod named;
mod node;
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

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use artifact::{
    Description, FigureEntry, FigureKind, Highlight, ListEntry, Over, RacesEntry, RowEntry, RowHeader, TableEntry,
    Tolerance,
};
pub use cell::{Calibration, Cell, Method, MethodAxis};
pub use defined::{DefinedColumn, GroupUse, columns as defined_columns};
pub use definitions::{Backbone, Corpus, Rounded, rules, tasks};
pub use draw::Draw;
pub use eval_task::{Asking, EvalTask, TaskData, TaskSource};
pub use evaluate::{Evaluate, Latency, Perplexity};
pub use input::{EntryKind, Found, HubSource, InputRef, InputResolver};
pub use name::assign_names as give_names;
pub use named::{BackboneFile, backbone_files, names_around};
pub use schema_json::json_schema;
pub use search::{Budget, Search, Unselectable};
pub use shards::Stream;
pub use weights::CalibratedOn;
pub use yaml::is_yaml;

use crate::criterion::Criterion;
use crate::criterion::Depth;
use crate::error::{Error, Result};
use crate::recovery::Recovery;

/// Filter for the evaluations of a grid.
pub struct AxisChoice<'a> {
    /// Predicate for perplexity corpora.
    pub text: &'a dyn Fn(&str) -> bool,
    /// Predicate for tasks.
    pub task: &'a dyn Fn(&str) -> bool,
    /// Whether latencies are included.
    pub latency: bool,
}

impl AxisChoice<'_> {
    /// Filter that includes all evaluations.
    const ALL: Self = AxisChoice { text: &|_| true, task: &|_| true, latency: true };
}

/// Validated grid. All its inputs exist, and all its cells can be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// Name of the results directory: the key `name`, or the file stem.
    pub name: String,
    #[serde(serialize_with = "crate::files::shown::path")]
    pub file: PathBuf,
    /// Files of named entries in use.
    #[serde(serialize_with = "crate::files::shown::paths")]
    pub entries: Vec<PathBuf>,
    pub profile: Option<String>,
    /// Lock file for hub inputs, which need not exist.
    #[serde(skip)]
    pub lock_file: PathBuf,
    /// Backbones of the cells, by name. Unused definitions are dropped, so their files need not exist.
    pub backbones: BTreeMap<String, Backbone>,
    /// Corpora of calibration and evaluation, by name, without unused ones.
    pub corpora: BTreeMap<String, Corpus>,
    /// Data of the evaluated tasks, by name, without unused ones.
    pub tasks: BTreeMap<String, TaskData>,
    /// Definitions of the evaluated lm-evaluation-harness tasks, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub definitions: BTreeMap<String, TaskData>,
    /// Distinct backbones over all cells, in order of first appearance. The next four fields list the other axes in
    /// the same way.
    pub backbone: Vec<String>,
    pub criterion: Vec<Method<dyn Criterion>>,
    pub depth: Vec<Depth>,
    pub recovery: Vec<Method<dyn Recovery>>,
    pub calibration: Vec<Calibration>,
    pub evaluate: Evaluate,
    /// Search settings, if the file has `search` instead of `evaluate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
    /// All distinct variants, grouped by backbone: the dense cell, the product of the axes without excluded cells,
    /// and included cells. The product is ordered by criterion, depth, recovery and calibration, each in file order.
    pub cells: Vec<Cell>,
}

/// Expected contents of a grid file.
const SHAPE: yaml::FileShape<'_> = yaml::FileShape {
    what: "the grid",
    expected: "a map with axes and the named inputs",
    hint: "see the complete example at the top of docs/grid.md",
};

impl Grid {
    /// Loads the grid file at `path` with a profile and the `--set` arguments (each `key=value`, applied in order),
    /// and validates it. Without `profile`, the file's key `profile` selects one, if present.
    ///
    /// Paths in a file are relative to the file's directory, and paths in `overrides` to the current directory.
    ///
    /// # Errors
    /// Fails if the grid is invalid or inputs are missing, with file, line and column, and the expected and found
    /// values.
    pub fn load(path: &Path, profile: Option<&str>, overrides: &[String]) -> Result<Grid> {
        Self::load_shown(path, profile, overrides, &AxisChoice::ALL)
    }

    /// Loads a grid with only the evaluations that `shown` includes. The data of the others need not exist.
    ///
    /// # Errors
    /// Fails like [`Grid::load`].
    pub fn load_shown(
        path: &Path,
        profile: Option<&str>,
        overrides: &[String],
        shown: &AxisChoice<'_>,
    ) -> Result<Grid> {
        Self::from_layers(Layers::read(path, profile, overrides)?, path, shown)
    }

    /// Loads a grid from a string. Names and paths are resolved as for a file at `path`.
    ///
    /// # Errors
    /// Fails like [`Grid::load`].
    pub fn of_text(text: &str, path: &Path) -> Result<Grid> {
        Self::from_layers(Layers::of(yaml::parse_map(text, path, &SHAPE)?, path, None, &[])?, path, &AxisChoice::ALL)
    }

    fn from_layers(layers: Layers, path: &Path, shown: &AxisChoice<'_>) -> Result<Grid> {
        let Layers { root, library, entries, profile } = layers;
        let mut checked = check::check(&schema(&root)?, &root, path, &library)?;
        let resolver = InputResolver::new(library.lock_file(), path, profile.as_deref());
        let needs = checked.needs(shown);
        let absent = |error: Error| definitions::with_others(error, &needs, &resolver);
        let definitions::Definitions { backbones, mut corpora, mut tasks } = checked.definitions;
        let mut backbones = definitions::found_backbones(backbones, &resolver).map_err(absent)?;
        let cells = checked.axes.into_cells(checked.search.as_mut(), &mut backbones)?;

        // Keep only inputs in use. Other inputs may be missing.
        let mut evaluate = checked.evaluate;
        let mut meant = checked.meant;
        meant.tasks.retain(|name, _| (shown.task)(name));
        evaluate.groups.retain(|group| group.group.tasks.iter().all(|task| meant.tasks.contains_key(task)));
        evaluate.perplexity.retain(|text| (shown.text)(&text.corpus));
        evaluate.tasks.retain(|task| (shown.task)(&task.name));
        evaluate.latency.retain(|_| shown.latency);
        let backbone = validate::distinct(cells.iter().map(|cell| &cell.backbone));
        let calibration = validate::distinct(cells.iter().filter_map(|cell| cell.calibration.as_ref()));
        let texts = evaluate.perplexity.iter().map(|text| &text.corpus);
        let texts: BTreeSet<&String> = calibration.iter().map(|entry| &entry.corpus).chain(texts).collect();
        backbones.retain(|name, _| backbone.contains(name));
        corpora.retain(|name, _| texts.contains(name));
        tasks.retain(|name, _| evaluate.native().any(|task| task.name == *name));
        Ok(Grid {
            name: checked.name,
            file: path.to_owned(),
            entries,
            profile: profile.clone(),
            lock_file: resolver.lock_file().to_owned(),
            backbones,
            corpora: definitions::found_corpora(corpora, &resolver).map_err(absent)?,
            tasks: definitions::found_tasks(tasks, &resolver).map_err(absent)?,
            definitions: meant.locate_rows(&resolver).map_err(absent)?,
            backbone,
            criterion: validate::distinct(cells.iter().filter_map(|cell| cell.criterion.as_ref())),
            depth: validate::distinct(cells.iter().filter(|cell| !cell.is_dense()).map(|cell| &cell.depth)),
            recovery: validate::distinct(cells.iter().filter_map(|cell| cell.recovery.as_ref())),
            calibration,
            evaluate,
            search: checked.search,
            cells,
        })
    }

    /// Returns the inputs that a grid names: all backbones, and the corpora and tasks that `shown` includes. The
    /// inputs need not exist, and the grid is not expanded.
    ///
    /// # Errors
    /// Fails like [`Grid::load`], except for errors that depend on existing inputs.
    pub fn needs(
        path: &Path,
        profile: Option<&str>,
        overrides: &[String],
        shown: &AxisChoice<'_>,
    ) -> Result<InputList> {
        Self::needed(Layers::read(path, profile, overrides)?, path, shown)
    }

    /// Returns the search settings of a grid text, if any. The inputs need not exist.
    ///
    /// # Errors
    /// Fails like [`Grid::load`], except for errors that depend on existing inputs.
    pub fn checked_search(text: &str, path: &Path) -> Result<Option<Search>> {
        let Layers { root, library, .. } = Layers::of(yaml::parse_map(text, path, &SHAPE)?, path, None, &[])?;
        Ok(check::check(&schema(&root)?, &root, path, &library)?.search)
    }

    /// Returns the inputs that a grid text names.
    ///
    /// # Errors
    /// Fails like [`Grid::needs`].
    pub fn needs_of_text(text: &str, path: &Path) -> Result<InputList> {
        Self::needed(Layers::of(yaml::parse_map(text, path, &SHAPE)?, path, None, &[])?, path, &AxisChoice::ALL)
    }

    fn needed(layers: Layers, path: &Path, shown: &AxisChoice<'_>) -> Result<InputList> {
        let Layers { root, library, profile, .. } = layers;
        let checked = check::check(&schema(&root)?, &root, path, &library)?;
        let scored = checked.evaluate.perplexity.iter().any(|entry| (shown.text)(&entry.corpus))
            || checked.evaluate.tasks.iter().any(|task| (shown.task)(&task.name));
        let needs = checked.needs(shown);
        Ok(InputList { needs, lock_file: library.lock_file(), grid: path.to_owned(), profile, scored })
    }

    /// Returns the profile names of the grid file at `path`.
    ///
    /// # Errors
    /// Fails if the file is not a grid.
    pub fn profiles(path: &Path) -> Result<Vec<String>> {
        Ok(profile::names_of(&yaml::read(path, &SHAPE)?))
    }

    /// Returns the grid with overrides, defaults and paths filled in, for the record of a run.
    ///
    /// # Errors
    /// Never fails for a loaded grid, which always has a JSON form.
    pub fn resolved(&self) -> Result<Value> {
        serde_json::to_value(self)
            .map_err(|error| Error::bad_input("cannot write the grid as JSON").found(error.to_string()))
    }

    /// Returns the grid with absolute paths, for [`Grid::thawed`] in any directory.
    ///
    /// # Errors
    /// Fails if the current directory no longer exists.
    pub fn frozen(&self) -> Result<Value> {
        let mut grid = self.clone();
        absolute(&mut grid.file)?;
        grid.entries.iter_mut().try_for_each(absolute)?;
        grid.backbones.values_mut().try_for_each(|backbone| absolute(&mut backbone.path))?;
        grid.corpora.values_mut().try_for_each(|corpus| absolute(&mut corpus.path))?;
        let tasks = grid.tasks.values_mut().chain(grid.definitions.values_mut());
        tasks.flat_map(TaskData::paths_mut).try_for_each(absolute)?;
        grid.resolved()
    }

    /// Loads a frozen grid.
    ///
    /// # Errors
    /// Fails if the format is not this program's, or a method is unknown.
    pub fn thawed(frozen: &Value) -> Result<Self> {
        Self::deserialize(frozen)
            .map_err(|error| Error::bad_input("cannot read the frozen grid").found(error.to_string()))
    }
}

fn absolute(path: &mut PathBuf) -> Result<()> {
    *path = std::path::absolute(&*path).map_err(|error| Error::io("find", path, &error))?;
    Ok(())
}

#[derive(Debug)]
pub struct InputList {
    pub needs: Vec<InputRef>,
    /// Lock file for hub inputs, which need not exist.
    pub lock_file: PathBuf,
    grid: PathBuf,
    pub profile: Option<String>,
    /// Whether the grid evaluates anything.
    pub scored: bool,
}

impl InputList {
    /// Returns the resolver, which searches the hub cache and the lock file.
    pub fn resolver(&self) -> InputResolver<'_> {
        InputResolver::new(self.lock_file.clone(), &self.grid, self.profile.as_deref())
    }
}

fn schema(root: &node::YamlNode) -> Result<schema::Schema> {
    schema::Schema::deserialize(deserialize::FromNode::root(root)).map_err(deserialize::Fault::into_error)
}

/// Grid tree after named entries, a profile and overrides are merged, with the files and the profile in use.
struct Layers {
    root: node::YamlNode,
    library: named::Library,
    entries: Vec<PathBuf>,
    profile: Option<String>,
}

impl Layers {
    fn read(path: &Path, profile: Option<&str>, overrides: &[String]) -> Result<Self> {
        Self::of(yaml::read(path, &SHAPE)?, path, profile, overrides)
    }

    fn of(mut root: node::YamlNode, path: &Path, profile: Option<&str>, overrides: &[String]) -> Result<Self> {
        artifact::take(&mut root);
        let library = named::Library::around(path);
        let profile = profile::take(&mut root, profile, &library)?;

        // Preview the effect of profile and overrides to find the needed files. They are applied again after the
        // files are read.
        let mut preview = root.clone();
        if let Some(profile) = &profile {
            preview.merge(profile.changes.clone());
        }
        overrides::try_apply(&mut preview, overrides);
        let entries = library.load(&mut root, &preview)?;

        let profile = profile.map(|profile| {
            root.merge(profile.changes);
            profile.name
        });
        overrides::apply(&mut root, overrides)?;
        Ok(Self { root, library, entries, profile })
    }
}

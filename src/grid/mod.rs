//! Grid files: what one YAML file asks for, checked before anything runs, and the cells it stands for.
//!
//! The text becomes a tree in which every value knows its place (`yaml`, `node`). Four layers make it up, each laid upon
//! the one before: the files of named entries (`named`), the grid itself, a profile (`profile`), overrides (`overrides`).
//! From the tree a grid is made in three steps, each a function of the one before. Read: typed structs (`typed`, `schema`).
//! Checked: every value is sound by itself, keeps its place, and has its defaults; methods are built (`check`, with `cell`,
//! `pattern`, `definitions`). Cells: the axes multiplied out (`cells`), once it is known how many layers the
//! backbones have (`definitions`), and named (`name`). `artifact` is what a table or figure shows of them. `schema_json` shows the typed structs to
//! editors.

mod artifact;
mod cell;
mod cells;
mod check;
mod defined;
mod definitions;
mod depth;
mod evaluate;
mod limits;
mod many;
mod name;
mod named;
mod need;
mod node;
mod overrides;
mod pattern;
mod profile;
mod schema;
mod schema_json;
mod search;
mod shards;
mod typed;
mod weights;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use artifact::{
    Description, FigureEntry, FigureKind, Lead, ListEntry, Over, RacesEntry, Shade, TableEntry, Tolerance,
};
pub use cell::{Calibration, Cell, Method, MethodAxis};
pub use defined::{Asking, DefinedColumn, DefinitionUse, GroupUse, TaskDefinition, columns as defined_columns};
pub use definitions::{Backbone, Corpus, Rounded, TaskData, rules, tasks};
pub use evaluate::{Draw, Evaluate, Latency, Perplexity, TaskUse};
pub use name::give as give_names;
pub use named::{BackboneFile, backbone_files, names_around};
pub use need::{Around, EntryKind, Found, HubSource, Need};
pub use schema_json::json_schema;
pub use search::{Budget, Search, Unselectable};
pub use shards::Stream;
pub use weights::CalibratedOn;

use crate::criterion::Criterion;
use crate::criterion::Depth;
use crate::error::{Error, Result};
use crate::recovery::Recovery;

/// Which of a grid's evaluations are wanted.
pub struct AxisChoice<'a> {
    /// Whether perplexity on this corpus is.
    pub text: &'a dyn Fn(&str) -> bool,
    /// Whether this task is.
    pub task: &'a dyn Fn(&str) -> bool,
    /// Whether latencies are.
    pub latency: bool,
}

impl AxisChoice<'_> {
    /// All of them.
    const ALL: Self = AxisChoice { text: &|_| true, task: &|_| true, latency: true };
}

/// A checked grid. Everything it names exists, and every cell it expands to can be tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// The results' folder is called so: the key `name`, or the file's name without its ending.
    pub name: String,
    /// The file it was read from.
    #[serde(serialize_with = "crate::files::shown::path")]
    pub file: PathBuf,
    /// The files of named entries that were read besides.
    #[serde(serialize_with = "crate::files::shown::paths")]
    pub entries: Vec<PathBuf>,
    /// The profile that was laid upon it.
    pub profile: Option<String>,
    /// Where its files of the hub are pinned, or would be.
    #[serde(skip)]
    pub lock_file: PathBuf,
    /// The backbones of the cells, by name. A definition that no cell uses is neither kept nor looked for on disk.
    pub backbones: BTreeMap<String, Backbone>,
    /// The corpora of calibration and evaluation, by name; unused ones are left out likewise.
    pub corpora: BTreeMap<String, Corpus>,
    /// The data of the tasks that are scored, by name; unused ones are left out likewise.
    pub tasks: BTreeMap<String, TaskData>,
    /// The definitions of the tasks that are scored by them, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub definitions: BTreeMap<String, TaskDefinition>,
    /// This and the four below: the different values over all cells, in the order in which they first appear.
    pub backbone: Vec<String>,
    pub criterion: Vec<Method<dyn Criterion>>,
    pub depth: Vec<Depth>,
    pub recovery: Vec<Method<dyn Recovery>>,
    pub calibration: Vec<Calibration>,
    pub evaluate: Evaluate,
    /// How its cells are raced, where the file says `search` instead of `evaluate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
    /// All variants, grouped by backbone: the dense one; the product of the axes without excluded cells, ordered by
    /// criterion, depth, recovery, calibration, each in file order; then included cells. No cell occurs twice.
    pub cells: Vec<Cell>,
}

/// Expected contents of a grid file.
const SHAPE: yaml::FileShape<'_> = yaml::FileShape {
    what: "the grid",
    expected: "a map with axes and the named inputs",
    hint: "docs/grid.md begins with a complete example",
};

impl Grid {
    /// Reads the grid file at `path`, lays the profile upon it, applies the `--set` arguments (each `key=value`) in order,
    /// and checks everything. Without `profile` it is the one that the file's key `profile` names, if any.
    ///
    /// Paths in a file are relative to the file's folder, paths in `overrides` to the current folder.
    ///
    /// # Errors
    /// The error names file, line and column, and what was expected and found.
    pub fn load(path: &Path, profile: Option<&str>, overrides: &[String]) -> Result<Grid> {
        Self::load_shown(path, profile, overrides, &AxisChoice::ALL)
    }

    /// Loads a grid with only the shown evaluations. The data of others need not exist.
    ///
    /// # Errors
    /// As [`Grid::load`].
    pub fn load_shown(
        path: &Path,
        profile: Option<&str>,
        overrides: &[String],
        shown: &AxisChoice<'_>,
    ) -> Result<Grid> {
        Self::laid(Layers::read(path, profile, overrides)?, path, shown)
    }

    /// Loads a grid from a text; names and paths resolve as for a file at `path`.
    ///
    /// # Errors
    /// As [`Grid::load`].
    pub fn of_text(text: &str, path: &Path) -> Result<Grid> {
        Self::laid(Layers::of(yaml::parse_map(text, path, &SHAPE)?, path, None, &[])?, path, &AxisChoice::ALL)
    }

    fn laid(layers: Layers, path: &Path, shown: &AxisChoice<'_>) -> Result<Grid> {
        let Layers { root, library, entries, profile } = layers;
        let mut checked = check::check(&schema(&root)?, &root, path, &library)?;
        let around = Around::new(library.lock_file(), path, profile.as_deref());
        let needs = checked.needs(shown);
        let absent = |error: Error| definitions::with_others(error, &needs, &around);
        let mut includes: Vec<_> = checked.includes.iter().map(|include| include.within(&checked.axes)).collect();
        let definitions::Definitions { backbones, mut corpora, mut tasks } = checked.definitions;
        let mut backbones = definitions::found_backbones(backbones, &around).map_err(absent)?;
        for axes in [&mut checked.axes].into_iter().chain(&mut includes) {
            axes.round(&checked.weights, &mut backbones)?;
        }
        let cells = cells::cells(&checked.axes, &includes, &checked.excludes, &backbones)?;
        let cells = match &mut checked.search {
            Some(search) => cells::without_impossible(cells, &backbones, search)?,
            None => match cells::impossible(&cells, &backbones).into_iter().next() {
                Some(first) => return Err(first.into_error()),
                None => cells,
            },
        };

        // The used inputs are known now; others may be missing.
        let mut cells: Vec<Cell> = cells.into_iter().map(|cell| cell.value).collect();
        name::give(&mut cells);
        let mut evaluate = checked.evaluate;
        let mut meant = checked.meant;
        meant.tasks.retain(|name, _| (shown.task)(name));
        evaluate.definitions.retain(|definition| (shown.task)(&definition.name));
        evaluate.groups.retain(|group| group.group.tasks.iter().all(|task| meant.tasks.contains_key(task)));
        evaluate.perplexity.retain(|text| (shown.text)(&text.corpus));
        evaluate.tasks.retain(|task| (shown.task)(&task.name));
        evaluate.latency.retain(|_| shown.latency);
        let backbone = limits::distinct(cells.iter().map(|cell| &cell.backbone));
        let calibration = limits::distinct(cells.iter().filter_map(|cell| cell.calibration.as_ref()));
        let texts = evaluate.perplexity.iter().map(|text| &text.corpus);
        let texts: BTreeSet<&String> = calibration.iter().map(|entry| &entry.corpus).chain(texts).collect();
        backbones.retain(|name, _| backbone.contains(name));
        corpora.retain(|name, _| texts.contains(name));
        tasks.retain(|name, _| evaluate.tasks.iter().any(|task| task.name == *name));
        Ok(Grid {
            name: checked.name,
            file: path.to_owned(),
            entries,
            profile: profile.clone(),
            lock_file: around.lock_file().to_owned(),
            backbones,
            corpora: definitions::found_corpora(corpora, &around).map_err(absent)?,
            tasks: definitions::found_tasks(tasks, &around).map_err(absent)?,
            definitions: meant.found(&around).map_err(absent)?,
            backbone,
            criterion: limits::distinct(cells.iter().filter_map(|cell| cell.criterion.as_ref())),
            depth: limits::distinct(cells.iter().filter(|cell| !cell.is_dense()).map(|cell| &cell.depth)),
            recovery: limits::distinct(cells.iter().filter_map(|cell| cell.recovery.as_ref())),
            calibration,
            evaluate,
            search: checked.search,
            cells,
        })
    }

    /// Returns what the grid names: backbones, and the shown corpora and tasks. Nothing needs to exist, and no cell is
    /// made, so backbones without cells are included.
    ///
    /// # Errors
    /// As [`Grid::load`], but for what is only known when everything is there.
    pub fn needs(
        path: &Path,
        profile: Option<&str>,
        overrides: &[String],
        shown: &AxisChoice<'_>,
    ) -> Result<InputList> {
        Self::needed(Layers::read(path, profile, overrides)?, path, shown)
    }

    /// Returns how the grid of a text is raced, if it is. Nothing needs to exist.
    ///
    /// # Errors
    /// As [`Grid::load`], but for what is only known when everything is there.
    pub fn checked_search(text: &str, path: &Path) -> Result<Option<Search>> {
        let Layers { root, library, .. } = Layers::of(yaml::parse_map(text, path, &SHAPE)?, path, None, &[])?;
        Ok(check::check(&schema(&root)?, &root, path, &library)?.search)
    }

    /// Returns what the grid of a text names.
    ///
    /// # Errors
    /// As [`Grid::needs`].
    pub fn needs_of_text(text: &str, path: &Path) -> Result<InputList> {
        Self::needed(Layers::of(yaml::parse_map(text, path, &SHAPE)?, path, None, &[])?, path, &AxisChoice::ALL)
    }

    fn needed(layers: Layers, path: &Path, shown: &AxisChoice<'_>) -> Result<InputList> {
        let Layers { root, library, profile, .. } = layers;
        let checked = check::check(&schema(&root)?, &root, path, &library)?;
        let scored = checked.evaluate.perplexity.iter().any(|entry| (shown.text)(&entry.corpus))
            || checked.evaluate.tasks.iter().any(|task| (shown.task)(&task.name))
            || checked.evaluate.definitions.iter().any(|definition| (shown.task)(&definition.name));
        let needs = checked.needs(shown);
        Ok(InputList { needs, lock_file: library.lock_file(), grid: path.to_owned(), profile, scored })
    }

    /// Returns the profile names of the grid file at `path`.
    ///
    /// # Errors
    /// A file that is no grid.
    pub fn profiles(path: &Path) -> Result<Vec<String>> {
        Ok(profile::names_of(&yaml::read(path, &SHAPE)?))
    }

    /// Returns the grid with overrides, defaults and paths filled in, for the record of a run.
    ///
    /// # Errors
    /// Never for a loaded grid: all its parts have a JSON form.
    pub fn resolved(&self) -> Result<Value> {
        serde_json::to_value(self)
            .map_err(|error| Error::bad_input("the grid has no JSON form").found(error.to_string()))
    }

    /// Returns the grid with absolute paths, for [`Grid::thawed`] in any folder.
    ///
    /// # Errors
    /// A current folder that is gone.
    pub fn frozen(&self) -> Result<Value> {
        let mut grid = self.clone();
        absolute(&mut grid.file)?;
        grid.entries.iter_mut().try_for_each(absolute)?;
        grid.backbones.values_mut().try_for_each(|backbone| absolute(&mut backbone.path))?;
        grid.corpora.values_mut().try_for_each(|corpus| absolute(&mut corpus.path))?;
        grid.tasks.values_mut().try_for_each(|task| absolute(&mut task.path))?;
        let rows = grid.definitions.values_mut().flat_map(|definition| definition.rows.splits.values_mut()).flatten();
        rows.into_iter().try_for_each(absolute)?;
        grid.resolved()
    }

    /// Loads a frozen grid.
    ///
    /// # Errors
    /// A form that this program did not write, or a method that it does not know.
    pub fn thawed(frozen: &Value) -> Result<Self> {
        Self::deserialize(frozen)
            .map_err(|error| Error::bad_input("the frozen grid cannot be read").found(error.to_string()))
    }
}

fn absolute(path: &mut PathBuf) -> Result<()> {
    *path = std::path::absolute(&*path).map_err(|error| Error::io("find", path, &error))?;
    Ok(())
}

/// External inputs of a grid.
#[derive(Debug)]
pub struct InputList {
    pub needs: Vec<Need>,
    /// Where its files of the hub are pinned, or would be.
    pub lock_file: PathBuf,
    grid: PathBuf,
    pub profile: Option<String>,
    /// Whether anything of it is scored.
    pub scored: bool,
}

impl InputList {
    /// Returns the cache and the lock to search.
    pub fn around(&self) -> Around<'_> {
        Around::new(self.lock_file.clone(), &self.grid, self.profile.as_deref())
    }
}

fn schema(root: &node::YamlNode) -> Result<schema::Schema> {
    schema::Schema::deserialize(typed::FromNode::root(root)).map_err(typed::Fault::into_error)
}

/// The layers of a grid, laid upon each other.
struct Layers {
    root: node::YamlNode,
    library: named::Library,
    /// The files of named entries that were read.
    entries: Vec<PathBuf>,
    /// The profile's name.
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

        // The needed files are known only after profile and overrides, whose effect is known only after the files are
        // read.
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

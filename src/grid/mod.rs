//! Grid files: what one YAML file asks for, checked before anything runs, and the cells it stands for.
//!
//! The text becomes a tree in which every value knows its place (`source`, `node`). Four layers make it up, each laid upon
//! the one before: the files of named entries (`named`), the grid itself, a profile (`profile`), overrides (`overrides`).
//! Typed structs are read from the tree (`typed`, `schema`), their meaning is checked (`check`, `axes`, `depth`), and the
//! axes become cells (`expand`, `pattern`). `artifact` is what a table or figure shows of them. `schema_json` shows the
//! same structs to editors.

mod artifact;
mod axes;
mod cell;
mod check;
mod depth;
mod evaluate;
mod expand;
mod many;
mod method;
mod named;
mod node;
mod overrides;
mod pattern;
mod profile;
mod references;
mod schema;
mod schema_json;
mod source;
mod typed;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use artifact::{Description, FigureEntry, FigureKind, Lead, ListEntry, TableEntry, Tolerance};
pub use cell::{Calibration, Cell};
pub use evaluate::{Evaluate, Perplexity, TaskUse};
pub use method::Method;
pub use named::{BackboneFile, backbone_files};
pub use schema::{Corpus, TaskData};
pub use schema_json::json_schema;

use crate::error::{Error, Result};
use crate::options::{Described, Options};

/// What the grid has to ask other floors to be able to refuse a cell before anything runs.
pub trait Registry {
    /// The number of decoder layers of the backbone in a folder.
    ///
    /// # Errors
    /// When the folder holds no backbone that can be read.
    fn layers(&self, backbone_folder: &Path) -> Result<usize>;

    /// The criteria and their options.
    fn criteria(&self) -> Vec<Described>;

    /// The recoveries and their options.
    fn recoveries(&self) -> Vec<Described>;

    /// A criterion's options with every default filled in.
    ///
    /// # Errors
    /// An unknown criterion, unknown or wrong options, saying what is wrong; the grid adds the place.
    fn resolve_criterion(&self, name: &str, options: &Options) -> Result<Options>;

    /// A recovery's options with every default filled in.
    ///
    /// # Errors
    /// An unknown recovery, unknown or wrong options, saying what is wrong; the grid adds the place.
    fn resolve_recovery(&self, name: &str, options: &Options) -> Result<Options>;

    /// The names of the window rules.
    fn rules(&self) -> &[&str];

    /// The names of the multiple-choice tasks that can be scored.
    fn tasks(&self) -> Vec<&str>;

    /// Refuses a depth that a criterion cannot select on a backbone (its name in the grid) of `layers` layers, though it
    /// is below `layers`.
    ///
    /// # Errors
    /// Saying what is wrong; the grid adds the place.
    fn check_depth(&self, _criterion: &Method, _backbone: &str, _depth: usize, _layers: usize) -> Result<()> {
        Ok(())
    }
}

/// Which of a grid's evaluations are wanted.
pub struct Shown<'a> {
    /// Whether perplexity on this corpus is.
    pub text: &'a dyn Fn(&str) -> bool,
    /// Whether this task is.
    pub task: &'a dyn Fn(&str) -> bool,
}

/// A backbone that the grid uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Backbone {
    /// Its folder, absolute or relative to the current folder.
    #[serde(serialize_with = "crate::files::shown::path")]
    pub path: PathBuf,
    /// How many decoder layers it has.
    pub layers: usize,
}

/// A checked grid. Everything it names exists, and every cell it expands to can be tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// The backbones of the cells, by name. A definition that no cell uses is neither kept nor looked for on disk.
    pub backbones: BTreeMap<String, Backbone>,
    /// The corpora of calibration and evaluation, by name; unused ones are left out likewise.
    pub corpora: BTreeMap<String, Corpus>,
    /// The data of the tasks that are scored, by name; unused ones are left out likewise.
    pub tasks: BTreeMap<String, TaskData>,
    /// This and the four below: the different values over all cells, in the order in which they first appear.
    pub backbone: Vec<String>,
    pub criterion: Vec<Method>,
    pub depth: Vec<usize>,
    pub recovery: Vec<Method>,
    pub calibration: Vec<Calibration>,
    pub evaluate: Evaluate,
    /// All variants, those of a backbone one after the other: the dense one; of the product of the axes what is not
    /// excluded, criterion by criterion, in it depth by depth, then recovery, then calibration, each in the order of the
    /// file; what is included besides. No cell stands here twice.
    pub cells: Vec<Cell>,
}

/// What a grid file holds.
const SHAPE: source::FileShape<'_> = source::FileShape {
    what: "the grid",
    expected: "a map with axes, and what they name",
    hint: "docs/grid.md begins with a complete example",
};

impl Grid {
    /// Reads the grid file at `path`, lays the profile upon it, applies the `--set` arguments (each `key=value`) in order,
    /// and checks everything. Without `profile` it is the one that the file's key `profile` names, if any.
    ///
    /// Paths in a file are relative to the file's folder, paths in `overrides` to the current folder.
    ///
    /// # Errors
    /// Names file, line and column, what was expected and what was found.
    pub fn load(path: &Path, profile: Option<&str>, overrides: &[String], registry: &dyn Registry) -> Result<Grid> {
        let all = Shown { text: &|_| true, task: &|_| true };
        Self::load_shown(path, profile, overrides, registry, &all)
    }

    /// The same with no more evaluations than are shown. The data of the others need not be there.
    ///
    /// # Errors
    /// As [`Grid::load`].
    pub fn load_shown(
        path: &Path,
        profile: Option<&str>,
        overrides: &[String],
        registry: &dyn Registry,
        shown: &Shown<'_>,
    ) -> Result<Grid> {
        let mut root = source::read(path, &SHAPE)?;
        artifact::take(&mut root);
        let library = named::Library::around(path);
        let profile = profile::take(&mut root, profile, &library)?;

        // Which files are needed is known only after profile and overrides; what they change is, once the files are read.
        let mut preview = root.clone();
        if let Some(profile) = &profile {
            preview.merge(profile.changes.clone());
        }
        overrides::try_apply(&mut preview, overrides);
        let entries = library.load(&mut root, &preview)?;

        let name = profile.map(|profile| {
            root.merge(profile.changes);
            profile.name
        });
        overrides::apply(&mut root, overrides)?;
        let schema = schema::Schema::deserialize(typed::FromNode::root(&root)).map_err(typed::Fault::into_error)?;
        let source = check::Source { file: path.to_owned(), around: library, entries, profile: name };
        check::check(&schema, &root, &source, registry, shown)
    }

    /// The names of the profiles of the grid file at `path`; none where it has none.
    ///
    /// # Errors
    /// A file that is no grid.
    pub fn profiles(path: &Path) -> Result<Vec<String>> {
        Ok(profile::names_of(&source::read(path, &SHAPE)?))
    }

    /// The grid as it will run, with overrides, defaults and paths filled in, for the record of the run.
    ///
    /// # Errors
    /// Never for a loaded grid: all its parts have a JSON form.
    pub fn resolved(&self) -> Result<serde_json::Value> {
        serde_json::to_value(self)
            .map_err(|error| Error::bad_input("the grid has no JSON form").found(error.to_string()))
    }
}

//! Grid files: what one YAML file asks for, checked before anything runs, and the cells it stands for.
//!
//! The text becomes a tree in which every value knows its place (`node`), overrides change the tree (`overrides`), typed
//! structs are read from it (`typed`, `schema`), their meaning is checked (`check`), and the axes are expanded (`cell`).

mod cell;
mod check;
mod node;
mod overrides;
mod schema;
mod typed;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use cell::{Calibration, Cell};
pub use schema::{Corpus, Evaluate, Method, Perplexity, TaskData, TaskUse};

use crate::error::{Error, Result};

/// What the grid has to ask other floors to be able to refuse a cell before anything runs.
pub trait Registry {
    /// The number of decoder layers of the backbone in a folder.
    ///
    /// # Errors
    /// When the folder holds no backbone that can be read.
    fn layers(&self, backbone_folder: &Path) -> Result<usize>;

    /// Refuses an unknown criterion and unknown or wrong options.
    ///
    /// # Errors
    /// Saying what is wrong; the grid adds the place.
    fn check_criterion(&self, method: &Method) -> Result<()>;

    /// Refuses an unknown recovery and unknown or wrong options.
    ///
    /// # Errors
    /// Saying what is wrong; the grid adds the place.
    fn check_recovery(&self, method: &Method) -> Result<()>;

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

/// A backbone that the grid uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Backbone {
    /// Its folder, absolute or relative to the current folder.
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
    pub file: PathBuf,
    /// The backbones on the axis, by name. A definition that no axis uses is neither kept nor looked for on disk.
    pub backbones: BTreeMap<String, Backbone>,
    /// The corpora of calibration and evaluation, by name; unused ones are left out likewise.
    pub corpora: BTreeMap<String, Corpus>,
    /// The data of the tasks that are scored, by name; unused ones are left out likewise.
    pub tasks: BTreeMap<String, TaskData>,
    pub backbone: Vec<String>,
    pub criterion: Vec<Method>,
    pub depth: Vec<usize>,
    pub recovery: Vec<Method>,
    pub calibration: Vec<Calibration>,
    pub evaluate: Evaluate,
    /// All variants, each backbone's together, its dense one first.
    pub cells: Vec<Cell>,
}

impl Grid {
    /// Reads the grid file at `path`, applies the `--set` arguments (each `key=value`) in order, and checks everything.
    ///
    /// Paths in the file are relative to the file's folder, paths in `overrides` to the current folder.
    ///
    /// # Errors
    /// Names file, line and column, what was expected and what was found.
    pub fn load(path: &Path, overrides: &[String], registry: &dyn Registry) -> Result<Grid> {
        let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, &error))?;
        let file = path.display().to_string();
        let text = String::from_utf8(bytes).map_err(|error| not_utf8(&file, &error))?;
        let mut root = if is_blank(&text) { None } else { Some(node::parse(&text, &file)?) }
            .filter(|root| !matches!(root.value, node::Value::Null))
            .ok_or_else(|| {
                Error::bad_input("the grid is empty")
                    .at(file.as_str())
                    .expected("a map with backbones, corpora and axes")
                    .hint("tests/real/english.yaml is a complete example")
            })?;
        let source = check::Source { path, file: &file };
        if !matches!(root.value, node::Value::Map(_)) {
            return Err(Error::bad_input("the grid is not a map")
                .at(source.show(&root.place))
                .expected("a map with backbones, corpora and axes")
                .found(root.describe())
                .hint("each line at the left margin is `key: value`"));
        }
        overrides::apply(&mut root, overrides)?;
        let schema = schema::Schema::deserialize(typed::FromNode::root(&root))
            .map_err(|fault| fault.into_error(|place| source.show(place)))?;
        check::check(schema, &root, &source, registry)
    }

    /// The grid as it will run, with overrides, defaults and paths filled in, for the record of the run.
    ///
    /// # Errors
    /// Never for a loaded grid: all its parts have a JSON form, unless a path is not UTF-8.
    pub fn resolved(&self) -> Result<serde_json::Value> {
        serde_json::to_value(self)
            .map_err(|error| Error::bad_input("the grid has no JSON form").found(error.to_string()))
    }
}

/// Whether there is nothing but blank lines, comments and document marks.
fn is_blank(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line == "---"
    })
}

fn not_utf8(file: &str, error: &std::string::FromUtf8Error) -> Error {
    let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
    let line = 1 + good.iter().filter(|&&byte| byte == b'\n').count();
    Error::bad_input("the grid is not UTF-8 text")
        .at(format!("{file}:{line}"))
        .expected("UTF-8")
        .found(format!("the byte 0x{:02x}", error.as_bytes().get(good.len()).copied().unwrap_or_default()))
        .hint("save the file as UTF-8")
}

//! Whether what a grid uses is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::at::Placed;
use super::node::Place;
use super::registry::Registry;
use super::schema::{BackboneEntry, Corpus, TaskData};
use crate::error::{Error, Result};

/// A backbone that the grid uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Backbone {
    /// Its folder, absolute or relative to the current folder.
    #[serde(serialize_with = "crate::files::shown::path")]
    pub path: PathBuf,
    /// How many decoder layers it has.
    pub layers: usize,
}

/// The backbones, each with its number of layers. `grid` is the grid's file, for messages.
pub(super) fn backbones(
    defined: BTreeMap<String, Placed<BackboneEntry>>,
    grid: &Path,
    registry: &dyn Registry,
) -> Result<BTreeMap<String, Backbone>> {
    let found = |(name, Placed { value: BackboneEntry { path, source }, place })| {
        if !path.is_dir() {
            let absent = absent("the backbone's folder", "a folder", &path, &place, grid);
            return Err(match &source {
                Some(source) => absent.hint(format!("it can be had at {source}")),
                None => absent,
            });
        }
        let layers = registry.layers(&path).map_err(|error| error.at(place.to_string()))?;
        Ok((name, Backbone { path, layers }))
    };
    defined.into_iter().map(found).collect()
}

/// The corpora.
pub(super) fn corpora(defined: BTreeMap<String, Placed<Corpus>>, grid: &Path) -> Result<BTreeMap<String, Corpus>> {
    let found = |(name, Placed { value: corpus, place }): (String, Placed<Corpus>)| match corpus.path.is_file() {
        true => Ok((name, corpus)),
        false => Err(absent("the corpus", "a file", &corpus.path, &place, grid)),
    };
    defined.into_iter().map(found).collect()
}

/// The data of tasks.
pub(super) fn tasks(defined: BTreeMap<String, Placed<TaskData>>, grid: &Path) -> Result<BTreeMap<String, TaskData>> {
    let found = |(name, Placed { value: data, place }): (String, Placed<TaskData>)| match data.path.exists() {
        true => Ok((name, data)),
        false => Err(absent("the task's data", "a file or a folder", &data.path, &place, grid)),
    };
    defined.into_iter().map(found).collect()
}

fn absent(what: &str, kind: &str, path: &Path, place: &Place, grid: &Path) -> Error {
    let found = if path.exists() { "something else of that name" } else { "nothing" };
    Error::missing(format!("{what} is not there"))
        .at(place.to_string())
        .expected(format!("{kind} at {}", path.display()))
        .found(found)
        .hint(match place {
            Place::File { file, .. } if **file == *grid => "a path in a grid starts from the grid file's folder",
            Place::File { .. } => "a path in the file of an entry starts from that file's folder",
            Place::Set(_) => "a path in an override starts from the current folder",
        })
}

//! Values of a grid with their positions, and checks that reject excessive counts and products, unprintable names,
//! empty lists and duplicates.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::hash::Hash;

use super::yaml::PathStep::{self, Item, Key};
use super::yaml::{Positioned, YamlNode, YamlPosition};
use crate::error::{Error, Result};
use crate::quantity::MAX;

/// Maximum number of values on an axis, and of cells in a grid.
const MAX_CELLS: usize = 100_000;
const MAX_NAME_BYTES: usize = 200;

/// Path from the root of a grid's tree to a value that need not exist.
#[derive(Debug, Clone)]
pub(super) struct EntryPosition<'a> {
    root: &'a YamlNode,
    steps: Vec<PathStep<'a>>,
}

impl<'a> EntryPosition<'a> {
    pub(super) fn root(root: &'a YamlNode) -> Self {
        Self { root, steps: Vec::new() }
    }

    pub(super) fn key(&self, key: &'a str) -> Self {
        self.then(Key(key))
    }

    pub(super) fn item(&self, item: usize) -> Self {
        self.then(Item(item))
    }

    fn then(&self, step: PathStep<'a>) -> Self {
        Self { root: self.root, steps: [&self.steps[..], &[step]].concat() }
    }

    /// Returns the position of the value, or of the map that could contain it.
    pub(super) fn position(&self) -> YamlPosition {
        self.root.deepest(&self.steps).position.clone()
    }

    pub(super) fn with_position<T>(&self, value: T) -> Positioned<T> {
        Positioned { value, position: self.position() }
    }

    /// Creates an error that is reported at the value.
    pub(super) fn error(&self, message: impl Display) -> Error {
        Error::bad_input(message).at(self.position().to_string())
    }

    /// Formats the path, such as `evaluate.perplexity` or `include[0].depth`.
    pub(super) fn name(&self) -> String {
        let mut name = String::new();
        for step in &self.steps {
            match step {
                Key(key) if name.is_empty() => name.push_str(key),
                Key(key) => name.push_str(&format!(".{key}")),
                Item(item) => name.push_str(&format!("[{item}]")),
            }
        }
        name
    }
}

/// Rejects a count outside `min..=MAX`. `subject` names the count in error messages.
pub(super) fn check_count(min: usize, count: usize, subject: &str, position: &YamlPosition) -> Result<()> {
    if count > MAX {
        return Err(Error::bad_input(format!("{subject} is too large"))
            .at(position.to_string())
            .expected(format!("{MAX} or less"))
            .found(count.to_string()));
    }
    if count >= min {
        return Ok(());
    }
    let error = Error::bad_input(format!("{subject} is too small")).at(position.to_string());
    let error = error.expected(format!("{min} or more")).found(count.to_string());
    // Only lengths of sequences and windows have the minimum 2.
    Err(if min == 2 { error.hint("use 2 or more tokens: a single token has no context") } else { error })
}

/// Rejects lists if the product of their lengths is greater than [`MAX_CELLS`].
pub(super) fn check_cell_count(lengths: &[usize], position: &YamlPosition) -> Result<()> {
    if lengths.iter().copied().fold(1, usize::saturating_mul) <= MAX_CELLS {
        return Ok(());
    }
    let product: Vec<String> = lengths.iter().map(ToString::to_string).collect();
    Err(Error::bad_input("the grid has too many cells")
        .at(position.to_string())
        .expected(format!("at most {MAX_CELLS}"))
        .found(product.join(" × "))
        .hint("split the grid into several grids"))
}

/// Rejects a name that is not printable, or that contains `/`, which separates names.
pub(super) fn check_printable(kind: &str, name: &str, position: &YamlPosition) -> Result<()> {
    if is_printable(name) && !name.contains('/') {
        return Ok(());
    }
    let start: String = name.chars().take(40).collect();
    Err(Error::bad_input(format!("invalid {kind} name"))
        .at(position.to_string())
        .expected(format!("1 to {MAX_NAME_BYTES} bytes without `/` and control characters"))
        .found(format!("{} bytes: `{}`", name.len(), start.escape_debug()))
        .hint("choose a short name, and set the location in `path` or `hub`"))
}

/// Rejects a grid name that is not a plain directory name, so that results stay inside the results directory.
pub(super) fn check_folder_name(name: &str, position: &YamlPosition) -> Result<()> {
    if is_folder_name(name) {
        return Ok(());
    }
    Err(Error::bad_input("invalid grid name")
        .at(position.to_string())
        .expected(format!(
            "a folder name of at most {MAX_NAME_BYTES} bytes without `/`, `\\` or `:`, not starting with a dot"
        ))
        .found(format!("`{name}`"))
        .hint("rename the grid: its results are written to a folder of this name"))
}

/// Returns whether a name can be printed on a single line.
fn is_printable(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(char::is_control)
}

/// Returns whether a name is a valid directory name that does not start with a dot.
pub(super) fn is_folder_name(name: &str) -> bool {
    is_printable(name) && !name.starts_with('.') && name.trim() == name && !name.contains(['/', '\\', ':'])
}

/// Returns the values in a list with their positions. Rejects lists that are empty, are too long, or contain
/// duplicates.
pub(super) fn read_values<T: Display + Clone>(at: &EntryPosition<'_>, values: &[T]) -> Result<Vec<Positioned<T>>> {
    let values: Vec<Positioned<T>> =
        values.iter().enumerate().map(|(i, value)| at.item(i).with_position(value.clone())).collect();
    check_values(at, &values)?;
    Ok(values)
}

/// Returns counts with their positions. Rejects counts outside `min..=MAX` and lists that [`read_values`] rejects.
/// `subject` names the count in error messages.
pub(super) fn read_counts(
    at: &EntryPosition<'_>,
    counts: &[usize],
    min: usize,
    subject: &str,
) -> Result<Vec<Positioned<usize>>> {
    let counts = read_values(at, counts)?;
    counts.iter().try_for_each(|entry| check_count(min, entry.value, subject, &entry.position))?;
    Ok(counts)
}

/// Returns the values of a key, or a single `None` at the position of the map if the key is missing.
pub(super) fn optional_values<T>(
    at: &EntryPosition<'_>,
    values: Option<Vec<Positioned<T>>>,
) -> Vec<Positioned<Option<T>>> {
    match values {
        Some(values) => {
            values.into_iter().map(|value| Positioned { value: Some(value.value), position: value.position }).collect()
        }
        None => vec![at.with_position(None)],
    }
}

/// Rejects lists that are empty, are too long, or contain duplicates.
pub(super) fn check_values<T: Display>(at: &EntryPosition<'_>, values: &[Positioned<T>]) -> Result<()> {
    check_length(at, values)?;
    check_unique(&at.name(), values)
}

/// Rejects lists that are empty or too long.
pub(super) fn check_length<T>(at: &EntryPosition<'_>, values: &[T]) -> Result<()> {
    check_cell_count(&[values.len()], &at.position())?;
    if !values.is_empty() {
        return Ok(());
    }
    Err(at
        .error(format!("`{}` is empty", at.name()))
        .expected("at least one value")
        .found("an empty list")
        .hint("add a value"))
}

/// Rejects duplicate values in a list. Values are compared by their displayed text. `list` is the path of the list.
pub(super) fn check_unique<T: Display>(list: &str, values: &[Positioned<T>]) -> Result<()> {
    let mut seen: HashMap<String, &YamlPosition> = HashMap::new();
    for Positioned { value, position } in values {
        let shown = value.to_string();
        if let Some(first) = seen.get(&shown) {
            return Err(Error::bad_input(format!("duplicate value in `{list}`"))
                .at(position.to_string())
                .expected("each value once")
                .found(format!("`{shown}`, already given at {first}"))
                .hint("remove one of them"));
        }
        seen.insert(shown, position);
    }
    Ok(())
}

/// Returns all combinations of indices below the given lengths. The first index changes slowest.
pub(super) fn combinations(lengths: &[usize]) -> Vec<Vec<usize>> {
    lengths.iter().fold(vec![Vec::new()], |all, &length| {
        all.iter().flat_map(|chosen| (0..length).map(move |i| [&chosen[..], &[i]].concat())).collect()
    })
}

/// Returns the distinct values, in order of first appearance.
pub(super) fn distinct<'a, T: Clone + Eq + Hash + 'a>(values: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut seen = HashSet::new();
    values.filter(|value| seen.insert(*value)).cloned().collect()
}

//! What nobody can mean: counts and products that are too large, names that cannot be shown.

use super::node::YamlPosition;
use crate::error::{Error, Result};
use crate::quantity::MOST;

/// The most values on an axis, and cells of a grid.
const MOST_CELLS: usize = 100_000;
/// The most bytes of a name.
const MOST_NAME: usize = 200;

/// Refuses a count of `what` that is below `least`, or larger than anyone can mean.
pub(super) fn count(least: usize, found: usize, what: &str, place: &YamlPosition) -> Result<()> {
    if found > MOST {
        return Err(Error::bad_input(format!("{what} is too large"))
            .at(place.to_string())
            .expected(format!("{MOST} or less"))
            .found(found.to_string()));
    }
    if found >= least {
        return Ok(());
    }
    let error = Error::bad_input(format!("{what} is too small")).at(place.to_string());
    let error = error.expected(format!("{least} or more")).found(found.to_string());
    // A lone token has nothing before it that could predict it.
    Err(if least == 2 { error.hint("one token alone predicts nothing") } else { error })
}

/// Refuses lists of these lengths where they multiply out to more than can be planned.
pub(super) fn few_enough(lengths: &[usize], place: &YamlPosition) -> Result<()> {
    if lengths.iter().copied().fold(1, usize::saturating_mul) <= MOST_CELLS {
        return Ok(());
    }
    let product: Vec<String> = lengths.iter().map(ToString::to_string).collect();
    Err(Error::bad_input("the grid's lists multiply out to too many cells")
        .at(place.to_string())
        .expected(format!("at most {MOST_CELLS}"))
        .found(product.join(" × "))
        .hint("make several grids of it"))
}

/// Names stand in tables and on the terminal, where a `/` parts them.
pub(super) fn shown(what: &str, name: &str, place: &YamlPosition) -> Result<()> {
    if is_shown(name) && !name.contains('/') {
        return Ok(());
    }
    let start: String = name.chars().take(40).collect();
    Err(Error::bad_input(format!("the name of a {what} cannot be shown"))
        .at(place.to_string())
        .expected(format!("1 to {MOST_NAME} bytes without `/` and control characters"))
        .found(format!("{} bytes: `{}`", name.len(), start.escape_debug()))
        .hint("a name is only what the grid calls it: the model's own stands behind `path` or `hub`"))
}

/// The grid's name becomes a folder below the results, and must not lead out of them.
pub(super) fn plain(name: &str, place: &YamlPosition) -> Result<()> {
    if is_plain(name) {
        return Ok(());
    }
    Err(Error::bad_input("the grid's name cannot name a folder")
        .at(place.to_string())
        .expected(format!(
            "a plain name of at most {MOST_NAME} bytes without `/`, `\\` or `:`, not starting with a dot"
        ))
        .found(format!("`{name}`"))
        .hint("the results are written to a folder of this name"))
}

/// Whether a name can be printed in a line.
fn is_shown(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= MOST_NAME && !name.contains(char::is_control)
}

/// Whether a folder can be called so, wherever it is made.
pub(super) fn is_plain(name: &str) -> bool {
    is_shown(name) && !name.starts_with('.') && name.trim() == name && !name.contains(['/', '\\', ':'])
}

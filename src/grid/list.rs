//! The values of a list: none missing, none twice.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::hash::Hash;

use super::at::{At, Positioned};
use super::limits;
use super::node::YamlPosition;
use crate::error::{Error, Result};

/// Values with their places; at least one, and none twice.
pub(super) fn values<T: Display + Clone>(at: &At<'_>, values: &[T]) -> Result<Vec<Positioned<T>>> {
    let values: Vec<Positioned<T>> =
        values.iter().enumerate().map(|(i, value)| at.item(i).placed(value.clone())).collect();
    each_once(at, &values)?;
    Ok(values)
}

/// Counts of `what` with their places; none below `least`.
pub(super) fn counts(at: &At<'_>, counts: &[usize], least: usize, what: &str) -> Result<Vec<Positioned<usize>>> {
    let counts = values(at, counts)?;
    counts.iter().try_for_each(|of| limits::count(least, of.value, what, &of.place))?;
    Ok(counts)
}

/// Refuses a list without a value, with one twice, or with too many.
pub(super) fn each_once<T: Display>(at: &At<'_>, values: &[Positioned<T>]) -> Result<()> {
    neither_empty_nor_long(at, values)?;
    none_twice(&at.name(), values)
}

/// Refuses a list without a value, or with too many.
pub(super) fn neither_empty_nor_long<T>(at: &At<'_>, values: &[T]) -> Result<()> {
    limits::few_enough(&[values.len()], &at.place())?;
    if !values.is_empty() {
        return Ok(());
    }
    Err(at
        .bad(format!("the axis `{}` is empty", at.name()))
        .expected("at least one value")
        .found("an empty list")
        .hint("without a value on each axis there is no cell to run"))
}

/// Refuses a value that stands twice on an axis. Values that are shown alike are the same.
pub(super) fn none_twice<T: Display>(axis: &str, values: &[Positioned<T>]) -> Result<()> {
    let mut seen: HashMap<String, &YamlPosition> = HashMap::new();
    for Positioned { value, place } in values {
        let shown = value.to_string();
        if let Some(first) = seen.get(&shown) {
            return Err(Error::bad_input(format!("the axis `{axis}` has the same value twice"))
                .at(place.to_string())
                .expected("each value once")
                .found(format!("`{shown}`, which stands already at {first}"))
                .hint("remove one of the two"));
        }
        seen.insert(shown, place);
    }
    Ok(())
}

/// Every choice of one index below each length, the first changing slowest.
pub(super) fn combinations(lengths: &[usize]) -> Vec<Vec<usize>> {
    lengths.iter().fold(vec![Vec::new()], |all, &length| {
        all.iter().flat_map(|chosen| (0..length).map(move |i| [&chosen[..], &[i]].concat())).collect()
    })
}

/// Each value once, in the order of first appearance.
pub(super) fn distinct<'a, T: Clone + Eq + Hash + 'a>(values: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut seen = HashSet::new();
    values.filter(|value| seen.insert(*value)).cloned().collect()
}

//! Comparison and containment operators that behave as in Python. minijinja orders values of different types, whereas
//! Python raises an exception.
//!
//! [`super::rewrite`] passes both operands through filters. The first filter saves the left operand, and the second one
//! checks both operands.

use std::cell::RefCell;
use std::cmp::Ordering;

use minijinja::filters;
use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{Environment, Error, State, Value as Jinja};

use super::names::{CONTAINER, LEFT, RIGHT};
use super::sequences::get_by_path;
use crate::exchange::is_lazy;
use crate::refusal::unsupported_error;

/// Maximum number of saved operands. An operand remains saved if its comparison is short-circuited.
const MAX_SAVED_OPERANDS: usize = 1_000;

thread_local! {
    /// Id and left operand of each comparison whose right operand has not been evaluated yet.
    static OPERANDS: RefCell<Vec<(u32, Jinja)>> = const { RefCell::new(Vec::new()) };
}

/// Clears operands saved by earlier renderings.
pub(super) fn clear_operands() {
    OPERANDS.with_borrow_mut(Vec::clear);
}

pub(super) fn add_filters(environment: &mut Environment<'static>) {
    environment.add_filter(LEFT, |value: Jinja, comparison: u32| {
        OPERANDS.with_borrow_mut(|operands| {
            if operands.len() >= MAX_SAVED_OPERANDS {
                operands.remove(0);
            }
            operands.push((comparison, value.clone()));
        });
        to_comparable(value)
    });
    environment.add_filter(RIGHT, |value: Jinja, comparison: u32| {
        if let Some(left) = take_left_operand(comparison) {
            check_order(&left, &value)?;
        }
        Ok::<_, Error>(to_comparable(value))
    });
    environment.add_filter(CONTAINER, |value: Jinja, comparison: u32| {
        if let Some(left) = take_left_operand(comparison) {
            check_contains(&left, &value)?;
        }
        Ok::<_, Error>(value)
    });
    add_tests(environment);
    environment.add_filter("sort", |state: &State<'_, '_>, value: Jinja, kwargs: Kwargs| {
        let items = check_sortable(&value, &kwargs)?;
        filters::sort(state, items, kwargs)
    });
    environment.add_filter("min", |state: &State<'_, '_>, value: Jinja, kwargs: Kwargs| {
        let items = check_sortable(&value, &kwargs)?;
        filters::min(state, items, kwargs)
    });
    environment.add_filter("max", |state: &State<'_, '_>, value: Jinja, kwargs: Kwargs| {
        // If items are equal, Python returns the first one and minijinja the last one.
        let items = check_sortable(&value, &kwargs)?;
        filters::max(state, items.try_iter()?.collect::<Vec<_>>().into_iter().rev().collect(), kwargs)
    });
}

fn add_tests(environment: &mut Environment<'static>) {
    type OrderTest = fn(Ordering) -> bool;
    let tests: [(&[&'static str], OrderTest); 4] = [
        (&["lt", "lessthan", "<"], Ordering::is_lt),
        (&["le", "<="], Ordering::is_le),
        (&["gt", "greaterthan", ">"], Ordering::is_gt),
        (&["ge", ">="], Ordering::is_ge),
    ];
    for (names, accepts) in tests {
        for &name in names {
            environment.add_test(name, move |value: Jinja, other: Jinja| {
                check_order(&value, &other)?;
                Ok::<_, Error>(accepts(to_comparable(value).cmp(&to_comparable(other))))
            });
        }
    }
}

/// Removes and returns the left operand of a comparison. Also drops the operands that were saved after it.
fn take_left_operand(comparison: u32) -> Option<Jinja> {
    OPERANDS.with_borrow_mut(|operands| {
        let at = operands.iter().rposition(|(number, _)| *number == comparison)?;
        let (_, left) = operands.swap_remove(at);
        operands.truncate(at);
        Some(left)
    })
}

/// Converts a boolean to an integer, as Python does in comparisons.
fn to_comparable(value: Jinja) -> Jinja {
    if value.kind() == ValueKind::Bool { Jinja::from(i64::from(value.is_true())) } else { value }
}

fn is_number(value: &Jinja) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

fn is_nan(value: &Jinja) -> bool {
    value.kind() == ValueKind::Number && f64::try_from(value.clone()).is_ok_and(f64::is_nan)
}

fn is_tuple(value: &Jinja) -> bool {
    value.downcast_object_ref::<Tuple>().is_some()
}

/// Returns whether both values are lists or both are tuples.
fn are_sequences(left: &Jinja, right: &Jinja) -> bool {
    let are_lists = [left, right].into_iter().all(|value| value.kind() == ValueKind::Seq && !is_lazy(value));
    are_lists && is_tuple(left) == is_tuple(right)
}

fn unordered_error(left: &Jinja, right: &Jinja) -> Error {
    let [left, right] = [left.kind(), right.kind()];
    unsupported_error(format!("Python cannot order values of type {left} and {right}"))
}

/// Rejects a pair of values that Python cannot order, or that minijinja orders differently.
fn check_order(left: &Jinja, right: &Jinja) -> Result<(), Error> {
    if is_nan(left) || is_nan(right) {
        return Err(unsupported_error("a comparison with NaN is not supported"));
    }
    if is_number(left) && is_number(right) || left.as_str().is_some() && right.as_str().is_some() {
        return Ok(());
    }
    if !are_sequences(left, right) {
        return Err(unordered_error(left, right));
    }
    let mut pairs = left.try_iter()?.zip(right.try_iter()?);
    let Some((first, second)) = pairs.find(|(first, second)| first != second) else { return Ok(()) };
    // Within lists, minijinja orders booleans before all numbers.
    if first.kind() != second.kind() {
        return Err(unordered_error(&first, &second));
    }
    check_order(&first, &second)
}

/// Rejects containment tests that raise an exception in Python.
fn check_contains(item: &Jinja, container: &Jinja) -> Result<(), Error> {
    let is_unhashable = matches!(item.kind(), ValueKind::Seq | ValueKind::Map) && !is_tuple(item);
    match container.kind() {
        ValueKind::String if item.as_str().is_none() => {
            Err(unsupported_error(format!("`in` on a string requires a string, not a value of type {}", item.kind())))
        }
        ValueKind::Map if is_unhashable => Err(unsupported_error("a list or dict cannot be a key of a dict")),
        _ => Ok(()),
    }
}

fn sort_key(item: &Jinja, paths: &[&str]) -> Result<Jinja, Error> {
    match paths {
        [] => Ok(item.clone()),
        [path] => get_by_path(item.clone(), path),
        paths => {
            paths.iter().map(|path| get_by_path(item.clone(), path)).collect::<Result<Vec<_>, _>>().map(Jinja::from)
        }
    }
}

/// Returns the items to sort, unchanged.
///
/// # Errors
/// Fails if the sort keys of two adjacent items differ in type, or if Python cannot order them.
fn check_sortable(value: &Jinja, kwargs: &Kwargs) -> Result<Jinja, Error> {
    if value.is_undefined() {
        return Ok(value.clone());
    }
    let attribute: Option<String> = kwargs.get("attribute")?;
    let paths: Vec<&str> = attribute.as_deref().map_or(Vec::new(), |paths| paths.split(',').map(str::trim).collect());
    let items: Vec<Jinja> = value.try_iter()?.collect();
    let keys = items.iter().map(|item| sort_key(item, &paths)).collect::<Result<Vec<_>, Error>>()?;
    keys.windows(2).try_for_each(|pair| match pair[0].kind() == pair[1].kind() {
        true => check_order(&pair[0], &pair[1]),
        // Booleans and numbers are comparable in Python, but minijinja orders all booleans first.
        false => Err(unsupported_error("values of different types cannot be sorted")),
    })?;
    Ok(Jinja::from(items))
}

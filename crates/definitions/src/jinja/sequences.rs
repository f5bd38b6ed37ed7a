//! Jinja's sequence filters. Filters that are generators in Python return an iterator, which cannot be printed and has
//! no length.

use std::borrow::Cow;

use minijinja::filters;
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value as Jinja};

use super::names::SLICE;
use super::objects::{Lazy, Range};
use crate::exchange::{is_lazy, printed, text, unsupported_error};

pub(super) fn add_filters(environment: &mut Environment<'static>) {
    add_generators(environment);
    environment.add_filter("reverse", |value: Jinja| match value.as_str() {
        Some(text) => Ok(Jinja::from(text.chars().rev().collect::<String>())),
        None => filters::reverse(&value).and_then(|items| to_lazy(&items)),
    });
    environment.add_filter("items", |value: Jinja| match value.kind() {
        ValueKind::Map => {
            let pairs = value.try_iter()?.map(|key| {
                let item = value.get_item(&key)?;
                Ok(Jinja::from(Tuple::from([key, item])))
            });
            Ok(Lazy::new_value(pairs.collect::<Result<Vec<_>, Error>>()?))
        }
        ValueKind::Undefined => Ok(Lazy::new_value([])),
        kind => Err(unsupported_error(format!("`items` requires a dict, not a value of type {kind}"))),
    });
    environment.add_filter(SLICE, |value: Jinja, start: Jinja, stop: Jinja, step: Jinja| {
        slice_value(&value, &start, &stop, &step)
    });
    environment.add_filter("join", |items: Jinja, separator: Option<String>, kwargs: Kwargs| {
        let separator = separator.or(kwargs.get("d")?).unwrap_or_default();
        let attribute: Option<String> = kwargs.get("attribute")?;
        kwargs.assert_all_used()?;
        join(&items, &separator, attribute.as_deref())
    });
}

fn add_generators(environment: &mut Environment<'static>) {
    type Arguments = Rest<ValueOrKwargs>;
    type TestName<'a> = Option<Cow<'a, str>>;
    environment.add_filter("map", |state: &mut State<'_, '_>, value: Jinja, args: Arguments| {
        filters::map(state, value, args).map(Lazy::new_value)
    });
    environment.add_filter("select", |state: &mut State<'_, '_>, value: Jinja, test: TestName<'_>, args: Arguments| {
        filters::select(state, value, test, args).map(Lazy::new_value)
    });
    environment.add_filter("reject", |state: &mut State<'_, '_>, value: Jinja, test: TestName<'_>, args: Arguments| {
        filters::reject(state, value, test, args).map(Lazy::new_value)
    });
    environment.add_filter(
        "selectattr",
        |state: &mut State<'_, '_>, value: Jinja, name: Cow<'_, str>, test: TestName<'_>, args: Arguments| {
            filters::selectattr(state, value, name, test, args).map(Lazy::new_value)
        },
    );
    environment.add_filter(
        "rejectattr",
        |state: &mut State<'_, '_>, value: Jinja, name: Cow<'_, str>, test: TestName<'_>, args: Arguments| {
            filters::rejectattr(state, value, name, test, args).map(Lazy::new_value)
        },
    );
    environment.add_filter("unique", |state: &State<'_, '_>, value: Jinja, kwargs: Kwargs| {
        filters::unique(state, value, kwargs).and_then(|items| to_lazy(&items))
    });
    environment.add_filter("batch", |state: &State<'_, '_>, value: Jinja, count: usize, fill: Option<Jinja>| {
        filters::batch(state, value, count, fill).and_then(|items| to_lazy(&items))
    });
    environment.add_filter("slice", |state: &State<'_, '_>, value: Jinja, count: usize, fill: Option<Jinja>| {
        filters::slice(state, value, count, fill).and_then(|items| to_lazy(&items))
    });
}

fn to_lazy(value: &Jinja) -> Result<Jinja, Error> {
    Ok(Lazy::new_value(value.try_iter()?.collect::<Vec<_>>()))
}

fn join(items: &Jinja, separator: &str, attribute: Option<&str>) -> Result<String, Error> {
    let mut joined = Vec::new();
    for item in items.try_iter()? {
        let item = match attribute {
            Some(path) => get_by_path(item, path)?,
            None => item,
        };
        let item = text(&item)?;
        printed(item.len() + separator.len())?;
        joined.push(item);
    }
    Ok(joined.join(separator))
}

/// Looks up an attribute by a dotted path of names and indices, such as `a.0.b`.
pub(super) fn get_by_path(item: Jinja, path: &str) -> Result<Jinja, Error> {
    path.split('.').try_fold(item, |value, name| match name.parse::<usize>() {
        Ok(position) => value.get_item_by_index(position),
        Err(_) => value.get_item(&Jinja::from(name)),
    })
}

/// Returns `value[start:stop:step]`.
fn slice_value(value: &Jinja, start: &Jinja, stop: &Jinja, step: &Jinja) -> Result<Jinja, Error> {
    let [start, stop, step] = [parse_bound(start)?, parse_bound(stop)?, parse_bound(step)?];
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(unsupported_error("the step of a slice must not be 0"));
    }
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        let positions = slice_positions(chars.len(), start, stop, step);
        return Ok(positions.into_iter().map(|at| chars[at]).collect::<String>().into());
    }
    if let Some(range) = value.downcast_object_ref::<Range>() {
        let length = value.len().unwrap_or(0);
        let (start, stop) = slice_indices(length, start, stop, step);
        return range.sliced(start, stop, step);
    }
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    if value.kind() != ValueKind::Seq || is_lazy(value) {
        return Err(unsupported_error(format!("a value of type {} cannot be sliced", value.kind())));
    }
    let items: Vec<Jinja> = value.try_iter()?.collect();
    let items: Vec<Jinja> =
        slice_positions(items.len(), start, stop, step).into_iter().map(|at| items[at].clone()).collect();
    Ok(if value.downcast_object_ref::<Tuple>().is_some() { Tuple::from(items).into() } else { items.into() })
}

/// Converts a slice bound to an integer, or to `None` if it is omitted.
fn parse_bound(value: &Jinja) -> Result<Option<i64>, Error> {
    match value.kind() {
        ValueKind::None => Ok(None),
        ValueKind::Bool => Ok(Some(i64::from(value.is_true()))),
        ValueKind::Number if value.is_integer() => {
            // A bound outside `i64` exceeds the length of any sequence.
            Ok(Some(value.as_i64().unwrap_or(if f64::try_from(value.clone())? < 0.0 { i64::MIN } else { i64::MAX })))
        }
        kind => Err(unsupported_error(format!("a slice requires whole numbers, not a value of type {kind}"))),
    }
}

/// Returns the first position and the exclusive end of a slice, like Python's `slice.indices`.
fn slice_indices(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> (i64, i64) {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let (lower, upper) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let (first, end) = if step > 0 { (lower, upper) } else { (upper, lower) };
    let [start, stop] = [(start, first), (stop, end)].map(|(bound, default)| match bound {
        Some(bound) if bound < 0 => bound.saturating_add(length).clamp(lower, upper),
        Some(bound) => bound.clamp(lower, upper),
        None => default,
    });
    (start, stop)
}

/// Lists the positions that a slice selects.
fn slice_positions(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Vec<usize> {
    let (mut at, stop) = slice_indices(length, start, stop, step);
    let mut found = Vec::new();
    while if step > 0 { at < stop } else { at > stop } {
        found.extend(usize::try_from(at));
        at = at.saturating_add(step);
    }
    found
}

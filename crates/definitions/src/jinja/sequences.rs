//! Jinja's filters of sequences. Those that are generators in Python give an iterator, which has no text and no length.

use std::borrow::Cow;

use minijinja::filters;
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value as Jinja};

use super::objects::Lazy;
use crate::exchange::{printed, refused, text};

pub(super) fn add_filters(environment: &mut Environment<'static>) {
    add_generators(environment);
    environment.add_filter("reverse", |value: Jinja| match value.as_str() {
        Some(text) => Ok(Jinja::from(text.chars().rev().collect::<String>())),
        None => filters::reverse(&value).and_then(|items| lazy(&items)),
    });
    environment.add_filter("items", |value: Jinja| match value.kind() {
        ValueKind::Map => {
            let pairs = value.try_iter()?.map(|key| {
                let item = value.get_item(&key)?;
                Ok(Jinja::from(Tuple::from([key, item])))
            });
            Ok(Lazy::value(pairs.collect::<Result<Vec<_>, Error>>()?))
        }
        ValueKind::Undefined => Ok(Lazy::value([])),
        kind => Err(refused(format!("`items` takes a dict, and this is a value of type {kind}"))),
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
    type Name<'a> = Option<Cow<'a, str>>;
    environment.add_filter("map", |state: &mut State<'_, '_>, value: Jinja, args: Arguments| {
        filters::map(state, value, args).map(Lazy::value)
    });
    environment.add_filter("select", |state: &mut State<'_, '_>, value: Jinja, test: Name<'_>, args: Arguments| {
        filters::select(state, value, test, args).map(Lazy::value)
    });
    environment.add_filter("reject", |state: &mut State<'_, '_>, value: Jinja, test: Name<'_>, args: Arguments| {
        filters::reject(state, value, test, args).map(Lazy::value)
    });
    environment.add_filter(
        "selectattr",
        |state: &mut State<'_, '_>, value: Jinja, name: Cow<'_, str>, test: Name<'_>, args: Arguments| {
            filters::selectattr(state, value, name, test, args).map(Lazy::value)
        },
    );
    environment.add_filter(
        "rejectattr",
        |state: &mut State<'_, '_>, value: Jinja, name: Cow<'_, str>, test: Name<'_>, args: Arguments| {
            filters::rejectattr(state, value, name, test, args).map(Lazy::value)
        },
    );
    environment.add_filter("unique", |state: &State<'_, '_>, value: Jinja, kwargs: Kwargs| {
        filters::unique(state, value, kwargs).and_then(|items| lazy(&items))
    });
    environment.add_filter("batch", |state: &State<'_, '_>, value: Jinja, count: usize, fill: Option<Jinja>| {
        filters::batch(state, value, count, fill).and_then(|items| lazy(&items))
    });
    environment.add_filter("slice", |state: &State<'_, '_>, value: Jinja, count: usize, fill: Option<Jinja>| {
        filters::slice(state, value, count, fill).and_then(|items| lazy(&items))
    });
}

fn lazy(value: &Jinja) -> Result<Jinja, Error> {
    Ok(Lazy::value(value.try_iter()?.collect::<Vec<_>>()))
}

fn join(items: &Jinja, separator: &str, attribute: Option<&str>) -> Result<String, Error> {
    let mut joined = Vec::new();
    for item in items.try_iter()? {
        let item = match attribute {
            Some(path) => path.split('.').try_fold(item, |value, name| match name.parse::<usize>() {
                Ok(position) => value.get_item_by_index(position),
                Err(_) => value.get_item(&Jinja::from(name)),
            })?,
            None => item,
        };
        let item = text(&item)?;
        printed(item.len() + separator.len())?;
        joined.push(item);
    }
    Ok(joined.join(separator))
}

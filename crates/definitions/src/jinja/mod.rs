//! Jinja filters, tests and globals that minijinja lacks or implements differently. The implementations here match
//! Python's Jinja.

mod checks;
mod format;
pub(crate) mod names;
mod numbers;
pub(crate) mod objects;
mod ordering;
pub(crate) mod rewrite;
mod sequences;
mod texts;

use minijinja::value::{Kwargs, Rest};
use minijinja::{Environment, Error, State, Value as Jinja};

use crate::exchange::{self, unsupported_error};
use objects::{Cycler, Joiner, Range};

pub(crate) use format::str_format;
pub(crate) use numbers::parse_float;

/// Filters to remove from minijinja, because Jinja lacks them or defines them differently.
const FOREIGN_FILTERS: [&str; 7] = ["bool", "chain", "groupby", "lines", "pprint", "split", "zip"];
/// Tests to remove from minijinja, because Jinja lacks them.
const FOREIGN_TESTS: [&str; 3] = ["endingwith", "safe", "startingwith"];

/// Resets the byte count and the saved operands at the start of a rendering.
pub(crate) fn reset_render_state() {
    exchange::reset_byte_count();
    ordering::clear_operands();
}

/// Adds the filters, tests and globals for task templates and chat templates.
pub(crate) fn extend(environment: &mut Environment<'static>) {
    FOREIGN_FILTERS.iter().for_each(|name| environment.remove_filter(name));
    FOREIGN_TESTS.iter().for_each(|name| environment.remove_test(name));
    environment.remove_global("debug");
    add_number_filters(environment);
    texts::add_filters(environment);
    sequences::add_filters(environment);
    checks::add_tests(environment);
    ordering::add_filters(environment);
    objects::add_method_check(environment);
    add_default(environment);
    environment.add_filter(names::PERCENT, |format: String, values: Jinja| format::format_percent(&format, &values));
    environment.add_filter("format", |format: String, values: Rest<Jinja>| {
        format::format_percent(&format, &Jinja::from(minijinja::value::Tuple::from(values.0)))
    });
    add_globals(environment);
}

fn add_default(environment: &mut Environment<'static>) {
    for name in ["default", "d"] {
        environment.add_filter(name, |value: Jinja, default: Option<Jinja>, lax: Option<Jinja>, kwargs: Kwargs| {
            let default = default.or(kwargs.get("default_value")?).unwrap_or_else(|| Jinja::from(""));
            let lax = lax.or(kwargs.get("boolean")?).is_some_and(|lax| lax.is_true());
            kwargs.assert_all_used()?;
            Ok::<_, Error>(if value.is_undefined() || lax && !value.is_true() { default } else { value })
        });
    }
}

fn add_number_filters(environment: &mut Environment<'static>) {
    environment.add_filter("int", |value: Jinja, default: Option<Jinja>, base: Option<u32>, kwargs: Kwargs| {
        numbers::int(&value, default, base, &kwargs)
    });
    environment.add_filter("float", |value: Jinja, default: Option<Jinja>, kwargs: Kwargs| {
        numbers::float(&value, default, &kwargs)
    });
    environment.add_filter("round", |value: Jinja, precision: Option<i32>, method: Option<String>, kwargs: Kwargs| {
        numbers::round(&value, precision, method, &kwargs)
    });
    environment
        .add_filter("filesizeformat", |value: Jinja, binary: Option<bool>| numbers::filesizeformat(&value, binary));
}

fn add_globals(environment: &mut Environment<'static>) {
    environment
        .add_function("range", |first: i64, stop: Option<i64>, step: Option<i64>| Range::new_value(first, stop, step));
    environment.add_function("joiner", |separator: Option<String>| Joiner::new_value(separator));
    environment.add_function("cycler", |items: Rest<Jinja>| Cycler::new_value(items.0));
    environment.add_function("lipsum", |_: &State<'_, '_>, _: Rest<Jinja>| {
        Err::<Jinja, Error>(unsupported_error("`lipsum` is not supported, because it generates random text"))
    });
}

//! Jinja tests (`is …`) that minijinja implements differently from Python.

use minijinja::value::ValueKind;
use minijinja::{Environment, Value as Jinja};

use crate::exchange::text;
use crate::method::{is_lower, is_upper};

pub(super) fn add_tests(environment: &mut Environment<'static>) {
    environment.add_test("upper", |value: Jinja| text(&value).map(|text| is_upper(&text)));
    environment.add_test("lower", |value: Jinja| text(&value).map(|text| is_lower(&text)));
    // Like Python's `isinstance(value, int)`, this includes booleans. The `number` test of minijinja excludes them.
    environment.add_test("number", |value: Jinja| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("sequence", |value: Jinja| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
            || value.kind() == ValueKind::Iterable && value.len().is_some()
    });
    environment.add_test("callable", |value: Jinja| value.kind() == ValueKind::Plain);
}

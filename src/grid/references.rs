//! Where the schema of a grid points to what only the registry knows, and counts that may be lists.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::cell::{CUT_AXES, DEPTH};
use super::many::one_or_list;

/// Each axis of a cut asks for the other three; where the budget of a search has `layers`, depths may be left out.
pub(super) fn all_or_none() -> Map<String, Value> {
    let layers = json!({"required": ["search"], "properties": {
        "search": {"required": ["budget"], "properties": {"budget": {"required": ["layers"]}}},
    }});
    let others = |key: &str| -> Value {
        let mut others: Vec<&str> = CUT_AXES.into_iter().filter(|other| *other != key).collect();
        if !others.contains(&DEPTH) {
            return others.into();
        }
        others.retain(|other| *other != DEPTH);
        json!({"required": others, "anyOf": [{"required": [DEPTH]}, layers]})
    };
    CUT_AXES.into_iter().map(|key| (key.to_owned(), others(key))).collect()
}

/// A definition that `schema_json` adds, by its name there.
fn to(name: &str) -> Schema {
    json_schema!({"$ref": format!("#/definitions/{name}")})
}

pub(super) fn rule(_: &mut SchemaGenerator) -> Schema {
    to("WindowRule")
}

pub(super) fn task(_: &mut SchemaGenerator) -> Schema {
    to("Task")
}

/// A task in use has the name of its definition, which need not be that of the task.
pub(super) fn task_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "description": "A name in `tasks`, or of a file `tasks/NAME.yaml`."})
}

pub(super) fn criteria(_: &mut SchemaGenerator) -> Schema {
    one_or_list(&to("Criterion"), 1)
}

pub(super) fn recoveries(_: &mut SchemaGenerator) -> Schema {
    one_or_list(&to("Recovery"), 1)
}

pub(super) fn profiles(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "additionalProperties": {"$ref": "#/definitions/Profile"}, "minProperties": 1})
}

/// From 1: sequences.
pub(super) fn counts(_: &mut SchemaGenerator) -> Schema {
    one_or_list(&json_schema!({"type": "integer", "minimum": 1}), 1)
}

/// From 2: one token alone predicts nothing.
pub(super) fn lengths(_: &mut SchemaGenerator) -> Schema {
    one_or_list(&json_schema!({"type": "integer", "minimum": 2}), 1)
}

pub(super) fn names(_: &mut SchemaGenerator) -> Schema {
    one_or_list(&json_schema!({"type": "string"}), 1)
}

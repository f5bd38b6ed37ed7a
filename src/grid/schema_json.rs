//! JSON schema for grid files, which enables editors to complete keys and mark errors.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::cell::MethodAxis;
use super::definitions;
use super::entry_kind::EntryKind;

use super::profile::GRID_ONLY_KEYS;
use super::schema::Schema;
use crate::criterion::Criterion;
use crate::metric;
use crate::options::MethodDescription;
use crate::recovery::Recovery;

/// Generates a schema in draft 7, which YAML language servers support. The keys come from the structs that are
/// deserialized. The names and options of methods come from the registries.
pub fn json_schema() -> Value {
    let mut schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<Schema>().to_value();
    for kind in EntryKind::ALL {
        // Entries in a grid may omit keys that are defined in the file of the entry.
        let definitions = schema["definitions"].clone();
        make_keys_optional(&mut schema["properties"][kind.key()], &definitions);
    }
    let profile = build_profile_schema(&schema);
    schema["title"] = json!("ghostlab grid");
    let known = json!({
        "Criterion": build_methods_schema(
            &<dyn Criterion>::descriptions(),
            "Criterion that selects the layers to remove.",
        ),
        "Recovery": build_methods_schema(&<dyn Recovery>::descriptions(), "Recovery applied at the cut."),
        "WindowRule": build_names_schema(&definitions::rule_names(), "Rule for joining rows and drawing windows."),
        "Task": build_names_schema(&definitions::task_names(), "Multiple-choice task."),
        "Metric": build_names_schema(
            &metric::names_of_opt_in_metrics().collect::<Vec<_>>(),
            "Metric without a column by default.",
        ),
        "Profile": profile,
    });
    if let (Some(definitions), Value::Object(more)) = (schema["definitions"].as_object_mut(), known) {
        definitions.extend(more);
    }
    remove_rust_details(&mut schema);
    schema
}

fn build_names_schema(names: &[&str], description: &str) -> Value {
    json!({"description": description, "type": "string", "enum": names})
}

/// Builds the schema for a criterion or recovery, which is a name or a map with options. Each option accepts a value or
/// a list.
fn build_methods_schema(methods: &[MethodDescription], description: &str) -> Value {
    let names: Vec<Value> = methods
        .iter()
        .map(|method| json!({"const": method.name, "description": method.options["description"]}))
        .collect();
    let forms: Vec<Value> = [json!({"oneOf": names})]
        .into_iter()
        .chain(methods.iter().map(|method| {
            let mut properties = Map::from_iter([("name".to_owned(), json!({"const": method.name}))]);
            let options = method.options["properties"].as_object().cloned().unwrap_or_default();
            properties.extend(options.into_iter().map(|(key, option)| (key, option_or_list(option))));
            json!({
                "description": method.options["description"],
                "type": "object",
                "properties": properties,
                "required": ["name"],
                "additionalProperties": false,
            })
        }))
        .collect();
    json!({"description": description, "anyOf": forms})
}

/// Extends the schema of an option so that it also accepts a list, which makes the option an axis.
fn option_or_list(mut option: Value) -> Value {
    let mut outer = Map::new();
    if let Some(schema) = option.as_object_mut() {
        for key in ["description", "default"] {
            outer.extend(schema.remove(key).filter(|value| !value.is_null()).map(|value| (key.to_owned(), value)));
        }
        // In Rust, null represents an omitted option. In a grid file, it is not a valid value.
        for key in ["type", "enum"] {
            if let Some(values) = schema.get_mut(key).and_then(Value::as_array_mut) {
                values.retain(|value| !value.is_null() && value != "null");
            }
        }
    }
    let list = json!({"type": "array", "items": option, "minItems": 1});
    outer.insert("anyOf".to_owned(), json!([option, list]));
    outer.into()
}

/// Derives the schema of a profile from the schema of the grid. Maps may omit keys, because they are merged into the
/// grid. Lists must be complete, because they replace the lists in the grid.
fn build_profile_schema(grid: &Value) -> Value {
    let mut profile = json!({"description": "Changes to the grid.", "type": "object", "additionalProperties": false});
    let mut properties = grid["properties"].clone();
    if let Some(keys) = properties.as_object_mut() {
        keys.retain(|key, _| !GRID_ONLY_KEYS.contains(&key.as_str()));
        keys.values_mut().for_each(|key| make_keys_optional(key, &grid["definitions"]));
    }
    profile["properties"] = properties;
    profile
}

/// Makes all keys of a map and of its inner maps optional. Maps that are merged into others may omit keys.
fn make_keys_optional(schema: &mut Value, definitions: &Value) {
    let reference = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/definitions/"));
    if let Some(definition) = reference.and_then(|name| definitions.get(name)) {
        *schema = definition.clone();
    }
    let Some(keys) = schema.as_object_mut() else { return };
    keys.remove("required");
    for (key, value) in keys.iter_mut() {
        let inner: Vec<&mut Value> = match key.as_str() {
            "properties" => value.as_object_mut().into_iter().flat_map(Map::values_mut).collect(),
            "anyOf" | "allOf" => value.as_array_mut().into_iter().flatten().collect(),
            "additionalProperties" => vec![value],
            _ => Vec::new(),
        };
        inner.into_iter().for_each(|inner| make_keys_optional(inner, definitions));
    }
}

/// Removes the digits added by widening an `f32`: returns `0.0001` for `0.00009999999747378752`. Returns values that
/// are not exact in `f32` unchanged.
#[allow(clippy::cast_possible_truncation, reason = "the comparison detects lost digits")]
fn shortest_f32(value: f64) -> f64 {
    let narrow = value as f32;
    if f64::from(narrow) == value { narrow.to_string().parse().unwrap_or(value) } else { value }
}

/// Removes Rust-specific details such as the format `uint32`.
fn remove_rust_details(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            if keys.get("format").is_some_and(Value::is_string) {
                keys.remove("format");
            }
            match keys.get("default") {
                // Null means that the option has no default.
                Some(Value::Null) => drop(keys.remove("default")),
                Some(Value::Object(default)) if default.is_empty() => drop(keys.remove("default")),
                Some(Value::Number(number)) if number.is_f64() => {
                    let shortest = number.as_f64().map(shortest_f32);
                    keys.insert("default".to_owned(), json!(shortest));
                }
                _ => {}
            }
            keys.values_mut().for_each(remove_rust_details);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_rust_details),
        _ => {}
    }
}

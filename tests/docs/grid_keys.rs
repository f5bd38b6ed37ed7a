//! Generates docs/grid-keys.md from the JSON schema of grid files (`just docs`), and checks that it is up to date.
#![allow(clippy::panic, reason = "a test panics on a schema that it does not support")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use ghostlab::grid::json_schema;
use serde_json::Value;

use super::heading_anchor;

const BEGIN: &str = "<!-- Made by `just docs` from the JSON schema of grids. -->\n";
const END: &str = "<!-- Until here. -->\n";

/// Tables, as pairs of the heading and the definition in the schema. A further table lists the top-level keys.
const TABLES: [(&str, &str); 12] = [
    ("`backbones.NAME`", "BackboneEntry"),
    ("`corpora.NAME`", "Corpus"),
    ("`tasks.NAME`", "TaskData"),
    ("`weights`", "WeightsMap"),
    ("`calibration`", "CalibrationEntry"),
    ("`evaluate`", "EvaluateEntry"),
    ("`evaluate.perplexity`", "PerplexityEntry"),
    ("`evaluate.tasks`", "TaskUseMap"),
    ("`evaluate.latency`", "LatencyEntry"),
    ("`search`", "SearchEntry"),
    ("`search.budget`", "BudgetEntry"),
    ("`search.prompt`", "PromptEntry"),
];

/// Definitions without a table. The keys of the first four are listed in tables of other definitions. docs/artifact.md
/// describes the others.
const OMITTED: [&str; 11] = [
    "Profile",
    "IncludeEntry",
    "PatternEntry",
    "CalibrationPattern",
    "Description",
    "FigureEntry",
    "PrintEntry",
    "RacesEntry",
    "RowEntry",
    "TableEntry",
    "Tolerance",
];

/// Definitions documented on other pages, each with the link to show.
const LINKS: [(&str, &str); 4] = [
    ("Description", "[map](artifact.md)"),
    ("Criterion", "[criterion](methods.md#criteria)"),
    ("Recovery", "[recovery](methods.md#recoveries)"),
    ("Task", "[task](methods.md#tasks)"),
];

/// Values that a key accepts.
struct KeyType {
    /// Text of the column `type`.
    shown: String,
    /// Whether the key also accepts a list of such values.
    accepts_list: bool,
}

impl KeyType {
    /// Describes a type that accepts a single value.
    fn single(shown: String) -> Self {
        Self { shown, accepts_list: false }
    }

    /// Describes the values that a schema accepts. References are resolved in the schema of the grid.
    fn from_schema(schema: &Value, grid: &Value) -> Self {
        if let Some(reference) = schema["$ref"].as_str() {
            return Self::from_definition(reference.trim_start_matches("#/definitions/"), grid);
        }
        // A reference with a description is wrapped in `allOf`.
        if let Some([inner]) = schema["allOf"].as_array().map(Vec::as_slice) {
            return Self::from_schema(inner, grid);
        }
        if let Some(forms) = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
            return Self::from_forms(forms, grid);
        }
        if let Some(name) = schema["const"].as_str() {
            return Self::single(format!("`{name}`"));
        }
        if let Some(names) = schema["enum"].as_array() {
            let names: Vec<String> = names.iter().filter_map(Value::as_str).map(|name| format!("`{name}`")).collect();
            return Self::single(names.join("/"));
        }
        // The type of an optional key is a list that contains `null`.
        let name = match &schema["type"] {
            Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null"),
            name => name.as_str(),
        };
        let shown = match name {
            Some("object") => "map",
            Some("array") => "list",
            Some(name) => name,
            None => panic!("the schema has no type: {schema}"),
        };
        Self::single(shown.to_owned())
    }

    fn from_definition(name: &str, grid: &Value) -> Self {
        if let Some((heading, _)) = TABLES.iter().find(|(_, definition)| *definition == name) {
            return Self::single(format!("[map](#{})", heading_anchor(heading)));
        }
        match LINKS.iter().find(|(definition, _)| *definition == name) {
            Some((_, link)) => Self::single((*link).to_owned()),
            None => Self::from_schema(&grid["definitions"][name], grid),
        }
    }

    /// Describes the alternatives of an `anyOf` or `oneOf`. A value and a list of such values count as one type.
    fn from_forms(forms: &[Value], grid: &Value) -> Self {
        let forms: Vec<&Value> = forms.iter().filter(|form| form["type"].as_str() != Some("null")).collect();
        if let [one, list] = forms.as_slice()
            && list["items"] == **one
        {
            return Self { accepts_list: true, ..Self::from_schema(one, grid) };
        }
        let mut shown: Vec<String> = forms.into_iter().map(|form| Self::from_schema(form, grid).shown).collect();
        shown.dedup();
        Self::single(shown.join("/"))
    }
}

/// Formats the keys of a map as a table, in alphabetical order.
fn format_table(schema: &Value, grid: &Value) -> String {
    let mut table = "|key|type|list|default|meaning|\n|---|---|---|---|---|\n".to_owned();
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        let KeyType { shown, accepts_list } = KeyType::from_schema(property, grid);
        let list = if accepts_list { "yes" } else { "" };
        let default = match &property["default"] {
            _ if required.contains(&key.as_str()) => "required".to_owned(),
            Value::Null => String::new(),
            Value::String(text) => format!("`{text}`"),
            value => format!("`{value}`"),
        };
        let meaning = property["description"].as_str().unwrap_or_else(|| panic!("`{key}` has no description"));
        let meaning = meaning.replace('\n', " ");
        assert!(!meaning.contains('|'), "the description of `{key}` contains a column separator");
        let _ = writeln!(table, "|`{key}`|{shown}|{list}|{default}|{meaning}|");
    }
    table
}

/// Formats all tables, each below its heading.
fn format_tables(grid: &Value) -> String {
    let mut text = format!("\n## Top level\n\n{}", format_table(grid, grid));
    for (heading, definition) in TABLES {
        let _ = write!(text, "\n## {heading}\n\n{}", format_table(&grid["definitions"][definition], grid));
    }
    text
}

#[test]
fn grid_key_reference_matches_the_schema() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/grid-keys.md");
    let text = fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let made = format!("{before}{BEGIN}{}\n{END}{after}", format_tables(&json_schema()));
    if std::env::var("GHOSTLAB_DOCS").is_ok_and(|value| value == "write") {
        fs::write(&file, &made).unwrap();
        return;
    }
    assert!(text == made, "docs/grid-keys.md is stale: run `just docs` to regenerate it");
}

#[test]
fn every_map_in_a_grid_has_a_table_or_is_omitted() {
    let grid = json_schema();
    let definitions = grid["definitions"].as_object().unwrap();
    let known: Vec<&str> = TABLES.iter().map(|(_, definition)| *definition).chain(OMITTED).collect();
    for (name, definition) in definitions {
        let has_keys = definition["properties"].is_object();
        assert_eq!(has_keys, known.contains(&name.as_str()), "`{name}` needs an entry in `TABLES` or `OMITTED`");
    }
    for name in known {
        assert!(definitions.contains_key(name), "the schema does not define `{name}`");
    }
}

//! Checks that the JSON schema for editors is up to date and agrees with the parser.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ghostlab::grid::json_schema;
use ghostlab::{criterion, recovery};
use serde_json::{Map, Value, json};

use super::fixtures::{GridFolder, VALID_GRID, examples, valid_grid_replacing};

fn checkout_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn committed_schema_matches_the_printed_schema() {
    let file = checkout_root().join("experiments/grid.schema.json");
    let committed = fs::read_to_string(&file).unwrap_or_default();
    let printed = Command::new(env!("CARGO_BIN_EXE_ghostlab")).arg("schema").output().unwrap();
    assert!(
        committed.as_bytes() == printed.stdout,
        "{} is stale; run `cargo run --release -- schema > experiments/grid.schema.json`",
        file.display()
    );
    assert_eq!(serde_json::from_str::<Value>(&committed).unwrap(), json_schema());
}

#[test]
fn profile_is_chosen_on_the_command_line() {
    let folder = GridFolder::new();
    let text = valid_grid_replacing("models/english", "models/hollow");
    folder.write("grid.yaml", &format!("{text}profiles: {{tiny: {{depth: 3}}}}\n"));
    assert!(run_grid(&folder, &[]).contains("no profile selected"));
    assert!(run_grid(&folder, &["--profile", "tny"]).contains("did you mean `tiny`?"));
    // The profile is accepted, so the next error is about the empty backbone.
    assert!(run_grid(&folder, &["--profile", "tiny"]).contains("config.json"));
}

fn run_grid(folder: &GridFolder, more: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_ghostlab")).arg("run").arg(folder.file()).args(more).output().unwrap();
    String::from_utf8(output.stderr).unwrap()
}

/// Returns the keys listed in an error message, in alphabetical order.
fn parse_listed_keys(message: &str) -> Vec<String> {
    let line = message.lines().find(|line| line.contains("expected: one of ")).expect("no list of keys");
    let mut keys: Vec<String> = line.split("one of ").nth(1).unwrap().split(", ").map(str::to_owned).collect();
    keys.sort();
    keys
}

/// Resolves the `$ref` in a schema, if there is one.
fn resolve_reference<'a>(schema: &'a Value, root: &'a Value) -> &'a Value {
    let inner = schema.pointer("/allOf/0").unwrap_or(schema);
    match inner["$ref"].as_str() {
        Some(reference) => root.pointer(reference.trim_start_matches('#')).expect("dangling reference"),
        None => inner,
    }
}

/// Returns the subschema at the end of a path. References along the way are followed.
fn find_subschema<'a>(root: &'a Value, path: &str) -> &'a Value {
    path.split('/').filter(|step| !step.is_empty()).fold(root, |schema, step| {
        let next = match schema {
            Value::Array(forms) => forms.get(step.parse::<usize>().unwrap()),
            other => resolve_reference(other, root).get(step),
        };
        next.unwrap_or_else(|| panic!("{path} has no {step}"))
    })
}

fn schema_keys(schema: &Value) -> Vec<String> {
    assert_eq!(schema["additionalProperties"], false, "{schema}");
    schema["properties"].as_object().expect("no properties").keys().cloned().collect()
}

#[test]
fn schema_has_exactly_the_keys_that_the_reader_accepts() {
    let folder = GridFolder::new();
    let schema = json_schema();
    let known = |path: &str| schema_keys(resolve_reference(find_subschema(&schema, path), &schema));
    let read = |from: &str, to: &str| parse_listed_keys(&folder.rejection(valid_grid_replacing(from, to), &[]).0);
    let more = |text: &str| parse_listed_keys(&folder.rejection(format!("{VALID_GRID}{text}\n"), &[]).0);
    assert_eq!(known(""), more("zzz: 1"));
    assert_eq!(known("/definitions/Profile"), more("profiles: {p: {zzz: 1}}"));
    assert_eq!(known("/properties/backbones/additionalProperties"), read("{path: models/english}", "{zzz: 1}"));
    assert_eq!(known("/properties/corpora/additionalProperties"), read("path: c4.txt,", "zzz: 1,"));
    assert_eq!(known("/properties/tasks/additionalProperties"), more("tasks: {copa: {zzz: 1}}"));
    assert_eq!(known("/properties/calibration/anyOf/0"), read("corpus: wiki, sequences", "zzz: 1, sequences"));
    assert_eq!(known("/properties/exclude/anyOf/0"), more("exclude: {zzz: 1}"));
    assert_eq!(
        known("/properties/exclude/anyOf/0/properties/calibration/anyOf/0"),
        more("exclude: {calibration: {zzz: 1}}")
    );
    assert_eq!(known("/properties/include/anyOf/0"), more("include: {zzz: 1}"));
    assert_eq!(known("/properties/evaluate"), read("  perplexity:", "  zzz: 1\n  perplexity:"));
    let evaluate = "/properties/evaluate/properties";
    assert_eq!(known(&format!("{evaluate}/perplexity/anyOf/0")), read("{corpus: c4, length", "{zzz: 1, length"));
    assert_eq!(known(&format!("{evaluate}/tasks/anyOf/0/anyOf/1")), more("  tasks: [{zzz: 1}]"));
}

#[test]
fn schema_has_exactly_the_options_that_the_methods_accept() {
    let schema = json_schema();
    let zzz: Map<String, Value> = Map::from_iter([("zzz".to_owned(), json!(1))]);
    for (definition, described) in [("Criterion", criterion::descriptions()), ("Recovery", recovery::descriptions())] {
        let forms = schema["definitions"][definition]["anyOf"].as_array().unwrap();
        let names: Vec<&Value> = forms[0]["oneOf"].as_array().unwrap().iter().map(|form| &form["const"]).collect();
        assert_eq!(names, described.iter().map(|method| &method.name).collect::<Vec<_>>());
        for (method, form) in described.iter().zip(&forms[1..]) {
            let rejected = match definition {
                "Criterion" => criterion::build(&method.name, &zzz).err(),
                _ => recovery::build(&method.name, &zzz).err(),
            };
            let message = rejected.unwrap().to_string();
            // serde lists the expected fields in backticks after the unknown one.
            let (_, listed) = message.split_once("unknown field `zzz`").unwrap();
            let mut accepted: Vec<&str> = listed.split('`').skip(1).step_by(2).collect();
            accepted.push("name");
            // `finetune` is parsed by the registry itself. Only methods with a trainable operator accept it.
            let finetune = json!({"sequences": 1, "length": 2});
            let finetune = Map::from_iter([(recovery::FINETUNE.to_owned(), finetune)]);
            if definition == "Recovery" && recovery::build(&method.name, &finetune).is_ok() {
                accepted.push(recovery::FINETUNE);
            }
            accepted.sort_unstable();
            assert_eq!(schema_keys(form), accepted, "{}: {message}", method.name);
            assert!(form["description"].is_string(), "{} has no description", method.name);
        }
    }
}

/// Validates a value against a schema. Supports the subset of JSON Schema that the grid schema uses. Returns the first
/// violation.
fn find_problem(schema: &Value, value: &Value, root: &Value) -> Option<String> {
    for (key, rule) in schema.as_object()? {
        let rejected = match key.as_str() {
            "$ref" => {
                let pointer = rule.as_str().unwrap().trim_start_matches('#');
                find_problem(root.pointer(pointer).expect("dangling reference"), value, root)
            }
            "anyOf" | "oneOf" => {
                let problems: Vec<_> =
                    rule.as_array().unwrap().iter().map(|form| find_problem(form, value, root)).collect();
                if problems.contains(&None) { None } else { Some(format!("{value}: {problems:?}")) }
            }
            "allOf" => rule.as_array().unwrap().iter().find_map(|form| find_problem(form, value, root)),
            "dependencies" => rule.as_object().unwrap().iter().find_map(|(key, others)| {
                value.get(key.as_str()).and_then(|_| dependency_problem(key, others, value, root))
            }),
            "properties" => value.as_object().into_iter().flatten().find_map(|(key, inner)| {
                rule.get(key).and_then(|schema| find_problem(schema, inner, root)).map(|text| format!("{key}: {text}"))
            }),
            "additionalProperties" => value.as_object().into_iter().flatten().find_map(|(key, inner)| {
                let known = schema.get("properties").is_some_and(|known| known.get(key).is_some());
                match rule {
                    _ if known => None,
                    Value::Bool(false) => Some(format!("unknown key {key}")),
                    rule => find_problem(rule, inner, root),
                }
            }),
            "items" => value.as_array().into_iter().flatten().find_map(|item| find_problem(rule, item, root)),
            "const" | "enum" | "type" | "required" | "minItems" | "minProperties" | "minimum" => {
                value_problem(key, rule, value)
            }
            // These are annotations, or keywords that the parser checks with better messages.
            "pattern" | "description" | "title" | "default" | "definitions" | "$schema" => None,
            other => panic!("unsupported schema keyword `{other}`"),
        };
        if rejected.is_some() {
            return rejected;
        }
    }
    None
}

/// Validates a value against a keyword that does not contain a schema.
fn value_problem(word: &str, rule: &Value, value: &Value) -> Option<String> {
    match word {
        "const" => (rule != value).then(|| format!("{value} is not {rule}")),
        "enum" => (!rule.as_array().unwrap().contains(value)).then(|| format!("{value} is not in {rule}")),
        "type" => {
            let kinds = if let Value::Array(kinds) = rule { kinds.clone() } else { vec![rule.clone()] };
            let fits = kinds.iter().any(|kind| is_of_kind(value, kind.as_str().unwrap()));
            (!fits).then(|| format!("{value} is not a {rule}"))
        }
        "required" => rule
            .as_array()
            .unwrap()
            .iter()
            .find(|key| value.is_object() && value.get(key.as_str().unwrap()).is_none())
            .map(|key| format!("{value} has no {key}")),
        "minItems" => {
            value.as_array().filter(|items| (items.len() as u64) < rule.as_u64().unwrap()).map(|_| "too few".into())
        }
        "minProperties" => value.as_object().filter(|map| map.is_empty()).map(|_| "too few".into()),
        "minimum" => value.as_f64().filter(|number| *number < rule.as_f64().unwrap()).map(|_| "too small".into()),
        other => panic!("unsupported schema keyword `{other}`"),
    }
}

fn is_of_kind(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("unsupported schema type `{other}`"),
    }
}

/// Validates a value that has `key` against the dependencies of this key: a list of required keys, or a schema.
fn dependency_problem(key: &str, others: &Value, value: &Value, root: &Value) -> Option<String> {
    let Some(others) = others.as_array() else {
        return find_problem(others, value, root).map(|text| format!("{key}: {text}"));
    };
    let absent = others.iter().find(|other| value.get(other.as_str().unwrap()).is_none());
    absent.map(|other| format!("{key} without {other}"))
}

fn parse_yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn every_sample_grid_conforms_to_the_schema() {
    let schema = json_schema();
    let mut samples: Vec<(PathBuf, String)> = Vec::new();
    for folder in ["tests/real", "experiments"] {
        for file in fs::read_dir(checkout_root().join(folder)).unwrap().map(|file| file.unwrap().path()) {
            if file.extension().is_some_and(|ending| ending == "yaml") {
                let text = fs::read_to_string(&file).unwrap();
                // An experiment that lists built-in entries contains no grid.
                if text.contains("\n  list: ") {
                    continue;
                }
                assert!(text.starts_with("# yaml-language-server: $schema="), "{} names no schema", file.display());
                samples.push((file, text));
            }
        }
    }
    for name in ["README.md", "docs/grid.md"] {
        samples.extend(examples(name).into_iter().map(|text| (name.into(), text)));
    }
    for (file, text) in samples {
        assert_eq!(find_problem(&schema, &parse_yaml(&text), &schema), None, "{}", file.display());
    }
}

#[test]
fn schema_rejects_grids_that_the_reader_rejects() {
    let schema = json_schema();
    assert_eq!(find_problem(&schema, &parse_yaml(VALID_GRID), &schema), None);
    for (from, to) in [
        ("depth: [3, 5]", "depth: [0]"),
        ("depth: [3, 5]", "depth: []"),
        ("depth: [3, 5]", "dpeth: 3"),
        ("depth: [3, 5]\n", ""),
        ("depth: [3, 5]", "depth: 3\nexclude: {dpeth: 3}"),
        ("depth: [3, 5]", "depth: 3\nprofiles: {p: {name: x}}"),
        ("criterion: llm-streamline", "criterion: {name: llm-streamline, cosine: tokn}"),
        ("criterion: llm-streamline", "criterion: llm_streamline"),
        ("criterion: llm-streamline", "criterion: {name: explicit, layers: 3}"),
        ("rule: c4", "rule: c5"),
        ("rule: c4", "rule: [c4]"),
        ("sequences: 32", "sequences: many"),
        ("sequences: 32, ", ""),
        ("length: 512}\nevaluate", "length: 1}\nevaluate"),
        ("evaluate:", "evaluation:"),
    ] {
        assert!(find_problem(&schema, &parse_yaml(&valid_grid_replacing(from, to)), &schema).is_some(), "{to}");
    }
    for (from, to) in [
        ("depth: [3, 5]", "depth: [3, 12.5%]"),
        (
            "criterion: llm-streamline",
            "criterion: [{name: explicit, layers: [[1], [2]]}, {name: explicit, order: [1, 2]}]",
        ),
        ("[none, ghosted]", "{name: ghosted, solver: [svd, normal], boundary: layer}"),
        ("depth: [3, 5]", "depth: 3\nprofiles: {p: {corpora: {c4: {limit: 3}}, calibration: {sequences: 3}}}"),
        ("depth: [3, 5]", "depth: 3\nexclude: [{recovery: ghosted, calibration: {seed: [1, 2]}}]\ninclude: []"),
    ] {
        assert_eq!(find_problem(&schema, &parse_yaml(&valid_grid_replacing(from, to)), &schema), None, "{to}");
    }
}

#[test]
fn depth_is_optional_for_a_layer_budget() {
    let schema = json_schema();
    let folder = GridFolder::new();
    let depths = "depth: [3, 5]\n";
    for (text, sound) in [
        (grid_with_budget("{layers: 3}"), true),
        (remove_line(&grid_with_budget("{layers: [3, 5]}"), depths), true),
        (remove_line(&grid_with_budget("{layers: 3, memory: 2GB}"), depths), true),
        (grid_with_budget("{speedup: 1.3}"), true),
        (remove_line(&grid_with_budget("{speedup: 1.3}"), depths), false),
        (remove_line(&grid_with_budget("{layers: 3}"), "recovery: [none, ghosted]\n"), false),
        (remove_line(VALID_GRID, depths), false),
    ] {
        let found = find_problem(&schema, &parse_yaml(&text), &schema);
        let read = folder.load(&text, &[]);
        assert_eq!((found.is_none(), read.is_ok()), (sound, sound), "{text}{found:?} {read:?}");
    }
}

fn grid_with_budget(budget: &str) -> String {
    let text = VALID_GRID.replace("evaluate:\n", &format!("search:\n  budget: {budget}\n"));
    assert_ne!(text, VALID_GRID);
    text
}

fn remove_line(text: &str, line: &str) -> String {
    assert!(text.contains(line));
    text.replace(line, "")
}

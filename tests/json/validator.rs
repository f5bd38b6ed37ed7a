//! Validator for the subset of JSON Schema that the output schema uses.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Schema keywords that do not affect validity.
const ANNOTATIONS: [&str; 6] = ["$schema", "$defs", "title", "description", "format", "default"];

/// Validates a value against a schema. Treats undeclared keys as errors, and panics on unknown keywords.
pub(super) fn validate_strict(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let mut known = BTreeSet::new();
    check(root, schema, value, at, &mut known)?;
    let strange = value.as_object().into_iter().flatten().map(|(key, _)| key).find(|key| !known.contains(*key));
    strange.map_or(Ok(()), |key| Err(format!("{at}: the schema has no key `{key}`")))
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, known: &mut BTreeSet<String>) -> Result<(), String> {
    let words = match schema {
        Value::Bool(true) => &serde_json::Map::new(),
        Value::Object(words) => words,
        other => return Err(format!("{at}: `{other}` is not a schema")),
    };
    if words.keys().all(|word| ANNOTATIONS.contains(&word.as_str())) {
        known.extend(value.as_object().into_iter().flatten().map(|(key, _)| key.clone()));
    }
    for (word, rule) in words {
        let list = || rule.as_array().unwrap();
        match word.as_str() {
            word if ANNOTATIONS.contains(&word) => {}
            "$ref" => {
                let name = rule.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                check(root, &root["$defs"][name], value, at, known)?;
            }
            "anyOf" | "oneOf" => check_branches(root, word, list(), value, at, known)?,
            "const" | "enum" | "type" | "minimum" | "maximum" => {
                if !fits(word, rule, value) {
                    return mismatch(at, value, word, rule);
                }
            }
            "required" => {
                if let Some(lacking) = list().iter().find(|key| value.get(key.as_str().unwrap()).is_none()) {
                    return Err(format!("{at} has no {lacking}"));
                }
            }
            "properties" => {
                for (key, inner) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(key) {
                        known.insert(key.clone());
                        validate_strict(root, inner, value, &format!("{at}.{key}"))?;
                    }
                }
            }
            // Declared properties are validated under the keyword `properties`, so only undeclared ones are errors
            // here.
            "additionalProperties" if *rule == json!(false) => {
                let none = Map::new();
                let has = schema["properties"].as_object().unwrap_or(&none);
                if let Some(other) = value.as_object().into_iter().flatten().find(|(key, _)| !has.contains_key(*key)) {
                    return Err(format!("{at} has the undeclared key {other:?}"));
                }
            }
            "items" => {
                for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                    validate_strict(root, rule, value, &format!("{at}[{index}]"))?;
                }
            }
            other => panic!("{at}: unsupported schema keyword `{other}`"),
        }
    }
    Ok(())
}

/// Validates a value against the branches of `anyOf` or `oneOf`.
fn check_branches(
    root: &Value,
    word: &str,
    branches: &[Value],
    value: &Value,
    at: &str,
    known: &mut BTreeSet<String>,
) -> Result<(), String> {
    let mut errors = Vec::new();
    let mut fit = 0;
    for branch in branches {
        let mut unknown = BTreeSet::new();
        match check(root, branch, value, at, &mut unknown) {
            Ok(()) => {
                fit += 1;
                known.extend(unknown);
            }
            Err(error) => errors.push(error),
        }
    }
    if fit == 0 || (word == "oneOf" && fit > 1) {
        return Err(format!("{at}: {fit} branches of `{word}` match\n{}", errors.join("\n")));
    }
    Ok(())
}

/// Returns whether a value satisfies a keyword that restricts a single value.
fn fits(word: &str, rule: &Value, value: &Value) -> bool {
    match word {
        "const" => rule == value,
        "enum" => rule.as_array().unwrap().contains(value),
        "type" => rule
            .as_array()
            .map_or_else(|| is_of_kind(value, rule), |kinds| kinds.iter().any(|kind| is_of_kind(value, kind))),
        "minimum" | "maximum" => {
            let limit = rule.as_f64().unwrap();
            value.as_f64().is_none_or(|number| if word == "minimum" { number >= limit } else { number <= limit })
        }
        other => panic!("`{other}` does not restrict single values"),
    }
}

fn mismatch(at: &str, value: &Value, word: &str, rule: &Value) -> Result<(), String> {
    Err(format!("{at}: {value} is not {word} {rule}"))
}

fn is_of_kind(value: &Value, kind: &Value) -> bool {
    match kind.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("unsupported schema type `{other}`"),
    }
}

//! Parser for `fewshot_config`, which overrides the fields of few-shot examples.

use ghostlab_core::error::{Error, Result};

use super::Examples;
use super::field_reader::{read_choices, read_field};
use crate::value::Value;
use crate::yaml::{Node, Tree, hook_error, value_error};

/// Supported keys of `fewshot_config`.
const EXAMPLE_KEYS: [&str; 9] = [
    "sampler",
    "split",
    "samples",
    "doc_to_text",
    "doc_to_target",
    "doc_to_choice",
    "gen_prefix",
    "fewshot_delimiter",
    "target_delimiter",
];

/// Reads `fewshot_config` into `examples`, which contains the settings of the task.
pub(super) fn read_examples(node: &Node, examples: &mut Examples) -> Result<()> {
    if !matches!(node.tree, Tree::Map(_)) {
        return Err(value_error("fewshot_config", "a mapping", node));
    }
    for (key, node) in node.pairs() {
        let name = key.as_text().unwrap_or_default();
        let path = format!("fewshot_config.{name}");
        if let Tree::Hook(function) = &node.tree {
            return Err(hook_error(&path, function, &node.location));
        }
        let text = || node.text().map(str::to_owned).ok_or_else(|| value_error(&path, "a string", node));
        match name {
            "sampler" => match node.text() {
                Some("default") => examples.first = false,
                Some("first_n") => examples.first = true,
                _ => return Err(value_error(&path, "default or first_n", node)),
            },
            // An explicit `null` removes the value that the task sets.
            "split" => examples.split = if node.is_null() { None } else { Some(text()?) },
            "samples" if !node.is_null() => {
                let Value::List(items) = node.plain()? else {
                    return Err(value_error(&path, "a list of examples", node));
                };
                if let Some(odd) = items.iter().find(|item| !matches!(item, Value::Map(_))) {
                    return Err(value_error(&path, "a list of mappings", node).found(odd.repr()));
                }
                examples.samples = Some(items);
            }
            "doc_to_text" if !node.is_null() => examples.text = read_field(&path, node)?,
            "doc_to_target" if !node.is_null() => examples.target = read_field(&path, node)?,
            "doc_to_choice" => examples.choices = if node.is_null() { None } else { Some(read_choices(&path, node)?) },
            "gen_prefix" => examples.prefix = if node.is_null() { None } else { Some(read_field(&path, node)?) },
            "fewshot_delimiter" => examples.delimiter = text()?,
            "target_delimiter" => examples.target_delimiter = text()?,
            // lm-evaluation-harness accepts these keys and ignores them.
            "fewshot_indices" | "samples" | "doc_to_text" | "doc_to_target" => {}
            "process_docs" if node.is_null() => {}
            _ => {
                let error = Error::bad_input(format!("unknown key `{path}`")).at(&node.location);
                return Err(error.expected(EXAMPLE_KEYS.join(", ")));
            }
        }
    }
    Ok(())
}

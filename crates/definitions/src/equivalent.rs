//! Recognition of Python hooks that are equivalent to `aggregation: weighted_f1` or `keep_rows`. Hooks are matched by
//! their source text and never run.
//!
//! | hook | equivalent |
//! | --- | --- |
//! | `aggregation: !function utils.weighted_f1_score`, which calls scikit-learn's `f1_score(…, average="weighted")` | `aggregation: weighted_f1` |
//! | `process_docs: !function utils.f`, where the body of `f` is `return dataset.filter(lambda x: x["column"] == "value")` | `keep_rows: {column: value}` |
//! | `f = partial(process_docs, of="value")`, where `process_docs` compares the column with `of` or with an f-string that contains `of` | `keep_rows: {column: value}` |
//! | one such `partial` per item of a list, with a name that `lower()` and `replace()` derive from the item | `keep_rows: {column: value}` |

use std::path::Path;

use ghostlab_core::error::Result;
use ghostlab_core::files::regular;

use crate::literal::literal;
use crate::pattern::Pattern;
use crate::value::Value;
use crate::yaml::{Node, SourceLocation, Tree};

/// Returns the source of the Python module that defines a hook, and the name of the hook's function.
fn read_hook_module(hook: &str, location: &SourceLocation) -> Option<(String, String)> {
    let (module, function) = hook.trim().rsplit_once('.')?;
    if !module.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    let file = Path::new(&*location.file).parent()?.join(format!("{module}.py"));
    Some((String::from_utf8(regular::read(&file).ok()?).ok()?, function.to_owned()))
}

/// Returns the lines of a top-level function, trimmed and without empty lines. The first one is its `def` line.
fn function_lines<'a>(text: &'a str, function: &str) -> Option<Vec<&'a str>> {
    let begin = format!("def {function}(");
    let mut lines = text.lines().map(str::trim_end).skip_while(|line| !line.starts_with(&begin));
    let head = lines.next()?;
    let inside = lines.take_while(|line| line.is_empty() || line.starts_with([' ', '\t']));
    Some(std::iter::once(head).chain(inside.map(str::trim).filter(|line| !line.is_empty())).collect())
}

/// Returns whether an aggregation hook computes an F1 score weighted by label frequency.
pub fn is_weighted_f1(hook: &str, location: &SourceLocation) -> bool {
    if hook.trim() == "lm_eval.utils.weighted_f1_score" {
        return true;
    }
    let Some((text, function)) = read_hook_module(hook, location) else { return false };
    if function == "weighted_f1_score"
        && text.lines().any(|line| line.trim_end() == "from lm_eval.utils import weighted_f1_score")
    {
        return true;
    }
    let Some(lines) = function_lines(&text, &function) else { return false };
    const KNOWN_LINES: [&str; 6] = [
        "from sklearn.metrics import f1_score",
        "unzipped_list = list(zip(*items))",
        "golds = unzipped_list[0]",
        "preds = unzipped_list[1]",
        "fscore = f1_score(golds, preds, average=\"weighted\")",
        "return fscore",
    ];
    let rest: Vec<String> = lines[1..].iter().map(|line| line.replace(", strict=True", "")).collect();
    rest.contains(&KNOWN_LINES[4].to_owned()) && rest.iter().all(|line| KNOWN_LINES.contains(&line.as_str()))
}

/// Pattern for a Python string literal without escapes.
const STRING_LITERAL: &str = r#""[^"\\]*"|'[^'\\]*'"#;

/// Python function that keeps only the rows in which a column equals a value.
struct RowFilter {
    /// Name of the second function parameter, if any.
    parameter: Option<String>,
    column: Value,
    /// Python expression for the value: a string, the parameter, or an f-string that contains the parameter.
    value: String,
}

impl RowFilter {
    fn read(lines: &[&str]) -> Option<Self> {
        let (head, inside) = lines.split_first()?;
        let expected_body = format!(
            r#"^return ([A-Za-z0-9_]+)\.filter\( ?lambda ([A-Za-z0-9_]+): ([A-Za-z0-9_]+)\[({STRING_LITERAL})\] == (f?"[^"\\]*"|f?'[^'\\]*'|[A-Za-z0-9_]+) ?\)$"#
        );
        let [rows, given, read, column, value] = find_only_match(&expected_body, &inside.join(" "))?.try_into().ok()?;
        let parameters = head.split_once('(')?.1.rsplit_once(')')?.0.split(',');
        let mut names =
            parameters.map(|parameter| parameter.split([':', '=']).next().unwrap_or(parameter).trim().to_owned());
        let first = names.next()?;
        let parameter = names.next();
        let is_one = first == rows && given == read && names.next().is_none();
        is_one.then_some(Self { parameter, column: literal(&column)?, value })
    }

    /// Returns the mapping `{column: value}`, with `argument` substituted for the parameter.
    fn into_mapping(self, argument: Option<&str>) -> Option<Value> {
        let value = match (self.value.strip_prefix('f').filter(|rest| rest.starts_with(['"', '\''])), &self.parameter) {
            (Some(text), Some(parameter)) => {
                let text = literal(text)?.as_text()?.to_owned();
                let (before, after) = text.split_once(&format!("{{{parameter}}}"))?;
                if [before, after].iter().any(|part| part.contains(['{', '}'])) {
                    return None;
                }
                Value::from(format!("{before}{}{after}", argument?))
            }
            (None, Some(parameter)) if *parameter == self.value => Value::from(argument?.to_owned()),
            (None, _) => literal(&self.value)?,
            (Some(_), None) => return None,
        };
        Some(Value::Map(vec![(self.column, value)]))
    }
}

/// Returns the capture groups of a pattern's match, or `None` unless there is exactly one match.
fn find_only_match(pattern: &str, text: &str) -> Option<Vec<String>> {
    let mut found = Pattern::new(pattern).ok()?.find_all(text).ok()?;
    (found.len() == 1).then(|| found.remove(0))
}

/// Returns the mapping `{column: value}` for a hook that only filters rows by one value, or `None` for any other hook.
pub fn kept_rows(hook: &str, location: &SourceLocation) -> Option<Value> {
    let (text, function) = read_hook_module(hook, location)?;
    if let Some(lines) = function_lines(&text, &function) {
        return RowFilter::read(&lines)?.into_mapping(None);
    }
    let filter = RowFilter::read(&function_lines(&text, "process_docs")?)?;
    let parameter = filter.parameter.clone()?;
    // Look for a `partial` that is assigned to the name of the hook.
    let one = format!(r"(?:^|\n){function} = partial\(\s*process_docs,\s*{parameter}=({STRING_LITERAL}),?\s*\)");
    if let Some(found) = find_only_match(&one, &text) {
        return filter.into_mapping(Some(literal(&found[0])?.as_text()?));
    }
    // Look for a comprehension that creates a `partial` for each item in a list and derives its name from the item.
    let name = "[A-Za-z0-9_]";
    let many = format!(
        r#"\nprocess_functions = \{{\s*f"({name}*)\{{({name}+)((?:\.{name}+\([^()]*\))*)\}}({name}*)":\s*partial\(\s*process_docs,\s*{parameter}=({name}+),?\s*\)\s*for\s+({name}+)\s+in\s+({name}+)\s*\}}\n"#
    );
    let [before, named, methods, after, given, each, list] = find_only_match(&many, &text)?.try_into().ok()?;
    if named != each || given != each || !text.contains("\nglobals().update(process_functions)\n") {
        return None;
    }
    let written = find_only_match(&format!(r"(?:^|\n){list} = (\[[^\]]*\])"), &text)?;
    let values = literal(&written[0])?;
    // If two items give the same name, the last item wins, as in a Python dict.
    let value = values.as_list()?.iter().rev().filter_map(Value::as_text).find(|value| {
        apply_methods(value, &methods).is_some_and(|made| format!("{before}{made}{after}") == function)
    })?;
    filter.into_mapping(Some(value))
}

/// Applies a chain of `.lower()` and `.replace('a', 'b')` calls to a string. Returns `None` if the chain contains any
/// other method.
fn apply_methods(text: &str, methods: &str) -> Option<String> {
    let calls = Pattern::new(r"\.([A-Za-z0-9_]+)\(([^()]*)\)").ok()?.find_all(methods).ok()?;
    calls.into_iter().try_fold(text.to_owned(), |text, call| {
        let arguments = literal(&format!("[{}]", call[1]))?;
        let arguments: Vec<&str> = arguments.as_list()?.iter().filter_map(Value::as_text).collect();
        match (call[0].as_str(), arguments.as_slice()) {
            ("lower", []) => Some(text.to_lowercase()),
            ("replace", [from, to]) => Some(text.replace(from, to)),
            _ => None,
        }
    })
}

/// Converts a definition to a plain value. Replaces hooks with their declarative equivalents, and stores `filters`
/// under `keep_rows`.
pub(crate) fn replace_hooks(node: &Node, filters: &[(String, Vec<Value>)]) -> Result<Value> {
    let mut pairs = Vec::new();
    for (key, node) in node.pairs() {
        match key.as_text() {
            Some("process_docs" | "keep_rows") => {}
            Some("metric_list") => pairs.push((key.clone(), replace_metric_hooks(node)?)),
            _ => pairs.push((key.clone(), node.plain()?)),
        }
    }
    if !filters.is_empty() {
        let columns = filters.iter().map(|(column, values)| (Value::from(&**column), Value::List(values.clone())));
        pairs.push((Value::from("keep_rows"), Value::Map(columns.collect())));
    }
    Ok(Value::Map(pairs))
}

fn replace_metric_hooks(node: &Node) -> Result<Value> {
    let Tree::List(items) = &node.tree else { return node.plain() };
    Ok(Value::List(
        items
            .iter()
            .map(|item| {
                let pairs = item.pairs().iter().map(|(key, value)| {
                    let is_equivalent =
                        matches!(&value.tree, Tree::Hook(hook) if is_weighted_f1(hook, &value.location));
                    Ok((key.clone(), if is_equivalent { Value::from("weighted_f1") } else { value.plain()? }))
                });
                Ok(Value::Map(pairs.collect::<Result<_>>()?))
            })
            .collect::<Result<_>>()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_hook(text: &str) -> (tempfile::TempDir, SourceLocation) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("utils.py"), text).unwrap();
        let file = folder.path().join("a.yaml").display().to_string();
        (folder, SourceLocation { file: file.into(), line: 1 })
    }

    #[test]
    fn python_hooks_are_replaced_only_if_recognized() {
        let filter = "def law(dataset):\n    return dataset.filter(lambda x: x[\"subject\"] == \"law\")\n\n\ndef other(d):\n    print(1)\n    \
            return d.filter(lambda x: x['a'] == 'b')\n";
        let (_folder, location) = write_hook(filter);
        assert_eq!(kept_rows("utils.law", &location).unwrap().repr(), "{'subject': 'law'}");
        assert!(kept_rows("utils.other", &location).is_none());
        assert!(kept_rows("utils.absent", &location).is_none());
        assert!(kept_rows("../utils.law", &location).is_none());
        let each = "SUBJECTS = [\n    \"Law & Order\",\n    \"Marine\",\n]\n\n\ndef process_docs(dataset, subject):\n    \
            return dataset.filter(lambda x: x[\"area\"] == subject)\n\n\nprocess_functions = {\n    \
            f\"process_{one.lower().replace(' & ', '_')}\": partial(\n        process_docs, subject=one\n    )\n    \
            for one in SUBJECTS\n}\n\nglobals().update(process_functions)\n";
        let (_folder, location) = write_hook(each);
        assert_eq!(kept_rows("utils.process_law_order", &location).unwrap().repr(), "{'area': 'Law & Order'}");
        assert!(kept_rows("utils.process_sea", &location).is_none());
        let (_folder, location) =
            write_hook(&each.replace("\"Marine\"", "\"Marine  Law\"").replace("' & ', '_'", "' ', ''"));
        assert_eq!(kept_rows("utils.process_marinelaw", &location).unwrap().repr(), "{'area': 'Marine  Law'}");
        let (_folder, location) = write_hook(&each.replace(".lower()", ".title()"));
        assert!(kept_rows("utils.process_law_order", &location).is_none());
        let named = "def process_docs(dataset: datasets.Dataset, of) -> datasets.Dataset:\n    return dataset.filter(\n        \
            lambda row: row['name'] == f\"all.{of}\"\n    )\n\n\nlaw = partial(process_docs, of=\"law\")\n\
            art = partial(\n    process_docs, of=\"art\"\n)\n";
        let (_folder, location) = write_hook(named);
        assert_eq!(kept_rows("utils.art", &location).unwrap().repr(), "{'name': 'all.art'}");
        assert!(kept_rows("utils.sea", &location).is_none());
        // A direct call does not pass the argument `of`, and an f-string with an unknown name does not match.
        assert!(kept_rows("utils.process_docs", &location).is_none());
        let (_folder, location) = write_hook(&named.replace("all.{of}", "{other}.{of}"));
        assert!(kept_rows("utils.art", &location).is_none());
        let weighted = "def weighted_f1_score(items):\n    unzipped_list = list(zip(*items))\n    golds = unzipped_list[0]\n    \
            preds = unzipped_list[1]\n    fscore = f1_score(golds, preds, average=\"weighted\")\n    return fscore\n";
        let (_folder, location) = write_hook(weighted);
        assert!(is_weighted_f1("utils.weighted_f1_score", &location));
        let (_folder, location) = write_hook(&weighted.replace("weighted\"", "macro\""));
        assert!(!is_weighted_f1("utils.weighted_f1_score", &location));
    }
}

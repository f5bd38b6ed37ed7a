//! Hooks that say no more than one of our two declarative keys. They are known by the text of their function; Python is
//! never run.
//!
//! | hook | is |
//! | --- | --- |
//! | `aggregation: !function utils.weighted_f1_score`, whose file has scikit-learn's `f1_score(…, average="weighted")` | `aggregation: weighted_f1` |
//! | `process_docs: !function utils.f`, where `f` is `return dataset.filter(lambda x: x["column"] == "value")` and no more | `keep_rows: {column: value}` |
//! | the same by `partial(process_docs, category=…)` over a list `CATEGORIES` | `keep_rows: {column: value}` |

use std::path::Path;

use ghostlab_core::files::regular;

use crate::literal::literal;
use crate::pattern::Pattern;
use crate::value::Value;
use crate::yaml::Place;

/// The Python file of a hook and the name of its function.
fn source(hook: &str, place: &Place) -> Option<(String, String)> {
    let (module, function) = hook.trim().rsplit_once('.')?;
    if !module.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    let file = Path::new(&*place.file).parent()?.join(format!("{module}.py"));
    Some((String::from_utf8(regular::read(&file).ok()?).ok()?, function.to_owned()))
}

/// The lines of a function, without blanks at their ends.
fn body<'a>(text: &'a str, function: &str) -> Option<Vec<&'a str>> {
    let begin = format!("def {function}(");
    let mut lines = text.lines().map(str::trim_end).skip_while(|line| !line.starts_with(&begin));
    let head = lines.next()?;
    let inside = lines.take_while(|line| line.is_empty() || line.starts_with([' ', '\t']));
    Some(std::iter::once(head).chain(inside.map(str::trim).filter(|line| !line.is_empty())).collect())
}

/// Whether an aggregation is the F1 weighted by how often each label is right.
pub fn is_weighted_f1(hook: &str, place: &Place) -> bool {
    if hook.trim() == "lm_eval.utils.weighted_f1_score" {
        return true;
    }
    let Some((text, function)) = source(hook, place) else { return false };
    if function == "weighted_f1_score"
        && text.lines().any(|line| line.trim_end() == "from lm_eval.utils import weighted_f1_score")
    {
        return true;
    }
    let Some(lines) = body(&text, &function) else { return false };
    const KNOWN: [&str; 6] = [
        "from sklearn.metrics import f1_score",
        "unzipped_list = list(zip(*items))",
        "golds = unzipped_list[0]",
        "preds = unzipped_list[1]",
        "fscore = f1_score(golds, preds, average=\"weighted\")",
        "return fscore",
    ];
    let rest: Vec<String> = lines[1..].iter().map(|line| line.replace(", strict=True", "")).collect();
    rest.contains(&KNOWN[4].to_owned()) && rest.iter().all(|line| KNOWN.contains(&line.as_str()))
}

/// The column and value of a hook that keeps the rows of one value and does no more.
pub fn kept_rows(hook: &str, place: &Place) -> Option<Value> {
    let (text, function) = source(hook, place)?;
    let filter = Pattern::new(
        r#"^return (\w+)\.filter\(lambda (\w+): (\w+)\[("[^"\\]*"|'[^'\\]*')\] == ("[^"\\]*"|'[^'\\]*'|\w+)\)$"#,
    );
    let filter = filter.ok()?;
    let one = |lines: &[&str]| {
        let [head, line] = lines else { return None };
        let parts = filter.find_all(line).ok()?.into_iter().next()?;
        let argument = head.split_once('(')?.1.split([',', ')', ':']).next()?.trim();
        (argument == parts[0] && parts[1] == parts[2]).then(|| (head.to_string(), parts))
    };
    if let Some(lines) = body(&text, &function) {
        let (_, parts) = one(&lines)?;
        return Some(Value::Map(vec![(literal(&parts[3])?, literal(&parts[4])?)]));
    }
    // global_mmlu: a function for each of a list of categories.
    let lines = body(&text, "process_docs")?;
    let (head, parts) = one(&lines)?;
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let named = head == "def process_docs(dataset, category):"
        && parts[4] == "category"
        && flat
            .contains("f\"process_{category.lower().replace(' ', '_')}\": partial( process_docs, category=category )")
        && flat.contains("for category in CATEGORIES")
        && flat.contains("globals().update(process_functions)");
    let list = text.split_once("CATEGORIES = ")?.1.split_once(']')?.0;
    let categories = literal(&format!("{list}]"))?;
    let wanted = categories.as_list()?.iter().find(|one| {
        one.as_text().is_some_and(|name| format!("process_{}", name.to_lowercase().replace(' ', "_")) == function)
    });
    wanted.filter(|_| named).map(|wanted| Some(Value::Map(vec![(literal(&parts[3])?, wanted.clone())])))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> (tempfile::TempDir, Place) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("utils.py"), text).unwrap();
        let file = folder.path().join("a.yaml").display().to_string();
        (folder, Place { file: file.into(), line: 1 })
    }

    #[test]
    fn only_hooks_that_say_no_more_are_taken() {
        let filter = "def law(dataset):\n    return dataset.filter(lambda x: x[\"subject\"] == \"law\")\n\n\ndef other(d):\n    print(1)\n    \
            return d.filter(lambda x: x['a'] == 'b')\n";
        let (_folder, at) = place(filter);
        assert_eq!(kept_rows("utils.law", &at).unwrap().repr(), "{'subject': 'law'}");
        assert!(kept_rows("utils.other", &at).is_none());
        assert!(kept_rows("utils.absent", &at).is_none());
        assert!(kept_rows("../utils.law", &at).is_none());
        let weighted = "def weighted_f1_score(items):\n    unzipped_list = list(zip(*items))\n    golds = unzipped_list[0]\n    \
            preds = unzipped_list[1]\n    fscore = f1_score(golds, preds, average=\"weighted\")\n    return fscore\n";
        let (_folder, at) = place(weighted);
        assert!(is_weighted_f1("utils.weighted_f1_score", &at));
        let (_folder, at) = place(&weighted.replace("weighted\"", "macro\""));
        assert!(!is_weighted_f1("utils.weighted_f1_score", &at));
    }
}

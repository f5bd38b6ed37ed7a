//! Tests that template expressions render as in Jinja. `tools/jinja_expressions.py` generates the table of expected
//! outputs.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::collections::BTreeSet;
use std::path::Path;

use ghostlab_definitions::ChatTemplate;
use ghostlab_definitions::template::Template;
use ghostlab_definitions::value::Value;
use ghostlab_definitions::yaml::SourceLocation;
use serde::{Deserialize, Serialize};

/// Templates whose result differs from Jinja's.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Deviations {
    /// Templates that Jinja renders and this crate rejects.
    refused: BTreeSet<String>,
    /// Templates that render a different text, or that render although Jinja raises an exception.
    other_text: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Table {
    rows: Vec<Value>,
    task: Vec<Case>,
    chat: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    /// Rendered text for each row, or `None` if Jinja raises an exception.
    expected: Vec<Option<String>>,
}

fn read_table() -> Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/jinja.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Renders all cases, and returns those that deviate from Jinja.
fn find_deviations(rows: &[Value], cases: &[Case], render: impl Fn(&str, &Value) -> Option<String>) -> Deviations {
    let mut found = Deviations::default();
    for case in cases {
        for (row, expected) in rows.iter().zip(&case.expected) {
            let rendered = render(&case.template, row);
            if rendered == *expected {
                continue;
            }
            let list = if rendered.is_none() { &mut found.refused } else { &mut found.other_text };
            list.insert(case.template.clone());
        }
    }
    found
}

#[test]
fn task_templates_deviate_from_jinja_only_as_listed() {
    let table = read_table();
    let location = SourceLocation { file: "task.yaml".into(), line: 1 };
    let found = find_deviations(&table.rows, &table.task, |template, row| {
        Template::new(template, &location).and_then(|template| template.render(row)).ok()
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/jinja_deviations.json");
    if std::env::var("GHOSTLAB_BLESS").is_ok() {
        std::fs::write(&path, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
    }
    let known: Deviations = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(found, known);
}

#[test]
fn chat_templates_render_as_in_jinja2() {
    let table = read_table();
    let found = find_deviations(&table.rows, &table.chat, |template, row| {
        // Pass the columns as special tokens, because both are template variables.
        let Value::Map(variables) = row.clone() else { return None };
        let rendered = ChatTemplate::new(template, variables, "chat_template.jinja");
        rendered.and_then(|template| template.render(&[], false)).ok()
    });
    assert_eq!(found, Deviations::default());
}

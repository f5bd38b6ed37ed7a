//! Expressions of templates against what Jinja renders: `tools/jinja_expressions.py` makes the table.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::path::Path;

use ghostlab_definitions::ChatTemplate;
use ghostlab_definitions::template::Template;
use ghostlab_definitions::value::Value;
use ghostlab_definitions::yaml::Place;
use serde::Deserialize;

/// Templates that Jinja renders and this program refuses. No other may be refused, and none may render another text.
const REFUSED: [&str; 0] = [];

#[derive(Deserialize)]
struct Table {
    rows: Vec<Value>,
    task: Vec<Case>,
    chat: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    /// Text for each row; none where Jinja raises.
    expected: Vec<Option<String>>,
}

fn table() -> Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/jinja.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Compares all cases, and returns the templates that are refused.
fn judge(rows: &[Value], cases: &[Case], render: impl Fn(&str, &Value) -> Result<String, String>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut refused = Vec::new();
    for case in cases {
        for (row, expected) in rows.iter().zip(&case.expected) {
            match (render(&case.template, row), expected) {
                (Ok(text), Some(expected)) if text == *expected => {}
                (Err(_), None) => {}
                (Ok(text), expected) => {
                    wrong.push(format!("{}\n  jinja {expected:?}\n  here  {text:?}", case.template));
                }
                (Err(error), Some(_)) if REFUSED.contains(&case.template.as_str()) => drop(error),
                (Err(error), Some(_)) => refused.push(format!("{}\n  {error}", case.template)),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} render another text:\n{}\nrefused:\n{}",
        wrong.len(),
        wrong.join("\n"),
        refused.join("\n")
    );
    refused
}

#[test]
fn task_templates_render_as_jinja_or_are_refused() {
    let table = table();
    let place = Place { file: "task.yaml".into(), line: 1 };
    let refused = judge(&table.rows, &table.task, |template, row| {
        let rendered = Template::new(template, &place).and_then(|template| template.render(row));
        rendered.map_err(|error| error.one_line())
    });
    assert!(refused.is_empty(), "{} are refused:\n{}", refused.len(), refused.join("\n"));
}

#[test]
fn chat_templates_render_as_jinja_or_are_refused() {
    let table = table();
    let refused = judge(&table.rows, &table.chat, |template, row| {
        // Special tokens are variables of the template, and so are the columns here.
        let Value::Map(variables) = row.clone() else { return Err("no map".to_owned()) };
        let rendered = ChatTemplate::new(template, variables, "chat_template.jinja");
        rendered.and_then(|template| template.render(&[], false)).map_err(|error| error.one_line())
    });
    assert!(refused.is_empty(), "{} are refused:\n{}", refused.len(), refused.join("\n"));
}

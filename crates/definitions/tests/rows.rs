//! Tests that row files written by other tools give the same rows as plain JSON, or the same prompts as lm-eval 0.4.13
//! with `datasets` 5.2.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ghostlab_core::corpus::read_rows;
use ghostlab_definitions::rows::table;
use ghostlab_definitions::template::Template;
use ghostlab_definitions::value::Value;
use ghostlab_definitions::yaml::SourceLocation;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Returns the `text` column of a file, read as rows of a task.
fn task_texts(name: &str) -> Vec<String> {
    let rows = table(&fixture(name), None).unwrap();
    rows.iter().map(|row| row.value.get("text").and_then(Value::as_text).unwrap().to_owned()).collect()
}

#[test]
fn rows_from_other_tools_match_the_plain_json_rows() {
    let plain = read_rows(fixture("rows/plain.jsonl"), None).unwrap();
    assert_eq!(plain.len(), 40);
    for name in ["plain.jsonl", "array.json", "bom.jsonl", "nan.jsonl", "dictionary.parquet"] {
        let name = format!("rows/{name}");
        assert_eq!(read_rows(fixture(&name), None).unwrap(), plain, "{name} as a corpus");
        assert_eq!(task_texts(&name), plain, "{name} as a task");
    }
}

#[test]
fn windows_line_endings_are_read_as_newlines() {
    let folder = tempfile::tempdir().unwrap();
    let windows = folder.path().join("crlf.txt");
    let text = std::fs::read_to_string(fixture("rows/lf.txt")).unwrap();
    std::fs::write(&windows, text.replace('\n', "\r\n")).unwrap();
    assert_eq!(read_rows(&windows, None).unwrap(), read_rows(fixture("rows/lf.txt"), None).unwrap());
    assert_eq!(table_values(&windows), table_values(&fixture("rows/lf.txt")));
}

fn table_values(path: &Path) -> Vec<Value> {
    table(path, None).unwrap().into_iter().map(|row| row.value).collect::<Vec<_>>()
}

#[test]
fn parquet_columns_print_as_in_python() {
    let cases = std::fs::read(fixture("parquet/expected.json")).unwrap();
    let cases: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_slice(&cases).unwrap();
    let location = SourceLocation { file: "task.yaml".into(), line: 1 };
    for (name, expected) in &cases {
        let rows = table(&fixture(&format!("parquet/{name}")), None).unwrap();
        let first = &rows[0].value;
        assert_eq!(template_at("{{text}}", &location).render(first).unwrap(), expected["unused"], "{name}");
        let used = template_at("{{text}}|{{other}}", &location).render(first);
        if name.contains("binary") {
            let message = used.unwrap_err().to_string();
            assert!(message.contains("bytes") && !message.contains("dataset's columns"), "{name}: {message}");
            assert!(
                !serde_json::to_string(first).unwrap().contains("other"),
                "{name}: unread columns are not recorded"
            );
        } else {
            assert_eq!(used.unwrap(), expected["used"], "{name}");
        }
    }
    assert_eq!(cases.len(), 9);
}

fn template_at(source: &str, location: &SourceLocation) -> Template {
    Template::new(source, location).unwrap()
}

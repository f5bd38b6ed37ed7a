//! Tests for reading and rejecting row files.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::*;

fn read(name: &str, bytes: impl AsRef<[u8]>) -> Result<Vec<Row>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    table(&path, Some(vec!["a".to_owned()]))
}

fn rejection_message(name: &str, bytes: impl AsRef<[u8]>) -> String {
    let error = read(name, bytes).unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
    let message = error.to_string();
    assert!(message.contains(name), "the message does not name the file: {message}");
    message
}

fn compress_gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

const LINES: &str = "{\"a\": \"\u{2028}é\\n\", \"b\": {\"c\": [1]}}\n\n  \r\n{\"a\": null}";

#[test]
fn json_lines_and_arrays_are_read_plain_and_gzipped() {
    let list = "\n [{\"a\": \"\u{2028}é\\n\", \"b\": {\"c\": [1]}},\n {\"a\": null}]\n";
    for (name, bytes, second) in [
        ("x.jsonl", LINES.as_bytes().to_vec(), "x.jsonl:4"),
        ("X.JSON", LINES.as_bytes().to_vec(), "X.JSON:4"),
        ("x.jsonl.gz", compress_gzip(LINES), "x.jsonl.gz:4"),
        ("x.json", list.as_bytes().to_vec(), "x.json, row 2"),
        ("x.json.gz", compress_gzip(list), "x.json.gz, row 2"),
    ] {
        let rows = read(name, bytes).unwrap();
        assert_eq!(rows.len(), 2, "{name}");
        assert_eq!(json!(rows[0].value), json!({"a": "\u{2028}é\n", "b": {"c": [1]}}));
        assert!(rows[1].location.ends_with(second), "{}", rows[1].location);
    }
}

#[test]
fn invalid_row_is_rejected_with_its_line() {
    for (line, words) in [
        ("{\"a\": 1", "not JSON"),
        ("1", "a JSON object"),
        ("\"a\"", "a string: \"a\""),
        ("{\"a\": NaN,}", "not JSON"),
        ("{\"a\": \"\\ud800\"}", "not JSON"),
    ] {
        let message = rejection_message("x.jsonl", format!("{{}}\n{line}\n"));
        assert!(message.contains("x.jsonl:2") && message.contains(words), "{message}");
    }
    assert!(rejection_message("x.jsonl", b"{}\n{\"a\": \"\xff\"}").contains("offset 7"));
    assert!(rejection_message("x.json", "[{}, 3]").contains("row 2"));
    assert!(rejection_message("x.json", "[{},\n3").contains("line 2"));
    assert!(rejection_message("x.jsonl", format!("{{\"a\": {}", "[".repeat(100_000))).contains("recursion"));
}

#[test]
fn empty_damaged_and_unsupported_files_are_rejected() {
    for (name, bytes) in [
        ("x.jsonl", Vec::new()),
        ("x.jsonl", b" \n\n".to_vec()),
        ("x.json", b"[]".to_vec()),
        ("x.parquet", Vec::new()),
        ("x.json.gz", Vec::new()),
        ("x.json.gz", compress_gzip("")),
    ] {
        assert!(rejection_message(name, bytes).contains("empty"), "{name}");
    }
    let intact = compress_gzip(LINES);
    for size in [3, 12, intact.len() - 1] {
        rejection_message("x.jsonl.gz", &intact[..size]);
    }
    assert!(rejection_message("x.jsonl.gz", "no gzip, but long enough").contains("damaged"));
    assert!(rejection_message("x.tsv", "a\n1\n").contains(".parquet"));
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(table(&folder.path().join("x.jsonl"), None).unwrap_err().exit_code(), 3);
    assert!(table(folder.path(), None).unwrap_err().to_string().contains("folder"));
}

#[test]
fn missing_column_is_none_unless_columns_are_declared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.jsonl");
    std::fs::write(&path, "{\"a\": 1, \"b\": 2}\n{\"b\": 3, \"c\": 4}\n").unwrap();
    assert_eq!(table_reprs(None, &path), ["{'a': 1, 'b': 2, 'c': None}", "{'a': None, 'b': 3, 'c': 4}"]);
    assert_eq!(table_reprs(Some(vec!["a".to_owned()]), &path), ["{'a': 1, 'b': 2}", "{'b': 3, 'c': 4}"]);
}

fn table_reprs(columns: Option<Vec<String>>, path: &Path) -> Vec<String> {
    table(path, columns).unwrap().iter().map(|row| row.value.repr()).collect::<Vec<_>>()
}

/// The expected values are those that `datasets` 5.2 reads.
#[test]
fn column_with_mixed_numbers_is_converted_to_one_type() {
    for (name, text, expected) in [
        ("a.jsonl", "{\"n\": 18}\n{\"n\": 2.5}\n", ["{'n': 18.0}", "{'n': 2.5}"]),
        ("a.jsonl", "{\"n\": [1, 2.5]}\n{\"n\": [3]}\n", ["{'n': [1.0, 2.5]}", "{'n': [3.0]}"]),
        ("a.jsonl", "{\"n\": {\"x\": 1}}\n{\"n\": {\"x\": NaN}}\n", ["{'n': {'x': 1.0}}", "{'n': {'x': nan}}"]),
        (
            "a.jsonl",
            "{\"n\": 18, \"f\": 1.5}\n{\"n\": 2, \"f\": null}\n",
            ["{'n': 18, 'f': 1.5}", "{'n': 2, 'f': None}"],
        ),
        ("a.csv", "a,b\n\"x, y\",1\nz,2\n", ["{'a': 'x, y', 'b': 1}", "{'a': 'z', 'b': 2}"]),
        ("a.csv", "a,b\n1,\n2.50,True\n", ["{'a': 1.0, 'b': None}", "{'a': 2.5, 'b': True}"]),
        ("a.csv", "\u{feff}a,b\r\n,01\r\n3,-7\r\n", ["{'a': None, 'b': 1}", "{'a': 3.0, 'b': -7}"]),
        ("a.txt", "one\r\n\n", ["{'text': 'one'}", "{'text': ''}"]),
    ] {
        assert_eq!(
            {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join(name);
                std::fs::write(&path, text).unwrap();
                table(&path, None).unwrap().iter().map(|row| row.value.repr()).collect::<Vec<_>>()
            },
            expected,
            "{text}"
        );
    }
}

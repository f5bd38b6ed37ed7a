//! Checks that every rule in crates/definitions/RULES.md names a test that exists.

use std::fs;
use std::path::Path;

#[test]
fn every_harness_rule_names_an_existing_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("crates/definitions/RULES.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let mut last = None;
    let mut count = 0;
    for cells in rows.map(|row| row.split(" | ").collect::<Vec<_>>()).filter(|cells| cells[0].parse::<usize>().is_ok())
    {
        let number = cells[0];
        let test = cells[cells.len() - 1];
        count += 1;
        assert_eq!(number, count.to_string(), "a rule is missing");
        let named: Vec<&str> = test.split('`').filter(|part| !part.trim().is_empty()).collect();
        let test = match named[..] {
            ["the same"] => last.unwrap_or_else(|| panic!("rule {number} names no test")),
            [file, name] => (file, name),
            _ => panic!("rule {number} names no test: {test}"),
        };
        last = Some(test);
        let (file, name) = test;
        let path =
            if file.starts_with("crates/") { root.join(file) } else { root.join("crates/definitions/src").join(file) };
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("rule {number}, {file}: {error}"));
        let before = text.split(&format!("fn {name}()")).next().filter(|before| before.len() < text.len());
        let before = before.unwrap_or_else(|| panic!("rule {number}: {file} has no test `{name}`"));
        assert!(before.trim_end().ends_with("#[test]"), "rule {number}: `{name}` is not a test, or is ignored");
    }
    assert_eq!(count, 54);
}

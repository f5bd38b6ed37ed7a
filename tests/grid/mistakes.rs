//! Tests for rejected grid files, and for the positions in error messages.

use ghostlab::grid::Grid;

use super::fixtures::{GridFolder, Messages, VALID_GRID, valid_grid_replacing};

/// Replacements that make the valid grid invalid, as (from, to).
const WRONG_VALUES: &[(&str, &str)] = &[
    // Keys.
    ("depth: [3, 5]", "dpeth: [3, 5]"),
    ("rule: wikitext2", "rule: wikitext2, colum: x"),
    ("corpus: wiki, sequences: 32", "corpus: wiki, sequence: 32"),
    ("depth: [3, 5]\n", ""),
    ("criterion: llm-streamline\ndepth: [3, 5]\nrecovery: [none, ghosted]\n", ""),
    ("backbone: english\n", ""),
    ("{corpus: c4, length: 512}", "{corpus: c4}"),
    ("criterion: llm-streamline", "criterion: {cosine: token}"),
    // Duplicate keys, and colons without a following space, which YAML parses as part of the key.
    ("criterion: llm-streamline", "criterion: {name:shortgpt}"),
    ("{corpus: c4, length: 512}", "{corpus:c4, length: 512}"),
    ("depth: [3, 5]", "depth: [3, 5]\ndepth: [7]"),
    ("limit: 100", "limit: 100, rule: ptb"),
    // Types.
    ("depth: [3, 5]", "depth: [3, many]"),
    ("depth: [3, 5]", "depth: -3"),
    ("depth: [3, 5]", "depth: [3.5]"),
    ("depth: [3, 5]", "depth:"),
    ("rule: c4", "rule: [c4]"),
    ("sequences: 32", "sequences: [[32]]"),
    ("{path: models/english}", "models/english"),
    ("[none, ghosted]", "[none, 3]"),
    ("backbone: english", "backbone: {english: 1}"),
    // Axes.
    ("depth: [3, 5]", "depth: []"),
    ("criterion: llm-streamline", "criterion: []"),
    ("depth: [3, 5]", "depth: [3, 5, 3]"),
    ("[none, ghosted]", "[none, {name: none}]"),
    (
        "length: 512}\nevaluate",
        "length: 512}\n  - {corpus: wiki, sequences: 32, length: 512, operator_sequences: 32}\nevaluate",
    ),
    ("{corpus: c4, length: 512}", "{corpus: wiki, length: 512}"),
    ("  perplexity:\n    - {corpus: wiki, length: 512}\n    - {corpus: c4, length: 512}", "  {}"),
    ("\n    - {corpus: wiki, length: 512}\n    - {corpus: c4, length: 512}", " []"),
    // Semantic errors.
    ("depth: [3, 5]", "depth: [0, 5]"),
    ("depth: [3, 5]", "depth: [3, 16]"),
    ("depth: [3, 5]", "depth: 15"),
    ("sequences: 32", "sequences: 0"),
    ("sequences: 32, length: 512", "sequences: 32, length: 1"),
    ("sequences: 32", "operator_sequences: 33, sequences: 32"),
    ("sequences: 32", "operator_sequences: 0, sequences: 32"),
    ("{corpus: c4, length: 512}", "{corpus: c4, length: 1}"),
    ("limit: 100", "limit: 0"),
    ("backbone: english", "backbone: [english, englsh]"),
    ("corpus: wiki, sequences", "corpus: wki, sequences"),
    ("{corpus: c4, length", "{corpus: c5, length"),
    ("rule: wikitext2", "rule: wikitext"),
    ("criterion: llm-streamline", "criterion: [llm-streamlin]"),
    ("criterion: llm-streamline", "criterion: {name: llm-streamline, cosin: token}"),
    ("[none, ghosted]", "[none, ghost]"),
    ("backbones:", "name: ../up\nbackbones:"),
    // YAML syntax.
    ("depth: [3, 5]", "depth: [3, 5"),
    ("depth: [3, 5]", "\tdepth: 3"),
    ("depth: [3, 5]", "depth: *three"),
];

#[test]
fn invalid_value_is_rejected_with_its_location() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    for (from, to) in WRONG_VALUES {
        messages.add(&format!("{from:?} -> {to:?}"), folder.rejection(valid_grid_replacing(from, to), &[]));
    }
    messages.snapshot("grid_wrong_values");
}

#[test]
fn missing_file_is_rejected_with_exit_code_3_and_its_line() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    for (from, to) in [
        ("models/english", "models/french"),
        ("models/english", "wiki.txt"),
        ("path: wiki.txt", "path: wki.txt"),
        ("models/english", "models/hollow"),
        ("path: c4.txt", "path: models"),
    ] {
        messages.add(&format!("{from:?} -> {to:?}"), folder.rejection(valid_grid_replacing(from, to), &[]));
    }
    messages.snapshot("grid_absent_files");
    let error = Grid::load(&folder.root.path().join("gird.yaml"), None, &[]).unwrap_err();
    assert!(error.to_string().contains("gird.yaml") && error.exit_code() == 3, "{error}");
}

#[test]
fn missing_file_of_unused_definition_is_accepted() {
    let folder = GridFolder::new();
    let text = valid_grid_replacing("corpora:\n", "corpora:\n  later: {path: absent.txt, rule: ptb}\n");
    let grid = folder.load(text, &[]).unwrap();
    assert_eq!(grid.corpora.keys().collect::<Vec<_>>(), ["c4", "wiki"]);
}

#[test]
fn non_grid_file_is_rejected() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    for text in
        [&b""[..], b"# only\n\n---\n", b"~\n", b"- a\n- b\n", b"hello\n", b"a: 1\nb: \xff\n", b"a: 1\n---\nb: 2\n"]
    {
        messages.add(&format!("{:?}", String::from_utf8_lossy(text)), folder.rejection(text, &[]));
    }
    messages.snapshot("grid_not_a_grid");
}

#[test]
fn invalid_override_error_shows_its_text() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    for override_text in [
        "depth=7,16",
        "depth=",
        "dpeth=7",
        "calibration.sequencs=3",
        "evalute.perplexity=3",
        "calibration[1].length=3",
        "recovery=[none, none]",
        "recovery=[none",
        "depth",
        "corpora.wiki.path=wiki.txt",
        "=3",
        "calibration[0.length=3",
        "calibration[x].length=3",
        "backbone[0]=other",
        "backbone.path=models/other",
        "corpora.wkii.rule=c4",
        "nosuch.depth.count=1",
        "profile=tiny",
        "profiles.tiny.depth=3",
    ] {
        messages.add(&format!("--set {override_text:?}"), folder.rejection(VALID_GRID, &[override_text]));
    }
    messages.add(
        "--set exclude=[] --set exclude.depth=3",
        folder.rejection(VALID_GRID, &["exclude=[]", "exclude.depth=3"]),
    );
    messages.snapshot("grid_overrides");
}

#[test]
fn missing_inputs_are_reported_together() {
    let folder = GridFolder::new();
    let text = VALID_GRID
        .replace("models/english", "models/french")
        .replace("wiki.txt", "wki.txt")
        .replace("c4.txt", "c5.txt");
    let (message, code) = folder.rejection(&text, &[]);
    assert_eq!(code, 3, "{message}");
    for part in ["3 inputs of the grid are missing", "models/french", "wki.txt", "c5.txt", "grid.yaml:2:19"] {
        assert!(message.contains(part), "`{part}` is not in\n{message}");
    }
    // If there is only one error, its specific message is shown without a count.
    let (message, _) = folder.rejection(VALID_GRID.replace("c4.txt", "c5.txt"), &[]);
    assert!(message.contains("corpus not found") && !message.contains("inputs of the grid"), "{message}");
}

#[test]
fn name_with_a_slash_is_rejected_at_its_use() {
    let folder = GridFolder::new();
    let corpus = ("  wiki:", "  a/b: {path: c4.txt, rule: c4}\n  wiki:");
    for (from, to, defined, kind) in [
        ("backbone: english", "backbone: a/b", ("  english:", "  a/b:"), "backbone"),
        ("corpus: wiki, sequences", "corpus: a/b, sequences", corpus, "corpus"),
        ("{corpus: c4, length", "{corpus: a/b, length", corpus, "corpus"),
    ] {
        let (message, code) = folder.rejection(valid_grid_replacing(from, to).replace(defined.0, defined.1), &[]);
        assert_eq!(code, 2, "{message}");
        let parts = [&format!("invalid {kind} name"), "`a/b`", "without `/`", "where:    grid.yaml:"];
        assert!(parts.iter().all(|part| message.contains(*part)), "{message}");
    }
}

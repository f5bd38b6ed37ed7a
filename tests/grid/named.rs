//! Tests for backbones, corpora and tasks that are defined in separate files.

use super::fixtures::{GridFolder, Messages, VALID_GRID, valid_grid_replacing};

/// Returns the valid grid without its corpus `c4`, which the tests define in a separate file.
fn shared_grid() -> String {
    valid_grid_replacing("  c4: {path: c4.txt, rule: c4, limit: 100}\n", "")
}

#[test]
fn undefined_names_are_resolved_from_sibling_files() {
    let folder = GridFolder::new();
    folder.write("corpora/c4.yaml", "path: ../c4.txt\nrule: c4\nlimit: 9\n");
    folder.write("corpora/wiki.yaml", "path: nowhere.txt\nrule: nothing\n");
    let grid = folder.load(shared_grid(), &[]).unwrap();
    assert_eq!(grid.corpora["c4"].limit, Some(9));
    assert_eq!(
        grid.corpora["c4"].path,
        folder.root.path().join("corpora/../c4.txt"),
        "the path must be relative to the file's folder"
    );
    assert!(grid.corpora["wiki"].path.ends_with("wiki.txt"), "the grid must take precedence");
    assert_eq!(grid.entries, [folder.root.path().join("corpora/c4.yaml")], "only used files must be read");

    // Backbones, corpora and tasks are found up to three levels above the grid, even if the grid itself defines none.
    folder.write("backbones/english.yaml", "path: ../models/english\n");
    folder.write("corpora/wiki.yaml", "path: ../wiki.txt\nrule: wikitext2\n");
    folder.write("tasks/easy.yaml", "path: ../c4.txt\ntask: arc_easy\n");
    let axes = &VALID_GRID[VALID_GRID.find("backbone:").unwrap()..];
    folder.write("a/b/c/grid.yaml", &format!("{axes}  tasks: [easy, {{name: easy, bos: never}}]\n"));
    let grid = load_file(&folder, "a/b/c/grid.yaml").unwrap();
    assert_eq!((grid.entries.len(), grid.backbones["english"].layers), (4, 16));
    assert_eq!(grid.tasks["easy"].builtin().map(|task| task.name), Some("arc_easy"));
    folder.write("a/b/c/d/grid.yaml", axes);
    assert!(load_file(&folder, "a/b/c/d/grid.yaml").is_err(), "four levels must be rejected");
    // The nearest file takes precedence.
    folder.write("a/b/corpora/c4.yaml", "path: ../../../c4.txt\nrule: ptb\n");
    assert_eq!(load_file(&folder, "a/b/c/grid.yaml").unwrap().corpora["c4"].rule, "ptb");
}

fn load_file(folder: &GridFolder, file: &str) -> ghostlab::error::Result<ghostlab::grid::Grid> {
    ghostlab::grid::Grid::load(&folder.root.path().join(file), None, &[])
}

#[test]
fn grid_profile_and_overrides_apply_in_order() {
    let folder = GridFolder::new();
    folder.write("corpora/c4.yaml", "path: ../c4.txt\nrule: c4\nlimit: 9\n");
    let refined = valid_grid_replacing("c4: {path: c4.txt, rule: c4, limit: 100}", "c4: {limit: 8}");
    assert_eq!(limit_of(&folder, &shared_grid(), &[]), Some(9));
    assert_eq!(limit_of(&folder, &refined, &[]), Some(8));
    let profiled = format!("{refined}profile: tiny\nprofiles: {{tiny: {{corpora: {{c4: {{limit: 7}}}}}}}}\n");
    assert_eq!(limit_of(&folder, &profiled, &[]), Some(7));
    assert_eq!(limit_of(&folder, &profiled, &["corpora.c4.limit=6"]), Some(6));
    assert_eq!(limit_of(&folder, &shared_grid(), &["corpora.c4.limit=6"]), Some(6));
    assert_eq!(limit_of(&folder, &shared_grid(), &["corpora.c4.limit="]), None);

    // Names used only in an override or a profile are also resolved to files.
    folder.write("corpora/other.yaml", "path: ../wiki.txt\nrule: ptb\n");
    let grid = folder.load(VALID_GRID, &["calibration.corpus=other", "corpora.other.limit=3"]).unwrap();
    assert_eq!((grid.calibration[0].corpus.as_str(), grid.corpora["other"].limit), ("other", Some(3)));
    let text = format!(
        "{VALID_GRID}profile: p\nprofiles: {{p: {{evaluate: {{perplexity: {{corpus: other, length: 8}}}}}}}}\n"
    );
    assert!(folder.load(text, &[]).unwrap().corpora.contains_key("other"));
    let text = format!("{VALID_GRID}include: {{calibration: {{corpus: [other], sequences: 2, length: 8}}}}\n");
    assert!(folder.load(text, &[]).unwrap().corpora.contains_key("other"));
}

fn limit_of(folder: &GridFolder, text: &str, overrides: &[&str]) -> Option<usize> {
    folder.load(text, overrides).unwrap().corpora["c4"].limit
}

#[test]
fn errors_in_an_entry_file_report_its_location() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    for text in [
        "path: ../c4.txt\nrule: c5\n",
        "path: ../c4.txt\nrule: c4\nlimt: 3\n",
        "path: ../c4.txt\n",
        "path: [a]\nrule: c4\n",
        "# nothing\n",
        "- a\n",
        "path: [\n",
        "path: a\npath: b\n",
    ] {
        folder.write("corpora/c4.yaml", text);
        messages.add(&format!("{text:?}"), folder.rejection(shared_grid(), &[]));
    }
    messages.snapshot("grid_named_files");
    folder.write("corpora/c4.yaml", "path: c4.txt\nrule: c4\n");
    let (message, code) = folder.rejection(shared_grid(), &[]);
    assert!(message.contains("where:    corpora/c4.yaml:1:7\n") && code == 3, "{message}");
    assert!(
        message.contains("a file at corpora/c4.txt") && message.contains("relative to the folder of the entry's file"),
        "{message}"
    );
}

#[test]
fn unknown_name_error_lists_names_and_searched_folders() {
    let folder = GridFolder::new();
    folder.write("corpora/c44.yaml", "path: ../c4.txt\nrule: c4\n");
    folder.write("corpora/notes.txt", "");
    let (message, code) = folder.rejection(shared_grid(), &[]);
    for part in [
        "unknown corpus `c4`",
        "where:    grid.yaml:14:16",
        "expected: one of c44, wiki",
        "did you mean `c44`?",
        "or add `c4.yaml` to one of",
        "\n            corpora\n",
        "\n            experiments/corpora",
    ] {
        assert!(message.contains(part), "expected `{part}` in\n{message}");
    }
    assert_eq!(code, 2);
    folder.assert_rejected(
        VALID_GRID,
        &["backbone=french"],
        "--set backbone=french",
        &["unknown backbone `french`", "one of english"],
    );
    let text = format!("{VALID_GRID}  tasks: [copa]\n");
    folder.assert_rejected(&text, &[], "16:11", &["unknown task `copa`", "a task that the grid or a file defines"]);
    folder.assert_rejected(
        VALID_GRID,
        &["corpora.c44.limit=3"],
        "--set corpora.c44.limit=3",
        &["unknown key `corpora.c44`", "did you mean `corpora.c4`?"],
    );
}

//! Tests for accepted grid files and the resulting cells.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ghostlab::criterion::Depth;
use ghostlab::grid::Grid;

use super::fixtures::{GridFolder, VALID_GRID, examples, labels, valid_grid_replacing, write_backbone};

#[test]
fn valid_grid_is_read_with_its_defaults() {
    let folder = GridFolder::new();
    let grid = folder.load(VALID_GRID, &[]).unwrap();
    assert_eq!(grid.name, "grid");
    assert_eq!(grid.depth, [3, 5]);
    assert_eq!(grid.backbones["english"].layers, 16);
    assert_eq!(grid.backbones["english"].path, folder.root.path().join("models/english"));
    assert_eq!(grid.corpora["c4"].limit, Some(100));
    assert_eq!(grid.corpora["wiki"].limit, None);
    assert_eq!((grid.calibration[0].seed, grid.calibration[0].operator_sequences), (0, 32));
    assert_eq!(grid.calibration[0].to_string(), "wiki:32x512@0");
    let resolved = grid.resolved().unwrap();
    assert_eq!(resolved["calibration"][0]["seed"], 0);
    assert_eq!(resolved["corpora"]["wiki"]["path"], folder.root.path().join("wiki.txt").to_str().unwrap());
}

#[test]
fn cells_follow_the_axes_with_one_dense_cell_per_backbone() {
    let folder = GridFolder::new();
    let text = valid_grid_replacing("recovery: [none, ghosted]", "recovery: [none, {name: ghosted, solver: svd}]")
        .replace("backbone: english", "backbone: [english, again]")
        .replace("models/english}", "models/english}\n  again: {path: models/english}")
        .replace(
            "length: 512}\nevaluate",
            "length: 512}\n  - {corpus: c4, sequences: 8, length: 64, seed: 7, operator_sequences: 2}\nevaluate",
        );
    let cells = folder.load(text, &[]).unwrap().cells;
    assert_eq!(cells.len(), 2 * (1 + 2 * 2 * 2));
    assert_eq!(cells.iter().filter(|cell| cell.is_dense()).count(), 2);
    assert_eq!(
        labels(&cells[..10]),
        [
            "english/dense",
            "english/llm-streamline/3/none/wiki:32x512@0",
            "english/llm-streamline/3/none/c4:8x64@7(operator_sequences=2)",
            "english/llm-streamline/3/ghosted(solver=svd)/wiki:32x512@0",
            "english/llm-streamline/3/ghosted(solver=svd)/c4:8x64@7(operator_sequences=2)",
            "english/llm-streamline/5/none/wiki:32x512@0",
            "english/llm-streamline/5/none/c4:8x64@7(operator_sequences=2)",
            "english/llm-streamline/5/ghosted(solver=svd)/wiki:32x512@0",
            "english/llm-streamline/5/ghosted(solver=svd)/c4:8x64@7(operator_sequences=2)",
            "again/dense",
        ]
    );
    let dense = &cells[0];
    assert_eq!((dense.depth, &dense.recovery, &dense.calibration), (Depth::default(), &None, &None));
}

#[test]
fn overrides_apply_before_the_grid_is_validated() {
    let folder = GridFolder::new();
    let grid = folder
        .load(
            VALID_GRID,
            &[
                "depth=7,9,11",
                "calibration.sequences=64",
                "evaluate.perplexity[1].length=128",
                "name=wide",
                "corpora.c4.limit=5",
            ],
        )
        .unwrap();
    assert_eq!(grid.depth, [7, 9, 11]);
    assert_eq!(grid.calibration[0].sequences, 64);
    assert_eq!((grid.evaluate.perplexity[0].length, grid.evaluate.perplexity[1].length), (512, 128));
    assert_eq!((grid.name.as_str(), grid.corpora["c4"].limit), ("wide", Some(5)));
    let grid = folder.load(VALID_GRID, &["recovery=[{name: ghosted, solver: svd}]", "depth=2"]).unwrap();
    assert_eq!((grid.recovery[0].to_string().as_str(), grid.depth), ("ghosted(solver=svd)", vec![Depth::layers(2)]));
    // Paths in overrides are relative to the current folder, which is the temporary folder here (see
    // `GridFolder::new`).
    let file = tempfile::NamedTempFile::new().unwrap();
    let name = file.path().file_name().unwrap().to_str().unwrap();
    let grid = folder.load(VALID_GRID, &[&format!("corpora.wiki.path={name}")]).unwrap();
    assert_eq!(grid.corpora["wiki"].path, Path::new(name));
}

#[test]
fn english_grid_of_the_tests_loads() {
    // Recreate the folder structure of a checkout, with empty files.
    let root = tempfile::tempdir().unwrap();
    write_backbone(&root.path().join("shared/real/backbone"), 16);
    for corpus in ["wikitext2-validation.parquet", "wikitext2-test.parquet", "c4-sample.jsonl.gz"] {
        write_file(root.path(), &format!("shared/real/corpora/{corpus}"), "");
    }
    let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real");
    for folder in ["", "backbones", "corpora", "tasks"] {
        for file in fs::read_dir(real.join(folder)).unwrap().map(|file| file.unwrap().path()) {
            if file.is_file() {
                let name = Path::new("checkout/tests/real").join(file.strip_prefix(&real).unwrap());
                write_file(root.path(), name.to_str().unwrap(), &fs::read_to_string(&file).unwrap());
            }
        }
    }
    let file = root.path().join("checkout/tests/real/english.yaml");
    let grid = Grid::load(&file, None, &[]).unwrap();
    assert_eq!((grid.name.as_str(), grid.cells.len(), grid.entries.len()), ("english", 9, 4));
    assert_eq!(grid.cells[8].to_string(), "english.streamline-5.ghosted");
    assert_eq!(grid.corpora["c4"].limit, Some(100));
    assert!(grid.backbones["english"].path.ends_with("backbones/../../../../shared/real/backbone"));
}

fn write_file(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn documented_example_grids_load() {
    let folder = GridFolder::new();
    for model in ["my-llama", "small-llama", "large-llama"] {
        folder.add_backbone(model, 32);
    }
    for file in [
        "text/train.jsonl.gz",
        "text/test.parquet",
        "text/reviews.jsonl",
        "tasks/hellaswag.jsonl",
        "tasks/my_copa.jsonl",
    ] {
        folder.write(&format!("grids/{file}"), "");
    }
    fs::create_dir_all(folder.root.path().join("grids/tasks/arc_easy")).unwrap();
    // Two criteria, two depths (25 % is 8 layers) and three recoveries, in addition to the dense backbone.
    assert_eq!(load_nth(&folder, "README.md", 0, None).cells.len(), 1 + 2 * 2 * 3);
    let grid = load_nth(&folder, "docs/grid.md", 0, None);
    // For each of 2 backbones: 3 criteria, depths 7, 8 and 12, and 6 calibrations (2 at depth 7). There are 4
    // recoveries, or 3 for the large backbone. The included criterion has no recovery and 6 calibrations.
    assert_eq!(grid.cells.len(), 2 + 3 * (4 + 3) * (2 + 6 + 6) + 2 * 6);
    assert_eq!((grid.depth, grid.profile.as_deref()), ([7, 8, 12].map(Depth::layers).to_vec(), Some("full")));
    assert_eq!(load_nth(&folder, "docs/grid.md", 0, Some("tiny")).cells.len(), 1 + 3 * 3 * 4 + 1);
    assert_eq!(labels(&load_nth(&folder, "docs/grid.md", 1, None).cells), ["small/dense", "large/dense"]);
    let cells = load_nth(&folder, "docs/grid.md", 2, None).cells;
    let names: Vec<String> = cells.iter().map(ToString::to_string).collect();
    let sublayers = ["llm-drop-attention-8", "llm-drop-mlp-4", "llm-drop-sublayers-12", "finercut-sublayers-2"];
    assert_eq!(names[1..], sublayers.map(|cell| format!("small.{cell}.none")));
}

fn load_nth(folder: &GridFolder, document: &str, nth: usize, profile: Option<&str>) -> Grid {
    folder.write("grids/grid.yaml", &examples(document)[nth]);
    Grid::load(&folder.root.path().join("grids/grid.yaml"), profile, &[]).unwrap()
}

/// Copies the paper's grids and the files that define their entries. Models have zero weights, and data files are
/// empty.
fn copy_paper_grids(target: &GridFolder) {
    let experiments = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    for folder in ["", "backbones", "corpora", "tasks", "profiles"] {
        for entry in fs::read_dir(experiments.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            if !path.is_file() {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            target.write(&format!("experiments/{folder}/{name}"), &text);
            let named = text.lines().find_map(|line| line.strip_prefix("path: ../../")).unwrap_or_default();
            match folder {
                "backbones" => target.add_backbone(name.trim_end_matches(".yaml"), 32),
                "corpora" => target.write(named, ""),
                "tasks" => target.write(&format!("{named}/test.jsonl"), ""),
                _ => {}
            }
        }
    }
}

#[test]
fn paper_grids_use_released_orders_if_available() {
    let folder = GridFolder::new();
    copy_paper_grids(&folder);
    for artifact in ["table2", "table3", "tableA6", "tableA7"] {
        let file = folder.root.path().join(format!("experiments/{artifact}.yaml"));
        let grid = Grid::load(&file, Some("paper"), &[]).unwrap();
        let orders: BTreeSet<(&str, &str)> = grid
            .cells
            .iter()
            .filter_map(|cell| Some((cell.backbone.as_str(), cell.criterion.as_ref()?)))
            .filter(|(_, criterion)| criterion.name == "shortened-llama")
            .map(|(backbone, criterion)| (backbone, criterion.resolved["order"].as_str().unwrap()))
            .collect();
        assert_eq!(orders.len(), grid.backbones.len(), "{artifact}: {orders:?}");
        for (backbone, order) in orders {
            let released = ["llama-2-7b", "llama-3-8b"].contains(&backbone);
            assert_eq!(order, if released { "released" } else { "measured" }, "{artifact}: {backbone}");
        }
    }
}

//! Tests for tasks in a grid and for rejected task entries.

use super::*;

#[test]
fn task_columns_are_in_tables_and_every_choice_is_stored() {
    let world = World::new();
    add_tasks(&world);
    let output = world.run(&[]);
    let screen = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(screen.lines().next().unwrap().contains("copa  rte(limit=1)  average  seconds"), "{screen}");
    let rows = read_rows(&world.path("results/grid/results.csv"));
    for row in &rows[1..] {
        let [copa, rte, average] =
            ["copa", "rte(limit=1)", "average"].map(|name| row[column_index(&rows, name)].parse::<f64>().unwrap());
        assert!((average - (copa + rte) / 2.0).abs() < 1e-9 && (0.0..=100.0).contains(&copa));
        assert!(row[column_index(&rows, "copa stderr")].parse::<f64>().unwrap() >= 0.0);
    }
    let dense = common::json(&world.path("results/grid/lm_eval").join("tiny.dense.json"));
    assert_eq!(dense["n-samples"]["rte"], json!({"original": 2, "effective": 1}));
    let markdown = std::fs::read_to_string(world.path("results/grid/results.md")).unwrap();
    assert!(markdown.contains("all 6 documents (part of the published split)"), "{markdown}");
    let parquet = std::fs::File::open(world.path("results/grid/documents.parquet")).unwrap();
    let frame = {
        use polars::prelude::{ParquetReader, SerReader};
        ParquetReader::new(parquet).finish().unwrap()
    };
    assert_eq!(frame.height(), 9 * (6 * 2 + 2), "expected one row per cell and choice");
}

#[test]
fn task_errors_report_their_location() {
    let world = World::new();
    add_tasks(&world);
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    for (from, to, code, words) in [
        ("tasks: [copa,", "tasks: [coppa,", 2, ["grid.yaml:18", "did you mean `copa`?"]),
        (
            "  copa: {path: copa.jsonl}",
            "  copa: {path: copa.jsonl, task: copy}",
            2,
            ["grid.yaml:7", "did you mean `copa`?"],
        ),
        ("path: rte.jsonl", "path: nowhere.jsonl", 3, ["grid.yaml:8", "nowhere.jsonl"]),
        ("limit: 1", "limt: 1", 2, ["grid.yaml:18", "did you mean `limit`?"]),
        ("limit: 1", "limit: 0", 2, ["grid.yaml:18", "found"]),
        ("limit: 1", "bos: maybe", 2, ["grid.yaml:18", "never"]),
    ] {
        assert!(grid.contains(from), "{from}");
        world.write("grid.yaml", grid.replacen(from, to, 1));
        world.assert_rejected(&[], code, &words);
    }
    world.write("grid.yaml", &grid);
    world.write("copa.jsonl", "{\"premise\": 3}\n");
    world.assert_rejected(&[], 2, &["copa", "copa.jsonl"]);
}

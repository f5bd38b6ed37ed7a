//! Tests for the columns that distinguish cells in printed tables and in results files.

use super::*;

#[test]
fn tables_and_compare_show_the_seed_in_which_cells_differ() {
    let world = World::new();
    let seeds =
        ["--set", "calibration=[{corpus: train, sequences: 8, length: 64, seed: [0, 1]}]", "--set", "name=seeds"];
    let arguments = [&["run", "grid.yaml", "--set", "depth=2", "--layout", "wide"], &seeds[..]].concat();
    let wide = run_ok(&world, &arguments);
    assert!(wide.contains("seed 0") && wide.contains("seed 1"), "{wide}");
    let same = run_ok(&world, &["compare", "results/seeds", "results/seeds"]);
    assert!(same.contains("common values are the same") && !same.contains("only in"), "{same}");

    let rows = read_rows(&world.path("results/seeds/results.csv"));
    let ghosted = rows[1..].iter().filter(|row| row[column_index(&rows, "recovery")] == "ghosted");
    let found: Vec<_> = ghosted
        .map(|row| ["corpus", "sequences", "length", "seed"].map(|name| row[column_index(&rows, name)].clone()))
        .collect();
    assert_eq!(found, [["train", "8", "64", "0"], ["train", "8", "64", "1"]]);

    // If each results folder has only one seed, `compare` pairs their numbers and reports the different seeds.
    for (name, seed) in [("one", "0"), ("two", "1")] {
        let name = format!("name={name}");
        let seed = format!("calibration.seed={seed}");
        run_ok(&world, &["run", "grid.yaml", "--set", "depth=2", "--set", &name, "--set", &seed]);
    }
    let compared = run_ok(&world, &["compare", "results/one", "results/two"]);
    assert!(
        compared.contains("paired despite different settings") && compared.contains("calibration.seed"),
        "{compared}"
    );
    assert!(!compared.contains("only in"), "{compared}");
    // Only one of the two seeds in `seeds` is also in `two`.
    let half = run_ok(&world, &["compare", "results/seeds", "results/two"]);
    assert!(half.contains("common values are the same") && half.contains("only in A: "), "{half}");
    assert!(!half.contains("only in B") && !half.contains("values that differ"), "{half}");
}

#[test]
fn method_options_have_separate_columns_in_files() {
    let world = World::new();
    world.run_ok(&[
        "--set",
        "depth=2",
        "--set",
        "recovery=[{name: ghosted, solver: [normal, svd]}]",
        "--set",
        "name=grid",
    ]);
    let rows = read_rows(&world.path("results/grid/results.csv"));
    let found: Vec<_> = rows[2..]
        .iter()
        .map(|row| {
            (row[column_index(&rows, "recovery.name")].clone(), row[column_index(&rows, "recovery.solver")].clone())
        })
        .collect();
    let expected = ["normal", "svd"].map(|solver| ("ghosted".to_owned(), solver.to_owned()));
    assert_eq!(found, expected);
    assert_eq!(rows[1][column_index(&rows, "recovery.solver")], "", "the dense backbone has a solver");
}

//! Tests for files that users keep in output folders.

use super::*;

#[cfg(unix)]
#[test]
fn output_folder_must_not_contain_an_input() {
    let world = World::new();
    fs::create_dir(world.path("texts")).unwrap();
    fs::rename(world.path("train.txt"), world.path("texts/train.txt")).unwrap();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("path: train.txt", "path: texts/train.txt"));
    std::os::unix::fs::symlink(world.path("backbone"), world.path("link")).unwrap();
    fs::create_dir(world.path("experiments")).unwrap();
    let overlap_error = "the output must not overlap with an input";
    for to in [
        "backbone",
        "backbone/",
        "link",
        "link/out",
        "backbone/pruned",
        "new/../backbone",
        "texts",
        "data",
        "data/store",
        "data/store/out",
        "experiments/out",
        ".",
        "..",
    ] {
        assert_rejected(&world, &["export", "grid.yaml", "depth/1/none", "--to", to], &[overlap_error]);
        // `run` writes to a subfolder named after the grid, so it rejects only some of these folders.
        if ["backbone", "link", "backbone/pruned", "data/store", "experiments/out"].contains(&to) {
            assert_rejected(&world, &["run", "grid.yaml", "--results", to], &[overlap_error]);
        }
    }
    assert_rejected(
        &world,
        &["run", "grid.yaml", "--results", ".", "--set", "name=backbone"],
        &[overlap_error, "the backbone tiny"],
    );
    run_ok(&world, &["export", "grid.yaml", "depth/1/none", "--to", "texts/out"]);
    assert!(world.path("texts/out/config.json").is_file() && world.path("texts/train.txt").is_file());
}

#[test]
fn export_keeps_user_files_and_rejects_changed_files() {
    let world = World::new();
    run_ok(&world, &export_arguments("depth/1/ghosted"));
    world.write("out/model-q4.gguf", "mine");
    fs::create_dir(world.path("out/notes")).unwrap();
    world.write("out/notes/mine.txt", "mine");
    run_ok(&world, &export_arguments("depth/2/none"));
    assert!(!world.path("out/modeling_ghostlab.py").exists(), "files of the earlier export remain");
    for name in ["out/model-q4.gguf", "out/notes/mine.txt"] {
        assert_eq!(fs::read_to_string(world.path(name)).unwrap(), "mine", "{name}");
    }
    let card = fs::read_to_string(world.path("out/README.md")).unwrap();
    world.write("out/README.md", format!("{card}\nMine.\n"));
    assert_rejected(&world, &export_arguments("depth/1/none"), &["README.md", "has changed since ghostlab wrote it"]);
    fs::rename(world.path("out/README.md"), world.path("out/mine.md")).unwrap();
    run_ok(&world, &export_arguments("depth/1/none"));
    // Earlier versions did not write a list of files into their exports.
    fs::remove_file(world.path("out/.ghostlab.sha256")).unwrap();
    assert_rejected(&world, &export_arguments("depth/1/none"), &["earlier versions wrote none"]);
    run_ok(&world, &["run", "grid.yaml"]);
    assert_rejected(
        &world,
        &["export", "grid.yaml", "depth/1/none", "--to", "results/grid"],
        &["that contains results"],
    );
}

fn export_arguments(cell: &'static str) -> [&'static str; 5] {
    ["export", "grid.yaml", cell, "--to", "out"]
}

#[test]
fn user_files_in_results_are_kept_or_reported_by_name() {
    let world = World::new();
    add_task(&world);
    world.run_ok(&[]);
    let names = ["latency.parquet", "lm_eval/mine.json", "wide.md", "notes.txt"];
    for name in names {
        world.write(&format!("results/grid/{name}"), "mine");
    }
    world.run_ok(&[]);
    for name in names {
        assert_eq!(fs::read_to_string(world.path("results/grid").join(name)).unwrap(), "mine", "{name}");
    }
    let never = "a file that ghostlab did not write";
    assert_rejected(&world, &["run", "grid.yaml", "--layout", "wide"], &["results/grid/wide.md", never]);
    fs::remove_file(world.path("results/grid/wide.md")).unwrap();
    world.run_ok(&["--layout", "wide"]);
    assert!(["wide.md", "wide.tex", "results.tex"].iter().all(|name| world.path("results/grid").join(name).is_file()));
    world.run_ok(&[]);
    assert!(!world.path("results/grid/wide.md").exists(), "the file of the earlier run was not removed");
    world.write("results/grid/results.csv", "mine");
    assert_rejected(&world, &["run", "grid.yaml"], &["results/grid/results.csv", "has changed since"]);
    // In this world, the user's file exists before the first run.
    let world = World::new();
    fs::create_dir_all(world.path("results/grid")).unwrap();
    world.write("results/grid/results.csv", "mine");
    assert_rejected(&world, &["run", "grid.yaml"], &["results/grid/results.csv", never]);
    let new_stages: Vec<String> =
        read_files(&world.path("data")).into_keys().filter(|name| name.contains("-v")).collect();
    assert_eq!(new_stages, Vec::<String>::new());
}

#[cfg(unix)]
#[test]
fn score_and_init_overwrite_only_replaceable_files() {
    let world = World::new();
    fs::write(world.path("mine.json"), "{}").unwrap();
    std::os::unix::fs::symlink(world.path("mine.json"), world.path("link.json")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(world.path("pipe")).status().unwrap().success());
    for (to, words) in [
        ("backbone/config.json", "the backbone backbone, an input"),
        ("test.jsonl", "the text test, an input"),
        ("link.json", "a link"),
        ("pipe", "a pipe"),
        ("backbone", "a folder"),
        ("/dev/null", "a device"),
    ] {
        assert_rejected(&world, &score_arguments(to, &[]), &[words]);
        assert_rejected(&world, &score_arguments(to, &["--force"]), &[words]);
    }
    assert_rejected(&world, &score_arguments("mine.json", &[]), &["mine.json", "--force"]);
    // A generated file may be replaced as long as the user has not changed it.
    for _ in 0..2 {
        run_ok(&world, &score_arguments("own.json", &[]));
    }
    let named_output = fs::read_to_string(world.path("own.json")).unwrap();
    assert!(serde_json::from_str::<Value>(&named_output).unwrap()["results"]["test@64"].is_object());
    world.write("own.json", named_output.replace("test@64", "mine@64"));
    assert_rejected(&world, &score_arguments("own.json", &[]), &["own.json", "--force"]);
    for name in ["own.json", "mine.json"] {
        run_ok(&world, &score_arguments(if name == "own.json" { "own.json" } else { "mine.json" }, &["--force"]));
        assert!(common::json(&world.path(name))["results"]["test@64"].is_object());
    }
    fs::create_dir(world.path("texts")).unwrap();
    fs::copy(world.path("train.txt"), world.path("texts/mine.txt")).unwrap();
    for (to, words) in [
        ("texts/mine.txt", ", an input"),
        ("backbone/config.json", ", an input"),
        ("backbone/model.safetensors", ", an input"),
        ("link.json", "a link"),
        ("pipe", "a pipe"),
        ("/dev/null", "a device"),
    ] {
        assert_rejected(&world, &init_arguments(to), &[words]);
    }
    run_ok(&world, &init_arguments("grid.yaml"));
    run_ok(&world, &init_arguments("backbone/grid.yaml"));
    run_ok(&world, &init_arguments("backbone/grid.yaml"));
}

fn score_arguments(to: &'static str, more: &[&'static str]) -> Vec<&'static str> {
    let base = ["score", "backbone", "--perplexity", "test.jsonl@64", "--windows", "2", "--output", to];
    [&base[..], more].concat()
}

fn init_arguments(to: &'static str) -> [&'static str; 7] {
    ["init", "backbone", "--corpus", "texts/mine.txt", "--to", to, "--force"]
}

#[test]
fn manual_pages_replace_only_unmodified_generated_pages() {
    let world = World::new();
    for _ in 0..2 {
        run_ok(&world, &["man", "--to", "man1"]);
    }
    world.write("man1/ghostlab-run.1", "mine");
    assert_rejected(&world, &["man", "--to", "man1"], &["man1/ghostlab-run.1", "has changed"]);
    fs::create_dir(world.path("other")).unwrap();
    world.write("other/ghostlab.1", "mine");
    assert_rejected(&world, &["man", "--to", "other"], &["other/ghostlab.1", "did not write"]);
}

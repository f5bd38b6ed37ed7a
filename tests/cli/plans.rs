//! Tests for plans, interrupted runs, results folders and output streams.

use super::*;

#[test]
fn stopped_run_returns_the_interrupted_exit_code() {
    use ghostlab::grid::Grid;
    use ghostlab::pipeline::exec::{RunEnv, run};
    let world = World::new();
    let grid = Grid::load(&world.path("grid.yaml"), None, &[]).unwrap();
    let store = ghostlab_store::Store::open(&world.path("store"), stage::STORE_WORDS).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(true);
    let error = run(&grid, RunEnv { stop: &stop, ..RunEnv::new(&store) }).unwrap_err();
    assert_eq!(error.exit_code(), 130);
}

#[test]
fn job_above_memory_limit_is_rejected_before_any_work() {
    let world = World::new();
    world.assert_rejected(&["--memory", "0.001"], 3, &["memory limit", "backbone tiny", "0.00 GB (--memory); "]);
    let kinds = String::from_utf8(world.ghostlab(&["cache", "ls"]).stdout).unwrap();
    assert!(kinds.contains("tokens-v") && !kinds.contains("activations-v") && !kinds.contains("scores-v"), "{kinds}");
    // The flag suggested by the hint fixes the error.
    let log = String::from_utf8(world.run(&["--memory", "0.001"]).stderr).unwrap();
    let suggested = log.split_once("limit with --memory ").unwrap().1.split_whitespace().next().unwrap();
    world.run_ok(&["--memory", suggested]);
    // Showing stored results needs no memory.
    world.run_ok(&["--memory", "0.001"]);
}

#[test]
fn plan_and_run_reject_inputs_with_the_same_message() {
    let no_change: &dyn Fn(&World) = &|_| {};
    for (change, more, code) in [
        (no_change, &["--memory", "0.001"][..], 3),
        (no_change, &["--set", "calibration.length=100000"], 2),
        (no_change, &["--set", "evaluate.perplexity.length=100000"], 2),
        (&|world| halve_file(world, "backbone/model.safetensors"), &[], 2),
        (&|world| halve_file(world, "backbone/tokenizer.json"), &[], 2),
        (&|world| std::fs::remove_file(world.path("train.txt")).unwrap(), &[], 3),
        (&|world| world.write("test.jsonl", "{\"text\": 3}\n"), &[], 2),
    ] {
        let [run, plan] = ["run", "plan"].map(|command| {
            let world = World::new();
            change(&world);
            let (code, lines) = run_quietly(&world, command, more);
            (code, lines.join("\n").replace(&world.folder.path().display().to_string(), ""))
        });
        assert_eq!(run.0, Some(code), "{more:?}: {}", run.1);
        assert_eq!(run, plan, "{more:?}");
    }
}

fn run_quietly(world: &World, command: &str, more: &[&str]) -> (Option<i32>, Vec<String>) {
    let output = world.ghostlab(&[&[command, "grid.yaml", "-q"], more].concat());
    let text = String::from_utf8(output.stderr).unwrap();
    // Skip the lines that show the free memory, which may change between two calls.
    let lines: Vec<String> = text.lines().filter(|line| !line.contains("found:")).map(str::to_owned).collect();
    (output.status.code(), lines)
}

fn halve_file(world: &World, name: &str) {
    let bytes = std::fs::read(world.path(name)).unwrap();
    world.write(name, &bytes[..bytes.len() / 2]);
}

fn count_entries(folder: &Path) -> u64 {
    let items = std::fs::read_dir(folder).unwrap().map(|item| item.unwrap().path());
    items.map(|path| 1 + if path.is_dir() { count_entries(&path) } else { 0 }).sum()
}

#[test]
fn planned_inodes_are_an_upper_bound_of_created_inodes() {
    let world = World::large();
    let plan =
        || -> Value { serde_json::from_slice(&world.ghostlab(&["plan", "grid.yaml", "--json"]).stdout).unwrap() };
    let before = plan();
    let run = &before["answer"]["grids"][0]["cost"]["run"];
    let reported = run["inodes"].as_u64().unwrap();
    let had = count_entries(&world.path("data/store"));
    assert!(run["free_inodes"].is_null() || run["free_inodes"].as_u64().unwrap() > 0);
    let text = String::from_utf8(world.ghostlab(&["plan", "grid.yaml"]).stdout).unwrap();
    assert!(text.contains("inodes: at most "), "{text}");
    world.run_ok(&[]);
    let created = count_entries(&world.path("data/store")) - had;
    assert!(created <= reported && reported <= 3 * created, "{created} inodes created, {reported} estimated");
}

#[test]
fn run_with_overrides_has_a_separate_results_folder() {
    let world = World::new();
    add_tasks(&world);
    world.run_ok(&[]);
    let before = read_table_files(&world);
    let log = world.run_ok(&["--set", "depth=2"]);
    assert_eq!(read_table_files(&world), before);
    let folder = file_names(&world.path("results")).into_iter().find(|name| name.starts_with("grid+depth=2-")).unwrap();
    assert!(log.contains(&folder), "the output does not name the folder: {log}");
    assert_eq!(read_rows(&world.path("results").join(&folder).join("results.csv")).len(), 1 + 5);
    assert_eq!(file_names(&world.path("results").join(&folder).join("lm_eval")).len(), 5);
    // A run of the changed grid file replaces all files that the previous run wrote to `results/grid`.
    world.write("results/grid/notes.txt", "mine");
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("depth: [1, 2]", "depth: [2]"));
    let log = world.run_ok(&[]);
    assert!(log.contains("contains a run with other settings (depth)"), "{log}");
    assert_eq!(read_rows(&world.path("results/grid/results.csv")).len(), 1 + 5);
    assert_eq!(file_names(&world.path("results/grid/lm_eval")).len(), 5, "samples of the earlier run remain");
    assert_eq!(std::fs::read_to_string(world.path("results/grid/notes.txt")).unwrap(), "mine");
    assert_eq!(file_names(&world.path("results")).len(), 2, "partial files remain");
}

fn read_table_files(world: &World) -> Vec<Vec<u8>> {
    ["results.csv", "run.json", "documents.parquet"]
        .map(|name| std::fs::read(world.path("results/grid").join(name)).unwrap())
        .to_vec()
}

#[test]
fn closed_pipe_ends_the_output_without_error() {
    let world = World::new();
    world.run_ok(&[]);
    let experiments = concat!(env!("CARGO_MANIFEST_DIR"), "/experiments");
    let record = common::json(&world.path("results/grid/run.json"));
    let key = record["cells"][0]["made_from"][0]["key"].as_str().unwrap().to_owned();
    let commands: [&[&str]; 18] = [
        &["cache", "ls"],
        &["cache", "ls", "--all"],
        &["cache", "verify"],
        &["cache", "gc"],
        &["cache", "path", &key],
        &["status", "--all"],
        &["plan", "grid.yaml"],
        &["explain", "grid.yaml", "dense"],
        &["run", "grid.yaml"],
        &["run", "grid.yaml", "--events"],
        &["compare", "results/grid", "results/grid"],
        &["reproduce", "--experiments", experiments],
        &["reproduce", "table1", "--experiments", experiments],
        &["report"],
        &["audit"],
        &["schema"],
        &["--help"],
        &["--version"],
    ];
    for arguments in commands {
        let mut child = world.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !log.contains("panicked"), "{arguments:?}: {}: {log}", output.status);
    }
    assert_eq!(world.command(&["schema"]).stdout(open_full_device()).output().unwrap().status.code(), Some(3));
    world.write("test.jsonl", std::fs::read_to_string(world.path("test.jsonl")).unwrap().replace("w7", "w8"));
    assert!(world.command(&["run", "grid.yaml"]).stderr(open_full_device()).output().unwrap().status.success());
}

/// Opens `/dev/full`, to which every write fails. Losing output to a full disk is an error, unlike writing to a closed
/// pipe. Losing progress messages does not stop a run.
fn open_full_device() -> std::fs::File {
    std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap()
}

#[test]
fn partial_cell_name_resolves_or_lists_candidates() {
    let world = World::new();
    // `explain` accepts a cell's full name, a suffix of the name, or the notation of earlier versions.
    for cell in ["tiny.streamline-1.ghosted", "streamline-1.ghosted", "depth/1/ghosted"] {
        let (code, text) = explain_cell(&world, cell);
        assert!(code == Some(0) && text.starts_with("tiny.streamline-1.ghosted\n"), "{cell}: {text}");
    }
    let (code, text) = explain_cell(&world, "tiny/llm-streamline/1/ghosted/train:8x64@0");
    assert!(code == Some(0) && text.starts_with("tiny.streamline-1.ghosted\n"), "{text}");
    for cell in ["ghosted", "recovery/ghosted", "llm-streamline/ghosted"] {
        let (code, text) = explain_cell(&world, cell);
        assert_eq!(code, Some(2), "{cell}");
        for candidate in ["tiny.streamline-1.ghosted", "tiny.streamline-2.ghosted"] {
            assert!(text.lines().any(|line| line.trim() == candidate), "{cell}: {text}");
        }
    }
    for cell in ["1/ghostd", "streamline-1.ghostd"] {
        let (code, text) = explain_cell(&world, cell);
        let hint = format!("did you mean `{}`?", cell.replace("ghostd", "ghosted"));
        assert!(code == Some(2) && text.contains(&hint), "{cell}: {text}");
    }
}

#[test]
fn results_with_old_cell_names_compare_as_equal() {
    let world = World::new();
    world.run_ok(&[]);
    let mut numbers = std::fs::read_to_string(world.path("results/grid/numbers.json")).unwrap();
    numbers = numbers.replace("\"tiny.dense\"", "\"tiny/dense\"");
    for depth in [1, 2] {
        for recovery in ["none", "linearpatch-diag", "linearpatch-rotate", "ghosted"] {
            let (now, before) = (
                format!("\"tiny.streamline-{depth}.{recovery}\""),
                format!("\"tiny/llm-streamline/{depth}/{recovery}/train:8x64@0\""),
            );
            assert!(numbers.contains(&now), "{now} in {numbers}");
            numbers = numbers.replace(&now, &before);
        }
    }
    assert!(!numbers.contains("tiny.streamline"), "{numbers}");
    std::fs::create_dir(world.path("results/before")).unwrap();
    world.write("results/before/numbers.json", numbers);
    let output = world.ghostlab(&["compare", "results/before", "results/grid"]);
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("common values are the same") && !output.contains("only in"), "{output}");
    assert!(output.contains("settings: the same") && !output.contains("identity: one of the runs"), "{output}");
}

#[test]
fn wide_layout_has_a_column_for_each_backbone_and_depth() {
    let world = World::new();
    add_tasks(&world);
    let output = world.run(&["--layout", "wide"]);
    let screen = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = screen.lines().collect();
    assert!(lines[0] == "average" && lines[2].ends_with("tiny 1/4  tiny 2/4"), "{screen}");
    assert!(lines.iter().any(|line| line.starts_with("+ Linear Patch (Diag)")), "{screen}");
    let markdown = std::fs::read_to_string(world.path("results/grid/wide.md")).unwrap();
    assert!(markdown.contains("| LLM-Streamline |") && markdown.contains("**"), "{markdown}");
    let output = world.run(&["--layout", "wide", "--metric", "ppl tst@64"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && log.contains("did you mean `ppl test@64`?"), "{log}");
}

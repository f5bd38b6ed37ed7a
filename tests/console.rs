//! Snapshot tests for each command's output on a small grid. `INSTA_UPDATE=always` updates the snapshots in
//! `tests/snapshots`.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::path::{Path, PathBuf};

use crate::common::world::World;
use crate::reproduce::experiments;

/// Patterns for output that differs between runs or machines, and their replacements.
const FILTERS: [(&str, &str); 16] = [
    (r"--mem=\d+M", "--mem=SIZE"),
    (r"--export=[\w,]+", "--export=NAMES"),
    (r"\d+\.\d  ok", "TIME  ok"),
    (r"(inodes: at most \d+;) \d+ free", "$1 NUMBER free"),
    (r"[\d.]+ GFLOP/s", "SPEED"),
    (r"[0-9a-f]{16,64}", "HASH"),
    (r"\b[0-9a-f]{12}\b", "HASH"),
    (r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2})?Z?)?( UTC)?", "DATE"),
    (r"\d[\d,.]* tokens/s", "RATE"),
    (r"\d[\d.]* ?(ms|s|min|h|seconds?|minutes?)( \d+ ?(s|min|seconds?|minutes?))?\b", "TIME"),
    (r"\d[\d,.]* (B|kB|MB|GB|bytes)\b", "SIZE"),
    (r"ghostlab \d+\.\d+\.\d+[^\n]*", "ghostlab VERSION"),
    (r"(cpu|device|machine|processor|commit|built|kernels):( +)[^\n]+", "$1:$2MACHINE"),
    (r"process \d+-HASH", "process ID"),
    // `doctor` prints a note if the store is on an in-memory file system.
    (
        r"(ok  |note)  store: (\S+), on \w+, SIZE free(\n +→ in-memory file system[^\n]*)?",
        "ok    store: $2, on DISK, SIZE free",
    ),
    (r" +(SIZE|TIME)", " $1"),
];

/// Commands that run in this order in the same folder. Each has its own snapshot.
const COMMANDS: [(&str, &[&str]); 38] = [
    ("unknown_command", &["rnu", "grid.yaml"]),
    ("unknown_option", &["run", "grid.yaml", "--resluts", "x"]),
    ("absent_grid", &["run", "gird.yaml"]),
    ("wrong_override", &["run", "grid.yaml", "--set", "dpeth=3"]),
    ("wrong_dtype", &["run", "grid.yaml", "--dtype", "fp16"]),
    ("plan", &["plan", "grid.yaml"]),
    ("submit_without_scheduler", &["submit", "slurm", "grid.yaml", "--workers", "2"]),
    (
        "submit_dry_run",
        &[
            "submit",
            "slurm",
            "grid.yaml",
            "--workers",
            "2",
            "--threads",
            "2",
            "--profile-file",
            "slurm.yaml",
            "--dry-run",
        ],
    ),
    ("run", &["run", "grid.yaml"]),
    ("run_again", &["run", "grid.yaml"]),
    ("plan_of_stored", &["plan", "grid.yaml"]),
    ("explain", &["explain", "grid.yaml", "tiny.streamline-1.ghosted"]),
    ("explain_unknown_cell", &["explain", "grid.yaml", "tiny.streamline-1.ghsted"]),
    ("status", &["status"]),
    ("compare", &["compare", "results/grid", "results/grid"]),
    ("verify", &["verify", "results/grid"]),
    ("pack", &["record", "pack", "results/grid", "--to", "record.zip", "--license", "CC-BY-4.0"]),
    ("pack_again", &["record", "pack", "results/grid", "--to", "record.zip", "--license", "CC-BY-4.0"]),
    ("reproduce_unknown", &["reproduce", "tabel2"]),
    ("score", &["score", "backbone", "--perplexity", "test.jsonl@64", "--rule", "ptb"]),
    ("score_unknown_task", &["score", "backbone", "--tasks", "arc_eazy"]),
    ("layers", &["layers", "backbone", "--corpus", "train.txt", "--sequences", "4", "--length", "64"]),
    ("export", &["export", "grid.yaml", "tiny.streamline-1.ghosted", "--to", "exported"]),
    ("export_again", &["export", "grid.yaml", "tiny.streamline-1.ghosted", "--to", "exported"]),
    ("fetch", &["fetch", "grid.yaml"]),
    ("doctor_model", &["doctor", "exported"]),
    ("doctor_absent", &["doctor", "models/absent"]),
    ("cache_ls", &["cache", "ls"]),
    ("cache_verify", &["cache", "verify"]),
    ("cache_gc", &["cache", "gc"]),
    ("worker", &["worker", "grid.yaml"]),
    ("cancel_unknown", &["cancel", "nosuch"]),
    ("report", &["report"]),
    ("init", &["init", "backbone", "--corpus", "train.txt", "--to", "first.yaml"]),
    ("audit", &["audit"]),
    ("search", &["search", "search.yaml"]),
    ("store_init", &["store", "init", "shared"]),
    ("man", &["man", "--to", "manual"]),
];

/// Commands whose snapshots contain only the first lines of the output.
const SHORTENED_OUTPUTS: [(&str, &[&str]); 2] = [("schema", &["schema"]), ("completions", &["completions", "bash"])];

/// Number of lines in the snapshot of a long output.
const MAX_LINES: usize = 12;

/// Commands that reproduce a table, in this order.
const REPRODUCE: [(&str, &[&str]); 4] = [
    ("reproduce_incomplete", &["reproduce", "table2", "--stored"]),
    ("reproduce", &["reproduce", "table2"]),
    ("reproduce_again", &["reproduce", "table2"]),
    ("reproduce_details", &["reproduce", "table2", "--stored", "-v"]),
];

/// Grid of a search for one layer to remove.
const SEARCH: &str = "backbones:\n  tiny: {path: backbone}\n\
    corpora:\n  short: {path: test.jsonl, rule: wikitext2}\n  long: {path: train.txt, rule: ptb}\n\
    backbone: [tiny]\ncriterion: [llm-streamline, shortgpt]\nrecovery: [none, ghosted]\n\
    calibration: {corpus: short, sequences: 8, length: 64}\n\
    search:\n  budget: {layers: 1}\n  perplexity: {corpus: long, length: 64}\n";

/// Commands whose `-h` output is in the snapshot `console_help`. The empty command stands for the program itself.
const HELP: [&[&str]; 31] = [
    &[],
    &["init"],
    &["plan"],
    &["run"],
    &["explain"],
    &["status"],
    &["compare"],
    &["verify"],
    &["record"],
    &["record", "pack"],
    &["reproduce"],
    &["audit"],
    &["report"],
    &["score"],
    &["layers"],
    &["search"],
    &["export"],
    &["fetch"],
    &["doctor"],
    &["cache"],
    &["cache", "ls"],
    &["cache", "verify"],
    &["cache", "gc"],
    &["store"],
    &["worker"],
    &["submit"],
    &["submit", "slurm"],
    &["cancel"],
    &["schema"],
    &["completions"],
    &["man"],
];

#[test]
fn help_of_every_command_matches_its_snapshot() {
    let world = World::new();
    let shown: String = HELP.iter().map(|command| run_help(&world, command)).collect();
    snapshot_settings(&world).bind(|| insta::assert_snapshot!("console_help", shown));
}

/// Returns the command line `ghostlab COMMAND -h`, followed by its output.
fn run_help(world: &World, command: &[&str]) -> String {
    let output = world.command(&[command, &["-h"]].concat()).env("COLUMNS", "120").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    format!("$ ghostlab {} -h\n{}\n", command.join(" "), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn output_of_every_command_matches_its_snapshot() {
    let world = World::new();
    world.write("slurm.yaml", "partition: gpu\ntime: 2:00:00\ncpus: 2\n");
    world.write("search.yaml", SEARCH);
    COMMANDS.iter().for_each(|(name, arguments)| assert_matches_snapshot(&world, name, arguments));
    let key = stored_key(&world);
    assert_matches_snapshot(&world, "cache_path", &["cache", "path", &key]);
}

#[test]
fn first_lines_of_long_outputs_match_their_snapshots() {
    let world = World::new();
    for (name, arguments) in SHORTENED_OUTPUTS {
        let text = run_and_format(&world, arguments);
        let lines: Vec<&str> = text.lines().take(MAX_LINES).collect();
        snapshot_settings(&world).bind(|| insta::assert_snapshot!(format!("console_{name}"), lines.join("\n")));
    }
}

#[test]
fn reproduced_artifact_output_matches_its_snapshots() {
    let world = experiments("mine");
    std::fs::rename(world.path("experiments/mini.yaml"), world.path("experiments/table2.yaml")).unwrap();
    REPRODUCE.iter().for_each(|(name, arguments)| assert_matches_snapshot(&world, name, arguments));
}

#[test]
fn incomplete_and_altered_results_match_their_snapshots() {
    let world = World::new();
    assert_matches_snapshot(&world, "run_incomplete", &["run", "grid.yaml", "--stored"]);
    world.run_ok(&[]);
    let table = world.path("results/grid/results.csv");
    let altered = std::fs::read_to_string(&table).unwrap().replacen("linearpatch-diag", "linearpatch-dig", 1);
    std::fs::write(&table, altered).unwrap();
    assert_matches_snapshot(&world, "verify_altered", &["verify", "results/grid"]);
}

/// Compares the output of a command with the snapshot `console_NAME`.
fn assert_matches_snapshot(world: &World, name: &str, arguments: &[&str]) {
    let text = run_and_format(world, arguments);
    snapshot_settings(world).bind(|| insta::assert_snapshot!(format!("console_{name}"), text));
}

/// Runs a command. Returns the command line, followed by the output.
fn run_and_format(world: &World, arguments: &[&str]) -> String {
    let mut command = world.command(arguments);
    command.env("COLUMNS", "120").env("PATH", "").env("HF_HUB_OFFLINE", "1").env("HF_HUB_CACHE", world.path("hub"));
    command.env_remove("HF_TOKEN");
    let output = command.output().unwrap();
    let text = format!(
        "$ ghostlab {}\n{}--- standard error\n{}--- exit code {}\n",
        arguments.join(" "),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
        output.status.code().unwrap()
    );
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// Returns the store key of the first tokenized text.
fn stored_key(world: &World) -> String {
    let kinds = sorted_paths(&world.path("data/store"));
    let tokens = kinds.iter().find(|path| name_of(path).starts_with("tokens-")).unwrap();
    name_of(&sorted_paths(&sorted_paths(tokens)[0])[0])
}

/// Returns the sorted paths in a folder.
fn sorted_paths(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Returns the insta settings used for all snapshots in this file.
fn snapshot_settings(world: &World) -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.add_filter(&folder_pattern(world), "FOLDER");
    FILTERS.iter().for_each(|(pattern, text)| settings.add_filter(pattern, *text));
    settings
}

/// Returns a regular expression that matches the world's folder.
fn folder_pattern(world: &World) -> String {
    let folder = world.folder.path().canonicalize().unwrap();
    format!("(/private)?{}", folder.to_str().unwrap().replace('.', r"\."))
}

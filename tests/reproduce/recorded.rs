//! Tests for recorded results (`reproduce --record`).

use super::*;

/// Artifact that compares the two cells of [`ALL_ITEMS_TABLE`] in a race, as `ghostlab search` does.
const RACES_ARTIFACT: &str =
    "artifact:\n  title: Races of the small table\n  races: {beside: whole, metrics: [ppl_test]}\n";

const ALL_ITEMS_TABLE: &str = "artifact:\n  title: All items\n  table:\n    lead: [backbone, method]\n    rows:\n\
    \x20     - {criterion: llm-streamline, recovery: [none, ghosted]}\n    metrics: [ppl_test]\n";

#[test]
fn recorded_races_have_labels_and_are_unchanged() {
    let world = World::large();
    for folder in ["experiments/backbones", "experiments/profiles"] {
        fs::create_dir_all(world.path(folder)).unwrap();
    }
    world.write("experiments/backbones/mine.yaml", "path: ../../backbone\nsource: a test\n");
    world.write("experiments/profiles/tiny.yaml", "corpora:\n  train: {path: ../../train.txt, rule: wikitext2}\n");
    let axes = "corpora:\n  train: {rule: wikitext2}\n  test: {path: ../long.jsonl, rule: ptb}\nbackbone: [mine]\ncriterion: llm-streamline\n\
        depth: 1\nrecovery: [none, ghosted]\ncalibration: {corpus: train, sequences: 8, length: 64}\nprofile: tiny\nprofiles: {tiny: {}}\n";
    let scored = "evaluate: {perplexity: {corpus: test, length: 64}}\n";
    let raced = "search: {budget: {layers: 1}, perplexity: {corpus: test, length: 64}}\n";
    world.write("experiments/whole.yaml", format!("{ALL_ITEMS_TABLE}{axes}{scored}"));
    world.write("experiments/races.yaml", format!("{RACES_ARTIFACT}{axes}{raced}"));
    let alone = run_ok(&world, &["reproduce", "races"]);
    assert!(alone.contains("whole is not computed here"), "{alone}");
    fs::remove_dir_all(world.path("results")).unwrap();

    let output = run_ok(&world, &["reproduce", "whole", "races", "--record"]);
    assert!(output.contains("races: recorded") && output.contains("1 of 4"), "{output}");
    let recorded = read_record_files(&world, "results");
    let csv = String::from_utf8(recorded["results/races/tiny/races.csv"].clone()).unwrap();
    // The best row of the other table is one of the two cells in the race. It is identified by its label.
    assert!(csv.lines().count() == 2 && csv.contains("LLM-Streamline"), "{csv}");
    let full_table = read_rows(&world.path("results/whole/tiny/whole.csv"));
    let at = full_table[0].iter().position(|head| head == "value").unwrap();
    let lowest = full_table[1..].iter().map(|row| row[at].parse::<f64>().unwrap()).fold(f64::INFINITY, f64::min);
    assert!(csv.contains(&format!(": {lowest:.2}")), "the best perplexity is not the lowest: {csv} {full_table:?}");
    assert!(csv.contains("won alone") || csv.contains("not separated") || csv.contains("out after round"), "{csv}");
    let page = String::from_utf8(fs::read(world.path("reports/index.html")).unwrap()).unwrap();
    assert!(page.contains("Races of the small table"), "the page does not show the races");
    let again = run_ok(&world, &["reproduce", "races"]);
    assert!(again.contains("races: identical to the recorded run in results/races/tiny"), "{again}");
    run_ok(&world, &["reproduce", "races", "--record"]);
    assert_eq!(read_record_files(&world, "results"), recorded, "recording again changed files");
    // A different order of items counts as a different run, so the recorded run is kept.
    let races = world.path("experiments/races.yaml");
    fs::write(&races, fs::read_to_string(&races).unwrap().replace("search: {", "search: {seed: 5, ")).unwrap();
    let other = run_ok(&world, &["reproduce", "races"]);
    assert!(other.contains("races: differs from the recorded run in results/races/tiny"), "{other}");
    let now = read_record_files(&world, "results");
    assert!(recorded.iter().all(|(name, bytes)| now.get(name) == Some(bytes)), "the recorded run was changed");
    // `verify` does not recompute the numbers of races, so it succeeds.
    run_ok(&world, &["verify", "results", "--share", "100%"]);
}

#[test]
fn recorded_run_is_kept_and_other_runs_are_separate() {
    let world = experiments("mine");
    let log = run_ok(&world, &["reproduce", "mini", "methods", "--record"]);
    assert!(log.contains("mini: recorded"), "{log}");
    let recorded = results_and_reports(&world);
    let names: Vec<&str> = recorded.keys().map(String::as_str).collect();
    for name in [
        "results/methods/methods.md",
        "results/mini/tiny/claims.md",
        "results/mini/tiny/run.json",
        "reports/index.html",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    let folder = world.folder.path().display().to_string();
    for (name, bytes) in &recorded {
        assert!(!String::from_utf8_lossy(bytes).contains(&folder), "{name} contains the path of the run");
    }

    check_identical_runs(&world, recorded);
    check_different_run(&world);
    // Artifacts with overrides cannot be recorded.
    let output = world.ghostlab(&["reproduce", "mini", "--record", "--dtype", "bf16"]);
    assert_eq!(output.status.code(), Some(2), "{}", combined_output(&output));
    assert!(
        combined_output(&output).contains("only an artifact with its default settings can be recorded"),
        "{}",
        combined_output(&output)
    );
}

/// Checks that a run is identical to the recorded one if it uses the store or is recorded again. Also checks a run that
/// uses a new store and has to restore the large files.
fn check_identical_runs(world: &World, recorded: std::collections::BTreeMap<String, Vec<u8>>) {
    let again = run_ok(world, &["reproduce", "mini", "methods"]);
    assert!(again.contains("mini: identical to the recorded run in results/mini/tiny"), "{again}");
    assert!(again.contains("report of all artifacts: reports/index.html"), "{again}");
    assert_eq!(results_and_reports(world), recorded, "reproducing again changed files");
    run_ok(world, &["reproduce", "mini", "methods", "--record"]);
    assert_eq!(results_and_reports(world), recorded, "recording again changed files");
    fs::remove_file(world.path("results/mini/tiny/channels.parquet")).unwrap();
    for folder in ["lm_eval", "every_eval_ever"].map(|name| world.path("results/mini/tiny").join(name)) {
        fs::remove_dir_all(&folder).or_else(|error| if folder.exists() { Err(error) } else { Ok(()) }).unwrap();
    }
    let output = run_ok(world, &["reproduce", "mini", "--store", "other"]);
    assert!(output.contains("mini: identical to the recorded run"), "{output}");
    assert!(world.path("results/mini/tiny/channels.parquet").is_file(), "the missing files were not created");
    assert!(
        without_every_eval_ever(results_and_reports(world)) == without_every_eval_ever(recorded),
        "the results differ in a new store"
    );
}

/// Simulates a rounding difference between machines, and checks that the new run is written to another folder.
fn check_different_run(world: &World) {
    let path = world.path("results/mini/tiny/numbers.json");
    let mut numbers = common::json(&path);
    let value = &mut numbers["numbers"]["cells"][1]["values"][0]["value"];
    *value = (value.as_f64().unwrap() * (1.0 + 1e-9)).into();
    fs::write(&path, numbers.to_string()).unwrap();
    let recorded = results_and_reports(world);
    let log = run_ok(world, &["reproduce", "mini"]);
    assert!(
        log.contains(
            "mini: differs from the recorded run in results/mini/tiny: 1 of 11 numbers, most by 1.00e-9 of its"
        ),
        "{log}"
    );
    assert!(log.contains("report of all artifacts: reports/here/index.html"), "{log}");
    let now = results_and_reports(world);
    assert!(recorded.iter().all(|(name, bytes)| now.get(name) == Some(bytes)), "the recorded run was changed");
    assert!(now.contains_key("results/mini/tiny+here/mini.csv"));
    let compared = run_ok(world, &["compare", "results/mini/tiny", "results/mini/tiny+here"]);
    assert!(compared.contains("mini"), "{compared}");
}

fn results_and_reports(world: &World) -> std::collections::BTreeMap<String, Vec<u8>> {
    ["results", "reports"].into_iter().flat_map(|folder| read_record_files(world, folder)).collect()
}

/// Drops the files in `every_eval_ever`. They contain their creation time, so their hashes differ in every run, and a
/// run does not restore them.
fn without_every_eval_ever(
    mut all: std::collections::BTreeMap<String, Vec<u8>>,
) -> std::collections::BTreeMap<String, Vec<u8>> {
    all.retain(|name: &String, _: &mut Vec<u8>| !name.contains("/every_eval_ever/"));
    all
}

#[test]
fn rounding_differences_keep_the_recorded_run() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "mini", "--record"]);
    // Simulate a record from a different processor: the last bits of a number differ, but no printed digit does.
    let record = world.path("results/mini/tiny/run.json");
    let mut run = common::json(&record);
    run["files"]["channels.parquet"] = "0".repeat(64).into();
    let error = &mut run["cells"][1]["boundaries"][0]["boundary_mae"];
    *error = (error.as_f64().unwrap() * (1.0 + 1e-12)).into();
    fs::write(&record, run.to_string()).unwrap();
    let parquet = world.path("results/mini/tiny/channels.parquet");
    fs::remove_file(&parquet).unwrap();
    let list = world.path("results/mini/tiny/.ghostlab.sha256");
    let text = fs::read_to_string(&list).unwrap();
    let (hash, _) = text.lines().find(|line| line.ends_with("channels.parquet")).unwrap().split_once(' ').unwrap();
    fs::write(&list, text.replace(hash, &"0".repeat(64))).unwrap();
    fs::remove_dir_all(world.path("results/mini/tiny/every_eval_ever")).unwrap();

    let output = run_ok(&world, &["reproduce", "mini", "-v"]);
    assert!(output.contains("mini: numbers identical to the recorded run in results/mini/tiny; "), "{output}");
    assert!(output.contains("channels.parquet: only its hash is in the record"), "{output}");
    assert!(output.contains("by at most 1.0e-12 of their value"), "{output}");
    assert!(output.contains("no printed digit changes"), "{output}");
    assert!(output.contains("report of all artifacts: reports/index.html"), "{output}");
    assert!(!world.path("results/mini/tiny+here").exists(), "the run used another folder");
    let written: Vec<&str> =
        output.lines().filter(|line| line.starts_with("  results/mini/tiny/")).map(str::trim).collect();
    assert!(output.contains(&format!("; wrote {} files to results/mini/tiny", written.len())), "{output}");
    for file in &written {
        assert!(world.path(file).exists(), "{file} does not exist: {output}");
    }
    assert!(!written.is_empty() && !written.contains(&"results/mini/tiny/channels.parquet"), "{output}");
}

#[test]
fn listing_shows_the_date_in_the_record() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "mini"]);
    let record = world.path("results/mini/tiny/run.json");
    let mut run = common::json(&record);
    run["finished"] = "2001-02-03T04:05:06Z".into();
    fs::write(&record, run.to_string()).unwrap();
    let listed = run_ok(&world, &["reproduce"]);
    let line = listed.lines().find(|line| line.starts_with("mini")).unwrap();
    assert!(line.contains("2001-02-03T04:05:06Z"), "{listed}");
}

#[test]
fn gitignore_keeps_only_recorded_files() {
    let folder = tempfile::tempdir().unwrap();
    git(folder.path(), &["init", "-q"]);
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/.gitignore"), folder.path().join(".gitignore")).unwrap();
    let expected = [
        "reports/.ghostlab.sha256",
        "reports/audit.html",
        "reports/index.html",
        "results/figure1/tiny/figure1.svg",
        "results/table1/table1.md",
        "results/table2/tiny/.ghostlab.sha256",
        "results/table2/tiny/claims.md",
        "results/table2/tiny/run.json",
        "results/table2/tiny/table2.parquet",
    ];
    let large = ghostlab::results::NOT_RECORDED.map(|name| format!("results/table2/tiny/{name}"));
    let others = [
        "data/store/store.json",
        "reports/here/index.html",
        "results/mine/results.csv",
        "results/mine/tiny/results.csv",
        "results/table2/.tiny.1.0.part/run.json",
        "results/table2/paper/run.json",
        "results/table2/tiny+depth=2-1a2b3c4d/run.json",
        "results/table2/tiny+here/run.json",
        "results/table2/tiny/eval_results/a.yaml",
        "results/table2/tiny/every_eval_ever/a.json",
        "results/table2/tiny/lm_eval/a.json",
    ];
    for name in expected.iter().chain(&others).map(ToString::to_string).chain(large) {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let untracked = git(folder.path(), &["ls-files", "--others", "--exclude-standard"]);
    let untracked: Vec<&str> = untracked.lines().filter(|name| *name != ".gitignore").collect();
    assert_eq!(untracked, expected);
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = std::process::Command::new("git").args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", combined_output(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn overridden_table_is_verified_against_its_numbers() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "mini", "--set", "depth=2"]);
    let mut folders = fs::read_dir(world.path("results/mini")).unwrap().map(|item| item.unwrap().path());
    let folder = folders.next().unwrap();
    assert!(!folder.join("page.json").exists());
    let (code, _, tables, log) = run_verify(&world, folder.to_str().unwrap());
    assert_eq!(code, Some(0), "{log}");
    let path = folder.join("mini.md");
    let text = fs::read_to_string(&path).unwrap();
    let line = text.lines().find(|line| line.contains("| Dense |")).unwrap();
    let altered = format!("{}7 |", line.strip_suffix(" |").unwrap());
    fs::write(&path, text.replace(line, &altered)).unwrap();
    let (code, _, changed, log) = run_verify(&world, folder.to_str().unwrap());
    assert_eq!((code, changed["differs"].as_array().unwrap().len()), (Some(4), 1), "{log}");
    assert_eq!(changed["agreed"].as_u64().unwrap() + 1, tables["agreed"].as_u64().unwrap(), "{log}");
}

#[test]
fn altered_verdict_and_figure_value_are_detected() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "figure1", "--record"]);
    let folder = "results/figure1/tiny";
    let (code, claims, tables, log) = run_verify(&world, folder);
    assert_eq!(code, Some(0), "{log}");
    assert!(claims["agreed"].as_u64() > Some(0) && tables["agreed"].as_u64() > Some(0), "{log}");
    assert!(log.contains("to compute: "), "{log}");
    let path = world.path(folder).join("claims.md");
    let before = fs::read_to_string(&path).unwrap();
    let line = before.lines().nth(2).unwrap();
    let other = if last_cell(line) == "HOLDS" { "FAILS" } else { "HOLDS" };
    let altered = format!("{}{other} |", line.strip_suffix(&format!("{} |", last_cell(line))).unwrap());
    fs::write(&path, before.replace(line, &altered)).unwrap();
    let (code, claims, _, log) = run_verify(&world, folder);
    let differs = claims["differs"].as_array().unwrap();
    assert_eq!((code, differs.len()), (Some(4), 1), "{log}");
    assert!(differs[0]["recorded"].as_str().unwrap().ends_with(&format!("{other} |")), "{log}");
    fs::write(&path, before).unwrap();
    let path = world.path(folder).join("figure1.csv");
    let rows = read_rows(&path);
    let column = rows[0].iter().position(|head| head == "value").unwrap();
    let data = fs::read_to_string(&path).unwrap();
    fs::write(&path, data.replacen(&rows[1][column], "0.125", 1)).unwrap();
    let (code, _, tables, log) = run_verify(&world, folder);
    assert_eq!((code, tables["differs"].as_array().unwrap().len()), (Some(4), 1), "{log}");
}

/// Verifies the claims and tables in a folder, and recomputes only 1 % of the results. Returns the exit code, the
/// checks of the claims and of the tables, and the output.
fn run_verify(world: &World, folder: &str) -> (Option<i32>, serde_json::Value, serde_json::Value, String) {
    let output = world.ghostlab(&["verify", folder, "--share", "1%", "--json"]);
    let answer: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", combined_output(&output)));
    let checks = answer["answer"]["folders"][0]["checks"].as_array().unwrap().clone();
    (output.status.code(), check_of_kind(&checks, "claims"), check_of_kind(&checks, "tables"), combined_output(&output))
}

fn check_of_kind(checks: &[serde_json::Value], kind: &str) -> serde_json::Value {
    checks.iter().find(|check| check["kind"] == kind).unwrap().clone()
}

fn last_cell(line: &str) -> String {
    line.trim_end_matches(" |").rsplit(" | ").next().unwrap().to_owned()
}

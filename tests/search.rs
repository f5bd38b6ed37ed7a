//! Tests for `ghostlab search`: results, reuse of stored scores, and rejected inputs.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

mod budget;

#[path = "common/simulation.rs"]
mod simulation;

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::output::stderr;
use crate::common::world::World;
use crate::common::{checkout, json};
use ghostlab::grid::Draw;
use ghostlab::results::StoredResults;
use ghostlab::search::{FIRST_DOCUMENTS, FIRST_WINDOWS, held_out_items};
use serde_json::Value;
use simulation::{KnownObjective, KnownScores, read_candidates, simulate};

/// Grid with six candidates that remove one layer and are scored on windows of a text. Some candidates may be
/// duplicates.
const GRID: &str = "backbones:\n  tiny: {path: backbone}\n\
    corpora:\n  train: {path: train.txt, rule: wikitext2}\n  long: {path: long.jsonl, rule: ptb}\n\
    tasks:\n  copa: {path: copa.jsonl}\n\
    backbone: [tiny]\ncriterion: [llm-streamline, shortgpt]\nrecovery: [none, linearpatch-diag, ghosted]\n\
    calibration:\n  - {corpus: train, sequences: 8, length: 64}\n\
    search:\n  budget: {layers: 1}\n  perplexity: [{corpus: long, length: 64}]\n";

fn create_world() -> World {
    let world = World::large();
    world.write("search.yaml", GRID);
    world
}

fn run_search(world: &World, more: &[&str]) -> Value {
    let output = world.ghostlab(&[&["search", "search.yaml", "--json"], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["answer"].clone()
}

/// Runs a command with a fault that kills it as soon as it scores anything. Returns whether it was killed.
fn scores_anything(world: &World, arguments: &[&str]) -> bool {
    let output = world.command(arguments).env("GHOSTLAB_FAULT", "kill@score:1").output().unwrap();
    assert!(matches!(output.status.code(), None | Some(0)), "{}", stderr(&output));
    output.status.code().is_none()
}

fn read_search_files(world: &World) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for folder in std::fs::read_dir(world.path("results/search"))
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("search+layers=1"))
    {
        for file in std::fs::read_dir(folder.path()).unwrap().flatten().filter(|entry| entry.path().is_file()) {
            all.insert(file.file_name().to_string_lossy().into_owned(), std::fs::read(file.path()).unwrap());
        }
    }
    all
}

#[test]
fn race_and_held_out_items_are_disjoint() {
    let world = create_world();
    let answer = run_search(&world, &[]);
    let found = &answer["searches"][0];
    // Score the same cells on all windows, using `run` on the same file with a separate store.
    let output = world.ghostlab(&["run", "search.yaml", "--store", "other"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let results = StoredResults::read(&world.path("results/search")).unwrap();
    let candidates = found["candidates"].as_array().unwrap();
    let count = losses_of(&results, "tiny.dense").len();
    let order = Draw { seed: 0, from: 0, to: count }.indices(count).unwrap();
    let last = count - held_out_items(count);
    assert_eq!(found["objectives"][0]["items"], last);
    for candidate in candidates {
        let seen = candidate["items"].as_u64().unwrap() as usize;
        let losses = losses_of(&results, candidate["cell"].as_str().unwrap());
        assert!(seen <= last, "the search saw the held-out items");
        let expected = mean(&order[..seen].iter().map(|&at| losses[at]).collect::<Vec<_>>());
        let raced = candidate["scores"][0]["mean"].as_f64().unwrap();
        assert!((raced - expected).abs() < 1e-12, "{candidate}: {expected}");
    }
    for judged in found["judged"].as_array().unwrap() {
        let losses = losses_of(&results, judged["cell"].as_str().unwrap());
        let expected = mean(&order[last..].iter().map(|&at| losses[at]).collect::<Vec<_>>());
        assert!((judged["scores"][0]["mean"].as_f64().unwrap() - expected).abs() < 1e-12, "{judged}");
    }
    let winner = found["winner"].as_str().unwrap();
    let best = candidates.iter().filter(|candidate| candidate["fate"] == "survived");
    let best = best
        .min_by(|a, b| a["scores"][0]["mean"].as_f64().unwrap().total_cmp(&b["scores"][0]["mean"].as_f64().unwrap()));
    assert_eq!(best.unwrap()["cell"], winner);
    let items = ItemOrder { order: &order, last };
    check_lead(found, &results, winner, &items);
    check_differences(found, &results, winner, &order);
    assert!(answer["sentences"][0].as_str().unwrap().starts_with(winner));
    check_report(&world, winner);
}

/// Indices of the items in the order of the race. The items from position `last` on are held out.
struct ItemOrder<'a> {
    order: &'a [usize],
    last: usize,
}

/// Checks the winner's lead over the unrepaired cut of the same layers, both on the items of the race and on the
/// held-out items.
fn check_lead(found: &Value, results: &StoredResults, winner: &str, items: &ItemOrder<'_>) {
    let ItemOrder { order, last } = *items;
    let candidates = found["candidates"].as_array().unwrap();
    let entry = candidates.iter().find(|candidate| candidate["cell"] == winner).unwrap();
    let plain = format!("{}.none", winner.rsplit_once('.').unwrap().0);
    let seen = entry["items"].as_u64().unwrap() as usize;
    for (items, key) in [(&order[..seen], "raced"), (&order[last..], "held_out")] {
        let [plain, winner] = [plain.as_str(), winner].map(|cell| {
            let losses = losses_of(results, cell);
            mean(&items.iter().map(|&at| losses[at]).collect::<Vec<_>>())
        });
        let lead = found["leads"][0][key]["mean"].as_f64().unwrap();
        assert!((lead - (plain - winner)).abs() < 1e-12, "{key}: {lead}");
    }
}

/// Checks the differences in loss between candidates and their rivals. They are computed on the items on which both
/// were scored.
fn check_differences(found: &Value, results: &StoredResults, winner: &str, order: &[usize]) {
    let candidates = found["candidates"].as_array().unwrap();
    for candidate in candidates.iter().filter(|candidate| candidate["cell"] != winner) {
        let rival = candidate["fate"]["out"]["rival"].as_str().unwrap_or(winner);
        let candidate_losses = losses_of(results, candidate["cell"].as_str().unwrap());
        let theirs = losses_of(results, rival);
        let common = candidate["items"].as_u64().unwrap() as usize;
        let expected = mean(&order[..common].iter().map(|&at| candidate_losses[at] - theirs[at]).collect::<Vec<_>>());
        let beyond = candidate["beyond"][0]["mean"].as_f64().unwrap();
        assert!((beyond - expected).abs() < 1e-12, "{candidate}: {expected}");
        assert!(
            candidate["fate"] == "survived" || beyond > 0.0,
            "an eliminated candidate is not worse than its rival: {candidate}"
        );
    }
}

/// Checks `search.json` and `search.md`.
fn check_report(world: &World, winner: &str) {
    let written: Vec<String> = read_search_files(world).into_keys().filter(|name| name.starts_with("search")).collect();
    assert_eq!(written, ["search.json", "search.md"]);
    let report = String::from_utf8(read_search_files(world)["search.md"].clone()).unwrap();
    assert!(report.starts_with("## tiny, layers=1: loss on long@64"), "{report}");
    assert!(report.contains("The winner's lead over plain removal (loss): +"), "{report}");
    let names: Vec<&str> = report.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    assert!(names.iter().any(|name| *name == winner.strip_prefix("tiny.").unwrap()), "{names:?}");
    assert!(names.iter().all(|name| name.chars().count() <= 40), "{names:?}");
}

fn losses_of(results: &StoredResults, cell: &str) -> Vec<f64> {
    let number = results.numbers.iter().find(|number| number.cell == cell && number.losses().is_some());
    number.unwrap().losses().unwrap().to_vec()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn repeated_search_reuses_all_scores() {
    let world = create_world();
    assert!(scores_anything(&world, &["search", "search.yaml"]), "the first search scored nothing");
    run_search(&world, &[]);
    assert!(!scores_anything(&world, &["search", "search.yaml"]), "the second search scored again");
    // A different significance level needs the same items in the first round, and the candidates are a subset of those
    // already scored, so nothing needs to be scored.
    assert!(!scores_anything(
        &world,
        &["search", "search.yaml", "--set", "recovery=[none]", "--set", "search.alpha=0.5"]
    ));
    let other = create_world();
    assert_eq!(other.ghostlab(&["run", "search.yaml"]).status.code(), Some(0));
    assert!(!scores_anything(&other, &["search", "search.yaml"]), "the search did not reuse the scores of the grid");
    assert_eq!(read_search_files(&world), read_search_files(&other), "results depend on where the scores come from");
}

#[test]
fn killed_search_resumes_to_identical_bytes() {
    let undisturbed = create_world();
    let world = create_world();
    run_search(&undisturbed, &[]);
    for point in ["commit:4", "score:1", "journal:1", "score:3", "commit:2", "score:2"] {
        let mut command = world.command(&["search", "search.yaml"]);
        let output = command.env("GHOSTLAB_FAULT", format!("kill@{point}")).output().unwrap();
        assert_eq!(output.status.code(), None, "{point} was not reached: {}", stderr(&output));
    }
    run_search(&world, &[]);
    let ours = read_search_files(&world);
    let theirs = read_search_files(&undisturbed);
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (name, bytes) in &ours {
        assert_eq!(bytes, &theirs[name], "{name}");
    }
}

#[test]
fn workers_share_a_search_and_complete_its_scores() {
    let world = create_world();
    let workers = [(); 2].map(|()| {
        let mut command = world.command(&["worker", "search.yaml"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    });
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    assert!(!world.path("results").exists(), "the worker wrote results");
    assert!(!scores_anything(&world, &["search", "search.yaml"]));
    let alone = create_world();
    run_search(&alone, &[]);
    assert_eq!(read_search_files(&world), read_search_files(&alone));
}

#[test]
fn search_on_tasks_and_texts_scores_both_objectives() {
    let world = create_world();
    let answer = run_search(&world, &["--set", "search.tasks=[copa]"]);
    let found = &answer["searches"][0];
    let names: Vec<&str> =
        found["objectives"].as_array().unwrap().iter().map(|objective| objective["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["accuracy", "loss"]);
    for candidate in
        found["candidates"].as_array().unwrap().iter().filter(|candidate| candidate["fate"]["out"].is_object())
    {
        let rival = found["candidates"]
            .as_array()
            .unwrap()
            .iter()
            .find(|rival| rival["cell"] == candidate["fate"]["out"]["rival"]);
        assert_eq!(candidate["scores"].as_array().unwrap().len(), 2);
        assert!(rival.is_some(), "{candidate}");
    }
}

#[test]
fn search_of_a_model_exports_the_winner() {
    let world = World::large();
    let line = [
        "search",
        "backbone",
        "--budget",
        "speedup=1.05",
        "--tasks",
        "copa.jsonl",
        "--calibration",
        "train.txt:8x64",
        "--criteria",
        "llm-streamline",
        "--recoveries",
        "none,ghosted",
        "--prompt",
        "32",
        "--export",
        "out",
    ];
    let output = world.ghostlab(&line);
    assert!(matches!(output.status.code(), Some(0 | 4)), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("computed from 512 tokens, 8.0 for each of its 64 channels"),
        "{}",
        stderr(&output)
    );
    let stdout = String::from_utf8_lossy(&output.stdout);
    // A pass takes only half a millisecond, so the pruned model may be measured as slower on a busy machine (exit code
    // 4).
    if output.status.code() == Some(0) {
        assert!(stdout.contains("exported to out"), "{stdout}");
        let card = std::fs::read_to_string(world.path("out/README.md")).unwrap();
        assert!(card.contains("chosen by `ghostlab search`") && card.contains("held-out items"), "{card}");
        let config = json(&world.path("out/config.json"));
        let before = json(&world.path("backbone/config.json"));
        assert!(config["num_hidden_layers"].as_u64() < before["num_hidden_layers"].as_u64());
    }
}

#[test]
fn invalid_search_is_rejected_before_anything_runs() {
    let world = create_world();
    let line = ["search", "backbone", "--calibration", "train.txt:8x64", "--texts", "long.jsonl@64", "--budget"];
    let rejected: [(&[&str], &[&str]); 12] = [
        (&["layers=1", "layers=2"], &["conflicting budgets", "layers=1"]),
        (&["speedup=1.0"], &["the dense backbone already meets the budget", "above 1"]),
        (&["memory=12GB"], &["the dense backbone already meets the budget"]),
        (&["memory=1MB", "layers=9"], &["removes all layers of the backbone", "layers=9"]),
        (&["memory=0.001MB"], &["the budget cannot be met even with a single layer left"]),
        (&["speedup=100"], &["the budget cannot be met even with a single layer left"]),
        (&["layers=1", "speedup=50"], &["no candidate meets the budget", "closest: "]),
        (&["latency=25"], &["invalid `latency` in the budget", "25ms"]),
        (&["depth=3"], &["unknown budget", "`depth`"]),
        (&["layers=1", "--items", "2"], &["no held-out items"]),
        (&["layers=1", "--tasks", "nine"], &["unknown task `nine`"]),
        (&["layers=1", "--alpha", "0.9"], &["above 0 and at most 0.5"]),
    ];
    for (more, words) in rejected {
        let output = world.ghostlab(&[&line[..], more].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{more:?}: `{word}` is not in {text}"));
        assert!(!text.contains("panicked"), "{text}");
    }
    for (yaml, word) in [
        (GRID.replace("{layers: 1}", "{}"), "the search has no budget"),
        (GRID.replace("{layers: 1}", "{speedup: 1.2}"), "the search has no depths"),
        (
            format!("{GRID}evaluate: {{perplexity: [{{corpus: long, length: 64}}]}}\n"),
            "a grid cannot have both `evaluate` and `search`",
        ),
        (GRID.replace("  perplexity: [{corpus: long, length: 64}]\n", ""), "`search` has no evaluations"),
    ] {
        world.write("bad.yaml", yaml);
        let output = world.ghostlab(&["search", "bad.yaml"]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(word), "{word}: {}", stderr(&output));
    }
    assert!(!world.path("results").exists());
}

#[test]
fn impossible_candidates_are_skipped_and_reported() {
    // LLM-Streamline keeps the first and the last of the four layers, so it cannot remove three.
    let world = create_world();
    let answer = run_search(&world, &["--set", "search.budget.layers=3", "--set", "recovery=[none]"]);
    let found = &answer["searches"][0];
    assert_eq!(cells_of(found, "candidates"), ["tiny.shortgpt-3.none"]);
    assert_eq!(cells_of(found, "left_out"), ["llm-streamline at 3 layers"]);
    let reason = found["left_out"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("`llm-streamline` keeps the first and the last layer"), "{reason}");
    // `run` on the same file also reports that this candidate is left out.
    let output = world.ghostlab(&["run", "search.yaml", "--set", "search.budget.layers=3", "--set", "recovery=[none]"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("warning: skipped llm-streamline at 3 layers of `tiny`"), "{}", stderr(&output));
    // If there is no candidate for one of two budgets, nothing runs.
    for budget in ["3", "[1, 3]"] {
        let budget = format!("search.budget.layers={budget}");
        let output =
            world.ghostlab(&["search", "search.yaml", "--set", &budget, "--set", "criterion=[llm-streamline]"]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("keeps the first and the last layer"), "{}", stderr(&output));
    }
    // The error is the same if the budget and the criterion are given on the command line.
    let line = ["search", "backbone", "--calibration", "train.txt:8x64", "--texts", "long.jsonl@64", "--budget"];
    let output = world.ghostlab(&[&line[..], &["layers=3", "--criteria", "llm-streamline"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

fn cells_of<'a>(found: &'a Value, list: &str) -> Vec<&'a str> {
    found[list].as_array().unwrap().iter().map(|entry| entry["cell"].as_str().unwrap()).collect()
}

/// Reads the distinct candidates in a recorded table for one backbone and depth, with their scores and programs.
fn read_known_scores(folder: &Path, backbone: &str, depth: usize) -> KnownScores {
    let stored = StoredResults::read(folder).unwrap();
    let run = json(&folder.join("run.json"));
    let cells = run["cells"].as_array().unwrap().iter();
    let (paths, [right, losses]) = read_candidates(
        &stored,
        &cells
            .filter(|number| number["cell"]["backbone"] == backbone && number["cell"]["depth"] == depth)
            .collect::<Vec<_>>(),
    );
    let mut known = KnownScores { name: String::new(), paths, objectives: Vec::new() };
    for (gains, first) in [(right, FIRST_DOCUMENTS), (losses, FIRST_WINDOWS)] {
        if gains.iter().all(|gain| !gain.is_empty()) {
            known.objectives.push(KnownObjective { first, gains, near: 0.01 });
        }
    }
    known
}

#[test]
fn simulated_races_keep_the_best_and_tied_candidates() {
    // This test uses 40 orders of the items. `cargo bench --bench search` uses 200 and covers all grids. Its results
    // are in benches/results/simulated.
    for (backbone, depth) in [("tiny-llama", 6), ("tiny-qwen3", 6), ("tiny-olmo2", 4), ("tiny-olmo2", 6)] {
        let known = read_known_scores(&checkout().join("results/table2/tiny"), backbone, depth);
        assert_eq!((known.paths.len(), known.objectives.len()), (8, 1));
        let simulated = simulate(&known, 40, 0.05).unwrap();
        assert!(simulated.best_survives >= 0.95, "{backbone} {depth}: {simulated:?}");
        assert!(simulated.leader_near_best >= 0.95, "{backbone} {depth}: {simulated:?}");
        assert!(simulated.items < 0.5, "{backbone} {depth}: {simulated:?}");
        // If each race separates the tie with probability 0.05, the probability that more than 7 of 40 do so is below
        // 0.001.
        assert!(simulated.tie_separated <= 7.0 / 40.0, "{backbone} {depth}: {simulated:?}");
    }
}

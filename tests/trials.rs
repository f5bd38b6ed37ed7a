//! Tests for the trials of greedy and iterative selections, which score a model without one more candidate: how many a
//! plan counts, and complete runs from YAML to results.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::common::world::{World, read_csv};
use ghostlab::error::ErrorKind;
use ghostlab::grid::Grid;
use ghostlab::pipeline::exec::{Event, Reporter, RunEnv, run};
use ghostlab::pipeline::stage;
use ghostlab_store::Store;
use serde_json::Value;

/// Writes a grid for a backbone with four layers.
fn write_grid(world: &World, axes: &str) {
    let text = format!(
        "backbones: {{tiny: {{path: backbone}}}}\ncorpora: {{train: {{path: train.txt, rule: wikitext2}}, \
         test: {{path: test.jsonl, rule: ptb, limit: 5}}}}\nbackbone: tiny\n{axes}\
         calibration: {{corpus: train, sequences: 8, length: 64}}\nevaluate: {{perplexity: {{corpus: test, length: 64}}}}\n"
    );
    world.write("grid.yaml", text);
}

fn run_plan(world: &World) -> Value {
    let output = world.ghostlab(&["plan", "grid.yaml", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let mut plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    plan["answer"]["grids"][0].take()
}

/// Returns how many trials a plan needs, and how many of them are stored.
fn trial_counts(plan: &Value) -> (u64, u64) {
    let artifacts = plan["artifacts"].as_array().unwrap();
    let trials = artifacts.iter().find(|count| count["kind"] == "trials").unwrap();
    (trials["needed"].as_u64().unwrap(), trials["stored"].as_u64().unwrap())
}

fn assert_nothing_left(plan: &Value) {
    assert_eq!(plan["jobs"].as_array().unwrap().len(), 0, "{}", plan["jobs"]);
    for count in plan["artifacts"].as_array().unwrap() {
        assert_eq!(count["to_make"], 0, "{count}");
    }
    assert_eq!(plan["cells"], plan["cells_complete"]);
}

/// Returns the rows of the results table as maps from column name to value.
fn read_results(world: &World) -> Vec<BTreeMap<String, String>> {
    let mut rows = read_csv(&world.path("results/grid/results.csv")).into_iter();
    let columns = rows.next().unwrap();
    rows.map(|row| columns.iter().cloned().zip(row).collect()).collect()
}

/// Counts the trials in the store. Only the keys of trials have a field `removed`.
fn count_stored_trials(world: &World) -> u64 {
    let entries = Store::open_read_only(&world.path("data/store"), stage::STORE_WORDS).unwrap().entries().into_iter();
    let trials = entries
        .filter(|entry| entry.object.as_ref().is_ok_and(|object| object.meta().key["of"].get("removed").is_some()));
    trials.count() as u64
}

#[test]
fn plan_counts_the_trials_that_a_run_computes() {
    for (axes, needed) in [
        // Each of two greedy criteria removes three of eight sublayers. One ranks them by perplexity, and the other by
        // distance. Every step tries all remaining sublayers.
        (
            "criterion: [block-pruner, finercut]\ndepth: [{sublayers: 1}, {sublayers: 3}]\nrecovery: none\n",
            2 * (8 + 7 + 6),
        ),
        // A greedy criterion removes two of four layers.
        ("criterion: sleb\ndepth: [1, 2]\nrecovery: [none, mean]\n", 4 + 3),
        // The first step of SLEB and the only step of Shortened LLaMA both try each layer alone, so they share these
        // trials.
        ("criterion: [sleb, shortened-llama]\ndepth: 2\nrecovery: none\n", 4 + 3),
        // The first step tries the same sublayers for all three units of depth.
        ("criterion: block-pruner\ndepth: [{attention: 1}, {sublayers: 1}, {mlp: 1}]\nrecovery: none\n", 8),
        // LaCo tries one merge at each position. Merges of three layers begin at layer 0, and merges of two at layer 1.
        (
            "criterion: [{name: laco, threshold: -1}, {name: laco, threshold: -1, combine: 2}]\ndepth: 2\nrecovery: [none, merge]\n",
            1 + 2,
        ),
    ] {
        let world = World::new();
        write_grid(&world, axes);
        assert_eq!(trial_counts(&run_plan(&world)), (needed, 0), "{axes}");
        world.run_ok(&[]);
        assert_eq!(count_stored_trials(&world), needed, "{axes}");
        let after = run_plan(&world);
        assert_eq!(trial_counts(&after), (needed, needed), "{axes}");
        assert_nothing_left(&after);
    }
}

/// A step that runs its trials on all windows takes minutes. It must report progress after each window and stop if the
/// run is interrupted.
#[test]
fn trials_report_progress_and_stop_between_windows() {
    for (name, count, axes) in [
        ("finercut", "(8 trials)", "criterion: finercut\ndepth: {sublayers: 1}\nrecovery: none\n"),
        ("laco", "(1 trial)", "criterion: {name: laco, threshold: -1}\ndepth: 2\nrecovery: none\n"),
    ] {
        let world = World::new();
        write_grid(&world, axes);
        let grid = Grid::load(&world.path("grid.yaml"), None, &[]).unwrap();
        let store = Store::open(&world.path("store"), stage::STORE_WORDS).unwrap();
        let reporter = Stopper { label: " trial", tokens: 128, ..Stopper::default() };
        let error =
            run(&grid, RunEnv { reporter: &reporter, stop: &reporter.stop, ..RunEnv::new(&store) }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        let (label, tokens) = reporter.advanced.lock().unwrap().clone();
        assert!(label.starts_with(name) && label.ends_with(count), "{label}");
        assert_eq!(tokens, [64, 64], "{label}");
    }
}

#[test]
fn interrupted_iterative_selection_resumes() {
    let uninterrupted = World::new();
    let axes = "criterion: {name: sleb, iterative: true}\ndepth: 3\nrecovery: mean\n";
    write_grid(&uninterrupted, axes);
    uninterrupted.run_ok(&[]);
    let world = World::new();
    write_grid(&world, axes);
    let grid = Grid::load(&world.path("grid.yaml"), None, &[]).unwrap();
    let store = Store::open(&world.path("data/store"), stage::STORE_WORDS).unwrap();
    // The text has 512 tokens. Of five passes, the first selects a layer and the second repairs the model.
    let select = |tokens| {
        let reporter = Stopper { label: ": remove ", tokens, ..Stopper::default() };
        let ended = run(&grid, RunEnv { reporter: &reporter, stop: &reporter.stop, ..RunEnv::new(&store) });
        let selecting = reporter.advanced.lock().unwrap().1.iter().sum::<usize>();
        (ended.map(drop), selecting)
    };
    let (ended, _) = select(2 * 512 + 64);
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(trial_counts(&run_plan(&world)), (4 + 3 + 2, 4));
    let (ended, tokens) = select(usize::MAX);
    ended.unwrap();
    assert_eq!(tokens, 4 * 512, "tokens of the last three passes and of the repeated repair");
    assert_nothing_left(&run_plan(&world));
    world.run_ok(&[]);
    assert_eq!(read_results(&world), read_results(&uninterrupted));
    // The selections for smaller depths are already stored as steps of this selection.
    write_grid(&world, &axes.replace("depth: 3", "depth: [1, 2]"));
    assert_eq!(trial_counts(&run_plan(&world)), (4 + 3 + 4, 4 + 3 + 4));
}

/// Reporter that interrupts a run after the first `tokens` tokens of a job.
#[derive(Default)]
struct Stopper {
    /// Text that the label of the job must contain.
    label: &'static str,
    tokens: usize,
    /// Label of the job, and the number of tokens in each of its progress events.
    advanced: Mutex<(String, Vec<usize>)>,
    job: AtomicUsize,
    stop: AtomicBool,
}

impl Reporter for Stopper {
    fn event(&self, event: Event) {
        let mut advanced = self.advanced.lock().unwrap();
        match event {
            Event::Started(job) if job.label.contains(self.label) => {
                *advanced = (job.label, Vec::new());
                self.job.store(job.id, Relaxed);
            }
            Event::Advanced { job, tokens, .. } if !advanced.0.is_empty() && job == self.job.load(Relaxed) => {
                advanced.1.push(tokens);
                self.stop.store(advanced.1.iter().sum::<usize>() >= self.tokens, Relaxed);
            }
            _ => {}
        }
    }
}

#[test]
fn plan_reuses_stored_greedy_trials_at_other_depths() {
    let world = World::new();
    let axes =
        |depth: usize| format!("criterion: [block-pruner, finercut]\ndepth: {{sublayers: {depth}}}\nrecovery: none\n");
    write_grid(&world, &axes(3));
    world.run_ok(&[]);
    // A smaller depth needs a new selection but no additional trials.
    write_grid(&world, &axes(2));
    let smaller = run_plan(&world);
    assert_eq!(trial_counts(&smaller), (2 * (8 + 7), 2 * (8 + 7)));
    let jobs: Vec<&Value> = smaller["jobs"].as_array().unwrap().iter().map(|job| &job["job"]).collect();
    assert_eq!(jobs, ["calibrate", "score"]);
    // A greater depth additionally needs the trials for one more step.
    write_grid(&world, &axes(4));
    assert_eq!(trial_counts(&run_plan(&world)), (2 * (8 + 7 + 6 + 5), 2 * (8 + 7 + 6)));
    world.run_ok(&[]);
    assert_eq!(count_stored_trials(&world), 2 * (8 + 7 + 6 + 5));
    assert_nothing_left(&run_plan(&world));
}

#[test]
fn iterative_selections_run_from_yaml_for_every_criterion() {
    let world = World::new();
    let layers = ["llm-streamline", "shortgpt", "shortened-llama", "sleb", "angular", "cca"];
    let iterative = |name: &str| format!("{{name: {name}, iterative: true}}");
    let layers: Vec<String> = layers.into_iter().map(iterative).collect();
    write_grid(
        &world,
        &format!(
            "criterion: [{}]\ndepth: 2\nrecovery: [none, mean]\ninclude:\n\
             \x20 - {{criterion: [sleb], recovery: none}}\n\
             \x20 - {{criterion: [{}, {}, block-pruner], depth: {{sublayers: 2}}, recovery: none}}\n\
             \x20 - {{criterion: [{}, {}], depth: {{attention: 2}}, recovery: nbl}}\n",
            layers.join(", "),
            iterative("llm-drop"),
            iterative("block-pruner"),
            iterative("finercut"),
            iterative("nbl"),
        ),
    );
    // Four iterative selections remove two of four layers, one removes two of eight sublayers, and one removes two of
    // four attention sublayers. Each step tries all remaining candidates.
    let iterative = 4 * (4 + 3) + (8 + 7) + (4 + 3);
    let greedy = (4 + 3) + (8 + 7);
    assert_eq!(trial_counts(&run_plan(&world)), (iterative + greedy, 0));
    world.run_ok(&[]);
    let after = run_plan(&world);
    // Removing both sublayers of a layer is also a trial of SLEB.
    assert_eq!(count_stored_trials(&world), greedy - 1);
    assert_eq!(trial_counts(&after), (iterative + greedy - 1, iterative + greedy - 1));
    assert_nothing_left(&after);
    let rows = read_results(&world);
    assert!(rows.iter().all(|row| row["status"] == "ok"), "{rows:?}");
}

#[test]
fn iterative_selection_without_repair_matches_greedy() {
    let world = World::new();
    for (criterion, depth) in [("sleb", "3"), ("block-pruner", "{sublayers: 3}"), ("finercut", "{attention: 2}")] {
        let removed = [false, true].map(|iterative| {
            let options = if iterative { ", iterative: true" } else { "" };
            write_grid(&world, &format!("criterion: {{name: {criterion}{options}}}\ndepth: {depth}\nrecovery: none\n"));
            world.run_ok(&[]);
            read_results(&world).pop().unwrap().remove("layers removed").unwrap()
        });
        assert_eq!(removed[0], removed[1], "{criterion}");
    }
}

/// Runs a grid that removes two layers, and returns the perplexity of each pruned row.
fn run_perplexities(world: &World, criterion: &str, recovery: &str) -> Vec<f64> {
    write_grid(world, &format!("criterion: {criterion}\ndepth: 2\nrecovery: {recovery}\n"));
    world.run_ok(&[]);
    let rows = read_results(world).into_iter().filter(|row| row["depth"] != "0");
    rows.map(|row| row["ppl test@64"].parse().unwrap()).collect()
}

#[test]
fn merges_of_merged_layers_run_from_yaml() {
    let world = World::new();
    let forms = "[merge, {name: merge, form: released}]";
    let [flat, released] = run_perplexities(&world, "{name: explicit, layers: [1, 2]}", forms)[..] else {
        unreachable!()
    };
    // Layer 2 is merged into layer 1, and the result into layer 0: θ_0 + (θ_1 + (θ_2 − θ_1) − θ_0) is θ_2.
    assert_eq!(run_perplexities(&world, "{name: laco, threshold: -1, combine: 2}", forms), [released, released]);
    // Without `combine`, all three layers are merged in a single step.
    assert_eq!(run_perplexities(&world, "{name: laco, threshold: -1}", forms), [flat, released]);
    let output = world.ghostlab(&["explain", "grid.yaml", "tiny.laco-2.merge"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("the official code merges down to the lowest layer"), "{text}");
    assert!(text.contains("removes layers [1, 2]"), "{text}");
}

#[test]
fn merges_below_the_threshold_fail_their_cells() {
    let world = World::new();
    write_grid(&world, "criterion: {name: laco, threshold: 0.9999999}\ndepth: 2\nrecovery: merge\n");
    world.run(&[]);
    let rows = read_results(&world);
    assert!(rows[1]["status"].contains("`laco` removed 0 of 2 layers"), "{rows:?}");
}

/// Returns the peak memory in bytes that `plan` estimates with a limit in GB.
fn planned_peak(world: &World, limit: &str) -> u64 {
    let output = world.ghostlab(&["plan", "grid.yaml", "--memory", limit, "--json"]);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    plan["answer"]["grids"][0]["cost"]["run"]["memory_bytes"].as_u64().unwrap()
}

#[test]
fn plan_counts_the_activations_of_iterative_criteria() {
    let world = World::new();
    // Bytes of the residual stream at one layer boundary: 64 channels in f32 for each token.
    let stream = 4 * 64 * 64 * 8000;
    let write_long_grid = |criterion: &str| {
        write_grid(&world, &format!("criterion: {criterion}\ndepth: 1\nrecovery: none\n"));
        let text = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
        world.write("grid.yaml", text.replace("sequences: 8", "sequences: 8000"));
    };
    write_long_grid("{name: cca, iterative: true}");
    // Activations may take an eighth of the memory limit, but at least two streams are always kept. All five streams
    // fit at 40 GB, 400 MB of activations fit at 3.2 GB, and not even two streams at 0.8 GB.
    let all = planned_peak(&world, "40");
    let limited = planned_peak(&world, "3.2");
    let least = planned_peak(&world, "0.8");
    assert_eq!(all - limited, 5 * stream - 400_000_000);
    assert_eq!(limited - least, 400_000_000 - 2 * stream);
    // A criterion that reads no residual streams still needs the activations before and after the repaired layer.
    write_long_grid("{name: angular, iterative: true}");
    assert_eq!(planned_peak(&world, "40"), least);
}

//! Compares sublayer cuts of a bundled backbone, run as grids, with a plain PyTorch reference
//! (`shared/oracles/beyond`).
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::path::Path;

use crate::common::world::World;
use crate::common::{assert_close, checkout, fixture, json, numbers, shared};
use ghostlab::grid::Grid;
use ghostlab::model::{Cut, Sublayer};
use ghostlab::pipeline::exec::{self, GridOutcome, RunEnv};
use ghostlab::pipeline::stage;
use ghostlab_store::Store;
use serde_json::Value;

/// Relative tolerances for comparing an f32 engine with the reference.
const SCORE_TOLERANCE: f64 = 1e-6;
const PERPLEXITY_TOLERANCE: f64 = 2e-6;

/// Parses the removed or replaced sublayers of a model in the reference. The reference writes `attn 3` or `mlp 3`, or
/// only the layer index if an attention sublayer is replaced.
fn parse_cut(removed: &Value) -> Cut {
    let sublayers = removed.as_array().unwrap().iter().map(|name| {
        if let Some(layer) = name.as_u64() {
            return (layer as usize, Sublayer::Attention);
        }
        let (kind, layer) = name.as_str().unwrap().split_once(' ').unwrap();
        (layer.parse().unwrap(), if kind == "attn" { Sublayer::Attention } else { Sublayer::Mlp })
    });
    sublayers.collect()
}

fn tiny_grid(axes: &str) -> String {
    let data = checkout().canonicalize().unwrap().join("data/tiny");
    let data = data.display();
    format!(
        "backbones:\n  tiny: {{path: {data}/llama}}\ncorpora:\n\
         \x20 train: {{path: {data}/corpora/wiki-train.jsonl.gz, rule: wikitext2}}\n\
         \x20 test: {{path: {data}/corpora/wiki-test.jsonl.gz, rule: wikitext2, limit: 40}}\n\
         backbone: tiny\ncalibration: {{corpus: train, sequences: 16, length: 256}}\n{axes}"
    )
}

fn run_grid(axes: &str, folder: &Path) -> GridOutcome {
    let text = tiny_grid(&format!("{axes}evaluate: {{perplexity: [{{corpus: test, length: 256}}]}}\n"));
    let grid = Grid::from_text(&text, &folder.join("grid.yaml")).unwrap();
    let store = Store::open(&folder.join("store"), stage::STORE_WORDS).unwrap();
    exec::run(&grid, RunEnv::new(&store)).unwrap()
}

#[test]
fn grid_of_sublayer_cuts_matches_the_reference() {
    let Some(file) = shared("oracles/beyond/numbers.json") else { return };
    let reference = json(&file)["tiny-llama"].take();
    let folder = tempfile::tempdir().unwrap();
    let outcome = run_grid(
        "criterion: llm-drop\ndepth: [{attention: 4}, {mlp: 2}, {sublayers: 4}]\nrecovery: none\n\
         include:\n  - {criterion: block-pruner, depth: {sublayers: 1}}\n\
         \x20 - {criterion: nbl, depth: {attention: 4}, recovery: [nbl, {name: nbl, input: normed}]}\n\
         \x20 - {criterion: {name: nbl, input: normed}, depth: {attention: 4}, recovery: {name: nbl, input: normed}}\n",
        folder.path(),
    );
    let variants = [
        ("tiny.llm-drop-attention-4.none", "half:attn:4"),
        ("tiny.llm-drop-mlp-2.none", "half:mlp:2"),
        ("tiny.llm-drop-sublayers-4.none", "half:joint:4"),
        ("tiny.nbl-attention-4.nbl", "nbl:stream:stream:4"),
        ("tiny.nbl-attention-4.nbl.input-normed", "nbl:normed:stream:4"),
        ("tiny.nbl-attention-4.nbl.input-normed.input-normed", "nbl:normed:normed:4"),
    ];
    assert_eq!(outcome.cells.len(), 1 + variants.len() + 1);
    for (name, variant) in variants {
        let expected = &reference["variants"][variant];
        let result = outcome.cells.iter().find(|result| result.cell.to_string() == name).unwrap();
        assert_eq!(result.failure, None, "{name}");
        let removed = expected.get("replaced").unwrap_or(&expected["removed"]);
        assert_eq!(result.removed, parse_cut(removed), "{name}: {:?}", result.scores);
        let perplexity = result.texts[0].sample.as_ref().unwrap().perplexity();
        assert_close(name, perplexity, expected["ppl"].as_f64().unwrap(), PERPLEXITY_TOLERANCE);
    }
    let block_pruner = &outcome.cells[4];
    let step = &reference["blockpruner"][0];
    assert_eq!(block_pruner.removed, parse_cut(&Value::Array(vec![step["removed"].clone()])));
    assert_close("block-pruner", block_pruner.scores[0].1, step["cost"].as_f64().unwrap(), SCORE_TOLERANCE);
    let scores = [&reference["half_scores"]["attn"], &reference["half_scores"]["mlp"]].map(numbers);
    for &(candidate, score) in &outcome.cells[3].scores {
        assert_close("score", score, scores[candidate % 2][candidate / 2], SCORE_TOLERANCE);
    }
}

/// `tools/nbl_mlp.py` computes the reference.
#[test]
fn replaced_mlps_match_the_reference() {
    let reference = json(&fixture("nbl_mlp.json"))["tiny-llama"]["variants"].take();
    let folder = tempfile::tempdir().unwrap();
    let outcome = run_grid(
        "criterion: nbl\ndepth: [{mlp: 2}, {sublayers: 6}]\nrecovery: nbl\ninclude:\n\
         \x20 - {criterion: {name: nbl, input: normed}, depth: [{mlp: 4}, {sublayers: 6}], recovery: {name: nbl, input: normed}}\n",
        folder.path(),
    );
    let variants = ["mlp:stream:2", "sublayers:stream:6", "mlp:normed:4", "sublayers:normed:6"];
    assert_eq!(outcome.cells.len(), 1 + variants.len());
    for (variant, result) in variants.into_iter().zip(&outcome.cells[1..]) {
        let expected = &reference[variant];
        assert_eq!(result.failure, None, "{variant}");
        let replaced: Cut =
            numbers(&expected["replaced"]).into_iter().map(|index| Sublayer::from_index(index as usize)).collect();
        assert_eq!(result.removed, replaced, "{variant}: {:?}", result.scores);
        assert_eq!(result.replaced_sublayers(), replaced, "{variant}");
        let perplexity = result.texts[0].sample.as_ref().unwrap().perplexity();
        assert_close(variant, perplexity, expected["ppl"].as_f64().unwrap(), PERPLEXITY_TOLERANCE);
    }
}

#[test]
fn listed_sublayers_match_the_reference() {
    let Some(file) = shared("oracles/beyond/numbers.json") else { return };
    let reference = json(&file)["tiny-llama"].take();
    let folder = tempfile::tempdir().unwrap();
    let variants = [
        ("half:joint:4", "removed", "{sublayers: 4}", "none"),
        ("nbl:stream:stream:4", "replaced", "{attention: 4}", "nbl"),
    ];
    let cells = variants.map(|(variant, key, depth, recovery)| {
        let listed = serde_json::to_string(&parse_cut(&reference["variants"][variant][key])).unwrap();
        format!("{{criterion: {{name: explicit, sublayers: {listed}}}, depth: {depth}, recovery: {recovery}}}")
    });
    let [joint, attentions] = &cells;
    let axes = format!(
        "criterion: llm-drop\ndepth: {{attention: 4}}\nrecovery: none\ninclude:\n  - {joint}\n  - {attentions}\n"
    );
    let outcome = run_grid(&axes, folder.path());
    for ((variant, key, ..), result) in variants.into_iter().zip(&outcome.cells[2..]) {
        let expected = &reference["variants"][variant];
        assert_eq!(result.failure, None, "{variant}");
        assert_eq!(result.removed, parse_cut(&expected[key]), "{variant}");
        let perplexity = result.texts[0].sample.as_ref().unwrap().perplexity();
        assert_close(variant, perplexity, expected["ppl"].as_f64().unwrap(), PERPLEXITY_TOLERANCE);
    }
}

#[test]
fn layers_and_sublayers_removed_one_by_one_match_reference() {
    let Some(file) = shared("oracles/beyond/numbers.json") else { return };
    let reference = json(&file)["tiny-llama"].take();
    let folder = tempfile::tempdir().unwrap();
    let axes = "criterion: {name: shortgpt, cosine: token, iterative: true}\ndepth: 4\n\
        recovery: [none, {name: prune-and-comp, granularity: scalar}]\n\
        include:\n\
        \x20 - {criterion: {name: shortgpt, iterative: true}, recovery: prune-and-comp}\n\
        \x20 - {criterion: {name: llm-drop, iterative: true}, depth: {sublayers: 6}, recovery: none}\n";
    let outcome = run_grid(axes, folder.path());
    let variants = [
        "iterative-none:4:token",
        "iterative-pc:4:scalar:token",
        "iterative-pc:4:channel:channel-series",
        "half-iterative:joint:6",
    ];
    assert_eq!(outcome.cells.len(), 1 + variants.len());
    for (result, variant) in outcome.cells[1..].iter().zip(variants) {
        assert_eq!(result.failure, None, "{variant}");
        let expected = &reference["variants"][variant];
        let trail = expected.get("trail").unwrap_or(&expected["removed"]).as_array().unwrap();
        let removed: Vec<&Value> = trail.iter().map(|step| step.get("removed").unwrap_or(step)).collect();
        let order: Vec<usize> = removed
            .iter()
            .map(|name| match name.as_str().map(|name| name.split_once(' ').unwrap()) {
                None => name.as_u64().unwrap() as usize,
                Some(("attn", layer)) => Sublayer::Attention.index_in_model(layer.parse().unwrap()),
                Some((_, layer)) => Sublayer::Mlp.index_in_model(layer.parse().unwrap()),
            })
            .collect();
        assert_eq!(result.scores.iter().map(|(candidate, _)| *candidate).collect::<Vec<_>>(), order, "{variant}");
        // For `scalar`, this program scales the residual stream at the cut, while the reference scales all weights
        // before it. The results differ because of the ε in the norms.
        if !variant.contains("scalar") {
            let perplexity = result.texts[0].sample.as_ref().unwrap().perplexity();
            assert_close(variant, perplexity, expected["ppl"].as_f64().unwrap(), PERPLEXITY_TOLERANCE);
        }
    }
    // The selection depends on the repair, so each recovery selects layers for itself.
    assert_eq!(
        outcome.cells[1].removed, outcome.cells[2].removed,
        "both must remove the same layers, in a different order"
    );
    assert_ne!(outcome.cells[1].scores, outcome.cells[2].scores);
}

/// Runs one step. `crates/core/tests/sublayers.rs` compares further steps.
#[test]
fn finercut_grid_matches_the_reference() {
    let Some(file) = shared("oracles/beyond/numbers.json") else { return };
    let reference = json(&file)["tiny-llama"].take();
    let folder = tempfile::tempdir().unwrap();
    let outcome = run_grid("criterion: finercut\ndepth: {sublayers: 1}\nrecovery: none\n", folder.path());
    let result = &outcome.cells[1];
    assert_eq!(result.failure, None);
    let step = &reference["finercut_angle"][0];
    let [(candidate, cost)] = result.scores[..] else { panic!("{:?}", result.scores) };
    let removed = parse_cut(&Value::Array(vec![step["removed"].clone()]));
    assert_eq!(removed, Cut::sublayers([Sublayer::from_index(candidate)]));
    assert_close("cost", cost, step["cost"].as_f64().unwrap(), SCORE_TOLERANCE);
}

#[test]
fn plan_results_and_explain_show_removed_sublayers() {
    let world = World::new();
    let text = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let text = text.replace("[llm-streamline]", "llm-drop").replace("[1, 2]", "{attention: 2}");
    let from = text.find("recovery:").unwrap();
    let to = text.find("calibration:").unwrap();
    world.write("grid.yaml", format!("{}recovery: none\n{}", &text[..from], &text[to..]));
    let plan = world.ghostlab(&["plan", "grid.yaml", "--all"]);
    let shown = String::from_utf8(plan.stdout).unwrap();
    assert!(shown.contains("tiny.llm-drop-attention-2.none"), "{shown}");
    world.run_ok(&[]);
    let table = std::fs::read_to_string(world.path("results/grid/results.csv")).unwrap();
    assert!(table.contains("attention "), "{table}");
    let explained = world.ghostlab(&["explain", "grid.yaml", "llm-drop"]);
    let explained = String::from_utf8(explained.stdout).unwrap();
    assert!(explained.contains("removes [attention "), "{explained}");
    let explained = world.ghostlab(&["explain", "grid.yaml", "llm-drop", "--json"]);
    let explained: Value = serde_json::from_slice(&explained.stdout).unwrap();
    let size = &explained["answer"]["size"];
    // The cut keeps two of the backbone's four attention sublayers.
    let cache = ["kv_cache_bytes", "dense_kv_cache_bytes"].map(|key| size[key].as_u64().unwrap());
    assert_eq!(cache[0] * 2, cache[1], "{size}");
}

#[test]
fn plan_counts_stored_trials_of_finercut() {
    let world = World::new();
    let grid = "backbones: {tiny: {path: backbone}}\ncorpora: {train: {path: train.txt, rule: wikitext2}, \
                test: {path: test.jsonl, rule: ptb, limit: 5}}\nbackbone: tiny\ncriterion: finercut\n\
                depth: {sublayers: 1}\nrecovery: none\ncalibration: {corpus: train, sequences: 8, length: 64}\n\
                evaluate: {perplexity: {corpus: test, length: 64}}\n";
    world.write("grid.yaml", grid);
    world.run_ok(&[]);
    world.write("grid.yaml", grid.replace("sublayers: 1", "sublayers: 2"));
    let plan = world.ghostlab(&["plan", "grid.yaml", "--json"]);
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    let artifacts = plan["answer"]["grids"][0]["artifacts"].as_array().unwrap();
    let trials = artifacts.iter().find(|count| count["kind"] == "trials").unwrap();
    // Four layers have eight sublayers, so the first step has eight trials, which are stored. The second step tries the
    // remaining seven.
    assert_eq!((&trials["needed"], &trials["stored"]), (&Value::from(15), &Value::from(8)), "{trials}");
}

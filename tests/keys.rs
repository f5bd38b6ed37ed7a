//! Pins the names under which work is stored, recorded and leased. A changed name makes all work stored under the old
//! one useless, so no name may change by accident. After an intended change, `GHOSTLAB_BLESS=1 cargo test --release
//! --test all keys::` updates the fixture.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use crate::common;
use crate::common::world::World;
use crate::common::{fixture, json};
use ghostlab::calibrate::{HookPoint, Pair, SimilarityAxis};
use ghostlab::criterion::{DepthUnit, TrialMetric};
use ghostlab::grid::{Calibration, Cell, EvalTask, Grid, Method, MethodAxis};
use ghostlab::model::{ComputeType, Cut, DeviceName, EngineName, EngineRequest};
use ghostlab::options::MethodDescription;
use ghostlab::pipeline::exec::RunSettings;
use ghostlab::pipeline::plan::{BackbonePlan, EvalTarget, Plan, ScoredExtent, Variant};
use ghostlab::pipeline::stage;
use ghostlab::pipeline::stage::{activations, distilled, scores, teacher};
use ghostlab::{criterion, recovery};
use ghostlab_store::{Key, Store};
use serde_json::{Map, Value, json};

/// Number of hash digits stored in the fixture for each key.
const DIGITS: usize = 12;

/// Stage versions recorded in the fixture. If a stage has a newer version, its keys are expected to differ, and are not
/// compared until the fixture is updated. (`tests/golden.rs` checks the versions.)
static PINNED_VERSIONS: OnceLock<Value> = OnceLock::new();
/// Text that replaces names whose stage version is newer than the fixture's.
const MOVED_MARKER: &str = "moved-on";

/// Returns whether the stage of a key, or of one of its inputs, has a version that differs from the fixture's.
fn has_new_version(key: &Value) -> bool {
    let Value::Object(map) = key else { return false };
    let is_moved =
        map.get("kind").is_some_and(|kind| PINNED_VERSIONS.get().unwrap()[kind.as_str().unwrap()] != map["version"]);
    is_moved || map.values().any(has_new_version)
}

/// Returns the first digits of a key's hash, or [`MOVED_MARKER`] if the key contains a new stage version.
fn shorten_hash(key: &Key) -> String {
    if has_new_version(&key.readable()) { MOVED_MARKER.to_owned() } else { key.hash()[..DIGITS].to_owned() }
}

/// Returns `name`, or [`MOVED_MARKER`] if the tokens key contains a new stage version.
fn name_or_marker(tokens: &Key, name: String) -> String {
    if has_new_version(&tokens.readable()) { MOVED_MARKER.to_owned() } else { name }
}

/// Returns a shortened hash of a latency's key. The machine is left out, because it depends on where the test runs.
fn latency_name(key: &Key) -> String {
    let mut readable = key.readable();
    readable["of"].as_object_mut().unwrap().remove("machine").unwrap();
    let hash = ghostlab::files::sha256::of_bytes(readable.to_string());
    if has_new_version(&readable) { MOVED_MARKER.to_owned() } else { hash[..DIGITS].to_owned() }
}

/// Formats a method with its options. The format does not depend on cell names.
fn format_method<M: MethodAxis + ?Sized>(method: &Method<M>) -> String {
    fn with(name: &str, options: &Map<String, Value>) -> String {
        let options: Vec<String> = options
            .iter()
            .map(|(name, value)| match value {
                Value::String(text) => format!("{name}={text}"),
                Value::Object(map) => format!("{name}={}", with("", map)),
                other => format!("{name}={other}"),
            })
            .collect();
        if options.is_empty() { name.to_owned() } else { format!("{name}({})", options.join(",")) }
    }
    with(&method.name, &method.options)
}

fn format_cell(cell: &Cell) -> String {
    let (Some(criterion), Some(recovery), Some(calibration)) = (&cell.criterion, &cell.recovery, &cell.calibration)
    else {
        return "dense".to_owned();
    };
    let criterion = format_method(criterion);
    let recovery = format_method(recovery);
    format!(
        "{criterion}/{}/{recovery}/{}, {}",
        cell.depth,
        format_calibration(calibration),
        calibration.operator_sequences
    )
}

fn format_calibration(calibration: &Calibration) -> String {
    let Calibration { corpus, sequences, length, seed, .. } = calibration;
    format!("{corpus}:{sequences}x{length}@{seed}")
}

fn format_target(target: &EvalTarget) -> String {
    match target {
        EvalTarget::Windows(text) => format!("{}@{}", text.corpus, text.length),
        EvalTarget::Task(task) if task.defined => task.name.clone(),
        EvalTarget::Task(EvalTask { name, how, .. }) => {
            format!("{name} {:?} {} {:?}", how.limit, how.bos, how.max_length)
        }
    }
}

/// Formats the keys of a planned cell, as in `selection 0123…, operator 4567…, scores 89ab… cdef…`.
fn format_variant(variant: &Variant) -> Value {
    let mut kinds: Vec<(&str, String)> = Vec::new();
    for key in variant.keys() {
        let hash = match key.kind() {
            stage::latency::KIND => latency_name(key),
            _ => shorten_hash(key),
        };
        let name = key.kind().name();
        match kinds.iter_mut().find(|(known, _)| *known == name) {
            Some((_, all)) => *all += &format!(" {hash}"),
            None => kinds.push((name, hash)),
        }
    }
    let kinds: Vec<String> = kinds.into_iter().map(|(name, all)| format!("{name} {all}")).collect();
    json!(kinds.join(", "))
}

/// Returns the keys of intermediate objects: trials, the checkpoint, and shards (results for a range of sequences) of
/// activations, similarities and teacher outputs. Also returns the key of the tokens and the lease names.
fn name_intermediates(backbone_plan: &BackbonePlan) -> Value {
    let key_parts = backbone_plan.key_parts();
    let pairs = BTreeSet::from([
        Pair { axis: SimilarityAxis::ChannelSeries, from: 0, to: 2 },
        Pair { axis: SimilarityAxis::Token, from: 1, to: 3 },
        Pair { axis: SimilarityAxis::LastTokenAngle, from: 1, to: 2 },
    ]);
    let calibrations = backbone_plan.calibrations.iter().map(|plan| {
        let tokens = &plan.tokens;
        let name = format_calibration(&plan.calibration);
        let trial = scores::trial_key(key_parts, tokens, TrialMetric::Perplexity, &Cut::layers([0, 2]).into());
        let members = json!({
            "tokens": shorten_hash(tokens),
            "claim": name_or_marker(tokens, plan.lease_name(backbone_plan)),
            "stream": shorten_hash(&activations::rows_key(key_parts, tokens, HookPoint::Stream(2), &(0..4))),
            "middle": shorten_hash(&activations::rows_key(key_parts, tokens, HookPoint::Middle(2), &(4..8))),
            "similarities": shorten_hash(&activations::sums_key(key_parts, tokens, &pairs, &(0..4))),
            "trial": shorten_hash(&trial),
            "trials": name_or_marker(tokens, scores::journal_name(key_parts, tokens, ScoredExtent::default())),
            "teacher": shorten_hash(&teacher::shard_key(key_parts, tokens, &(0..4))),
        });
        (name, members)
    });
    let trained = backbone_plan.variants.iter().filter_map(|variant| variant.trained.as_ref()).next();
    json!({
        "calibrations": calibrations.collect::<Map<_, _>>(),
        "checkpoint": trained.map(|plan| shorten_hash(&distilled::checkpoint(&plan.key, 7))),
    })
}

/// Returns the keys, journal names and lease names for all work in a grid, by backbone and then by cell.
fn name_work(grid: &Path, profile: Option<&str>, engine: [&str; 3]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_read_only(folder.path(), stage::STORE_WORDS).unwrap();
    let grid = Grid::load(grid, profile, &[]).unwrap();
    let [engine, device, dtype] = engine;
    // Request the engine explicitly. Keys contain the engine, and the default engine depends on the machine.
    let request = EngineRequest {
        engine: Some(engine.parse::<EngineName>().unwrap()),
        device: Some(device.parse::<DeviceName>().unwrap()),
        dtype: Some(dtype.parse::<ComputeType>().unwrap()),
        kernels: None,
    };
    let plan = Plan::new(&grid, &store, RunSettings::with_engine(request)).unwrap();
    let mut backbones = Map::new();
    for backbone in &plan.backbones {
        let evaluations = backbone.evaluations.iter().map(|evaluation| {
            let names = json!({
                "tokens": shorten_hash(&evaluation.tokens),
                "journal": name_or_marker(&evaluation.tokens, evaluation.journal.clone()),
            });
            (format_target(&evaluation.target), names)
        });
        let cells =
            backbone.variants.iter().map(|planned| (format_cell(&grid.cells[planned.cell]), format_variant(planned)));
        let names = json!({
            "evaluations": evaluations.collect::<Map<_, _>>(),
            "members": name_intermediates(backbone),
            "cells": cells.collect::<Map<_, _>>(),
        });
        backbones.insert(backbone.name.clone(), names);
    }
    Value::Object(backbones)
}

/// Methods added after the grid with all methods was pinned. They need a separate grid, because the key of a latency
/// depends on all cells that are timed together.
const NEWER_METHODS: [&str; 2] = ["lorp", "mean"];

/// Methods that merge layers. They have a separate grid too.
const MERGE_METHODS: [&str; 2] = ["merge", "laco"];

/// Writes a grid that combines every older criterion with every older recovery.
fn write_grid_of_methods(world: &World) {
    let criteria: Vec<String> = criterion::descriptions()
        .into_iter()
        .filter(is_older)
        .map(
            |method| if method.name == "explicit" { "{name: explicit, order: [2, 0]}".to_owned() } else { method.name },
        )
        .collect();
    let recoveries = recovery::descriptions().into_iter().filter(is_older).map(|method| method.name);
    write_grid(world, &criteria, &recoveries.collect::<Vec<_>>());
}

/// Returns whether a criterion supports only depths in sublayers. Returns `false` for `explicit`, which cannot be built
/// without options.
fn needs_sublayers(name: &str) -> bool {
    criterion::build(name, &Map::new()).is_ok_and(|rule| !rule.units().contains(&DepthUnit::Layers))
}

/// Writes a grid that evaluates one text.
fn write_small_grid(world: &World, axes: &str) {
    world.write(
        "grid.yaml",
        format!(
            "backbones:\n  tiny: {{path: backbone}}\n\
             corpora:\n  train: {{path: train.txt, rule: wikitext2}}\n  test: {{path: test.jsonl, rule: ptb, limit: 5}}\n\
             backbone: tiny\ncalibration: {{corpus: train, sequences: 8, length: 64}}\n{axes}\
             evaluate:\n  perplexity: [{{corpus: test, length: 64}}]\n"
        ),
    );
}

/// Writes a grid with all criteria that remove sublayers.
fn write_grid_of_sublayers(world: &World) {
    let all = criterion::descriptions().into_iter().map(|method| method.name).filter(|name| needs_sublayers(name));
    let axes = format!(
        "criterion: [{}]\ndepth: {{attention: 2}}\nrecovery: none\n\
         include:\n  - {{criterion: llm-drop, depth: [{{sublayers: 2}}, {{mlp: 1}}]}}\n\
         \x20 - {{criterion: [nbl, {{name: nbl, input: normed}}], recovery: [nbl, {{name: nbl, input: normed}}]}}\n",
        all.collect::<Vec<_>>().join(", ")
    );
    write_small_grid(world, &axes);
}

/// Writes a grid with all criteria that support `iterative: true`.
fn write_grid_of_iterative_criteria(world: &World) {
    let options = json!({"iterative": true});
    let names = criterion::descriptions().into_iter().map(|method| method.name);
    let (sublayers, layers): (Vec<String>, Vec<String>) = names
        .filter(|name| criterion::build(name, options.as_object().unwrap()).is_ok())
        .partition(|name| needs_sublayers(name));
    let [sublayers, layers] = [sublayers, layers].map(|names| {
        let criteria = names.iter().map(|name| format!("{{name: {name}, iterative: true}}"));
        criteria.collect::<Vec<_>>().join(", ")
    });
    let axes = format!(
        "criterion: [{layers}]\ndepth: 2\nrecovery: [none, prune-and-comp, ghosted]\n\
         include:\n  - {{criterion: [{sublayers}], depth: {{attention: 2}}, recovery: none}}\n\
         \x20 - {{criterion: {{name: nbl, iterative: true}}, depth: {{attention: 2}}, recovery: nbl}}\n"
    );
    write_small_grid(world, &axes);
}

/// Writes a grid with the methods that merge layers.
fn write_grid_of_merges(world: &World) {
    let axes = "criterion: llm-streamline\ndepth: [1, 2]\n\
         recovery: [merge, {name: merge, form: released}, {name: merge, form: norms}]\n\
         include:\n  - {criterion: {name: laco, combine: 2}, recovery: merge}\n\
         \x20 - {criterion: {name: laco, combine: 3, form: released}, recovery: {name: merge, form: released}}\n";
    write_small_grid(world, axes);
}

/// Writes a grid with the newer methods, and with newer options of older methods.
fn write_grid_of_newer_methods(world: &World) {
    let criteria = ["llm-streamline", "lorp", "{name: lorp, clusters: 2}"].map(str::to_owned);
    let recoveries =
        ["mean", "{name: ghosted, input: normed}", "{name: ghosted, input: normed, bias: true}"].map(str::to_owned);
    for name in NEWER_METHODS {
        assert!(criteria.iter().chain(&recoveries).any(|method| method.contains(name)), "no grid contains {name}");
    }
    write_grid(world, &criteria, &recoveries);
}

/// Writes a grid that compares pruned models with the dense model.
fn write_grid_of_damage(world: &World) {
    world.write(
        "grid.yaml",
        "backbones:\n  tiny: {path: backbone}\n\
         corpora:\n  train: {path: train.txt, rule: wikitext2}\n  test: {path: test.jsonl, rule: ptb, limit: 5}\n\
         backbone: tiny\ncriterion: llm-streamline\ndepth: 1\nrecovery: [none, ghosted]\n\
         calibration: {corpus: train, sequences: 8, length: 64}\n\
         evaluate:\n  perplexity: [{corpus: test, length: 64, damage: true}]\n",
    );
}

/// Writes a grid with the given methods. It evaluates a text, a task and latencies, and has several calibrations.
fn write_grid(world: &World, criteria: &[String], recoveries: &[String]) {
    world.write(
        "grid.yaml",
        format!(
            "backbones:\n  tiny: {{path: backbone}}\n\
             corpora:\n  train: {{path: train.txt, rule: wikitext2}}\n  test: {{path: test.jsonl, rule: ptb, limit: 5}}\n\
             tasks:\n  copa: {{path: copa.jsonl}}\nbackbone: tiny\ncriterion: [{}]\ndepth: [1, 2]\nrecovery: [{}]\n\
             calibration: {{corpus: train, sequences: 8, length: 64, operator_sequences: 4}}\n\
             include:\n  - {{criterion: llm-streamline, recovery: [ghosted, linearpatch-diag], calibration: [\
             {{corpus: train, sequences: 8, length: 64}}, {{corpus: train, sequences: 8, length: 32, seed: 1}}]}}\n\
             evaluate:\n  perplexity: [{{corpus: test, length: 64}}]\n\
             \x20 tasks: [copa, {{name: copa, limit: 3, bos: always, max_length: 32}}]\n\
             \x20 latency: [{{length: 16, batch: [1, 2]}}]\n",
            criteria.join(", "),
            recoveries.join(", ")
        ),
    );
}

fn equals_except_moved_versions(before: &str, now: &str) -> bool {
    let before = before.split(' ').collect::<Vec<_>>();
    let now = now.split(' ').collect::<Vec<_>>();
    before.len() == now.len()
        && before.iter().zip(&now).all(|(before, now)| before == now || now.trim_end_matches(',') == MOVED_MARKER)
}

/// Collects the differences between `before` and `now`. Skips names that only `now` has, and values that contain
/// [`MOVED_MARKER`].
fn collect_differences(path: &str, before: &Value, now: Option<&Value>, found: &mut Vec<String>) {
    match (before, now) {
        (Value::Object(all), Some(Value::Object(now))) => {
            all.iter().for_each(|(name, value)| {
                collect_differences(&format!("{path} › {name}"), value, now.get(name), found);
            });
        }
        (before, Some(now)) if before == now => {}
        (Value::String(before), Some(Value::String(now))) if equals_except_moved_versions(before, now) => {}
        (before, now) => found.push(format!("{path}: {before} → {}", now.unwrap_or(&Value::Null))),
    }
}

#[test]
fn keys_journals_and_leases_match_the_fixture() {
    let path = fixture("keys.json");
    let bless = std::env::var_os("GHOSTLAB_BLESS").is_some();
    let stages: Map<String, Value> =
        stage::KINDS.into_iter().map(|kind| (kind.name().to_owned(), json!(kind.version()))).collect();
    let pinned = if bless { json!(stages) } else { json(&path)["stages"].take() };
    PINNED_VERSIONS.set(pinned).unwrap();
    let world = World::large();
    write_grid_of_methods(&world);
    let engine = ["cpu", "cpu", "f32"];
    let mut now = Map::new();
    for artifact in ["table2", "table4", "tableA4", "tableA10"] {
        let file = common::checkout().join("experiments").join(format!("{artifact}.yaml"));
        now.insert(artifact.to_owned(), name_work(&file, Some("tiny"), engine));
    }
    let grid = world.path("grid.yaml");
    now.insert("methods".to_owned(), name_work(&grid, None, engine));
    let other = name_work(&grid, None, ["candle", "cpu", "bf16"]);
    // Four cells suffice for the second engine, because all keys of one kind are built in the same way.
    let cells = other["tiny"]["cells"].as_object().unwrap().iter().take(4);
    let cells: Map<String, Value> = cells.map(|(name, cell)| (name.clone(), cell.clone())).collect();
    now.insert("candle".to_owned(), json!({"cells": cells, "members": other["tiny"]["members"]}));
    for (name, write) in [
        ("newer methods", write_grid_of_newer_methods as fn(&World)),
        ("sublayers", write_grid_of_sublayers),
        ("damage", write_grid_of_damage),
        ("iterative", write_grid_of_iterative_criteria),
        ("merges", write_grid_of_merges),
    ] {
        write(&world);
        now.insert(name.to_owned(), name_work(&grid, None, engine));
    }
    let now = Value::Object(now);
    if bless {
        let renewed = json!({"stages": stages, "keys": now});
        std::fs::write(&path, serde_json::to_string_pretty(&renewed).unwrap() + "\n").unwrap();
    }
    let mut found = Vec::new();
    // Entries that are missing in the fixture belong to new methods and are not compared.
    collect_differences("keys.json", &json(&path)["keys"], Some(&now), &mut found);
    assert!(
        found.is_empty(),
        "{} keys or names changed, so work stored under the old ones would be recomputed; if this is intended, run \
         this test with GHOSTLAB_BLESS=1 to update tests/fixtures/keys.json, and say why in the commit. \
         First changes:\n{}",
        found.len(),
        found[..found.len().min(5)].join("\n")
    );
    // The comparison above skips changes caused by a new stage version. They are pinned once the fixture is updated.
    assert_eq!(
        json(&path)["stages"],
        json!(stages),
        "update tests/fixtures/keys.json by running this test with GHOSTLAB_BLESS=1"
    );
}

fn is_older(method: &MethodDescription) -> bool {
    ![&NEWER_METHODS[..], &MERGE_METHODS].concat().contains(&method.name.as_str()) && !needs_sublayers(&method.name)
}

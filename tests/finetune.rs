//! End-to-end tests for fine-tuning. All methods at one cut share a pass over the training text, killed training runs
//! resume, and methods that do not support fine-tuning are rejected.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::BTreeMap;

use crate::common::world::{World, column_index, read_rows};
use ghostlab::pipeline::stage;
use ghostlab_store::{ObjectKind, Store};

const STEPS: usize = 40;

/// Creates a world whose grid removes one of four layers and uses the given recoveries.
fn create_world(recoveries: &str) -> World {
    let world = World::new();
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replace("depth: [1, 2]", "depth: 1");
    let line = "recovery: [none, linearpatch-diag, linearpatch-rotate, ghosted]";
    assert!(grid.contains(line));
    world.write("grid.yaml", grid.replace(line, &format!("recovery: [{recoveries}]")));
    world
}

fn finetuned_recovery(name: &str) -> String {
    format!("{{name: {name}, finetune: {{sequences: {STEPS}, length: 32}}}}")
}

/// Reads the stored payloads of one kind. JSON files are left out, because they contain timings.
fn read_stored(world: &World, kind: ObjectKind) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in Store::open_read_only(&world.path("data/store"), stage::STORE_WORDS).unwrap().entries() {
        let Ok(artifact) = entry.object else { panic!("a stored object is damaged") };
        if artifact.meta().key["kind"] != kind.name() {
            continue;
        }
        for file in artifact.payloads().filter(|file| !file.ends_with(".json")) {
            all.insert(format!("{} {file}", entry.hash), artifact.read(file).unwrap());
        }
    }
    all
}

fn read_perplexities(world: &World) -> BTreeMap<String, f64> {
    let rows = read_rows(&world.path("results/grid/results.csv"));
    let method = column_index(&rows, "recovery");
    let value = column_index(&rows, "ppl test@64");
    // The name of a trained method contains a comma that splits its cell, so count columns from the end.
    let from_end = rows[0].len() - value;
    rows[1..].iter().map(|row| (row[method].clone(), row[row.len() - from_end].parse().unwrap())).collect()
}

#[test]
fn methods_at_one_cut_share_a_training_pass() {
    let world = create_world(
        &[finetuned_recovery("linearpatch-diag"), finetuned_recovery("ghosted"), "ghosted".to_owned()].join(", "),
    );
    let log = world.run_ok(&[]);
    let passes = log.lines().filter(|line| line.contains("read train") && line.contains("done in")).count();
    assert_eq!(passes, 1, "{log}");
    assert!(log.contains(&format!("step {STEPS} of {STEPS}, loss")), "{log}");
    let losses: Vec<Vec<f64>> = read_stored(&world, stage::distilled::KIND)
        .into_iter()
        .filter(|(name, _)| name.ends_with("losses.f64"))
        .map(|(_, bytes)| bytemuck::pod_collect_to_vec::<u8, f64>(&bytes))
        .collect();
    assert_eq!(losses.iter().map(Vec::len).collect::<Vec<_>>(), [STEPS; 2]);
    // On a random backbone, losses need not decrease. The tests in ghostlab-core check the losses on a trained one.
    assert!(losses.iter().flatten().all(|loss| loss.is_finite() && *loss > 0.0), "{losses:?}");
    let perplexities = read_perplexities(&world);
    assert_eq!(perplexities.len(), 4, "expected the dense backbone, the solved operator and two trained ones");
    let mut values: Vec<f64> = perplexities.into_values().collect();
    values.dedup();
    assert_eq!(values.len(), 4, "perplexities are equal");
    assert!(!world.run_ok(&[]).contains("fine-tune"), "the second run trained again");
}

#[test]
fn workers_training_on_one_text_read_each_sequence_once() {
    let world = create_world(&finetuned_recovery("ghosted"));
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let one = "{corpus: train, sequences: 8, length: 64}";
    let trained = format!("{{corpus: train, sequences: {STEPS}, length: 32}}");
    assert!(grid.contains(one));
    // The third calibration uses the sequences on which the first two fine-tune.
    let grid =
        grid.replace(one, &format!("{one}\n  - {{corpus: train, sequences: 8, length: 64, seed: 1}}\n  - {trained}"));
    world.write("grid.yaml", grid);
    let alone = world.command(&["run", "grid.yaml", "--store", "own", "--results", "alone"]).output().unwrap();
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    let workers = [start_worker(&world), start_worker(&world), start_worker(&world)];
    let mut read = 0;
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let events = String::from_utf8(output.stdout).unwrap();
        let events: Vec<serde_json::Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let reading = events.iter().filter(|event| event["event"] == "started");
        let reading: Vec<_> = reading.filter(|event| event["label"].as_str().unwrap().starts_with("read ")).collect();
        let ids: Vec<_> = reading.iter().map(|event| &event["job"]).collect();
        let advanced = events.iter().filter(|event| event["event"] == "advanced" && event["elsewhere"] == false);
        read += advanced
            .filter(|event| ids.contains(&&event["job"]))
            .map(|event| event["tokens"].as_u64().unwrap())
            .sum::<u64>();
    }
    assert_eq!(read, STEPS as u64 * 32, "a sequence was read twice");
    world.run_ok(&[]);
    assert!(read_result_table(&world, "results") == read_result_table(&world, "alone"), "the tables differ");
}

fn start_worker(world: &World) -> std::process::Child {
    let mut command = world.command(&["worker", "grid.yaml", "--events", "--threads", "1"]);
    // Slow down the teacher (the dense model) so that all workers reach the same shard of its outputs while it is being
    // computed.
    command.env("GHOSTLAB_FAULT", "slow@teach:700").stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped()).spawn().unwrap()
}

fn read_result_table(world: &World, folder: &str) -> Vec<u8> {
    std::fs::read(world.path(folder).join("grid/results.csv")).unwrap()
}

#[test]
fn killed_training_resumes_to_identical_bytes() {
    let undisturbed = create_world(&finetuned_recovery("ghosted"));
    let killed = create_world(&finetuned_recovery("ghosted"));
    undisturbed.run_ok(&[]);
    let output = killed.command(&["run", "grid.yaml"]).env("GHOSTLAB_FAULT", "kill@train:26").output().unwrap();
    assert!(!output.status.success());
    assert!(!read_stored(&killed, stage::distilled::KIND).is_empty(), "the killed run left no checkpoint");
    // Garbage collection must keep the checkpoint.
    assert!(killed.ghostlab(&["cache", "gc", "--keep", "grid.yaml", "--yes"]).status.success());
    let log = killed.run_ok(&[]);
    // A checkpoint is written after every second step. The process was killed in step 26.
    assert!(log.contains("resuming fine-tuning after step 24 of 40"), "{log}");
    assert_eq!(read_stored(&killed, stage::distilled::KIND), read_stored(&undisturbed, stage::distilled::KIND));
    assert_eq!(killed.tables(), undisturbed.tables());
}

#[test]
fn unsupported_fine_tuning_is_rejected_with_a_reason() {
    for name in ["none", "replaceme-ls"] {
        create_world(&finetuned_recovery(name)).assert_rejected(
            &[],
            2,
            &["does not support fine-tuning", "linearpatch-rotate, ghosted"],
        );
    }
    let several = "{name: ghosted, boundary: layer, finetune: {sequences: 4, length: 32}}";
    create_world(several).assert_rejected(&[], 2, &["does not support fine-tuning"]);
    create_world("{name: ghosted, finetune: {steps: 4}}").assert_rejected(&[], 2, &["finetune", "steps"]);
    let scattered = create_world(&finetuned_recovery("ghosted"));
    let grid = std::fs::read_to_string(scattered.path("grid.yaml")).unwrap();
    scattered.write("grid.yaml", grid.replace("depth: 1", "depth: 2").replace("[llm-streamline]", "[shortgpt]"));
    scattered.assert_rejected(&[], 2, &["fine-tuning requires one contiguous block", "shortgpt"]);
}

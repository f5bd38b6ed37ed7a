//! Tests for run events, engines, float types and kernel families.

use super::*;
use crate::common::output::events_of_kind;

#[test]
fn events_have_timestamps_known_jobs_and_reported_scores() {
    let world = World::new();
    let output = world.run(&["--events"]);
    let events: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().all(|event| event["time"].as_str().is_some_and(|time| time.ends_with('Z'))));
    let times: Vec<&str> = events.iter().filter_map(|event| event["time"].as_str()).collect();
    assert!(times.is_sorted(), "{times:?}");
    let jobs: Vec<&Value> = events_of_kind(&events, "started").iter().map(|event| &event["job"]).collect();
    for event in events_of_kind(&events, "advanced").into_iter().chain(events_of_kind(&events, "finished")) {
        assert!(jobs.contains(&&event["job"]), "{event}");
    }
    assert_eq!(events_of_kind(&events, "planned")[0]["scores"], 9);
    let rows = read_rows(&world.path("results/grid/results.csv"));
    let column = rows[0].iter().position(|name| name == "ppl test@64").unwrap();
    let mut expected: Vec<f64> = rows[1..].iter().map(|row| row[column].parse().unwrap()).collect();
    let mut reported: Vec<f64> =
        events_of_kind(&events, "scored").iter().map(|event| event["value"].as_f64().unwrap()).collect();
    expected.sort_by(f64::total_cmp);
    reported.sort_by(f64::total_cmp);
    assert_eq!(reported, expected);
    assert_eq!(events_of_kind(&events, "complete").last().unwrap()["complete"], 9);
    let status = world.ghostlab(&["status"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("9 of 9 cells complete, 9 of 9 scores"), "{status}");
}

#[test]
fn interrupted_run_records_its_progress() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use ghostlab::pipeline::exec::{Event, Recorder, Reporter, RunEnv, RunRecord, RunState, run};
    struct StoppingReporter<'a>(&'a AtomicBool);
    impl Reporter for StoppingReporter<'_> {
        fn event(&self, event: Event) {
            if matches!(event, Event::Scored { .. }) {
                self.0.store(true, Relaxed);
            }
        }
    }
    let world = World::new();
    add_tasks(&world);
    let store = ghostlab_store::Store::open(&world.path("store"), stage::STORE_WORDS).unwrap();
    run(&load_grid(&world, &["depth=1".to_owned()]), RunEnv::new(&store)).unwrap();
    let grid = load_grid(&world, &[]);
    let stop = AtomicBool::new(false);
    let stops = StoppingReporter(&stop);
    let recorder = Recorder::for_run(&grid, &world.path("results"), &store, &stops).unwrap();
    let error = run(&grid, RunEnv { reporter: &recorder, stop: &stop, ..RunEnv::new(&store) }).unwrap_err();
    recorder.record_failure(&error);
    let record = RunRecord::read_all(&store).into_iter().next().unwrap();
    assert_eq!(record.stage, RunState::Interrupted);
    // The dense cell and the cells at depth 1 were complete. At depth 2, the first evaluation had finished.
    assert_eq!((record.complete, record.cells), (5, 9));
    assert_eq!((record.scored, record.scores), (5 * 3 + 4, 9 * 3));
}

fn load_grid(world: &World, overrides: &[String]) -> ghostlab::grid::Grid {
    ghostlab::grid::Grid::load(&world.path("grid.yaml"), None, overrides).unwrap()
}

#[test]
fn engines_and_dtypes_do_not_share_stored_results() {
    let world = World::new();
    world.run_ok(&["--results", "own"]);
    let candle = ["--engine", "candle", "--results"];
    // Stored objects of another engine must not be reused.
    let log = world.run_ok(&[&candle[..], &["other"]].concat());
    assert!(!log.contains("cells cached"), "{log}");
    let log = world.run_ok(&[&candle[..], &["again"]].concat());
    assert!(log.contains("9 of 9 cells cached"), "{log}");
    world.run_ok(&["--dtype", "bf16", "--kernels", "portable", "--results", "half"]);
    let [cpu, other, half] = ["own", "other", "half"]
        .map(|results| common::json(&world.path(&only_result_folder(&world, results)).join("numbers.json")));
    assert_eq!(cpu["engines"]["tiny"], json!({"name": "cpu", "dtype": "f32", "device": "cpu"}));
    assert_eq!(other["engines"]["tiny"], json!({"name": "candle", "dtype": "f32", "device": "cpu"}));
    assert_eq!(half["engines"]["tiny"], json!({"name": "cpu", "dtype": "bf16", "device": "cpu"}));
    let [cpu, other, half] = [&cpu, &other, &half].map(|results: &Value| -> Vec<f64> {
        let numbers = common::stored_numbers(results);
        numbers.iter().filter(|n| n["metric"] == "ppl_test").map(|n| n["value"].as_f64().unwrap()).collect()
    });
    assert_eq!(cpu.len(), 9);
    for ((ours, other), half) in cpu.iter().zip(&other).zip(&half) {
        assert!(((ours - other) / ours).abs() < 1e-4, "{ours} {other}");
        assert!(half != ours && ((ours - half) / ours).abs() < 0.05, "{ours} {half}");
    }
    let compared = run_ok(&world, &["compare", "own/grid", &only_result_folder(&world, "half")]);
    for words in ["backbones.tiny", "cpu f32 on cpu", "cpu bf16 on cpu", "beyond the tolerance", "settings: the same"] {
        assert!(compared.contains(words), "`{words}` is not in {compared}");
    }
    let plan = run_ok(&world, &["plan", "grid.yaml", "--engine", "candle", "--dtype", "f16"]);
    assert!(plan.contains("0 complete, 9 to run") && plan.contains("engine: candle f16 on cpu"), "{plan}");
    let [portable, amx] = ["portable", "amx"]
        .map(|kernels| run_ok(&world, &["plan", "grid.yaml", "--dtype", "bf16", "--kernels", kernels]));
    assert!(portable.contains("9 complete, 0 to run"), "{portable}");
    // Each kernel family has its own device class. `plan` accepts every class on every machine.
    assert!(amx.contains("0 complete, 9 to run") && amx.contains("engine: cpu bf16 on cpu-amx"), "{amx}");
    // Engines do not share results, even if their float types are the same.
    assert!(
        run_ok(&world, &["plan", "grid.yaml", "--engine", "candle", "--dtype", "bf16"])
            .contains("0 complete, 9 to run")
    );
}

fn only_result_folder(world: &World, results: &str) -> String {
    format!("{results}/{}", file_names(&world.path(results))[0])
}

#[test]
fn unsupported_kernels_are_rejected_before_any_work() {
    let world = World::new();
    world.assert_rejected(&["--kernels", "amx"], 2, &["`amx` does not support f32", "--dtype bf16"]);
    world.assert_rejected(&["--kernels", "portable", "--dtype", "bf16x3"], 2, &["`portable` does not support bf16x3"]);
    world.assert_rejected(
        &["--engine", "candle", "--dtype", "bf16x6"],
        2,
        &["only the engine `cpu` supports", "--dtype f32"],
    );
    world.assert_rejected(&["--kernels", "amx", "--engine", "candle", "--dtype", "bf16"], 2, &["remove --kernels"]);
    let doctor = world.ghostlab(&["doctor"]);
    if String::from_utf8_lossy(&doctor.stdout).contains("kernels: amx in bf16") {
        for dtype in ["bf16", "bf16x3", "bf16x6"] {
            world.run_ok(&["--kernels", "amx", "--dtype", dtype]);
        }
    } else {
        world.assert_rejected(&["--dtype", "bf16x3"], 3, &["kernel family `amx`", "AMX-BF16", "--dtype f32"]);
        let words = ["kernel family `amx`", "AMX-BF16", "--kernels portable"];
        world.assert_rejected(&["--kernels", "amx", "--dtype", "bf16"], 3, &words);
        let worker = world.ghostlab(&["worker", "grid.yaml", "--kernels", "amx", "--dtype", "bf16"]);
        assert_eq!(worker.status.code(), Some(3));
        assert!(words.iter().all(|word| String::from_utf8_lossy(&worker.stderr).contains(word)));
    }
}

#[test]
fn unsupported_engine_is_rejected_with_an_alternative() {
    let world = World::new();
    world.assert_rejected(&["--engine", "cpu", "--dtype", "f16"], 2, &["f16 on cpu", "--engine candle"]);
    if cfg!(not(feature = "cuda")) {
        world.assert_rejected(&["--device", "cuda:1"], 3, &["device cuda:1", "tools/cuda_build.sh"]);
    }
    for (option, value, expected) in [
        ("--device", "gpu", "expected cpu, cuda"),
        ("--dtype", "f8", "is not one of"),
        ("--engine", "torch", "is not one of"),
        ("--kernels", "mkl", "is not one of"),
    ] {
        let output = world.run(&[option, value]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains(option) && text.contains(expected), "{text}");
    }
}

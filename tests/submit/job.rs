//! Tests for the jobs in a submission.

use super::*;

#[test]
fn worker_runs_the_submitted_grid_despite_later_edits() {
    let alone = World::new();
    let world = World::new();
    alone.run_ok(&[]);
    let (_, frozen) = submit_grid(&world);
    fs::remove_file(world.path("grid.yaml")).unwrap();
    let other_folder = tempfile::tempdir().unwrap();
    let store = world.path("data/store").display().to_string();
    let output =
        world.command(&["worker", &frozen, "--store", &store]).current_dir(other_folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let results = world.path("results").display().to_string();
    let output = world
        .command(&["run", &frozen, "--store", &store, "--stored", "--results", &results])
        .current_dir(other_folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(alone.tables().len() == 3 && alone.tables() == world.tables(), "the tables differ");
}

#[test]
fn worker_rejects_other_program_or_inputs_with_reason() {
    let world = World::new();
    let (file, frozen) = submit_grid(&world);
    let text = fs::read_to_string(&file).unwrap();
    let mut record: Value = serde_json::from_str(&text).unwrap();
    let other = "0".repeat(64);
    record["binary"]["sha256"] = other.clone().into();
    fs::write(&file, record.to_string()).unwrap();
    assert_worker_rejected(&world, &frozen, &["differs from the one that submitted the grid", &other]);
    fs::write(&file, &text).unwrap();
    let corpus = fs::read_to_string(world.path("train.txt")).unwrap();
    fs::write(world.path("train.txt"), corpus + " w1").unwrap();
    assert_worker_rejected(&world, &frozen, &["an input has changed since the grid was submitted", "train.txt"]);
}

/// Creates a world that contains the table `mini` as an experiment.
fn world_with_artifact() -> World {
    let world = World::new();
    for folder in ["experiments/backbones", "experiments/profiles"] {
        fs::create_dir_all(world.path(folder)).unwrap();
    }
    world.write("experiments/backbones/mine.yaml", "path: ../../backbone\nsource: a test\n");
    world.write(
        "experiments/profiles/tiny.yaml",
        "corpora:\n  train-train: {path: ../../train.txt, rule: wikitext2}\n  \
         test: {path: ../../test.jsonl, rule: ptb, limit: 5}\nevaluate:\n  perplexity: [{corpus: test, length: 64}]\n",
    );
    world.write(
        "experiments/mini.yaml",
        "artifact:\n  title: A small table\n  table:\n    lead: [backbone, depth, method]\n    dense: true\n    rows:\n      \
         - {criterion: llm-streamline, recovery: [none, ghosted]}\n    metrics: [ppl_test]\n\
         criterion: llm-streamline\nrecovery: [none, ghosted]\n\
         calibration: {corpus: train-train, sequences: 8, length: 64}\nprofile: tiny\nprofiles:\n  tiny: {backbone: mine, depth: 1}\n",
    );
    world
}

#[test]
fn workers_share_an_artifact_and_report_reads_the_store() {
    let alone = world_with_artifact();
    let world = world_with_artifact();
    assert_eq!(alone.ghostlab(&["reproduce", "mini"]).status.code(), Some(0));
    let slurm = FakeSlurm::new(&world);
    let output = slurm.run(&world, &["submit", "slurm", "mini"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let script = fs::read_to_string(submission(&world).join("job.sh")).unwrap();
    let report = run_job(&submission(&world), None);
    assert_eq!(report.status.code(), Some(3), "nothing is stored yet: {}", stderr(&report));
    let worker = run_job(&submission(&world), Some("0"));
    assert_eq!(worker.status.code(), Some(0), "{script}\n{}", stderr(&worker));
    let report = run_job(&submission(&world), None);
    assert_eq!(report.status.code(), Some(0), "{script}\n{}", stderr(&report));
    for name in ["mini.csv", "mini.parquet", "mini.md", "mini.tex"] {
        assert!(
            fs::read(alone.path("results/mini/tiny").join(name)).unwrap()
                == fs::read(world.path("results/mini/tiny").join(name)).unwrap(),
            "{name} differs"
        );
    }
    assert!(world.path("reports/index.html").exists());
}

#[test]
fn status_shows_job_errors_until_a_job_succeeds() {
    let world = World::new();
    let (slurm, (_, _)) = (world.path("bin"), submit_grid(&world));
    let slurm = FakeSlurm(slurm);
    let corpus = fs::read_to_string(world.path("train.txt")).unwrap();
    fs::write(world.path("train.txt"), corpus.clone() + " w1").unwrap();
    for task in [Some("0"), None] {
        let output = run_job(&submission(&world), task);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
    let shown = stdout(&slurm.run(&world, &["status"]));
    let logs = submission(&world).join("logs");
    for word in [
        "grid on cpu",
        "f32",
        "job 5_0 ended with exit code 2",
        "job 6 ended with exit code 2",
        "an input has changed since the grid was submitted",
        "train.txt",
        &logs.join("5_0.log").display().to_string(),
    ] {
        assert!(shown.contains(word), "`{word}` is not in\n{shown}");
    }
    let status: Value = serde_json::from_str(&stdout(&slurm.run(&world, &["status", "--json"]))).unwrap();
    let ends = &status["answer"]["submissions"][0]["ends"];
    assert_eq!((&ends[0]["job"], &ends[0]["exit_code"]), (&"5_0".into(), &2.into()), "{status}");
    fs::write(world.path("train.txt"), corpus).unwrap();
    let output = run_job(&submission(&world), Some("0"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shown = stdout(&slurm.run(&world, &["status"]));
    assert!(!shown.contains("job 5_0 ended") && shown.contains("job 6 ended"), "{shown}");
    assert!(shown.contains(") on cpu"), "status does not show the engine: {shown}");
}

#[test]
fn report_replaces_a_later_run_only_if_settings_match() {
    let world = World::new();
    submit_grid(&world);
    let worked = run_job(&submission(&world), Some("0"));
    assert_eq!(worked.status.code(), Some(0), "{}", stderr(&worked));
    // The same grid is run manually in the meantime. Its paths are relative, while those in the submitted copy are
    // absolute.
    let printed = world.run_ok(&[]);
    let first = run_report(&world);
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    assert!(!stderr(&first).contains("other settings"), "{}", stderr(&first));
    assert!(!printed.contains("other settings") && !world.run_ok(&[]).contains("other settings"));
    let again = run_report(&world);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));

    // The grid is changed and then run manually while the submission is waiting for its report.
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("depth: [1, 2]", "depth: [2]"));
    world.run_ok(&[]);
    let tables = world.tables();
    let rejected = run_report(&world);
    assert_eq!(rejected.status.code(), Some(2), "{}", stderr(&rejected));
    for word in ["a later run with other settings", "results/grid", "other depth", "--results", "job.sh"] {
        assert!(stderr(&rejected).contains(word), "`{word}` is not in {}", stderr(&rejected));
    }
    assert!(tables.len() == 3 && world.tables() == tables, "the tables of the later run changed");
    // A later run on different bytes under the same path also counts as having different settings, even if the bytes
    // are restored afterwards.
    let text = fs::read(world.path("test.jsonl")).unwrap();
    let other = "{\"text\": \"w1 w2 w3\"}\n".repeat(60);
    world.write("grid.yaml", &grid);
    world.write("test.jsonl", other);
    world.run_ok(&[]);
    world.write("test.jsonl", text);
    let rejected = run_report(&world);
    assert!(
        rejected.status.code() == Some(2) && stderr(&rejected).contains("other corpora.test"),
        "{}",
        stderr(&rejected)
    );
    // The results of a later run with equal settings are replaced.
    world.run_ok(&[]);
    let last = run_report(&world);
    assert_eq!(last.status.code(), Some(0), "{}", stderr(&last));
}

fn run_report(world: &World) -> Output {
    run_job(&submission(world), None)
}

fn assert_worker_rejected(world: &World, frozen: &str, words: &[&str]) {
    let output = world.ghostlab(&["worker", frozen]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    words.iter().for_each(|word| assert!(stderr(&output).contains(word), "`{word}` is not in {}", stderr(&output)));
}

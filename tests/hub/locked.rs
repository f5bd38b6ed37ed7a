//! Tests for runs with a lock file (`hub.lock`).

use super::*;

#[test]
fn run_checks_cached_files_against_the_lock() {
    let (world, files) = world_of_a_hub_model();
    let server = FakeHub::start(MODEL, files, no_fault());
    run(&world, &server, &["fetch", "grid.yaml"], 0);
    run(&world, &server, &["fetch", "grid.yaml", "--lock"], 0);
    run(&world, &server, &["run", "grid.yaml"], 0);
    assert_eq!(is_pinned(&world), Value::Bool(true));

    // Commands that read the model reject files that were altered in the cache, and suggest how to download them again.
    let weights = world.path("cache/models--meta--tiny/snapshots").join(COMMIT).join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, &bytes).unwrap();
    for command in [&["run", "grid.yaml"][..], &["worker", "grid.yaml"], &["submit", "slurm", "grid.yaml", "--dry-run"]]
    {
        let rejected = run(&world, &server, command, 5);
        assert!(
            rejected.contains("differs from the pinned one") && rejected.contains("model.safetensors"),
            "{rejected}"
        );
        assert!(rejected.contains("run `ghostlab fetch grid.yaml` to download it again"), "{rejected}");
    }
    let score = ["score", MODEL, "--perplexity", "test.jsonl@64", "--windows", "2", "--json"];
    let rejected = run(&world, &server, &score, 5);
    assert!(
        rejected.contains("differs from the pinned one") && rejected.contains("with --fetch to download it again"),
        "{rejected}"
    );
    run(&world, &server, &["fetch", "grid.yaml"], 0);
    run(&world, &server, &["run", "grid.yaml"], 0);
    let scored = || {
        let output = run_with_hub(&world, &server.address, &score, &[]);
        assert_eq!(output.status.code(), Some(0), "{}", combined_output(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["answer"]["hub"][0].clone()
    };
    let hub = scored();
    assert_eq!((&hub["repository"], &hub["commit"]), (&"meta/tiny@main".into(), &COMMIT.into()));
    assert_eq!(hub["pinned"], Value::Bool(true));
    let lock = fs::read(world.path("hub.lock")).unwrap();
    fs::remove_file(world.path("hub.lock")).unwrap();
    assert_eq!(scored()["pinned"], Value::Bool(false), "without a lock file nothing is pinned");
    world.write("hub.lock", lock);

    // A local copy counts as pinned only if its content is identical to the pinned one.
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("tiny: {", "tiny: {path: copy, "));
    fs::create_dir(world.path("copy")).unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(weights.with_file_name(name), world.path("copy").join(name)).unwrap();
    }
    run(&world, &server, &["run", "grid.yaml"], 0);
    assert_eq!(is_pinned(&world), Value::Bool(true));
    fs::write(world.path("copy/model.safetensors"), &bytes).unwrap();
    run(&world, &server, &["run", "grid.yaml"], 0);
    assert_eq!(is_pinned(&world), Value::Bool(false));
    assert!(run(&world, &server, &["doctor", "grid.yaml"], 0).contains("differs from hub.lock"));
}

fn is_pinned(world: &World) -> Value {
    json(&world.path("results/grid/run.json"))["grid"]["backbones"]["tiny"]["hub"]["pinned"].clone()
}

#[test]
fn fetch_writes_the_lock_file_in_the_experiments_folder() {
    let world = World::new();
    let server = FakeHub::start(MODEL, served_files(&world), no_fault());
    write_experiments(&world, "experiments");
    write_experiments(&world, "others");
    world.write("experiments/hub.lock", "{\"version\": 1, \"repositories\": {}}\n");
    let before = fs::read(world.path("experiments/hub.lock")).unwrap();
    for (target, named, more) in [
        ("table3", &["--experiments", "others"][..], &[][..]),
        ("table3", &[], &[("GHOSTLAB_EXPERIMENTS", "others")]),
        (MODEL, &["--experiments", "others"], &[]),
    ] {
        fs::remove_file(world.path("others/hub.lock")).ok();
        let arguments = [&["fetch", target, "--lock"], named].concat();
        let log = assert_exit(&world, &run_with_hub(&world, &server.address, &arguments, more), 0);
        assert!(log.contains("wrote others/hub.lock"), "{target} {named:?}: {log}");
        assert!(fs::read_to_string(world.path("others/hub.lock")).unwrap().contains(COMMIT));
        assert_eq!(fs::read(world.path("experiments/hub.lock")).unwrap(), before);
    }
    let log = assert_exit(&world, &run_with_hub(&world, &server.address, &["fetch", "table3", "--lock"], &[]), 0);
    assert!(log.contains("wrote experiments/hub.lock"));
}

fn write_experiments(world: &World, name: &str) {
    fs::create_dir_all(world.path(name).join("backbones")).unwrap();
    world.write(&format!("{name}/backbones/tiny.yaml"), format!("hub: {MODEL}\n"));
    world.write(
        &format!("{name}/table3.yaml"),
        "artifact:\n  title: A table\n  table:\n    lead: [backbone, depth, method]\n    dense: true\n    rows:\n      \
             - {criterion: llm-streamline, recovery: [none]}\n    metrics: [ppl_wikitext2]\n\
             backbone: tiny\ncriterion: llm-streamline\ndepth: 1\nrecovery: [none]\n\
             corpora:\n  wikitext2: {path: ../test.jsonl, rule: wikitext2}\n\
             calibration: {corpus: wikitext2, sequences: 4, length: 64}\n\
             evaluate:\n  perplexity: [{corpus: wikitext2, length: 64}]\n",
    );
}

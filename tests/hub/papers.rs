//! Tests for the check that a model is the one used in the paper.

use super::*;

/// Replaces the layers of the backbone with `layers` copies of its first layer.
fn set_layer_count(world: &World, layers: usize) {
    let bytes = fs::read(fixture("arch/llama-gqa/model.safetensors")).unwrap();
    let file_tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<(String, TensorView<'_>)> = Vec::new();
    for (name, tensor) in file_tensors.iter() {
        match name.strip_prefix("model.layers.0.") {
            Some(rest) => tensors.extend((0..layers).map(|l| (format!("model.layers.{l}.{rest}"), tensor.clone()))),
            None if !name.starts_with("model.layers.") => tensors.push((name.to_owned(), tensor.clone())),
            None => {}
        }
    }
    safetensors::serialize_to_file(tensors, None, &world.path("backbone/model.safetensors")).unwrap();
    world.change_config("num_hidden_layers", layers.into());
}

/// Creates the experiment `table3` with the profile `paper` and a backbone named after one of the paper's models.
fn world_with_paper_backbone() -> World {
    let world = World::new();
    for folder in ["experiments/backbones", "experiments/profiles"] {
        fs::create_dir_all(world.path(folder)).unwrap();
    }
    world.write("experiments/backbones/llama-3-8b.yaml", format!("path: ../../backbone\nhub: {MODEL}\n"));
    world.write("experiments/hub.lock", "{\"version\": 1, \"repositories\": {}}\n");
    world.write(
        "experiments/profiles/paper.yaml",
        "corpora:\n  train-train: {path: ../../train.txt, rule: wikitext2}\n  \
         wikitext2: {path: ../../train.txt, rule: wikitext2}\n\
         evaluate:\n  perplexity: [{corpus: wikitext2, length: 2048}]\n",
    );
    world.write(
        "experiments/table3.yaml",
        "artifact:\n  title: A table\n  table:\n    lead: [backbone, depth, method]\n    dense: true\n    rows:\n      \
         - {criterion: llm-streamline, recovery: [none]}\n    metrics: [ppl_wikitext2]\n\
         criterion: llm-streamline\nrecovery: [none]\n\
         calibration: {corpus: train-train, sequences: 4, length: 64}\nprofile: paper\nprofiles:\n  paper: {backbone: llama-3-8b, depth: 7}\n",
    );
    world
}

fn read_verdicts(world: &World) -> String {
    fs::read_to_string(world.path("results/table3/paper/table3.csv")).unwrap()
}

#[test]
fn wrong_model_under_a_paper_name_is_rejected() {
    let world = world_with_paper_backbone();
    let server = FakeHub::start(MODEL, vec![], no_fault());
    set_layer_count(&world, 16);
    // This backbone has 16 layers, but the paper's LLaMA-3-8B has 32.
    for arguments in [&["reproduce", "table3"][..], &["reproduce", "table3", "--no-gate"]] {
        let rejected = run(&world, &server, arguments, 2);
        assert!(rejected.contains("the folder of `llama-3-8b` does not contain LLaMA-3-8B"), "{rejected}");
        assert!(rejected.contains("expected: 32 layers") && rejected.contains("found:    16 layers"), "{rejected}");
    }
    assert!(run(&world, &server, &["doctor", "table3"], 3).contains("does not contain LLaMA-3-8B"));

    // An unpinned model of the right shape runs, but its numbers get no verdict.
    set_layer_count(&world, 32);
    let unknown = run(&world, &server, &["reproduce", "table3"], 0);
    assert!(
        unknown.contains("is not pinned in") && unknown.contains("cannot check whether it is the paper's model"),
        "{unknown}"
    );
    assert!(
        !read_verdicts(&world).contains("differs") && read_verdicts(&world).contains("is not pinned"),
        "{}",
        read_verdicts(&world)
    );

    // With a pin, the hashes of the model are checked, and changed weights of the same shape are rejected.
    let server = FakeHub::start(MODEL, served_files(&world), no_fault());
    run(&world, &server, &["fetch", "table3", "--lock", "--set", "corpora.wikitext2.limit=1"], 0);
    run(&world, &server, &["reproduce", "table3", "--no-gate"], 0);
    assert!(read_verdicts(&world).contains("differs"), "{}", read_verdicts(&world));
    let path = world.path("backbone/model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    fs::write(&path, weights).unwrap();
    let rejected = run(&world, &server, &["reproduce", "table3"], 2);
    assert!(
        rejected.contains("does not contain LLaMA-3-8B") && rejected.contains("model.safetensors with SHA-256"),
        "{rejected}"
    );
    assert!(run(&world, &server, &["doctor", "table3"], 3).contains("does not contain LLaMA-3-8B"));
    world.change_config("rms_norm_eps", 1e-6.into());
    let rejected = run(&world, &server, &["reproduce", "table3"], 2);
    assert!(rejected.contains("config.json with SHA-256"), "{rejected}");
}

#[test]
fn reproduce_fetches_missing_inputs() {
    let world = world_with_paper_backbone();
    set_layer_count(&world, 32);
    let served = served_files(&world);
    fs::remove_dir_all(world.path("backbone")).unwrap();
    let server = FakeHub::start(MODEL, served, no_fault());
    let output = run(&world, &server, &["reproduce", "table3"], 3);
    assert!(output.contains("table3.yaml --profile paper`"), "{output}");
    run(&world, &server, &["fetch", "table3", "--lock"], 0);
    run(&world, &server, &["reproduce", "table3", "--no-gate", "--fetch"], 0);
    assert!(read_verdicts(&world).contains("differs"), "{}", read_verdicts(&world));
    // Bytes that were altered in the cache are detected before any number is computed from them.
    let snapshot = world.path("cache/models--meta--tiny/snapshots").join(COMMIT);
    let mut weights = fs::read(snapshot.join("model.safetensors")).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    fs::write(snapshot.join("model.safetensors"), weights).unwrap();
    run(&world, &server, &["reproduce", "table3", "--no-gate"], 2);
    run(&world, &server, &["reproduce", "table3", "--no-gate", "--fetch"], 0);
}

#[test]
fn every_experiment_entry_has_a_hub_location() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    for folder in ["backbones", "corpora", "tasks"] {
        for entry in fs::read_dir(root.join(folder)).unwrap().flatten() {
            let text = fs::read_to_string(entry.path()).unwrap();
            let embedded = entry.file_name().to_string_lossy().starts_with("tiny-");
            assert!(embedded || text.contains("\nhub: "), "{}", entry.path().display());
        }
    }
    // `all` skips tables and figures that do not have the profile.
    for profile in ["smollm2", "paper"] {
        let arguments = ["doctor", "all", "--profile", profile, "--experiments", root.to_str().unwrap()];
        let world = World::new();
        let output = assert_exit(&world, &run_with_hub(&world, "http://127.0.0.1:1", &arguments, &[]), 3);
        assert!(output.contains("corpus wikitext2") && !output.contains("unknown profile"), "{output}");
    }
    // The inputs for the paper's table 2 are known without any request to the hub.
    let world = World::new();
    let output = run_with_hub(
        &world,
        "http://127.0.0.1:1",
        &["doctor", "table2", "--profile", "paper", "--experiments", root.to_str().unwrap()],
        &[],
    );
    let log = assert_exit(&world, &output, 3);
    for name in ["backbone llama-3-8b", "backbone llama-3.1-8b", "corpus c4-train", "task race", "task rte"] {
        assert!(log.contains(name), "{log}");
    }
}

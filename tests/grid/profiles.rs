//! Tests for profiles: how one is selected, the keys it overrides, and invalid profiles.

use ghostlab::criterion::Depth;
use ghostlab::error::Result;
use ghostlab::grid::Grid;

use super::fixtures::{GridFolder, Messages, VALID_GRID};

const PROFILES: &str = "\
profiles:
  tiny:
    depth: 3
    recovery: none
    corpora: {c4: {limit: 2}}
    calibration: {corpus: wiki, sequences: 4, length: 16}
  full: {}
";

impl GridFolder {
    fn with_profile(&self, text: &str, profile: Option<&str>, overrides: &[&str]) -> Result<Grid> {
        std::fs::write(self.file(), text).unwrap();
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        Grid::load(&self.file(), profile, &overrides)
    }

    fn rejection_of(&self, text: &str, profile: Option<&str>) -> String {
        let message = self.with_profile(text, profile, &[]).expect_err("the grid was accepted").to_string();
        message.replace(&format!("{}/", self.root.path().display()), "")
    }
}

#[test]
fn profile_overrides_grid_and_set_overrides_profile() {
    let folder = GridFolder::new();
    let text = format!("{VALID_GRID}profile: tiny\n{PROFILES}");
    let grid = folder.with_profile(&text, None, &[]).unwrap();
    assert_eq!(grid.profile.as_deref(), Some("tiny"));
    assert_eq!((grid.cells.len(), grid.depth.as_slice()), (2, &[Depth::layers(3)][..]));
    assert_eq!(grid.corpora["c4"].limit, Some(2));
    assert!(grid.corpora["c4"].path.ends_with("c4.txt"), "maps must be merged by key");
    assert_eq!(grid.calibration[0].to_string(), "wiki:4x16@0");

    let grid = folder.with_profile(&text, Some("full"), &[]).unwrap();
    assert_eq!((grid.profile.as_deref(), grid.cells.len()), (Some("full"), 5));
    let grid = folder.with_profile(&text, None, &["depth=[4, 5]", "corpora.c4.limit=7", "calibration.seed=3"]).unwrap();
    assert_eq!(
        (grid.depth.as_slice(), grid.corpora["c4"].limit, grid.calibration[0].seed),
        (&[4, 5].map(Depth::layers)[..], Some(7), 3)
    );
    assert_eq!(folder.with_profile(VALID_GRID, None, &[]).unwrap().profile, None);
}

#[test]
fn grid_profile_takes_precedence_over_shared_profile() {
    let folder = GridFolder::new();
    std::fs::create_dir(folder.file().parent().unwrap().join("profiles")).unwrap();
    let shared = folder.file().parent().unwrap().join("profiles/small.yaml");
    std::fs::write(&shared, "depth: 5\nrecovery: none\ncalibration: {corpus: wiki, sequences: 4, length: 16}\n")
        .unwrap();
    let text = format!("{VALID_GRID}profiles: {{small: {{depth: 3}}}}\n");
    let grid = folder.with_profile(&text, Some("small"), &[]).unwrap();
    assert_eq!((grid.depth.as_slice(), grid.recovery.len()), (&[Depth::layers(3)][..], 1));
    assert_eq!(grid.calibration[0].to_string(), "wiki:4x16@0");
    std::fs::write(&shared, "deptth: 5\n").unwrap();
    let message = folder.rejection_of(&text, Some("small"));
    assert!(message.contains("small.yaml:1:1") && message.contains("did you mean `depth`?"), "{message}");
}

#[test]
fn profile_may_provide_missing_grid_keys() {
    let folder = GridFolder::new();
    let text = VALID_GRID.replace("depth: [3, 5]\n", "") + "profiles: {tiny: {depth: 3}}\n";
    assert_eq!(folder.with_profile(&text, Some("tiny"), &[]).unwrap().depth, [3]);
}

#[test]
fn invalid_profile_value_is_rejected_at_its_line() {
    let folder = GridFolder::new();
    let mut messages = Messages::default();
    for (from, to) in [
        ("depth: 3", "depth: 16"),
        ("recovery: none", "recovery: [none, nine]"),
        ("limit: 2", "limt: 2"),
        ("{corpus: wiki, sequences: 4", "{corpus: wiki, sequences: x"),
        ("{corpus: wiki, sequences: 4, ", "{corpus: wiki, "),
        ("depth: 3", "dpeth: 3"),
        ("depth: 3", "name: x"),
        ("depth: 3", "profile: full"),
        // Profiles that are not used are validated too.
        ("full: {}", "full: {recovry: none}"),
        ("full: {}", "full: "),
        ("full: {}", "full: 3"),
        ("profile: tiny", "profile: tny"),
        ("profile: tiny", "profile: [tiny]"),
        ("profile: tiny\n", ""),
    ] {
        let text = format!("{VALID_GRID}profile: tiny\n{PROFILES}");
        assert_eq!(text.matches(from).count(), 1, "`{from}` must occur once");
        messages.add(&format!("{from:?} -> {to:?}"), folder.rejection(text.replace(from, to), &[]));
    }
    for more in ["profiles: {}", "profiles: {../up: {}}", "profiles: 3", "profile: tiny"] {
        messages.add(more, folder.rejection(format!("{VALID_GRID}{more}\n"), &[]));
    }
    messages.snapshot("grid_profiles");
}

#[test]
fn unknown_profile_name_is_rejected() {
    let folder = GridFolder::new();
    let message = folder.rejection_of(&format!("{VALID_GRID}{PROFILES}"), Some("ful"));
    for part in ["unknown profile `ful`", "where:    --profile ful", "one of tiny, full", "did you mean `full`?"] {
        assert!(message.contains(part), "{message}");
    }
    let message = folder.rejection_of(VALID_GRID, Some("tiny"));
    assert!(message.contains("the grid has no profiles") && message.contains("--profile tiny"), "{message}");
    folder.assert_rejected(
        VALID_GRID,
        &["profile=tiny"],
        "--set profile=tiny",
        &["choose a profile with `--profile NAME`"],
    );
}

//! Tests that displayed and stored results distinguish different settings and treat equal settings as equal. Covers all
//! setting pairs in `common/pairs.rs`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::BTreeSet;

use crate::common::observation::{self, VIEWS};
use crate::common::pairs::{self, Pair, Setting};
use crate::common::world::World;
use ghostlab::grid::{Cell, Grid, assign_names};
use ghostlab::pipeline::identity::{SettingPath, setting_differences};
use ghostlab::results::{Differences, ResultRow, StoredResults};

/// Returns the settings in which the last cells in two runs differ.
fn differing_paths(one: &StoredResults, other: &StoredResults) -> BTreeSet<SettingPath> {
    let a = last_cell(one);
    let b = last_cell(other);
    let mut found = BTreeSet::new();
    let a_numbers = one.numbers.iter().filter(|number| number.cell == a).filter(is_not_decoding);
    let b_numbers = other.numbers.iter().filter(|number| number.cell == b).filter(is_not_decoding);
    for (one_number, other_number) in a_numbers.zip(b_numbers) {
        let (Some(one), Some(other)) = (one.flat_settings(one_number), other.flat_settings(other_number)) else {
            panic!("number without an identity: {one_number:?}");
        };
        found.extend(setting_differences(&one, &other).into_iter().map(|differ| differ.path));
    }
    // Numbers that average several measures have an index in their paths. Drop it, so that `measure.0.task.bos` becomes
    // `measure.task.bos`.
    found
        .into_iter()
        .map(|setting_path: SettingPath| {
            let parts: Vec<&str> =
                setting_path.as_str().split('.').filter(|part| part.parse::<usize>().is_err()).collect();
            SettingPath::new(parts.join("."))
        })
        .collect()
}

fn last_cell(run: &StoredResults) -> String {
    run.numbers.last().unwrap().cell.clone()
}

/// Returns whether a row is not a decoding metric. Decoding metrics are skipped, because only one of the two runs
/// measures decoding.
fn is_not_decoding(number: &&ResultRow) -> bool {
    !number.record.metric.starts_with("decode")
}

fn assert_distinguished(pair: &Pair) {
    let one = observation::observe(&pair.one(), pair.what);
    let other = observation::observe(&pair.other(), pair.what);
    VIEWS.iter().for_each(|view| view.assert_distinguishes(pair.what, pair.setting_paths, [&one, &other]));
    let one = one.numbers;
    let other = other.numbers;
    let found = differing_paths(&one, &other);
    let stray: Vec<&SettingPath> =
        found.iter().filter(|setting_path| !pair.setting_paths.iter().any(|known| setting_path.is_of(known))).collect();
    assert!(stray.is_empty(), "{}: {stray:?}", pair.what);
    for setting_path in pair.setting_paths {
        assert!(found.iter().any(|path| path.is_of(setting_path)), "{}: {setting_path} is not in {found:?}", pair.what);
    }
    let Differences { settings, data, protocols, engines, global_differences, .. } =
        Differences::between(&one, &other, &[]).unwrap();
    let reported = [settings, data, protocols, engines, global_differences].concat();
    assert!(!reported.is_empty(), "{}: not reported by `compare`", pair.what);
}

/// Name of the cell to compare, which is the same in the grid of every pair.
const CELL_NAME: &str = "tiny.streamline-1.ghosted";

/// Identity settings that are determined by the cell of the grid. All others come from file contents or command-line
/// options.
const CELL_SETTINGS: [&str; 10] = [
    "model.weights",
    "calibration.weights",
    "cut.criterion",
    "cut.options",
    "cut.depth",
    "repair",
    "calibration.sequences",
    "calibration.length",
    "calibration.seed",
    "cut.known",
];

#[test]
fn different_cells_of_a_grid_have_different_names() {
    let mut count = 0;
    for pair in pairs::differing_pairs() {
        let mut cells = [last_unnamed_cell(&pair.one()), last_unnamed_cell(&pair.other())];
        let expected = pair
            .setting_paths
            .iter()
            .any(|setting_path| CELL_SETTINGS.iter().any(|known| SettingPath::new(*setting_path).is_of(known)));
        assert_eq!(cells[0] != cells[1], expected, "{}: {cells:?}", pair.what);
        assign_names(&mut cells);
        assert_eq!(cells[0].name != cells[1].name, expected, "{}: {} {}", pair.what, cells[0], cells[1]);
        count += usize::from(expected);
    }
    assert!(count >= 10, "{count}");
    for pair in pairs::equal_pairs() {
        assert_eq!(
            (last_cell_name(&pair.one()), last_cell_name(&pair.other())),
            (CELL_NAME.to_owned(), CELL_NAME.to_owned()),
            "{}",
            pair.what
        );
    }
}

fn last_unnamed_cell(setting: &Setting) -> Cell {
    let grid = Grid::load(&setting.world.path("grid.yaml"), None, &[]).unwrap();
    Cell { name: String::new(), ..grid.cells.last().unwrap().clone() }
}

fn last_cell_name(setting: &Setting) -> String {
    let arguments = setting.arguments.iter().filter(|argument| *argument != "--set").cloned().collect::<Vec<_>>();
    let grid = Grid::load(&setting.world.path("grid.yaml"), None, &arguments).unwrap();
    grid.cells.last().unwrap().name.clone()
}

fn assert_equal_in_views(pair: &Pair) {
    let one = observation::observe(&pair.one(), pair.what);
    let other = observation::observe(&pair.other(), pair.what);
    VIEWS.iter().for_each(|view| view.assert_distinguishes(pair.what, &[], [&one, &other]));
    let one = one.numbers;
    let other = other.numbers;
    let found = differing_paths(&one, &other);
    assert!(found.is_empty(), "{}: {found:?}", pair.what);
    let compared = Differences::between(&one, &other, &[]).unwrap();
    assert!(compared.compared > 0 && compared.coinciding.is_empty(), "{}", pair.what);
    assert!(compared.engines.is_empty() && compared.only_first.is_empty(), "{}: {:?}", pair.what, compared.only_first);
    // Latency and peak memory differ between runs.
    let measured = ["prefill", "speedup", "peak_memory"];
    let values =
        compared.values.iter().filter(|value| !measured.iter().any(|word| value.first.metric.starts_with(word)));
    assert_eq!(values.count(), 0, "{}: {:?}", pair.what, compared.values);
}

#[test]
fn every_command_is_listed_in_the_views_test() {
    observation::assert_commands_are_listed(&String::from_utf8(World::new().ghostlab(&["--help"]).stdout).unwrap());
}

#[test]
fn views_distinguish_seed_and_dtype_but_not_explicit_defaults() {
    for pair in pairs::differing_pairs().iter().filter(|pair| ["another calibration seed", "bf16"].contains(&pair.what))
    {
        assert_distinguished(pair);
    }
    pairs::equal_pairs().iter().filter(|pair| pair.what == "an explicit default").for_each(assert_equal_in_views);
}

#[test]
#[ignore = "slow: two runs for every pair of settings"]
fn different_settings_are_distinguished_in_every_view() {
    pairs::differing_pairs().iter().filter(|pair| pair.runs).for_each(assert_distinguished);
}

#[test]
#[ignore = "slow: two runs for every pair of settings"]
fn equal_settings_are_equal_in_every_view() {
    pairs::equal_pairs().iter().filter(|pair| pair.runs).for_each(assert_equal_in_views);
}

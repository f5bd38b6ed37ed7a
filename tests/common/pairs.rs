//! Pairs of settings for identity tests. An identity consists of the settings that are stored with each number. If the
//! identities of a pair differ, every view that shows the changed setting must show a difference. If only irrelevant
//! details differ, no view may show one. `setting_paths()` lists the identity settings that the pairs must cover.

mod irrelevant;
mod model;
mod pruning;
mod setting;
mod task;
mod text;
mod timing;

pub use setting::Setting;

/// Two settings to compare.
pub struct Pair {
    /// Description of what the second setting changes.
    pub what: &'static str,
    /// Paths of the identity settings that differ. Empty if only irrelevant details differ.
    pub setting_paths: &'static [&'static str],
    /// Whether both settings run quickly on any machine. The settings of other pairs are planned but not run.
    pub runs: bool,
    /// Functions that change the test setting into the first and the second setting of the pair.
    one: fn(&mut Setting),
    other: fn(&mut Setting),
}

/// Identity settings that no grid, file or flag can change. They are constants of the program or belong to searches
/// (see `tests/search.rs`).
pub const CONSTANT_SETTINGS: [&str; 17] = [
    "cut.repaired.training.length",
    "cut.repaired.training.seed",
    "cut.repaired.training.sequences",
    "cut.repaired.version",
    "cut.version",
    "measure.boundary",
    "measure.defined.batch",
    "measure.prefill.rounds",
    "measure.prefill.warmups",
    "measure.task.draw.from",
    "measure.task.draw.seed",
    "measure.task.draw.to",
    "measure.task.version",
    "measure.windows.draw.from",
    "measure.windows.draw.seed",
    "measure.windows.draw.to",
    "repair.version",
];

impl Pair {
    pub fn one(&self) -> Setting {
        Self::build_setting(self.one)
    }

    pub fn other(&self) -> Setting {
        Self::build_setting(self.other)
    }

    fn build_setting(change: fn(&mut Setting)) -> Setting {
        let mut setting = Setting::new();
        change(&mut setting);
        setting
    }
}

/// Returns a pair of the unchanged test setting and one that `other` changes.
fn pair(what: &'static str, setting_paths: &'static [&'static str], other: fn(&mut Setting)) -> Pair {
    Pair { what, setting_paths, runs: true, one: |_| (), other }
}

/// Returns a pair of two changed settings.
fn between(
    what: &'static str,
    setting_paths: &'static [&'static str],
    one: fn(&mut Setting),
    other: fn(&mut Setting),
) -> Pair {
    Pair { what, setting_paths, runs: true, one, other }
}

/// Returns a pair whose settings are planned but not run.
fn planned(
    what: &'static str,
    setting_paths: &'static [&'static str],
    one: fn(&mut Setting),
    other: fn(&mut Setting),
) -> Pair {
    Pair { runs: false, ..between(what, setting_paths, one, other) }
}

/// Returns the pairs with different numbers, each with the identity settings that differ.
pub fn differing_pairs() -> Vec<Pair> {
    [
        model::weights(),
        model::engines(),
        pruning::cuts(),
        pruning::repairs(),
        pruning::training(),
        text::calibration(),
        text::texts(),
        text::shards(),
        text::windows(),
        task::tasks(),
        task::definitions(),
        task::examples(),
        task::chats(),
        task::request_settings(),
        timing::latencies(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the pairs that differ only in details that affect no number.
pub fn equal_pairs() -> Vec<Pair> {
    let mut pairs = irrelevant::grids();
    pairs.extend(irrelevant::files());
    pairs
}

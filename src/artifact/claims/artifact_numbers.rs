//! Numbers of an artifact and the run that produced them.
//!
//! A claim that joins several artifacts matches the numbers from their runs by condition. The names in a condition must
//! mean the same in both runs, and all other settings must agree.

use std::collections::{BTreeMap, BTreeSet};

use crate::pipeline::identity::{FlatSettings, SettingOwner, setting_differences};
use crate::results::StoredResults;
use crate::results::number_record::{Condition, DENSE, Record};

#[derive(Debug, Clone, Default)]
pub struct ArtifactNumbers {
    pub(super) numbers: Vec<IdentifiedRecord>,
    /// Stored results of the run that produced the numbers, or `None` for the paper's values.
    pub(super) stored: Option<StoredResults>,
}

/// Record with the settings that identify it.
#[derive(Debug, Clone)]
pub(super) struct IdentifiedRecord {
    pub(super) record: Record,
    /// Settings of the number, or `None` for the paper's values and for cells that the gate skipped.
    pub(super) identity: Option<FlatSettings>,
}

impl ArtifactNumbers {
    pub fn printed(records: Vec<Record>) -> Self {
        let numbers = records.into_iter().map(|record| IdentifiedRecord { record, identity: None }).collect();
        Self { numbers, stored: None }
    }

    pub fn new(stored: StoredResults) -> Self {
        let numbers = stored
            .numbers
            .iter()
            .map(|number| IdentifiedRecord { record: number.record.clone(), identity: stored.flat_settings(number) });
        Self { numbers: numbers.collect(), stored: Some(stored) }
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.numbers.iter().map(|number| &number.record)
    }
}

/// Numbers of all artifacts by artifact name, such as `table2`.
pub type Artifacts = BTreeMap<String, ArtifactNumbers>;

/// Returns the name, such as the backbone, under which two runs compare the settings of a record's `owner`. Returns
/// `None` to skip the record.
fn owner_name(owner: SettingOwner, Record { condition, metric, .. }: &Record) -> Option<String> {
    let Condition { backbone, depth, criterion, recovery, finetuned, .. } = condition;
    match owner {
        SettingOwner::Backbone => Some(backbone.clone()),
        SettingOwner::Measurement => Some(format!("{backbone}, {metric}")),
        SettingOwner::CalibrationText => (criterion != DENSE).then(|| condition.calibrated().0.to_owned()),
        SettingOwner::Cell => {
            let trained = if *finetuned { " trained" } else { "" };
            Some(format!("{backbone}/{depth}/{criterion}/{recovery}{trained}"))
        }
    }
}

/// Explains why the numbers of two runs must not be combined. Returns `None` if they may be.
pub(super) fn find_incompatibility(
    (a, first): (&str, &ArtifactNumbers),
    (b, second): (&str, &ArtifactNumbers),
) -> Option<String> {
    let one = first.stored.as_ref()?;
    let other = second.stored.as_ref()?;
    if one.program != other.program {
        return Some(format!(
            "{a} was computed by {}, {b} by {}: recompute both with the same version",
            one.program, other.program
        ));
    }
    if one.gate != other.gate {
        let ungated = if one.gate { b } else { a };
        return Some(format!("{ungated} was computed with --no-gate, the other without"));
    }
    let difference = SettingOwner::ALL.into_iter().find_map(|owner| first_difference(owner, first, second));
    difference.map(|difference| format!("{a} and {b} differ in {difference}"))
}

/// Describes the first difference between settings that have the same name in both runs.
fn first_difference(owner: SettingOwner, first: &ArtifactNumbers, second: &ArtifactNumbers) -> Option<String> {
    let one = settings_by_name(owner, first);
    let other = settings_by_name(owner, second);
    let mut both = one.iter().filter_map(|(name, all)| Some((name, all, other.get(name)?)));
    let (name, all, others) = both.find(|(_, all, others)| all != others)?;
    let [ours, theirs] = [all.difference(others).next(), others.difference(all).next()];
    let nothing = FlatSettings::new();
    let differences = setting_differences(ours.unwrap_or(&nothing), theirs.unwrap_or(&nothing));
    Some(match (ours, theirs, differences.first()) {
        (Some(_), Some(_), Some(first)) => format!("{} of {name}", first.path),
        _ => format!("the cells of {name}"),
    })
}

/// Returns the settings of each owner of one kind, by the owner's name. Skips records whose settings are unknown.
fn settings_by_name(owner: SettingOwner, numbers: &ArtifactNumbers) -> BTreeMap<String, BTreeSet<FlatSettings>> {
    let mut all: BTreeMap<String, BTreeSet<FlatSettings>> = BTreeMap::new();
    for IdentifiedRecord { record, identity } in &numbers.numbers {
        let (Some(name), Some(flat)) = (owner_name(owner, record), identity) else { continue };
        let selected = flat.iter().filter(|(path, _)| path.owner() == owner);
        all.entry(name).or_default().insert(selected.map(|(path, value)| (path.clone(), value.clone())).collect());
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample_records::{record, run};
    use super::*;
    use crate::pipeline::identity::{Canonical, SettingPath, flatten, setting_paths};

    fn numbers(record: Record, identity: FlatSettings) -> ArtifactNumbers {
        let numbers = vec![IdentifiedRecord { record, identity: Some(identity) }];
        ArtifactNumbers { numbers, stored: run("ghostlab 0.1.0 ab", true) }
    }

    fn incompatibility_reason(one: &ArtifactNumbers, other: &ArtifactNumbers) -> String {
        find_incompatibility(("table2", one), ("tableA7", other)).unwrap_or_default()
    }

    #[test]
    fn runs_that_differ_in_any_setting_are_incompatible() {
        let paths = setting_paths();
        assert!(paths.len() > 40, "{paths:?}");
        for path in paths {
            let owner = match path.as_str().split('.').collect::<Vec<_>>()[..] {
                ["model" | "engine", ..] => SettingOwner::Backbone,
                ["measure", ..] => SettingOwner::Measurement,
                ["calibration", "text", ..] => SettingOwner::CalibrationText,
                ["cut" | "repair" | "calibration", ..] => SettingOwner::Cell,
                _ => panic!("{path} has no known owner"),
            };
            assert_eq!(path.owner(), owner, "{path}");
            assert_eq!(
                incompatibility_reason(&numbers_with_setting(&path, "one"), &numbers_with_setting(&path, "one")),
                ""
            );
            let why =
                incompatibility_reason(&numbers_with_setting(&path, "one"), &numbers_with_setting(&path, "other"));
            assert!(why.starts_with(&format!("table2 and tableA7 differ in {path} of ")), "{why}");
        }
    }

    fn numbers_with_setting(path: &SettingPath, value: &str) -> ArtifactNumbers {
        let flat = FlatSettings::from([(path.clone(), Canonical::from_value(&json!(value)))]);
        numbers(record("llama", 4, "ghosted", 50.0), flat)
    }

    #[test]
    fn runs_with_different_conditions_can_be_joined() {
        let one = numbers_with_settings(4, "c4", cell_settings(0, "c4's"));
        assert_eq!(
            incompatibility_reason(&one, &numbers_with_settings(4, "wikitext2", cell_settings(0, "wikitext2's"))),
            ""
        );
        assert_eq!(
            incompatibility_reason(&one, &numbers_with_settings(6, "c4", cell_settings(1, "c4's"))),
            "",
            "a different cell may have different settings"
        );
        let reason_for =
            |other: FlatSettings| self::incompatibility_reason(&one, &numbers_with_settings(4, "c4", other));
        assert_eq!(
            reason_for(cell_settings(1, "c4's")),
            "table2 and tableA7 differ in calibration.seed of llama/4/llm-streamline/ghosted"
        );
        assert_eq!(
            reason_for(cell_settings(0, "another's")),
            "table2 and tableA7 differ in calibration.text.bytes of c4"
        );
        // For the same backbone, different engine settings are a conflict even if the depths differ.
        let mut half = cell_settings(0, "c4's");
        half.insert(SettingPath::new("engine.dtype"), Canonical::from_value(&json!("bf16")));
        let half = numbers_with_settings(6, "c4", half);
        assert_eq!(self::incompatibility_reason(&one, &half), "table2 and tableA7 differ in engine.dtype of llama");
    }

    fn cell_settings(seed: u64, text: &str) -> FlatSettings {
        flatten(&json!({
            "model": {"content": "1"}, "engine": {"dtype": "f32"}, "cut": {"depth": 4},
            "calibration": {"seed": seed, "text": {"bytes": text}},
        }))
    }

    fn numbers_with_settings(depth: usize, corpus: &str, flat: FlatSettings) -> ArtifactNumbers {
        let mut record = record("llama", depth, "ghosted", 50.0);
        record.condition.calibration = corpus.to_owned();
        numbers(record, flat)
    }

    #[test]
    fn runs_with_other_versions_or_gate_settings_are_incompatible() {
        let other = ArtifactNumbers { stored: run("cd", true), ..one_record() };
        assert!(incompatibility_reason(&one_record(), &other).contains("with the same version"));
        let open = ArtifactNumbers { stored: run("ghostlab 0.1.0 ab", false), ..one_record() };
        assert_eq!(
            incompatibility_reason(&one_record(), &open),
            "tableA7 was computed with --no-gate, the other without"
        );
        assert_eq!(
            incompatibility_reason(&one_record(), &ArtifactNumbers::printed(vec![record("llama", 4, "ghosted", 50.0)])),
            ""
        );
    }

    fn one_record() -> ArtifactNumbers {
        numbers(record("llama", 4, "ghosted", 50.0), flatten(&json!({"cut": {"depth": 4}})))
    }
}

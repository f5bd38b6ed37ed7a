//! Pairs numbers of two runs by [`Identity`](crate::pipeline::identity::Identity), which has hashes and settings
//! instead of names.
//!
//! Numbers with equal identities are paired first, even if their names differ. The remaining numbers are paired by
//! backbone, metric and method, provided that they differ only in settings that are constant within each run. A number
//! with several possible partners stays unpaired. `--map tiny-llama=tiny-qwen3` maps a name of the first run to one of
//! the second.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::result_row::ResultRow;
use super::settings::CORPUS;
use super::stem;
use super::stored::StoredResults;
use crate::error::{Error, Result};
use crate::metric::Metric;
use crate::pipeline::identity::{
    Canonical, FlatSettings, SettingDifference, SettingOwner, SettingPath, flatten, setting_differences,
};

/// Pairs of numbers from two runs, and the numbers left unpaired. All are given as indices.
#[derive(Debug, Default)]
pub(super) struct Pairing {
    pub pairs: Vec<NumberPair>,
    pub only_first: Vec<usize>,
    pub only_second: Vec<usize>,
    /// Groups of numbers that match several numbers in the other run, with the settings in which the members of a group
    /// differ.
    pub coinciding: Vec<AmbiguousNumbers>,
}

#[derive(Debug)]
pub(super) struct NumberPair {
    pub first: usize,
    pub second: usize,
    pub differences: Vec<SettingDifference>,
}

#[derive(Debug)]
pub(super) struct AmbiguousNumbers {
    pub first: Vec<usize>,
    pub second: Vec<usize>,
    pub settings: Vec<String>,
}

/// Identity of a number, with the names that its run gives to the inputs.
struct NumberIdentity {
    /// Index of the number in its run.
    at: usize,
    names: NumberNames,
    /// Metric, without its text, task or prompt if the identity contains them.
    kind: String,
    flat: FlatSettings,
}

/// Names of a number's backbone, metric and calibration corpus.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NumberNames {
    backbone: String,
    metric: String,
    text: Option<String>,
}

pub(super) fn pair_numbers(renamed: &NameMap, first: &StoredResults, second: &StoredResults) -> Pairing {
    let mut pairing = Pairing::default();
    let mut one = Vec::new();
    let mut two = number_identities(second);
    // Numbers renamed by `--map`. They are paired only by name.
    let mut mapped = Vec::new();
    for number in number_identities(first) {
        let at = number.at;
        let names = number.names.clone();
        match number.renamed(renamed) {
            Some(number) if number.names == names => one.push(number),
            Some(number) => mapped.push(number),
            None => pairing.only_first.push(at),
        }
    }
    let common = common_differences(&one.iter().chain(&mapped).collect::<Vec<_>>(), &two.iter().collect::<Vec<_>>());
    pair_by_key(&mut one, &mut two, &mut pairing, |number| (number.kind.clone(), number.without(&BTreeSet::new())));
    one.extend(mapped);
    pair_by_key(&mut one, &mut two, &mut pairing, |number| {
        (number.names.backbone.clone(), number.names.metric.clone(), number.without(&common))
    });
    pairing.only_first.extend(one.iter().map(|number| number.at));
    pairing.only_second.extend(two.iter().map(|number| number.at));
    pairing.pairs.sort_by_key(|pair| (pair.first, pair.second));
    pairing.only_first.sort_unstable();
    pairing.only_second.sort_unstable();
    pairing.coinciding.sort_by_key(|entry| (entry.first.clone(), entry.second.clone()));
    for entry in &mut pairing.coinciding {
        let all: BTreeSet<SettingPath> =
            varying_settings(first, &entry.first).chain(varying_settings(second, &entry.second)).collect();
        entry.settings = all.iter().map(ToString::to_string).collect();
    }
    pairing
}

fn number_identities(run: &StoredResults) -> Vec<NumberIdentity> {
    run.numbers.iter().enumerate().map(|(at, number)| NumberIdentity::new(run, at, number)).collect()
}

/// Pairs numbers that have the same key in both runs. If several numbers share a key, those with equal names are
/// paired.
fn pair_by_key<K: Ord>(
    one: &mut Vec<NumberIdentity>,
    two: &mut Vec<NumberIdentity>,
    pairing: &mut Pairing,
    key: impl Fn(&NumberIdentity) -> K,
) {
    let mut candidates: BTreeMap<K, (Vec<NumberIdentity>, Vec<NumberIdentity>)> = BTreeMap::new();
    for number in one.drain(..) {
        candidates.entry(key(&number)).or_default().0.push(number);
    }
    for number in two.drain(..) {
        candidates.entry(key(&number)).or_default().1.push(number);
    }
    for (mut ours, mut others) in candidates.into_values() {
        if ours.len() > 1 || others.len() > 1 {
            let names = |all: &[NumberIdentity]| -> BTreeSet<NumberNames> {
                all.iter()
                    .filter(|number| all.iter().filter(|other| other.names == number.names).count() == 1)
                    .map(|number| number.names.clone())
                    .collect()
            };
            for name in names(&ours).intersection(&names(&others)) {
                let take_named = |all: &mut Vec<NumberIdentity>| {
                    all.iter().position(|number| number.names == *name).map(|at| all.remove(at))
                };
                if let (Some(one), Some(other)) = (take_named(&mut ours), take_named(&mut others)) {
                    pairing.pairs.push(one.paired_with(&other));
                }
            }
        }
        match (ours.as_slice(), others.as_slice()) {
            ([one], [other]) => pairing.pairs.push(one.paired_with(other)),
            ([], _) | (_, []) => {
                one.append(&mut ours);
                two.append(&mut others);
            }
            _ => pairing.coinciding.push(AmbiguousNumbers {
                first: ours.iter().map(|number| number.at).collect(),
                second: others.iter().map(|number| number.at).collect(),
                settings: Vec::new(),
            }),
        }
    }
}

impl NumberIdentity {
    fn new(run: &StoredResults, at: usize, number: &ResultRow) -> Self {
        let condition = &number.record.condition;
        let cell = run.cells.get(&number.cell);
        let text = cell.and_then(|cell| cell.get(CORPUS)?.as_str().map(str::to_owned));
        let names = NumberNames { backbone: condition.backbone.clone(), metric: number.record.metric.clone(), text };
        let flat = match run.flat_settings(number) {
            Some(flat) => flat,
            // A cell that was not run, because its dense backbone missed the paper's scores, has no identity. Use the
            // settings that distinguish the number within its run instead.
            None => flatten(&serde_json::json!({"asked": run.number_settings(number)})),
        };
        let kind = match &number.metric {
            metric if metric.is_latency() => metric.family(),
            // The `measure` settings identify the text or task, but not the metric.
            metric if flat.keys().any(|path| path.is_of("measure")) => metric.entry().name,
            metric => metric.id.as_str(),
        };
        Self { at, kind: kind.to_owned(), names, flat }
    }

    /// Replaces the names in a number's identity with those of the second run. Returns `None` if the second run uses a
    /// name for something else.
    fn renamed(self, renamed: &NameMap) -> Option<Self> {
        let NumberNames { backbone, metric, text } = &self.names;
        let text = match text {
            Some(text) => Some(renamed.name(text)?),
            None => None,
        };
        let names = NumberNames { backbone: renamed.name(backbone)?, metric: renamed.metric(metric)?, text };
        let mut flat = self.flat;
        for path in METHOD_SETTINGS {
            let Some(leaf) = flat.get_mut(path) else { continue };
            if let Value::String(name) = leaf.value() {
                *leaf = Canonical::from_value(&renamed.name(&name)?.into());
            }
        }
        Some(Self { names, flat, ..self })
    }

    /// Returns the name of the input or method that a setting belongs to, if there is exactly one.
    fn owner(&self, path: &SettingPath) -> Option<String> {
        let leaf = |name: &str| self.flat.get(name).map(ToString::to_string);
        let NumberNames { backbone, metric, text } = &self.names;
        match path.owner() {
            SettingOwner::Backbone => Some(backbone.clone()),
            SettingOwner::CalibrationText => text.clone(),
            SettingOwner::Measurement => Some(format!("{backbone} {metric}")),
            SettingOwner::Cell if path.is_of("cut.known") => Some(format!("{backbone} {}", leaf("cut.criterion")?)),
            SettingOwner::Cell if path.is_of("cut.version") || path.is_of("cut.options") => leaf("cut.criterion"),
            SettingOwner::Cell if path.is_of("repair.version") || path.is_of("repair.options") => {
                leaf("repair.recovery")
            }
            SettingOwner::Cell => None,
        }
    }

    /// Returns the identity without the given settings. Also drops `among`, the set of variants timed together, because
    /// it never distinguishes numbers.
    fn without(&self, common: &BTreeSet<(SettingPath, Option<String>)>) -> FlatSettings {
        let others = self.flat.iter().filter(|&(path, _)| {
            path.name() != "among" && (common.is_empty() || !common.contains(&(path.clone(), self.owner(path))))
        });
        others.map(|(path, value)| (path.clone(), value.clone())).collect()
    }

    fn paired_with(&self, other: &Self) -> NumberPair {
        NumberPair { first: self.at, second: other.at, differences: setting_differences(&self.flat, &other.flat) }
    }
}

/// Settings whose values are names of methods, which `--map` can rename.
const METHOD_SETTINGS: [&str; 2] = ["cut.criterion", "repair.recovery"];

/// Returns the settings that are constant within each run but differ between the runs. Each comes with the named input
/// or method it belongs to.
fn common_differences(one: &[&NumberIdentity], two: &[&NumberIdentity]) -> BTreeSet<(SettingPath, Option<String>)> {
    let one = values_by_setting(one);
    let two = values_by_setting(two);
    let changed = one.keys().chain(two.keys()).filter(|path| {
        let a = one.get(path);
        let b = two.get(path);
        // Never pair numbers of different methods, or a trained operator with an untrained one.
        let is_method = METHOD_SETTINGS.contains(&path.0.as_str())
            || (path.0.is_of("repair.training") && (a.is_none() || b.is_none()));
        a != b && is_constant(a) && is_constant(b) && !is_method
    });
    changed.cloned().collect()
}

fn is_constant(canonicals: Option<&BTreeSet<Canonical>>) -> bool {
    canonicals.is_none_or(|values| values.len() == 1)
}

fn values_by_setting(all: &[&NumberIdentity]) -> BTreeMap<(SettingPath, Option<String>), BTreeSet<Canonical>> {
    let mut values: BTreeMap<_, BTreeSet<Canonical>> = BTreeMap::new();
    for number in all {
        for (path, value) in &number.flat {
            values.entry((path.clone(), number.owner(path))).or_default().insert(value.clone());
        }
    }
    values
}

/// Iterates over the settings in which the given numbers of a run differ.
fn varying_settings<'a>(run: &'a StoredResults, numbers: &'a [usize]) -> impl Iterator<Item = SettingPath> {
    let number_settings = |at: usize| {
        let number = &run.numbers[at];
        run.flat_settings(number).unwrap_or_else(|| flatten(&serde_json::json!(run.number_settings(number))))
    };
    numbers
        .windows(2)
        .flat_map(move |pair| setting_differences(&number_settings(pair[0]), &number_settings(pair[1])))
        .map(|difference| difference.path)
}

/// Mapping from names in the first run to names in the second.
pub(super) struct NameMap(BTreeMap<String, String>);

impl NameMap {
    /// Creates the mapping from the given pairs of names.
    ///
    /// # Errors
    /// Fails if a run does not contain a given name.
    pub(super) fn new(names: &[(String, String)], first: &StoredResults, second: &StoredResults) -> Result<Self> {
        for (name, run, which) in
            names.iter().flat_map(|(from, to)| [(from, first, "the first run"), (to, second, "the second run")])
        {
            let mappable = mappable_names(run);
            if !mappable.contains(name) {
                let maps: Vec<String> = names.iter().map(|(from, to)| format!("--map {from}={to}")).collect();
                return Err(Error::bad_input(format!(
                    "{which} has no backbone, method, corpus or task named `{name}`"
                ))
                .at(maps.join(" "))
                .none_of(name, mappable.iter().map(String::as_str)));
            }
        }
        Ok(Self(names.iter().cloned().collect()))
    }

    /// Returns the second run's name for a name from the first run. Returns `None` if the second run uses that name for
    /// something else.
    pub(super) fn name(&self, name: &str) -> Option<String> {
        match self.0.get(name) {
            Some(to) => Some(to.clone()),
            None if self.0.values().any(|to| to == name) => None,
            None => Some(name.to_owned()),
        }
    }

    /// Renames dotted keys such as `corpora.c4`. Drops keys that the second run uses for something else.
    pub(super) fn dotted_keys(&self, entries: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let renamed = entries.into_iter().filter_map(|(key, value)| {
            let (kind, name) = key.split_once('.')?;
            Some((format!("{kind}.{}", self.name(name)?), value))
        });
        renamed.collect()
    }

    pub(super) fn metric(&self, metric: &str) -> Option<String> {
        let corpus = |name: &str| self.0.iter().find(|(from, _)| stem(from) == name).map(|(_, to)| stem(to).to_owned());
        let known = Metric::find(metric).ok();
        match known.as_ref().and_then(|known| Some((known.entry(), known.text()?))) {
            Some((prefix, name)) => Some(prefix.metric_for(&corpus(name).unwrap_or_else(|| name.to_owned())).id),
            None => self.name(metric),
        }
    }

    /// Renames every key and string of a settings tree.
    pub(super) fn value(&self, value: &Value) -> Value {
        let name = |name: &String| self.0.get(name).unwrap_or(name).clone();
        match value {
            Value::String(text) => Value::String(name(text)),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(map) => map.iter().map(|(key, value)| (name(key), self.value(value))).collect(),
            other => other.clone(),
        }
    }
}

/// Returns all names in a run that can be mapped.
fn mappable_names(run: &StoredResults) -> BTreeSet<String> {
    let all_conditions = run.numbers.iter().map(|number| &number.record.condition);
    let conditions = all_conditions.flat_map(|condition| {
        let corpus = condition.calibrated().0.to_owned();
        [condition.backbone.clone(), condition.criterion.clone(), condition.recovery.clone(), corpus]
    });
    conditions
        .chain(
            ["corpora", "tasks"]
                .into_iter()
                .flat_map(|kind| run.settings[kind].as_object().into_iter().flat_map(|map| map.keys().cloned())),
        )
        .filter(|name| !name.is_empty())
        .collect()
}

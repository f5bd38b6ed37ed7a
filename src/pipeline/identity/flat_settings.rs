//! Flattens identities and other JSON values into maps from paths to leaves, and compares these maps. A map contains
//! every leaf except nulls, so new settings are automatically part of comparisons.

use std::borrow::{Borrow, Cow};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Identity;
use ghostlab_store::canonical;

/// Path of a setting, such as `calibration.text.rule` or `cut.options.cosine`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct SettingPath(String);

impl SettingPath {
    pub fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn name(&self) -> &str {
        self.0.rsplit('.').next().unwrap_or_default()
    }

    /// Returns whether the path equals `parent` or is below it.
    pub fn is_of(&self, parent: &str) -> bool {
        self.0.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// Returns what the setting belongs to.
    pub fn owner(&self) -> SettingOwner {
        if self.is_of("model") || self.is_of("engine") {
            SettingOwner::Backbone
        } else if self.is_of("measure") {
            SettingOwner::Measurement
        } else if self.is_of("calibration.text") {
            SettingOwner::CalibrationText
        } else {
            SettingOwner::Cell
        }
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self(if self.0.is_empty() { name.to_owned() } else { format!("{}.{name}", self.0) })
    }
}

/// Owner of a setting: the input, measurement or cell that determines its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingOwner {
    Backbone,
    Measurement,
    CalibrationText,
    Cell,
}

impl SettingOwner {
    pub const ALL: [Self; 4] = [Self::Backbone, Self::Measurement, Self::CalibrationText, Self::Cell];
}

impl fmt::Display for SettingPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for SettingPath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Leaves of a JSON value, by path. Arrays and empty objects are leaves too.
pub type FlatSettings = BTreeMap<SettingPath, Canonical>;

/// Setting that differs between two runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct SettingDifference {
    /// Dotted path, such as `calibration.sequences` or `corpora.c4`.
    pub path: SettingPath,
    /// Value in the first run, as JSON; omitted if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<Canonical>,
    /// Value in the second run, as JSON; omitted if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second: Option<Canonical>,
}

/// Calls `visit` on each leaf of a JSON value, with its path below `path`.
pub fn visit_leaves(path: &SettingPath, value: &Value, visit: &mut dyn FnMut(&SettingPath, &Value)) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(name, value)| visit_leaves(&path.child(name), value, visit));
        }
        leaf => visit(path, leaf),
    }
}

/// Returns the leaves of a JSON value, by path. Nulls are skipped.
pub fn flatten(root: &Value) -> FlatSettings {
    let mut found = FlatSettings::new();
    visit_leaves(&SettingPath::new(""), root, &mut |path, leaf| {
        if !leaf.is_null() {
            found.insert(path.clone(), Canonical::from_value(leaf));
        }
    });
    found
}

pub fn setting_differences(first: &FlatSettings, second: &FlatSettings) -> Vec<SettingDifference> {
    let paths: BTreeSet<&SettingPath> = first.keys().chain(second.keys()).collect();
    paths
        .into_iter()
        .filter_map(|path| {
            let first = first.get(path).cloned();
            let second = second.get(path).cloned();
            (first != second).then(|| SettingDifference { path: path.clone(), first, second })
        })
        .collect()
}

/// Returns the paths of all settings that an [`Identity`] can have. The options of a method, which have no fixed
/// schema, count as one setting.
pub fn setting_paths() -> Vec<SettingPath> {
    let settings = SchemaSettings::default().with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<Identity>();
    let mut found = BTreeSet::new();
    collect_paths(schema.as_value(), &SettingPath::new(""), &mut found);
    found.into_iter().collect()
}

fn collect_paths(schema: &Value, path: &SettingPath, found: &mut BTreeSet<SettingPath>) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        return properties.iter().for_each(|(name, schema)| collect_paths(schema, &path.child(name), found));
    }
    let branches = ["anyOf", "oneOf"].into_iter().filter_map(|keyword| schema.get(keyword)?.as_array()).flatten();
    let branches: Vec<&Value> = branches.filter(|branch| branch.get("type") != Some(&Value::from("null"))).collect();
    if branches.is_empty() {
        found.insert(path.clone());
    }
    branches.into_iter().for_each(|schema| collect_paths(schema, path, found));
}

/// JSON value as canonical text: without spaces, with sorted keys, and with floats in their shortest form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Canonical(String);

impl Canonical {
    pub fn from_value(value: &Value) -> Self {
        Self(canonical(value))
    }

    pub fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the value is a string of 64 hexadecimal digits, such as a SHA-256.
    pub fn is_hash(&self) -> bool {
        self.0.len() == 66 && self.0[1..65].bytes().all(|digit| digit.is_ascii_hexdigit())
    }
}

impl fmt::Display for Canonical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Canonical {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Canonical {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(|value| Self::from_value(&value))
    }
}

impl JsonSchema for Canonical {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "AnyValue".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Value::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn differences_are_listed_by_setting_path() {
        let one = json!({"a": {"x": 1, "y": [1, 2]}, "b": {}, "c": null, "d": 0.5});
        let other = json!({"a": {"x": 1, "y": [2, 1]}, "e": "f", "d": 0.50});
        let found = setting_differences(&flatten(&one), &flatten(&other));
        let found: Vec<_> = found
            .iter()
            .map(|change| (change.path.as_str(), canonical_text(&change.first), canonical_text(&change.second)))
            .collect();
        let expected = [
            ("a.y", some_string("[1,2]"), some_string("[2,1]")),
            ("b", some_string("{}"), None),
            ("e", None, some_string("\"f\"")),
        ];
        assert_eq!(found, expected);
        assert!(setting_differences(&flatten(&one), &flatten(&one)).is_empty());
    }

    fn canonical_text(canonical: &Option<Canonical>) -> Option<String> {
        canonical.as_ref().map(ToString::to_string)
    }

    fn some_string(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn setting_paths_are_leaves_of_the_identity_schema() {
        let found = setting_paths();
        let found: Vec<&str> = found.iter().map(SettingPath::as_str).collect();
        for known in [
            "model.content",
            "engine.dtype",
            "cut.options",
            "repair.training.seed",
            "measure.windows.text.rule",
            "measure.task.bos",
            "measure.prefill.machine",
            "calibration.seed",
            "measure",
        ] {
            assert!(found.contains(&known), "{known} is not in {found:?}");
        }
        assert!(!found.contains(&"cut") && !found.contains(&"") && !found.contains(&"calibration.text"), "{found:?}");
        let cosine = SettingPath::new("cut.options.cosine");
        let depth = SettingPath::new("cut.depth");
        assert!(
            cosine.is_of("cut.options")
                && cosine.is_of("cut")
                && !depth.is_of("cut.options")
                && depth.name() == "depth"
        );
        assert!(!SettingPath::new("cut.options2").is_of("cut.options"));
    }
}

//! Hashes the cohort of a variant, that is, the variants that are timed together with it.

use std::collections::{BTreeMap, BTreeSet};

use super::Identity;
use crate::files::sha256;
use ghostlab_store::{KeyDescription, canonical};

/// Returns, for each variant of a cohort, a hash of its differences from the other variants. A change that all variants
/// share does not affect the hashes.
pub fn timing_cohort(variants: &[&Identity]) -> Vec<String> {
    let cohort: Vec<VariantParts> = variants.iter().map(|identity| split_variant(identity)).collect();
    cohort
        .iter()
        .map(|parts| {
            let differences: BTreeSet<String> = cohort.iter().map(|other| describe_difference(parts, other)).collect();
            sha256::of_bytes(differences.into_iter().collect::<Vec<_>>().join("\n"))
        })
        .collect()
}

/// Cut, repair and calibration, each with its fields as canonical JSON.
type VariantParts = [Option<BTreeMap<String, String>>; 3];

fn split_variant(identity: &Identity) -> VariantParts {
    let identity = identity.json();
    ["cut", "repair", "calibration"].map(|part| {
        let fields = identity[part].as_object()?;
        Some(fields.iter().map(|(name, value)| (name.clone(), canonical(value))).collect())
    })
}

/// Describes how the settings of `other` differ from those of a variant.
fn describe_difference(parts: &VariantParts, other: &VariantParts) -> String {
    let no_fields = BTreeMap::new();
    parts
        .iter()
        .zip(other)
        .map(|(ours, other)| match (ours, other) {
            (one, other) if one == other => "the same".to_owned(),
            (_, None) => "none".to_owned(),
            (known, Some(other)) => {
                let known: &BTreeMap<String, String> = known.as_ref().unwrap_or(&no_fields);
                let changed = other.iter().filter(|(name, value)| known.get(*name) != Some(*value));
                let absent = known.keys().filter(|name| !other.contains_key(*name));
                let changed = changed.map(|(name, value)| format!("{name}={value}"));
                changed.chain(absent.map(|name| format!("no {name}"))).collect::<Vec<_>>().join(" ")
            }
        })
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn variant(recovery: Option<&str>, seed: u64) -> Identity {
        let mut value = json!({
            "model": {"content": "1", "tokenizer": "2"}, "engine": {"name": "cpu", "dtype": "f32", "device": "cpu"},
        });
        if let Some(recovery) = recovery {
            value["cut"] = json!({"criterion": "sleb", "version": 1, "options": {}, "depth": 4});
            value["repair"] = json!({"recovery": recovery, "version": 1, "options": {}, "fitted": 4});
            let text = json!({"bytes": "3", "format": "jsonl", "rule": "c4"});
            value["calibration"] = json!({"text": text, "sequences": 4, "length": 64, "seed": seed});
        }
        serde_json::from_value(value).unwrap()
    }

    fn last_hash(cohort: &[Identity]) -> String {
        timing_cohort(&cohort.iter().collect::<Vec<_>>()).pop().unwrap()
    }

    #[test]
    fn timing_cohort_depends_on_relative_differences_only() {
        assert_eq!(cohort_of(&["none"], 0), cohort_of(&["none"], 1));
        assert_ne!(cohort_of(&["none"], 0), cohort_of(&["affine"], 0));
        assert_ne!(cohort_of(&["none"], 0), cohort_of(&["none", "affine"], 0));
        assert_eq!(cohort_of(&["none", "affine"], 0), cohort_of(&["affine", "none"], 0), "the order does not matter");
        // A difference contains only the value of the other variant, so seeds 1 and 2 give the same hash.
        assert_eq!(
            last_hash(&[variant(Some("ghosted"), 0), variant(Some("ghosted"), 1)]),
            last_hash(&[variant(Some("ghosted"), 0), variant(Some("ghosted"), 2)]),
            "the other variant has seed 0 in both cohorts"
        );
        assert_ne!(
            last_hash(&[variant(None, 0), variant(Some("ghosted"), 0)]),
            last_hash(&[variant(Some("ghosted"), 0)])
        );
    }

    fn cohort_of(others: &[&str], seed: u64) -> String {
        let others = others.iter().map(|name| variant(Some(name), seed));
        let cohort: Vec<Identity> =
            [variant(None, 0)].into_iter().chain(others).chain([variant(Some("ghosted"), seed)]).collect();
        last_hash(&cohort)
    }
}

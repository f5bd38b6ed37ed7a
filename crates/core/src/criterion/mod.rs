//! Pruning criteria: rules that select the layers to remove (docs/design.md §6).
//!
//! Each criterion has a file with a registry entry, which is listed in `ENTRIES`.
//!
//! ```
//! use ghostlab_core::criterion::{build_resolved, descriptions};
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! // Missing options are filled with their defaults, so that the options identify the result.
//! let (_, options) = build_resolved("llm-streamline", &Default::default())?;
//! assert_eq!(options["cosine"], "channel-series");
//! assert!(descriptions().iter().any(|criterion| criterion.name == "shortgpt"));
//! # Ok(())
//! # }
//! ```

mod angular;
mod block_pruner;
mod cca;
mod depth;
mod explicit;
mod finercut;
mod greedy;
mod laco;
mod llm_drop;
mod llm_streamline;
mod lorp;
mod nbl;
mod rule;
mod shortened_llama;
mod shortgpt;
mod sleb;
mod spectral;
#[cfg(test)]
#[path = "../../templates/criterion.rs"]
mod template;
mod trial;

use serde_json::Value;

use crate::deviation::PruneCase;
use crate::error::{Error, Result};
use crate::options::{self, Appearance, MethodDescription, Options};
use crate::style::{Dash, Hue, Marker, Style};

pub use depth::{Depth, DepthUnit};
pub use rule::{
    CalibrationStats, Criterion, Importance, InputNorms, PruneSpec, Selection, Trial, TrialMetric, Trials, check,
    degenerate,
};
use rule::{CriterionEntry, ITERATIVE};

/// All criteria that a grid may name.
#[rustfmt::skip] // One line each.
const ENTRIES: &[CriterionEntry] = &[
    llm_streamline::ENTRY,
    shortgpt::ENTRY,
    shortened_llama::ENTRY,
    sleb::ENTRY,
    angular::ENTRY,
    explicit::ENTRY,
    cca::ENTRY,
    llm_drop::ENTRY,
    block_pruner::ENTRY,
    finercut::ENTRY,
    nbl::ENTRY,
    lorp::ENTRY,
    laco::ENTRY,
];

/// Builds the criterion called `name` with the given options.
///
/// # Errors
/// Fails if the name is unknown (the message suggests the nearest one), an option is unknown, or a value is invalid.
pub fn build(name: &str, options: &Options) -> Result<Box<dyn Criterion>> {
    let entry = options::lookup("criterion", name, ENTRIES)?;
    check_iterative(entry, options)?;
    entry.build(options)
}

/// Rejects `iterative` for a criterion without this option, because it cannot rank the remaining layers. The message
/// contains the reason if the entry has one.
fn check_iterative(entry: &CriterionEntry, options: &Options) -> Result<()> {
    if !options.contains_key(ITERATIVE) || entry.description().has(ITERATIVE) {
        return Ok(());
    }
    let refused = entry.refused.filter(|(option, _)| *option == ITERATIVE);
    let reason = refused.map_or_else(String::new, |(_, reason)| format!(": {reason}"));
    let iterative_criteria =
        ENTRIES.iter().filter(|entry| entry.description().has(ITERATIVE)).map(|entry| entry.appearance.name);
    let name = entry.appearance.name;
    Err(Error::bad_input(format!("`{name}` has no iterative variant{reason}"))
        .expected(format!("`{ITERATIVE}` with one of {}", iterative_criteria.collect::<Vec<_>>().join(", ")))
        .found(format!("`{ITERATIVE}: {}`", options[ITERATIVE]))
        .hint("remove `iterative`, or use another criterion"))
}

/// Builds a criterion and returns it with its complete options, including defaults, as they appear in cache keys.
///
/// # Errors
/// See [`build`].
pub fn build_resolved(name: &str, options: &Options) -> Result<(Box<dyn Criterion>, Options)> {
    let rule = build(name, options)?;
    Ok((rule, options::lookup("criterion", name, ENTRIES)?.resolve(options)?))
}

/// Returns the version of a criterion's results, or 1 if the name is unknown.
pub fn version(name: &str) -> u32 {
    options::find(name, ENTRIES).map_or(1, |entry| entry.version)
}

/// Returns the deviations of the official code from the published formulas that apply to `case`.
pub fn deviations(name: &str, case: &PruneCase<'_>) -> Vec<&'static str> {
    options::deviations(name, ENTRIES, case)
}

/// Returns descriptions of all criteria and their options, for the grid schema and the command-line help.
pub fn descriptions() -> Vec<MethodDescription> {
    ENTRIES.iter().map(CriterionEntry::description).collect()
}

/// Label and style of the dense model, which is not a criterion.
pub const DENSE: Appearance = Appearance {
    name: "dense",
    label: "Dense",
    style: Some(Style::new(Hue::Ink, Marker::Star, Dash::Dashed)),
    ours: false,
};

/// Returns the label of the Ghosted Layers paper for a criterion or for [`DENSE`]. An unknown name is returned
/// unchanged.
pub fn label(name: &str) -> &str {
    let dense = Some(DENSE).filter(|dense| dense.name == name);
    dense.or_else(|| options::appearance(name, ENTRIES)).map_or(name, |appearance| appearance.label)
}

/// Returns the label for a criterion with options. An option that selects a known variant changes the label, as in
/// `ShortGPT, iterative`. Other options are appended with their values, as in `LoRP, clusters 3`.
pub fn label_with<'a>(name: &str, options: impl IntoIterator<Item = (&'a str, &'a Value)>) -> String {
    let entry = options::find(name, ENTRIES);
    let mut base = label(name);
    let mut suffix = String::new();
    for (option, value) in options {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match entry.and_then(|entry| entry.variant(option, &value)) {
            Some(variant) if base == label(name) => base = variant.label,
            Some(variant) => suffix.push_str(&format!(", {}", variant.word)),
            None => suffix.push_str(&format!(", {option} {value}")),
        }
    }
    format!("{base}{suffix}")
}

/// Criterion that scores every layer or sublayer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankingCriterion {
    pub name: &'static str,
    /// Unit of the candidates, which is [`DepthUnit::Sublayers`] if the criterion ranks both kinds together.
    pub unit: DepthUnit,
    pub quantity: &'static str,
    pub lowest_first: bool,
    /// Whether the criterion measures one trial per candidate.
    pub has_trials: bool,
}

/// Returns the criteria that, with default options and a depth of 1, score every candidate.
pub fn ranking_criteria() -> Vec<RankingCriterion> {
    let mut rankings = Vec::new();
    for entry in ENTRIES {
        let Ok(rule) = entry.build(&Options::new()) else { continue };
        let Some(Importance { quantity, lowest_first }) = rule.importance() else { continue };
        let Some(&unit) = rule.units().last() else { continue };
        let has_trials = !rule.trials(&PruneSpec { backbone: "", layers: 2, depth: 1, unit }).is_empty();
        rankings.push(RankingCriterion { name: entry.appearance.name, unit, quantity, lowest_first, has_trials });
    }
    rankings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criterion_label_falls_back_to_its_name() {
        assert_eq!((label("dense"), label("sleb"), label("angular")), ("Dense", "SLEB", "angular"));
        assert_eq!(label("my-rule"), "my-rule");
    }

    #[test]
    fn criterion_label_includes_its_options() {
        for (name, options, expected) in [
            ("shortgpt", serde_json::json!({}), "ShortGPT"),
            ("shortgpt", serde_json::json!({"iterative": true}), "ShortGPT, iterative"),
            (
                "shortgpt",
                serde_json::json!({"cosine": "token", "iterative": true}),
                "ShortGPT, iterative, cosine token",
            ),
            ("cca", serde_json::json!({"cut": "block"}), "CCA bound (NBL), one block"),
            ("nbl", serde_json::json!({"input": "normed", "iterative": true}), "NBL bound, normed input, iterative"),
            ("lorp", serde_json::json!({"clusters": 3}), "LoRP, clusters 3"),
            ("my-rule", serde_json::json!({"alpha": 0.5}), "my-rule, alpha 0.5"),
        ] {
            let options = options.as_object().unwrap().iter().map(|(option, value)| (option.as_str(), value));
            assert_eq!(label_with(name, options), expected);
        }
    }

    #[test]
    fn iterative_option_is_rejected_where_unsupported() {
        let options = serde_json::json!({"iterative": true}).as_object().unwrap().clone();
        for entry in ENTRIES {
            let name = entry.appearance.name;
            match build(name, &options) {
                Ok(rule) => assert!(rule.is_iterative() && entry.description().has(ITERATIVE), "{name}"),
                Err(error) => {
                    let text = error.to_string();
                    let (_, reason) = entry.refused.unwrap();
                    assert!(text.contains(&format!("`{name}` has no iterative variant: {reason}")), "{text}");
                    assert!(text.contains("shortgpt") && text.contains("llm-drop"), "{text}");
                }
            }
        }
        let iterative = ENTRIES.iter().filter(|entry| entry.description().has(ITERATIVE)).count();
        assert_eq!(iterative + ENTRIES.iter().filter(|entry| entry.refused.is_some()).count(), ENTRIES.len());
        assert!(!build("shortgpt", &Options::new()).unwrap().is_iterative());
        let text = check_iterative(&template::ENTRY, &options).unwrap_err().to_string();
        assert!(text.contains("`my-criterion` has no iterative variant") && text.contains("shortgpt"), "{text}");
        check_iterative(&template::ENTRY, &Options::new()).unwrap();
    }

    #[test]
    fn iterative_option_is_rejected_with_conflicting_options() {
        for (name, option, value) in [("cca", "cut", "block"), ("shortened-llama", "order", "released")] {
            let options = serde_json::json!({"iterative": true, option: value}).as_object().unwrap().clone();
            let text = build(name, &options).err().unwrap().to_string();
            assert!(text.contains("`iterative: true` only with") && text.contains(value), "{text}");
        }
    }

    #[test]
    fn every_criterion_with_layer_scores_has_a_ranking() {
        let rankings = ranking_criteria();
        let unranked = ENTRIES.iter().map(|entry| entry.appearance.name);
        let unranked = unranked.filter(|name| rankings.iter().all(|ranking| ranking.name != *name));
        assert_eq!(unranked.collect::<Vec<_>>(), ["explicit", "lorp", "laco"]);
        let measured = rankings.iter().filter(|ranking| ranking.has_trials).map(|ranking| ranking.name);
        assert_eq!(measured.collect::<Vec<_>>(), ["shortened-llama", "sleb", "block-pruner", "finercut"]);
    }

    #[test]
    fn misspelled_criterion_or_option_is_rejected() {
        let text = build("llm_streamline", &Options::new()).err().unwrap().to_string();
        assert!(text.contains("did you mean `llm-streamline`?"), "{text}");
        let options = serde_json::json!({"cosin": "token"}).as_object().unwrap().clone();
        let text = build("llm-streamline", &options).err().unwrap().to_string();
        assert!(text.contains("cosin") && text.contains("cosine"), "{text}");
    }
}

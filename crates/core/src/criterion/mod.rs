//! Pruning criteria: rules that select the layers to remove (design §6).
//!
//! A criterion is one file with a registry entry, and one line in [`ENTRIES`].
//!
//! ```
//! use ghostlab_core::criterion::{described, resolved};
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! // Options are filled with their defaults, so that they name one result.
//! let (_, options) = resolved("llm-streamline", &Default::default())?;
//! assert_eq!(options["cosine"], "channel-series");
//! assert!(described().iter().any(|criterion| criterion.name == "shortgpt"));
//! # Ok(())
//! # }
//! ```

mod angular;
mod block_pruner;
mod cca;
mod depth;
mod explicit;
mod finercut;
mod llm_drop;
mod llm_streamline;
mod lorp;
mod nbl;
mod rule;
mod shortened_llama;
mod shortgpt;
mod sleb;
mod spectral;
mod sublayers;
#[cfg(test)]
#[path = "../../templates/criterion.rs"]
mod template;

use crate::deviation::PruneCase;
use crate::error::Result;
use crate::options::{self, Appearance, Described, Options};
use crate::style::{Dash, Hue, Marker, Style};

pub use depth::{Depth, DepthUnit};
use rule::CriterionEntry;
pub use rule::{CalibrationStats, Criterion, Importance, PruneSpec, Selection, TrialMetric, Trials, check, degenerate};

/// Every criterion that a grid may name.
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
];

/// Builds the criterion called `name` with the given options.
///
/// # Errors
/// An unknown name (the message suggests the nearest one), an unknown option or an invalid value.
pub fn build(name: &str, options: &Options) -> Result<Box<dyn Criterion>> {
    options::lookup("criterion", name, ENTRIES)?.build(options)
}

/// Builds a criterion and resolves its options to the form that keys contain, with every default filled in.
///
/// # Errors
/// Those of [`build`].
pub fn resolved(name: &str, options: &Options) -> Result<(Box<dyn Criterion>, Options)> {
    let entry = options::lookup("criterion", name, ENTRIES)?;
    Ok((entry.build(options)?, entry.resolve(options)?))
}

/// Returns the version of a criterion's results, or 1 for an unknown name.
pub fn version(name: &str) -> u32 {
    ENTRIES.iter().find(|entry| entry.shown.name == name).map_or(1, |entry| entry.version)
}

/// Returns the deviations of a criterion's official code in a case.
pub fn deviations(name: &str, case: &PruneCase<'_>) -> Vec<&'static str> {
    options::deviations(name, ENTRIES, case)
}

/// Describes all criteria and their options, for the grid schema and the help.
pub fn described() -> Vec<Described> {
    ENTRIES.iter().map(CriterionEntry::described).collect()
}

/// Appearance of the dense model, which has no criterion.
pub const DENSE: Appearance = Appearance {
    name: "dense",
    label: "Dense",
    style: Some(Style::new(Hue::Ink, Marker::Star, Dash::Dashed)),
    ours: false,
};

/// Returns the label that the paper prints for a criterion or for [`DENSE`], or an unknown name unchanged.
pub fn label(name: &str) -> &str {
    let dense = Some(DENSE).filter(|dense| dense.name == name);
    dense.or_else(|| options::appearance(name, ENTRIES)).map_or(name, |shown| shown.label)
}

/// A criterion that scores every layer or sublayer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranking {
    pub name: &'static str,
    /// Unit of the candidates; sublayers where the rule takes both kinds at once.
    pub unit: DepthUnit,
    pub quantity: &'static str,
    pub lowest_first: bool,
}

/// Lists the criteria whose scores at a depth of 1, without options, rank every layer or sublayer.
pub fn rankings() -> Vec<Ranking> {
    let mut rankings = Vec::new();
    for entry in ENTRIES {
        let Ok(rule) = entry.build(&Options::new()) else { continue };
        let Some(Importance { quantity, lowest_first }) = rule.importance() else { continue };
        let Some(&unit) = rule.units().last() else { continue };
        rankings.push(Ranking { name: entry.shown.name, unit, quantity, lowest_first });
    }
    rankings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criteria_of_the_paper_have_its_labels() {
        assert_eq!((label("dense"), label("sleb"), label("angular")), ("Dense", "SLEB", "angular"));
        assert_eq!(label("my-rule"), "my-rule");
    }

    #[test]
    fn misspelt_criterion_or_option_is_refused() {
        let text = build("llm_streamline", &Options::new()).err().unwrap().to_string();
        assert!(text.contains("did you mean `llm-streamline`?"), "{text}");
        let options = serde_json::json!({"cosin": "token"}).as_object().unwrap().clone();
        let text = build("llm-streamline", &options).err().unwrap().to_string();
        assert!(text.contains("cosin") && text.contains("cosine"), "{text}");
    }
}

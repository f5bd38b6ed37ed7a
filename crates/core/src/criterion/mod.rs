//! Floor 2: rules that pick which layers to remove (design §6). One rule, one file, one line in [`ENTRIES`].

mod angular;
mod cca;
mod explicit;
mod llm_streamline;
mod rule;
mod shortened_llama;
mod shortgpt;
mod sleb;
#[cfg(test)]
#[path = "../../templates/criterion.rs"]
mod template;

use crate::deviation::PruneCase;
use crate::error::Result;
use crate::options::{self, Appearance, Described, Options};
use crate::style::{Dash, Hue, Marker, Style};

use rule::CriterionEntry;
pub use rule::{Criterion, Evidence, Perplexities, PruneSpec, Selection, degenerate};

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
];

/// The criterion of a name, with its options.
///
/// # Errors
/// An unknown name (with the nearest), an unknown option or a wrong value.
pub fn build(name: &str, options: &Options) -> Result<Box<dyn Criterion>> {
    options::lookup("criterion", name, ENTRIES)?.build(options)
}

/// The same with its options as it is known by them in keys: every default filled in.
///
/// # Errors
/// As [`build`].
pub fn resolved(name: &str, options: &Options) -> Result<(Box<dyn Criterion>, Options)> {
    let entry = options::lookup("criterion", name, ENTRIES)?;
    Ok((entry.build(options)?, entry.resolve(options)?))
}

/// The version of what a criterion gives; 1 of a name that is no criterion's.
pub fn version(name: &str) -> u32 {
    ENTRIES.iter().find(|entry| entry.shown.name == name).map_or(1, |entry| entry.version)
}

/// Returns what the official code of a criterion does otherwise in a case.
pub fn deviations(name: &str, case: &PruneCase<'_>) -> Vec<&'static str> {
    options::deviations(name, ENTRIES, case)
}

/// The names of all criteria and what their options are.
pub fn described() -> Vec<Described> {
    ENTRIES.iter().map(CriterionEntry::described).collect()
}

/// What stands in a criterion's place where nothing is removed.
pub const DENSE: Appearance = Appearance {
    name: "dense",
    label: "Dense",
    style: Some(Style::new(Hue::Ink, Marker::Star, Dash::Dashed)),
    ours: false,
};

/// A criterion as the paper prints it, [`DENSE`] among them; a name that is no criterion's as it is.
pub fn label(name: &str) -> &str {
    let dense = Some(DENSE).filter(|dense| dense.name == name);
    dense.or_else(|| options::appearance(name, ENTRIES)).map_or(name, |shown| shown.label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_criterion_has_the_papers_name_where_the_paper_has_one() {
        assert_eq!((label("dense"), label("sleb"), label("angular")), ("Dense", "SLEB", "angular"));
        assert_eq!(label("of-mine"), "of-mine");
    }

    #[test]
    fn a_misspelt_criterion_or_option_is_refused() {
        let text = build("llm_streamline", &Options::new()).err().unwrap().to_string();
        assert!(text.contains("did you mean `llm-streamline`?"), "{text}");
        let options = serde_json::json!({"cosin": "token"}).as_object().unwrap().clone();
        let text = build("llm-streamline", &options).err().unwrap().to_string();
        assert!(text.contains("cosin") && text.contains("cosine"), "{text}");
    }
}

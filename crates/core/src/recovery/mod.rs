//! Floor 2: what is put at the boundary of a removed region (design §7). One method, one file, one line in [`ENTRIES`].

mod boundary;
mod ghosted;
mod least_squares;
mod linearpatch;
mod method;
mod none;
mod prune_and_comp;
mod repair_metrics;
mod replaceme_cos;
mod replaceme_ls;

use crate::error::Result;
use crate::options::{self, Appearance, Described, Options};

pub use boundary::{Boundary, Span};
use method::RecoveryEntry;
pub use method::{Fitted, Recovery, Repair, Solution, System};
pub use none::NAME as NONE;
pub use repair_metrics::RepairMetrics;

/// Every recovery that a grid may name.
#[rustfmt::skip] // One line each.
const ENTRIES: &[RecoveryEntry] = &[
    none::ENTRY,
    prune_and_comp::ENTRY,
    replaceme_ls::ENTRY,
    replaceme_cos::ENTRY,
    linearpatch::DIAG_ENTRY,
    linearpatch::ROTATE_ENTRY,
    ghosted::ENTRY,
];

/// The recovery of a name, with its options.
///
/// # Errors
/// An unknown name (with the nearest), an unknown option or a wrong value.
pub fn build(name: &str, options: &Options) -> Result<Box<dyn Recovery>> {
    (options::lookup("recovery", name, ENTRIES)?.build)(options)
}

/// The options of a recovery with every default filled in: what it is known by in keys.
///
/// # Errors
/// As [`build`].
pub fn resolve(name: &str, options: &Options) -> Result<Options> {
    let entry = options::lookup("recovery", name, ENTRIES)?;
    (entry.build)(options)?;
    entry.resolve(options)
}

/// The names of all recoveries and what their options are.
pub fn described() -> Vec<Described> {
    ENTRIES.iter().map(RecoveryEntry::described).collect()
}

/// How a recovery is shown that tables call `name`: `ghosted`, or `ghosted:svd`. None of a name that is no recovery's.
pub fn appearance(name: &str) -> Option<Appearance> {
    options::appearance(name, ENTRIES)
}

/// A recovery as the paper prints it; a name that is no recovery's as it is.
pub fn label(name: &str) -> &str {
    appearance(name).map_or(name, |shown| shown.label)
}

/// Whether it is the paper's own method.
pub fn is_ours(name: &str) -> bool {
    appearance(name).is_some_and(|shown| shown.ours)
}

/// How the paper's own method is shown.
pub fn ours() -> Option<Appearance> {
    ENTRIES.iter().map(|entry| entry.shown).find(|shown| shown.ours)
}

/// What tables write behind a recovery's name for the value of an option: the variant's word, or the value.
pub fn word<'a>(name: &str, option: &str, value: &'a str) -> &'a str {
    let entry = ENTRIES.iter().find(|entry| entry.shown.name == name);
    let variants = entry.map_or(&[][..], |entry| entry.variants);
    variants.iter().find(|of| of.option == option && of.value == value).map_or(value, |of| of.word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_printed_in_its_own_words_and_drawn_as_its_method() {
        assert_eq!((label("ghosted"), label("ghosted:svd")), ("Ghost Layer (Ours)", "SVD-based"));
        assert_eq!(word("ghosted", "solver", "normal"), "solve");
        assert_eq!(label("ghosted:solve"), "Solver-based");
        assert_eq!(appearance("ghosted:svd").unwrap().style, appearance("ghosted").unwrap().style);
        assert!(is_ours("ghosted:svd") && !is_ours("replaceme-ls"));
    }

    #[test]
    fn what_has_no_words_of_its_own_keeps_the_grids() {
        assert_eq!((label("my-method"), label("replaceme-cos:3")), ("my-method", "ReplaceMe (Cos)"));
        assert_eq!(word("replaceme-cos", "epochs", "3"), "3");
        assert!(!is_ours("my-method"));
    }

    #[test]
    fn the_paper_has_one_own_method() {
        assert_eq!(ENTRIES.iter().filter(|entry| entry.shown.ours).count(), 1);
        assert_eq!(ours().unwrap().name, "ghosted");
    }

    #[test]
    fn every_variant_is_one_that_a_grid_can_ask_for() {
        for entry in ENTRIES {
            for variant in entry.variants {
                let options = serde_json::json!({ variant.option: variant.value }).as_object().unwrap().clone();
                assert!((entry.build)(&options).is_ok(), "{variant:?}");
            }
        }
    }
}

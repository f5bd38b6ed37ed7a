//! Recovery methods: operators that repair the boundary of a removed region, a block of adjacent layers (docs/design.md
//! §7).
//!
//! Each method has its own file and a registry entry that is listed in `ENTRIES`.
//!
//! ```
//! assert!(ghostlab_core::recovery::build("ghosted", &Default::default()).is_ok());
//! ```

mod affine;
mod boundary;
mod ghosted;
mod least_squares;
mod linearpatch;
mod mean;
mod merge;
mod method;
mod nbl;
mod none;
mod placed;
mod prune_and_comp;
mod rank;
mod repair_metrics;
mod replaceme_cos;
mod replaceme_ls;
mod sequential;
mod stream_fit;
mod sums;
#[cfg(test)]
#[path = "../../templates/recovery.rs"]
mod template;

use serde_json::Value;

use crate::deviation::PruneCase;
use crate::distill::Finetune;
use crate::error::{Error, Result};
use crate::model::Cut;
use crate::options::{self, Appearance, MethodDescription, Options};
use crate::quantity::MAX_TOKENS;

pub use boundary::{Boundary, RemainingLayer, Repair, Solution, Span, degenerate};
use method::RecoveryEntry;
pub use method::{F64_COST, FitSequences, Recovery, RepairTarget};
pub use none::NAME as NONE;
pub(crate) use placed::layer_before;
pub use placed::{merged_layers, place_repairs};
pub use repair_metrics::RepairMetrics;

/// All recoveries that can be named in a grid.
#[rustfmt::skip] // One line each.
const ENTRIES: &[RecoveryEntry] = &[
    none::ENTRY,
    prune_and_comp::ENTRY,
    replaceme_ls::ENTRY,
    replaceme_cos::ENTRY,
    linearpatch::DIAG_ENTRY,
    linearpatch::ROTATE_ENTRY,
    ghosted::ENTRY,
    affine::ENTRY,
    mean::ENTRY,
    rank::ENTRY,
    sequential::ENTRY,
    nbl::ENTRY,
    merge::ENTRY,
];

/// Builds the recovery called `name` with the given options.
///
/// # Errors
/// Fails if the name is unknown (the message suggests the nearest one), an option is unknown, or a value is invalid.
pub fn build(name: &str, options: &Options) -> Result<Box<dyn Recovery>> {
    let recovery = options::lookup("recovery", name, ENTRIES)?.build(&without_finetune(options))?;
    if options.contains_key(FINETUNE) && !recovery.is_tunable() {
        let names: Vec<&str> = tunable_methods().collect();
        return Err(Error::bad_input(format!("`{name}` does not support fine-tuning"))
            .expected(format!("one of {}, with one operator per region", names.join(", ")))
            .found(format!("`{FINETUNE}` with `{name}`"))
            .hint(
                "remove `finetune`, or use one linear operator per region: folded maps, low-rank maps, and maps with a bias or a norm cannot be trained",
            ));
    }
    Ok(recovery)
}

/// Name of the option for fine-tuning a recovery's operator after it is solved.
pub const FINETUNE: &str = "finetune";

/// Returns the options without [`FINETUNE`]. They identify the operator from which fine-tuning starts.
pub fn without_finetune(options: &Options) -> Options {
    options.iter().filter(|(name, _)| *name != FINETUNE).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Parses the fine-tuning settings, if present.
fn parse_finetune(name: &str, options: &Options) -> Result<Option<Finetune>> {
    let Some(value) = options.get(FINETUNE) else { return Ok(None) };
    let finetune: Finetune = serde_json::from_value(value.clone()).map_err(|error| {
        finetune_error(error.to_string(), name).expected("a map such as `{sequences: 5000, length: 2048}`")
    })?;
    if finetune.sequences == 0 || finetune.length < 2 {
        return Err(finetune_error(value.to_string(), name).expected("at least 1 sequence of at least 2 tokens"));
    }
    if finetune.sequences.saturating_mul(finetune.length) > MAX_TOKENS {
        return Err(
            finetune_error(value.to_string(), name).expected(format!("sequences × length of {MAX_TOKENS} or less"))
        );
    }
    Ok(Some(finetune))
}

fn finetune_error(found: String, name: &str) -> Error {
    Error::bad_input(format!("invalid value of `{FINETUNE}` for `{name}`")).found(found)
}

/// Returns the names of the recoveries whose operators can be fine-tuned.
fn tunable_methods() -> impl Iterator<Item = &'static str> {
    ENTRIES.iter().filter(|entry| is_tunable(entry)).map(|entry| entry.appearance.name)
}

/// Returns whether the method, with default options, has an operator that can be fine-tuned.
fn is_tunable(entry: &RecoveryEntry) -> bool {
    entry.build(&Options::new()).is_ok_and(|recovery| recovery.is_tunable())
}

/// Builds a recovery. Returns the recovery, its complete options as used in cache keys, and the fine-tuning settings,
/// if any.
///
/// # Errors
/// Fails in the same cases as [`build`], or if the fine-tuning settings are invalid.
pub fn build_resolved(name: &str, options: &Options) -> Result<(Box<dyn Recovery>, Options, Option<Finetune>)> {
    let recovery = build(name, options)?;
    let training = parse_finetune(name, options)?;
    let mut resolved = options::lookup("recovery", name, ENTRIES)?.resolve(&without_finetune(options))?;
    if let Some(training) = &training {
        resolved.insert(FINETUNE.to_owned(), Value::Object(options::to_options(name, training)?));
    }
    Ok((recovery, resolved, training))
}

/// Returns the spans of a cut. Each span gets an operator.
pub fn spans(recovery: &dyn Recovery, removed: &Cut) -> Vec<Span> {
    if recovery.replaces_sublayers() {
        return removed.iter().map(|(layer, sublayer)| Span::sublayer(layer, sublayer)).collect();
    }
    let regions = removed.regions().into_iter().map(|(start, end)| Span::layers(start, end));
    regions.flat_map(|region| recovery.spans(region)).collect()
}

/// Returns the version of a recovery's results, or 1 if the name is unknown.
pub fn version(name: &str) -> u32 {
    options::find(name, ENTRIES).map_or(1, |entry| entry.version)
}

/// Returns the deviations of the official code from the published formulas that apply to `case`.
pub fn deviations(name: &str, case: &PruneCase<'_>) -> Vec<&'static str> {
    options::deviations(name, ENTRIES, case)
}

/// Returns the names of the recoveries that accept cuts of sublayers.
pub fn sublayer_methods() -> impl Iterator<Item = &'static str> {
    ENTRIES.iter().filter(|entry| accepts_sublayers(entry)).map(|entry| entry.appearance.name)
}

fn accepts_sublayers(entry: &RecoveryEntry) -> bool {
    entry.build(&Options::new()).is_ok_and(|recovery| recovery.replaces_sublayers() || !recovery.is_repairing())
}

/// Returns descriptions of all recoveries and their options, for the grid schema and the command-line help.
pub fn descriptions() -> Vec<MethodDescription> {
    ENTRIES.iter().map(describe).collect()
}

fn describe(entry: &RecoveryEntry) -> MethodDescription {
    let mut description = entry.description();
    if is_tunable(entry) {
        description.options["properties"][FINETUNE] = options::schema::<Finetune>();
    }
    description
}

/// Returns the label and style of a recovery by its name in tables, such as `ghosted` or `ghosted:svd`.
pub fn appearance(name: &str) -> Option<Appearance> {
    options::appearance(name, ENTRIES)
}

/// Returns the label of the Ghosted Layers paper for a recovery. An unknown name is returned unchanged.
pub fn label(name: &str) -> &str {
    appearance(name).map_or(name, |appearance| appearance.label)
}

/// Returns the label used in tables. Words of the name that do not identify a variant follow the label in parentheses.
pub fn heading(name: &str) -> String {
    match options::further(name, ENTRIES) {
        Some(word) => format!("{} ({word})", label(name)),
        None => label(name).to_owned(),
    }
}

/// Returns whether a recovery is the method that the paper proposes.
pub fn is_ours(name: &str) -> bool {
    appearance(name).is_some_and(|appearance| appearance.ours)
}

/// Returns the name, label and style of the method that the paper proposes.
pub fn paper_appearance() -> Option<Appearance> {
    ENTRIES.iter().map(|entry| entry.appearance).find(|appearance| appearance.ours)
}

/// Returns the suffix that an option value adds to names in tables: the word for the variant, or the value itself.
pub fn word<'a>(name: &str, option: &str, value: &'a str) -> &'a str {
    options::find(name, ENTRIES).and_then(|entry| entry.variant(option, value)).map_or(value, |variant| variant.word)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variant_has_its_own_label_and_the_style_of_its_method() {
        assert_eq!((label("ghosted"), label("ghosted:svd")), ("Ghost Layer (Ours)", "SVD-based"));
        assert_eq!(word("ghosted", "solver", "normal"), "solve");
        assert_eq!(label("ghosted:solve"), "Solver-based");
        assert_eq!(appearance("ghosted:svd").unwrap().style, appearance("ghosted").unwrap().style);
        assert!(is_ours("ghosted:svd") && !is_ours("replaceme-ls"));
    }

    #[test]
    fn known_names_are_labeled_and_unknown_ones_are_unchanged() {
        assert_eq!((label("my-method"), label("replaceme-cos:3")), ("my-method", "ReplaceMe (Cos)"));
        assert_eq!(word("replaceme-cos", "epochs", "3"), "3");
        assert!(!is_ours("my-method"));
        assert_eq!((heading("rank:8"), heading("rank")), ("Ghost Layer, low rank (8)".into(), label("rank").into()));
        assert_eq!((heading("ghosted:svd"), heading("my:own")), ("SVD-based".into(), "my:own".into()));
        assert_eq!(heading("ghosted:normed:bias"), "Ghost Layer, normed (bias)");
    }

    #[test]
    fn methods_not_in_the_paper_are_marked() {
        let not_in_paper = descriptions().into_iter().filter(|method| method.beyond).map(|method| method.name);
        assert_eq!(not_in_paper.collect::<Vec<_>>(), ["affine", "mean", "rank", "sequential", "nbl", "merge"]);
    }

    #[test]
    fn only_methods_trained_in_the_paper_are_tunable() {
        let finetune = |value: Value| parse_finetune("ghosted", &option_map(&json!({"finetune": value})));
        assert_eq!(tunable_methods().collect::<Vec<_>>(), ["linearpatch-diag", "linearpatch-rotate", "ghosted"]);
        let found = finetune(json!({"sequences": 8, "length": 16})).unwrap();
        assert_eq!(found, Some(Finetune { sequences: 8, length: 16, seed: 0 }));
        for wrong in
            [json!({"sequences": 0, "length": 16}), json!({"sequences": 8, "length": 1}), json!({"steps": 3}), json!(8)]
        {
            assert!(finetune(wrong.clone()).is_err(), "{wrong}");
        }
        for (name, more) in
            [("none", json!({})), ("replaceme-ls", json!({})), ("ghosted", json!({"boundary": "layer"}))]
        {
            let mut option_map = option_map(&more);
            option_map.insert(FINETUNE.to_owned(), json!({"sequences": 8, "length": 16}));
            let message = build(name, &option_map).err().unwrap().to_string();
            assert!(message.contains("does not support fine-tuning"), "{name}: {message}");
        }
        let [resolved, plain] = [json!({"finetune": {"length": 16, "sequences": 8}}), json!({})]
            .map(|value| build_resolved("ghosted", &option_map(&value)).unwrap().1);
        assert_eq!(resolved[FINETUNE], json!({"sequences": 8, "length": 16, "seed": 0}));
        assert_eq!(without_finetune(&resolved), plain);
    }

    fn option_map(value: &Value) -> serde_json::Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn exactly_one_method_is_marked_as_proposed_by_the_paper() {
        assert_eq!(ENTRIES.iter().filter(|entry| entry.appearance.ours).count(), 1);
        assert_eq!(paper_appearance().unwrap().name, "ghosted");
    }

    #[test]
    fn every_recovery_variant_can_be_built() {
        for entry in ENTRIES {
            for variant in entry.variants {
                let options = serde_json::json!({ variant.option: variant.value }).as_object().unwrap().clone();
                assert!(entry.build(&options).is_ok(), "{variant:?}");
            }
        }
    }
}

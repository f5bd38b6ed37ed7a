//! Patterns in `exclude`, which remove cells from the product of the axes.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::calibration::Calibration;
use super::cell::{self, AXES, Cell, Method, MethodAxis, MethodEntry, WrittenMethod};
use super::depth::{self, Depth, DepthEntry};
use super::one_or_many::{self, OneOrMany};
use super::validate::{EntryPosition, distinct};
use super::yaml::{Positioned, YamlPosition};
use crate::criterion::Criterion;
use crate::error::{Error, Result};
use crate::recovery::Recovery;

/// Pattern that matches cells with one of the values of every key.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PatternEntry {
    /// Models. A pattern with only this key also excludes their dense cells.
    pub(super) backbone: OneOrMany<String>,
    /// Criteria. A name alone matches any options, and an entry with options matches only these.
    #[schemars(schema_with = "one_or_many::criteria_schema")]
    pub(super) criterion: OneOrMany<MethodEntry>,
    /// Number of removed layers.
    pub(super) depth: OneOrMany<DepthEntry>,
    /// Recoveries. A name alone matches any options, and an entry with options matches only these.
    #[schemars(schema_with = "one_or_many::recoveries_schema")]
    pub(super) recovery: OneOrMany<MethodEntry>,
    /// Calibrations that match the given keys.
    pub(super) calibration: OneOrMany<CalibrationPattern>,
}

/// Filter for calibrations. Each given key lists the accepted values. Omitted keys match any value.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CalibrationPattern {
    /// Names of corpora.
    pub(super) corpus: OneOrMany<String>,
    /// Number of sequences.
    #[schemars(schema_with = "one_or_many::counts_schema")]
    pub(super) sequences: OneOrMany<usize>,
    /// Tokens per sequence.
    #[schemars(schema_with = "one_or_many::lengths_schema")]
    pub(super) length: OneOrMany<usize>,
    /// Seed for drawing sequences.
    pub(super) seed: OneOrMany<u64>,
    /// Number of sequences from which an operator is computed.
    #[schemars(schema_with = "one_or_many::counts_schema")]
    pub(super) operator_sequences: OneOrMany<usize>,
}

impl CalibrationPattern {
    /// Rejects a pattern with no keys, or with a key whose list is empty.
    pub(super) fn check(&self, at: &EntryPosition<'_>) -> Result<()> {
        const KEYS: [&str; 5] = ["corpus", "sequences", "length", "seed", "operator_sequences"];
        let CalibrationPattern { corpus, sequences, length, seed, operator_sequences } = self;
        let lengths = [
            value_count(corpus),
            value_count(sequences),
            value_count(length),
            value_count(seed),
            value_count(operator_sequences),
        ];
        check_values(
            at,
            &KEYS,
            &lengths,
            "a calibration in a pattern",
            "remove the key `calibration` to match all calibrations",
        )
    }

    pub(super) fn matches(&self, calibration: &Calibration) -> bool {
        fn has<T: PartialEq>(values: &OneOrMany<T>, value: &T) -> bool {
            values.is_empty() || values.contains(value)
        }
        has(&self.corpus, &calibration.corpus)
            && has(&self.sequences, &calibration.sequences)
            && has(&self.length, &calibration.length)
            && has(&self.seed, &calibration.seed)
            && has(&self.operator_sequences, &calibration.operator_sequences)
    }
}

/// Formats a pattern for calibrations, such as `corpus: c4, sequences: 16 or 32`.
impl fmt::Display for CalibrationPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn format_values<T: ToString>(key: &str, values: &OneOrMany<T>) -> Option<String> {
            let values: Vec<String> = values.iter().map(ToString::to_string).collect();
            if values.is_empty() { None } else { Some(format!("{key}: {}", values.join(" or "))) }
        }
        let CalibrationPattern { corpus, sequences, length, seed, operator_sequences } = self;
        let parts = [
            format_values("corpus", corpus),
            format_values("sequences", sequences),
            format_values("length", length),
            format_values("seed", seed),
            format_values("operator_sequences", operator_sequences),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// Accepted values for some of the axes. A cell matches if it has an accepted value on each of these axes.
#[derive(Debug)]
pub(super) struct CellPattern {
    position: YamlPosition,
    backbone: Vec<Positioned<String>>,
    criterion: Vec<Positioned<WrittenMethod>>,
    depth: Vec<Positioned<Depth>>,
    recovery: Vec<Positioned<WrittenMethod>>,
    calibration: Vec<Positioned<CalibrationPattern>>,
}

impl CellPattern {
    /// Reads the `exclude` entry at `at`.
    pub(super) fn read(at: &EntryPosition<'_>, entry: &PatternEntry) -> Result<Self> {
        let PatternEntry { backbone, criterion, depth, recovery, calibration } = entry;
        let lengths = [
            value_count(backbone),
            value_count(criterion),
            value_count(depth),
            value_count(recovery),
            value_count(calibration),
        ];
        let hint = "name the cells to exclude: an empty pattern matches every cell";
        check_values(at, &AXES, &lengths, "a pattern", hint)?;
        let names = backbone.iter().enumerate().map(|(i, name)| at.key("backbone").item(i).with_position(name.clone()));
        let calibration = calibration.iter().enumerate().map(|(i, entry)| {
            let at = at.key("calibration").item(i);
            entry.check(&at)?;
            Ok(at.with_position(entry.clone()))
        });
        Ok(Self {
            position: at.position(),
            backbone: names.collect(),
            criterion: cell::expand_methods::<dyn Criterion>(at, criterion)?,
            depth: depth.read_with(|depths| depth::read_depths(&at.key("depth"), depths))?.unwrap_or_default(),
            recovery: cell::expand_methods::<dyn Recovery>(at, recovery)?,
            calibration: calibration.collect::<Result<_>>()?,
        })
    }
}

/// Returns the number of values of a key, or `None` if the key is missing.
fn value_count<T>(values: &OneOrMany<T>) -> Option<usize> {
    values.explicit_values().map(<[T]>::len)
}

/// Rejects a map with none of the keys, or with a key whose list is empty.
fn check_values(
    at: &EntryPosition<'_>,
    keys: &[&'static str],
    lengths: &[Option<usize>],
    subject: &str,
    hint: &str,
) -> Result<()> {
    if lengths.iter().all(Option::is_none) {
        return Err(at
            .error(format!("{subject} is empty"))
            .expected(format!("one or more of {}", keys.join(", ")))
            .found("an empty map")
            .hint(hint));
    }
    let Some((key, _)) = keys.iter().zip(lengths).find(|(_, length)| **length == Some(0)) else { return Ok(()) };
    let at = at.key(key);
    Err(at
        .error(format!("`{}` is empty", at.name()))
        .expected("at least one value")
        .found("an empty list")
        .hint("remove the key to match all values of its axis"))
}

impl CellPattern {
    /// Returns whether a cell matches. `layers` is the layer count of its backbone. A dense cell matches only if the
    /// pattern has no key other than `backbone`.
    pub(super) fn matches(&self, cell: &Cell, layers: usize) -> bool {
        let backbone = self.backbone.is_empty() || self.backbone.iter().any(|name| name.value == cell.backbone);
        let (Some(criterion), Some(recovery), Some(calibration)) = (&cell.criterion, &cell.recovery, &cell.calibration)
        else {
            let Self { criterion, depth, recovery, calibration, .. } = self;
            let names_more =
                [criterion.len(), depth.len(), recovery.len(), calibration.len()].iter().any(|count| *count > 0);
            return backbone && !names_more;
        };
        fn matches_any<M: MethodAxis + ?Sized>(patterns: &[Positioned<WrittenMethod>], method: &Method<M>) -> bool {
            patterns.is_empty() || patterns.iter().any(|pattern| matches_method(&pattern.value, method))
        }
        backbone
            && matches_any(&self.criterion, criterion)
            && (self.depth.is_empty() || self.depth.iter().any(|depth| depth.value.resolve(layers) == cell.depth))
            && matches_any(&self.recovery, recovery)
            && (self.calibration.is_empty()
                || self.calibration.iter().any(|pattern| pattern.value.matches(calibration)))
    }

    /// Rejects a pattern with a value or combination of values that no cell in the product has. Such a pattern usually
    /// contains a typo, and the user may not notice that no cells were excluded.
    pub(super) fn check(&self, product: &[(&Cell, usize)]) -> Result<()> {
        let unmatched_error = |key: &str, position: &YamlPosition, label: String, known: Vec<String>| {
            let expected = match known.as_slice() {
                [] => format!("a pattern without `{key}`: the grid has only dense cells"),
                known => format!("one of {}", known.join(", ")),
            };
            let error = Error::bad_input(format!("`{key}` in a pattern matches no cell"))
                .at(position.to_string())
                .expected(expected)
                .found(format!("`{label}`"));
            let error = error.hint("remove the value; `exclude` applies to the product of the axes, before `include`");
            match known.contains(&label) {
                true => error,
                false => error.suggest(&label, known.iter().map(String::as_str)),
            }
        };
        let pruned = || product.iter().filter(|(cell, _)| !cell.is_dense());
        for Positioned { value, position } in &self.backbone {
            if !product.iter().any(|(cell, _)| cell.backbone == *value) {
                let known = distinct(product.iter().map(|(cell, _)| &cell.backbone));
                return Err(unmatched_error("backbone", position, value.clone(), known));
            }
        }
        check_methods(
            &self.criterion,
            &distinct(pruned().filter_map(|(cell, _)| cell.criterion.as_ref())),
            unmatched_error,
        )?;
        check_methods(
            &self.recovery,
            &distinct(pruned().filter_map(|(cell, _)| cell.recovery.as_ref())),
            unmatched_error,
        )?;
        for Positioned { value, position } in &self.depth {
            if !pruned().any(|(cell, layers)| cell.depth == value.resolve(*layers)) {
                let known = distinct(pruned().map(|(cell, _)| &cell.depth));
                let known = known.iter().map(ToString::to_string).collect();
                return Err(unmatched_error("depth", position, value.to_string(), known));
            }
        }
        let calibrations = distinct(pruned().filter_map(|(cell, _)| cell.calibration.as_ref()));
        for Positioned { value, position } in &self.calibration {
            if !calibrations.iter().any(|calibration| value.matches(calibration)) {
                let known = calibrations.iter().map(ToString::to_string).collect();
                return Err(unmatched_error("calibration", position, value.to_string(), known));
            }
        }
        if product.iter().any(|(cell, layers)| self.matches(cell, *layers)) {
            return Ok(());
        }
        Err(Error::bad_input("a pattern matches no cell")
            .at(self.position.to_string())
            .expected("values that occur together in a cell of the product")
            .found("a combination of values that does not occur")
            .hint("remove the pattern; `exclude` applies to the product of the axes, before `include`"))
    }

    /// Creates the error for patterns that exclude all cells. It is reported at this pattern.
    pub(super) fn no_cells_left_error(&self) -> Error {
        Error::bad_input("all cells are excluded")
            .at(self.position.to_string())
            .expected("at least one backbone that no pattern excludes")
            .found("patterns that exclude every backbone")
            .hint("keep at least one backbone; a pattern with only `backbone` also excludes its dense cell")
    }
}

/// Rejects a pattern for a criterion or recovery that matches none of the `known` methods, those of the product.
fn check_methods<M: MethodAxis + ?Sized>(
    patterns: &[Positioned<WrittenMethod>],
    known: &[Method<M>],
    unmatched_error: impl Fn(&str, &YamlPosition, String, Vec<String>) -> Error,
) -> Result<()> {
    match patterns.iter().find(|pattern| !known.iter().any(|method| matches_method(&pattern.value, method))) {
        None => Ok(()),
        Some(Positioned { value, position }) => {
            Err(unmatched_error(M::KEY, position, value.to_string(), known.iter().map(ToString::to_string).collect()))
        }
    }
}

/// Returns whether a pattern matches a method. The names must be equal. Each option in the pattern must equal either
/// the written or the resolved option of the method.
fn matches_method<M: MethodAxis + ?Sized>(pattern: &WrittenMethod, method: &Method<M>) -> bool {
    pattern.name == method.name
        && pattern.options.iter().all(|(key, value)| {
            let known = [&method.options, &method.resolved].into_iter().filter_map(|options| options.get(key));
            known.into_iter().any(|known| values_equal(value, known))
        })
}

/// Returns whether two JSON values are equal. `1` and `1.0` count as equal.
fn values_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a)),
        _ => a == b,
    }
}

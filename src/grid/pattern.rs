//! `exclude`: which cells of the product a pattern means.

use serde_json::Value;

use super::axes::{Role, name};
use super::check::{Checker, Placed};
use super::depth::Depth;
use super::many::Many;
use super::node::Step;
use super::node::Step::{Item, Key};
use super::schema::{CalibrationPattern, PatternEntry};
use super::{Calibration, Cell, Method, expand};
use crate::error::{Error, Result, nearest};

/// The keys of a pattern, which are the axes.
const KEYS: [&str; 5] = ["backbone", "criterion", "depth", "recovery", "calibration"];

/// A cell is meant where it has one of the values of each axis that is not empty here.
pub(super) struct Pattern {
    place: String,
    backbone: Vec<Placed<String>>,
    criterion: Vec<Placed<Method>>,
    depth: Vec<Placed<Depth>>,
    recovery: Vec<Placed<Method>>,
    calibration: Vec<Placed<CalibrationPattern>>,
}

impl Checker<'_> {
    pub(super) fn pattern(&self, i: usize, entry: &PatternEntry) -> Result<Pattern> {
        let steps = [Key("exclude"), Item(i)];
        let at = |key| [steps[0], steps[1], Key(key)];
        if !KEYS.iter().any(|key| self.has(&steps, key)) {
            return Err(self
                .bad("a pattern is empty", &steps)
                .expected(format!("one or more of {}", KEYS.join(", ")))
                .found("an empty map")
                .hint("it would mean every cell; name what is to be left out"));
        }
        let lengths = [
            entry.backbone.len(),
            entry.criterion.len(),
            entry.depth.len(),
            entry.recovery.len(),
            entry.calibration.len(),
        ];
        for (key, length) in KEYS.into_iter().zip(lengths) {
            if length == 0 && self.has(&steps, key) {
                return Err(self.no_values(&at(key)));
            }
        }
        let place = |key: &'static str, i: usize| self.place(&[&at(key)[..], &[Item(i)]].concat());
        let methods = |key, entries, role| self.expand_methods(&at(key), entries, role);
        let mut calibration = Vec::new();
        for (i, entry) in entry.calibration.iter().enumerate() {
            self.calibration_pattern(&[&at("calibration")[..], &[Item(i)]].concat(), entry)?;
            calibration.push(Placed { value: entry.clone(), place: place("calibration", i) });
        }
        let backbone = entry.backbone.iter().enumerate();
        Ok(Pattern {
            place: self.place(&steps),
            backbone: backbone.map(|(i, name)| Placed { value: name.clone(), place: place("backbone", i) }).collect(),
            criterion: methods("criterion", &entry.criterion, Role::Criterion)?,
            depth: if entry.depth.is_empty() { Vec::new() } else { self.depths(&at("depth"), &entry.depth)? },
            recovery: methods("recovery", &entry.recovery, Role::Recovery)?,
            calibration,
        })
    }

    fn calibration_pattern(&self, steps: &[Step<'_>], entry: &CalibrationPattern) -> Result<()> {
        let CalibrationPattern { corpus, sequences, length, seed, operator_sequences } = entry;
        let lengths = [
            ("corpus", corpus.len()),
            ("sequences", sequences.len()),
            ("length", length.len()),
            ("seed", seed.len()),
            ("operator_sequences", operator_sequences.len()),
        ];
        if lengths.iter().all(|(key, _)| !self.has(steps, key)) {
            return Err(self
                .bad("a calibration in a pattern is empty", steps)
                .expected("one or more of corpus, sequences, length, seed, operator_sequences")
                .found("an empty map")
                .hint("leave the key `calibration` out to mean all of them"));
        }
        match lengths.iter().find(|(key, length)| *length == 0 && self.has(steps, key)) {
            Some((key, _)) => Err(self.no_values(&[steps, &[Key(key)]].concat())),
            None => Ok(()),
        }
    }

    fn no_values(&self, steps: &[Step<'_>]) -> Error {
        self.bad(format!("`{}` is empty", name(steps)), steps)
            .expected("at least one value")
            .found("an empty list")
            .hint("leave the key out to mean all of its axis")
    }
}

impl Pattern {
    /// Whether a cell is meant, on a backbone of so many layers. The dense cell goes only with its whole backbone.
    pub(super) fn matches(&self, cell: &Cell, layers: usize) -> bool {
        let backbone = self.backbone.is_empty() || self.backbone.iter().any(|name| name.value == cell.backbone);
        let (Some(criterion), Some(recovery), Some(calibration)) = (&cell.criterion, &cell.recovery, &cell.calibration)
        else {
            return backbone && self.names_only_backbones();
        };
        let method = |patterns: &[Placed<Method>], method: &Method| {
            patterns.is_empty() || patterns.iter().any(|pattern| means(&pattern.value, method))
        };
        backbone
            && method(&self.criterion, criterion)
            && (self.depth.is_empty() || self.depth.iter().any(|depth| depth.value.of(layers) == cell.depth))
            && method(&self.recovery, recovery)
            && (self.calibration.is_empty()
                || self.calibration.iter().any(|pattern| means_calibration(&pattern.value, calibration)))
    }

    fn names_only_backbones(&self) -> bool {
        self.criterion.is_empty() && self.depth.is_empty() && self.recovery.is_empty() && self.calibration.is_empty()
    }

    /// Refuses a value that no cell of the product has, and a combination of values that none has: mostly it is a typing
    /// error, and a table with cells too many would not show it.
    pub(super) fn check(&self, product: &[(&Cell, usize)]) -> Result<()> {
        let missing = |key: &str, place: &str, shown: String, known: Vec<String>| {
            let error = Error::bad_input(format!("`{key}` in a pattern matches no cell"))
                .at(place)
                .expected(format!("one of {}", known.join(", ")))
                .found(format!("`{shown}`"));
            match nearest(&shown, known.iter().map(String::as_str)).filter(|near| **near != *shown) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error.hint("`exclude` is about the product of the axes, before `include`"),
            }
        };
        let pruned = || product.iter().filter(|(cell, _)| !cell.is_dense());
        let shown = |values: Vec<String>| expand::distinct(values.iter());
        for Placed { value, place } in &self.backbone {
            if !product.iter().any(|(cell, _)| cell.backbone == *value) {
                let known = shown(product.iter().map(|(cell, _)| cell.backbone.clone()).collect());
                return Err(missing("backbone", place, value.clone(), known));
            }
        }
        for (role, patterns) in [(Role::Criterion, &self.criterion), (Role::Recovery, &self.recovery)] {
            let of = |cell: &'_ Cell| match role {
                Role::Criterion => cell.criterion.clone(),
                Role::Recovery => cell.recovery.clone(),
            };
            let known: Vec<Method> =
                expand::distinct(pruned().filter_map(|(cell, _)| of(cell)).collect::<Vec<_>>().iter());
            for Placed { value, place } in patterns {
                if !known.iter().any(|method| means(value, method)) {
                    let known = known.iter().map(ToString::to_string).collect();
                    return Err(missing(role.key(), place, value.to_string(), known));
                }
            }
        }
        for Placed { value, place } in &self.depth {
            if !pruned().any(|(cell, layers)| cell.depth == value.of(*layers)) {
                let known = shown(pruned().map(|(cell, _)| cell.depth.to_string()).collect());
                return Err(missing("depth", place, value.to_string(), known));
            }
        }
        let calibrations = expand::distinct(pruned().filter_map(|(cell, _)| cell.calibration.as_ref()));
        for Placed { value, place } in &self.calibration {
            if !calibrations.iter().any(|calibration| means_calibration(value, calibration)) {
                let known = calibrations.iter().map(ToString::to_string).collect();
                return Err(missing("calibration", place, describe(value), known));
            }
        }
        if product.iter().any(|(cell, layers)| self.matches(cell, *layers)) {
            return Ok(());
        }
        Err(Error::bad_input("a pattern matches no cell")
            .at(self.place.clone())
            .expected("values that a cell of the product has together")
            .found("values that are there, but never together")
            .hint("remove the pattern; `exclude` is about the product of the axes, before `include`"))
    }
}

/// By its name a method is meant with any options; an option that is given has to be equal, written out or not.
fn means(pattern: &Method, method: &Method) -> bool {
    let has = |(key, value): (&String, &Value)| {
        let known = [&method.options, &method.resolved].into_iter().filter_map(|options| options.get(key));
        known.into_iter().any(|known| equal(value, known))
    };
    pattern.name == method.name && pattern.options.iter().all(has)
}

/// `1` and `1.0` are the same number, however they are written.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a)),
        _ => a == b,
    }
}

fn means_calibration(pattern: &CalibrationPattern, calibration: &Calibration) -> bool {
    fn has<T: PartialEq>(values: &Many<T>, value: &T) -> bool {
        values.is_empty() || values.contains(value)
    }
    has(&pattern.corpus, &calibration.corpus)
        && has(&pattern.sequences, &calibration.sequences)
        && has(&pattern.length, &calibration.length)
        && has(&pattern.seed, &calibration.seed)
        && has(&pattern.operator_sequences, &calibration.operator_sequences)
}

/// `corpus: c4, sequences: 16 or 32`
fn describe(pattern: &CalibrationPattern) -> String {
    fn of<T: ToString>(key: &str, values: &Many<T>) -> Option<String> {
        let values: Vec<String> = values.iter().map(ToString::to_string).collect();
        if values.is_empty() { None } else { Some(format!("{key}: {}", values.join(" or "))) }
    }
    let CalibrationPattern { corpus, sequences, length, seed, operator_sequences } = pattern;
    let parts = [
        of("corpus", corpus),
        of("sequences", sequences),
        of("length", length),
        of("seed", seed),
        of("operator_sequences", operator_sequences),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

//! Numbers of one setting, and the queries that checks run on them.
//!
//! If a compared recovery has no number, the result is unknown. Numbers are rounded to the decimals printed in the
//! tables.

use std::cmp::Ordering;

use super::number::{ClaimCheck, Quantity, compare_approximately, format_short, order_sign};
use crate::latency::MAX_RELATIVE_DEVIATION;
use crate::metric::{Direction, Metric};
use crate::results::distinct;
use crate::results::number_record::{Condition, Record};

/// Records of one setting, or of a subset such as one depth.
#[derive(Debug, Clone)]
pub(super) struct ClaimSetting<'a> {
    records: Vec<&'a Record>,
    /// Records of the setting's backbone without pruning.
    dense: Vec<&'a Record>,
    /// Suffix that describes the selected subset, such as `, depth 11`.
    suffix: String,
}

impl<'a> ClaimSetting<'a> {
    pub(super) fn new(records: Vec<&'a Record>, dense: Vec<&'a Record>) -> Self {
        Self { records, dense, suffix: String::new() }
    }

    fn select(&self, name: &str, keeps: impl Fn(&Condition) -> bool) -> Self {
        let records = self.records.iter().copied().filter(|record| keeps(&record.condition)).collect();
        Self { records, dense: self.dense.clone(), suffix: format!("{}, {name}", self.suffix) }
    }

    pub(super) fn criterion(&self, name: &str) -> Self {
        self.select(name, |condition| condition.criterion == name)
    }

    pub(super) fn corpus(&self, name: &str) -> Self {
        self.select(name, |condition| condition.calibrated().0 == name)
    }

    /// Selects the records whose operators were computed from `count` sequences.
    pub(super) fn with_sequences(&self, count: usize) -> Self {
        self.select(&format!("{count} sequences"), |condition| {
            condition.calibrated().1 == Some(count.to_string().as_str())
        })
    }

    /// Selects the records with the fewest removed layers.
    pub(super) fn shallowest(&self) -> Self {
        self.at_depth(self.records.iter().map(|record| record.condition.depth).min())
    }

    /// Selects the records with the most removed layers.
    pub(super) fn deepest(&self) -> Self {
        self.at_depth(self.records.iter().map(|record| record.condition.depth).max())
    }

    fn at_depth(&self, depth: Option<usize>) -> Self {
        let depth = depth.unwrap_or_default();
        self.select(&format!("depth {depth}"), |condition| condition.depth == depth)
    }

    /// Compares the deepest cut with the shallowest one. The result is unknown if there is only one depth.
    pub(super) fn between_depths(&self, check: impl FnOnce(&Self, &Self) -> ClaimCheck) -> ClaimCheck {
        let shallow = self.shallowest();
        let deep = self.deepest();
        if shallow.suffix == deep.suffix {
            return ClaimCheck::unknown(format!("no second depth to compare{}", deep.suffix));
        }
        check(&deep, &shallow)
    }

    pub(super) fn value(&self, metric: &str, recovery: &str) -> Quantity {
        Quantity::new(
            self.read_value(metric, recovery)
                .map(|value| (value, format!("{} ({recovery}{})", format_short(value), self.suffix))),
        )
    }

    /// Returns the number of removed layers, or NaN if the setting has no records.
    pub(super) fn depth(&self) -> f64 {
        self.records.first().map_or(f64::NAN, |record| record.condition.depth as f64)
    }

    pub(super) fn dense_value(&self, metric: &str) -> Quantity {
        let record = self.dense.iter().find(|record| record.metric == metric && record.value.is_some()).copied();
        let read = record.ok_or_else(|| format!("{metric} has no value for the dense backbone"));
        let read = read.and_then(|record| usable_value(record, "dense"));
        Quantity::new(read.map(|value| (round_to_printed(metric, value), format!("{} (dense)", format_short(value)))))
    }

    /// Returns the metrics of a family, such as `prefill_ms` for every prompt, that have a value for at least one of
    /// the recoveries.
    pub(super) fn timed_metrics(&self, family: &str, recoveries: &[&str]) -> Vec<String> {
        let known = self
            .records
            .iter()
            .filter(|record| recoveries.contains(&record.condition.recovery.as_str()))
            .filter(|record| record.value.is_some());
        distinct(known.map(|record| &record.metric).filter(|id| is_in_family(family, id)))
    }

    /// Returns the combined standard deviation of two recoveries: the square root of the sum of their squares.
    pub(super) fn noise(&self, metric: &str, one: &str, other: &str) -> Quantity {
        let both = self.deviation(metric, one).and_then(|a| Ok(a.hypot(self.deviation(metric, other)?)));
        Quantity::new(both.map(|noise| (noise, format!("{} (noise of {one} and {other})", format_short(noise)))))
    }

    fn deviation(&self, metric: &str, name: &str) -> Result<f64, String> {
        let mut records = self.records.iter();
        let found = records.find(|record| record.metric == metric && record.condition.recovery == name);
        found
            .and_then(|record| record.error)
            .ok_or_else(|| format!("{metric} has no deviation for {name}{}", self.suffix))
    }

    pub(super) fn mean(&self, metric: &str, recoveries: &[&str]) -> Quantity {
        Quantity::new(self.read_values(metric, recoveries).map(|values| {
            let mean = values.iter().map(|(_, value)| value).sum::<f64>() / values.len() as f64;
            (mean, format!("{} (mean of {})", format_short(mean), values.len()))
        }))
    }

    pub(super) fn minimum(&self, metric: &str, recoveries: &[&str]) -> Quantity {
        Quantity::new(self.read_values(metric, recoveries).map(|values| {
            let (name, least) = best_value(|a, b| compare_approximately(b, a), &values).unwrap_or(("none", f64::NAN));
            (least, format!("{} ({name}, minimum of {})", format_short(least), values.len()))
        }))
    }

    /// Checks whether a recovery has the best value. Ties count as best.
    pub(super) fn best(&self, metric: &str, name: &str, rivals: &[&str]) -> ClaimCheck {
        self.check_best(metric, name, rivals).unwrap_or_else(ClaimCheck::unknown)
    }

    fn check_best(&self, metric: &str, name: &str, rivals: &[&str]) -> Result<ClaimCheck, String> {
        let better = value_order(metric)?;
        let ours = self.read_value(metric, name)?;
        let others = rivals.iter().filter(|rival| **rival != name);
        let known: Vec<(&str, f64)> =
            others.filter_map(|&rival| Some((rival, self.read_value(metric, rival).ok()?))).collect();
        let rival = best_value(better, &known);
        if let Some((rival, other)) = rival.filter(|(_, other)| better(*other, ours).is_gt()) {
            return Ok(ClaimCheck::from_verdict(false, self.format_comparison((rival, other), (name, ours))));
        }
        // No known rival is better, but a missing one could be, so report it as an error.
        self.read_values(metric, rivals)?;
        let rival = rival.ok_or_else(|| format!("{name} has no rival{}", self.suffix))?;
        Ok(ClaimCheck::from_verdict(true, self.format_comparison((name, ours), rival)))
    }

    /// Returns the lead of a recovery over its best rival, which is negative if the rival is better.
    pub(super) fn lead(&self, metric: &str, name: &str, rivals: &[&str]) -> Quantity {
        Quantity::new(self.compute_lead(metric, name, rivals))
    }

    fn compute_lead(&self, metric: &str, name: &str, rivals: &[&str]) -> Result<(f64, String), String> {
        let others: Vec<&str> = rivals.iter().copied().filter(|rival| *rival != name).collect();
        let better = value_order(metric)?;
        let ours = self.read_value(metric, name)?;
        let others = self.read_values(metric, &others)?;
        let (rival, best) = best_value(better, &others).ok_or_else(|| format!("{name} has no rival{}", self.suffix))?;
        let apart = (ours - best).abs();
        let lead = if better(best, ours).is_gt() { -apart } else { apart };
        Ok((
            lead,
            format!(
                "{} ({name} {} over {rival} {}{})",
                format_short(lead),
                format_short(ours),
                format_short(best),
                self.suffix
            ),
        ))
    }

    pub(super) fn rank(&self, metric: &str, name: &str, rivals: &[&str]) -> Quantity {
        Quantity::new(self.compute_rank(metric, name, rivals))
    }

    fn compute_rank(&self, metric: &str, name: &str, rivals: &[&str]) -> Result<(f64, String), String> {
        let better = value_order(metric)?;
        let ours = self.read_value(metric, name)?;
        let all = self.read_values(metric, rivals)?;
        let rank = 1 + all.iter().filter(|(_, other)| better(*other, ours).is_gt()).count();
        Ok((rank as f64, format!("{rank} (rank of {name} {} among {})", format_short(ours), all.len())))
    }

    /// Formats a comparison such as `ghosted 60.10 > replaceme-ls 59.45`.
    fn format_comparison(&self, (one, a): (&str, f64), (other, b): (&str, f64)) -> String {
        format!(
            "{one} {} {} {other} {}{}",
            format_short(a),
            order_sign(compare_approximately(a, b)),
            format_short(b),
            self.suffix
        )
    }

    /// Returns the values for all recoveries, or an error that names the first missing one.
    fn read_values<'n>(&self, metric: &str, names: &[&'n str]) -> Result<Vec<(&'n str, f64)>, String> {
        names.iter().map(|&name| Ok((name, self.read_value(metric, name)?))).collect()
    }

    /// Returns the value for a recovery. Fails unless there is exactly one record.
    fn read_value(&self, metric: &str, recovery: &str) -> Result<f64, String> {
        let found: Vec<&Record> = self
            .records
            .iter()
            .filter(|record| record.metric == metric && record.condition.recovery == recovery)
            .copied()
            .collect();
        let [record] = found.as_slice() else {
            return Err(ambiguous_record_error(&found, metric, &format!("{recovery}{}", self.suffix)));
        };
        match record.value.filter(|value| value.is_finite()) {
            Some(_) => {
                usable_value(record, &format!("{recovery}{}", self.suffix)).map(|value| round_to_printed(metric, value))
            }
            None => Err(format!("{metric} has no value for {recovery}{}", self.suffix)),
        }
    }
}

fn is_in_family(family: &str, id: &str) -> bool {
    Metric::find(id).is_ok_and(|metric| metric.family() == family)
}

/// Returns the value of a record (NaN if missing), or an error if the value is too noisy.
fn usable_value(record: &Record, method: &str) -> Result<f64, String> {
    let value = record.value.unwrap_or(f64::NAN);
    let error = record.error.unwrap_or_default();
    match record.noise() {
        None => Ok(value),
        Some(deviation) => Err(format!(
            "{NOISY}{} of {method}, {} ± {}, deviates by {:.0} % (limit: {:.0} %)",
            record.metric,
            format_short(value),
            format_short(error),
            100.0 * deviation,
            100.0 * MAX_RELATIVE_DEVIATION
        )),
    }
}

/// Prefix of messages that explain why a value is too noisy.
pub(super) const NOISY: &str = "noise: ";

/// Comparison function that returns `Greater` if the first value is better.
type ValueOrder = fn(f64, f64) -> Ordering;

/// Returns a function that orders values of a metric from worse to better.
fn value_order(metric: &str) -> Result<ValueOrder, String> {
    match Metric::find(metric).map(|metric| metric.direction) {
        Ok(Direction::Higher) => Ok(compare_approximately),
        Ok(Direction::Lower) => Ok(|a, b| compare_approximately(b, a)),
        Ok(Direction::Neither) => Err(format!("{metric} has no better direction")),
        Err(error) => Err(error.one_line()),
    }
}

/// Returns the best value. Ties go to the first one.
fn best_value<'n>(better: ValueOrder, values: &[(&'n str, f64)]) -> Option<(&'n str, f64)> {
    values.iter().copied().reduce(|best, other| if better(other.1, best.1).is_gt() { other } else { best })
}

/// Rounds a value to the decimals that the tables print for a metric.
fn round_to_printed(metric: &str, value: f64) -> f64 {
    Metric::find(metric).map_or(value, |metric| Metric::round_to_printed(value, metric.decimals))
}

/// Explains why there is not exactly one record. If there are several, the text says how they differ.
fn ambiguous_record_error(found: &[&Record], metric: &str, wanted: &str) -> String {
    type Field = fn(&Condition) -> String;
    const FIELDS: [(&str, Field); 6] = [
        ("backbone", |condition| condition.backbone.clone()),
        ("depth", |condition| condition.depth.to_string()),
        ("criterion", |condition| condition.criterion.clone()),
        ("fine-tuning", |condition| condition.finetuned.to_string()),
        ("calibration", |condition| condition.calibration.clone()),
        ("layers", |condition| condition.layers.to_string()),
    ];
    let Some(first) = found.first() else {
        return format!("{metric} has no value for {wanted}");
    };
    let fields: Vec<&str> = FIELDS
        .iter()
        .filter(|(_, field)| found.iter().any(|r| field(&r.condition) != field(&first.condition)))
        .map(|(name, _)| *name)
        .collect();
    let difference = if fields.is_empty() { String::new() } else { format!("; they differ in {}", fields.join(", ")) };
    format!("{metric} has {} values for {wanted}{difference}", found.len())
}

#[cfg(test)]
#[path = "setting_tests.rs"]
mod tests;

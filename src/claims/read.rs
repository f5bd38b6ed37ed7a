//! The functions of a check that read records: `value`, `best`, `mean`, `count`, `gap` and `rank`.

use std::cmp::Ordering;

use super::eval::{Outcome, Seen, order, sign};
use super::expr::{Accessor, Rival};
use super::filter::{Depths, Field};
use super::words::Sense;
use crate::record::Record;

/// The records that one check is evaluated on.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) records: Vec<&'a Record>,
    pub(super) depths: &'a Depths,
}

/// The number of a record; one that is not finite is as good as none.
fn number(record: &Record) -> Option<f64> {
    record.value.filter(|value| value.is_finite())
}

/// The recoveries (or whatever is compared), each with its number or without one, in the order of the records.
struct Standings(Vec<(String, Option<f64>)>);

impl Group<'_> {
    fn matching(&self, of: &Accessor) -> Vec<&Record> {
        let admits = |record: &Record| of.filters.iter().all(|filter| filter.admits(record, self.depths));
        self.records.iter().copied().filter(|record| record.metric == of.metric && admits(record)).collect()
    }

    /// The value of the one record that matches.
    pub(super) fn value(&self, of: &Accessor) -> Seen {
        let matching = self.matching(of);
        let [record] = matching.as_slice() else {
            return Err(not_one(&matching, &of.metric, &filters(of)));
        };
        let value = number(record).ok_or_else(|| format!("{} has no value for {}", of.metric, filters(of)))?;
        Ok((value, format!("{} ({})", short(value), filters(of))))
    }

    /// The values of all matching records, at least one; none of them may be missing.
    fn values(&self, of: &Accessor) -> Result<Vec<f64>, String> {
        let matching = self.matching(of);
        if matching.is_empty() {
            return Err(not_one(&matching, &of.metric, &filters(of)));
        }
        let values: Vec<f64> = matching.iter().filter_map(|record| number(record)).collect();
        match matching.len() - values.len() {
            0 => Ok(values),
            missing => Err(format!("{missing} of {} records have no {} ({})", matching.len(), of.metric, filters(of))),
        }
    }

    pub(super) fn mean(&self, of: &Accessor) -> Seen {
        let values = self.values(of)?;
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Ok((mean, format!("{} (mean of {}, {})", short(mean), values.len(), filters(of))))
    }

    pub(super) fn count(&self, of: &Accessor) -> Seen {
        let count = self.values(of)?.len();
        Ok((count as f64, format!("{count} (records, {})", filters(of))))
    }

    /// One number for each value of the field that is compared.
    fn standings(&self, of: &Accessor) -> Result<Standings, String> {
        let matching = self.matching(of);
        let mut names: Vec<String> = Vec::new();
        for record in &matching {
            let name = of.by.of(&record.condition);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut standings = Vec::with_capacity(names.len());
        for name in names {
            let same: Vec<&Record> = matching.iter().copied().filter(|r| of.by.of(&r.condition) == name).collect();
            let [record] = same.as_slice() else {
                return Err(not_one(&same, &of.metric, &name));
            };
            standings.push((name, number(record)));
        }
        if standings.is_empty() {
            return Err(not_one(&matching, &of.metric, &filters(of)));
        }
        Ok(Standings(standings))
    }

    /// Whether `name` has the best value, alone or with others.
    pub(super) fn is_best(&self, of: &Accessor, name: &str) -> (Outcome, String) {
        self.is_best_or(of, name).unwrap_or_else(|reason| (Outcome::Unknown, format!("unknown: {reason}")))
    }

    fn is_best_or(&self, of: &Accessor, name: &str) -> Result<(Outcome, String), String> {
        let standings = self.standings(of)?;
        let own = standings.of(name, of)?;
        let (rival, best) = standings.best_but(name, of)?;
        let (left, right) = pair(own, best);
        if better(of.sense, best, own) == Ordering::Greater {
            return Ok((Outcome::False, format!("{rival} {right} {} {name} {left}", sign(order(best, own)))));
        }
        // Not beaten so far: a missing number could still beat it.
        standings.whole(of)?;
        Ok((Outcome::True, format!("{name} {left} {} {rival} {right}", sign(order(own, best)))))
    }

    /// How much better `a` is than its rival.
    pub(super) fn gap(&self, of: &Accessor, a: &str, b: &Rival) -> Seen {
        let standings = self.standings(of)?;
        let own = standings.of(a, of)?;
        let (name, other) = match b {
            Rival::Named(name) => (name.as_str(), standings.of(name, of)?),
            Rival::Others => {
                standings.whole(of)?;
                standings.best_but(a, of)?
            }
        };
        let gap = if of.sense == Sense::Lower { other - own } else { own - other };
        let (left, right) = pair(own, other);
        let at = if of.filters.is_empty() { String::new() } else { format!(", {}", filters(of)) };
        Ok((gap, format!("{} ({a} {left} over {name} {right}{at})", short(gap))))
    }

    /// 1 and how many are better.
    pub(super) fn rank(&self, of: &Accessor, name: &str) -> Seen {
        let standings = self.standings(of)?;
        let own = standings.of(name, of)?;
        let values = standings.whole(of)?;
        if values.len() < 2 {
            return Err(alone(name, of));
        }
        let rank = 1 + values.iter().filter(|(_, other)| better(of.sense, *other, own) == Ordering::Greater).count();
        Ok((rank as f64, format!("{rank} (rank of {name} {} among {})", short(own), values.len())))
    }
}

impl Standings {
    /// The number of `name`.
    fn of(&self, name: &str, of: &Accessor) -> Result<f64, String> {
        match self.0.iter().find(|(known, _)| known == name) {
            Some((_, Some(value))) => Ok(*value),
            Some((_, None)) => Err(format!("{} has no value for {name}", of.metric)),
            None => Err(not_one(&[], &of.metric, name)),
        }
    }

    /// All numbers, or which of them are missing.
    fn whole(&self, of: &Accessor) -> Result<Vec<(&str, f64)>, String> {
        let missing: Vec<&str> = self.0.iter().filter(|(_, value)| value.is_none()).map(|(n, _)| n.as_str()).collect();
        if !missing.is_empty() {
            return Err(format!("{} has no value for {}", of.metric, missing.join(", ")));
        }
        Ok(self.0.iter().filter_map(|(name, value)| value.map(|value| (name.as_str(), value))).collect())
    }

    /// The best of the others that have a number; the first one of equals.
    fn best_but(&self, name: &str, of: &Accessor) -> Result<(&str, f64), String> {
        let others = self.0.iter().filter(|(other, _)| other != name);
        let best =
            others.filter_map(|(other, value)| value.map(|value| (other.as_str(), value))).reduce(|best, other| {
                if better(of.sense, other.1, best.1) == Ordering::Greater { other } else { best }
            });
        match best {
            Some(best) => Ok(best),
            // Either the others have no numbers, or there are no others.
            None => self.whole(of).and(Err(alone(name, of))),
        }
    }
}

/// `Greater` where `a` is better than `b`.
fn better(sense: Sense, a: f64, b: f64) -> Ordering {
    if sense == Sense::Lower { order(b, a) } else { order(a, b) }
}

/// Whether two numbers differ by rounding alone: by a part in 10⁹ of the larger one, or of 1.
pub(super) fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

/// Two decimals, as in the paper's tables; more of what is small.
pub(super) fn short(value: f64) -> String {
    if close(value, 0.0) {
        return "0.00".to_owned();
    }
    match value.abs() {
        size if size >= 0.1 => format!("{value:.2}"),
        size if size >= 0.000_01 => format!("{value:.5}").trim_end_matches('0').to_owned(),
        _ => format!("{value:.2e}"),
    }
}

/// Two numbers, with as many decimals as it takes to see that they differ.
fn pair(a: f64, b: f64) -> (String, String) {
    let plain = (short(a), short(b));
    if plain.0 != plain.1 || close(a, b) {
        return plain;
    }
    (3..=12).map(|places| (format!("{a:.places$}"), format!("{b:.places$}"))).find(|(a, b)| a != b).unwrap_or(plain)
}

/// The filters of an accessor, for people.
fn filters(of: &Accessor) -> String {
    if of.filters.is_empty() {
        return "all records".to_owned();
    }
    of.filters.iter().map(super::filter::Filter::shown).collect::<Vec<_>>().join(", ")
}

fn alone(name: &str, of: &Accessor) -> String {
    format!("there is no {} to compare {name} with in {}", of.by.name(), of.metric)
}

/// Why there is not exactly one record, and, where there are several, in which fields they differ.
fn not_one(matching: &[&Record], metric: &str, wanted: &str) -> String {
    let Some(first) = matching.first() else {
        return format!("no record of {metric} for {wanted}");
    };
    let differs = |field: &Field| matching.iter().any(|r| field.of(&r.condition) != field.of(&first.condition));
    let fields: Vec<&str> = Field::ALL.iter().filter(|field| differs(field)).map(|field| field.name()).collect();
    let difference = if fields.is_empty() { "nothing but the value".to_owned() } else { fields.join(", ") };
    format!("{} records of {metric} for {wanted} instead of one; they differ in {difference}", matching.len())
}

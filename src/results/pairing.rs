//! Which number of one run stands beside which of another: those of the same names and settings, less the settings that are
//! one within each run and differ between them. What several numbers of a run could stand for stands beside none.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Factors;
use super::factors::DEPTH;
use super::renamed::Renamed;
use super::stored::{StoredNumber, StoredResults};

/// What a number is called: backbone, criterion, recovery, whether it was trained, and the metric.
type Name = (String, String, String, bool, String);

/// The numbers of two runs, by their places in them.
#[derive(Debug, Default)]
pub(super) struct Pairing {
    pub pairs: Vec<(usize, usize)>,
    pub only_first: Vec<usize>,
    pub only_second: Vec<usize>,
    /// Numbers that several of one run could stand for, each group with the settings in which its members differ.
    pub coinciding: Vec<Coinciding>,
    /// Settings that are one within each run and differ between them, with what each run has.
    pub aside: BTreeMap<String, (Option<Value>, Option<Value>)>,
}

#[derive(Debug)]
pub(super) struct Coinciding {
    pub first: Vec<usize>,
    pub second: Vec<usize>,
    pub settings: Vec<String>,
}

/// A number by its name and its settings.
struct Subject {
    name: Name,
    settings: Factors,
}

pub(super) fn pairing(renamed: &Renamed, first: &StoredResults, second: &StoredResults) -> Pairing {
    let known = first.identified() && second.identified();
    let one: Vec<Option<Subject>> =
        first.numbers.iter().map(|number| subject(first, number, known)?.renamed(renamed)).collect();
    let two: Vec<Option<Subject>> = second.numbers.iter().map(|number| subject(second, number, known)).collect();
    let aside = constant_and_unlike(&one, &two);
    let key = |of: &Subject| {
        let kept = of.settings.iter().filter(|(name, _)| !aside.contains_key(*name));
        (of.name.clone(), kept.map(|(name, value)| (name.clone(), value.to_string())).collect::<Vec<_>>())
    };
    let mut places: BTreeMap<_, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (at, of) in one.iter().enumerate().filter_map(|(at, of)| Some((at, of.as_ref()?))) {
        places.entry(key(of)).or_default().0.push(at);
    }
    for (at, of) in two.iter().enumerate().filter_map(|(at, of)| Some((at, of.as_ref()?))) {
        places.entry(key(of)).or_default().1.push(at);
    }
    let mut found = Pairing::default();
    found.only_first.extend((0..one.len()).filter(|&at| one[at].is_none()));
    for (own, others) in places.into_values() {
        match (own.as_slice(), others.as_slice()) {
            ([at], [other]) => found.pairs.push((*at, *other)),
            (_, []) => found.only_first.extend(own),
            ([], _) => found.only_second.extend(others),
            _ => {
                let own_factors = own.iter().map(|&at| first.factors(&first.numbers[at]));
                let all: Vec<Factors> =
                    own_factors.chain(others.iter().map(|&at| second.factors(&second.numbers[at]))).collect();
                found.coinciding.push(Coinciding { first: own, second: others, settings: varying(&all) });
            }
        }
    }
    found.pairs.sort_unstable();
    found.only_first.sort_unstable();
    found.only_second.sort_unstable();
    found.coinciding.sort_by_key(|of| (of.first.clone(), of.second.clone()));
    // Told is what the paired numbers really differ in.
    let paired = |name: &String| {
        let has = |of: &Option<Subject>| of.as_ref().is_some_and(|of| of.settings.contains_key(name));
        found.pairs.iter().any(|&(at, other)| has(&one[at]) || has(&two[other]))
    };
    found.aside = aside.into_iter().filter(|(name, _)| paired(name)).collect();
    found
}

fn subject(run: &StoredResults, number: &StoredNumber, known: bool) -> Option<Subject> {
    let of = &number.record.condition;
    let metric = number.record.metric.clone();
    if !known {
        // All that a run by an older program says of a number.
        let calibration = if of.depth == 0 { String::new() } else { of.calibration.clone() };
        let settings = [(DEPTH, of.depth.into()), ("calibration", calibration.into())];
        let settings = settings.map(|(name, value): (&str, Value)| (name.to_owned(), value)).into();
        let name = (of.backbone.clone(), of.criterion.clone(), of.recovery.clone(), of.finetuned, metric);
        return Some(Subject { name, settings });
    }
    let mut settings = run.factors(number);
    let mut named = |name: &str, other: &str| match settings.remove(name) {
        Some(Value::String(text)) => text,
        _ => other.to_owned(),
    };
    let name = (
        named("backbone", &of.backbone),
        named("criterion", &of.criterion),
        named("recovery", &of.recovery),
        of.finetuned,
        metric,
    );
    // The dense backbone lacks no layers, whatever the others lack.
    if of.depth == 0 {
        settings.remove(DEPTH);
    }
    Some(Subject { name, settings })
}

impl Subject {
    /// As the second run calls it; none where the second run calls something else so.
    fn renamed(self, renamed: &Renamed) -> Option<Self> {
        let (backbone, criterion, recovery, finetuned, metric) = self.name;
        let called = renamed.metric(&metric)?;
        let prefix = format!("{metric}.");
        let settings = self.settings.into_iter().map(|(name, value)| {
            let name = name.strip_prefix(&prefix).map_or(name.clone(), |rest| format!("{called}.{rest}"));
            (name, renamed.value(&value))
        });
        let settings: Factors = settings.collect();
        let name = (renamed.name(&backbone)?, renamed.name(&criterion)?, renamed.name(&recovery)?, finetuned, called);
        Some(Self { name, settings })
    }
}

/// The settings that all numbers of a run that have them have alike, and that the runs have not alike.
fn constant_and_unlike(
    one: &[Option<Subject>],
    two: &[Option<Subject>],
) -> BTreeMap<String, (Option<Value>, Option<Value>)> {
    let (one, two) = (values(one), values(two));
    let names: BTreeSet<&String> = one.keys().chain(two.keys()).collect();
    let mut found = BTreeMap::new();
    for name in names {
        let (a, b) = (one.get(name), two.get(name));
        let constant = |of: Option<&Vec<Value>>| of.is_none_or(|values| values.len() == 1);
        if a != b && constant(a) && constant(b) {
            found.insert(name.clone(), (a.map(|of| of[0].clone()), b.map(|of| of[0].clone())));
        }
    }
    found
}

fn values(of: &[Option<Subject>]) -> BTreeMap<String, Vec<Value>> {
    let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (name, value) in of.iter().flatten().flat_map(|of| &of.settings) {
        let known = all.entry(name.clone()).or_default();
        if known.len() < 2 && !known.contains(value) {
            known.push(value.clone());
        }
    }
    all
}

/// The settings that some of these have otherwise than others.
fn varying(all: &[Factors]) -> Vec<String> {
    let names: BTreeSet<&String> = all.iter().flat_map(Factors::keys).collect();
    let varies = |name: &&String| all.windows(2).any(|pair| pair[0].get(*name) != pair[1].get(*name));
    names.into_iter().filter(varies).cloned().collect()
}

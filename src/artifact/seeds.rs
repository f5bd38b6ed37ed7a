//! Figure and notes for a table that aggregates over calibration seeds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::figure::{Axis, DotChart, Drawing, Figure, Plot, Series, Surroundings, Width};
use super::paper::backbone_label;
use crate::error::Result;
use crate::grid::TableEntry;
use crate::metric::{self, Metric};
use crate::model::Cut;
use crate::pipeline::exec::CellResult;
use crate::results::number_record::{DENSE, Record};
use crate::results::{ResultRow, Sample, distinct, group_by_key, mean};
use crate::{criterion, recovery};

/// Key of a cut (a set of removed layers): backbone, depth, number of layers and criterion.
type BackboneCut = (String, usize, usize, String);

/// Values of a method, keyed by seed.
type SeedValues = BTreeMap<u64, f64>;
type Methods = Vec<(String, SeedValues)>;

/// Values of all methods, grouped by cut.
struct SeedValuesByCut {
    metric: Metric,
    cuts: Vec<(BackboneCut, Methods)>,
}

impl SeedValuesByCut {
    /// Groups the values by cut, method and seed. Returns `None` if the values are not aggregated over seeds.
    fn new(table: &TableEntry, numbers: &[Arc<ResultRow>]) -> Option<Self> {
        let metric_id = [metric::ACCURACY.id.to_owned()].into_iter().filter(|id| table.metrics.contains(id));
        let metric_id = metric_id.chain(table.metrics.iter().cloned()).next()?;
        let pruned = numbers.iter().map(|number| &**number).filter(|number| number.record.condition.criterion != DENSE);
        let measured: Vec<&ResultRow> = pruned.filter(|number| number.metric.id == metric_id).collect();
        let metric = measured.first()?.metric.clone();
        let cuts = distinct(measured.iter().map(|number| backbone_cut(number)).collect::<Vec<_>>().iter());
        let cuts: Vec<_> = cuts.into_iter().map(|cut| (cut.clone(), values_by_method(&cut, &measured))).collect();
        cuts.iter().any(|(_, methods)| !methods.is_empty()).then_some(Self { metric, cuts })
    }
}

fn values_by_method(cut: &BackboneCut, measured: &[&ResultRow]) -> Methods {
    let cut_numbers = measured.iter().filter(|number| backbone_cut(number) == *cut);
    let values = cut_numbers.filter_map(|number| match &number.sample {
        Sample::Seeds(rows) => {
            let values = rows.iter().filter_map(|row| Some((row.seed(), row.valid_value()?)));
            Some((number.record.condition.recovery.clone(), values.collect()))
        }
        _ => None,
    });
    values.collect()
}

fn backbone_cut(number: &ResultRow) -> BackboneCut {
    let condition = &number.record.condition;
    (condition.backbone.clone(), condition.depth, condition.layers, condition.criterion.clone())
}

/// Draws one dot for each method and seed. Returns `None` if the values are not aggregated over seeds.
///
/// # Errors
/// Fails if the figure cannot be drawn.
pub(super) fn draw_seed_dots(
    title: &str,
    table: &TableEntry,
    numbers: &[Arc<ResultRow>],
    cells: &[CellResult],
) -> Result<Option<Drawing>> {
    let Some(SeedValuesByCut { metric, cuts }) = SeedValuesByCut::new(table, numbers) else { return Ok(None) };
    let changing = changing_cuts(numbers, cells);
    let methods = distinct(cuts.iter().flat_map(|(_, methods)| methods.iter().map(|(name, _)| name)));
    let several = distinct(cuts.iter().map(|((.., criterion), _)| criterion)).len() > 1;
    let around = Surroundings {
        title: format!("{title}: a dot for each calibration seed"),
        description: format!("{} under each seed of the calibration, in the order of the seeds.", metric.label),
        note: if changing.is_empty() { String::new() } else { CHANGING_CUT.to_owned() },
        width: Width::Page,
        ..Surroundings::default()
    };
    let plot = Plot::Dots(DotChart {
        axis: Axis { label: metric.label.clone(), ..Axis::default() },
        groups: cuts
            .iter()
            .map(|(cut, _)| {
                let (backbone, depth, layers, criterion) = cut;
                let criterion = if several { format!(" {}", criterion::label(criterion)) } else { String::new() };
                let mark = if changing.contains(cut) { " *" } else { "" };
                format!("{} {depth}/{layers}{criterion}{mark}", backbone_label(backbone))
            })
            .collect(),
        methods: methods
            .into_iter()
            .map(|method| Series {
                label: if method == recovery::NONE {
                    "No repair".to_owned()
                } else {
                    recovery::heading(&method).to_owned()
                },
                values: cuts.iter().map(|(_, all)| values_of_method(all, &method)).collect(),
                method,
            })
            .collect(),
    });
    Figure { around, plot }.draw().map(Some)
}

fn values_of_method(all: &Methods, method: &str) -> Vec<f64> {
    let found = all.iter().find(|(name, _)| name == method);
    found.map_or_else(Vec::new, |(_, values)| values.values().copied().collect())
}

const CHANGING_CUT: &str = "* The seed changes which layers are removed.";

/// Returns the cuts whose removed layers depend on the seed.
fn changing_cuts(numbers: &[Arc<ResultRow>], cells: &[CellResult]) -> BTreeSet<BackboneCut> {
    let mut changing = BTreeSet::new();
    for number in numbers {
        let Sample::Seeds(rows) = &number.sample else { continue };
        let cuts: BTreeSet<&Cut> = rows
            .iter()
            .filter_map(|row| cells.iter().find(|cell| cell.cell.to_string() == row.cell).map(|cell| &cell.removed))
            .collect();
        if cuts.len() > 1 {
            changing.insert(backbone_cut(number));
        }
    }
    changing
}

/// Formats one line per cut that compares the order of the methods with the paper. The line counts the pairs of methods
/// that are in the paper's order for every seed, in the reverse order for every seed, or in an order that depends on
/// the seed.
pub(super) fn order_notes(table: &TableEntry, numbers: &[Arc<ResultRow>], paper: &[Record]) -> Vec<String> {
    let Some(SeedValuesByCut { metric, cuts }) = SeedValuesByCut::new(table, numbers) else { return Vec::new() };
    cuts.iter().filter_map(|(cut, methods)| order_note(&metric, cut, methods, paper)).collect()
}

/// Formats the line for one cut. Returns `None` if no two methods can be compared.
fn order_note(metric: &Metric, cut: &BackboneCut, methods: &Methods, paper: &[Record]) -> Option<String> {
    let (backbone, depth, layers, criterion) = cut;
    let known: Vec<(&str, f64, &SeedValues)> = methods
        .iter()
        .filter_map(|(name, values)| Some((name.as_str(), paper_mean(paper, metric, criterion, name)?, values)))
        .collect();
    let mut same = 0;
    let mut other = 0;
    let mut changing = Vec::new();
    let mut pairs = 0;
    for (at, (one, one_paper, one_values)) in known.iter().enumerate() {
        for (two, two_paper, two_values) in &known[at + 1..] {
            let both = one_values.iter().filter_map(|(seed, value)| Some((value, two_values.get(seed)?)));
            let theirs = metric.is_better(*one_paper, *two_paper);
            let as_in_paper: Vec<Option<bool>> =
                both.map(|(a, b)| (a != b).then(|| metric.is_better(*a, *b) == theirs)).collect();
            match [true, false].map(|is_same| as_in_paper.iter().all(|value| *value == Some(is_same))) {
                // No seed has values for both methods.
                [true, true] => continue,
                [true, _] => same += 1,
                [_, true] => other += 1,
                _ => changing.push(format!("{} and {}", method_label(one, criterion), method_label(two, criterion))),
            }
            pairs += 1;
        }
    }
    let changes = match changing.as_slice() {
        [] => "none varies with the seed".to_owned(),
        [one] => format!("one varies with the seed ({one})"),
        several => format!("{} vary with the seed ({})", several.len(), several.join(", ")),
    };
    let firsts = format_first_counts(metric, methods, criterion);
    let noun = if pairs == 1 { "pair" } else { "pairs" };
    (pairs > 0).then(|| {
        format!(
            "{} {depth}/{layers}: of {pairs} {noun} of methods, {same} are ordered as in the paper for every seed, {other} \
             in reverse order for every seed, and {changes}. Best method: {firsts}.",
            backbone_label(backbone)
        )
    })
}

/// Returns the mean of the paper's values over all settings with this criterion and recovery.
fn paper_mean(paper: &[Record], metric: &Metric, criterion: &str, recovery: &str) -> Option<f64> {
    let selected = paper.iter().filter(|record| {
        record.metric == metric.id && record.condition.criterion == *criterion && record.condition.recovery == recovery
    });
    let values: Vec<f64> = selected.filter_map(|record| record.value).collect();
    mean(&values)
}

/// Returns the label of the recovery, or of the criterion if nothing is repaired.
fn method_label(recovery: &str, criterion: &str) -> String {
    match recovery {
        recovery::NONE => criterion::label(criterion).to_owned(),
        name => recovery::heading(name).to_owned(),
    }
}

/// Formats the number of seeds for which each method comes first, for example `Ghost Layer (Ours) for 5 of 5 seeds`.
fn format_first_counts(metric: &Metric, methods: &[(String, SeedValues)], criterion: &str) -> String {
    let seeds = distinct(methods.iter().flat_map(|(_, values)| values.keys()));
    let mut counts = group_by_key(seeds.iter().filter_map(|seed| {
        let known = methods.iter().filter_map(|(name, values)| Some((name.as_str(), *values.get(seed)?)));
        known.reduce(|best, other| if metric.is_better(other.1, best.1) { other } else { best })
    }));
    counts.sort_by_key(|(_, won)| std::cmp::Reverse(won.len()));
    let parts = counts.iter().map(|(name, won)| format!("{} for {}", method_label(name, criterion), won.len()));
    format!("{} of {} seeds", parts.collect::<Vec<_>>().join(", "), seeds.len())
}

//! Draws figures from the same numbers as the tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tradeoff::pareto;
use crate::artifact::figure::{
    Axis, BarChart, BarValue, Curves, DiagramRow, Drawing, Figure, LayerDiagram, Level, Line, Plot, Point, Scale,
    Series, Surroundings, Width,
};
use crate::artifact::paper::backbone_label;
use crate::error::{Error, Result};
use crate::grid::{Cell, Description, FigureEntry, FigureKind};
use crate::metric::{self, Metric};
use crate::pipeline::exec::{CellResult, GridOutcome};
use crate::results::record::{Condition, DENSE, Record};
use crate::results::{Measurement, distinct, settings};
use crate::{criterion, recovery};

/// Draws one figure per backbone.
fn each(backbones: &[String], figure: impl Fn(&String) -> Result<Figure>) -> Result<Vec<(String, Drawing)>> {
    let is_named = backbones.len() > 1;
    backbones
        .iter()
        .map(|backbone| {
            let name = if is_named { backbone.clone() } else { String::new() };
            Ok((name, figure(backbone)?.draw()?))
        })
        .collect()
}

/// Draws the training losses of each backbone.
///
/// # Errors
/// Fails if a figure cannot be drawn.
pub(super) fn losses(title: &str, outcome: &GridOutcome) -> Result<Vec<(String, Drawing)>> {
    let trained: Vec<&CellResult> = outcome.cells.iter().filter(|result| !result.training.is_empty()).collect();
    let backbones = distinct(trained.iter().map(|result| &result.cell.backbone));
    each(&backbones, |backbone| {
        let here = trained.iter().copied().filter(|result| result.cell.backbone == *backbone);
        let trained_here: Vec<&CellResult> = here.collect();
        let labels = trained_labels(&trained_here.iter().map(|result| &result.cell).collect::<Vec<_>>());
        let around = Surroundings {
            title: format!("{title}, loss of fine-tuning: {}", backbone_label(backbone)),
            description: "Divergence of the student from the teacher, the mean of the steps around each point."
                .to_owned(),
            heading: backbone_label(backbone).to_owned(),
            ..Surroundings::default()
        };
        let plot = Plot::Curves(Curves {
            x: Axis { label: "Step".into(), ..Axis::default() },
            y: Axis { label: "Loss (nats)".into(), ..Axis::default() },
            lines: trained_here
                .into_iter()
                .zip(labels)
                .map(|(result, label)| {
                    let block = result.training.len().div_ceil(LOSS_POINTS).max(1);
                    let method = recovery_of(&result.cell).to_owned();
                    Line {
                        label,
                        points: result
                            .training
                            .chunks(block)
                            .enumerate()
                            .map(|(at, steps)| loss_point(block, at, steps))
                            .collect(),
                        method,
                    }
                })
                .collect(),
            levels: Vec::new(),
        });
        Ok(Figure { around, plot })
    })
}

/// Averages the losses of several steps. The loss of a single step depends on its one sequence.
fn loss_point(block: usize, at: usize, steps: &[f64]) -> Point {
    Point {
        x: (at * block) as f64 + (steps.len() + 1) as f64 / 2.0,
        y: Some(steps.iter().sum::<f64>() / steps.len() as f64),
        error: None,
    }
}

fn recovery_of(cell: &Cell) -> &str {
    cell.recovery.as_ref().map_or("", |method| method.name.as_str())
}

/// Labels curves by recovery, and by differing settings where labels are equal.
fn trained_labels(cells: &[&Cell]) -> Vec<String> {
    let settings: Vec<_> = cells.iter().map(|cell| settings::of_cell(cell)).collect();
    let called: Vec<&str> = cells.iter().map(|cell| recovery_of(cell)).collect();
    called
        .iter()
        .zip(settings::besides(&called, &settings.iter().collect::<Vec<_>>()))
        .map(|(name, words)| {
            let name = format!("{} + FT", recovery::label(name));
            if words.is_empty() { name } else { format!("{name}, {words}") }
        })
        .collect()
}

fn two_in_one_place(one: &str, other: &str) -> Error {
    Error::bad_input("two grid cells have the same position and label in the figure")
        .expected("one cell per position and label")
        .found(format!("`{one}` and `{other}`"))
        .hint("leave one of the cells out, or name the option in the artifact's `named_options`")
}

/// Number of points of a loss curve, each the mean of several steps.
const LOSS_POINTS: usize = 16;

const ERROR_BARS: &str = "Error bars: ± 1 standard error. Points are offset horizontally for legibility.";
const FRONTIER: &str = "No other variant here is both smaller and better than one on the frontier. Where points coincide, the \
    last in the legend covers the others.";
const ABOVE_ONE: &str = "Above 1 a channel is worse than without a repair.";

fn ratios(errors: &[f64], baseline: &[f64]) -> Vec<f64> {
    errors.iter().zip(baseline).map(|(error, base)| error / base).collect()
}

/// Returns sorted values over their rank in percent.
fn sorted_points(mut values: Vec<f64>) -> Vec<Point> {
    values.sort_by(f64::total_cmp);
    let share = 100.0 / values.len() as f64;
    values
        .into_iter()
        .enumerate()
        .map(|(index, value)| Point { x: (index as f64 + 0.5) * share, y: Some(value), error: None })
        .collect()
}

pub(super) struct Drawer<'a> {
    pub(super) description: &'a Description,
    pub(super) entry: &'a FigureEntry,
    pub(super) outcome: &'a GridOutcome,
    pub(super) numbers: &'a [Arc<Measurement>],
}

impl Drawer<'_> {
    /// Draws the figure. Each drawing has a file suffix: the backbone, or empty.
    ///
    /// # Errors
    /// Fails if there is nothing to show, or if two cells share a label and position.
    pub(super) fn draw(&self) -> Result<Vec<(String, Drawing)>> {
        self.one_in_each_place()?;
        let backbones = self.backbones();
        match self.entry.kind {
            FigureKind::Bars => Ok(vec![(String::new(), self.bars().draw()?)]),
            FigureKind::Shares => Ok(vec![(String::new(), self.shares().draw()?)]),
            FigureKind::Channels => each(&backbones, |backbone| Ok(self.channels(backbone))),
            FigureKind::Depths => each(&backbones, |backbone| Ok(self.depths(backbone))),
            FigureKind::Layers => each(&backbones, |backbone| self.layers(backbone)),
            FigureKind::Pareto => each(&backbones, |backbone| self.pareto(backbone)),
        }
    }

    fn backbones(&self) -> Vec<String> {
        distinct(self.numbers.iter().map(|number| &number.record.condition.backbone))
    }

    fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.numbers.iter().map(|number| &number.record.condition)
    }

    /// Returns the requested recoveries, or all of the grid.
    fn recoveries(&self) -> Vec<String> {
        let pruned = self.conditions().filter(|condition| condition.criterion != DENSE);
        let all = distinct(pruned.map(|pruned| &pruned.recovery));
        if self.entry.recovery.is_empty() { all } else { self.entry.recovery.clone() }
    }

    fn axis(&self) -> Axis {
        let scale = if self.entry.log { Scale::Log } else { Scale::Linear };
        Axis { label: self.entry.axis.clone(), unit: String::new(), scale }
    }

    fn figure(&self, backbone: Option<&str>, heading: String, wide: bool, plot: Plot) -> Figure {
        let suffix = backbone.map(|backbone| format!(": {}", backbone_label(backbone))).unwrap_or_default();
        let around = Surroundings {
            title: format!("{}{suffix}", self.description.title),
            description: self.description.caption.clone().unwrap_or_default(),
            heading,
            note: String::new(),
            width: if wide { Width::Page } else { Width::Column },
        };
        Figure { around, plot }
    }

    /// Describes the cut, such as `4 of 16 layers removed by LLM-Streamline`.
    fn cut(&self) -> String {
        let pruned: Vec<&Condition> = self.conditions().filter(|condition| condition.criterion != DENSE).collect();
        let sizes: Vec<(usize, usize)> = pruned.iter().map(|pruned| (pruned.depth, pruned.layers)).collect();
        let sizes = distinct(&sizes);
        let depths = distinct(pruned.iter().map(|pruned| &pruned.depth));
        let count = match (depths.as_slice(), sizes.as_slice()) {
            (_, [(depth, layers)]) => format!("{depth} of {layers} layers"),
            ([depth], _) => format!("{depth} layers"),
            _ => "layers".to_owned(),
        };
        match distinct(pruned.iter().map(|pruned| &pruned.criterion)).as_slice() {
            [criterion] => format!("{count} removed by {}", criterion::label(criterion)),
            _ => format!("{count} removed"),
        }
    }

    fn cut_of(&self, backbone: &str) -> String {
        format!("{}, {}", backbone_label(backbone), self.cut())
    }

    /// Lists the cases in which another repair beats ours.
    fn ahead(&self, metric: &str) -> String {
        let Ok(known) = Metric::find(metric) else { return String::new() };
        let (ours, others): (Vec<String>, Vec<String>) =
            self.recoveries().into_iter().partition(|recovery| recovery::is_ours(recovery));
        let Some(ours) = ours.first() else { return String::new() };
        self.backbones()
            .iter()
            .filter_map(|backbone| {
                let reference = self.value(backbone, ours, metric).value?;
                let ahead: Vec<&str> = others
                    .iter()
                    .filter(|other| {
                        self.value(backbone, other, metric).value.is_some_and(|value| known.better(value, reference))
                    })
                    .map(|other| recovery::label(other))
                    .collect();
                let verb = if ahead.len() == 1 { "is" } else { "are" };
                let backbone = backbone_label(backbone);
                let ours = recovery::label(ours);
                (!ahead.is_empty()).then(|| format!("{backbone}: {} {verb} ahead of {ours}.", ahead.join(", ")))
            })
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Checks that no two numbers share a label and position.
    fn one_in_each_place(&self) -> Result<()> {
        let shown: Vec<&str> = match self.entry.kind {
            FigureKind::Layers | FigureKind::Pareto => Vec::new(),
            FigureKind::Channels => vec![metric::BOUNDARY_ERROR.id],
            _ => self.entry.metrics.iter().map(String::as_str).collect(),
        };
        let recoveries = self.recoveries();
        let mut places = BTreeMap::new();
        for number in self.numbers {
            let Record { condition, metric, .. } = &number.record;
            let is_shown = condition.criterion != DENSE
                && recoveries.contains(&condition.recovery)
                && shown.contains(&metric.as_str());
            let depth = matches!(self.entry.kind, FigureKind::Depths).then_some(condition.depth);
            let key = (&condition.backbone, &condition.recovery, metric, depth);
            if let Some(other) = is_shown.then(|| places.insert(key, number)).flatten() {
                return Err(two_in_one_place(&other.cell, &number.cell));
            }
        }
        Ok(())
    }

    fn value(&self, backbone: &str, recovery: &str, metric: &str) -> BarValue {
        self.numbers
            .iter()
            .find(|number| {
                let record = &number.record;
                record.metric == metric
                    && record.condition.backbone == backbone
                    && record.condition.recovery == recovery
                    && record.condition.criterion != DENSE
            })
            .map_or_else(BarValue::default, |number| BarValue {
                value: number.record.value,
                error: number.record.error,
            })
    }

    fn bars(&self) -> Figure {
        let metric = self.entry.metrics.first().cloned().unwrap_or_default();
        let backbones = self.backbones();
        let series = self.recoveries().into_iter().map(|recovery| Series {
            label: recovery::label(&recovery).to_owned(),
            values: backbones.iter().map(|backbone| self.value(backbone, &recovery, &metric)).collect(),
            method: recovery,
        });
        self.bars_of(&backbones, series.collect(), self.ahead(&metric), backbones.len() > 1)
    }

    /// Draws one bar per metric. The metrics are parts of one norm and do not use method colors.
    fn shares(&self) -> Figure {
        let backbones = self.backbones();
        let recovery = self.recoveries().into_iter().next().unwrap_or_default();
        let series = self.entry.metrics.iter().map(|metric| Series {
            method: metric.clone(),
            label: Metric::find(metric).map_or_else(|_| metric.clone(), |known| known.label),
            values: backbones.iter().map(|backbone| self.value(backbone, &recovery, metric)).collect(),
        });
        self.bars_of(&backbones, series.collect(), String::new(), false)
    }

    fn bars_of(&self, backbones: &[String], series: Vec<Series>, note: String, wide: bool) -> Figure {
        let plot = Plot::Bars(BarChart {
            axis: self.axis(),
            series,
            groups: backbones.iter().map(|name| backbone_label(name).to_owned()).collect(),
            missing: if self.outcome.failed() > 0 { "failed" } else { "–" }.into(),
        });
        self.figure(None, self.cut(), wide, plot).with_note(note)
    }

    fn cells<'a>(&'a self, backbone: &'a str, recovery: &'a str) -> impl Iterator<Item = &'a CellResult> {
        self.outcome.cells.iter().filter(move |result| {
            result.cell.backbone == backbone
                && result.cell.recovery.as_ref().is_some_and(|method| method.name == recovery)
        })
    }

    /// Returns the per-channel errors at a recovery's first boundary.
    fn channel_errors<'a>(&'a self, backbone: &'a str, recovery: &'a str) -> &'a [f64] {
        let boundary = self.cells(backbone, recovery).find_map(|result| result.boundaries.first());
        boundary.map(|boundary| boundary.numbers.boundary_mae_by_channel.as_slice()).unwrap_or_default()
    }

    /// Draws the sorted channel errors of each recovery, relative to the unrepaired ones if the figure has them.
    fn channels(&self, backbone: &str) -> Figure {
        let baseline = self.channel_errors(backbone, recovery::NONE);
        let (ours, others): (Vec<String>, Vec<String>) =
            self.recoveries().into_iter().partition(|recovery| recovery::is_ours(recovery));
        // Draw our method last, so that it is on top.
        let mut recoveries = [others, ours].concat();
        let is_relative = !baseline.is_empty() && recoveries.iter().any(|recovery| recovery != recovery::NONE);
        recoveries.retain(|recovery| !is_relative || recovery != recovery::NONE);
        let pruned = Level { method: recovery::NONE.into(), label: recovery::label(recovery::NONE).into(), value: 1.0 };
        let mut y = self.axis();
        if is_relative {
            y.label = format!("{} relative to no repair", y.label);
        }
        let plot = Plot::Curves(Curves {
            x: Axis { label: "Channels, sorted for each method".into(), unit: "%".into(), ..Axis::default() },
            y,
            lines: recoveries
                .iter()
                .map(|recovery| {
                    let errors = self.channel_errors(backbone, recovery);
                    let values = if is_relative { ratios(errors, baseline) } else { errors.to_vec() };
                    let method = recovery.clone();
                    let label = recovery::label(recovery).to_owned();
                    Line { method, label, points: sorted_points(values) }
                })
                .collect(),
            levels: if is_relative { vec![pruned] } else { Vec::new() },
        });
        let note = if is_relative { ABOVE_ONE } else { "" };
        self.figure(Some(backbone), self.cut_of(backbone), false, plot).with_note(note)
    }

    fn depths(&self, backbone: &str) -> Figure {
        let metric = self.entry.metrics.first().cloned().unwrap_or_default();
        let records = self.numbers.iter().map(|number| &number.record);
        let selected: Vec<&Record> =
            records.filter(|record| record.condition.backbone == backbone && record.metric == metric).collect();
        let has_errors = selected.iter().any(|record| record.error.is_some());
        let dense = selected.iter().find(|record| record.condition.depth == 0).and_then(|record| record.value);
        let plot = Plot::Curves(Curves {
            x: Axis { label: "Layers removed".into(), ..Axis::default() },
            y: self.axis(),
            lines: self
                .recoveries()
                .iter()
                .map(|recovery| {
                    let pruned = selected
                        .iter()
                        .filter(|record| record.condition.depth > 0 && record.condition.recovery == *recovery);
                    let mut points: Vec<Point> = pruned
                        .map(|record| Point { x: record.condition.depth as f64, y: record.value, error: record.error })
                        .collect();
                    points.sort_by(|a, b| a.x.total_cmp(&b.x));
                    Line { method: recovery.clone(), label: recovery::label(recovery).to_owned(), points }
                })
                .collect(),
            levels: dense
                .map(|value| Level { method: DENSE.into(), label: criterion::DENSE.label.into(), value })
                .into_iter()
                .collect(),
        });
        let note = if has_errors { ERROR_BARS } else { "" };
        self.figure(Some(backbone), self.cut_of(backbone), false, plot).with_note(note)
    }

    fn pareto(&self, backbone: &str) -> Result<Figure> {
        let own = self.numbers.iter().filter(|number| number.record.condition.backbone == backbone);
        let plot = Plot::Pareto(pareto(self.entry, &own.collect::<Vec<_>>())?);
        Ok(self.figure(Some(backbone), backbone_label(backbone).to_owned(), true, plot).with_note(FRONTIER))
    }

    fn layers(&self, backbone: &str) -> Result<Figure> {
        let mut selections: Vec<(DiagramRow, String)> = Vec::new();
        let mut layers = 0;
        for result in self.outcome.cells.iter().filter(|result| result.cell.backbone == backbone) {
            let Some(criterion) = &result.cell.criterion else { continue };
            layers = result.layers;
            let label = criterion::label(&criterion.name).to_owned();
            if result.removed.is_empty() {
                continue;
            }
            let known = selections.iter().find(|(known, _)| known.label == label);
            if let Some((_, other)) = known.filter(|(known, _)| result.removed != known.removed) {
                return Err(two_in_one_place(other, &result.cell.to_string()));
            }
            if known.is_none() {
                let operators = result.boundaries.iter().map(|boundary| boundary.region).collect();
                let row = DiagramRow { label, removed: result.removed.whole_layers(), operators };
                selections.push((row, result.cell.to_string()));
            }
        }
        let selections: Vec<DiagramRow> = selections.into_iter().map(|(row, _)| row).collect();
        if selections.is_empty() {
            return Err(Error::job("no selection to draw").at(backbone.to_owned()).expected("a pruned cell"));
        }
        let rule = match selections.iter().any(DiagramRow::is_layer_by_layer) {
            true => "an operator for each removed layer (boundary: layer)",
            false => "one operator for each region of removed layers (boundary: region)",
        };
        let heading = format!("{}: {rule}", backbone_label(backbone));
        let wide = selections.len() > 1;
        Ok(self.figure(Some(backbone), heading, wide, Plot::Layers(LayerDiagram { layers, selections })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Method;

    #[test]
    fn channel_curve_is_sorted_and_relative_to_baseline() {
        let points = sorted_points(ratios(&[3.0, 1.0, 4.0, 2.0], &[2.0, 2.0, 2.0, 4.0]));
        let found: Vec<(f64, Option<f64>)> = points.iter().map(|point| (point.x, point.y)).collect();
        assert_eq!(found, [(12.5, Some(0.5)), (37.5, Some(0.5)), (62.5, Some(1.5)), (87.5, Some(2.0))]);
        assert!(sorted_points(Vec::new()).is_empty());
    }

    #[test]
    fn curves_of_one_recovery_are_told_apart_by_what_they_differ_in() {
        let one = sleb_cell("ghosted", 4);
        let two = sleb_cell("ghosted", 6);
        let other = sleb_cell("affine", 4);
        let labels = trained_labels(&[&one, &two, &other]);
        let name = format!("{} + FT", recovery::label("ghosted"));
        assert_eq!(labels[..2], [format!("{name}, depth 4"), format!("{name}, depth 6")]);
        assert_eq!(trained_labels(&[&one]), [name]);
        assert!(labels[2].ends_with(" + FT"), "{labels:?}");
    }

    fn sleb_cell(recovery: &str, depth: usize) -> Cell {
        Cell {
            criterion: Some(Method::named("sleb")),
            depth: depth.into(),
            recovery: Some(Method::named(recovery)),
            ..Cell::named("a", "a")
        }
    }
}

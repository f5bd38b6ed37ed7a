//! Draws figures from the same numbers as the tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tradeoff::build_pareto;
use crate::artifact::figure::{
    Axis, BarChart, BarValue, Curves, DiagramCut, DiagramRow, Drawing, Figure, LayerDiagram, Level, Line, Plot, Point,
    Scale, Series, SublayerCut, Surroundings, Width,
};
use crate::artifact::paper::backbone_label;
use crate::error::{Error, Result};
use crate::grid::{Description, FigureEntry, FigureKind};
use crate::metric::{self, Metric};
use crate::pipeline::exec::{CellResult, GridOutcome};
use crate::results::number_record::{Condition, DENSE, Record};
use crate::results::{ResultRow, distinct};
use crate::{criterion, recovery};

/// Draws one figure per backbone. Returns each drawing with its file suffix: the backbone, or an empty string if there
/// is only one.
pub(super) fn draw_each(
    backbones: &[String],
    build_figure: impl Fn(&String) -> Result<Figure>,
) -> Result<Vec<(String, Drawing)>> {
    let is_named = backbones.len() > 1;
    backbones
        .iter()
        .map(|backbone| {
            let name = if is_named { backbone.clone() } else { String::new() };
            Ok((name, build_figure(backbone)?.draw()?))
        })
        .collect()
}

fn duplicate_position_error(one: &str, other: &str) -> Error {
    Error::bad_input("two grid cells have the same position and label in the figure")
        .expected("one cell per position and label")
        .found(format!("`{one}` and `{other}`"))
        .hint("remove one of the cells, or add the option to the artifact's `named_options`")
}

const ERROR_BARS: &str = "Error bars: ± 1 standard error. Points are offset horizontally for legibility.";
const FRONTIER: &str = "No other variant here is both cheaper and better than one on the frontier. Where points coincide, the \
    last in the legend covers the others.";
const ABOVE_ONE: &str = "Above 1 a channel is worse than without a repair.";

fn ratios(errors: &[f64], baseline: &[f64]) -> Vec<f64> {
    errors.iter().zip(baseline).map(|(error, base)| error / base).collect()
}

/// Sorts the values and returns them as points. The x-coordinate is the rank in percent.
fn sorted_points(mut values: Vec<f64>) -> Vec<Point> {
    values.sort_by(f64::total_cmp);
    let step = 100.0 / values.len() as f64;
    values
        .into_iter()
        .enumerate()
        .map(|(index, value)| Point { x: (index as f64 + 0.5) * step, y: Some(value), error: None })
        .collect()
}

pub(super) struct Drawer<'a> {
    pub(super) description: &'a Description,
    pub(super) entry: &'a FigureEntry,
    pub(super) outcome: &'a GridOutcome,
    pub(super) numbers: &'a [Arc<ResultRow>],
}

impl Drawer<'_> {
    /// Draws the figure. Returns each drawing with its file suffix, which is the backbone or empty.
    ///
    /// # Errors
    /// Fails if there is nothing to show, or if two cells share a label and position.
    pub(super) fn draw(&self) -> Result<Vec<(String, Drawing)>> {
        self.check_unique_positions()?;
        let backbones = self.backbones();
        match self.entry.kind {
            FigureKind::Bars => Ok(vec![(String::new(), self.build_bars().draw()?)]),
            FigureKind::Shares => Ok(vec![(String::new(), self.build_shares().draw()?)]),
            FigureKind::Channels => draw_each(&backbones, |backbone| Ok(self.build_channels(backbone))),
            FigureKind::Depths => draw_each(&backbones, |backbone| Ok(self.build_depths(backbone))),
            FigureKind::Layers => {
                // List the backbones of the cells, because an unrepaired cut of sublayers may have no number.
                let backbones = distinct(self.outcome.cells.iter().map(|result| &result.cell.backbone));
                draw_each(&backbones, |backbone| self.build_layers(backbone))
            }
            FigureKind::Pareto => draw_each(&backbones, |backbone| self.build_pareto(backbone)),
        }
    }

    fn backbones(&self) -> Vec<String> {
        distinct(self.numbers.iter().map(|number| &number.record.condition.backbone))
    }

    fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.numbers.iter().map(|number| &number.record.condition)
    }

    /// Returns the requested recoveries, or all recoveries in the grid if none are requested.
    fn recoveries(&self) -> Vec<String> {
        let pruned = self.conditions().filter(|condition| condition.criterion != DENSE);
        let all = distinct(pruned.map(|pruned| &pruned.recovery));
        if self.entry.recovery.is_empty() { all } else { self.entry.recovery.clone() }
    }

    fn axis(&self) -> Axis {
        let scale = if self.entry.log { Scale::Log } else { Scale::Linear };
        Axis { label: self.entry.axis.clone(), unit: String::new(), scale }
    }

    fn build_figure(&self, backbone: Option<&str>, heading: String, wide: bool, plot: Plot) -> Figure {
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

    /// Describes the cut, for example `4 of 16 layers removed by LLM-Streamline`.
    fn describe_cut(&self) -> String {
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

    fn describe_cut_of(&self, backbone: &str) -> String {
        format!("{}, {}", backbone_label(backbone), self.describe_cut())
    }

    /// Formats one sentence for each backbone on which another recovery is better than ours.
    fn better_recoveries_note(&self, metric: &str) -> String {
        let Ok(known) = Metric::find(metric) else { return String::new() };
        let (ours, others): (Vec<String>, Vec<String>) =
            self.recoveries().into_iter().partition(|recovery| recovery::is_ours(recovery));
        let Some(ours) = ours.first() else { return String::new() };
        self.backbones()
            .iter()
            .filter_map(|backbone| {
                let reference = self.find_value(backbone, ours, metric).value?;
                let ahead: Vec<&str> = others
                    .iter()
                    .filter(|other| {
                        self.find_value(backbone, other, metric)
                            .value
                            .is_some_and(|value| known.is_better(value, reference))
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

    /// Checks that the figure does not show two numbers at the same position with the same label.
    fn check_unique_positions(&self) -> Result<()> {
        let shown: Vec<&str> = match self.entry.kind {
            FigureKind::Layers | FigureKind::Pareto => Vec::new(),
            FigureKind::Channels => vec![metric::BOUNDARY_ERROR.id],
            _ => self.entry.metrics.iter().map(String::as_str).collect(),
        };
        let recoveries = self.recoveries();
        let mut numbers_by_position = BTreeMap::new();
        for number in self.numbers {
            let Record { condition, metric, .. } = &number.record;
            let is_shown = condition.criterion != DENSE
                && recoveries.contains(&condition.recovery)
                && shown.contains(&metric.as_str());
            let depth = matches!(self.entry.kind, FigureKind::Depths).then_some(condition.depth);
            let key = (&condition.backbone, &condition.recovery, metric, depth);
            if let Some(other) = is_shown.then(|| numbers_by_position.insert(key, number)).flatten() {
                return Err(duplicate_position_error(&other.cell, &number.cell));
            }
        }
        Ok(())
    }

    fn find_value(&self, backbone: &str, recovery: &str, metric: &str) -> BarValue {
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

    fn build_bars(&self) -> Figure {
        let metric = self.entry.metrics.first().cloned().unwrap_or_default();
        let backbones = self.backbones();
        let series = self.recoveries().into_iter().map(|recovery| Series {
            label: recovery::label(&recovery).to_owned(),
            values: backbones.iter().map(|backbone| self.find_value(backbone, &recovery, &metric)).collect(),
            method: recovery,
        });
        self.build_bar_chart(&backbones, series.collect(), self.better_recoveries_note(&metric), backbones.len() > 1)
    }

    /// Builds a chart with one bar per metric. The metrics are components of one norm, so they have different colors.
    fn build_shares(&self) -> Figure {
        let backbones = self.backbones();
        let recovery = self.recoveries().into_iter().next().unwrap_or_default();
        let series = self.entry.metrics.iter().map(|metric| Series {
            method: metric.clone(),
            label: Metric::find(metric).map_or_else(|_| metric.clone(), |known| known.label),
            values: backbones.iter().map(|backbone| self.find_value(backbone, &recovery, metric)).collect(),
        });
        self.build_bar_chart(&backbones, series.collect(), String::new(), false)
    }

    fn build_bar_chart(&self, backbones: &[String], series: Vec<Series>, note: String, wide: bool) -> Figure {
        let plot = Plot::Bars(BarChart {
            axis: self.axis(),
            series,
            groups: backbones.iter().map(|name| backbone_label(name).to_owned()).collect(),
            missing: if self.outcome.failed_count() > 0 { "failed" } else { "–" }.into(),
        });
        self.build_figure(None, self.describe_cut(), wide, plot).with_note(note)
    }

    fn cells<'a>(&'a self, backbone: &'a str, recovery: &'a str) -> impl Iterator<Item = &'a CellResult> {
        self.outcome.cells.iter().filter(move |result| {
            result.cell.backbone == backbone
                && result.cell.recovery.as_ref().is_some_and(|method| method.name == recovery)
        })
    }

    /// Returns the per-channel errors after the first region of removed layers, in the first cell with this backbone
    /// and recovery that has any. Returns an empty slice if there is none.
    fn channel_errors<'a>(&'a self, backbone: &'a str, recovery: &'a str) -> &'a [f64] {
        let boundary = self.cells(backbone, recovery).find_map(|result| result.boundaries.first());
        boundary.map(|boundary| boundary.numbers.boundary_mae_by_channel.as_slice()).unwrap_or_default()
    }

    /// Builds a chart of the sorted channel errors for each recovery. If the unrepaired errors are known, all others
    /// are divided by them.
    fn build_channels(&self, backbone: &str) -> Figure {
        let baseline = self.channel_errors(backbone, recovery::NONE);
        let (ours, others): (Vec<String>, Vec<String>) =
            self.recoveries().into_iter().partition(|recovery| recovery::is_ours(recovery));
        // Draw our method last so that it is on top.
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
        self.build_figure(Some(backbone), self.describe_cut_of(backbone), false, plot).with_note(note)
    }

    fn build_depths(&self, backbone: &str) -> Figure {
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
        self.build_figure(Some(backbone), self.describe_cut_of(backbone), false, plot).with_note(note)
    }

    fn build_pareto(&self, backbone: &str) -> Result<Figure> {
        let numbers = self.numbers.iter().filter(|number| number.record.condition.backbone == backbone);
        let plot = Plot::Pareto(build_pareto(self.entry, &numbers.collect::<Vec<_>>())?);
        Ok(self.build_figure(Some(backbone), backbone_label(backbone).to_owned(), true, plot).with_note(FRONTIER))
    }

    fn build_layers(&self, backbone: &str) -> Result<Figure> {
        let mut selections: Vec<(DiagramRow, &CellResult)> = Vec::new();
        for result in self.outcome.cells.iter().filter(|result| result.cell.backbone == backbone) {
            let Some(criterion) = &result.cell.criterion else { continue };
            if result.removed.is_empty() {
                continue;
            }
            let label = criterion::label(&criterion.name).to_owned();
            // A repair of whole layers does not change the drawn row, but a replaced sublayer does.
            let known = selections.iter().find(|(row, other)| {
                row.label == label
                    && other.cell.depth.unit == result.cell.depth.unit
                    && other.replaced_sublayers() == result.replaced_sublayers()
            });
            match known {
                Some((_, other)) if other.removed != result.removed => {
                    return Err(duplicate_position_error(&other.cell.to_string(), &result.cell.to_string()));
                }
                Some(_) => {}
                None => selections.push((DiagramRow { label, cut: diagram_cut(result) }, result)),
            }
        }
        let Some(layers) = selections.first().map(|(_, result)| result.layers) else {
            return Err(Error::job("no removed layers to draw").at(backbone.to_owned()).expected("a pruned cell"));
        };
        let selections: Vec<DiagramRow> = selections.into_iter().map(|(row, _)| row).collect();
        let rule = if selections.iter().all(|row| matches!(row.cut, DiagramCut::Sublayers(_))) {
            "attention (left) and MLP (right) of each layer"
        } else if selections.iter().any(DiagramRow::is_layer_by_layer) {
            "an operator for each removed layer (boundary: layer)"
        } else {
            "one operator for each region of removed layers (boundary: region)"
        };
        let heading = format!("{}: {rule}", backbone_label(backbone));
        let wide = selections.len() > 1;
        Ok(self.build_figure(Some(backbone), heading, wide, Plot::Layers(LayerDiagram { layers, selections })))
    }
}

fn diagram_cut(result: &CellResult) -> DiagramCut {
    if result.cell.depth.is_in_layers() {
        let operators = result.boundaries.iter().map(|boundary| boundary.region).collect();
        return DiagramCut::Layers { removed: result.removed.clone(), operators };
    }
    DiagramCut::Sublayers(SublayerCut { removed: result.removed.clone(), replaced: result.replaced_sublayers() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channel_curve_is_sorted_and_relative_to_baseline() {
        let points = sorted_points(ratios(&[3.0, 1.0, 4.0, 2.0], &[2.0, 2.0, 2.0, 4.0]));
        let found: Vec<(f64, Option<f64>)> = points.iter().map(|point| (point.x, point.y)).collect();
        assert_eq!(found, [(12.5, Some(0.5)), (37.5, Some(0.5)), (62.5, Some(1.5)), (87.5, Some(2.0))]);
        assert!(sorted_points(Vec::new()).is_empty());
    }
}

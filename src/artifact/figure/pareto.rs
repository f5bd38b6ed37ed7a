//! Scatter plots of quality against cost with the Pareto frontier. There is a row of panels per quality metric and a
//! column per cost.

use super::axis::{Axis, Range, drawable};
use super::chart_frame::{self, BASELINE_OFFSET, Frame, FramePlan, GAP, Key, MARGIN, Surroundings};
use super::font;
use super::palette::{self, SECONDARY_TEXT, TEXT};
use super::scene::{Anchor, Scene, ScenePoint};
use crate::error::{Error, Result};
use crate::style::Dash;

/// Pruned variant of a model, drawn as one point in each panel.
#[derive(Debug, Clone, PartialEq)]
pub struct ParetoPoint {
    /// Cost in each column of panels, such as a size or a time. Smaller is better. `None` if it was not measured.
    pub costs: Vec<Option<f64>>,
    /// Quality in each row of panels. `None` if it was not measured.
    pub values: Vec<Option<f64>>,
    /// Label, drawn only if the point is on the frontier.
    pub label: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ParetoSeries {
    pub label: String,
    pub points: Vec<ParetoPoint>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ParetoRow {
    pub axis: Axis,
    pub is_higher_better: bool,
    /// Value of the dense model, shown as a dashed line.
    pub dense: Option<f64>,
}

/// Scatter plots of all series. The panels of a row share a y-axis, and those of a column an x-axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Pareto {
    /// X-axes, one per column of panels.
    pub columns: Vec<Axis>,
    pub rows: Vec<ParetoRow>,
    pub series: Vec<ParetoSeries>,
}

/// Radius of a marker, in points.
const MARKER_RADIUS: f64 = 2.6;
/// Gap between a marker and its label, in points.
const LABEL_GAP: f64 = 2.0;
/// Gap between two rows of panels, in points.
const ROW_GAP: f64 = 8.0;
/// Gap between two columns of panels, in points.
const COLUMN_GAP: f64 = 12.0;
/// Maximum total number of ticks on the x-axes of a row of panels.
const MAX_ROW_TICKS: usize = 10;
/// Number of ticks allowed on each x-axis, regardless of the number of panels in a row.
const MIN_PANEL_TICKS: usize = 4;

/// Maximum distance between two points that share a label, in typographic points.
const MAX_SHARED_LABEL_DISTANCE: f64 = 14.0;

/// Occupied rectangle, given by its upper left and lower right corners.
type OccupiedBox = (ScenePoint, ScenePoint);

/// Row and column of a panel.
type PanelIndex = (usize, usize);

/// Point that a panel shows.
#[derive(Debug, Clone, Copy)]
struct VisiblePoint<'a> {
    series: usize,
    label: &'a str,
    cost: f64,
    value: f64,
}

/// Returns the indices of the points that no other point dominates, in order of ascending x. Smaller is better for both
/// coordinates.
///
/// A point dominates another if it is no worse in both coordinates and better in at least one. Of several equal points,
/// only the first is returned. Points with a coordinate that is not finite are left out.
pub fn frontier(points: &[(f64, f64)]) -> Vec<usize> {
    let is_finite = |&at: &usize| points[at].0.is_finite() && points[at].1.is_finite();
    let mut order: Vec<usize> = (0..points.len()).filter(is_finite).collect();
    order.sort_by(|&a, &b| points[a].0.total_cmp(&points[b].0).then(points[a].1.total_cmp(&points[b].1)));
    let mut best = f64::INFINITY;
    order.retain(|&at| {
        let is_better = points[at].1 < best;
        best = best.min(points[at].1);
        is_better
    });
    order
}

impl Pareto {
    /// Draws all panels and returns the y-coordinate of their lower edge.
    ///
    /// # Errors
    /// Fails if a panel has no point that its axes can show.
    pub(super) fn draw(&self, around: &Surroundings, scene: &mut Scene) -> Result<f64> {
        let ranges = (0..self.columns.len()).map(|column| self.x_range(column)).collect::<Result<Vec<Range>>>()?;
        let mut below = chart_frame::draw_head(scene, &around.heading, &self.legend_entries());
        for row in 0..self.rows.len() {
            let top = if row == 0 { below } else { below + ROW_GAP };
            for (column, xs) in ranges.iter().enumerate() {
                below = below.max(self.draw_panel((row, column), around, (top, xs), scene)?);
            }
        }
        Ok(below)
    }

    fn x_range(&self, column: usize) -> Result<Range> {
        let costs = self.series.iter().flat_map(|series| &series.points).filter_map(|point| cost(point, column));
        let range = Range::from_values(costs, self.columns[column].scale).ok_or_else(no_points_error)?;
        Ok(range.with_margin(false))
    }

    /// Returns the left and right ends of a column in a figure of the given width.
    fn column_ends(&self, column: usize, width: f64) -> (f64, f64) {
        let pitch = (width - 2.0 * MARGIN + COLUMN_GAP) / self.columns.len() as f64;
        let left = MARGIN + column as f64 * pitch;
        (left, left + pitch - COLUMN_GAP)
    }

    fn legend_entries(&self) -> Vec<(Key, String)> {
        let markers = self.series.iter().enumerate();
        let mut keys: Vec<(Key, String)> =
            markers.map(|(at, series)| (Key::Marker(palette::nth_style(at)), series.label.clone())).collect();
        let line = palette::Look { color: SECONDARY_TEXT, ..palette::nth_style(0) };
        keys.push((Key::Line { style: line, dash: Dash::Solid, marked: false }, "Pareto frontier".to_owned()));
        if self.rows.iter().any(|row| row.dense.is_some()) {
            let dense = palette::look(crate::criterion::DENSE.name);
            let label = crate::criterion::DENSE.label.to_owned();
            keys.push((Key::Line { style: dense, dash: dense.dash, marked: false }, label));
        }
        keys
    }

    /// Returns the value of a point in a row, if the axis can show it.
    fn value(&self, point: &ParetoPoint, row: usize) -> Option<f64> {
        drawable(point.values.get(row).copied().flatten()).filter(|value| self.rows[row].axis.shows(*value))
    }

    fn visible_points(&self, (row, column): PanelIndex) -> Vec<VisiblePoint<'_>> {
        let mut visible = Vec::new();
        for (series, ParetoSeries { points, .. }) in self.series.iter().enumerate() {
            for point in points {
                if let (Some(cost), Some(value)) = (cost(point, column), self.value(point, row)) {
                    visible.push(VisiblePoint { series, label: &point.label, cost, value });
                }
            }
        }
        visible
    }

    /// Draws a panel below `top` and returns the y-coordinate of its lower edge.
    fn draw_panel(
        &self,
        (row, column): PanelIndex,
        around: &Surroundings,
        (top, xs): (f64, &Range),
        scene: &mut Scene,
    ) -> Result<f64> {
        let ParetoRow { axis, dense, .. } = &self.rows[row];
        let points = self.visible_points((row, column));
        let level = drawable(*dense).filter(|value| axis.shows(*value));
        let all = self.series.iter().flat_map(|series| &series.points);
        let values = all.filter_map(|point| self.value(point, row)).chain(level);
        let range =
            Range::from_values(values, axis.scale).filter(|_| !points.is_empty()).ok_or_else(no_points_error)?;
        let range = range.with_margin(false);
        let plan = FramePlan { around, axis, range, entries: &[], head: 0.0, foot: 0.0, aside: 0.0 };
        let ends = self.column_ends(column, scene.width);
        let frame = Frame::draw_between(scene, plan, ends, top);
        if let Some(level) = level {
            let look = palette::look(crate::criterion::DENSE.name);
            let y = frame.y(level);
            scene.line(&[(frame.left, y), (frame.right, y)], look.color, 0.8, look.dash);
        }
        let line = level.map(|value| line_box((frame.left, frame.y(value)), (frame.right, frame.y(value))));
        self.draw_points(row, &points, (&frame, xs, line), scene);
        let is_last = row + 1 == self.rows.len();
        let x = &self.columns[column];
        let title = if is_last { x.clone() } else { Axis { scale: x.scale, ..Axis::default() } };
        let max_ticks = (MAX_ROW_TICKS / self.columns.len()).max(MIN_PANEL_TICKS);
        Ok(frame.draw_x_axis(scene, &title, &xs.ticks(max_ticks), xs))
    }

    /// Draws the frontier, then the markers on top of it. Frontier points are labeled if there is space. `line` is the
    /// bounding box of the dense model's line, which labels must not overlap.
    fn draw_points(
        &self,
        row: usize,
        points: &[VisiblePoint<'_>],
        (frame, xs, line): (&Frame, &Range, Option<OccupiedBox>),
        scene: &mut Scene,
    ) {
        let sign = if self.rows[row].is_higher_better { -1.0 } else { 1.0 };
        let costs: Vec<(f64, f64)> = points.iter().map(|point| (point.cost, sign * point.value)).collect();
        let positions: Vec<ScenePoint> =
            points.iter().map(|point| (frame.x(xs, point.cost), frame.y(point.value))).collect();
        let best = frontier(&costs);
        let stairs = step_line(&best.iter().map(|&at| positions[at]).collect::<Vec<_>>());
        scene.line(&stairs, SECONDARY_TEXT, 1.0, Dash::Solid);
        for (point, position) in points.iter().zip(&positions) {
            let look = palette::nth_style(point.series);
            scene.marker(*position, look.marker, look.color, MARKER_RADIUS);
        }
        let mut taken: Vec<OccupiedBox> = positions.iter().map(|(x, y)| marker_box(*x, *y)).collect();
        taken.extend(line);
        taken.extend(stairs.windows(2).map(|pair| line_box(pair[0], pair[1])));
        for (rank, &at) in best.iter().enumerate() {
            let label = points[at].label;
            let is_labeled = best[..rank].iter().any(|&other| {
                points[other].label == label && distance(positions[other], positions[at]) < MAX_SHARED_LABEL_DISTANCE
            });
            if is_labeled {
                continue;
            }
            if let Some((corner, anchor)) = find_free_position(label, positions[at], frame, &taken) {
                scene.text(corner, label, anchor, TEXT);
                taken.push(label_box(label, corner, anchor));
            }
        }
    }
}

/// Returns the cost of a point in a column, if it can be drawn.
fn cost(point: &ParetoPoint, column: usize) -> Option<f64> {
    drawable(point.costs.get(column).copied().flatten())
}

fn no_points_error() -> Error {
    Error::bad_input("the Pareto figure has no points").expected("a variant with a cost and a value in each panel")
}

/// Returns the frontier as a step line, in which each value extends to the next point.
fn step_line(positions: &[ScenePoint]) -> Vec<ScenePoint> {
    let mut line: Vec<ScenePoint> = Vec::new();
    for position in positions {
        line.extend(line.last().map(|last| (position.0, last.1)));
        line.push(*position);
    }
    line
}

fn distance(one: ScenePoint, other: ScenePoint) -> f64 {
    (one.0 - other.0).hypot(one.1 - other.1)
}

fn marker_box(x: f64, y: f64) -> OccupiedBox {
    ((x - MARKER_RADIUS, y - MARKER_RADIUS), (x + MARKER_RADIUS, y + MARKER_RADIUS))
}

fn line_box(from: ScenePoint, to: ScenePoint) -> OccupiedBox {
    ((from.0.min(to.0), from.1.min(to.1)), (from.0.max(to.0), from.1.max(to.1)))
}

/// Returns the bounding box of a text whose baseline begins or ends at `corner`.
fn label_box(label: &str, (x, y): ScenePoint, anchor: Anchor) -> OccupiedBox {
    let width = font::width(label);
    let left = if anchor == Anchor::End { x - width } else { x };
    ((left, y - font::ASCENT * font::SIZE), (left + width, y + 0.24 * font::SIZE))
}

fn overlaps(one: OccupiedBox, other: OccupiedBox) -> bool {
    one.0.0 < other.1.0 && other.0.0 < one.1.0 && one.0.1 < other.1.1 && other.0.1 < one.1.1
}

/// Finds a position inside the frame at which the label of a point overlaps no other item.
fn find_free_position(
    label: &str,
    (x, y): ScenePoint,
    frame: &Frame,
    taken: &[OccupiedBox],
) -> Option<(ScenePoint, Anchor)> {
    let offset = MARKER_RADIUS + LABEL_GAP;
    let heights =
        [offset + font::ASCENT * font::SIZE, BASELINE_OFFSET, -offset, 2.0 * offset + font::LINE, -offset - font::LINE];
    let candidates = heights
        .into_iter()
        .flat_map(|height| [((x - offset, y + height), Anchor::End), ((x + offset, y + height), Anchor::Start)]);
    candidates.into_iter().find(|(corner, anchor)| {
        let found = label_box(label, *corner, *anchor);
        let is_inside = found.0.0 >= frame.left && found.1.0 <= frame.right + GAP / 2.0;
        let is_between = found.0.1 >= frame.top && found.1.1 <= frame.bottom;
        is_inside && is_between && !taken.iter().any(|other| overlaps(found, *other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::figure::scene::SceneShape;
    use crate::artifact::figure::{Figure, Plot, Scale};

    #[test]
    fn frontier_has_only_nondominated_points() {
        let nan = f64::NAN;
        for (case, points, expected) in [
            ("nothing", vec![], vec![]),
            ("one point", vec![(1.0, 1.0)], vec![0]),
            ("a chain in any order", vec![(3.0, 1.0), (1.0, 3.0), (2.0, 2.0)], vec![1, 2, 0]),
            ("a dominated point", vec![(1.0, 1.0), (2.0, 2.0), (3.0, 0.5)], vec![0, 2]),
            ("equal size", vec![(1.0, 2.0), (1.0, 1.0)], vec![1]),
            ("equal quality", vec![(2.0, 1.0), (1.0, 1.0)], vec![1]),
            ("equal points", vec![(1.0, 1.0), (1.0, 1.0)], vec![0]),
            ("missing numbers", vec![(nan, 0.0), (1.0, nan), (2.0, 5.0)], vec![2]),
        ] {
            assert_eq!(frontier(&points), expected, "{case}");
        }
    }

    #[test]
    fn frontier_line_goes_right_before_down() {
        assert_eq!(step_line(&[(0.0, 1.0), (2.0, 5.0)]), [(0.0, 1.0), (2.0, 1.0), (2.0, 5.0)]);
        assert!(step_line(&[]).is_empty());
    }

    fn dense_figure(points: usize, columns: usize) -> Pareto {
        let point = |at: usize| {
            let cost = 50.0 + at as f64 / 2.0;
            let values = vec![Some(1e3 / cost), Some(1.0 / cost)];
            ParetoPoint { costs: vec![Some(cost); columns], values, label: format!("{at} attentions") }
        };
        let row = |label: &str| ParetoRow {
            axis: Axis { label: label.to_owned(), scale: Scale::Log, ..Axis::default() },
            is_higher_better: false,
            dense: Some(9.0),
        };
        let x = Axis { label: "Params kept".to_owned(), unit: "%".to_owned(), ..Axis::default() };
        Pareto {
            columns: vec![x; columns],
            rows: vec![row("ppl"), row("KL")],
            series: vec![ParetoSeries { label: "LLM-Drop".to_owned(), points: (0..points).map(point).collect() }],
        }
    }

    /// Draws a figure of page width. Returns the boxes of its texts that end with `ending`.
    fn text_boxes(figure: &Pareto, ending: &str) -> Vec<OccupiedBox> {
        font::load().unwrap();
        let mut scene = Scene::new("", "", 489.6);
        figure.draw(&Surroundings { width: chart_frame::Width::Page, ..Surroundings::default() }, &mut scene).unwrap();
        let texts = scene
            .shapes
            .iter()
            .filter(|shape| matches!(shape, SceneShape::Text { text, .. } if text.ends_with(ending)));
        texts.filter_map(Scene::bounding_box).collect()
    }

    #[test]
    fn labels_do_not_overlap_and_stay_in_their_panel() {
        let labels = text_boxes(&dense_figure(40, 1), "attentions");
        assert!(labels.len() >= 8, "{}", labels.len());
        for (at, one) in labels.iter().enumerate() {
            assert!(labels[..at].iter().all(|other| !overlaps(*one, *other)), "{one:?}");
            assert!(one.0.0 >= 0.0 && one.1.0 <= 489.6);
        }
    }

    #[test]
    fn pareto_panels_are_side_by_side() {
        let figure = dense_figure(5, 3);
        let titles = text_boxes(&figure, "Params kept (%)");
        let [one, two, three] = titles[..] else { panic!("{titles:?}") };
        for (left, right) in [(one, two), (two, three)] {
            assert!(left.1.0 < right.0.0 && left.0.1 == right.0.1, "{left:?} {right:?}");
        }
        assert!(three.1.0 <= 489.6);
        // Each panel repeats the title of its row.
        assert_eq!(text_boxes(&figure, "KL").len(), 3);
    }

    #[test]
    fn figure_without_points_is_rejected() {
        let plot = Plot::Pareto(dense_figure(0, 1));
        let error = Figure { around: Surroundings::default(), plot }.draw().unwrap_err();
        assert!(error.to_string().contains("no points"), "{error}");
    }
}

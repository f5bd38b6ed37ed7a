//! Line charts: the error in each channel (figure 4), and accuracy against depth (figure 5).

use std::collections::BTreeSet;

use super::axis::{Axis, Range, Scale, Tick, drawable, error_length, format_plain};
use super::chart_frame::{Frame, FramePlan, Key, Surroundings, Width};
use super::font;
use super::palette::{self, Look};
use super::scene::{Scene, ScenePoint};
use crate::error::{Error, Result};
use crate::style::{Dash, Marker};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub x: f64,
    /// Value of the point. `None` or a non-finite number leaves a gap in the line.
    pub y: Option<f64>,
    /// Half the length of the error bar, or half the width of the error band.
    pub error: Option<f64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Method, which determines the color and the marker (see [`palette::look`]). If it is empty, the index of the line
    /// determines them.
    pub method: String,
    /// Name of the method in the legend.
    pub label: String,
    pub points: Vec<Point>,
}

impl Line {
    /// Returns the style of the line, given its index among the lines.
    fn look(&self, number: usize) -> Look {
        if self.method.is_empty() { palette::nth_style(number) } else { palette::look(&self.method) }
    }
}

/// Value shown as a dashed horizontal line, such as that of the dense backbone.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    pub method: String,
    pub label: String,
    pub value: f64,
}

/// Lines over shared axes.
///
/// Lines with up to 40 points have markers and error bars and are offset horizontally. If any line has more points, all
/// lines are thin without markers, and errors are drawn as bands. Only levels are dashed. If the value axis does not
/// start at 0, its label says where it starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Curves {
    pub x: Axis,
    pub y: Axis,
    /// Lines in drawing order. The last one is on top.
    pub lines: Vec<Line>,
    pub levels: Vec<Level>,
}

/// Maximum horizontal offset between two lines at the same x, in points.
const MAX_LINE_OFFSET: f64 = 3.6;
/// Radius of a marker, in points. Small enough to keep the caps of an error bar visible.
const MARKER_RADIUS: f64 = 1.8;
/// Maximum number of points in a line that has markers.
const MAX_MARKED_POINTS: usize = 40;
/// Width of a column in which a path keeps only its extremes, in points.
const COLUMN_WIDTH: f64 = 0.35;

impl Curves {
    /// Draws the chart and returns the y-coordinate of its lower edge.
    ///
    /// # Errors
    /// Fails if there are no lines, or no points that the axes can show.
    pub(super) fn draw(&self, around: &Surroundings, scene: &mut Scene) -> Result<f64> {
        if self.lines.is_empty() {
            return Err(empty_chart_error().expected("at least one line").found("none"));
        }
        let points: Vec<_> =
            self.lines.iter().flat_map(|line| &line.points).filter_map(|point| self.visible_point(point)).collect();
        let xs = Range::from_values(points.iter().map(|(x, _, _)| *x), self.x.scale);
        let levels = self.levels.iter().filter_map(|level| drawable(Some(level.value)));
        let errors = points.iter().flat_map(|&(_, y, error)| [y - error, y, y + error]);
        let ys = Range::from_values(errors.chain(levels), self.y.scale);
        // Levels have no x values, so they cannot define the x range.
        let (Some(xs), Some(ys)) = (xs, ys) else {
            let scale = if self.x.scale == Scale::Log { Scale::Log } else { self.y.scale };
            return Err(empty_chart_error()
                .found("no point with two finite coordinates")
                .hint(scale.empty_plot_hint()));
        };
        let ys = ys.with_margin(true).with_end_ticks(Frame::max_ticks(around.width));
        Ok(self.draw_in_ranges(around, (xs, ys), scene))
    }

    /// Returns the x, y and error of a point, or `None` if the axes cannot show it.
    fn visible_point(&self, point: &Point) -> Option<(f64, f64, f64)> {
        let x = drawable(Some(point.x))?;
        let y = drawable(point.y)?;
        (self.x.shows(x) && self.y.shows(y)).then(|| (x, y, error_length(point.error)))
    }

    fn draw_in_ranges(&self, around: &Surroundings, (xs, ys): (Range, Range), scene: &mut Scene) -> f64 {
        let marked = self.lines.iter().all(|line| line.points.len() <= MAX_MARKED_POINTS);
        let xs = if marked { xs.with_margin(false) } else { xs.without_margin() };
        let ticks = self.x_ticks(&xs, Frame::plot_width(around.width, &ys));
        let entries = self.legend_entries(marked);
        let aside = font::widest(ticks.iter().map(|tick| tick.text.as_str())) / 2.0;
        let axis = self.value_axis(&ys, around.width);
        let plan = FramePlan { around, axis: &axis, range: ys, entries: &entries, head: 0.0, foot: 0.0, aside };
        let frame = Frame::draw(scene, plan);
        let offset = if marked { self.line_offset(&xs, frame.right - frame.left) } else { 0.0 };
        for level in &self.levels {
            if drawable(Some(level.value)).is_some_and(|value| self.y.shows(value)) {
                let style = palette::look(&level.method);
                let y = frame.y(level.value);
                scene.line(&[(frame.left, y), (frame.right, y)], style.color, 1.1, style.dash);
            }
        }
        for (number, line) in self.lines.iter().enumerate() {
            let aside = (number as f64 - (self.lines.len() - 1) as f64 / 2.0) * offset;
            let plot = LinePlot { frame: &frame, xs: &xs, aside, style: line.look(number) };
            let runs = self.point_runs(line);
            if marked { plot.draw_marked(&runs, scene) } else { plot.draw_thin(&runs, scene) }
        }
        frame.draw_x_axis(scene, &self.x, &ticks, &xs)
    }

    /// Returns the legend entries: the lines, then the levels.
    fn legend_entries(&self, marked: bool) -> Vec<(Key, String)> {
        let line_keys = self.lines.iter().enumerate().map(|(number, line)| {
            let style = line.look(number);
            (Key::Line { style, dash: Dash::Solid, marked }, line.label.clone())
        });
        let level_keys = self.levels.iter().map(|level| {
            let style = palette::look(&level.method);
            (Key::Line { style, dash: style.dash, marked: false }, level.label.clone())
        });
        line_keys.chain(level_keys).collect()
    }

    /// Returns the value axis. Its label says where the axis starts if that is not 0.
    fn value_axis(&self, ys: &Range, width: Width) -> Axis {
        let mut axis = self.y.clone();
        if ys.starts_above_zero()
            && let Some(first) = ys.ticks(Frame::max_ticks(width)).first()
        {
            axis.label = format!("{}, axis starts at {}", axis.title(), first.text);
            axis.unit.clear();
        }
        axis
    }

    /// Returns the x values of all visible points in ascending order, without duplicates.
    fn distinct_x(&self) -> Vec<f64> {
        let points = self.lines.iter().flat_map(|line| &line.points);
        let mut at: Vec<f64> = points.filter_map(|point| Some(self.visible_point(point)?.0)).collect();
        at.sort_by(f64::total_cmp);
        at.dedup();
        at
    }

    /// Returns the horizontal offset between lines at the same x. All lines together take up at most half the distance
    /// between two x values.
    fn line_offset(&self, xs: &Range, room: f64) -> f64 {
        let at: Vec<f64> = self.distinct_x().into_iter().map(|x| xs.fraction(x) * room).collect();
        let nearest = at.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
        (nearest / (2.0 * self.lines.len() as f64)).min(MAX_LINE_OFFSET)
    }

    /// Splits a line at the points that the axes cannot show.
    fn point_runs(&self, line: &Line) -> Vec<PointRun> {
        let seen: Vec<_> = line.points.iter().map(|point| self.visible_point(point)).collect();
        let runs = seen.split(Option::is_none).filter(|run| !run.is_empty());
        runs.map(|run| run.iter().flatten().copied().collect()).collect()
    }

    /// Returns ticks at every x if they fit into `room` points, otherwise at round numbers.
    fn x_ticks(&self, xs: &Range, room: f64) -> Vec<Tick> {
        let exact_ticks: Vec<Tick> =
            self.distinct_x().into_iter().take(30).map(|at| Tick { at, text: format_plain(at) }).collect();
        if exact_ticks.len() < 30 && ticks_fit(xs, room, &exact_ticks) {
            return exact_ticks;
        }
        (2..=10).rev().map(|max_ticks| xs.ticks(max_ticks)).find(|ticks| ticks_fit(xs, room, ticks)).unwrap_or_default()
    }
}

fn empty_chart_error() -> Error {
    Error::bad_input("the line chart is empty")
}

/// Frame, x-range and style used to draw the points of one line.
struct LinePlot<'a> {
    frame: &'a Frame,
    xs: &'a Range,
    /// Horizontal offset of the line.
    aside: f64,
    style: Look,
}

/// Consecutive points without a gap, each with its x, y and error.
type PointRun = Vec<(f64, f64, f64)>;

impl LinePlot<'_> {
    fn point(&self, x: f64, y: f64) -> ScenePoint {
        (self.frame.x(self.xs, x) + self.aside, self.frame.y(y))
    }

    /// Draws a line with markers and error bars.
    fn draw_marked(&self, runs: &[PointRun], scene: &mut Scene) {
        for run in runs {
            let path: Vec<ScenePoint> = run.iter().map(|(x, y, _)| self.point(*x, *y)).collect();
            scene.line(&decimate(&path), self.style.color, 1.3, Dash::Solid);
        }
        for (x, y, error) in runs.iter().flatten().copied() {
            let at = self.point(x, y);
            scene.marker(at, self.style.marker, self.style.color, MARKER_RADIUS);
            if error > 0.0 {
                self.frame.draw_whisker(scene, at.0, (y - error, y + error), self.style.color);
            }
        }
    }

    /// Draws a thin line with an error band.
    fn draw_thin(&self, runs: &[PointRun], scene: &mut Scene) {
        for run in runs {
            if run.iter().any(|(_, _, error)| *error > 0.0) {
                let upper = run.iter().map(|(x, y, error)| self.point(*x, y + error));
                let lower = run.iter().rev().map(|(x, y, error)| self.point(*x, y - error));
                scene.fill(upper.chain(lower).collect(), self.style.color, 0.2);
            }
            let path: Vec<ScenePoint> = run.iter().map(|(x, y, _)| self.point(*x, *y)).collect();
            match path.as_slice() {
                [single] => scene.marker(*single, Marker::Circle, self.style.color, 0.7),
                _ => scene.line(&decimate(&path), self.style.color, 0.7, Dash::Solid),
            }
        }
    }
}

fn ticks_fit(xs: &Range, room: f64, ticks: &[Tick]) -> bool {
    let ends: Vec<(f64, f64)> =
        ticks.iter().map(|tick| (xs.fraction(tick.at) * room, font::width(&tick.text) / 2.0 + 3.0)).collect();
    ends.windows(2).all(|pair| {
        let [(a, half), (b, other)] = [pair[0], pair[1]];
        a + half <= b - other
    })
}

/// Thins a path without a visible change. Keeps the first, lowest, highest and last point in each column of
/// width [`COLUMN_WIDTH`].
pub(super) fn decimate(places: &[ScenePoint]) -> Vec<ScenePoint> {
    let columns = places.chunk_by(|a, b| (a.0 / COLUMN_WIDTH).floor() == (b.0 / COLUMN_WIDTH).floor());
    columns
        .flat_map(|column| {
            let lowest = best_in_column(column, |a, b| a < b);
            let highest = best_in_column(column, |a, b| a > b);
            let chosen = BTreeSet::from([0, lowest, highest, column.len() - 1]);
            chosen.into_iter().map(|which| column[which]).collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the index of the point whose y-coordinate is best according to `better`. Ties go to the first point.
fn best_in_column(column: &[ScenePoint], better: fn(f64, f64) -> bool) -> usize {
    let best = (0..column.len()).reduce(|best, i| if better(column[i].1, column[best].1) { i } else { best });
    best.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_every_peak() {
        let mut places: Vec<ScenePoint> = (0..1000).map(|i| point_of_column(i, 0.0)).collect();
        places[333].1 = 7.0;
        places[777].1 = -7.0;
        let decimated = decimate(&places);
        assert!(decimated.contains(&point_of_column(333, 7.0)) && decimated.contains(&point_of_column(777, -7.0)));
        assert!(decimated.len() <= 40, "{}", decimated.len());
        assert_eq!((decimated[0], decimated[decimated.len() - 1]), (places[0], places[999]));
    }

    fn point_of_column(i: usize, y: f64) -> ScenePoint {
        (i as f64 * COLUMN_WIDTH / 100.0, y)
    }

    #[test]
    fn path_with_few_points_is_not_thinned() {
        let places = [(0.0, 1.0), (10.0, 2.0), (20.0, 1.5)];
        assert_eq!(decimate(&places), places);
    }
}

//! Layout shared by all figures: heading, legend, axes, grid and note.

use super::axis::{Axis, Range, Tick};
use super::font;
use super::palette::{Color, GRID, Look, SURFACE, TEXT};
use super::scene::{Anchor, Scene, ScenePoint};
use crate::style::Dash;

/// Printed width of a figure. Text is always set at 8 points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Width {
    /// One column of the paper (3.3 inches).
    #[default]
    Column,
    /// Both columns of the paper (6.8 inches).
    Page,
}

impl Width {
    pub(super) fn points(self) -> f64 {
        if self == Self::Page { 6.8 * 72.0 } else { 3.3 * 72.0 }
    }

    fn plot_height(self) -> f64 {
        if self == Self::Page { 165.0 } else { 130.0 }
    }
}

/// Texts of a figure outside its plot, and the width of the figure.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Surroundings {
    /// Accessible title, which is not drawn.
    pub title: String,
    pub description: String,
    /// Text above the figure, possibly empty.
    pub heading: String,
    /// Text below the figure, possibly empty.
    pub note: String,
    pub width: Width,
}

/// Margin around the figure, in points.
pub(super) const MARGIN: f64 = 4.0;
/// Gap between an axis or legend key and its label, in points.
pub(super) const GAP: f64 = 4.0;
/// Half the width of an error bar's cap, in points.
pub(super) const CAP_HALF_WIDTH: f64 = 3.0;
/// Distance from the middle of a line of text to its baseline, in points.
pub(super) const BASELINE_OFFSET: f64 = font::SIZE * 0.36;
/// Distance between the bottom edges of two adjacent layers in a stack, in points.
pub(super) const LAYER_PITCH: f64 = 10.4;
pub(super) const LAYER_HEIGHT: f64 = 8.9;
/// Length of the arrows from the embedding to the first layer and from the last layer to the head, in points.
pub(super) const STACK_ENDS: f64 = 9.0;

/// Draws the heading and the legend, and returns the y-coordinate below them.
pub(super) fn draw_head(scene: &mut Scene, heading: &str, entries: &[(Key, String)]) -> f64 {
    let lines = font::wrap(heading, scene.width - 2.0 * MARGIN);
    let end = scene.lines((MARGIN, MARGIN), &lines, Anchor::Start);
    draw_legend(scene, entries, if lines.is_empty() { MARGIN } else { end + 2.0 })
}

/// Draws the note and sets the height of the figure.
pub(super) fn finish(scene: &mut Scene, words: &str, below: f64) {
    let lines = font::wrap(words, scene.width - 2.0 * MARGIN);
    let gap = if lines.is_empty() { 0.0 } else { GAP };
    scene.height = scene.lines((MARGIN, below + gap), &lines, Anchor::Start) + MARGIN;
}

/// Plot area of a figure. All lengths are in points.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    /// Space for labels above the highest value, in points.
    head: f64,
    /// Space for labels below the lowest value, in points.
    foot: f64,
    range: Range,
}

/// Arguments of [`Frame::draw`]. `head` and `foot` are described in [`Frame`].
#[derive(Debug)]
pub(super) struct FramePlan<'a> {
    pub(super) around: &'a Surroundings,
    pub(super) axis: &'a Axis,
    pub(super) range: Range,
    /// Legend keys with their labels.
    pub(super) entries: &'a [(Key, String)],
    pub(super) head: f64,
    pub(super) foot: f64,
    /// Space to the right of the plot for the overhang of the last tick label.
    pub(super) aside: f64,
}

impl Frame {
    /// Draws the heading, legend, axis title, ticks and grid.
    pub(super) fn draw(scene: &mut Scene, plan: FramePlan<'_>) -> Self {
        let below = draw_head(scene, &plan.around.heading, plan.entries);
        let ends = (MARGIN, scene.width - MARGIN);
        Self::draw_between(scene, plan, ends, below)
    }

    /// Draws the axis title, ticks and grid between the left and right `ends`, below `top`.
    pub(super) fn draw_between(scene: &mut Scene, plan: FramePlan<'_>, ends: (f64, f64), top: f64) -> Self {
        let FramePlan { around: Surroundings { width, .. }, axis, range, head, foot, aside, .. } = plan;
        let width = *width;
        let (start, end) = ends;
        let title = font::wrap(&axis.title(), end - start);
        let top = scene.lines((start, top + GAP), &title, Anchor::Start) + font::LINE / 2.0;
        let bottom = top + width.plot_height() + head + foot;
        // Width of the figure that lies outside `ends`, such as the other panels of a Pareto figure.
        let taken = width.points() - 2.0 * MARGIN - (end - start);
        let left = end - (Self::plot_width(width, &range) - taken);
        let frame = Self { left, right: end - aside, top, bottom, head, foot, range };
        for tick in Self::ticks(width, &frame.range) {
            let y = frame.y(tick.at);
            scene.line(&[(frame.left, y), (frame.right, y)], GRID, 0.5, Dash::Solid);
            scene.text((frame.left - GAP, y + BASELINE_OFFSET), &tick.text, Anchor::End, TEXT);
        }
        frame
    }

    fn ticks(width: Width, range: &Range) -> Vec<Tick> {
        range.ticks(Self::max_ticks(width))
    }

    pub(super) fn max_ticks(width: Width) -> usize {
        (width.plot_height() / (2.4 * font::LINE)) as usize
    }

    /// Returns the width that the tick labels leave for the plot, in points.
    pub(super) fn plot_width(width: Width, range: &Range) -> f64 {
        let ticks = Self::ticks(width, range);
        let widest = font::widest(ticks.iter().map(|tick| tick.text.as_str()));
        width.points() - 2.0 * MARGIN - GAP - widest
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        self.bottom - self.foot - self.range.fraction(value) * (self.bottom - self.top - self.head - self.foot)
    }

    pub(super) fn base(&self) -> f64 {
        self.y(self.range.base())
    }

    pub(super) fn draw_axis_line(&self, scene: &mut Scene, y: f64) {
        scene.line(&[(self.left, y), (self.right, y)], TEXT, 0.8, Dash::Solid);
    }

    /// Draws the x-axis and returns the y-coordinate below its title.
    pub(super) fn draw_x_axis(&self, scene: &mut Scene, axis: &Axis, ticks: &[Tick], xs: &Range) -> f64 {
        self.draw_axis_line(scene, self.bottom);
        let baseline = self.bottom + GAP + font::LINE * 0.8;
        for tick in ticks {
            let x = self.x(xs, tick.at);
            scene.line(&[(x, self.bottom), (x, self.bottom + 2.5)], TEXT, 0.8, Dash::Solid);
            scene.text((x, baseline), &tick.text, Anchor::Middle, TEXT);
        }
        let title = font::wrap(&axis.title(), self.right - self.left);
        let middle = f64::midpoint(self.left, self.right);
        scene.lines((middle, baseline + GAP), &title, Anchor::Middle)
    }

    pub(super) fn x(&self, xs: &Range, value: f64) -> f64 {
        self.left + xs.fraction(value) * (self.right - self.left)
    }

    /// Draws an error bar. The caps are wider than a marker so that short bars stay visible.
    pub(super) fn draw_whisker(&self, scene: &mut Scene, x: f64, (lower, upper): (f64, f64), color: Color) {
        let low = self.y(lower);
        let high = self.y(upper);
        for (from, to) in [((x, low), (x, high)), cap_line(x, low), cap_line(x, high)] {
            scene.line(&[from, to], color, 0.8, Dash::Solid);
        }
    }
}

fn cap_line(x: f64, y: f64) -> ((f64, f64), (f64, f64)) {
    ((x - CAP_HALF_WIDTH, y), (x + CAP_HALF_WIDTH, y))
}

/// Horizontal layout of grouped columns.
pub(super) struct Groups {
    left: f64,
    width: f64,
    columns: usize,
    /// Distance between the centers of adjacent columns, in points.
    pub(super) pitch: f64,
}

impl Groups {
    /// Divides a frame into groups. `gap` is the gap between groups, in column widths. `max_pitch` is the maximum
    /// distance between columns, in points.
    pub(super) fn new(frame: &Frame, (groups, columns): (usize, usize), gap: f64, max_pitch: f64) -> Self {
        let width = (frame.right - frame.left) / groups as f64;
        Self { left: frame.left, width, columns, pitch: (width / (columns as f64 + gap)).min(max_pitch) }
    }

    fn middle(&self, group: usize) -> f64 {
        self.left + (group as f64 + 0.5) * self.width
    }

    pub(super) fn column(&self, group: usize, column: usize) -> f64 {
        self.middle(group) + (column as f64 + 0.5 - self.columns as f64 / 2.0) * self.pitch
    }

    /// Draws the group names and returns the y-coordinate below them.
    pub(super) fn draw_names(&self, scene: &mut Scene, names: &[String], below: f64) -> f64 {
        names.iter().enumerate().fold(below, |lowest, (group, name)| {
            let at = (self.middle(group), below);
            lowest.max(scene.lines(at, &font::wrap(name, self.width - GAP), Anchor::Middle))
        })
    }
}

/// Symbol in front of a legend label.
#[derive(Debug, Clone, Copy)]
pub(super) enum Key {
    /// A bar, with the method's marker on it.
    Bar(Look),
    /// The marker of a method.
    Marker(Look),
    /// A line, with the method's marker if `marked` is set.
    Line { style: Look, dash: Dash, marked: bool },
    /// A box of a layer diagram.
    Block { fill: Option<Color>, border: Color, dash: Dash },
    /// An arrow that shows the residual stream.
    Arrow(Color),
}

/// Width of a bar in the legend, in points.
const BAR_KEY_WIDTH: f64 = 12.0;

impl Key {
    fn width(self) -> f64 {
        match self {
            Self::Line { .. } => 24.0,
            Self::Bar(_) => BAR_KEY_WIDTH,
            Self::Marker(_) => 5.0,
            _ => 18.0,
        }
    }
}

/// Gap between two legend entries, in points.
const ENTRY_GAP: f64 = 10.0;
const LEGEND_ROW_HEIGHT: f64 = font::LINE + 2.0;

/// Draws the legend from `top` downward and returns the y-coordinate below it.
fn draw_legend(scene: &mut Scene, entries: &[(Key, String)], top: f64) -> f64 {
    let room = scene.width - MARGIN - MARGIN;
    let labels: Vec<String> =
        entries.iter().map(|(key, label)| font::shorten(label, room - key.width() - GAP)).collect();
    let cells: Vec<f64> = entries
        .iter()
        .zip(&labels)
        .map(|((key, _), label)| key.width() + GAP + font::width(label) + ENTRY_GAP)
        .collect();
    let max_columns = (1..=entries.len())
        .rev()
        .find(|count| column_widths(&cells, *count).iter().sum::<f64>() - ENTRY_GAP <= room)
        .unwrap_or(1);
    // Balance the rows: 7 entries become 4 + 3, not 5 + 2.
    let rows = entries.len().div_ceil(max_columns);
    let balanced = column_widths(&cells, entries.len().div_ceil(rows.max(1)).max(1));
    let widths =
        if balanced.iter().sum::<f64>() - ENTRY_GAP <= room { balanced } else { column_widths(&cells, max_columns) };
    for (i, ((key, _), label)) in entries.iter().zip(&labels).enumerate() {
        let row = i / widths.len();
        let column = i % widths.len();
        let x = MARGIN + widths[..column].iter().sum::<f64>();
        let middle = top + LEGEND_ROW_HEIGHT * (row as f64 + 0.5);
        draw_key(scene, *key, (x, middle));
        scene.text((x + key.width() + GAP, middle + BASELINE_OFFSET), label, Anchor::Start, TEXT);
    }
    top + rows as f64 * LEGEND_ROW_HEIGHT
}

/// Returns the width of each of `count` columns, in which the cells are laid out row by row.
fn column_widths(cells: &[f64], count: usize) -> Vec<f64> {
    (0..count).map(|c| cells.iter().skip(c).step_by(count).copied().fold(0.0, f64::max)).collect()
}

/// Draws a legend key. `x` is its left edge and `y` its vertical center.
fn draw_key(scene: &mut Scene, key: Key, (x, y): ScenePoint) {
    let end = x + key.width();
    match key {
        Key::Bar(style) => {
            scene.fill(vec![(x, y - 3.5), (end, y - 3.5), (end, y + 3.5), (x, y + 3.5)], style.color, 1.0);
            scene.marker((x + BAR_KEY_WIDTH / 2.0, y), style.marker, SURFACE, 2.0);
        }
        Key::Marker(style) => scene.marker((x + 2.5, y), style.marker, style.color, 2.4),
        Key::Line { style, dash, marked } => {
            scene.line(&[(x, y), (end, y)], style.color, 1.4, dash);
            if marked {
                scene.marker((x + key.width() / 2.0, y), style.marker, style.color, 2.4);
            }
        }
        Key::Block { fill, border, dash } => {
            let from = (x, y - 4.0);
            let to = (end, y + 4.0);
            if let Some(fill) = fill {
                scene.rect(from, to, fill);
            }
            scene.border(from, to, border, 0.7, dash);
        }
        Key::Arrow(color) => draw_arrow(scene, &[(x, y), (end, y)], color),
    }
}

pub(super) fn draw_arrow(scene: &mut Scene, places: &[ScenePoint], color: Color) {
    const HEAD: f64 = 3.6;
    let [.., before, tip] = places else { return };
    let length = (tip.0 - before.0).hypot(tip.1 - before.1);
    if length <= 0.0 {
        return;
    }
    let along = ((tip.0 - before.0) / length, (tip.1 - before.1) / length);
    let foot = (tip.0 - along.0 * HEAD, tip.1 - along.1 * HEAD);
    let mut shaft = places[..places.len() - 1].to_vec();
    shaft.push(foot);
    scene.line(&shaft, color, 1.2, Dash::Solid);
    let side = (-along.1 * HEAD * 0.6, along.0 * HEAD * 0.6);
    let corners = vec![*tip, (foot.0 + side.0, foot.1 + side.1), (foot.0 - side.0, foot.1 - side.1)];
    scene.fill(corners, color, 1.0);
}

/// Draws the label `embedding` below a layer stack and the label `head` above it.
pub(super) fn draw_stack_ends(scene: &mut Scene, x: f64, (ground, top): (f64, f64)) {
    scene.text((x, ground + STACK_ENDS + font::LINE * 0.8), "embedding", Anchor::Middle, TEXT);
    scene.text((x, top - STACK_ENDS - GAP * 0.7), "head", Anchor::Middle, TEXT);
}

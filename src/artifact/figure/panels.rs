//! Small multiples: in each panel the values of one method as an area, and over it the line of the one that all are held
//! against. All panels have the same axes, and the axis of values begins at 0: areas can be compared.

use super::axis::{Axis, Decimals, Range, Scale, drawable, plain};
use super::curves::{Line, thinned};
use super::font;
use super::frame::{self, GAP, HALF, Key, MARGIN, Surroundings, Width};
use super::palette::{self, FAINT, GRID, MUTED, TEXT};
use super::scene::{Anchor, Scene, ScenePoint};
use crate::error::{Error, Result};
use crate::style::Dash;

/// A panel for each line.
#[derive(Debug, Clone, PartialEq)]
pub struct PanelChart {
    pub x: Axis,
    /// Linear, from 0.
    pub y: Axis,
    /// One panel each, in this order.
    pub lines: Vec<Line>,
    /// Drawn in every panel; none leaves the areas alone.
    pub against: Option<Line>,
}

/// A panel's plot, and between two panels.
const HEIGHT: f64 = 46.0;
const APART: f64 = 9.0;
/// Values nearer to each other than this, in points of print, are drawn as their largest.
const COLUMN: f64 = 0.35;
/// Ticks of the axis of values.
const TICKS: usize = 3;

impl PanelChart {
    /// # Errors
    /// When there is no panel, or no number that the axes can show.
    pub(super) fn draw(&self, around: &Surroundings, scene: &mut Scene) -> Result<f64> {
        let nothing = || Error::bad_input("a figure of panels has nothing to draw");
        if self.lines.is_empty() {
            return Err(nothing().expected("at least one line").found("none"));
        }
        let points = || self.all().flat_map(seen);
        let xs = Range::of(points().map(|(x, _)| x), Scale::Linear);
        let ys = Range::of(points().map(|(_, y)| y).chain([0.0]), Scale::Linear);
        let (Some(xs), Some(ys)) = (xs, ys) else {
            return Err(nothing().found("no point with two finite numbers"));
        };
        Ok(self.draw_on(around, (&xs.exactly(), &ys.with_base().with_end_ticks(TICKS)), scene))
    }

    fn all(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().chain(&self.against)
    }

    fn draw_on(&self, around: &Surroundings, (xs, ys): (&Range, &Range), scene: &mut Scene) -> f64 {
        let (start, end) = (MARGIN, scene.width - MARGIN);
        let means = Decimals::of(self.all().filter_map(mean));
        let said = |line: &Line| {
            mean(line).map_or_else(|| line.label.clone(), |mean| format!("{}: {}", line.label, means.write(mean)))
        };
        let below = frame::heading_lines(scene, &around.heading);
        let mut entries = vec![(Key::Block { fill: Some(FAINT), border: MUTED, dash: Dash::Solid }, AREA.to_owned())];
        entries.extend(self.against.as_ref().map(|line| {
            let style = palette::of(&line.method);
            (Key::Line { style, dash: Dash::Solid, marked: false }, said(line))
        }));
        let below = frame::legend(scene, &entries, (start, end, below));
        let title = font::wrap(&self.y.title(), end - start);
        let top = scene.lines((start, below + GAP), &title, Anchor::Start) + GAP;

        let ticks = ys.ticks(TICKS);
        let left = start + font::widest(ticks.iter().map(|tick| tick.text.as_str())) + GAP;
        let columns = if around.width == Width::Page { 3 } else { 2 };
        let width = (end - left + APART) / columns as f64 - APART;
        let heads: Vec<Vec<String>> = self.lines.iter().map(|line| font::wrap(&said(line), width)).collect();
        let mut bottom = top;
        for (i, line) in self.lines.iter().enumerate() {
            let column = i % columns;
            // The names of a row end on one line, whatever their lengths.
            let named = heads[i - column..].iter().take(columns).map(Vec::len).max().unwrap_or(1) as f64 * font::LINE;
            let above = if column == 0 { bottom } else { bottom - HEIGHT - APART - named - 2.0 };
            bottom = above + named + 2.0 + HEIGHT + APART;
            let corner = (left + column as f64 * (width + APART), above + named + 2.0);
            let panel = Panel { corner, width, xs, ys };
            let first = above + named - heads[i].len() as f64 * font::LINE;
            scene.lines((corner.0, first), &heads[i], Anchor::Start);
            for tick in &ticks {
                let y = panel.y(tick.at);
                scene.line(&[(corner.0, y), (corner.0 + width, y)], GRID, 0.5, Dash::Solid);
                if column == 0 {
                    scene.text((left - GAP, y + HALF), &tick.text, Anchor::End, TEXT);
                }
            }
            panel.area(scene, line);
            if let Some(against) = &self.against {
                panel.line(scene, against);
            }
            let ground = corner.1 + HEIGHT;
            scene.line(&[(corner.0, ground), (corner.0 + width, ground)], TEXT, 0.8, Dash::Solid);
            // The lowest panel of its column says what x is.
            if i + columns >= self.lines.len() {
                panel.x_ticks(scene);
            }
        }
        let below = bottom - APART + GAP + font::LINE;
        scene.lines((f64::midpoint(left, end), below), &[self.x.title()], Anchor::Middle)
    }
}

const AREA: &str = "the repair above the panel, with its mean";

/// Where a panel lies, and its axes.
struct Panel<'a> {
    /// Upper left of the plot.
    corner: ScenePoint,
    width: f64,
    xs: &'a Range,
    ys: &'a Range,
}

impl Panel<'_> {
    fn x(&self, value: f64) -> f64 {
        self.corner.0 + self.xs.place(value) * self.width
    }

    fn y(&self, value: f64) -> f64 {
        self.corner.1 + (1.0 - self.ys.place(value)) * HEIGHT
    }

    fn places(&self, line: &Line) -> Vec<ScenePoint> {
        seen(line).map(|(x, y)| (self.x(x), self.y(y))).collect()
    }

    /// From 0 to the largest value at each place.
    fn area(&self, scene: &mut Scene, line: &Line) {
        let places = self.places(line);
        let columns = places.chunk_by(|a, b| (a.0 / COLUMN).floor() == (b.0 / COLUMN).floor());
        let highest =
            |column: &[ScenePoint]| column.iter().copied().reduce(|best, at| if at.1 < best.1 { at } else { best });
        let edge: Vec<ScenePoint> = columns.filter_map(highest).collect();
        let [(first, _), .., (last, _)] = edge[..] else { return };
        let ground = self.y(0.0);
        let corners = [(first, ground)].into_iter().chain(edge.iter().copied()).chain([(last, ground)]).collect();
        scene.fill(corners, FAINT, 1.0);
        scene.line(&edge, MUTED, 0.4, Dash::Solid);
    }

    fn line(&self, scene: &mut Scene, line: &Line) {
        scene.line(&thinned(&self.places(line)), palette::of(&line.method).colour, 0.9, Dash::Solid);
    }

    /// The ends of the axis alone: a panel has no room for more.
    fn x_ticks(&self, scene: &mut Scene) {
        let baseline = self.corner.1 + HEIGHT + GAP + font::LINE * 0.8;
        for (place, anchor) in [(0.0, Anchor::Start), (1.0, Anchor::End)] {
            let text = plain(self.xs.at(place));
            scene.text((self.corner.0 + place * self.width, baseline), &text, anchor, TEXT);
        }
    }
}

/// The points that can be drawn.
fn seen(line: &Line) -> impl Iterator<Item = (f64, f64)> {
    line.points.iter().filter_map(|point| Some((drawable(Some(point.x))?, drawable(point.y)?)))
}

/// Of the values that can be drawn; none where none can.
fn mean(line: &Line) -> Option<f64> {
    let (sum, count) = seen(line).fold((0.0, 0u32), |(sum, count), (_, y)| (sum + y, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

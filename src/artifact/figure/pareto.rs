//! Points in a plane with the better side up: quality against what it costs, with an interval each; those that are out of the
//! race are faint.

use super::axis::{Axis, Range, drawable};
use super::font;
use super::frame::{self, Frame, FramePlan, Surroundings};
use super::legend::Key;
use super::palette::{self, FAINT};
use super::scene::Scene;
use crate::error::{Error, Result};

/// A variant.
#[derive(Debug, Clone, PartialEq)]
pub struct Dot {
    /// Decides marker and colour: see [`palette::of`].
    pub method: String,
    /// Its name in print.
    pub label: String,
    pub x: f64,
    pub y: f64,
    /// Half the length of its interval.
    pub error: Option<f64>,
    /// Out of the race.
    pub faint: bool,
}

/// A plane of variants.
#[derive(Debug, Clone, PartialEq)]
pub struct Pareto {
    pub x: Axis,
    pub y: Axis,
    pub dots: Vec<Dot>,
}

/// Of a marker, in points.
const RADIUS: f64 = 2.2;

impl Pareto {
    /// # Errors
    /// When no dot has two numbers that can be drawn.
    pub(super) fn draw(&self, around: &Surroundings, scene: &mut Scene) -> Result<()> {
        let seen: Vec<(&Dot, f64, f64, f64)> = self
            .dots
            .iter()
            .filter_map(|dot| {
                let error = drawable(dot.error).unwrap_or(0.0).abs();
                Some((dot, drawable(Some(dot.x))?, drawable(Some(dot.y))?, error))
            })
            .collect();
        let xs = Range::of(seen.iter().map(|(_, x, ..)| *x), self.x.scale);
        let ys = Range::of(seen.iter().flat_map(|(_, _, y, error)| [y - error, y + error]), self.y.scale);
        let (Some(xs), Some(ys)) = (xs, ys) else {
            return Err(Error::bad_input("a figure of points has nothing to draw"));
        };
        let (xs, ys) = (xs.with_room(false), ys.with_room(false));
        // A look stands once in the legend, under the name of its first dot.
        let mut methods: Vec<(&str, &str)> = Vec::new();
        for (dot, ..) in &seen {
            if methods.iter().all(|(method, _)| *method != dot.method) {
                methods.push((&dot.method, &dot.label));
            }
        }
        let keys: Vec<(Key, String)> =
            methods.into_iter().map(|(method, label)| (Key::Bar(palette::of(method)), label.to_owned())).collect();
        let ticks = xs.ticks(6);
        let aside = font::widest(ticks.iter().map(|tick| tick.text.as_str())) / 2.0;
        let plan = FramePlan { around, axis: &self.y, range: ys, entries: &keys, head: RADIUS, foot: RADIUS, aside };
        let frame = Frame::draw(scene, plan);
        let place = |x: f64| frame.x(&xs, x);
        // Survivors lie on top.
        for faint in [true, false] {
            for (dot, x, y, error) in seen.iter().filter(|(dot, ..)| dot.faint == faint) {
                let look = palette::of(&dot.method);
                let colour = if faint { FAINT } else { look.colour };
                if *error > 0.0 {
                    frame.whisker(scene, place(*x), (y - error, y + error), colour);
                }
                scene.marker((place(*x), frame.y(*y)), look.marker, colour, RADIUS);
            }
        }
        let below = frame.x_axis(scene, &self.x, &ticks, &xs);
        frame::end(scene, &around.note, below);
        Ok(())
    }
}

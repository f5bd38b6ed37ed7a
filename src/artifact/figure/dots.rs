//! Dots in columns: a value for each draw of a method, and a dash at their mean.

use super::axis::{Axis, Range, drawable};
use super::bars::Series;
use super::frame::{self, Frame, FramePlan, GAP, Groups, Surroundings};
use super::legend::Key;
use super::palette::{self, TEXT};
use super::scene::Scene;
use crate::error::{Error, Result};
use crate::style::Dash;

/// Groups of columns of dots, one column a method in each.
#[derive(Debug, Clone, PartialEq)]
pub struct Dots {
    pub axis: Axis,
    /// The groups' names, below the columns.
    pub groups: Vec<String>,
    /// Of each group all draws; those that are not finite are not drawn.
    pub methods: Vec<Series<Vec<f64>>>,
}

/// Between two groups, in columns.
const APART: f64 = 1.0;
/// Of a dot, in points.
const RADIUS: f64 = 1.8;
/// Of a column's room, the part that the dash at the mean fills.
const FILLED: f64 = 0.7;
/// A column is not wider than this, however few there are.
const WIDEST: f64 = 24.0;

impl Dots {
    /// # Errors
    /// When there is no number, or a method has not one list of values per group.
    pub(super) fn draw(&self, around: &Surroundings, scene: &mut Scene) -> Result<()> {
        if let Some(method) = self.methods.iter().find(|method| method.values.len() != self.groups.len()) {
            return Err(Error::bad_input("a method's dots do not fit the groups")
                .at(method.label.as_str())
                .expected(format!("values of {} groups", self.groups.len()))
                .found(method.values.len().to_string()));
        }
        let numbers = self.methods.iter().flat_map(|method| method.values.iter().flatten());
        let numbers = numbers.filter_map(|&value| drawable(Some(value)));
        let range = Range::of(numbers, self.axis.scale)
            .ok_or_else(|| Error::bad_input("a figure of dots has no number to draw"))?;
        self.draw_on(around, range.with_room(false), scene);
        Ok(())
    }

    fn draw_on(&self, around: &Surroundings, range: Range, scene: &mut Scene) {
        let keys: Vec<(Key, String)> =
            self.methods.iter().map(|of| (Key::Bar(palette::of(&of.method)), of.label.clone())).collect();
        let plan =
            FramePlan { around, axis: &self.axis, range, entries: &keys, head: RADIUS, foot: RADIUS, aside: 0.0 };
        let frame = Frame::draw(scene, plan);
        let groups = Groups::of(&frame, (self.groups.len(), self.methods.len()), APART, WIDEST);
        for (i, method) in self.methods.iter().enumerate() {
            let look = palette::of(&method.method);
            for (j, values) in method.values.iter().enumerate() {
                let x = groups.column(j, i);
                let known: Vec<f64> = values.iter().filter_map(|&value| drawable(Some(value))).collect();
                if !known.is_empty() {
                    let (y, half) =
                        (frame.y(known.iter().sum::<f64>() / known.len() as f64), groups.pitch * FILLED / 2.0);
                    scene.line(&[(x - half, y), (x + half, y)], TEXT, 0.8, Dash::Solid);
                }
                known.iter().for_each(|&value| scene.marker((x, frame.y(value)), look.marker, look.colour, RADIUS));
            }
        }
        frame.axis_line(scene, frame.bottom);
        let end = groups.names(scene, &self.groups, frame.bottom + GAP);
        frame::end(scene, &around.note, end);
    }
}

//! A scene through plotters: the same shapes on its SVG and on its bitmap backend.
//!
//! Only plotters' drawing floor is used. Its charts lay out in whole pixels and leave labels to overlap; here the places
//! are computed in points (`frame`), and the backends are given fine pixels.

use plotters::prelude::DrawingBackend;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontTransform, RGBColor, ShapeStyle, TextStyle};

use super::font;
use super::palette::{Colour, SURFACE};
use super::scene::{Anchor, Scene, ScenePoint, Shape};
use super::theme::Theme;
use crate::error::{Error, Result};

/// What differs between the backends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Surface {
    /// Pixels per point.
    pub(super) scale: f64,
    pub(super) theme: Theme,
    /// plotters' size of a font of 1 pixel to the em.
    pub(super) per_em: f64,
    /// How far below its anchor a backend puts the baseline of a text anchored at its top, in parts of plotters' size.
    pub(super) baseline: f64,
    /// Whether a thick path must be given as single strokes: the bitmap backend fills its outline, which leaves holes
    /// where a path crosses itself.
    pub(super) strokes: bool,
    /// Whether the ground is drawn: without it a figure has that of the page that it stands on.
    pub(super) ground: bool,
}

impl Surface {
    /// Whole pixels of a length in points.
    pub(super) fn pixels(&self, points: f64) -> i32 {
        (points * self.scale).round() as i32
    }

    fn at(&self, (x, y): ScenePoint) -> (i32, i32) {
        (self.pixels(x), self.pixels(y))
    }

    fn ink(&self, colour: Colour, opacity: f64, width: f64) -> ShapeStyle {
        let stroke_width = self.pixels(width).max(1).unsigned_abs();
        ShapeStyle { color: self.rgb(colour).mix(opacity), filled: true, stroke_width }
    }

    fn rgb(&self, colour: Colour) -> RGBColor {
        let [r, g, b] = colour.rgb(self.theme);
        RGBColor(r, g, b)
    }

    /// The size of a scene in pixels.
    pub(super) fn size(&self, scene: &Scene) -> (u32, u32) {
        (self.pixels(scene.width).max(1).unsigned_abs(), self.pixels(scene.height).max(1).unsigned_abs())
    }
}

/// Draws the ground, where there is one, and then every shape.
///
/// # Errors
/// When the backend fails.
pub(super) fn paint<B: DrawingBackend>(scene: &Scene, backend: &mut B, surface: Surface) -> Result<()> {
    let (width, height) = surface.size(scene);
    let corner = (i32::try_from(width).unwrap_or(i32::MAX), i32::try_from(height).unwrap_or(i32::MAX));
    let ground = surface.ink(SURFACE, 1.0, 1.0);
    let drawn = if surface.ground { backend.draw_rect((0, 0), corner, &ground, true) } else { Ok(()) };
    let painted = drawn
        .map_err(|error| error.to_string())
        .and_then(|()| scene.shapes.iter().try_for_each(|shape| paint_shape(shape, backend, surface)))
        .and_then(|()| backend.present().map_err(|error| error.to_string()));
    painted.map_err(|error| Error::job("a figure could not be drawn").at(scene.title.as_str()).found(error))
}

/// # Errors
/// What the backend says.
fn paint_shape<B: DrawingBackend>(shape: &Shape, backend: &mut B, surface: Surface) -> Result<(), String> {
    match shape {
        Shape::Rect { from, to, colour } => {
            let ink = surface.ink(*colour, 1.0, 1.0);
            backend.draw_rect(surface.at(*from), surface.at(*to), &ink, true)
        }
        Shape::Fill { corners, colour, opacity } => {
            backend.fill_polygon(corners.iter().map(|c| surface.at(*c)), &surface.ink(*colour, *opacity, 1.0))
        }
        Shape::Disc { centre, radius, colour } => {
            let radius = surface.pixels(*radius).unsigned_abs();
            backend.draw_circle(surface.at(*centre), radius, &surface.ink(*colour, 1.0, 1.0), true)
        }
        Shape::Line { places, colour, width } => {
            let ink = surface.ink(*colour, 1.0, *width);
            let places: Vec<_> = places.iter().map(|place| surface.at(*place)).collect();
            if surface.strokes {
                return strokes(backend, &places, &ink);
            }
            backend.draw_path(places, &ink)
        }
        Shape::Text { at, text, anchor, colour, upwards } => {
            let em = font::SIZE * surface.scale;
            let size = em * surface.per_em;
            let h_pos = match anchor {
                Anchor::Start => HPos::Left,
                Anchor::Middle => HPos::Center,
                Anchor::End => HPos::Right,
            };
            let colour = surface.rgb(*colour);
            let turn = if *upwards { FontTransform::Rotate270 } else { FontTransform::None };
            let style = TextStyle::from(font::sized(em).resize(size).transform(turn))
                .color(&colour)
                .pos(Pos::new(h_pos, VPos::Top));
            // The anchor that puts the baseline where it belongs.
            let (x, y) = surface.at(*at);
            let back = (size * surface.baseline).round() as i32;
            backend.draw_text(text, &style, if *upwards { (x - back, y) } else { (x, y - back) })
        }
    }
    .map_err(|error| error.to_string())
}

/// A path stroke by stroke, with round joints.
fn strokes<B: DrawingBackend>(backend: &mut B, places: &[(i32, i32)], ink: &ShapeStyle) -> Result<(), String> {
    for (i, pair) in places.windows(2).enumerate() {
        backend.draw_line(pair[0], pair[1], ink).map_err(|error| error.to_string())?;
        if i > 0 && ink.stroke_width > 2 {
            backend.draw_circle(pair[0], ink.stroke_width / 2, ink, true).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

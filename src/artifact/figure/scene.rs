//! Format-independent shapes, positioned in points from the upper left corner.

use super::font;
use super::palette::{Color, SURFACE, TEXT, dash_lengths};
use crate::style::{Dash, Marker};

/// Position in points, measured right and down from the upper left corner.
pub(super) type ScenePoint = (f64, f64);

/// Horizontal alignment of text relative to its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum SceneShape {
    /// Filled rectangle from its upper left to its lower right corner.
    Rect {
        from: ScenePoint,
        to: ScenePoint,
        color: Color,
    },
    Fill {
        corners: Vec<ScenePoint>,
        color: Color,
        opacity: f64,
    },
    Disc {
        center: ScenePoint,
        radius: f64,
        color: Color,
    },
    Line {
        places: Vec<ScenePoint>,
        color: Color,
        width: f64,
    },
    /// One line of text. `at` lies on its baseline. `vertical` rotates the text by 90° counterclockwise about `at`.
    Text {
        at: ScenePoint,
        text: String,
        anchor: Anchor,
        color: Color,
        vertical: bool,
    },
}

/// Shapes of a drawing, from back to front.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scene {
    pub(super) title: String,
    pub(super) description: String,
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) shapes: Vec<SceneShape>,
}

impl Scene {
    pub(super) fn new(title: &str, description: &str, width: f64) -> Self {
        Self { title: title.to_owned(), description: description.to_owned(), width, height: 0.0, shapes: Vec::new() }
    }

    pub(super) fn rect(&mut self, a: ScenePoint, b: ScenePoint, color: Color) {
        let from = (a.0.min(b.0), a.1.min(b.1));
        let to = (a.0.max(b.0), a.1.max(b.1));
        self.shapes.push(SceneShape::Rect { from, to, color });
    }

    pub(super) fn fill(&mut self, corners: Vec<ScenePoint>, color: Color, opacity: f64) {
        self.shapes.push(SceneShape::Fill { corners, color, opacity });
    }

    pub(super) fn line(&mut self, places: &[ScenePoint], color: Color, width: f64, dash: Dash) {
        for places in split_into_dashes(places, dash_lengths(dash)) {
            self.shapes.push(SceneShape::Line { places, color, width });
        }
    }

    pub(super) fn border(&mut self, from: ScenePoint, to: ScenePoint, color: Color, width: f64, dash: Dash) {
        self.line(&[from, (to.0, from.1), to, (from.0, to.1), from], color, width, dash);
    }

    pub(super) fn text(&mut self, at: ScenePoint, text: &str, anchor: Anchor, color: Color) {
        // XML does not allow control characters, not even escaped ones.
        let text = text.replace(char::is_control, " ");
        self.shapes.push(SceneShape::Text { at, text, anchor, color, vertical: false });
    }

    pub(super) fn vertical_text(&mut self, at: ScenePoint, text: &str, anchor: Anchor, color: Color) {
        let text = text.replace(char::is_control, " ");
        self.shapes.push(SceneShape::Text { at, text, anchor, color, vertical: true });
    }

    /// Draws lines of text and returns the y-coordinate below them.
    pub(super) fn lines(&mut self, (x, top): ScenePoint, lines: &[String], anchor: Anchor) -> f64 {
        for (i, line) in lines.iter().enumerate() {
            self.text((x, top + i as f64 * font::LINE + font::ASCENT * font::SIZE), line, anchor, TEXT);
        }
        top + lines.len() as f64 * font::LINE
    }

    /// Draws a marker. An outline in the background color separates overlapping markers.
    pub(super) fn marker(&mut self, center: ScenePoint, marker: Marker, color: Color, radius: f64) {
        for (radius, color) in [(radius + 0.7, SURFACE), (radius, color)] {
            match marker_polygons(marker) {
                None => self.shapes.push(SceneShape::Disc { center, radius, color }),
                Some(parts) => {
                    for part in parts {
                        self.fill(
                            part.iter().map(|&(x, y)| (center.0 + x * radius, center.1 + y * radius)).collect(),
                            color,
                            1.0,
                        );
                    }
                }
            }
        }
    }

    /// Returns the bounding box of a text, or `None` for other shapes.
    #[cfg(test)]
    pub(super) fn bounding_box(shape: &SceneShape) -> Option<(ScenePoint, ScenePoint)> {
        let SceneShape::Text { at: (x, y), text, anchor, vertical, .. } = shape else { return None };
        let width = font::width(text);
        let back = match anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => width / 2.0,
            Anchor::End => width,
        };
        let above = font::ASCENT * font::SIZE;
        let below = 0.24 * font::SIZE;
        Some(if *vertical {
            ((x - above, y + back - width), (x + below, y + back))
        } else {
            ((x - back, y - above), (x - back + width, y + below))
        })
    }
}

/// Returns the convex parts of a marker with radius 1, or `None` for a circle.
fn marker_polygons(marker: Marker) -> Option<Vec<Vec<ScenePoint>>> {
    // Bar for markers that consist of strokes.
    let bar = [(-1.1, -0.34), (1.1, -0.34), (1.1, 0.34), (-1.1, 0.34)];
    let triangle = [(0.0, -1.15), (1.1, 0.8), (-1.1, 0.8)];
    let square = [(-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)];
    Some(match marker {
        Marker::Circle => return None,
        Marker::Square => vec![square.to_vec()],
        Marker::Diamond => vec![vec![(0.0, -1.25), (1.0, 0.0), (0.0, 1.25), (-1.0, 0.0)]],
        Marker::TriangleUp => vec![triangle.to_vec()],
        Marker::TriangleDown => vec![rotate_points(&triangle, 180.0)],
        Marker::Cross => vec![rotate_points(&bar, 45.0), rotate_points(&bar, -45.0)],
        Marker::Plus => vec![bar.to_vec(), rotate_points(&bar, 90.0)],
        Marker::Star => vec![rotate_points(&bar, 90.0), rotate_points(&bar, 30.0), rotate_points(&bar, -30.0)],
    })
}

fn rotate_points(part: &[ScenePoint], degrees: f64) -> Vec<ScenePoint> {
    let (sin, cos) = degrees.to_radians().sin_cos();
    part.iter().map(|(x, y)| (x * cos - y * sin, x * sin + y * cos)).collect()
}

/// Splits a path into its dashes. `lengths` alternates between dashes and gaps.
fn split_into_dashes(places: &[ScenePoint], lengths: &[f64]) -> Vec<Vec<ScenePoint>> {
    if lengths.is_empty() {
        return vec![places.to_vec()];
    }
    let mut parts = Vec::new();
    let mut part: Vec<ScenePoint> = places.first().copied().into_iter().collect();
    // Index of the current dash or gap in `lengths`. `left` is its remaining length.
    let mut which = 0;
    let mut left = lengths[0];
    for pair in places.windows(2) {
        let from = pair[0];
        let to = pair[1];
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        let mut done = 0.0;
        while length - done > left {
            done += left;
            let at = (from.0 + (to.0 - from.0) * done / length, from.1 + (to.1 - from.1) * done / length);
            if which % 2 == 0 {
                part.push(at);
                parts.push(std::mem::take(&mut part));
            } else {
                part = vec![at];
            }
            which = (which + 1) % lengths.len();
            left = lengths[which];
        }
        left -= length - done;
        if which % 2 == 0 {
            part.push(to);
        }
    }
    if part.len() > 1 {
        parts.push(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_continue_around_corners() {
        // The path goes 10 to the right, then 4 down. It is drawn from 0 to 6, skipped to 8, and drawn again to its end
        // at 14.
        let parts = split_into_dashes(&[(0.0, 0.0), (10.0, 0.0), (10.0, 4.0)], &[6.0, 2.0]);
        assert_eq!(parts, [vec![(0.0, 0.0), (6.0, 0.0)], vec![(8.0, 0.0), (10.0, 0.0), (10.0, 4.0)]]);
    }

    #[test]
    fn single_point_has_no_dashes() {
        assert!(split_into_dashes(&[(1.0, 1.0)], &[2.0, 2.0]).is_empty());
        assert!(split_into_dashes(&[], &[2.0, 2.0]).is_empty());
    }

    #[test]
    fn end_anchored_text_is_left_of_its_position() {
        font::load().unwrap();
        let mut scene = Scene::new("", "", 100.0);
        scene.text((50.0, 20.0), "00", Anchor::End, TEXT);
        let ((left, top), (right, bottom)) = Scene::bounding_box(&scene.shapes[0]).unwrap();
        assert!((right - 50.0).abs() < 1e-9 && left < 41.0 && top < 20.0 && bottom > 20.0);
    }
}

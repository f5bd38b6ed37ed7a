//! The legend, in rows above the drawing, where it covers nothing.

use super::font;
use super::palette::{Colour, Look, TEXT};
use super::scene::{Anchor, Scene, ScenePoint};
use crate::style::Dash;

/// What stands before a label.
#[derive(Debug, Clone, Copy)]
pub(super) enum Key {
    /// A bar of a method, with its marker.
    Bar(Look),
    /// A line of a method, with its marker where it has markers.
    Line { style: Look, dash: Dash, marked: bool },
    /// A box of a diagram.
    Block { fill: Option<Colour>, border: Colour, dash: Dash },
    /// An arrow.
    Arrow(Colour),
}

impl Key {
    fn width(self) -> f64 {
        match self {
            Self::Line { .. } => 24.0,
            _ => 18.0,
        }
    }
}

/// Between a key and its label, and between two entries.
const GAP: f64 = 4.0;
const APART: f64 = 10.0;
const ROW: f64 = font::LINE + 2.0;

/// Draws the entries in columns between `left` and `right` from `top` down; gives where the drawing can begin.
pub(super) fn draw(scene: &mut Scene, entries: &[(Key, String)], (left, right, top): (f64, f64, f64)) -> f64 {
    let room = right - left;
    let labels: Vec<String> =
        entries.iter().map(|(key, label)| font::shorten(label, room - key.width() - GAP)).collect();
    let cells: Vec<f64> =
        entries.iter().zip(&labels).map(|((key, _), label)| key.width() + GAP + font::width(label) + APART).collect();
    // Of each column the widest cell.
    let columns = |count: usize| -> Vec<f64> {
        (0..count).map(|c| cells.iter().skip(c).step_by(count).copied().fold(0.0, f64::max)).collect()
    };
    let fits = |count: &usize| columns(*count).iter().sum::<f64>() - APART <= room;
    let most = (1..=entries.len()).rev().find(fits).unwrap_or(1);
    // As few columns as the rows need: 7 entries are 4 + 3 and not 5 + 2.
    let rows = entries.len().div_ceil(most);
    let even = columns(entries.len().div_ceil(rows.max(1)).max(1));
    let widths = if even.iter().sum::<f64>() - APART <= room { even } else { columns(most) };
    for (i, ((key, _), label)) in entries.iter().zip(&labels).enumerate() {
        let (row, column) = (i / widths.len(), i % widths.len());
        let x = left + widths[..column].iter().sum::<f64>();
        let middle = top + ROW * (row as f64 + 0.5);
        draw_key(scene, *key, (x, middle));
        scene.text((x + key.width() + GAP, middle + font::SIZE * 0.36), label, Anchor::Start, TEXT);
    }
    top + rows as f64 * ROW
}

/// A key whose left end is at a place.
fn draw_key(scene: &mut Scene, key: Key, (x, y): ScenePoint) {
    let end = x + key.width();
    match key {
        Key::Bar(style) => {
            let corners = vec![(x, y - 3.5), (x + 9.0, y - 3.5), (x + 9.0, y + 3.5), (x, y + 3.5)];
            scene.fill(corners, style.colour, 1.0);
            scene.marker((x + 14.5, y), style.marker, style.colour, 2.4);
        }
        Key::Line { style, dash, marked } => {
            scene.line(&[(x, y), (end, y)], style.colour, 1.4, dash);
            if marked {
                scene.marker((x + key.width() / 2.0, y), style.marker, style.colour, 2.4);
            }
        }
        Key::Block { fill, border, dash } => {
            let (from, to) = ((x, y - 4.0), (end, y + 4.0));
            if let Some(fill) = fill {
                scene.rect(from, to, fill);
            }
            scene.border(from, to, border, 0.7, dash);
        }
        Key::Arrow(colour) => arrow(scene, &[(x, y), (end, y)], colour),
    }
}

/// A line with a head at its end.
pub(super) fn arrow(scene: &mut Scene, places: &[ScenePoint], colour: Colour) {
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
    scene.line(&shaft, colour, 1.2, Dash::Solid);
    let side = (-along.1 * HEAD * 0.6, along.0 * HEAD * 0.6);
    let corners = vec![*tip, (foot.0 + side.0, foot.1 + side.1), (foot.0 - side.0, foot.1 - side.1)];
    scene.fill(corners, colour, 1.0);
}

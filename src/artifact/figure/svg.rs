//! Writes a scene as an accessible SVG that uses a font installed on the reader's machine.
//!
//! Attributes contain the colors of the light theme, and a style sheet replaces them in the dark theme. Viewers that do
//! not support style sheets therefore show the light figure.

use std::fmt::Write as _;

use super::font;
use super::palette::{self, Color};
use super::scene::{Anchor, Scene, ScenePoint, SceneShape};

/// SVG user units per point. Coordinates are rounded to whole units, which is precise enough at this scale.
const UNITS_PER_POINT: f64 = 10.0;

/// Fallback fonts. None of them is wider than DejaVu Sans.
const FALLBACK_FONTS: &str = "Verdana, Helvetica, Arial, sans-serif";

pub(super) fn render_svg(scene: &Scene) -> String {
    let mut page = SvgBody::default();
    scene.shapes.iter().for_each(|shape| page.draw(shape));
    page.end_path();
    let [width, height] = [scene.width, scene.height].map(|points| units(points).max(1));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}pt\" height=\"{}pt\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" class=\"{ROOT_CLASS}\" font-family=\"{}, {FALLBACK_FONTS}\" font-size=\"{}\" \
         stroke-linejoin=\"round\">\n<title>{}</title>\n<desc>{}</desc>\n<style>{}</style>\n{}</svg>\n",
        f64::from(width) / UNITS_PER_POINT,
        f64::from(height) / UNITS_PER_POINT,
        font::NAME,
        font::SIZE * UNITS_PER_POINT,
        escape_xml(&scene.title),
        escape_xml(&scene.description),
        format_dark_rules(&page.body),
        page.body,
    )
}

fn units(points: f64) -> i32 {
    (points * UNITS_PER_POINT).round() as i32
}

fn at((x, y): ScenePoint) -> (i32, i32) {
    (units(x), units(y))
}

/// Body of an SVG document under construction.
#[derive(Default)]
struct SvgBody {
    body: String,
    /// Attributes of the path being written. All dashes of a line share one path.
    stroke: Option<String>,
}

impl SvgBody {
    fn end_path(&mut self) {
        if let Some(stroke) = self.stroke.take() {
            let _ = writeln!(self.body, "\"{stroke}/>");
        }
    }

    fn push(&mut self, element: &str) {
        self.end_path();
        self.body.push_str(element);
        self.body.push('\n');
    }

    fn draw(&mut self, shape: &SceneShape) {
        match shape {
            SceneShape::Rect { from, to, color } => {
                let ((x, y), (right, bottom)) = (at(*from), at(*to));
                let width = right - x;
                let height = bottom - y;
                let ink = format_paint("fill", *color, 1.0);
                self.push(&format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"{ink}/>"));
            }
            SceneShape::Fill { corners, color, opacity } => {
                let ink = format_paint("fill", *color, *opacity);
                let points = format_points(corners);
                self.push(&format!("<polygon{ink} points=\"{points}\"/>"));
            }
            SceneShape::Disc { center, radius, color } => {
                let ((x, y), radius, ink) = (at(*center), units(*radius), format_paint("fill", *color, 1.0));
                self.push(&format!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"{ink}/>"));
            }
            SceneShape::Line { places, color, width } => {
                let ink = format_paint("stroke", *color, 1.0);
                let width = units(*width).max(1);
                let stroke = format!(" fill=\"none\"{ink} stroke-width=\"{width}\"");
                if self.stroke.as_ref() != Some(&stroke) {
                    self.end_path();
                    self.body.push_str("<path d=\"");
                    self.stroke = Some(stroke);
                }
                let _ = write!(self.body, "M{}", format_points(places));
            }
            SceneShape::Text { at: point, text, anchor, color, vertical } => {
                let anchor = match anchor {
                    Anchor::Start => "start",
                    Anchor::Middle => "middle",
                    Anchor::End => "end",
                };
                let ((x, y), ink, text) = (at(*point), format_paint("fill", *color, 1.0), escape_xml(text));
                let turn = if *vertical { format!(" transform=\"rotate(270, {x}, {y})\"") } else { String::new() };
                self.push(&format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\"{ink}{turn}>{text}</text>"));
            }
        }
    }
}

fn format_points(places: &[ScenePoint]) -> String {
    places.iter().map(|point| at(*point)).map(|(x, y)| format!("{x},{y}")).collect::<Vec<_>>().join(" ")
}

fn format_paint(attribute: &str, color: Color, opacity: f64) -> String {
    let opacity = if opacity < 1.0 { format!(" opacity=\"{opacity}\"") } else { String::new() };
    format!(" {attribute}=\"{}\"{opacity}", format_hex(color.light))
}

fn format_hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

/// Class of the root element. It limits the CSS rules to the figure when the SVG is inlined.
const ROOT_CLASS: &str = "ghostlab-figure";

/// Formats the CSS rules for the dark theme.
fn format_dark_rules(body: &str) -> String {
    let mut rules = String::new();
    for color in palette::all_colors() {
        let light = format_hex(color.light);
        let dark = format_hex(color.dark);
        for attribute in ["fill", "stroke"] {
            let selector = format!("{attribute}=\"{light}\"");
            if body.contains(&selector) {
                // Writing to a string cannot fail.
                let _ = write!(rules, "\n.{ROOT_CLASS} [{selector}]{{{attribute}:{dark}}}");
            }
        }
    }
    format!("@media screen and (prefers-color-scheme:dark){{{rules}\n}}")
}

fn escape_xml(text: &str) -> String {
    let text = text.replace(char::is_control, " ");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

//! The SVG of a scene: a backend of plotters' that writes what a figure on a page needs and plotters' own cannot say. It
//! is accessible, follows a dark page, and its texts stand on their baselines in the reader's own font.
//!
//! A colour is written as its value in the light theme, and a style sheet replaces it where the reader prefers dark: a
//! viewer without style sheets shows the light figure.

use std::convert::Infallible;
use std::fmt::Write as _;

use plotters_backend::text_anchor::HPos;
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind, FontTransform,
};

use super::font;
use super::paint::{Surface, paint};
use super::palette;
use super::scene::Scene;
use super::theme::Theme;
use crate::error::Result;

/// Ten units to the point: whole numbers are fine enough.
const SCALE: f64 = 10.0;

/// Verdana has DejaVu's widths, the others are narrower: a text fits in any of them.
const FAMILIES: &str = "Verdana, Helvetica, Arial, sans-serif";

/// The SVG of a scene; the same bytes for the same scene.
///
/// # Errors
/// When plotters fails.
pub(super) fn svg(scene: &Scene) -> Result<String> {
    let surface =
        Surface { scale: SCALE, theme: Theme::Light, per_em: 1.0, baseline: 0.0, strokes: false, ground: false };
    let size = surface.size(scene);
    let mut page = Page { size, body: String::new(), stroke: None };
    paint(scene, &mut page, surface)?;
    page.end_path();
    let (width, height) = (f64::from(size.0) / SCALE, f64::from(size.1) / SCALE);
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}pt\" height=\"{height}pt\" \
         viewBox=\"0 0 {} {}\" role=\"img\" class=\"{CLASS}\" font-family=\"{}, {FAMILIES}\" font-size=\"{}\" \
         stroke-linejoin=\"round\">\n<title>{}</title>\n<desc>{}</desc>\n<style>{}</style>\n{}</svg>\n",
        size.0,
        size.1,
        font::NAME,
        font::SIZE * SCALE,
        escaped(&scene.title),
        escaped(&scene.description),
        dark(&page.body),
        page.body,
    ))
}

/// The elements of an SVG, as they are drawn.
struct Page {
    size: (u32, u32),
    body: String,
    /// How the path is drawn that is not ended yet: the dashes of a line follow each other, and are one element.
    stroke: Option<String>,
}

impl Page {
    fn end_path(&mut self) {
        if let Some(stroke) = self.stroke.take() {
            let _ = writeln!(self.body, "\"{stroke}/>");
        }
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) -> Drawn {
        self.end_path();
        // Writing to a string does not fail.
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
        Ok(())
    }
}

type Drawn = std::result::Result<(), DrawingErrorKind<Infallible>>;

impl DrawingBackend for Page {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, colour: BackendColor) -> Drawn {
        self.push(format_args!("<rect x=\"{x}\" y=\"{y}\" width=\"1\" height=\"1\"{}/>", painted("fill", colour)))
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_rect<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S, fill: bool) -> Drawn {
        let (width, height) = (to.0 - from.0, to.1 - from.1);
        let ink = filled(style, fill);
        self.push(format_args!("<rect x=\"{}\" y=\"{}\" width=\"{width}\" height=\"{height}\"{ink}/>", from.0, from.1))
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        let (points, ink, width) = (points(path), painted("stroke", style.color()), style.stroke_width());
        let stroke = format!(" fill=\"none\"{ink} stroke-width=\"{width}\"");
        if self.stroke.as_ref() != Some(&stroke) {
            self.end_path();
            self.body.push_str("<path d=\"");
            self.stroke = Some(stroke);
        }
        let _ = write!(self.body, "M{points}");
        Ok(())
    }

    fn draw_circle<S: BackendStyle>(&mut self, (x, y): BackendCoord, radius: u32, style: &S, fill: bool) -> Drawn {
        let ink = filled(style, fill);
        self.push(format_args!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"{ink}/>"))
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, corners: I, style: &S) -> Drawn {
        let ink = painted("fill", style.color());
        self.push(format_args!("<polygon{ink} points=\"{}\"/>", points(corners)))
    }

    fn draw_text<T: BackendTextStyle>(&mut self, text: &str, style: &T, (x, y): BackendCoord) -> Drawn {
        let anchor = match style.anchor().h_pos {
            HPos::Left => "start",
            HPos::Center => "middle",
            HPos::Right => "end",
        };
        let degrees = match style.transform() {
            FontTransform::None => 0,
            FontTransform::Rotate90 => 90,
            FontTransform::Rotate180 => 180,
            FontTransform::Rotate270 => 270,
        };
        let turn = if degrees == 0 { String::new() } else { format!(" transform=\"rotate({degrees}, {x}, {y})\"") };
        let ink = painted("fill", style.color());
        let text = escaped(text);
        self.push(format_args!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\"{ink}{turn}>{text}</text>"))
    }
}

fn points(places: impl IntoIterator<Item = BackendCoord>) -> String {
    places.into_iter().map(|(x, y)| format!("{x},{y}")).collect::<Vec<_>>().join(" ")
}

fn filled(style: &impl BackendStyle, fill: bool) -> String {
    match fill {
        true => painted("fill", style.color()),
        false => {
            let (ink, width) = (painted("stroke", style.color()), style.stroke_width());
            format!(" fill=\"none\"{ink} stroke-width=\"{width}\"")
        }
    }
}

/// A colour as an attribute, and how much of it is seen through.
fn painted(attribute: &str, BackendColor { alpha, rgb }: BackendColor) -> String {
    let opacity = if alpha < 1.0 { format!(" opacity=\"{alpha}\"") } else { String::new() };
    format!(" {attribute}=\"{}\"{opacity}", hex([rgb.0, rgb.1, rgb.2]))
}

fn hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

/// The root's class: the rules hold in the figure alone when a page has the SVG inline.
const CLASS: &str = "ghostlab-figure";

/// The rules for dark screens, of the colours in use.
fn dark(body: &str) -> String {
    let mut rules = String::new();
    for colour in palette::ALL {
        let (light, dark) = (hex(colour.light), hex(colour.dark));
        for attribute in ["fill", "stroke"] {
            let selector = format!("{attribute}=\"{light}\"");
            if body.contains(&selector) {
                // Writing to a string does not fail.
                let _ = write!(rules, "\n.{CLASS} [{selector}]{{{attribute}:{dark}}}");
            }
        }
    }
    format!("@media screen and (prefers-color-scheme:dark){{{rules}\n}}")
}

fn escaped(text: &str) -> String {
    let text = text.replace(char::is_control, " ");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

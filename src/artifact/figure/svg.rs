//! The SVG of a scene: plotters' own, with a header that makes it accessible and right on a dark page.
//!
//! plotters writes every colour as an attribute. The attribute holds the colour of the light theme, and a style sheet
//! replaces it by its value where the reader prefers dark: a viewer without style sheets shows the light figure.

use std::fmt::Write as _;

use plotters::prelude::SVGBackend;

use super::font;
use super::paint::{Surface, paint};
use super::palette;
use super::scene::Scene;
use super::theme::Theme;
use crate::error::{Error, Result};

/// Ten units to the point: whole numbers are fine enough.
const SCALE: f64 = 10.0;

/// plotters divides a font's size by this before it writes it.
const PLOTTERS_PER_EM: f64 = 1.24;

/// What plotters adds to bring the baseline down from the top of a text; taken out, since places are baselines.
const TOP: &str = " dy=\"0.76em\"";

/// Verdana has DejaVu's widths, the others are narrower: a text fits in any of them.
const FAMILIES: &str = "Verdana, Helvetica, Arial, sans-serif";

/// The SVG of a scene; the same bytes for the same scene.
///
/// # Errors
/// When plotters fails.
pub(super) fn svg(scene: &Scene) -> Result<String> {
    let surface = Surface { scale: SCALE, theme: Theme::Light, per_em: PLOTTERS_PER_EM, baseline: 0.0, strokes: false };
    let size = surface.size(scene);
    let mut drawn = String::new();
    paint(scene, &mut SVGBackend::with_string(&mut drawn, size), surface)?;
    let Some((_, body)) = drawn.split_once('>') else {
        return Err(Error::job("plotters wrote no SVG").at(scene.title.as_str()));
    };
    // In a text a quotation mark is escaped: these are attributes, and the defaults or those of the root.
    let body = body
        .replace(TOP, "")
        .replace(&format!(" font-family=\"{}\"", font::NAME), "")
        .replace(" opacity=\"1\"", "")
        .replace(&format!(" font-size=\"{}\"", font::SIZE * SCALE * PLOTTERS_PER_EM / PLOTTERS_PER_EM), "");
    let (width, height) = (f64::from(size.0) / SCALE, f64::from(size.1) / SCALE);
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}pt\" height=\"{height}pt\" \
         viewBox=\"0 0 {} {}\" role=\"img\" class=\"{CLASS}\" font-family=\"{}, {FAMILIES}\" font-size=\"{}\" \
         stroke-linejoin=\"round\">\n<title>{}</title>\n<desc>{}</desc>\n<style>{}</style>{body}",
        size.0,
        size.1,
        font::NAME,
        font::SIZE * SCALE,
        escaped(&scene.title),
        escaped(&scene.description),
        dark(body.as_str()),
    ))
}

/// The root's class: the rules hold in the figure alone when a page has the SVG inline.
const CLASS: &str = "ghostlab-figure";

/// The rules for dark screens, of the colours in use.
fn dark(body: &str) -> String {
    let hex = |[r, g, b]: [u8; 3]| format!("#{r:02X}{g:02X}{b:02X}");
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

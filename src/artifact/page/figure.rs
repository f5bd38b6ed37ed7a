//! Figures of the results page.
//!
//! An SVG is embedded as `<img src="data:image/svg+xml;base64,…">`. Its ids and styles therefore cannot collide with
//! those of other figures, its scripts never run, and it loads no other files. `prefers-color-scheme` still works. The
//! text cannot be selected, but the tables contain the same numbers.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde::Serialize;

use super::data::{FigureView, PageArtifact};
use crate::error::{Error, Result};

/// CSS pixels per point. At this scale, text in figures is as large as text in tables.
const PIXELS_PER_POINT: f64 = 1.5;

#[derive(Debug, Serialize)]
pub(super) struct PageFigure<'a> {
    label: &'a str,
    /// Alternative text for screen readers.
    says: String,
    /// Width and height in pixels, which the browser reserves before it decodes the image.
    size: Option<(u32, u32)>,
    /// Whether the figure needs a light background because it has no dark theme.
    sheet: bool,
    data: String,
}

/// Converts a figure into values for the template.
///
/// # Errors
/// Fails if the figure is not an SVG.
pub(super) fn build_figure<'a>(view: &'a FigureView, artifact: &PageArtifact) -> Result<PageFigure<'a>> {
    let Some(root) = root_attributes(&view.svg) else {
        let found: String = view.svg.chars().take(40).collect();
        return Err(Error::job("the figure is not an SVG")
            .at(format!("artifact {} {}", artifact.name, view.label).trim_end())
            .expected("a document with an `<svg>` element")
            .found(found));
    };
    let parts = [artifact.title.as_str(), &view.label, &artifact.caption];
    Ok(PageFigure {
        label: &view.label,
        says: parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(". "),
        size: figure_size(root).map(|(width, height)| (width.round() as u32, height.round() as u32)),
        sheet: !view.svg.contains("prefers-color-scheme"),
        data: BASE64_STANDARD.encode(&view.svg),
    })
}

/// Returns the attributes of the `<svg>` element, or `None` if there is none.
fn root_attributes(svg: &str) -> Option<&str> {
    let mut rest = svg;
    loop {
        rest = &rest[rest.find("<svg")? + "<svg".len()..];
        if rest.starts_with(|c: char| c.is_whitespace() || c == '>') {
            return rest.split('>').next();
        }
    }
}

/// Returns the size of a figure on the page, in pixels, read from its size attributes or its view box.
///
/// The browser's default of 4/3 pixels per point would be too small, and a figure without a width would fill the page.
fn figure_size(root: &str) -> Option<(f64, f64)> {
    if let [Some(width), Some(height)] =
        ["width", "height"].map(|name| find_attribute(root, name).and_then(parse_pixels))
    {
        return Some((width, height));
    }
    let mut sides = find_attribute(root, "viewBox")?.split([' ', ',']).filter(|text| !text.is_empty()).skip(2);
    Some((parse_pixels(sides.next()?)?, parse_pixels(sides.next()?)?))
}

/// Parses a length with the unit `pt`, `px` or none, and returns it in pixels. Returns `None` for other units and for
/// lengths that are not positive.
fn parse_pixels(text: &str) -> Option<f64> {
    let text = text.trim();
    let (text, scale) = match text.strip_suffix("pt") {
        Some(points) => (points, PIXELS_PER_POINT),
        None => (text.strip_suffix("px").unwrap_or(text), 1.0),
    };
    let number = text.parse::<f64>().ok()? * scale;
    (number.is_finite() && number > 0.0).then_some(number)
}

fn find_attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = attributes;
    loop {
        let (key, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (value, after) = after[1..].split_once(quote)?;
        if key.trim() == name {
            return Some(value);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn svg_size_is_that_of_the_root_or_its_view_box() {
        assert_eq!(size_of("<svg width='640px' height=\"4e2\"><rect width=\"9\"/>"), Some((640.0, 400.0)));
        let printed = "<svg width=\"237.6pt\" height=\"100pt\" viewBox=\"0 0 2376 1000\">";
        assert_eq!(size_of(printed), Some((356.4, 150.0)));
        assert_eq!(size_of("<?xml?><svg\n viewBox = \"0 0 30,20\" width=\"100%\">"), Some((30.0, 20.0)));
        assert_eq!(size_of("<svg stroke-width=\"3\" data-height='4'>"), None);
    }

    fn size_of(svg: &str) -> Option<(f64, f64)> {
        figure_size(root_attributes(svg).unwrap())
    }

    #[test]
    fn invalid_svg_is_rejected() {
        for text in ["", "<svgx>", "plot.png"] {
            let view = FigureView { svg: text.to_owned(), label: "mine".to_owned() };
            let artifact = PageArtifact { name: "loss".into(), ..PageArtifact::default() };
            assert!(build_figure(&view, &artifact).unwrap_err().to_string().contains("artifact loss mine"));
        }
    }
}

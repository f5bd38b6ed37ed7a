//! A figure in the page.
//!
//! An SVG is put in as `<img src="data:image/svg+xml;base64,…">`, not as elements of the page. As an image it is a
//! document of its own: its ids, class names and `<style>` meet nobody else's, scripts in it never run and nothing in it
//! is loaded. `prefers-color-scheme` still works, as an image follows the page's scheme. What is lost is that its text
//! cannot be selected; the same numbers are in the tables and files.

use super::data::FigureView;
use super::html::{base64, escaped};
use crate::error::{Error, Result};

/// The figure with its caption.
///
/// # Errors
/// When it is no SVG.
pub(super) fn figure(view: &FigureView) -> Result<String> {
    let Some(root) = root(&view.svg) else {
        let found: String = view.svg.chars().take(40).collect();
        return Err(Error::job("a figure is no SVG")
            .at(view.caption.clone())
            .expected("a document with an `<svg>` element")
            .found(found));
    };
    // The browser keeps room of this size, so that nothing moves when it has decoded the image.
    let size = size(root).map_or_else(String::new, |(w, h)| format!(" width=\"{w:.0}\" height=\"{h:.0}\""));
    // An SVG that knows no dark scheme is drawn for paper.
    let class = if view.svg.contains("prefers-color-scheme") { "" } else { " class=\"sheet\"" };
    Ok(format!(
        "<figure><img{class} alt=\"{caption}\"{size} src=\"data:image/svg+xml;base64,{data}\">\
         <figcaption>{caption}</figcaption></figure>\n",
        caption = escaped(&view.caption),
        data = base64(view.svg.as_bytes()),
    ))
}

/// What stands between `<svg` and `>`.
fn root(svg: &str) -> Option<&str> {
    let mut rest = svg;
    loop {
        rest = &rest[rest.find("<svg")? + "<svg".len()..];
        if rest.starts_with(|c: char| c.is_whitespace() || c == '>') {
            return rest.split('>').next();
        }
    }
}

/// Width and height in pixels, from the attributes of these names or else the view box.
fn size(root: &str) -> Option<(f64, f64)> {
    let pixels = |text: &str| {
        let number = text.trim().trim_end_matches("px").parse::<f64>().ok()?;
        (number.is_finite() && number > 0.0).then_some(number)
    };
    let side = |name| attribute(root, name).and_then(pixels);
    if let (Some(width), Some(height)) = (side("width"), side("height")) {
        return Some((width, height));
    }
    let mut sides = attribute(root, "viewBox")?.split([' ', ',']).filter(|text| !text.is_empty()).skip(2);
    Some((pixels(sides.next()?)?, pixels(sides.next()?)?))
}

/// The value of an attribute among the attributes of an element.
fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
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
    fn the_size_is_that_of_the_root_or_its_view_box() {
        let of = |svg| size(root(svg).unwrap());
        assert_eq!(of("<svg width='640px' height=\"4e2\"><rect width=\"9\"/>"), Some((640.0, 400.0)));
        assert_eq!(of("<?xml?><svg\n viewBox = \"0 0 30,20\" width=\"100%\">"), Some((30.0, 20.0)));
        assert_eq!(of("<svg stroke-width=\"3\" data-height='4'>"), None);
    }

    #[test]
    fn what_is_no_svg_is_refused() {
        for text in ["", "<svgx>", "plot.png"] {
            let view = FigureView { svg: text.to_owned(), caption: "loss".to_owned() };
            assert!(figure(&view).unwrap_err().to_string().contains("loss"));
        }
    }
}

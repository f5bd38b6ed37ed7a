//! Measures, wraps and truncates text in DejaVu Sans, the font embedded in the figures.

use std::sync::OnceLock;

use plotters::style::{FontDesc, FontFamily, FontStyle, register_font};

use crate::error::{Error, Result};

/// Name of the font. It is also the first choice in SVG files.
pub(super) const NAME: &str = "DejaVu Sans";

/// Size of all text, in points: the smallest legible size in the paper's columns.
pub(super) const SIZE: f64 = 8.0;

/// Line height, in points.
pub(super) const LINE: f64 = 10.0;

/// Height of DejaVu Sans above the baseline, relative to the font size.
pub(super) const ASCENT: f64 = 0.76;

/// Line height of DejaVu Sans per em, (1901 + 483) / 2048. Needed because plotters expects the line height as the font
/// size.
const LINE_PER_EM: f64 = 2384.0 / 2048.0;

/// Font size used to measure text, in pixels per em. It is large because plotters rounds widths to whole pixels.
const MEASURING_SIZE: f64 = 1000.0;

pub(super) fn data() -> &'static [u8] {
    dejavu::sans::regular()
}

/// Registers the font with plotters.
///
/// # Errors
/// Fails if plotters rejects the font, which indicates a broken build.
pub(super) fn load() -> Result<()> {
    static LOADED: OnceLock<bool> = OnceLock::new();
    let loaded = *LOADED.get_or_init(|| register_font(NAME, FontStyle::Normal, data()).is_ok());
    if loaded { Ok(()) } else { Err(Error::job("cannot load the font of the figures").found(NAME)) }
}

pub(super) fn sized(em: f64) -> FontDesc<'static> {
    FontDesc::new(FontFamily::Name(NAME), em * LINE_PER_EM, FontStyle::Normal)
}

/// Returns the width of a line at [`SIZE`], in points. The font must be [loaded](load).
pub(super) fn width(text: &str) -> f64 {
    match sized(MEASURING_SIZE).layout_box(text) {
        Ok(((left, _), (right, _))) => f64::from(right - left) / MEASURING_SIZE * SIZE,
        // Unreachable after `load`. One em per letter is always wide enough.
        Err(_) => text.chars().count() as f64 * SIZE,
    }
}

pub(super) fn widest<'a>(lines: impl IntoIterator<Item = &'a str>) -> f64 {
    lines.into_iter().map(width).fold(0.0, f64::max)
}

/// Breaks `text` at spaces and hyphens into lines of at most `max_width` points. Words that are too long for a line are
/// truncated.
pub(super) fn wrap(text: &str, max_width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let words = text.split_whitespace().flat_map(|word| {
        let mut parts: Vec<String> = word.split_inclusive('-').map(str::to_owned).collect();
        if let Some(last) = parts.last_mut() {
            last.push(' ');
        }
        parts
    });
    for word in words {
        match lines.last_mut() {
            Some(line) if width(&format!("{line}{}", word.trim_end())) <= max_width => line.push_str(&word),
            _ => lines.push(word),
        }
    }
    lines.iter().map(|line| shorten(line.trim_end(), max_width)).collect()
}

/// Truncates `text` with an ellipsis so that it fits into `max_width` points.
pub(super) fn shorten(text: &str, max_width: f64) -> String {
    if width(text) <= max_width {
        return text.to_owned();
    }
    let mut shortened = text.to_owned();
    while shortened.pop().is_some() {
        let short = format!("{}…", shortened.trim_end());
        if width(&short) <= max_width {
            return short;
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_is_the_sum_of_glyph_advances() {
        load().unwrap();
        // Digits in DejaVu Sans have an advance of 1303/2048 em.
        assert!((width("00") - 2.0 * 1303.0 / 2048.0 * SIZE).abs() < 0.02);
    }

    #[test]
    fn long_name_is_broken_at_spaces_and_hyphens() {
        load().unwrap();
        assert_eq!(wrap("Linear Patch (Rotate)", 45.0), ["Linear", "Patch", "(Rotate)"]);
        assert_eq!(wrap("llama-3.1-8b", 36.0), ["llama-", "3.1-8b"]);
        assert_eq!(wrap("short", 100.0), ["short"]);
    }

    #[test]
    fn unbreakable_word_is_shortened_to_the_width() {
        load().unwrap();
        let lines = wrap("incomprehensibilities", 40.0);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].ends_with('…'));
        assert!(width(&lines[0]) <= 40.0);
        assert_eq!(shorten("word", 0.5), "");
    }
}

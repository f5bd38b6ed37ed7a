//! Colors, markers and dashes for methods, which are the same in every figure, and for numbered series.
//!
//! The colors are from Okabe and Ito (2008), some of them darkened for white paper. Each has a contrast of at least 3:1
//! with the background in both themes. The colors are distinguishable with protanopia and deuteranopia. In grayscale,
//! dark and light colors alternate in drawing order.

use crate::style::{Dash, Hue, Marker, Style};
use crate::{criterion, metric, recovery};

/// A color in both themes. The light value identifies the color in SVG files, so it must be unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Color {
    pub light: [u8; 3],
    pub dark: [u8; 3],
}

impl Color {
    /// Creates a color from `0xRRGGBB` values.
    const fn new(light: u32, dark: u32) -> Self {
        let ([_, r, g, b], [_, dr, dg, db]) = (light.to_be_bytes(), dark.to_be_bytes());
        Self { light: [r, g, b], dark: [dr, dg, db] }
    }
}

/// Returns the lengths of the dashes and gaps, in points. The slice is empty for a solid line.
pub(super) fn dash_lengths(dash: Dash) -> &'static [f64] {
    match dash {
        Dash::Solid => &[],
        Dash::Long => &[9.0, 3.0],
        Dash::Dashed => &[4.5, 2.5],
        Dash::DashDot => &[6.0, 2.0, 1.3, 2.0],
        Dash::DashDotDot => &[6.0, 1.8, 1.3, 1.8, 1.3, 1.8],
        Dash::Dotted => &[1.4, 1.8],
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    pub color: Color,
    pub marker: Marker,
    pub dash: Dash,
}

/// Background of every figure. The dark value matches the background of the page (`page.css`).
pub(super) const SURFACE: Color = Color::new(0xFFFFFF, 0x14171A);
pub(super) const TEXT: Color = Color::new(0x1B1B1B, 0xE8E8E8);
/// Color for secondary text, such as missing or removed items.
pub(super) const SECONDARY_TEXT: Color = Color::new(0x666666, 0xA6A6A6);
pub(super) const GRID: Color = Color::new(0xDDDDDD, 0x30363D);
/// Fill color of a layer that is kept.
pub(super) const KEPT_LAYER: Color = Color::new(0xE9EBEE, 0x2B323B);
/// Border color of a removed layer.
pub(super) const REMOVED_LAYER: Color = Color::new(0xA9A9A9, 0x6A6A6A);
/// Color of the residual stream around a removed region. It is red as in the paper's figure 2.
pub(super) const STREAM: Color = Color::new(0xC8102E, 0xFF6B78);
/// Color of the text on a Ghosted Layer.
pub(super) const ON_GHOST: Color = Color::new(0xFFFFFE, 0x14171B);

/// Colors by hue. [`Hue::Ink`] uses the text color.
const HUES: [(Hue, Color); 11] = [
    (Hue::Gray, Color::new(0x555555, 0x7F7F7F)),
    (Hue::Purple, Color::new(0xCC79A7, 0xE8A3C8)),
    (Hue::Green, Color::new(0x006638, 0x1FC08F)),
    (Hue::Sky, Color::new(0x3D9BD1, 0xA5DBF7)),
    (Hue::Vermillion, Color::new(0xC44900, 0xE8692B)),
    (Hue::Orange, Color::new(0xC58900, 0xF2BB3D)),
    (Hue::Blue, Color::new(0x0057A8, 0x3B9AE1)),
    (Hue::Teal, Color::new(0x004C54, 0x4CC9D4)),
    (Hue::Plum, Color::new(0xC2699A, 0xE07AAE)),
    (Hue::Olive, Color::new(0x6B7A00, 0xC5D14A)),
    (Hue::Brown, Color::new(0x7A4B1E, 0xC9905A)),
];

fn color(hue: Hue) -> Color {
    HUES.iter().find(|(known, _)| *known == hue).map_or(TEXT, |(_, color)| *color)
}

pub(super) fn all_colors() -> impl Iterator<Item = Color> {
    let ground = [SURFACE, TEXT, SECONDARY_TEXT, GRID, KEPT_LAYER, REMOVED_LAYER, STREAM, ON_GHOST];
    ground.into_iter().chain(HUES.map(|(_, color)| color))
}

/// Hues for methods that define no style.
const FALLBACK_HUES: [Hue; 4] = [Hue::Olive, Hue::Brown, Hue::Teal, Hue::Plum];
const MARKERS: [Marker; 8] = [
    Marker::Star,
    Marker::Plus,
    Marker::Diamond,
    Marker::Square,
    Marker::TriangleDown,
    Marker::TriangleUp,
    Marker::Cross,
    Marker::Circle,
];
const DASHES: [Dash; 5] = [Dash::DashDotDot, Dash::Dotted, Dash::Long, Dash::DashDot, Dash::Dashed];

/// Returns the style of a recovery (such as `ghosted`), the dense backbone or a metric.
///
/// A variant (such as `ghosted:svd`) has the color of its method. Its marker and dash are derived from a hash of its
/// name, as is the whole style of an unknown name.
pub fn look(name: &str) -> Look {
    let dense = (name == criterion::DENSE.name).then_some(criterion::DENSE);
    let method = recovery::appearance(name).or(dense);
    let style = method.and_then(|method| method.style).or_else(|| metric::style(name));
    let is_named = method.is_none_or(|method| method.name == name);
    if let Some(Style { hue, marker, dash }) = style.filter(|_| is_named) {
        return Look { color: color(hue), marker, dash };
    }
    let hash = fnv1a_hash(name);
    Look {
        color: color(style.map_or(FALLBACK_HUES[pick_index(hash, 0, FALLBACK_HUES.len())], |style| style.hue)),
        marker: MARKERS[pick_index(hash, 16, MARKERS.len())],
        dash: DASHES[pick_index(hash, 32, DASHES.len())],
    }
}

/// Hues for numbered series, ordered so that adjacent ones differ in lightness.
const SERIES_HUES: [Hue; 10] = [
    Hue::Blue,
    Hue::Orange,
    Hue::Green,
    Hue::Purple,
    Hue::Vermillion,
    Hue::Sky,
    Hue::Teal,
    Hue::Olive,
    Hue::Brown,
    Hue::Gray,
];
const SERIES_MARKERS: [Marker; 8] = [
    Marker::Circle,
    Marker::Square,
    Marker::TriangleUp,
    Marker::Diamond,
    Marker::TriangleDown,
    Marker::Plus,
    Marker::Cross,
    Marker::Star,
];

/// Returns the style of a numbered series, for figures whose series are not recoveries. The first 40 styles are
/// distinct.
pub(super) fn nth_style(number: usize) -> Look {
    let hue = SERIES_HUES[number % SERIES_HUES.len()];
    let marker = SERIES_MARKERS[number % SERIES_MARKERS.len()];
    Look { color: color(hue), marker, dash: Dash::Solid }
}

fn pick_index(hash: u64, shift: u32, among: usize) -> usize {
    ((hash >> shift) % among as u64) as usize
}

pub(super) fn paper_method_color() -> Color {
    recovery::paper_appearance().and_then(|method| method.style).map_or(color(Hue::Blue), |style| color(style.hue))
}

/// Returns the color of an affine map that replaces a sublayer.
pub(super) fn map_color() -> Color {
    color(Hue::Teal)
}

/// Computes the 64-bit FNV-1a hash, which is stable across machines and releases.
fn fnv1a_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn methods() -> Vec<String> {
        let all = recovery::descriptions().into_iter().map(|method| method.name);
        let styled: Vec<String> = all.filter(|name| recovery::appearance(name).unwrap().style.is_some()).collect();
        assert!(styled.len() >= 7);
        styled
    }

    /// Converts an sRGB color to linear light (IEC 61966-2-1).
    fn linear(rgb: [u8; 3]) -> [f64; 3] {
        rgb.map(|byte| {
            let c = f64::from(byte) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        })
    }

    fn luminance([r, g, b]: [f64; 3]) -> f64 {
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    /// Computes the WCAG 2 contrast ratio of two colors.
    fn contrast(a: [u8; 3], b: [u8; 3]) -> f64 {
        let a = luminance(linear(a));
        let b = luminance(linear(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// Computes the CIELAB distance between two colors after applying `matrix` in linear light.
    fn distance(a: [u8; 3], b: [u8; 3], matrix: [[f64; 3]; 3]) -> f64 {
        to_lab(&matrix, a).iter().zip(to_lab(&matrix, b)).map(|(p, q)| (p - q).powi(2)).sum::<f64>().sqrt()
    }

    fn to_lab(matrix: &[[f64; 3]; 3], rgb: [u8; 3]) -> [f64; 3] {
        let v = linear(rgb);
        let [r, g, b] = matrix.map(|row| (row[0] * v[0] + row[1] * v[1] + row[2] * v[2]).clamp(0.0, 1.0));
        let x = lab_function((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505);
        let y = lab_function(luminance([r, g, b]));
        let z = lab_function((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn lab_function(t: f64) -> f64 {
        if t > 0.008_856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 }
    }

    #[test]
    fn methods_contrast_with_the_surface_in_both_themes() {
        let others = ["dense", metric::SYMMETRIC.id, metric::ANTISYMMETRIC.id, "unheard-of", "another"];
        for method in methods().iter().map(String::as_str).chain(others) {
            for (theme, rgb) in THEMES.iter().enumerate() {
                let ratio = contrast(rgb(look(method).color), rgb(SURFACE));
                // WCAG 2.1, 1.4.11 (non-text contrast).
                assert!(ratio >= 3.0, "{method} in {theme:?}: {ratio:.2}");
            }
        }
    }

    /// Converts a color to the gray of the same luminance.
    fn gray(rgb: [u8; 3]) -> [u8; 3] {
        let linear = luminance(linear(rgb));
        let c = if linear <= 0.003_130_8 { linear * 12.92 } else { 1.055 * linear.powf(1.0 / 2.4) - 0.055 };
        [(c * 255.0).round() as u8; 3]
    }

    #[test]
    fn adjacent_methods_are_distinguishable_in_grayscale() {
        // Drawing orders of the methods in figure 1, in figures 4 and 5, and of the operator's components in figure 3.
        let all = ["none", "prune-and-comp", "replaceme-ls", "replaceme-cos", "linearpatch-diag", "linearpatch-rotate"];
        let bars: Vec<&str> = all.into_iter().chain(["ghosted"]).collect();
        let lines = ["replaceme-ls", "linearpatch-diag", "linearpatch-rotate", "ghosted", "dense"];
        let parts = [metric::SYMMETRIC.id, metric::ANTISYMMETRIC.id];
        for row in [&bars[..], &lines, &parts] {
            for pair in row.windows(2) {
                let [a, b] = [0, 1].map(|at| gray(look(pair[at]).color.light));
                assert!(contrast(a, b) >= 1.35, "{pair:?}: {:.2}", contrast(a, b));
            }
        }
    }

    /// Accessors for the light and the dark theme.
    const THEMES: [fn(Color) -> [u8; 3]; 2] = [|color| color.light, |color| color.dark];

    #[test]
    fn text_is_legible_in_both_themes() {
        // WCAG 2.1, 1.4.3 (text contrast).
        for rgb in THEMES {
            let maps = [(ON_GHOST, look("ghosted").color), (ON_GHOST, map_color())];
            for (text, ground) in
                [(TEXT, SURFACE), (SECONDARY_TEXT, SURFACE), (TEXT, KEPT_LAYER)].into_iter().chain(maps)
            {
                let ratio = contrast(rgb(text), rgb(ground));
                assert!(ratio >= 4.5, "{text:?} on {ground:?}: {ratio:.2}");
            }
        }
    }

    #[test]
    fn methods_are_distinguishable_with_color_blindness() {
        // Matrices for severity 1 from Machado, Oliveira and Fernandes (2009).
        let matrices = [
            ("normal", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
            (
                "protanopia",
                [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
            ),
            (
                "deuteranopia",
                [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
            ),
        ];
        let methods = methods();
        for (name, matrix) in matrices {
            for (theme, rgb) in THEMES.iter().enumerate() {
                for (i, a) in methods.iter().enumerate() {
                    for b in &methods[..i] {
                        let apart = distance(rgb(look(a).color), rgb(look(b).color), matrix);
                        // The threshold is far above 2.3, the just-noticeable difference in CIELAB.
                        assert!(apart >= 12.0, "{a} and {b}, {name}, {theme:?}: {apart:.1}");
                    }
                }
            }
        }
    }

    #[test]
    fn methods_are_distinguishable_without_color() {
        let methods = methods();
        for (i, a) in methods.iter().enumerate() {
            for b in &methods[..i] {
                assert_ne!(look(a).marker, look(b).marker, "{a} and {b}");
            }
        }
    }

    #[test]
    fn light_colors_are_distinct() {
        let all: Vec<Color> = all_colors().collect();
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a.light != b.light), "{a:?}");
        }
        for name in methods().iter().map(String::as_str).chain(["dense", metric::SYMMETRIC.id]) {
            assert!(all.contains(&look(name).color), "{name}");
        }
        assert!(FALLBACK_HUES.iter().all(|hue| all.contains(&color(*hue))));
    }

    #[test]
    fn numbered_series_have_distinct_styles() {
        let looks: Vec<(Color, Marker)> =
            (0..40).map(|number| (nth_style(number).color, nth_style(number).marker)).collect();
        for (number, look) in looks.iter().enumerate() {
            assert!(!looks[..number].contains(look), "{number}: {look:?}");
        }
    }

    #[test]
    fn style_of_unknown_method_is_stable() {
        // Hash of "a" from the FNV reference tables.
        assert_eq!(fnv1a_hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(look("my-method"), look("my-method"));
        assert!(FALLBACK_HUES.map(color).contains(&look("my-method").color));
    }

    #[test]
    fn variant_has_the_color_of_its_method() {
        assert_eq!(look("ghosted:svd").color, look("ghosted").color);
    }
}

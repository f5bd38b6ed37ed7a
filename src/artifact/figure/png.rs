//! Rasterizes a scene with 2× supersampling, because plotters does not antialias.
//!
//! Only the bitmap backend of plotters is used, because its charts are limited to whole pixels and let labels overlap.

use plotters::prelude::{BitMapBackend, DrawingBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color as _, FontTransform, RGBColor, ShapeStyle, TextStyle};

use super::font;
use super::palette::{Color, SURFACE};
use super::scene::{Anchor, Scene, ScenePoint, SceneShape};
use crate::error::{Error, Result};

const DPI: f64 = 300.0;
const POINTS_PER_INCH: f64 = 72.0;
const METRES_PER_INCH: f64 = 0.0254;

/// Supersampling factor in each direction.
const SUPERSAMPLING: usize = 2;

/// Number of supersampled pixels per point.
const PIXELS_PER_POINT: f64 = DPI / POINTS_PER_INCH * SUPERSAMPLING as f64;

fn pixels(points: f64) -> i32 {
    (points * PIXELS_PER_POINT).round() as i32
}

fn at((x, y): ScenePoint) -> (i32, i32) {
    (pixels(x), pixels(y))
}

/// Renders a scene as a PNG at 300 dpi.
///
/// # Errors
/// Fails if plotters or the encoder fails.
pub(super) fn render_png(scene: &Scene) -> Result<Vec<u8>> {
    let width = whole_pixels(scene.width);
    let height = whole_pixels(scene.height);
    let fine_width = width * SUPERSAMPLING;
    let fine_height = height * SUPERSAMPLING;
    let mut fine = SURFACE.light.repeat(fine_width * fine_height);
    let mut bitmap = BitMapBackend::with_buffer(&mut fine, (fine_width as u32, fine_height as u32));
    let painted = scene.shapes.iter().try_for_each(|shape| paint(shape, &mut bitmap));
    painted.map_err(|error| Error::job("cannot draw the figure").at(scene.title.as_str()).found(error))?;
    drop(bitmap);
    encode(&downsample(&fine, width, height), width as u32, height as u32)
        .map_err(|error| Error::job("cannot write the figure as PNG").at(scene.title.as_str()).found(error.to_string()))
}

/// Converts a length from points to pixels in the output image, rounding up.
fn whole_pixels(points: f64) -> usize {
    (pixels(points).max(1).unsigned_abs() as usize).div_ceil(SUPERSAMPLING)
}

fn paint(shape: &SceneShape, bitmap: &mut BitMapBackend<'_>) -> Result<(), String> {
    match shape {
        SceneShape::Rect { from, to, color } => bitmap.draw_rect(at(*from), at(*to), &ink(*color, 1.0, 1.0), true),
        SceneShape::Fill { corners, color, opacity } => {
            bitmap.fill_polygon(corners.iter().map(|c| at(*c)), &ink(*color, *opacity, 1.0))
        }
        SceneShape::Disc { center, radius, color } => {
            bitmap.draw_circle(at(*center), pixels(*radius).unsigned_abs(), &ink(*color, 1.0, 1.0), true)
        }
        // Draw each segment separately with round joints, because plotters leaves holes where a thick path crosses
        // itself.
        SceneShape::Line { places, color, width } => {
            let ink = ink(*color, 1.0, *width);
            places.windows(2).enumerate().try_for_each(|(i, pair)| {
                bitmap.draw_line(at(pair[0]), at(pair[1]), &ink)?;
                let joint = i > 0 && ink.stroke_width > 2;
                if joint { bitmap.draw_circle(at(pair[0]), ink.stroke_width / 2, &ink, true) } else { Ok(()) }
            })
        }
        SceneShape::Text { at: point, text, anchor, color, vertical } => {
            let h_pos = match anchor {
                Anchor::Start => HPos::Left,
                Anchor::Middle => HPos::Center,
                Anchor::End => HPos::Right,
            };
            let font = font::sized(font::SIZE * PIXELS_PER_POINT);
            // plotters' `ab_glyph` backend puts the baseline in the middle of the line.
            let back = (font.get_size() * 0.5).round() as i32;
            let turn = if *vertical { FontTransform::Rotate270 } else { FontTransform::None };
            let color = rgb_of(*color);
            let style = TextStyle::from(font.transform(turn)).color(&color).pos(Pos::new(h_pos, VPos::Top));
            let (x, y) = at(*point);
            bitmap.draw_text(text, &style, if *vertical { (x - back, y) } else { (x, y - back) })
        }
    }
    .map_err(|error| error.to_string())
}

fn ink(color: Color, opacity: f64, width: f64) -> ShapeStyle {
    let stroke_width = pixels(width).max(1).unsigned_abs();
    ShapeStyle { color: rgb_of(color).mix(opacity), filled: true, stroke_width }
}

fn rgb_of(color: Color) -> RGBColor {
    let [r, g, b] = color.light;
    RGBColor(r, g, b)
}

/// Averages each square of supersampled pixels into one output pixel.
fn downsample(fine: &[u8], width: usize, height: usize) -> Vec<u8> {
    let stride = width * SUPERSAMPLING * 3;
    let mut out = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            for channel in 0..3 {
                let sum: usize = (0..SUPERSAMPLING * SUPERSAMPLING)
                    .map(|at| {
                        usize::from(
                            fine[(y * SUPERSAMPLING + at / SUPERSAMPLING) * stride
                                + (x * SUPERSAMPLING + at % SUPERSAMPLING) * 3
                                + channel],
                        )
                    })
                    .sum();
                out.push((sum / (SUPERSAMPLING * SUPERSAMPLING)) as u8);
            }
        }
    }
    out
}

fn encode(pixels: &[u8], width: u32, height: u32) -> Result<Vec<u8>, ::png::EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(::png::ColorType::Rgb);
    encoder.set_depth(::png::BitDepth::Eight);
    let per_metre = (DPI / METRES_PER_INCH).round() as u32;
    encoder.set_pixel_dims(Some(::png::PixelDimensions { xppu: per_metre, yppu: per_metre, unit: ::png::Unit::Meter }));
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_pixel_is_the_mean_of_supersampled_pixels() {
        let fine = [row_of_two(0, 100), row_of_two(200, 255)].concat();
        // (0 + 100 + 200 + 255) / 4, rounded down.
        assert_eq!(downsample(&fine, 1, 1), [138; 3]);
    }

    fn row_of_two(a: u8, b: u8) -> Vec<u8> {
        [[a; 3], [b; 3]].concat()
    }
}

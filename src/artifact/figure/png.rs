//! The PNG of a scene: drawn twice as fine as it is written, since plotters' bitmap has rough edges.

use plotters::prelude::BitMapBackend;

use super::font;
use super::paint::{Surface, paint};
use super::palette::SURFACE;
use super::scene::Scene;
use super::theme::Theme;
use crate::error::{Error, Result};

/// Dots per inch.
const DPI: f64 = 300.0;
const POINTS_PER_INCH: f64 = 72.0;
const METRES_PER_INCH: f64 = 0.0254;

/// Pixels drawn for one written, in each direction.
const FINER: usize = 2;

/// The PNG of a scene in a theme, of 300 dots per inch.
///
/// # Errors
/// When plotters or the encoder fails.
pub(super) fn png(scene: &Scene, theme: Theme) -> Result<Vec<u8>> {
    let surface = Surface {
        scale: DPI / POINTS_PER_INCH * FINER as f64,
        theme,
        per_em: font::LINE_PER_EM,
        // plotters' ab_glyph draws the baseline in the middle of the size.
        baseline: 0.5,
        strokes: true,
        ground: true,
    };
    // Whole pixels of the written image.
    let whole = |pixels: u32| (pixels as usize).div_ceil(FINER);
    let (width, height) = surface.size(scene);
    let (width, height) = (whole(width), whole(height));
    let (fine_width, fine_height) = (width * FINER, height * FINER);
    // The ground, to the last pixel: the size is rounded up.
    let mut fine = SURFACE.rgb(theme).repeat(fine_width * fine_height);
    let size = (fine_width as u32, fine_height as u32);
    paint(scene, &mut BitMapBackend::with_buffer(&mut fine, size), surface)?;
    encode(&halved(&fine, width, height), width as u32, height as u32).map_err(|error| {
        Error::job("a figure could not be written as PNG").at(scene.title.as_str()).found(error.to_string())
    })
}

/// The mean of each square of pixels.
fn halved(fine: &[u8], width: usize, height: usize) -> Vec<u8> {
    let stride = width * FINER * 3;
    let mut out = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            for channel in 0..3 {
                let mut sum = 0;
                for row in 0..FINER {
                    for column in 0..FINER {
                        sum += usize::from(fine[(y * FINER + row) * stride + (x * FINER + column) * 3 + channel]);
                    }
                }
                out.push((sum / (FINER * FINER)) as u8);
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
    fn a_pixel_is_the_mean_of_its_square() {
        let row = |a: u8, b: u8| [[a; 3], [b; 3]].concat();
        let fine = [row(0, 100), row(200, 255)].concat();
        // (0 + 100 + 200 + 255) / 4, rounded down.
        assert_eq!(halved(&fine, 1, 1), [138; 3]);
    }
}

//! Writes a scene as a PDF page in the light theme.
//!
//! Text remains selectable and uses an embedded font subset. The file has no date, so equal scenes yield equal bytes.

use std::collections::BTreeMap;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use pdf_writer::types::{CidFontType, FontFlags, LineJoinStyle, SystemInfo, UnicodeCmap};
use pdf_writer::{Content, Filter, Finish, Name, Pdf, Rect, Ref, Str, TextStr};
use subsetter::GlyphRemapper;
use ttf_parser::Face;

use super::font;
use super::palette::Color;
use super::scene::{Anchor, Scene, ScenePoint, SceneShape};
use crate::error::{Error, Result};

/// Ids of the objects in the file.
const CATALOG: Ref = Ref::new(1);
const PAGES: Ref = Ref::new(2);
const PAGE: Ref = Ref::new(3);
const CONTENT: Ref = Ref::new(4);
const FONT: Ref = Ref::new(5);
const CID_FONT: Ref = Ref::new(6);
const DESCRIPTOR: Ref = Ref::new(7);
const FONT_FILE: Ref = Ref::new(8);
const TO_UNICODE: Ref = Ref::new(9);
const INFO: Ref = Ref::new(10);
const FIRST_STATE: i32 = 11;

const FONT_NAME: Name<'static> = Name(b"F1");
/// Font name. The six-letter prefix marks the font as a subset.
const BASE_FONT: Name<'static> = Name(b"GHOSTL+DejaVuSans");
const SYSTEM: SystemInfo<'static> = SystemInfo { registry: Str(b"Adobe"), ordering: Str(b"Identity"), supplement: 0 };
/// Units per em in a PDF.
const EM: f32 = 1000.0;
/// Distance between an end of a quarter circle and its Bézier handle, relative to the radius.
const HANDLE: f32 = 0.552_284_8;

/// Renders a scene as a PDF.
///
/// # Errors
/// Fails if the font cannot be parsed or subset, which indicates a broken build.
pub(super) fn render_pdf(scene: &Scene) -> Result<Vec<u8>> {
    let face = Face::parse(font::data(), 0).map_err(|error| pdf_error(scene, error.to_string()))?;
    let mut page = PdfPage::new(scene.height, &face);
    scene.shapes.iter().for_each(|shape| page.draw_shape(shape));
    let PdfPage { content, glyphs, texts, opacities, .. } = page;
    let cut = subsetter::subset(font::data(), 0, &glyphs).map_err(|error| pdf_error(scene, error.to_string()))?;

    let mut pdf = Pdf::new();
    pdf.catalog(CATALOG).pages(PAGES);
    pdf.document_info(INFO).title(TextStr(&scene.title)).subject(TextStr(&scene.description));
    pdf.pages(PAGES).kids([PAGE]).count(1);
    let mut written = pdf.page(PAGE);
    written.media_box(Rect::new(0.0, 0.0, scene.width as f32, scene.height as f32));
    written.parent(PAGES).contents(CONTENT);
    let mut resources = written.resources();
    resources.fonts().pair(FONT_NAME, FONT);
    if !opacities.is_empty() {
        let mut states = resources.ext_g_states();
        for (index, name) in opacities.values().enumerate() {
            states.pair(Name(name.as_bytes()), Ref::new(FIRST_STATE + index as i32));
        }
    }
    resources.finish();
    written.finish();
    for (index, opacity) in opacities.keys().enumerate() {
        let opacity = f64::from_bits(*opacity) as f32;
        pdf.ext_graphics(Ref::new(FIRST_STATE + index as i32)).non_stroking_alpha(opacity);
    }
    pdf.stream(CONTENT, &compress(&content.finish())).filter(Filter::FlateDecode);
    write_font(&mut pdf, &face, &glyphs, &texts, &cut);
    Ok(pdf.finish())
}

fn pdf_error(scene: &Scene, found: String) -> Error {
    Error::job("cannot write the figure as PDF").at(scene.title.as_str()).found(found)
}

/// Writes the font with its glyphs, their widths, and the mapping from glyphs to Unicode.
fn write_font(pdf: &mut Pdf, face: &Face<'_>, glyphs: &GlyphRemapper, texts: &BTreeMap<u16, char>, cut: &[u8]) {
    let mut font = pdf.type0_font(FONT);
    font.base_font(BASE_FONT).encoding_predefined(Name(b"Identity-H"));
    font.descendant_font(CID_FONT).to_unicode(TO_UNICODE);
    font.finish();
    let mut cid = pdf.cid_font(CID_FONT);
    cid.subtype(CidFontType::Type2).base_font(BASE_FONT).system_info(SYSTEM).font_descriptor(DESCRIPTOR);
    cid.default_width(0.0).cid_to_gid_map_predefined(Name(b"Identity"));
    cid.widths().consecutive(
        0,
        glyphs
            .remapped_gids()
            .map(|glyph| face.glyph_hor_advance(ttf_parser::GlyphId(glyph)).unwrap_or_default())
            .map(|units| f32::from(units) * EM / f32::from(face.units_per_em())),
    );
    cid.finish();
    let bounds = face.global_bounding_box();
    let scaled = |units: i16| f32::from(units) * EM / f32::from(face.units_per_em());
    let mut descriptor = pdf.font_descriptor(DESCRIPTOR);
    descriptor.name(BASE_FONT).flags(FontFlags::SYMBOLIC);
    descriptor.bbox(Rect::new(scaled(bounds.x_min), scaled(bounds.y_min), scaled(bounds.x_max), scaled(bounds.y_max)));
    descriptor.italic_angle(0.0).ascent(scaled(face.ascender())).descent(scaled(face.descender()));
    descriptor.cap_height(scaled(face.capital_height().unwrap_or(face.ascender()))).stem_v(STEM_WIDTH);
    descriptor.font_file2(FONT_FILE);
    descriptor.finish();
    pdf.stream(FONT_FILE, &compress(cut)).filter(Filter::FlateDecode).pair(Name(b"Length1"), cut.len() as i32);
    let mut map = UnicodeCmap::<u16>::new(Name(b"Custom"), SYSTEM);
    texts.iter().for_each(|(glyph, text)| map.pair(*glyph, *text));
    pdf.cmap(TO_UNICODE, &map.finish());
}

/// Approximate stem width, which helps viewers choose a substitute font.
const STEM_WIDTH: f32 = 90.0;

/// Compresses a stream for `FlateDecode`.
fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut out = ZlibEncoder::new(Vec::new(), Compression::best());
    // Writing to memory cannot fail.
    let _ = out.write_all(bytes);
    out.finish().unwrap_or_default()
}

/// Page under construction. The y-axis points down in a scene and up in a PDF.
struct PdfPage<'a> {
    height: f64,
    content: Content,
    face: &'a Face<'a>,
    glyphs: GlyphRemapper,
    /// Character for each glyph in the font subset.
    texts: BTreeMap<u16, char>,
    /// Resource names of the opacities, keyed by the bit pattern of the `f64` value.
    opacities: BTreeMap<u64, String>,
}

impl<'a> PdfPage<'a> {
    fn new(height: f64, face: &'a Face<'a>) -> Self {
        let mut content = Content::new();
        content.set_line_join(LineJoinStyle::RoundJoin);
        Self { height, content, face, glyphs: GlyphRemapper::new(), texts: BTreeMap::new(), opacities: BTreeMap::new() }
    }

    /// Converts a position in the scene to PDF coordinates.
    fn position(&self, (x, y): ScenePoint) -> (f32, f32) {
        (x as f32, (self.height - y) as f32)
    }

    fn set_fill(&mut self, color: Color) {
        let [r, g, b] = color.light.map(|byte| f32::from(byte) / 255.0);
        self.content.set_fill_rgb(r, g, b);
    }

    fn add_path(&mut self, places: &[ScenePoint]) {
        for (number, point) in places.iter().enumerate() {
            let (x, y) = self.position(*point);
            match number {
                0 => self.content.move_to(x, y),
                _ => self.content.line_to(x, y),
            };
        }
    }

    fn draw_shape(&mut self, shape: &SceneShape) {
        match shape {
            SceneShape::Rect { from, to, color } => {
                self.set_fill(*color);
                self.add_path(&[*from, (to.0, from.1), *to, (from.0, to.1)]);
                self.content.close_path().fill_nonzero();
            }
            SceneShape::Fill { corners, color, opacity } => {
                self.content.save_state();
                if *opacity < 1.0 {
                    let next = format!("G{}", (opacity * 1000.0).round());
                    let name = self.opacities.entry(opacity.to_bits()).or_insert(next).clone();
                    self.content.set_parameters(Name(name.as_bytes()));
                }
                self.set_fill(*color);
                self.add_path(corners);
                self.content.close_path().fill_nonzero().restore_state();
            }
            SceneShape::Disc { center, radius, color } => self.draw_disc(*center, *radius as f32, *color),
            SceneShape::Line { places, color, width } => {
                let [r, g, b] = color.light.map(|byte| f32::from(byte) / 255.0);
                self.content.set_stroke_rgb(r, g, b).set_line_width(*width as f32);
                self.add_path(places);
                self.content.stroke();
            }
            SceneShape::Text { at, text, anchor, color, vertical } => {
                self.draw_text(*at, text, (*anchor, *vertical), *color);
            }
        }
    }

    fn draw_disc(&mut self, center: ScenePoint, radius: f32, color: Color) {
        self.set_fill(color);
        let ((x, y), h) = (self.position(center), radius * HANDLE);
        let content = self.content.move_to(x + radius, y);
        content.cubic_to(x + radius, y + h, x + h, y + radius, x, y + radius);
        content.cubic_to(x - h, y + radius, x - radius, y + h, x - radius, y);
        content.cubic_to(x - radius, y - h, x - h, y - radius, x, y - radius);
        content.cubic_to(x + h, y - radius, x + radius, y - h, x + radius, y);
        content.close_path().fill_nonzero();
    }

    fn draw_text(&mut self, at: ScenePoint, text: &str, (anchor, vertical): (Anchor, bool), color: Color) {
        let mut shown = Vec::new();
        let mut advance = 0.0;
        for letter in text.chars() {
            // Glyph 0 is the font's placeholder for missing characters.
            let glyph = self.face.glyph_index(letter).unwrap_or_default();
            let cut = self.glyphs.remap(glyph.0);
            self.texts.entry(cut).or_insert(letter);
            shown.extend(cut.to_be_bytes());
            advance += f64::from(self.face.glyph_hor_advance(glyph).unwrap_or_default());
        }
        let width = advance / f64::from(self.face.units_per_em()) * font::SIZE;
        let back = match anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => width / 2.0,
            Anchor::End => width,
        };
        let (matrix, start) = match vertical {
            false => ([1.0, 0.0, 0.0, 1.0], (at.0 - back, at.1)),
            true => ([0.0, 1.0, -1.0, 0.0], (at.0, at.1 + back)),
        };
        let (x, y) = self.position(start);
        self.set_fill(color);
        let [a, b, c, d] = matrix;
        self.content.begin_text().set_font(FONT_NAME, font::SIZE as f32).set_text_matrix([a, b, c, d, x, y]);
        self.content.show(Str(&shown)).end_text();
    }
}

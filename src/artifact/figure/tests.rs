use super::palette::look;
use super::sample_figures::{METHODS, all, bars, channels, depths, diagram, figure_from, norms};
use super::scene::{Scene, ScenePoint, SceneShape};
use super::*;
use crate::model::Cut;

#[test]
fn each_value_has_one_bar() {
    let figure = bars(&["a", "b", "c"], Width::Page, Scale::Linear);
    let scene = scene(&figure_from(figure, Plot::Bars));
    // One bar for each of 7 recoveries in each of 3 groups.
    assert_eq!(rects(&scene).len(), 21);
    for method in METHODS {
        assert_eq!(rects(&scene).iter().filter(|color| **color == look(method).color).count(), 3, "{method}");
    }
}

#[test]
fn bar_height_is_proportional_to_its_value() {
    let scene = scene(&figure_from(norms(), Plot::Bars));
    let heights: Vec<f64> = scene
        .shapes
        .iter()
        .filter_map(|shape| match shape {
            SceneShape::Rect { from, to, .. } => Some(to.1 - from.1),
            _ => None,
        })
        .collect();
    // The first bar has the value 0.81 and the second 0.77.
    assert!((heights[0] / heights[1] - 0.81 / 0.77).abs() < 1e-9);
}

#[test]
fn missing_value_has_a_label_in_place_of_its_bar() {
    for missing in [None, Some(f64::NAN), Some(f64::INFINITY)] {
        let mut figure = norms();
        figure.1.series[1].values[2].value = missing;
        let scene = scene(&figure_from(figure, Plot::Bars));
        assert_eq!(rects(&scene).len(), 5);
        assert_eq!(texts(&scene).iter().filter(|text| **text == "–").count(), 1);
    }
}

#[test]
fn method_has_the_same_color_in_every_figure() {
    let bars = scene(&figure_from(bars(&["a"], Width::Column, Scale::Linear), Plot::Bars));
    let curves = scene(&figure_from(depths(), Plot::Curves));
    let blue = look("ghosted").color;
    assert!(rects(&bars).contains(&blue));
    assert!(curves.shapes.iter().any(|shape| matches!(shape, SceneShape::Line { color, .. } if *color == blue)));
    assert!(rects(&scene(&figure_from(diagram(4, vec![1], vec![2]), Plot::Layers))).contains(&blue));
}

#[test]
fn text_is_inside_its_figure() {
    for (name, figure) in all() {
        let scene = scene(&figure);
        for (text, ((left, top), (right, bottom))) in boxes(&scene) {
            let inside = left >= 0.0 && top >= 0.0 && right <= scene.width && bottom <= scene.height;
            assert!(inside, "{name}: {text} reaches from {left}, {top} to {right}, {bottom}");
        }
    }
}

#[test]
fn figure_texts_do_not_overlap() {
    for (name, figure) in all() {
        let scene = scene(&figure);
        let boxes = boxes(&scene);
        for (i, (text, (a, b))) in boxes.iter().enumerate() {
            for (other, (c, d)) in &boxes[..i] {
                let apart = b.0 <= c.0 || d.0 <= a.0 || b.1 <= c.1 || d.1 <= a.1;
                assert!(apart, "{name}: {text} overlaps {other}");
            }
        }
    }
}

#[test]
fn missing_value_breaks_the_line() {
    // The second line has no value at the third of its five depths.
    let mut full = depths();
    full.1.lines.truncate(2);
    for line in &mut full.1.lines {
        line.method = "ghosted".into();
    }
    let broken = scene(&figure_from(full.clone(), Plot::Curves));
    full.1.lines[1].points[2].y = Some(50.0);
    let joined = scene(&figure_from(full, Plot::Curves));
    assert_eq!(stroke_lengths(&broken), [5, 2, 2]);
    assert_eq!(stroke_lengths(&joined), [5, 5]);
}

fn stroke_lengths(scene: &Scene) -> Vec<usize> {
    let places = scene.shapes.iter().filter_map(|shape| match shape {
        SceneShape::Line { places, color, width } if *color == look("ghosted").color && *width == 1.3 => {
            Some(places.len())
        }
        _ => None,
    });
    places.collect::<Vec<_>>()
}

#[test]
fn each_region_is_drawn_with_one_ghosted_layer() {
    // One box for each of the three regions (3, 7–8 and 12), and one in the legend.
    let mut figure = diagram(16, vec![], vec![3, 7, 8, 12]);
    figure.1.selections.remove(0);
    let scene = scene(&figure_from(figure, Plot::Layers));
    assert_eq!(rects(&scene).iter().filter(|color| **color == look("ghosted").color).count(), 4);
    // Layer 7 is removed, so it appears in the dense stack and, muted, in the pruned stack, but not in the ghosted one.
    assert_eq!(texts(&scene).iter().filter(|text| **text == "7").count(), 2);
    assert_eq!(texts(&scene).iter().filter(|text| **text == "6").count(), 3);
}

#[test]
fn svg_is_valid_xml_with_title_and_description() {
    let mut figure = norms();
    figure.0.title = "a < b & \"c\"\u{1}".into();
    figure.1.groups[0] = "<b>&\u{0}".into();
    let svg = svg::render_svg(&scene(&figure_from(figure, Plot::Bars)));
    let document = roxmltree::Document::parse(&svg).unwrap();
    let root = document.root_element();
    assert_eq!(root.attribute("role"), Some("img"));
    let element =
        |tag: &str| root.children().find(|node| node.has_tag_name(("http://www.w3.org/2000/svg", tag))).unwrap();
    assert_eq!(element("title").text(), Some("a < b & \"c\" "));
    assert!(element("desc").text().unwrap().starts_with("Frobenius"));
    assert!(document.descendants().any(|node| node.text().map(str::trim) == Some("<b>&")));
}

#[test]
fn svg_has_the_printed_size_and_text_of_eight_points() {
    let svg = svg::render_svg(&scene(&figure_from(norms(), Plot::Bars)));
    let document = roxmltree::Document::parse(&svg).unwrap();
    let root = document.root_element();
    // 3.3 inches are 237.6 points. One unit of the view box is a tenth of a point.
    assert_eq!(root.attribute("width"), Some("237.6pt"));
    assert!(root.attribute("viewBox").unwrap().starts_with("0 0 2376 "));
    assert_eq!(root.attribute("font-size"), Some("80"));
    let texts: Vec<_> = document.descendants().filter(|node| node.tag_name().name() == "text").collect();
    assert!(!texts.is_empty());
    assert!(texts.iter().all(|text| !text.has_attribute("font-size") && !text.has_attribute("dy")));
}

#[test]
fn every_svg_color_has_a_dark_variant() {
    for (name, figure) in all() {
        let svg = svg::render_svg(&scene(&figure));
        let document = roxmltree::Document::parse(&svg).unwrap();
        let style = document.descendants().find(|node| node.tag_name().name() == "style").unwrap().text().unwrap();
        for node in document.descendants() {
            for attribute in ["fill", "stroke"] {
                if let Some(color) = node.attribute(attribute).filter(|color| *color != "none") {
                    assert!(style.contains(&format!("[{attribute}=\"{color}\"]{{{attribute}:#")), "{name}: {color}");
                }
            }
        }
    }
}

#[test]
fn nonfinite_numbers_are_not_drawn() {
    let mut figure = channels(128);
    for (i, wild) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e308, 1e-320].into_iter().enumerate() {
        figure.1.lines[i].points[10 + i] = Point { x: 10.0, y: Some(wild), error: Some(wild) };
        figure.1.lines[i].points[40 + i].x = wild;
    }
    for scale in [Scale::Linear, Scale::Log] {
        figure.1.y.scale = scale;
        let scene = scene(&figure_from(figure.clone(), Plot::Curves));
        for shape in &scene.shapes {
            assert!(match shape {
                SceneShape::Rect { from, to, .. } => is_finite(from) && is_finite(to),
                SceneShape::Fill { corners, .. } => corners.iter().all(is_finite),
                SceneShape::Disc { center, .. } => is_finite(center),
                SceneShape::Line { places, .. } => places.iter().all(is_finite),
                SceneShape::Text { at, .. } => is_finite(at),
            });
        }
    }
}

fn is_finite(point: &ScenePoint) -> bool {
    point.0.is_finite() && point.1.is_finite()
}

#[test]
fn figure_bytes_are_deterministic_and_png_has_300_dpi() {
    let mut small = norms();
    small.1.groups.truncate(1);
    for series in &mut small.1.series {
        series.values.truncate(1);
    }
    let figure = figure_from(small, Plot::Bars);
    let drawing = figure.draw().unwrap();
    assert_eq!(drawing, figure.draw().unwrap());
    let mut reader = ::png::Decoder::new(std::io::Cursor::new(&drawing.png)).read_info().unwrap();
    assert!(drawing.pdf.starts_with(b"%PDF"));
    // 3.3 inches at 300 dpi.
    assert_eq!(reader.info().width, 990);
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    assert_eq!(pixels[..3], [255; 3]);
    assert!(pixels.chunks(3).any(|pixel| pixel == look("m_symmetric_share").color.light));
}

#[test]
fn figure_with_missing_data_is_rejected() {
    let mut no_groups = norms();
    no_groups.1.groups.clear();
    let mut no_numbers = norms();
    for series in &mut no_numbers.1.series {
        series.values.fill(BarValue::default());
    }
    let mut ragged = norms();
    ragged.1.series[0].values.pop();
    let mut no_lines = depths();
    no_lines.1.lines.clear();
    let mut no_points = depths();
    for line in &mut no_points.1.lines {
        line.points.clear();
    }
    let mut no_stacks = diagram(16, vec![1], vec![2]);
    no_stacks.1.selections.clear();
    let mut nothing_positive = norms();
    nothing_positive.1.axis.scale = Scale::Log;
    for series in &mut nothing_positive.1.series {
        series.values.fill(BarValue::from(0.0));
    }
    for (figure, words) in [
        (figure_from(no_groups, Plot::Bars), "is empty"),
        (figure_from(no_numbers, Plot::Bars), "no finite value"),
        (figure_from(nothing_positive, Plot::Bars), "positive"),
        (figure_from(ragged, Plot::Bars), "expected: 3 values"),
        (figure_from(no_lines, Plot::Curves), "at least one line"),
        (figure_from(no_points, Plot::Curves), "is empty"),
        (figure_from(diagram(16, vec![16], vec![1]), Plot::Layers), "layer 16"),
        (figure_from(no_stacks, Plot::Layers), "1 to 2"),
    ] {
        let message = figure.draw().unwrap_err().to_string();
        assert!(message.contains(words), "{words}: {message}");
    }
}

fn between<'a>(bytes: &'a [u8], marker: &str, end: &str) -> &'a [u8] {
    let rest = &bytes[position_of(bytes, marker) + marker.len()..];
    &rest[..position_of(rest, end)]
}

fn position_of(bytes: &[u8], word: &str) -> usize {
    bytes.windows(word.len()).position(|part| part == word.as_bytes()).unwrap()
}

#[test]
fn pdf_has_printed_size_and_an_embedded_font() {
    for (name, figure) in all() {
        let scene = scene(&figure);
        let pdf = pdf::render_pdf(&scene).unwrap();
        let text = String::from_utf8_lossy(&pdf);
        for part in ["/FontFile2", "/ToUnicode", "/Identity-H", "+DejaVuSans", "%%EOF"] {
            assert!(text.contains(part), "{part} is missing in {name}");
        }
        let media = String::from_utf8_lossy(between(&pdf, "/MediaBox [", "]")).into_owned();
        let size: Vec<f64> = media.split_whitespace().map(|side| side.parse().unwrap()).collect();
        assert!((size[2] - scene.width).abs() < 0.01 && (size[3] - scene.height).abs() < 0.01, "{name}: {media}");
        let map = String::from_utf8_lossy(between(&pdf, "beginbfchar", "endcmap")).to_lowercase();
        for letter in texts(&scene).iter().flat_map(|text| text.chars()) {
            assert!(map.contains(&format!("> <{:04x}>", letter as u32)), "{name}: {letter}");
        }
        assert!(pdf.len() < 200_000, "{name}: {} bytes", pdf.len());
    }
}

#[test]
fn overlapping_lines_are_offset_and_only_dense_is_dashed() {
    let scene = scene(&figure_from(depths(), Plot::Curves));
    let strokes = |color: palette::Color, width: f64| {
        scene.shapes.iter().filter(move |shape| {
            matches!(shape, SceneShape::Line { color: line_color, width: line_width, .. } if *line_color == color && *line_width == width)
        })
    };
    let firsts: Vec<f64> = ["linearpatch-rotate", "ghosted"]
        .iter()
        .filter_map(|method| match strokes(look(method).color, 1.3).next() {
            Some(SceneShape::Line { places, .. }) => Some(places[0].0),
            _ => None,
        })
        .collect();
    assert!(firsts[1] - firsts[0] > 2.0, "{firsts:?}");
    // The solid line is a single stroke. The dashed line of the dense model consists of many strokes.
    assert_eq!(strokes(look("ghosted").color, 1.3).count(), 1);
    assert!(strokes(look("dense").color, 1.1).count() > 5);
    assert!(
        texts(&scene).iter().any(|text| text.contains("axis starts at")),
        "the axis does not start at 0, and its label states that"
    );
}

#[test]
fn layerwise_repair_has_one_operator_per_removed_layer() {
    let mut row = diagram(16, vec![], vec![7, 8, 12]).1.selections.remove(1);
    row.cut = DiagramCut::Layers { removed: Cut::layers([7, 8, 12]), operators: vec![(7, 8), (8, 9), (12, 13)] };
    assert!(row.is_layer_by_layer());
    let mut figure = diagram(16, vec![], vec![]);
    figure.1.selections = vec![row];
    // One box for each of the three operators, and one in the legend.
    let ghosts = rects(&scene(&figure_from(figure, Plot::Layers)));
    assert_eq!(ghosts.iter().filter(|color| **color == look("ghosted").color).count(), 4);
}

fn scene(figure: &Figure) -> Scene {
    figure.scene().unwrap()
}

fn rects(scene: &Scene) -> Vec<palette::Color> {
    let colors = scene.shapes.iter().filter_map(|shape| match shape {
        SceneShape::Rect { color, .. } => Some(*color),
        _ => None,
    });
    colors.collect()
}

fn texts(scene: &Scene) -> Vec<&str> {
    let texts = scene.shapes.iter().filter_map(|shape| match shape {
        SceneShape::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn boxes(scene: &Scene) -> Vec<(&str, (ScenePoint, ScenePoint))> {
    texts(scene).into_iter().zip(scene.shapes.iter().filter_map(Scene::bounding_box)).collect()
}

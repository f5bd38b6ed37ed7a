//! Layer stack for cuts of sublayers. Each layer is split into its attention on the left and its MLP on the right.

use super::chart_frame::{BASELINE_OFFSET, LAYER_HEIGHT, LAYER_PITCH, STACK_ENDS, draw_arrow, draw_stack_ends};
use super::palette::{self, KEPT_LAYER, ON_GHOST, REMOVED_LAYER, SECONDARY_TEXT, TEXT};
use super::scene::{Anchor, Scene};
use crate::criterion::DepthUnit;
use crate::error::{Error, Result};
use crate::model::{Cut, Sublayer};
use crate::results::ranges;
use crate::style::Dash;

/// Label of an affine map that replaces a sublayer.
pub(super) const MAP_LABEL: &str = "affine map";

/// Width of a sublayer, in points.
const SUBLAYER_WIDTH: f64 = 45.0;
/// Distance between the residual stream and a sublayer, in points.
const STREAM_GAP: f64 = 2.5;
/// Distance between the number of a layer and its attention, in points.
const NUMBER_GAP: f64 = 3.0;

/// Removed sublayers, some of which may be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SublayerCut {
    /// Removed sublayers, including the replaced ones.
    pub removed: Cut,
    /// Sublayers that an affine map replaces.
    pub replaced: Cut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SublayerState {
    Kept,
    Removed,
    Replaced,
}

impl SublayerCut {
    /// Rejects an empty cut, and sublayers that do not exist or are replaced without being removed.
    pub(super) fn check(&self, layers: usize) -> Result<()> {
        let mut removed = self.removed.iter();
        let mut replaced = self.replaced.iter();
        let found = if self.removed.is_empty() {
            "none".to_owned()
        } else if let Some((layer, kind)) = removed.find(|&(layer, _)| layer >= layers) {
            format!("{kind} {layer}")
        } else if let Some((layer, kind)) = replaced.find(|&(layer, kind)| !self.removed.contains(layer, kind)) {
            format!("{kind} {layer}, which is replaced but not removed")
        } else {
            return Ok(());
        };
        Err(Error::bad_input("invalid removed sublayers")
            .expected(format!("one or more sublayers of layers below {layers}"))
            .found(found))
    }

    pub(super) fn title(&self) -> &'static str {
        if self.replaced.is_empty() { "Pruned" } else { "Repaired" }
    }

    /// Describes the removed and the replaced sublayers of each kind.
    pub(super) fn sentences(&self, layers: usize) -> Vec<String> {
        let mut sentences = Vec::new();
        for kind in Sublayer::ALL {
            for (state, verb) in [(SublayerState::Removed, "removed"), (SublayerState::Replaced, "replaced")] {
                let listed: Vec<usize> = (0..layers).filter(|&layer| self.state(layer, kind) == state).collect();
                if !listed.is_empty() {
                    let units = DepthUnit::from(kind).plural();
                    let list = ranges(&listed, "–", ", ");
                    sentences.push(format!("{} of {layers} {units} {verb}: {list}", listed.len()));
                }
            }
        }
        sentences
    }

    fn state(&self, layer: usize, kind: Sublayer) -> SublayerState {
        match (self.removed.contains(layer, kind), self.replaced.contains(layer, kind)) {
            (false, _) => SublayerState::Kept,
            (true, false) => SublayerState::Removed,
            (true, true) => SublayerState::Replaced,
        }
    }
}

pub(super) struct SplitStack<'a> {
    pub(super) scene: &'a mut Scene,
    /// Horizontal position of the residual stream.
    pub(super) x: f64,
    /// Vertical position of the bottom of layer 0.
    pub(super) ground: f64,
    pub(super) layers: usize,
    /// Cut of the stack, or `None` for the dense backbone.
    pub(super) cut: Option<&'a SublayerCut>,
}

impl SplitStack<'_> {
    /// Horizontal offset of the residual stream from the center of the stack, in points. Leaves room for the layer
    /// numbers on the left.
    pub(super) const OFFSET: f64 = 6.0;

    pub(super) fn draw(&mut self) {
        let top = self.ground - self.layers as f64 * LAYER_PITCH;
        draw_arrow(self.scene, &[(self.x, self.ground + STACK_ENDS), (self.x, top - STACK_ENDS)], TEXT);
        for layer in 0..self.layers {
            let bottom = self.ground - layer as f64 * LAYER_PITCH;
            let number =
                (self.x - STREAM_GAP - SUBLAYER_WIDTH - NUMBER_GAP, bottom - LAYER_HEIGHT / 2.0 + BASELINE_OFFSET);
            self.scene.text(number, &layer.to_string(), Anchor::End, TEXT);
            for kind in Sublayer::ALL {
                self.draw_sublayer(layer, kind, bottom);
            }
        }
        draw_stack_ends(self.scene, self.x, (self.ground, top));
    }

    fn draw_sublayer(&mut self, layer: usize, kind: Sublayer, bottom: f64) {
        let left = match kind {
            Sublayer::Attention => self.x - STREAM_GAP - SUBLAYER_WIDTH,
            Sublayer::Mlp => self.x + STREAM_GAP,
        };
        let from = (left, bottom - LAYER_HEIGHT);
        let to = (left + SUBLAYER_WIDTH, bottom);
        let name = DepthUnit::from(kind).noun();
        let (label, ink) = match self.cut.map_or(SublayerState::Kept, |cut| cut.state(layer, kind)) {
            SublayerState::Kept => {
                self.scene.rect(from, to, KEPT_LAYER);
                self.scene.border(from, to, TEXT, 0.6, Dash::Solid);
                (name, TEXT)
            }
            SublayerState::Removed => {
                self.scene.border(from, to, REMOVED_LAYER, 0.6, Dash::Dashed);
                (name, SECONDARY_TEXT)
            }
            SublayerState::Replaced => {
                self.scene.rect(from, to, palette::map_color());
                (MAP_LABEL, ON_GHOST)
            }
        };
        let middle = (left + SUBLAYER_WIDTH / 2.0, bottom - LAYER_HEIGHT / 2.0 + BASELINE_OFFSET);
        self.scene.text(middle, label, Anchor::Middle, ink);
    }
}

#[cfg(test)]
mod tests {
    use super::super::palette::Color;
    use super::super::scene::SceneShape;
    use super::super::{DiagramCut, DiagramRow, Figure, LayerDiagram, Plot, Surroundings};
    use super::Sublayer::{Attention, Mlp};
    use super::*;

    fn scene(layers: usize, removed: Cut, replaced: Cut) -> Result<Scene> {
        let cut = DiagramCut::Sublayers(SublayerCut { removed, replaced });
        let selections = vec![DiagramRow { label: "LLM-Drop".into(), cut }];
        Figure { around: Surroundings::default(), plot: Plot::Layers(LayerDiagram { layers, selections }) }.scene()
    }

    fn texts(scene: &Scene) -> Vec<(&str, Color)> {
        let mut texts = Vec::new();
        for shape in &scene.shapes {
            if let SceneShape::Text { text, color, .. } = shape {
                texts.push((text.as_str(), *color));
            }
        }
        texts
    }

    fn count(scene: &Scene, text: &str, color: Color) -> usize {
        texts(scene).into_iter().filter(|found| *found == (text, color)).count()
    }

    fn count_filled(scene: &Scene, fill: Color) -> usize {
        let rects = scene.shapes.iter();
        rects.filter(|shape| matches!(shape, SceneShape::Rect { color, .. } if *color == fill)).count()
    }

    #[test]
    fn split_layers_show_kept_removed_and_replaced_sublayers() {
        let removed = Cut::layers([1]).with(0, Attention).with(3, Mlp);
        let scene = scene(4, removed, Cut::sublayers([(0, Attention)])).unwrap();
        for (text, color, expected) in [
            // The dense stack has 4 kept attention sublayers and 4 kept MLPs, and the other stack 2 of each.
            ("attention", TEXT, 6),
            ("MLP", TEXT, 6),
            ("attention", SECONDARY_TEXT, 1),
            ("MLP", SECONDARY_TEXT, 2),
            (MAP_LABEL, ON_GHOST, 1),
            // The remaining texts are in the legend, the sentences and the title of the stack.
            (MAP_LABEL, TEXT, 1),
            ("kept sublayer", TEXT, 1),
            ("removed sublayer", TEXT, 1),
            ("1 of 4 attentions removed: 1", TEXT, 1),
            ("1 of 4 attentions replaced: 0", TEXT, 1),
            ("2 of 4 MLPs removed: 1, 3", TEXT, 1),
            ("Repaired", TEXT, 1),
        ] {
            assert_eq!(count(&scene, text, color), expected, "{text} in {color:?}");
        }
        // The legend adds one kept block and one map block.
        assert_eq!((count_filled(&scene, KEPT_LAYER), count_filled(&scene, palette::map_color())), (12 + 1, 1 + 1));
    }

    #[test]
    fn legend_omits_maps_for_a_cut_without_maps() {
        let scene =
            scene(16, Cut::sublayers([(3, Attention), (4, Attention), (5, Attention)]), Cut::default()).unwrap();
        let texts: Vec<&str> = texts(&scene).into_iter().map(|(text, _)| text).collect();
        assert!(texts.contains(&"3 of 16 attentions removed: 3–5") && texts.contains(&"Pruned"), "{texts:?}");
        assert!(!texts.contains(&MAP_LABEL) && !texts.contains(&"hidden state past a cut"), "{texts:?}");
    }

    #[test]
    fn invalid_sublayers_are_rejected() {
        for (removed, replaced, found) in [
            (Cut::default(), Cut::default(), "none"),
            (Cut::sublayers([(16, Mlp)]), Cut::default(), "mlp 16"),
            (Cut::sublayers([(1, Mlp)]), Cut::sublayers([(1, Attention)]), "attention 1, which is replaced"),
        ] {
            let message = scene(16, removed, replaced).unwrap_err().to_string();
            assert!(message.contains(found) && message.contains("LLM-Drop"), "{message}");
        }
    }
}

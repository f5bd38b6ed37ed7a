//! Layer stacks as in the paper's figure 2: dense, pruned, and ghosted. If sublayers are removed, each layer is split
//! into its attention and its MLP.

use super::chart_frame::{
    BASELINE_OFFSET, GAP, Key, LAYER_HEIGHT, LAYER_PITCH, MARGIN, STACK_ENDS, Surroundings, Width, draw_arrow,
    draw_head, draw_stack_ends,
};
use super::font;
use super::palette::{self, KEPT_LAYER, ON_GHOST, REMOVED_LAYER, SECONDARY_TEXT, STREAM, TEXT};
use super::scene::{Anchor, Scene};
use super::split_stack::{MAP_LABEL, SplitStack, SublayerCut};
use crate::error::{Error, Result};
use crate::model::Cut;
use crate::results::ranges;
use crate::style::Dash;

/// Layers or sublayers that a criterion selected for removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiagramRow {
    /// Label above the stacks, such as `LLM-Streamline (contiguous)`.
    pub label: String,
    pub cut: DiagramCut,
}

/// Layers or sublayers removed from a backbone, with their replacements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiagramCut {
    /// Whole layers, drawn as a dense, a pruned and a ghosted stack.
    Layers {
        removed: Cut,
        /// Layer ranges `[start, end)` that the operators replace. If empty, there is one operator per region of
        /// adjacent removed layers.
        operators: Vec<(usize, usize)>,
    },
    /// Sublayers, drawn as a dense and a pruned stack of split layers.
    Sublayers(SublayerCut),
}

/// Diagram with several stacks per selection. Layer 0 is at the bottom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerDiagram {
    pub layers: usize,
    /// Selections to show. A column figure shows one, a page figure up to two.
    pub selections: Vec<DiagramRow>,
}

/// First and last layer in a region of adjacent removed layers.
type Region = (usize, usize);

/// Gap below and above a region that leaves room for the arrows, in points.
const REGION_PAD: f64 = 6.0;
/// Half the width of a layer, in points.
const HALF_LAYER_WIDTH: f64 = 30.5;
/// Distance between a layer and the residual stream that bypasses it, in points.
const BYPASS_GAP: f64 = 5.0;

const GHOST_LABEL: &str = "Ghosted Layer";
const STACKS: [(&str, Stack); 3] = [("Dense", Stack::Dense), ("Pruned", Stack::Pruned), ("Ghosted", Stack::Ghosted)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stack {
    Dense,
    Pruned,
    Ghosted,
}

impl LayerDiagram {
    /// Draws the diagram and returns the y-coordinate of its lower edge.
    ///
    /// # Errors
    /// Fails if there are no selections or too many. Also fails if a selection is empty or contains a layer that the
    /// backbone does not have.
    pub(super) fn draw(&self, around: &Surroundings, scene: &mut Scene) -> Result<f64> {
        let max_selections = if around.width == Width::Page { 2 } else { 1 };
        if self.selections.is_empty() || self.selections.len() > max_selections {
            return Err(Error::bad_input("wrong number of selections for a layer diagram")
                .expected(format!("1 to {max_selections}"))
                .found(self.selections.len().to_string()));
        }
        let regions = self.selections.iter().map(|row| row.regions(self.layers)).collect::<Result<Vec<_>>>()?;
        let top = draw_head(scene, &around.heading, &self.legend()) + GAP;
        let width = (scene.width - 2.0 * MARGIN) / self.selections.len() as f64;
        let mut titled = top;
        for (i, selection) in self.selections.iter().enumerate() {
            let middle = MARGIN + (i as f64 + 0.5) * width;
            let words = std::iter::once(selection.label.clone()).chain(selection.cut.sentences(self.layers));
            let lines: Vec<String> = words.flat_map(|words| font::wrap(&words, width - 2.0 * GAP)).collect();
            titled = titled.max(scene.lines((middle, top), &lines, Anchor::Middle));
        }
        // Align the stacks at the bottom.
        let tallest = regions.iter().map(Vec::len).max().unwrap_or(0) as f64 * 2.0 * REGION_PAD
            + self.layers as f64 * LAYER_PITCH;
        let heads = titled + 2.0 * GAP + font::LINE;
        let ground = heads + font::LINE + STACK_ENDS + tallest;
        for (i, (selection, regions)) in self.selections.iter().zip(&regions).enumerate() {
            let left = MARGIN + i as f64 * width;
            let title = titled + GAP + BASELINE_OFFSET * 2.0;
            let mut panel = Panel { scene, left, width, title, ground, layers: self.layers };
            match &selection.cut {
                DiagramCut::Layers { operators, .. } => {
                    panel.draw_layers(regions, &replaced_regions(operators, regions));
                }
                DiagramCut::Sublayers(cut) => panel.draw_sublayers(cut),
            }
        }
        Ok(ground + STACK_ENDS + font::LINE)
    }

    /// Returns the legend entries for the symbols that the stacks contain.
    fn legend(&self) -> Vec<(Key, String)> {
        let mut cuts = Vec::new();
        for row in &self.selections {
            if let DiagramCut::Sublayers(cut) = &row.cut {
                cuts.push(cut);
            }
        }
        let has_layers = cuts.len() < self.selections.len();
        let noun = match (has_layers, cuts.is_empty()) {
            (_, true) => "layer",
            (false, false) => "sublayer",
            (true, false) => "layer or sublayer",
        };
        let mut entries = vec![
            (Key::Block { fill: Some(KEPT_LAYER), border: TEXT, dash: Dash::Solid }, format!("kept {noun}")),
            (Key::Block { fill: None, border: REMOVED_LAYER, dash: Dash::Dashed }, format!("removed {noun}")),
        ];
        if has_layers {
            let ghost = palette::paper_method_color();
            entries.push((Key::Block { fill: Some(ghost), border: ghost, dash: Dash::Solid }, GHOST_LABEL.to_owned()));
            entries.push((Key::Arrow(STREAM), "hidden state past a cut".to_owned()));
        }
        if cuts.iter().any(|cut| !cut.replaced.is_empty()) {
            let map = palette::map_color();
            entries.push((Key::Block { fill: Some(map), border: map, dash: Dash::Solid }, MAP_LABEL.to_owned()));
        }
        entries
    }
}

/// Part of the figure that shows one selection.
struct Panel<'a> {
    scene: &'a mut Scene,
    left: f64,
    width: f64,
    /// Baseline of the stack titles.
    title: f64,
    /// Vertical position of the bottom of layer 0.
    ground: f64,
    layers: usize,
}

impl Panel<'_> {
    fn draw_layers(&mut self, regions: &[Region], operators: &[Region]) {
        let &mut Self { left, width, title, ground, layers, .. } = self;
        for (j, (name, stack)) in STACKS.iter().enumerate() {
            let x = left + (j as f64 + 0.5) * width / 3.0 - BYPASS_GAP / 2.0;
            self.scene.text((x, title), name, Anchor::Middle, TEXT);
            DrawnStack { scene: self.scene, x, ground, layers, regions, operators }.draw_stack(*stack);
        }
    }

    fn draw_sublayers(&mut self, cut: &SublayerCut) {
        let &mut Self { left, width, title, ground, layers, .. } = self;
        for (j, (name, cut)) in [("Dense", None), (cut.title(), Some(cut))].into_iter().enumerate() {
            let x = left + (j as f64 + 0.5) * width / 2.0 + SplitStack::OFFSET;
            self.scene.text((x, title), name, Anchor::Middle, TEXT);
            SplitStack { scene: self.scene, x, ground, layers, cut }.draw();
        }
    }
}

struct DrawnStack<'a> {
    scene: &'a mut Scene,
    x: f64,
    /// Vertical position of the bottom of layer 0.
    ground: f64,
    layers: usize,
    regions: &'a [Region],
    operators: &'a [Region],
}

impl DrawnStack<'_> {
    /// Returns the vertical position of the bottom edge of a layer. If `layer` is the number of layers, returns the top
    /// of the stack.
    fn bottom_edge(&self, layer: usize) -> f64 {
        // Every region that starts at or below the layer adds one gap, and every region that ends below it adds
        // another.
        let pads = self.regions.iter().flat_map(|(first, last)| [*first <= layer, *last < layer]);
        self.ground - layer as f64 * LAYER_PITCH - REGION_PAD * pads.filter(|is_below| *is_below).count() as f64
    }

    fn draw_stack(&mut self, stack: Stack) {
        let top = self.bottom_edge(self.layers);
        // Draw the residual stream behind the layers.
        let mut from = self.ground + STACK_ENDS;
        if stack != Stack::Dense {
            for &(first, last) in self.regions {
                if first > 0 {
                    let below = self.bottom_edge(first - 1) - LAYER_HEIGHT;
                    self.scene.line(&[(self.x, from), (self.x, below)], TEXT, 1.0, Dash::Solid);
                }
                from = self.bottom_edge(last + 1);
            }
        }
        if stack == Stack::Dense || self.regions.last().is_none_or(|(_, last)| last + 1 < self.layers) {
            draw_arrow(self.scene, &[(self.x, from), (self.x, top - STACK_ENDS)], TEXT);
        }
        for layer in 0..self.layers {
            let removed = stack != Stack::Dense && self.regions.iter().any(|(a, b)| (*a..=*b).contains(&layer));
            if !(removed && stack == Stack::Ghosted) {
                self.draw_layer(layer, removed);
            }
        }
        for (first, last) in self.regions {
            match stack {
                Stack::Dense => {}
                Stack::Pruned => self.draw_bypass(*first, *last),
                Stack::Ghosted => self.draw_ghost(*first, *last),
            }
        }
        draw_stack_ends(self.scene, self.x, (self.ground, top));
    }

    fn draw_layer(&mut self, layer: usize, removed: bool) {
        let bottom = self.bottom_edge(layer);
        let from = (self.x - HALF_LAYER_WIDTH, bottom - LAYER_HEIGHT);
        let to = (self.x + HALF_LAYER_WIDTH, bottom);
        let (border, ink, dash) =
            if removed { (REMOVED_LAYER, SECONDARY_TEXT, Dash::Dashed) } else { (TEXT, TEXT, Dash::Solid) };
        if !removed {
            self.scene.rect(from, to, KEPT_LAYER);
        }
        self.scene.border(from, to, border, 0.6, dash);
        self.scene.text(
            (self.x, bottom - LAYER_HEIGHT / 2.0 + BASELINE_OFFSET),
            &layer.to_string(),
            Anchor::Middle,
            ink,
        );
    }

    /// Returns the y-coordinates at which the residual stream leaves the layer below a region and enters the layer
    /// above it.
    fn stream_ends(&self, first: usize, last: usize) -> (f64, f64) {
        let start = if first == 0 { self.ground + STACK_ENDS } else { self.bottom_edge(first - 1) - LAYER_HEIGHT };
        let end = if last + 1 == self.layers {
            self.bottom_edge(self.layers) - STACK_ENDS
        } else {
            self.bottom_edge(last + 1)
        };
        (start, end)
    }

    fn draw_bypass(&mut self, first: usize, last: usize) {
        let (start, end) = self.stream_ends(first, last);
        let low = self.bottom_edge(first) + REGION_PAD * 0.4;
        let high = self.bottom_edge(last) - LAYER_HEIGHT - REGION_PAD * 0.25;
        let side = self.x + HALF_LAYER_WIDTH + BYPASS_GAP;
        let places = [(self.x, start), (self.x, low), (side, low), (side, high), (self.x, high), (self.x, end)];
        draw_arrow(self.scene, &places, STREAM);
    }

    /// Draws the Ghosted Layers that replace a region, and the residual stream through them.
    fn draw_ghost(&mut self, first: usize, last: usize) {
        let ((mut start, end), color) = (self.stream_ends(first, last), palette::paper_method_color());
        for &(lowest, highest) in self.operators.iter().filter(|(a, b)| (first..=last).contains(a) && *b <= last) {
            let low = self.bottom_edge(lowest);
            let high = self.bottom_edge(highest) - LAYER_HEIGHT;
            if highest > lowest {
                let from = (self.x - HALF_LAYER_WIDTH, high);
                let to = (self.x + HALF_LAYER_WIDTH, low);
                self.scene.border(from, to, REMOVED_LAYER, 0.6, Dash::Dashed);
            }
            let middle = f64::midpoint(low, high);
            let from = middle - LAYER_HEIGHT / 2.0 - 0.4;
            let to = middle + LAYER_HEIGHT / 2.0 + 0.4;
            draw_arrow(self.scene, &[(self.x, start), (self.x, to)], STREAM);
            self.scene.rect((self.x - HALF_LAYER_WIDTH, from), (self.x + HALF_LAYER_WIDTH, to), color);
            self.scene.text((self.x, middle + BASELINE_OFFSET), GHOST_LABEL, Anchor::Middle, ON_GHOST);
            start = from;
        }
        draw_arrow(self.scene, &[(self.x, start), (self.x, end)], STREAM);
    }
}

impl DiagramRow {
    /// Returns whether each removed layer has its own operator even though some of the layers are adjacent.
    pub fn is_layer_by_layer(&self) -> bool {
        let DiagramCut::Layers { removed, operators } = &self.cut else { return false };
        operators.len() == removed.whole_layers().len() && removed.regions().len() < operators.len()
    }

    /// Checks the cut and returns its regions of removed layers. A cut of sublayers has no regions.
    fn regions(&self, layers: usize) -> Result<Vec<Region>> {
        let found = match &self.cut {
            DiagramCut::Layers { removed, .. } => find_regions(removed, layers),
            DiagramCut::Sublayers(cut) => cut.check(layers).map(|()| Vec::new()),
        };
        found.map_err(|error| error.at(self.label.as_str()))
    }
}

impl DiagramCut {
    /// Describes the cut of a backbone with `layers` layers.
    fn sentences(&self, layers: usize) -> Vec<String> {
        match self {
            Self::Layers { removed, .. } => {
                let removed = removed.whole_layers();
                vec![format!("{} of {layers} layers removed: {}", removed.len(), ranges(&removed, "–", ", "))]
            }
            Self::Sublayers(cut) => cut.sentences(layers),
        }
    }
}

/// Returns the first and last layer replaced by each operator, or `regions` if `operators` is empty.
fn replaced_regions(operators: &[(usize, usize)], regions: &[Region]) -> Vec<Region> {
    let mut all: Vec<Region> =
        operators.iter().filter(|(start, end)| start < end).map(|(start, end)| (*start, end - 1)).collect();
    all.sort_unstable();
    if all.is_empty() { regions.to_vec() } else { all }
}

/// Returns the regions of adjacent removed layers.
///
/// # Errors
/// Fails if no layer is removed, or if one is not below `layers`.
fn find_regions(removed: &Cut, layers: usize) -> Result<Vec<Region>> {
    let found = match removed.whole_layers().last() {
        None => "none".to_owned(),
        Some(largest) if *largest >= layers => format!("layer {largest}"),
        Some(_) => return Ok(removed.regions().into_iter().map(|(start, end)| (start, end - 1)).collect()),
    };
    Err(Error::bad_input("invalid removed layers")
        .expected(format!("one or more distinct layers below {layers}"))
        .found(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_layers_are_one_region() {
        let regions = find_regions(&Cut::layers([9, 3, 8, 7]), 16).unwrap();
        assert_eq!(regions, [(3, 3), (7, 9)]);
        assert_eq!(ranges(&[9, 3, 8, 7], "–", ", "), "3, 7–9");
    }

    #[test]
    fn invalid_removed_layers_are_rejected() {
        for (removed, found) in [(vec![16], "layer 16"), (vec![], "none")] {
            let message = find_regions(&Cut::layers(removed), 16).unwrap_err().to_string();
            assert!(message.contains(found), "{message}");
        }
    }
}

//! Renders the paper's figures as SVG, PDF and PNG from plain data.
//!
//! | figure in the paper | type |
//! | --- | --- |
//! | 1, boundary error by recovery; 3, norms of the operator's symmetric and antisymmetric part | [`BarChart`] |
//! | 2, removed layers and Ghosted Layers, or removed sublayers | [`LayerDiagram`] |
//! | 4, error in each channel; 5, accuracy against depth | [`Curves`] |
//! | none, one value per calibration seed | [`DotChart`] |
//! | none, quality against size and time, with the Pareto frontier | [`Pareto`] |
//!
//! A figure is converted into a `scene` of shapes, measured in points. The scene is written as SVG and PDF and
//! rasterized by plotters, so all formats have the same proportions. Text is set at 8 points at the printed width. A
//! method has the same style in every figure ([`palette`]). The SVG follows the reader's light or dark theme and has an
//! accessible title and description. Non-finite numbers count as missing. Equal data yields equal bytes.
//!
//! ```
//! use ghostlab::artifact::figure::{Axis, BarChart, Figure, Plot, Series, Surroundings};
//! let around = Surroundings {
//!     title: "Boundary error".into(),
//!     description: "The error with and without a Ghosted Layer.".into(),
//!     heading: "4 of 16 layers removed".into(),
//!     ..Surroundings::default()
//! };
//! let plot = Plot::Bars(BarChart {
//!     axis: Axis { label: "Boundary MAE".into(), ..Axis::default() },
//!     groups: vec!["tiny-llama".into()],
//!     series: vec![
//!         Series { method: "none".into(), label: "Pruned".into(), values: vec![0.42.into()] },
//!         Series { method: "ghosted".into(), label: "Ghost Layer".into(), values: vec![None.into()] },
//!     ],
//!     missing: "failed".into(),
//! });
//! let drawing = Figure { around, plot }.draw()?;
//! assert!(drawing.svg.contains("failed"));
//! assert!(drawing.pdf.starts_with(b"%PDF"));
//! assert!(drawing.png.starts_with(b"\x89PNG"));
//! # Ok::<(), ghostlab::error::Error>(())
//! ```

mod axis;
mod bars;
mod chart_frame;
mod curves;
mod font;
mod layer_diagram;
pub mod palette;
mod pareto;
mod pdf;
mod png;
#[cfg(test)]
mod sample_figures;
mod scene;
mod split_stack;
mod svg;
#[cfg(test)]
mod tests;

pub use axis::{Axis, Scale};
pub use bars::{BarChart, BarValue, DotChart, Series};
pub use chart_frame::{Surroundings, Width};
pub use curves::{Curves, Level, Line, Point};
pub use layer_diagram::{DiagramCut, DiagramRow, LayerDiagram};
pub use pareto::{Pareto, ParetoPoint, ParetoRow, ParetoSeries, frontier};
pub use split_stack::SublayerCut;

use crate::error::Result;

#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    pub around: Surroundings,
    pub plot: Plot,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Plot {
    Bars(BarChart),
    Curves(Curves),
    Dots(DotChart),
    Layers(LayerDiagram),
    Pareto(Pareto),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drawing {
    /// SVG at printed size, with a light and a dark theme.
    pub svg: String,
    /// PDF at printed size, in the light theme.
    pub pdf: Vec<u8>,
    /// PNG at 300 dpi, in the light theme.
    pub png: Vec<u8>,
}

impl Drawing {
    pub const ENDINGS: [&str; 3] = ["svg", "pdf", "png"];

    /// Returns the file extension and the contents for each format.
    pub fn formats(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        Self::ENDINGS.into_iter().zip([self.svg.as_bytes(), &self.pdf, &self.png])
    }
}

impl Figure {
    #[must_use]
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.around.note = note.into();
        self
    }

    /// Draws the figure in all formats.
    ///
    /// # Errors
    /// Fails if the data is empty or inconsistent, or if rendering fails.
    pub fn draw(&self) -> Result<Drawing> {
        let scene = self.scene()?;
        Ok(Drawing { svg: svg::render_svg(&scene), pdf: pdf::render_pdf(&scene)?, png: png::render_png(&scene)? })
    }

    fn scene(&self) -> Result<scene::Scene> {
        font::load()?;
        let Surroundings { title, description, note, width, .. } = &self.around;
        let mut scene = scene::Scene::new(title, description, width.points());
        let below = match &self.plot {
            Plot::Bars(bars) => bars.draw(&self.around, &mut scene),
            Plot::Curves(curves) => curves.draw(&self.around, &mut scene),
            Plot::Dots(dots) => dots.draw(&self.around, &mut scene),
            Plot::Layers(diagram) => diagram.draw(&self.around, &mut scene),
            Plot::Pareto(pareto) => pareto.draw(&self.around, &mut scene),
        }
        .map_err(|error| error.at(title.as_str()))?;
        chart_frame::finish(&mut scene, note, below);
        Ok(scene)
    }
}

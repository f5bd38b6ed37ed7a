//! Answer of `layers`.

use schemars::JsonSchema;
use serde::Serialize;

/// The layers of a model were ranked.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RankedLayers {
    /// The model's name as given.
    pub(crate) model: String,
    /// The engine.
    pub(crate) engine: String,
    /// The text that the criteria measured on.
    pub(crate) calibration: String,
    /// Layers of the model.
    pub(crate) layers: usize,
    /// One entry for each criterion that ranks layers; two for one that ranks sublayers.
    pub(crate) criteria: Vec<CriterionScores>,
    /// The figure's file; null without one.
    pub(crate) figure: Option<String>,
}

/// A criterion's scores of all layers, all attentions or all MLPs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CriterionScores {
    /// The criterion's name in grids.
    pub(crate) criterion: String,
    /// Its name in print.
    pub(crate) label: String,
    /// The measured quantity.
    pub(crate) quantity: String,
    /// `layer`, `attention` or `mlp`.
    pub(crate) of: String,
    /// Whether the lowest score is removed first, or the highest.
    pub(crate) lowest_first: bool,
    /// By layer. A layer that the criterion never removes has no score.
    pub(crate) scores: Vec<LayerScore>,
}

/// The score of one layer or sublayer.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct LayerScore {
    /// The layer, from 0.
    pub(crate) layer: usize,
    /// The measured value.
    pub(crate) score: f64,
    /// 1 is removed first. Attentions and MLPs are ranked together.
    pub(crate) rank: usize,
}

//! Output of `ghostlab layers`.

use schemars::JsonSchema;
use serde::Serialize;

/// Output of `layers`: ranking of a model's layers by several criteria.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LayersAnswer {
    /// Name of the model as given on the command line.
    pub(crate) model: String,
    /// Name of the engine.
    pub(crate) engine: String,
    /// Calibration text used by the criteria.
    pub(crate) calibration: String,
    /// Number of layers.
    pub(crate) layers: usize,
    /// One entry per criterion that ranks layers, and two per criterion that ranks sublayers.
    pub(crate) criteria: Vec<CriterionScores>,
    /// Path of the figure; null if there is none.
    pub(crate) figure: Option<String>,
}

/// Scores of one criterion for all layers, attention sublayers or MLP sublayers.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CriterionScores {
    /// Name of the criterion in grids.
    pub(crate) criterion: String,
    /// Display name of the criterion.
    pub(crate) label: String,
    /// Quantity that the criterion measures.
    pub(crate) quantity: String,
    /// Scored unit: `layer`, `attention` or `mlp`.
    #[serde(rename = "of")]
    pub(crate) unit: String,
    /// Whether the layer with the lowest score is removed first, rather than the one with the highest.
    pub(crate) lowest_first: bool,
    /// Scores by layer. Layers that the criterion never removes are omitted.
    pub(crate) scores: Vec<LayerScore>,
}

/// Score of one layer or sublayer.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct LayerScore {
    /// Layer index, from 0.
    pub(crate) layer: usize,
    /// Measured value.
    pub(crate) score: f64,
    /// Removal rank, from 1. Attention and MLP sublayers share one ranking.
    pub(crate) rank: usize,
}

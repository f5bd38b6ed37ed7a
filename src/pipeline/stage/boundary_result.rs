//! Result of repairing one span of a cut ([`Span`](crate::recovery::Span)), which is stored with the operator.

use serde::{Deserialize, Serialize};

use crate::model::{MergedLayer, Sublayer};
use crate::recovery::RepairMetrics;

/// Position of a repair in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacedRepair {
    /// On the residual stream, in place of the removed layers.
    Stream,
    /// On the MLP branch of the layer before the cut.
    Mlp,
    /// On both branches of the layer before the cut.
    AttentionAndMlp,
    /// On the residual stream, in place of the removed attention of layer `region.0`.
    Attention,
    /// On the residual stream, in place of the removed MLP of layer `region.0`.
    ReplacedMlp,
    /// In the merged weights of the layer before the cut.
    Merged,
}

impl PlacedRepair {
    /// Returns the sublayer that the repair replaces, or `None` if it repairs removed layers.
    pub fn replaced_sublayer(self) -> Option<Sublayer> {
        match self {
            Self::Attention => Some(Sublayer::Attention),
            Self::ReplacedMlp => Some(Sublayer::Mlp),
            Self::Stream | Self::Mlp | Self::AttentionAndMlp | Self::Merged => None,
        }
    }
}

/// Result of repairing one span.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BoundaryResult {
    /// Removed layers `[start, end)`. If a sublayer was removed, `start` is its layer.
    pub region: (usize, usize),
    /// Content key of the operator or of the merged layer, or `None` if the layers were removed without a repair.
    pub operator: Option<String>,
    /// Position of the operator in the model, or `None` if there is no repair.
    pub placed: Option<PlacedRepair>,
    /// Merged layer before the cut, if the repair merges layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<MergedLayer>,
    /// Notes on the repair, shown to the user.
    pub notes: Vec<String>,
    /// Whether the calibration data is insufficient to determine a repair, which makes the results meaningless.
    #[serde(default)]
    pub undetermined: bool,
    /// Rank of the least-squares matrix, if a least-squares problem was solved.
    pub rank: Option<usize>,
    /// Condition number of the least-squares matrix, or `None` if it is infinite.
    pub condition: Option<f64>,
    /// Mean loss in each epoch. Empty if the method is not iterative.
    pub losses: Vec<f64>,
    /// Time for solving in seconds, not including measurements.
    pub solve_seconds: f64,
    #[serde(flatten)]
    pub numbers: RepairMetrics,
}

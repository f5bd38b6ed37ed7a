//! Option of several methods that selects the input of their affine repair map.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Input to a map of the residual stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum MapInput {
    /// The stream `x`.
    #[default]
    Stream,
    /// `RMSNorm(x)`, with the norm of the first removed sublayer.
    Normed,
}

impl MapInput {
    /// Returns whether the input is the stream itself.
    pub(crate) fn is_stream(&self) -> bool {
        *self == Self::Stream
    }
}

//! The option that two rules share: what their cosine is taken over.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::calibrate::SimilarityAxis;

#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Cosine {
    /// Over the positions of each channel, as the reference code does.
    #[default]
    ChannelSeries,
    /// Over the channels of each token.
    Token,
}

impl Cosine {
    pub(super) fn axis(self) -> SimilarityAxis {
        match self {
            Self::ChannelSeries => SimilarityAxis::ChannelSeries,
            Self::Token => SimilarityAxis::Token,
        }
    }
}

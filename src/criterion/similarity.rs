//! The option that two rules share: what their cosine is taken over.

use serde::Deserialize;

use crate::calibrate::Axis;

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Cosine {
    /// What the reference code does.
    #[default]
    ChannelSeries,
    Token,
}

impl Cosine {
    pub(super) fn axis(self) -> Axis {
        match self {
            Self::ChannelSeries => Axis::ChannelSeries,
            Self::Token => Axis::Token,
        }
    }
}

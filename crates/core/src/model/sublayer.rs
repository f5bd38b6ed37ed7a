//! Sublayers of a decoder layer.

use crate::named::named;

/// Sublayer in a decoder layer. Each sublayer is a residual branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sublayer {
    Attention,
    Mlp,
}

named!(Sublayer: Attention = "attention", Mlp = "mlp");

/// Stage at which the computation of a sublayer stops.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum SublayerOutput {
    /// Output of the last projection, before the norm at the end of the branch if there is one.
    Projection,
    /// The complete branch, including the norm at its end if there is one.
    Branch,
    /// The branch added to the residual stream.
    Stream,
}

impl Sublayer {
    /// Returns the index of the sublayer in the backbone: `2·layer`, plus 1 for an MLP.
    pub fn index_in_model(self, layer: usize) -> usize {
        2 * layer + usize::from(self == Self::Mlp)
    }

    /// Returns the layer and the sublayer with the given index.
    pub fn from_index(index: usize) -> (usize, Self) {
        (index / 2, Self::ALL[index % 2])
    }

    /// Returns the indices of the pre-norm and post-norm among a layer's four norms.
    pub(super) fn norms(self) -> [usize; 2] {
        match self {
            Self::Attention => [0, 1],
            Self::Mlp => [2, 3],
        }
    }
}

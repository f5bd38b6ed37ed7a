//! The halves of a layer.

use crate::named::named;

/// A half of a layer: a branch that is computed from the residual stream and added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sublayer {
    Attention,
    Mlp,
}

named!(Sublayer: Attention = "attention", Mlp = "mlp");

impl Sublayer {
    pub const BOTH: [Self; 2] = [Self::Attention, Self::Mlp];

    /// Returns the position of the sublayer among those of a backbone: `2·layer`, plus 1 for an MLP.
    pub fn number(self, layer: usize) -> usize {
        2 * layer + usize::from(self == Self::Mlp)
    }

    /// Returns the sublayer at a position.
    pub fn numbered(number: usize) -> (usize, Self) {
        (number / 2, Self::BOTH[number % 2])
    }

    /// Returns the indices of the norms before and after the sublayer among a layer's four.
    pub(super) fn norms(self) -> [usize; 2] {
        match self {
            Self::Attention => [0, 1],
            Self::Mlp => [2, 3],
        }
    }
}

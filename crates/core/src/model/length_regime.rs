//! Length regimes of rotary embeddings. The RoPE types `dynamic` and `longrope` use different frequencies for long and
//! short sequences, which therefore cannot share cached keys.

use super::architecture::RopeEntries;
use super::config::Config;
use super::rope_config::{LongRope, Rope, Scaling};

/// Length regime of a sequence, for each rotary embedding in a backbone. Only sequences in the same regime can share
/// cached keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LengthRegime([usize; 2]);

impl Rope {
    /// Returns the maximum sequence length at which the frequencies equal those of short sequences.
    fn stable_length(&self) -> usize {
        match &self.scaling {
            Some(Scaling::Dynamic { positions, .. }) => *positions,
            Some(Scaling::LongRope(LongRope { original_max_position_embeddings, .. })) => {
                *original_max_position_embeddings
            }
            _ => usize::MAX,
        }
    }

    /// Returns the regime for a sequence length. It is 0 up to the original context. Beyond the original context, it is
    /// 1 for `longrope` and the length for `dynamic`.
    pub(super) fn regime(&self, length: usize) -> usize {
        match &self.scaling {
            _ if length <= self.stable_length() => 0,
            Some(Scaling::LongRope(_)) => 1,
            _ => length,
        }
    }
}

impl Config {
    pub fn length_regime(&self, length: usize) -> LengthRegime {
        let window = self.window_rope.as_ref().map_or(0, |rope| rope.regime(length));
        LengthRegime([self.rope.regime(length), window])
    }

    /// Returns the maximum length of sequences in the regime of short sequences.
    pub(super) fn stable_length(&self) -> usize {
        let window = self.window_rope.as_ref().map_or(usize::MAX, Rope::stable_length);
        self.rope.stable_length().min(window)
    }

    pub(super) fn has_length_regimes(&self) -> bool {
        self.stable_length() < usize::MAX
    }

    /// Returns whether transformers recomputes a sequence from its first token when the sequence enters another regime.
    /// Only `Phi3ForCausalLM` does this. Other classes keep the cached keys.
    pub(crate) fn recomputes_in_new_regime(&self) -> bool {
        self.architecture.rope == RopeEntries::Partial && self.has_length_regimes()
    }
}

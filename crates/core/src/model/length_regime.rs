//! Regimes of sequence length. The rope types `dynamic` and `longrope` turn the tokens of a long sequence by other frequencies
//! than those of a short one, so that keys of one cannot be reused by the other.

use super::architecture::RopeEntries;
use super::config::Config;
use super::rope_config::{LongRope, Rope, Scaling};

/// Regime of a sequence's length under each rotary embedding of a backbone. Sequences of unlike regimes share no keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LengthRegime([usize; 2]);

impl Rope {
    /// Returns the longest sequence whose frequencies are those of a short one.
    fn stable_length(&self) -> usize {
        match &self.scaling {
            Some(Scaling::Dynamic { positions, .. }) => *positions,
            Some(Scaling::LongRope(LongRope { original_max_position_embeddings, .. })) => {
                *original_max_position_embeddings
            }
            _ => usize::MAX,
        }
    }

    /// Returns what the frequencies of a sequence depend on: 0 up to the original context; beyond it 1 for `longrope`, and the
    /// length for `dynamic`.
    pub(super) fn regime(&self, length: usize) -> usize {
        match &self.scaling {
            _ if length <= self.stable_length() => 0,
            Some(Scaling::LongRope(_)) => 1,
            _ => length,
        }
    }
}

impl Config {
    /// Returns the regime of a sequence of `length` tokens.
    pub fn length_regime(&self, length: usize) -> LengthRegime {
        let window = self.window_rope.as_ref().map_or(0, |rope| rope.regime(length));
        LengthRegime([self.rope.regime(length), window])
    }

    /// Returns the longest sequence that has the regime of a short one.
    pub(super) fn stable_length(&self) -> usize {
        let window = self.window_rope.as_ref().map_or(usize::MAX, Rope::stable_length);
        self.rope.stable_length().min(window)
    }

    /// Whether frequencies depend on the length of a sequence.
    pub(super) fn has_length_regimes(&self) -> bool {
        self.stable_length() < usize::MAX
    }

    /// Whether a sequence that grows into another regime has to run again from its first token. transformers'
    /// `Phi3ForCausalLM` does so; its other classes keep the keys that they have.
    pub(crate) fn recomputes_in_new_regime(&self) -> bool {
        self.architecture.rope == RopeEntries::Partial && self.has_length_regimes()
    }
}

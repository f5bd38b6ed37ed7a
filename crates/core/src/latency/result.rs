//! Timing results of one variant.

use serde::{Deserialize, Serialize};

use super::decode::DecodeResult;
use super::rounds::{counted, rests_on_noise};
use super::spread::{Speedup, TimeSpread};

/// Times of a variant over one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyResult {
    /// Milliseconds of each round, every operator of the stream a full product; none where memory did not suffice.
    pub times: Option<Vec<f64>>,
    /// Times with a diagonal operator as one multiplication per channel. `None` without one.
    pub by_channel: Option<Vec<f64>>,
    /// The dense backbone's times in the same rounds, where it was among them.
    pub dense: Option<Vec<f64>>,
    /// The first of the rounds that count, as many as the protocol has: those before it, or behind them, were noise.
    pub first: usize,
    /// Number of complete sessions that were measured. The times are those of the last one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub sessions: usize,
    /// Bytes of the weights that it needs, its operator among them.
    pub weight_bytes: u64,
    /// The most bytes of intermediates at a time; none where they lie in another memory, or were not counted.
    pub intermediate_bytes: Option<u64>,
    /// The dense backbone's weights and intermediates.
    pub dense_bytes: Option<u64>,
    /// Decoding times after the prompt, if requested and supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<DecodeResult>,
}

/// Number of sessions of results that do not name it.
fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(sessions: &usize) -> bool {
    *sessions == 1
}

impl LatencyResult {
    /// Whether the prefill or decoding time is noise, so that a record of it is refused.
    pub fn is_unstable(&self) -> bool {
        let decoded = self.decode.as_ref().and_then(DecodeResult::spread);
        [self.spread(), decoded].into_iter().flatten().any(|spread| spread.is_noise())
    }

    /// Returns the rounds that count.
    pub fn counted<'t>(&self, times: &'t [f64]) -> &'t [f64] {
        counted(self.first, times)
    }

    pub fn spread(&self) -> Option<TimeSpread> {
        TimeSpread::of(self.counted(self.times.as_deref()?))
    }

    /// Returns the spread of the diagonal operator timed as one multiplication per channel.
    pub fn spread_by_channel(&self) -> Option<TimeSpread> {
        TimeSpread::of(self.counted(self.by_channel.as_deref()?))
    }

    /// Whether its speedup rests on times that are noise.
    pub fn has_noisy_speedup(&self) -> bool {
        rests_on_noise(self.first, [self.dense.as_deref(), self.times.as_deref()])
    }

    pub fn speedup(&self) -> Option<Speedup> {
        Speedup::of(self.counted(self.dense.as_deref()?), self.counted(self.times.as_deref()?))
    }

    /// Returns the peak memory: weights and intermediates.
    pub fn bytes(&self) -> Option<u64> {
        Some(self.weight_bytes + self.intermediate_bytes?)
    }

    /// Returns the peak memory in percent of the dense backbone's.
    pub fn memory_percent(&self) -> Option<f64> {
        Some(100.0 * self.bytes()? as f64 / self.dense_bytes? as f64)
    }
}

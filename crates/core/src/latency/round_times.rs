//! Times of a variant in the rounds of a session, for prefill or decoding.

use serde::{Deserialize, Serialize};

use super::rounds::{Rounds, choose_counted_rounds};
use super::spread::{Speedup, TimeSpread};

/// Times of a variant in the rounds of one session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundTimes {
    /// Milliseconds per round with every stream operator applied as a full matrix product. `None` if memory was
    /// insufficient.
    pub times: Option<Vec<f64>>,
    /// Times with diagonal operators applied as one multiplication per channel. `None` if there are no diagonal
    /// operators.
    pub by_channel: Option<Vec<f64>>,
    /// Times of the dense backbone in the same rounds, if it was measured.
    pub dense: Option<Vec<f64>>,
    /// Index of the first of the rounds that enter the statistics. The protocol sets the number of these rounds.
    pub first: usize,
}

impl RoundTimes {
    /// Sets the times of the dense backbone, and chooses the counted rounds.
    pub(super) fn set_dense(&mut self, dense: Option<&Self>) {
        self.dense = dense.and_then(|dense| dense.times.clone());
        let times: Vec<&[f64]> =
            [&self.dense, &self.times, &self.by_channel].into_iter().filter_map(Option::as_deref).collect();
        self.first = choose_counted_rounds(self.first, &times);
    }

    /// Returns the times of the counted rounds, from which statistics are computed.
    pub fn counted_times<'t>(&self, times: &'t [f64]) -> &'t [f64] {
        times.get(self.first..times.len().min(self.first + Rounds::PAPER.timed)).unwrap_or(times)
    }

    pub fn spread(&self) -> Option<TimeSpread> {
        TimeSpread::from_times(self.counted_times(self.times.as_deref()?))
    }

    /// Returns the spread of the times with diagonal operators applied as one multiplication per channel.
    pub fn spread_by_channel(&self) -> Option<TimeSpread> {
        TimeSpread::from_times(self.counted_times(self.by_channel.as_deref()?))
    }

    /// Returns whether the speedup is based on unstable times.
    pub fn has_noisy_speedup(&self) -> bool {
        let times = [&self.dense, &self.times].into_iter().filter_map(Option::as_deref);
        times.filter_map(|times| TimeSpread::from_times(self.counted_times(times))).any(|spread| spread.is_noise())
    }

    pub fn speedup(&self) -> Option<Speedup> {
        Speedup::from_times(self.counted_times(self.dense.as_deref()?), self.counted_times(self.times.as_deref()?))
    }
}

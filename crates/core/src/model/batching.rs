//! Adaptive batch size for backbones whose weights are loaded on demand. The number of tokens per pass over the layers
//! grows until loading takes a small fraction of the time, or the residual streams fill their memory budget. Results do
//! not depend on the batch size.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Maximum fraction of a pass's time spent loading weights. If a pass exceeds it, later passes process more tokens.
const MAX_LOADING_FRACTION: f64 = 0.1;
/// Minimum number of residual streams to keep, even if they exceed the memory budget.
const MIN_STREAMS: usize = 4;

/// Chooses the number of tokens per pass from the loading times of earlier passes.
pub(super) struct PassPlanner {
    /// Bytes available for residual streams.
    stream_bytes: u64,
    /// Size of one token's residual stream in bytes.
    row_bytes: u64,
    /// Number of tokens per pass before the memory limit is applied. It never decreases.
    tokens: AtomicUsize,
}

impl PassPlanner {
    pub(super) fn new(stream_bytes: u64, channels: usize) -> Self {
        Self { stream_bytes, row_bytes: (4 * channels).max(1) as u64, tokens: AtomicUsize::new(0) }
    }

    /// Returns the number of tokens for the next pass with `streams` residual streams.
    pub(super) fn tokens(&self, streams: usize) -> usize {
        self.tokens.load(Relaxed).min(self.max_rows() / streams.max(1))
    }

    /// Returns how many streams of `tokens` tokens fit in the budget, but at least [`MIN_STREAMS`].
    pub(super) fn streams(&self, tokens: usize) -> usize {
        (self.max_rows() / tokens.max(1)).max(MIN_STREAMS)
    }

    /// Updates the number of tokens per pass after a pass of `tokens` tokens. The pass took `seconds` seconds in
    /// total, including `loading_seconds` seconds for loading weights.
    pub(super) fn record_pass(&self, tokens: usize, seconds: f64, loading_seconds: f64) {
        if loading_seconds > MAX_LOADING_FRACTION * seconds {
            self.tokens.fetch_max(2 * tokens, Relaxed);
        }
    }

    fn max_rows(&self) -> usize {
        usize::try_from(self.stream_bytes / self.row_bytes).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_size_grows_until_loading_is_cheap_or_memory_is_full() {
        let passes = PassPlanner::new(4 * 10 * 64_000, 10);
        assert_eq!((passes.tokens(1), passes.streams(2000)), (0, 32));
        passes.record_pass(2000, 10.0, 0.9);
        assert_eq!(passes.tokens(1), 0, "the next pass must not grow if loading is cheap");
        passes.record_pass(2000, 10.0, 4.0);
        assert_eq!(passes.tokens(1), 4000);
        passes.record_pass(4000, 18.0, 4.0);
        // A short pass at the end of a text does not reduce the number of tokens.
        passes.record_pass(100, 2.0, 4.0);
        assert_eq!((passes.tokens(1), passes.tokens(8), passes.tokens(16)), (8000, 8000, 4000));
        assert_eq!((passes.streams(8000), passes.streams(1_000_000)), (8, MIN_STREAMS));
        assert_eq!((PassPlanner::new(0, 10).tokens(3), PassPlanner::new(0, 10).streams(3)), (0, MIN_STREAMS));
    }
}

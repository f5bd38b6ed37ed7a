//! How much text goes through the layers together where their weights are made by need: more from pass to pass, until
//! making them is a small part of the time, as far as the memory for streams goes. Results do not depend on it.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Of the time of a pass, making weights may take this much: with more, the next pass is longer.
const MOST_MAKING: f64 = 0.1;
/// Streams that are there in any case: batches are counted with so many.
const LEAST_STREAMS: usize = 4;

pub(super) struct Passes {
    /// Memory for streams.
    bytes: u64,
    /// Bytes of one token's stream.
    row: u64,
    /// What would be enough, as far as is known.
    tokens: AtomicUsize,
}

impl Passes {
    pub(super) fn new(bytes: u64, channels: usize) -> Self {
        Self { bytes, row: (4 * channels).max(1) as u64, tokens: AtomicUsize::new(0) }
    }

    /// Tokens of the next pass, of each of which so many streams are held.
    pub(super) fn tokens(&self, streams: usize) -> usize {
        self.tokens.load(Relaxed).min(self.rows() / streams.max(1))
    }

    /// How many streams of so many tokens have room.
    pub(super) fn streams(&self, tokens: usize) -> usize {
        (self.rows() / tokens.max(1)).max(LEAST_STREAMS)
    }

    /// Takes note of a pass: its tokens, its seconds, and those in which weights were made.
    pub(super) fn learn(&self, tokens: usize, seconds: f64, making: f64) {
        if making > MOST_MAKING * seconds {
            self.tokens.fetch_max(2 * tokens, Relaxed);
        }
    }

    fn rows(&self) -> usize {
        usize::try_from(self.bytes / self.row).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_grows_until_making_weights_is_a_tenth_or_the_memory_is_used() {
        let passes = Passes::new(4 * 10 * 64_000, 10);
        assert_eq!((passes.tokens(1), passes.streams(2000)), (0, 32));
        passes.learn(2000, 10.0, 0.9);
        assert_eq!(passes.tokens(1), 0, "it is enough");
        passes.learn(2000, 10.0, 4.0);
        assert_eq!(passes.tokens(1), 4000);
        passes.learn(4000, 18.0, 4.0);
        // A short one at the end of a text.
        passes.learn(100, 2.0, 4.0);
        assert_eq!((passes.tokens(1), passes.tokens(8), passes.tokens(16)), (8000, 8000, 4000));
        assert_eq!((passes.streams(8000), passes.streams(1_000_000)), (8, LEAST_STREAMS));
        assert_eq!((Passes::new(0, 10).tokens(3), Passes::new(0, 10).streams(3)), (0, LEAST_STREAMS));
    }
}

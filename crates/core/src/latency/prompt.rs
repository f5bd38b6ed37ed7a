//! What a timed pass reads.

use crate::model::{Batch, ScoredRow};

/// Sequences of one length, read together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prompt {
    /// Tokens of a sequence.
    pub length: usize,
    /// Sequences.
    pub batch: usize,
}

impl Prompt {
    pub fn tokens(&self) -> usize {
        self.length * self.batch
    }

    /// The prompt as a batch whose head works at every position, as the paper's code has it. The ids are always the same
    /// and visit the whole vocabulary: a pass takes as long whatever it reads.
    pub fn as_batch(&self, vocab: usize) -> Batch {
        let id = |at: usize| (at.wrapping_mul(STRIDE) % vocab.max(1)) as u32;
        let mut batch = Batch::default();
        for sequence in 0..self.batch {
            let first = sequence * self.length;
            let ids: Vec<u32> = (first..first + self.length).map(id).collect();
            batch.push(&ids, None);
        }
        batch.targets = (0..self.tokens()).map(|row| ScoredRow { row, token: id(row + 1) }).collect();
        batch
    }
}

/// A prime, larger than most steps between rows of one page of an embedding.
const STRIDE: usize = 7919;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_of_every_sequence_is_predicted() {
        let batch = Prompt { length: 5, batch: 3 }.as_batch(11);
        assert_eq!((batch.tokens(), batch.segments.len(), batch.longest()), (15, 3, 5));
        assert_eq!(batch.targets.iter().map(|target| target.row).collect::<Vec<_>>(), (0..15).collect::<Vec<_>>());
        assert!(batch.ids.iter().chain(batch.targets.iter().map(|target| &target.token)).all(|&id| id < 11));
    }
}

//! The last part of a training: the same text once more, in which answers count for more than what stands around them.
//!
//! A passage says in many words what a `yes` sums up in one. Of two thousand tokens some ten are such answers; a backbone
//! that ignores the passage loses next to nothing, and what it could learn from them drowns in what it learns from the
//! others. Where they weigh more, it learns from a few hundred of them to read the passage.

use serde::{Deserialize, Serialize};

/// How long the last part is, and how much an answer counts in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lessons {
    /// Tokens of this part.
    pub tokens: usize,
    /// The rate at its beginning; it falls like that of the first part.
    pub rate: f64,
    /// How much the first token of an answer counts; any other counts 1.
    pub weight: f32,
}

/// What stands before an answer.
pub const MARKER: &str = "Answer:";

/// Finds answers in a stream of tokens.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    marker: Vec<u32>,
    weight: f32,
}

impl Answers {
    /// `marker` is [`MARKER`] in tokens.
    pub(super) fn new(marker: Vec<u32>, weight: f32) -> Self {
        Self { marker, weight }
    }

    /// How much each prediction in a chunk counts: one fewer than it has tokens.
    pub(super) fn weights(&self, chunk: &[u32]) -> Vec<f32> {
        let predictions = 1..chunk.len();
        let follows = |at: usize| !self.marker.is_empty() && chunk[..at].ends_with(&self.marker);
        predictions.map(|at| if follows(at) { self.weight } else { 1.0 }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_after_the_marker_counts_for_more() {
        let answers = Answers::new(vec![7, 8], 5.0);
        assert_eq!(answers.weights(&[7, 8, 1, 2, 8, 3, 7, 8, 9]), [1.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0]);
        assert_eq!(Answers::new(Vec::new(), 5.0).weights(&[1, 2]), [1.0]);
    }
}

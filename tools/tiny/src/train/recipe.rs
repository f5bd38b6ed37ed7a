//! All that decides what a trained backbone is.

use serde::{Deserialize, Serialize};

use super::optimizer::Optimizer;
use super::shape::{self, Shape};
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::sha256;
use ghostlab_core::model::Config;
use ghostlab_core::model::architecture::Architecture;

/// A training run, but for its text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub shape: Shape,
    pub optimizer: Optimizer,
    /// Of the first weights and of the order of the text.
    pub seed: u64,
    /// Tokens to train on before the lessons, epochs counted again.
    pub tokens: usize,
    /// Chunks of one step.
    pub batch: usize,
    /// Tokens of a chunk, and the window of the last part of the training.
    pub chunk: usize,
    /// The window of the first part: shorter ones cost less.
    pub short: usize,
    /// The share of the steps with the short window.
    pub short_share: f64,
    /// Parts of a batch whose gradients are added up apart. More than threads, so that a thread that is held up does
    /// not hold up the step; part of the recipe, because it decides the order of a sum.
    pub shards: usize,
    /// The last part of the training.
    pub lessons: Lessons,
}

impl Recipe {
    /// The recipe of the project's own backbones.
    pub fn tiny(architecture: &Architecture) -> Self {
        let shape = Shape::tiny(architecture);
        Self {
            chunk: shape.context,
            shape,
            optimizer: Optimizer::default(),
            seed: 1,
            tokens: 5_000_000,
            batch: 4,
            short: 256,
            short_share: 0.75,
            shards: 4,
            lessons: Lessons { tokens: 1_000_000, rate: 1e-3, weight: 32.0 },
        }
    }

    /// Steps before the lessons.
    pub fn steps(&self) -> usize {
        self.tokens / (self.batch * self.chunk).max(1)
    }

    /// Steps, those of the lessons among them.
    pub fn all_steps(&self) -> usize {
        self.steps() + self.lessons.tokens / (self.batch * self.chunk).max(1)
    }

    /// The rate of a step, counted from 0.
    pub fn rate_at(&self, step: usize) -> f64 {
        let first = self.steps();
        match step.checked_sub(first) {
            None => self.optimizer.rate_at(step, first),
            Some(step) => {
                let optimizer = Optimizer { rate: self.lessons.rate, warmup: 0, ..self.optimizer.clone() };
                optimizer.rate_at(step, self.all_steps() - first)
            }
        }
    }

    /// The window of a step.
    pub fn span_at(&self, step: usize) -> usize {
        if (step as f64) < self.short_share * self.steps() as f64 { self.short } else { self.chunk }
    }

    /// Refuses what cannot be trained.
    ///
    /// # Errors
    /// A setting, named with what was expected and found.
    pub fn check(&self) -> Result<()> {
        let wrong = |at: &str, expected: &str, found: String| {
            Err(Error::bad_input("the recipe cannot be trained").at(at).expected(expected).found(found))
        };
        let sizes = [("batch", self.batch), ("chunk", self.chunk), ("short", self.short), ("shards", self.shards)];
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return wrong(name, "a number above 0", "0".into());
        }
        if !self.chunk.is_multiple_of(self.short) {
            return wrong("short", "a divisor of `chunk`", format!("{} of {}", self.short, self.chunk));
        }
        if self.chunk > self.shape.context {
            return wrong("chunk", "at most the context of the shape", format!("{}", self.chunk));
        }
        if self.steps() <= self.optimizer.warmup {
            return wrong("tokens", "more steps than the warm-up has", format!("{} steps", self.steps()));
        }
        if self.shape.known().is_none() {
            return wrong("architecture", "llama, qwen3 or olmo2", self.shape.architecture.clone());
        }
        Ok(())
    }

    /// The config as the rest of the program reads it: through the file that will be written.
    ///
    /// # Errors
    /// A shape that the reader of configs refuses.
    pub fn config(&self, end: u32) -> Result<Config> {
        shape::parsed(&self.shape.config(end))
    }

    /// Names the run: two runs of one fingerprint are the same run.
    ///
    /// # Errors
    /// A setting that JSON cannot hold.
    pub fn fingerprint(&self, corpus: &str) -> Result<String> {
        let recipe =
            serde_json::to_string(self).map_err(|error| Error::job("the recipe cannot be written").found(error))?;
        Ok(sha256::of_bytes(format!("{recipe}\n{corpus}")))
    }
}

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

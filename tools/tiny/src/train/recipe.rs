//! Settings that determine a trained backbone.

use serde::{Deserialize, Serialize};

use super::optimizer::Optimizer;
use super::shape::{self, Shape};
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::sha256;
use ghostlab_core::model::Config;
use ghostlab_core::model::architecture::Architecture;

/// Settings of a training run, except its text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    pub shape: Shape,
    pub optimizer: Optimizer,
    /// Seed of the initial weights and the text order.
    pub seed: u64,
    /// Training tokens before the final phase, counting repeated epochs.
    pub tokens: usize,
    pub batch: usize,
    /// Tokens per chunk; also the attention window after the short windows.
    pub chunk: usize,
    /// Attention window of the first steps; shorter windows are cheaper.
    pub short: usize,
    /// Share of the steps with the short window.
    pub short_share: f64,
    /// Number of parts of a batch whose gradients are summed separately. It exceeds the number of threads, so that one
    /// slow thread does not delay the step. It is part of the recipe because it determines the summation order.
    pub shards: usize,
    pub lessons: Lessons,
}

impl Recipe {
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

    /// Returns the number of steps before the final phase.
    pub fn steps(&self) -> usize {
        self.tokens / (self.batch * self.chunk).max(1)
    }

    /// Returns the total number of steps, including the final phase.
    pub fn all_steps(&self) -> usize {
        self.steps() + self.lessons.tokens / (self.batch * self.chunk).max(1)
    }

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

    pub fn span_at(&self, step: usize) -> usize {
        if (step as f64) < self.short_share * self.steps() as f64 { self.short } else { self.chunk }
    }

    /// Validates the settings.
    ///
    /// # Errors
    /// Fails if a setting is invalid, with the expected and the found value.
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

    /// Returns the config as parsed from the file that will be written.
    ///
    /// # Errors
    /// Fails if the config parser rejects the shape.
    pub fn config(&self, end: u32) -> Result<Config> {
        shape::parsed(&self.shape.config(end))
    }

    /// Returns the fingerprint that identifies the run.
    ///
    /// # Errors
    /// Fails if a setting cannot be represented in JSON.
    pub fn fingerprint(&self, corpus: &str) -> Result<String> {
        let recipe =
            serde_json::to_string(self).map_err(|error| Error::job("the recipe cannot be written").found(error))?;
        Ok(sha256::of_bytes(format!("{recipe}\n{corpus}")))
    }
}

/// Final training phase, with upweighted answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lessons {
    pub tokens: usize,
    /// Initial learning rate, which decays like that of the first phase.
    pub rate: f64,
    /// Loss weight of the first token of an answer; all other tokens have weight 1.
    pub weight: f32,
}

/// Text before an answer.
pub const MARKER: &str = "Answer:";

/// Finder of answers in a token stream.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    marker: Vec<u32>,
    weight: f32,
}

impl Answers {
    /// Creates a finder; `marker` contains the tokens of [`MARKER`].
    pub(super) fn new(marker: Vec<u32>, weight: f32) -> Self {
        Self { marker, weight }
    }

    /// Returns the loss weight of each prediction in a chunk, one fewer than it has tokens.
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

//! Distributes chunks of text across threads: loss and summed gradients of a training step, and scores of held-out
//! text.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::corpus::{Stream, windows};
use super::network::{Network, Tape};

/// Buffers for the shards of a batch, each processed by one thread. The assignment of chunks to shards does not depend
/// on the number of threads, and neither does the result.
#[derive(Debug)]
pub struct Shards {
    tapes: Vec<Tape<f32>>,
    /// Gradient of each shard's chunks.
    pub gradients: Vec<Vec<f32>>,
}

impl Shards {
    pub fn new(count: usize, parameters: usize) -> Self {
        Self { tapes: (0..count).map(|_| Tape::default()).collect(), gradients: vec![vec![0.0; parameters]; count] }
    }

    /// Returns the mean loss of the chunks, and adds the gradient of the weighted mean to `gradients`. Each chunk has
    /// one token more than it has predictions.
    ///
    /// Tokens attend within windows of `span`. `counts` returns the weight of each prediction of a chunk.
    pub fn run(
        &mut self,
        network: &Network,
        weights: &[f32],
        chunks: &[&[u32]],
        span: usize,
        counts: &(dyn Fn(&[u32]) -> Vec<f32> + Sync),
    ) -> f64 {
        let tokens: usize = chunks.iter().map(|chunk| chunk.len() - 1).sum();
        let mut factors: Vec<Vec<f32>> = chunks.iter().map(|chunk| counts(chunk)).collect();
        let total: f32 = factors.iter().flatten().sum();
        factors.iter_mut().flatten().for_each(|factor| *factor /= total);
        let each = chunks.len().div_ceil(self.tapes.len());
        let shards = chunks.par_chunks(each).zip(factors.par_chunks(each));
        let shards = shards.zip(&mut self.tapes).zip(&mut self.gradients);
        let sums: Vec<f64> = shards
            .map(|(((chunks, factors), tape), gradient)| {
                let mut losses = Vec::new();
                for (chunk, factors) in chunks.iter().zip(factors) {
                    let inputs = &chunk[..chunk.len() - 1];
                    let targets = &chunk[1..];
                    network.forward(weights, inputs, span, tape);
                    network.losses_back(weights, targets, factors, tape, &mut losses, gradient);
                    network.backward(weights, inputs, span, tape, gradient);
                }
                losses.iter().sum::<f64>()
            })
            .collect();
        sums.iter().sum::<f64>() / tokens as f64
    }

    /// Computes the loss of every token except the first of each chunk, in order.
    pub fn losses(&mut self, network: &Network, weights: &[f32], chunks: &[&[u32]]) -> Vec<f64> {
        let each = chunks.len().div_ceil(self.tapes.len()).max(1);
        let shards = chunks.par_chunks(each).zip(&mut self.tapes);
        let parts: Vec<Vec<f64>> = shards
            .map(|(chunks, tape)| {
                let mut losses = Vec::new();
                for chunk in chunks.iter().filter(|chunk| chunk.len() > 1) {
                    let inputs = &chunk[..chunk.len() - 1];
                    let targets = &chunk[1..];
                    network.forward(weights, inputs, inputs.len(), tape);
                    network.losses(weights, targets, tape, &mut losses);
                }
                losses
            })
            .collect();
        parts.into_iter().flatten().collect()
    }
}

/// Validation score of one register.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    pub register: String,
    pub tokens: usize,
    /// Mean negative log-likelihood in nats.
    pub loss: f64,
    pub perplexity: f64,
    /// Perplexity of a unigram model of the register's training text.
    pub unigram_perplexity: f64,
}

pub fn scores(
    network: &Network,
    weights: &[f32],
    streams: &[Stream],
    tokens: usize,
    limit: usize,
    shards: &mut Shards,
) -> Vec<Score> {
    let mut scores = Vec::new();
    for stream in streams {
        let windows = windows(&stream.validation, tokens, limit);
        if windows.is_empty() {
            continue;
        }
        let losses = shards.losses(network, weights, &windows);
        let loss = losses.iter().sum::<f64>() / losses.len() as f64;
        scores.push(Score {
            register: stream.name.clone(),
            tokens: losses.len(),
            loss,
            perplexity: loss.exp(),
            unigram_perplexity: unigram(&stream.train, &windows, network.config.vocab).exp(),
        });
    }
    scores
}

/// Returns the unweighted mean of the registers' losses.
pub fn mean_loss(scores: &[Score]) -> Option<f64> {
    (!scores.is_empty()).then(|| scores.iter().map(|score| score.loss).sum::<f64>() / scores.len() as f64)
}

/// Computes the mean negative log-likelihood of the windows' predicted tokens under the token frequencies of `train`,
/// with add-one smoothing.
fn unigram(train: &[u32], windows: &[&[u32]], vocab: usize) -> f64 {
    let mut counts = vec![1.0f64; vocab];
    for &id in train {
        counts[id as usize] += 1.0;
    }
    let total: f64 = counts.iter().sum();
    let predicted = windows.iter().flat_map(|window| &window[1..]);
    let (sum, tokens) =
        predicted.fold((0.0, 0), |(sum, tokens), &id| (sum - (counts[id as usize] / total).ln(), tokens + 1));
    sum / f64::from(tokens.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unigram_model_of_even_tokens_is_as_good_as_its_vocabulary() {
        let train: Vec<u32> = (0..4000).map(|i| i % 4).collect();
        let loss = unigram(&train, &[&[0, 1, 2, 3, 0, 1]], 4);
        assert!((loss.exp() - 4.0).abs() < 1e-9);
    }
}

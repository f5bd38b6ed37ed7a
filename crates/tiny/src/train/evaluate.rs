//! Perplexity of each register, beside that of a model which knows only how frequent each token is.

use serde::{Deserialize, Serialize};

use super::batch::Shards;
use super::corpus::{Stream, windows};
use super::network::Network;

/// How well one register's validation text is predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    pub register: String,
    /// Predicted tokens.
    pub tokens: usize,
    /// Mean negative log likelihood, in nats.
    pub loss: f64,
    pub perplexity: f64,
    /// Of a unigram model of the same register's training text.
    pub unigram_perplexity: f64,
}

/// Scores each register on at most `limit` windows of `tokens`.
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

/// The mean of the registers' losses: each counts the same.
pub fn mean_loss(scores: &[Score]) -> Option<f64> {
    (!scores.is_empty()).then(|| scores.iter().map(|score| score.loss).sum::<f64>() / scores.len() as f64)
}

/// The mean negative log likelihood of the windows' predicted tokens under the frequencies of `train`, one added to each
/// so that no token is impossible.
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

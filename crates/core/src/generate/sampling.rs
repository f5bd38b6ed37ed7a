//! Sampling of the next token.

use rand_mt::Mt;
use sha2::{Digest, Sha256};

use super::settings::Sampling;
use crate::model::argmax;

/// Sampling state of one sequence.
pub(super) struct TokenSampler {
    sampling: Sampling,
    generator: Mt,
}

impl TokenSampler {
    pub(super) fn new(sampling: Sampling, identity: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(sampling.seed.to_le_bytes());
        hash.update(identity);
        let digest: [u8; 32] = hash.finalize().into();
        let (words, _) = digest.as_chunks::<4>();
        let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        Self { sampling, generator: Mt::new_with_key(words) }
    }

    /// Samples the next token. Returns `None` if no logit is finite or one is NaN or +∞.
    pub(super) fn next(&mut self, logits: &[f32]) -> Option<u32> {
        argmax(logits)?;
        // Use 53 random bits, like CPython's `random.random()`.
        let high = self.generator.next_u32() >> 5;
        let low = self.generator.next_u32() >> 6;
        let draw = (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0;
        Some(draw_token(logits, &self.sampling, draw))
    }
}

/// Returns the first token whose cumulative probability exceeds `draw` times the total of the kept tokens. Tokens are
/// ordered by decreasing probability, then by id.
fn draw_token(logits: &[f32], sampling: &Sampling, draw: f64) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.truncate(sampling.top_k.unwrap_or(usize::MAX));
    let max_logit = f64::from(logits[order[0]]);
    let weights: Vec<f64> =
        order.iter().map(|&token| ((f64::from(logits[token]) - max_logit) / sampling.temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut kept_count = weights.len();
    if sampling.top_p < 1.0 {
        let mut sum = 0.0;
        kept_count = weights
            .iter()
            .take_while(|weight| {
                let is_short = sum < sampling.top_p * total;
                sum += **weight;
                is_short
            })
            .count();
    }
    let kept_mass: f64 = weights[..kept_count].iter().sum();
    let mut sum = 0.0;
    let position = weights[..kept_count].iter().position(|weight| {
        sum += weight;
        sum > draw * kept_mass
    });
    order[position.unwrap_or(0)] as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Sampling = Sampling { temperature: 1.0, top_p: 1.0, top_k: None, seed: 0 };

    #[test]
    fn tokens_are_sampled_within_top_k_and_top_p() {
        // The probabilities are 0.2, 0.5 and 0.3.
        let logits = [0.2f32.ln(), 0.5f32.ln(), 0.3f32.ln()];
        assert_eq!(
            [0.0, 0.49, 0.51, 0.79, 0.81, 0.999].map(|draw| drawn_token(PLAIN, draw, &logits)),
            [1, 1, 2, 2, 0, 0]
        );
        assert_eq!(drawn_token(Sampling { top_k: Some(1), ..PLAIN }, 0.999, &logits), 1);
        // Top-p keeps 0.5 and 0.3. After normalization, the first of them has a probability of 0.625.
        let sampling = Sampling { top_p: 0.6, ..PLAIN };
        assert_eq!([0.62, 0.63, 0.999].map(|draw| drawn_token(sampling, draw, &logits)), [1, 2, 2]);
        // Halving the temperature squares the probabilities. Before normalization they are 0.04, 0.25 and 0.09.
        let cold = Sampling { temperature: 0.5, ..PLAIN };
        assert_eq!([0.65, 0.66, 0.89, 0.90].map(|draw| drawn_token(cold, draw, &logits)), [1, 2, 2, 0]);
    }

    fn drawn_token(sampling: Sampling, draw: f64, logits: &[f32]) -> u32 {
        draw_token(logits, &sampling, draw)
    }

    #[test]
    fn sampling_depends_only_on_seed_and_prompt() {
        let logits = vec![0.0; 1000];
        assert_eq!(four_draws(1, "a", &logits), four_draws(1, "a", &logits));
        assert_ne!(four_draws(1, "a", &logits), four_draws(1, "b", &logits));
        assert_ne!(four_draws(1, "a", &logits), four_draws(2, "a", &logits));
    }

    fn four_draws(seed: u64, identity: &str, logits: &[f32]) -> [Option<u32>; 4] {
        let mut sampler = TokenSampler::new(Sampling { seed, ..PLAIN }, identity);
        [(); 4].map(|()| sampler.next(logits))
    }
}

//! Perplexity, protocol `windows` (design §5).
//!
//! Non-overlapping windows of T tokens. A window's loss is the mean negative log-likelihood of its T − 1 predicted
//! tokens; the perplexity is `exp` of the mean over windows. All variants are scored in one run of their trie.

use crate::corpus::Windows;
use crate::error::Result;
use crate::model::{Batch, Decoder, Trie};

use super::Clock;

/// The loss of every window under one variant.
#[derive(Debug, Clone, Default)]
pub struct Losses {
    /// Mean negative log-likelihood of each window, in nats per token.
    pub windows: Vec<f64>,
}

impl Losses {
    /// `exp` of the mean of the window means; NaN where a window's loss is not finite.
    pub fn perplexity(&self) -> f64 {
        (self.windows.iter().sum::<f64>() / self.windows.len() as f64).exp()
    }

    /// Windows whose loss is not finite.
    pub fn not_finite(&self) -> usize {
        self.windows.iter().filter(|loss| !loss.is_finite()).count()
    }
}

/// Scores all programs of a trie on all windows; one [`Losses`] for each program.
///
/// `progress` is told the tokens of each batch and may stop the run. `seconds[node]` grows by the time of each step.
pub fn score(
    decoder: &Decoder,
    trie: &Trie,
    programs: usize,
    windows: &Windows,
    batch_tokens: usize,
    seconds: &mut [f64],
    mut progress: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Losses>> {
    let mut losses = vec![Losses::default(); programs];
    let all: Vec<&[u32]> = windows.iter().collect();
    for windows in all.chunks((batch_tokens / windows.length).max(1)) {
        let batch = Batch::windows(windows.iter().copied());
        let outputs = trie.run(decoder, &batch, &mut Clock(seconds))?;
        for (losses, output) in losses.iter_mut().zip(outputs) {
            let predictions = output.unwrap_or_default();
            let predicted = predictions.len() / windows.len().max(1);
            let means = predictions.chunks_exact(predicted.max(1)).map(|window| {
                let sum: f64 = window.iter().map(|p| -f64::from(p.log_probability)).sum();
                sum / window.len() as f64
            });
            losses.windows.extend(means);
        }
        progress(batch.tokens())?;
    }
    Ok(losses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_is_the_exponential_of_the_mean_of_window_means() {
        // By hand: window means ln 2 and ln 8, their mean ln 4. (The mean of the two perplexities would be 5.)
        let losses = Losses { windows: vec![2f64.ln(), 8f64.ln()] };
        assert!((losses.perplexity() - 4.0).abs() < 1e-12);
    }

    #[test]
    fn a_window_that_is_not_finite_is_counted_and_shows() {
        let losses = Losses { windows: vec![1.0, f64::NAN] };
        assert!(losses.perplexity().is_nan());
        assert_eq!(losses.not_finite(), 1);
    }
}

//! Perplexity on token windows (docs/design.md §5).
//!
//! A window's loss is the mean negative log-likelihood of its T − 1 predicted tokens. The perplexity is `exp` of the
//! mean loss over windows. All variants are scored in one run of their [`Trie`], which shares their common steps.

use super::eval_set::{ChunkValues, EngineOutput, EvalPart, EvalSet, run_in_parts, score};
use crate::corpus::Windows;
use crate::error::Result;
use crate::model::{Batch, Engine, Load, Prediction, Program, Trie};

/// Loss of each window for one variant.
#[derive(Debug, Clone, Default)]
pub struct Losses {
    /// Mean negative log-likelihood of each window, in nats per token.
    pub windows: Vec<f64>,
}

impl Losses {
    /// Returns the mean loss over windows.
    pub fn mean(&self) -> f64 {
        self.windows.iter().sum::<f64>() / self.windows.len() as f64
    }

    /// Computes `exp` of the mean loss. Returns NaN or infinity if a loss is not finite.
    pub fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// Computes the standard error of the perplexity: the error of the mean loss times the derivative of `exp`. Returns
    /// `None` for fewer than two windows.
    pub fn standard_error(&self) -> Option<f64> {
        let count = self.windows.len() as f64;
        let mean = self.mean();
        let variance = self.windows.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / (count - 1.0);
        (self.windows.len() > 1).then(|| mean.exp() * (variance / count).sqrt())
    }

    /// Returns the number of windows whose loss is not finite.
    pub fn not_finite(&self) -> usize {
        self.windows.iter().filter(|loss| !loss.is_finite()).count()
    }
}

/// Computes the perplexity of each program on all windows, in one run of their trie.
///
/// # Errors
/// Fails if a tensor operation fails.
pub fn of(engine: &dyn Engine, programs: &[Program], windows: &Windows) -> Result<Vec<f64>> {
    let trie = Trie::for_scoring(programs);
    let mut seconds = vec![0.0; trie.len()];
    let eval_set = PerplexityEval::new(windows, BATCH_TOKENS);
    let losses = score(&eval_set, engine, &trie, &mut seconds, |_| Ok(()))?;
    Ok(losses.into_iter().map(|windows| Losses { windows }.perplexity()).collect())
}

/// Default number of tokens per batch.
pub(super) const BATCH_TOKENS: usize = 2048;

/// Eval set over windows. Its values are the mean losses of the windows.
pub struct PerplexityEval<'a> {
    windows: &'a Windows,
    windows_per_chunk: usize,
}

impl<'a> PerplexityEval<'a> {
    /// Groups windows into chunks of up to `batch_tokens` tokens, with at least one window each.
    pub fn new(windows: &'a Windows, batch_tokens: usize) -> Self {
        Self { windows, windows_per_chunk: (batch_tokens / windows.length).max(1) }
    }

    /// Returns the indices of a chunk's windows.
    fn window_range(&self, chunk: usize) -> std::ops::Range<usize> {
        chunk * self.windows_per_chunk..((chunk + 1) * self.windows_per_chunk).min(self.windows.count())
    }

    /// Runs the given chunks ([`run_in_parts`]). `compute_values` computes the values of windows of the given length.
    pub(super) fn run_windows<T: EngineOutput + 'static>(
        &self,
        engine: &dyn Engine,
        trie: &Trie,
        chunks: &[usize],
        seconds: &mut [f64],
        compute_values: fn(&[T], usize) -> Vec<f64>,
    ) -> Result<ChunkValues> {
        let windows = self.windows;
        let members: Vec<Vec<usize>> = chunks.iter().map(|&chunk| self.window_range(chunk).collect()).collect();
        let members: Vec<&[usize]> = members.iter().map(Vec::as_slice).collect();
        run_in_parts(
            engine,
            trie,
            &members,
            |_: &usize| windows.length,
            seconds,
            |members| EvalPart {
                batch: Batch::windows(members.iter().map(|&index| windows.window(index))),
                extract_values: Box::new(move |outputs| compute_values(outputs, windows.length)),
            },
        )
    }
}

impl EvalSet for PerplexityEval<'_> {
    fn chunks(&self) -> usize {
        self.windows.count().div_ceil(self.windows_per_chunk)
    }

    fn tokens(&self, chunk: usize) -> usize {
        self.window_range(chunk).len() * self.windows.length
    }

    fn load(&self, chunks: &[usize]) -> Load {
        Load::windows(chunks.iter().map(|&chunk| self.tokens(chunk)).sum(), self.windows.length)
    }

    fn count(&self, chunk: usize) -> usize {
        self.window_range(chunk).len()
    }

    fn run(&self, engine: &dyn Engine, trie: &Trie, chunks: &[usize], seconds: &mut [f64]) -> Result<ChunkValues> {
        self.run_windows(engine, trie, chunks, seconds, compute_window_losses)
    }
}

/// Computes the mean loss of each window from its predictions. Each window has `length` tokens.
fn compute_window_losses(predictions: &[Prediction], length: usize) -> Vec<f64> {
    predictions
        .chunks_exact((length - 1).max(1))
        .map(|window| window.iter().map(|p| -f64::from(p.log_probability)).sum::<f64>() / window.len() as f64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Start;
    use crate::model::engine::tests::AddingEngine;

    #[test]
    fn scoring_copies_no_residual_stream_to_the_host() {
        let engine = AddingEngine::new();
        let starts = (0..3).map(|window| Start { document: 0, token: 3 * window }).collect();
        let windows = Windows { ids: vec![1, 2, 3, 4, 5, 6, 7, 8, 9], length: 3, starts, corpus_tokens: 9, bytes: 0 };
        let programs = [Program::dense(4), Program::pruned(4, &[1], |_| None)];
        // The test engine predicts each window from its first two tokens, and each layer adds 11.
        let mean = (1.5 + 4.5 + 7.5) / 3.0;
        for (ours, added) in of(&engine, &programs, &windows).unwrap().into_iter().zip([44.0, 33.0]) {
            assert!((ours.ln() - (mean + added)).abs() < 1e-12, "{ours}");
        }
        assert_eq!(engine.copy_count(), 0);
    }

    #[test]
    fn perplexity_is_the_exponential_of_the_mean_window_loss() {
        // The losses ln 2 and ln 8 have the mean ln 4. (The mean of the two perplexities would be 5.)
        let losses = Losses { windows: vec![2f64.ln(), 8f64.ln()] };
        assert!((losses.perplexity() - 4.0).abs() < 1e-12);
    }

    #[test]
    fn perplexity_stderr_is_loss_stderr_times_perplexity() {
        // The losses ln 2 and ln 8 both deviate from their mean ln 4 by ln 2, so the standard error of the mean is ln 2
        // · √2 / √2. The perplexity is exp(ln 4) = 4.
        let losses = Losses { windows: vec![2f64.ln(), 8f64.ln()] };
        assert!((losses.standard_error().unwrap() - 4.0 * 2f64.ln()).abs() < 1e-12);
        assert_eq!(Losses { windows: vec![1.0] }.standard_error(), None);
    }

    #[test]
    fn nonfinite_loss_is_counted_and_gives_nan_perplexity() {
        let losses = Losses { windows: vec![1.0, f64::NAN] };
        assert!(losses.perplexity().is_nan());
        assert_eq!(losses.not_finite(), 1);
    }
}

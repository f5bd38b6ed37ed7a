//! Damage metrics: how much a variant's predictions differ from the dense model's on the windows of a text.
//!
//! All predicted tokens of all windows have equal weight. `p` is the dense model's next-token distribution, and `q` is
//! the variant's. The second half of a window contains the predictions at positions T/2 … T − 2, like llama.cpp's
//! `--kl-divergence`. The dense model runs in the same [`Trie`] as its pruned variants, so logits need not be stored.

use super::eval_set::{ChunkValues, EvalSet, score};
use super::perplexity::{BATCH_TOKENS, Losses, PerplexityEval};
use crate::corpus::Windows;
use crate::error::Result;
use crate::model::{Divergence, Engine, Load, Program, Trie};
use crate::tasks::Measure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Mean of `Σ p ln(p / q)`, in nats.
    KlDenseVariant,
    /// Mean of `Σ q ln(q / p)`, in nats.
    KlVariantDense,
    /// Fraction of predictions whose top token agrees with the dense model's.
    SameTop,
    /// Mean of `q − p` for the true token.
    MeanChange,
    /// Mean of `|q − p|` for the true token.
    MeanAbsoluteChange,
    /// Root mean square of `q − p` for the true token.
    RmsChange,
    /// Ratio of the variant's perplexity to the dense model's.
    PerplexityRatio,
}

impl Damage {
    /// Estimates the metric and its standard error from the window means ([`Damages::by_window`]). The error is
    /// propagated through the square root and the exponential to first order. Returns `None` if there are no windows or
    /// a value is not finite.
    pub fn estimate(self, windows: &[f64]) -> Option<Measure> {
        let mean = Measure::from_values(windows)?;
        // The metric's value, and its derivative with respect to the mean.
        let (value, slope) = match self {
            // The square root has no derivative at zero. If the mean is zero, all squares are zero, so the error is
            // zero too.
            Self::RmsChange if mean.value == 0.0 => (0.0, 1.0),
            Self::RmsChange => (mean.value.sqrt(), 0.5 / mean.value.sqrt()),
            Self::PerplexityRatio => (mean.value.exp(), mean.value.exp()),
            _ => (mean.value, 1.0),
        };
        let stderr = mean.stderr.map(|error| slope * error).filter(|error| error.is_finite());
        value.is_finite().then_some(Measure { value, stderr })
    }

    /// Returns the lower and upper bounds of the metric's values. `None` means unbounded.
    pub fn value_range(self) -> (f64, Option<f64>) {
        match self {
            Self::KlDenseVariant | Self::KlVariantDense | Self::PerplexityRatio => (0.0, None),
            Self::SameTop | Self::MeanAbsoluteChange | Self::RmsChange => (0.0, Some(1.0)),
            Self::MeanChange => (-1.0, Some(1.0)),
        }
    }

    /// Returns the index of the metric among a window's values.
    pub fn value_index(self, part: WindowPart) -> usize {
        let first = match part {
            WindowPart::All => 1,
            WindowPart::SecondHalf => 1 + METRIC_COUNT,
        };
        first + self as usize
    }
}

/// Part of a window that a metric covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowPart {
    All,
    SecondHalf,
}

const METRIC_COUNT: usize = 7;
/// Number of values per window: its loss, and all metrics over the full window and over its second half.
pub const VALUES_PER_WINDOW: usize = 1 + 2 * METRIC_COUNT;

/// Means over a window's predictions, in the order of [`Damage`]. The RMS change is stored as the mean square, and the
/// perplexity ratio as the mean loss difference.
type WindowMeans = [f64; METRIC_COUNT];

/// Losses and damage metrics of every window for one variant.
#[derive(Debug, Clone, Default)]
pub struct Damages {
    pub losses: Losses,
    /// Values of each window, in the order of [`Damage::value_index`].
    windows: Vec<[f64; VALUES_PER_WINDOW]>,
}

impl Damages {
    /// Decodes the values that [`DamageEval`] computes. Returns `None` if the last window is incomplete.
    pub fn from_values(values: &[f64]) -> Option<Self> {
        let (windows, rest) = values.as_chunks::<VALUES_PER_WINDOW>();
        let losses = Losses { windows: windows.iter().map(|values| values[0]).collect() };
        rest.is_empty().then(|| Self { losses, windows: windows.to_vec() })
    }

    /// Returns a metric with its standard error over windows ([`Damage::estimate`]).
    pub fn measure(&self, damage: Damage, part: WindowPart) -> Option<Measure> {
        damage.estimate(&self.by_window(damage, part))
    }

    /// Returns the metric's mean over the predictions of each window. This is the mean square for [`Damage::RmsChange`]
    /// and the mean loss difference for [`Damage::PerplexityRatio`]. All windows have the same number of predictions,
    /// so the mean over windows is the mean over tokens.
    pub fn by_window(&self, damage: Damage, part: WindowPart) -> Vec<f64> {
        self.windows.iter().map(|values| values[damage.value_index(part)]).collect()
    }
}

/// Computes the damage of each program relative to `dense` on all windows. The programs are combined into one trie,
/// which is evaluated once.
///
/// # Errors
/// Fails if a tensor operation fails.
pub fn measure_damage(
    engine: &dyn Engine,
    dense: &Program,
    programs: &[Program],
    windows: &Windows,
) -> Result<Vec<Damages>> {
    let eval_set = DamageEval::new(windows, BATCH_TOKENS, dense.clone());
    let trie = eval_set.trie(programs);
    let mut seconds = vec![0.0; trie.len()];
    let values = score(&eval_set, engine, &trie, &mut seconds, |_| Ok(()))?;
    Ok(values.iter().filter_map(|values| Damages::from_values(values)).collect())
}

/// Eval set over windows. Its values are the loss and the damage metrics of each window.
pub struct DamageEval<'a> {
    windows: PerplexityEval<'a>,
    dense: Program,
}

impl<'a> DamageEval<'a> {
    /// Groups windows into chunks like [`PerplexityEval::new`]. Programs are compared with `dense`.
    pub fn new(windows: &'a Windows, batch_tokens: usize, dense: Program) -> Self {
        Self { windows: PerplexityEval::new(windows, batch_tokens), dense }
    }
}

impl EvalSet for DamageEval<'_> {
    fn chunks(&self) -> usize {
        self.windows.chunks()
    }

    fn tokens(&self, chunk: usize) -> usize {
        self.windows.tokens(chunk)
    }

    fn load(&self, chunks: &[usize]) -> Load {
        self.windows.load(chunks)
    }

    fn count(&self, chunk: usize) -> usize {
        VALUES_PER_WINDOW * self.windows.count(chunk)
    }

    /// Returns the preferred number of tokens per pass. The dense program counts as one more stream.
    fn pass_tokens(&self, engine: &dyn Engine, programs: usize) -> usize {
        engine.pass_tokens(programs + 1)
    }

    fn trie(&self, programs: &[Program]) -> Trie {
        Trie::with_reference(&self.dense, programs)
    }

    fn run(&self, engine: &dyn Engine, trie: &Trie, chunks: &[usize], seconds: &mut [f64]) -> Result<ChunkValues> {
        self.windows.run_windows(engine, trie, chunks, seconds, compute_window_values)
    }
}

/// Computes the values of each window from the divergences of its predictions. Each window has `length` tokens.
fn compute_window_values(predictions: &[Divergence], length: usize) -> Vec<f64> {
    let windows = predictions.chunks_exact((length - 1).max(1));
    windows
        .flat_map(|window| {
            let losses = window.iter().map(|prediction| -f64::from(prediction.prediction.log_probability));
            let loss = losses.sum::<f64>() / window.len() as f64;
            [
                vec![loss],
                average_metrics(window).into(),
                average_metrics(&window[window.len().min(length / 2)..]).into(),
            ]
            .concat()
        })
        .collect()
}

/// Averages the metrics over the given predictions. Returns NaN if there are none.
fn average_metrics(predictions: &[Divergence]) -> WindowMeans {
    let mut sums = [0.0; METRIC_COUNT];
    for prediction in predictions {
        let change = prediction.ln_q.exp() - prediction.ln_p.exp();
        // `same_top` is a boolean even if a probability is NaN, so NaN must be handled explicitly.
        let is_undefined = prediction.ln_p.is_nan() || prediction.ln_q.is_nan();
        let same = if is_undefined { f64::NAN } else { f64::from(u8::from(prediction.same_top)) };
        let values = [
            prediction.kl_pq,
            prediction.kl_qp,
            same,
            change,
            change.abs(),
            change * change,
            prediction.ln_p - prediction.ln_q,
        ];
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    sums.map(|sum| sum / predictions.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Prediction;

    fn divergence(p: f64, q: f64, kl: f64, same_top: bool) -> Divergence {
        let prediction = Prediction { log_probability: q.ln() as f32, is_greedy: true };
        Divergence { prediction, ln_p: p.ln(), ln_q: q.ln(), kl_pq: kl, kl_qp: 2.0 * kl, same_top }
    }

    #[test]
    fn damage_of_second_half_uses_only_its_predictions() {
        // Two windows of four tokens. The second half of each is the prediction at position 2.
        let divergences =
            [(0.5, 0.25, 1.0), (0.5, 0.5, 0.0), (0.25, 0.5, 3.0), (0.5, 0.5, 0.0), (0.5, 0.5, 2.0), (0.5, 0.5, 1.0)];
        let divergences: Vec<Divergence> =
            divergences.into_iter().map(|(p, q, kl)| divergence(p, q, kl, p == q)).collect();
        let damages = Damages::from_values(&compute_window_values(&divergences, 4)).unwrap();
        // Computed by hand.
        for (damage, part, value) in [
            (Damage::KlDenseVariant, WindowPart::All, 7.0 / 6.0),
            (Damage::KlVariantDense, WindowPart::SecondHalf, 4.0),
            (Damage::SameTop, WindowPart::All, 4.0 / 6.0),
            (Damage::SameTop, WindowPart::SecondHalf, 0.5),
            (Damage::MeanChange, WindowPart::All, 0.0),
            (Damage::MeanAbsoluteChange, WindowPart::All, 0.5 / 6.0),
            (Damage::RmsChange, WindowPart::SecondHalf, (0.0625f64 / 2.0).sqrt()),
            (Damage::PerplexityRatio, WindowPart::All, 1.0),
            (Damage::PerplexityRatio, WindowPart::SecondHalf, 0.5f64.sqrt()),
        ] {
            let ours = damages.measure(damage, part).unwrap();
            assert!((ours.value - value).abs() < 1e-12, "{damage:?} {part:?}: {ours:?}");
        }
        // The window means 4/3 and 1 each deviate by 1/6 from their mean.
        let error = damages.measure(Damage::KlDenseVariant, WindowPart::All).unwrap().stderr.unwrap();
        assert!((error - 1.0 / 6.0).abs() < 1e-12, "{error}");
    }

    #[test]
    fn damage_values_of_incomplete_window_are_rejected() {
        assert!(Damages::from_values(&[0.0; VALUES_PER_WINDOW + 1]).is_none());
        assert_eq!(Damages::from_values(&[0.0; VALUES_PER_WINDOW]).unwrap().losses.windows, [0.0]);
    }
}

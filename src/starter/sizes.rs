//! Sizes of a starter grid: the paper's sizes, reduced until a run is estimated to take at most [`MAX_SECONDS`] on this
//! machine.

use super::find::Model;
use crate::grid::Calibration;
use crate::model::{Load, Program, Trie};
use crate::pipeline::stage::activations;

/// Maximum duration of a run with default sizes, in seconds.
pub(super) const MAX_SECONDS: f64 = 900.0;
/// Fraction of [`MAX_SECONDS`] that the estimate may reach, because it omits most of the solving and tokenizing.
const ESTIMATE_FRACTION: f64 = 0.7;
/// Minimum number of scored windows, which still gives reliable bootstrap intervals.
const MIN_WINDOWS: usize = 32;
/// Minimum number of calibration tokens per channel while the window length can still be reduced. After that,
/// [`Calibration::MIN_TOKENS_PER_CHANNEL`] applies.
const PREFERRED_TOKENS_PER_CHANNEL: usize = 56;
/// Minimum number of tokens to which windows are shortened.
const MIN_WINDOW_TOKENS: usize = 512;
/// Approximate number of tokens in the scored documents of a task.
const TASK_TOKENS: usize = 20_000;
/// Depths of a starter grid, as percentages of the layers.
pub(super) const DEPTHS: [&str; 2] = ["12.5%", "25%"];
/// Number of recoveries in a starter grid, not counting plain removal.
pub(super) const MAX_REPAIRS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Tokens per window.
    pub(super) length: usize,
    pub(super) sequences: usize,
    /// Maximum number of scored windows per text; `None` for all windows.
    pub(super) windows: Option<usize>,
    /// Number of depths, counted from the largest.
    pub(super) depths: usize,
    /// Number of recoveries that repair the cut.
    pub(super) repairs: usize,
}

impl Sizes {
    /// Creates sizes with all windows, depths and repairs.
    pub(super) fn new(length: usize, sequences: usize) -> Self {
        Self { length, sequences, windows: None, depths: DEPTHS.len(), repairs: MAX_REPAIRS }
    }
}

/// Returns the last `count` items.
pub(super) fn last_items<T>(items: &[T], count: usize) -> &[T] {
    &items[items.len().saturating_sub(count)..]
}

/// Texts and tasks that a grid scores.
#[derive(Debug)]
pub(super) struct ScoredData {
    pub(super) scored_tokens: Vec<usize>,
    pub(super) tasks: usize,
}

/// Halves sizes until the estimated time is at most [`ESTIMATE_FRACTION`] of [`MAX_SECONDS`]: first the number of
/// scored windows, then the number of sequences, then their length, then the number of sequences again. If this is not
/// enough, drops depths and then repairs.
pub(super) fn shrink_to_budget(
    mut sizes: Sizes,
    models: &[Model],
    scored_data: &ScoredData,
    flop_per_second: f64,
) -> Sizes {
    let channels = models.iter().map(|model| model.config.hidden).max().unwrap_or(1);
    let max_tokens = scored_data.scored_tokens.iter().max().copied().unwrap_or(0);
    while estimate_seconds(sizes, models, scored_data, flop_per_second) > ESTIMATE_FRACTION * MAX_SECONDS {
        let windows = sizes.windows.unwrap_or(max_tokens / sizes.length.max(1));
        let tokens = sizes.sequences * sizes.length;
        if windows > MIN_WINDOWS {
            sizes.windows = Some((windows / 2).max(MIN_WINDOWS));
        } else if tokens / 2 >= PREFERRED_TOKENS_PER_CHANNEL * channels && sizes.sequences > 1 {
            sizes.sequences /= 2;
        } else if sizes.length > MIN_WINDOW_TOKENS {
            // Keep the number of calibration tokens constant.
            sizes.length /= 2;
            sizes.sequences *= 2;
        } else if tokens / 2 >= Calibration::MIN_TOKENS_PER_CHANNEL * channels && sizes.sequences > 1 {
            sizes.sequences /= 2;
        } else if sizes.depths > 1 {
            sizes.depths -= 1;
        } else if sizes.repairs > 1 {
            sizes.repairs -= 1;
        } else {
            break;
        }
    }
    sizes
}

/// Estimates the duration of a run in seconds.
pub(super) fn estimate_seconds(sizes: Sizes, models: &[Model], scored_data: &ScoredData, flop_per_second: f64) -> f64 {
    estimate_flops(sizes, models, scored_data) / flop_per_second
}

/// Estimates the floating-point operations for a grid: one calibration pass, and the scoring of all cells. Layers that
/// cells share are counted once.
fn estimate_flops(sizes: Sizes, models: &[Model], scored_data: &ScoredData) -> f64 {
    let Sizes { length, sequences, windows, depths, repairs } = sizes;
    let limit = windows.map_or(usize::MAX, |windows| windows * length);
    let texts = scored_data.scored_tokens.iter().map(|tokens| Load::windows((*tokens).min(limit), length));
    let tasks = std::iter::repeat_n(Load::windows(TASK_TOKENS, TASK_TOKENS / 100), scored_data.tasks);
    let loads: Vec<Load> = texts.chain(tasks).collect();
    let mut flops = 0.0;
    for model in models {
        let layers = model.config.layers;
        let calibration = Load::windows(sequences * length, length);
        // Storing activations and solving operators take about as long as half a calibration pass.
        flops += 1.5 * activations::pass_flops(&model.config, &calibration);
        let mut programs = vec![Program::trunk(layers)];
        let depths = last_items(&model.depths, depths);
        for depth in depths {
            let start = layers.saturating_sub(*depth) / 2;
            let removed: Vec<usize> = (start..start + depth).collect();
            programs.push(Program::pruned(layers, &removed, |_| None));
        }
        let dense = activations::pass_flops(&model.config, &Load::windows(1, length));
        for load in &loads {
            let trie = Trie::for_scoring(&programs).flops(&model.config, load);
            // A repaired model shares the layers below the cut with plain removal, but not those above it.
            let above: f64 = depths.iter().map(|depth| (layers - depth) as f64 / (2 * layers) as f64).sum();
            let head = 2.0 * load.scored as f64 * (model.config.hidden * model.config.vocab) as f64;
            flops += trie.shared + repairs as f64 * (above * dense * load.tokens as f64 + head * depths.len() as f64);
        }
    }
    flops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_shrink_only_if_the_time_is_too_long() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny/llama");
        let (mut models, _) = super::super::find::find_models(&folder).unwrap();
        models[0].depths = vec![2, 4];
        let scored_data = ScoredData { scored_tokens: vec![300_000], tasks: 2 };
        let paper = Sizes::new(2048, 128);
        assert_eq!(shrink_to_budget(paper, &models, &scored_data, 1e15), paper);
        let mut before = paper;
        for rate in [1e10, 1e9, 1e8] {
            let sizes = shrink_to_budget(paper, &models, &scored_data, rate);
            assert!(
                calibrated_and_scored_tokens(sizes) <= calibrated_and_scored_tokens(before),
                "{sizes:?} {before:?}"
            );
            before = sizes;
        }
        assert!(before.windows == Some(MIN_WINDOWS) && before.sequences * before.length >= 16 * 128, "{before:?}");
        let time = estimate_seconds(shrink_to_budget(paper, &models, &scored_data, 1e10), &models, &scored_data, 1e10);
        assert!(time <= MAX_SECONDS, "{time}");
        assert_eq!((before.depths, before.repairs), (1, 1));
    }

    fn calibrated_and_scored_tokens(sizes: Sizes) -> usize {
        sizes.sequences * sizes.length + sizes.windows.unwrap_or(usize::MAX / 4096) * sizes.length
    }
}

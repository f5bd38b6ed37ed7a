//! Sizes of a starter grid: the paper's sizes, reduced until the estimated run takes only minutes on this machine.

use super::find::Model;
use crate::model::{Load, Program, Trie};
use crate::pipeline::stage::activations;

/// Maximum duration of a run with default sizes, in seconds.
pub(super) const MAX_SECONDS: f64 = 900.0;
/// Share of [`MAX_SECONDS`] that the estimate may fill. The estimate leaves out most of the solving and tokenizing.
const ESTIMATE_SHARE: f64 = 0.7;
/// Minimum number of windows that gives reliable bootstrap intervals.
const MIN_WINDOWS: usize = 32;
/// Preferred minimum number of calibration tokens per channel. It applies as long as other sizes can still be reduced.
/// [`MIN_TOKENS_PER_CHANNEL`] always applies.
const GOOD_TOKENS_PER_CHANNEL: usize = 56;
const MIN_TOKENS_PER_CHANNEL: usize = 16;
/// Minimum length in tokens to which windows are shortened.
const MIN_LENGTH: usize = 512;
/// Approximate number of tokens in the scored documents of a task.
const TASK_TOKENS: usize = 20_000;
/// Number of cells at each depth: plain removal and three recoveries.
const CELLS_PER_DEPTH: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Tokens per window.
    pub(super) length: usize,
    pub(super) sequences: usize,
    /// Maximum number of scored windows per text; `None` for all windows.
    pub(super) windows: Option<usize>,
}

/// Amount of data that a grid scores.
#[derive(Debug)]
pub(super) struct Amounts {
    pub(super) scored_tokens: Vec<usize>,
    pub(super) tasks: usize,
}

/// Halves sizes until the estimated time fits the budget. Reduces the number of scored windows first, then the number
/// of sequences, then their length.
pub(super) fn shrink_to_budget(mut sizes: Sizes, models: &[Model], amounts: &Amounts, flop_per_second: f64) -> Sizes {
    let channels = models.iter().map(|model| model.config.hidden).max().unwrap_or(1);
    let longest = amounts.scored_tokens.iter().max().copied().unwrap_or(0);
    let budget = MAX_SECONDS * ESTIMATE_SHARE * flop_per_second;
    while flops(sizes, models, amounts) > budget {
        let windows = sizes.windows.unwrap_or(longest / sizes.length.max(1));
        let tokens = sizes.sequences * sizes.length;
        if windows > MIN_WINDOWS {
            sizes.windows = Some((windows / 2).max(MIN_WINDOWS));
        } else if tokens / 2 >= GOOD_TOKENS_PER_CHANNEL * channels && sizes.sequences > 1 {
            sizes.sequences /= 2;
        } else if sizes.length > MIN_LENGTH {
            // Keep the number of calibration tokens the same.
            sizes.length /= 2;
            sizes.sequences *= 2;
        } else if tokens / 2 >= MIN_TOKENS_PER_CHANNEL * channels && sizes.sequences > 1 {
            sizes.sequences /= 2;
        } else {
            break;
        }
    }
    sizes
}

/// Estimates the floating-point operations for a grid: one calibration pass, and the scoring of all cells. Layers that
/// cells share are counted once.
fn flops(sizes: Sizes, models: &[Model], amounts: &Amounts) -> f64 {
    let Sizes { length, sequences, windows } = sizes;
    let limit = windows.map_or(usize::MAX, |windows| windows * length);
    let texts = amounts.scored_tokens.iter().map(|tokens| Load::windows((*tokens).min(limit), length));
    let tasks = std::iter::repeat_n(Load::windows(TASK_TOKENS, TASK_TOKENS / 100), amounts.tasks);
    let loads: Vec<Load> = texts.chain(tasks).collect();
    let mut flops = 0.0;
    for model in models {
        let layers = model.layers;
        let calibration = Load::windows(sequences * length, length);
        // Storing activations and solving operators takes about as long as half a pass.
        flops += 1.5 * activations::pass_flops(&model.config, &calibration);
        let mut programs = vec![Program::trunk(layers)];
        for depth in &model.depths {
            let start = layers.saturating_sub(*depth) / 2;
            let removed: Vec<usize> = (start..start + depth).collect();
            programs.push(Program::pruned(layers, &removed, |_| None));
        }
        let dense = activations::pass_flops(&model.config, &Load::windows(1, length));
        for load in &loads {
            let trie = Trie::scoring(&programs).flops(&model.config, load);
            // A repaired variant shares the layers below the cut with plain removal, but not those above it.
            let above: f64 = model.depths.iter().map(|depth| (layers - depth) as f64 / (2 * layers) as f64).sum();
            let head = 2.0 * load.scored as f64 * (model.config.hidden * model.config.vocab) as f64;
            let repaired = (CELLS_PER_DEPTH - 1) as f64;
            flops += trie.shared + repaired * (above * dense * load.tokens as f64 + head * model.depths.len() as f64);
        }
    }
    flops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_shrink_only_where_the_time_is_too_long() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny/llama");
        let (mut models, _) = super::super::find::models(&folder).unwrap();
        models[0].depths = vec![2, 4];
        let amounts = Amounts { scored_tokens: vec![300_000], tasks: 2 };
        let paper = Sizes { length: 2048, sequences: 128, windows: None };
        assert_eq!(shrink_to_budget(paper, &models, &amounts, 1e15), paper);
        let mut before = paper;
        for rate in [1e10, 1e9, 1e8] {
            let sizes = shrink_to_budget(paper, &models, &amounts, rate);
            assert!(calibrated_and_scored(sizes) <= calibrated_and_scored(before), "{sizes:?} {before:?}");
            before = sizes;
        }
        assert!(before.windows == Some(MIN_WINDOWS) && before.sequences * before.length >= 16 * 128, "{before:?}");
        let cost = flops(shrink_to_budget(paper, &models, &amounts, 1e10), &models, &amounts);
        assert!(cost <= MAX_SECONDS * 1e10, "{cost}");
    }

    fn calibrated_and_scored(sizes: Sizes) -> usize {
        sizes.sequences * sizes.length + sizes.windows.unwrap_or(usize::MAX / 4096) * sizes.length
    }
}

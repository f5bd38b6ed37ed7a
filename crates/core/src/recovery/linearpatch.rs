//! LinearPatch: scales each channel of the stream, optionally in a rotated basis (docs/design.md §7). The reference is
//! the LinearPatch repository.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Placement, Repair, Solution, Span, add_magnitudes};
use super::method::{ELEMENT_COST, FitSequences, Recovery, RecoveryEntry};
use crate::deviation::{Deviation, OFFICIAL_SEQUENCES, PruneCase};
use crate::error::{Error, Result};
use crate::linalg::hadamard;
use crate::model::{Config, Operator};
use crate::options::{self, Options};
use crate::style::{Dash, Hue, Marker, Style};

const DIAG: &str = "linearpatch-diag";
const ROTATE: &str = "linearpatch-rotate";
const SOURCE: &str = "https://github.com/chenxinrui-tsinghua/LinearPatch";
pub(super) const DIAG_ENTRY: RecoveryEntry = RecoveryEntry::new::<LinearPatchOptions>(DIAG, SOURCE, build)
    .label("Linear Patch (Diag)")
    .style(Style::new(Hue::Vermillion, Marker::TriangleUp, Dash::Dotted))
    .deviations(DEVIATIONS);
pub(super) const ROTATE_ENTRY: RecoveryEntry = RecoveryEntry::new::<LinearPatchOptions>(ROTATE, SOURCE, build)
    .label("Linear Patch (Rotate)")
    .style(Style::new(Hue::Orange, Marker::Plus, Dash::Long))
    .deviations(DEVIATIONS);

/// Deviations found by running the official repository at commit 680c8a7. `docs/methods.md` describes their effect.
const DEVIATIONS: &[Deviation] = &[
    Deviation {
        applies: |case| case.one_block && case.sequences < OFFICIAL_SEQUENCES,
        text: "divides LinearPatch's sums by 128 instead of the number of sequences, so its scales are too small",
    },
    Deviation {
        applies: |case| fitted_sequences(case) > OFFICIAL_SEQUENCES,
        text: "computes LinearPatch from only the first 128 calibration sequences",
    },
    Deviation {
        applies: |case| !case.one_block && case.removed.is_some_and(|layers| layers.contains(&0)),
        text: "inserts no LinearPatch if layer 0 is removed",
    },
];

/// Returns the number of sequences on which the scales are fitted.
fn fitted_sequences(case: &PruneCase<'_>) -> usize {
    if case.one_block { case.sequences } else { case.operator_sequences }
}

/// Epsilon that the reference code adds to `mean|X_pre|` when one operator replaces each layer.
const MAGNITUDE_EPSILON: f64 = 1e-8;

/// LinearPatch: one scale per channel of the stream (`linearpatch-diag`), or of the stream rotated by a Hadamard matrix
/// (`linearpatch-rotate`).
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct LinearPatchOptions {
    /// Whether to use one operator per region or one per removed layer.
    boundary: Placement,
}

/// `W = diag(d)`, or `W = H·diag(d)·Hᵀ` with `d` computed from `X·H`.
///
/// The scales `d` follow the reference code:
///
/// - If one operator replaces a region, `d` is the mean over sequences of `mean_t|X_post| / mean_t|X_pre|`.
/// - If one operator replaces each layer, `d` is `mean|X_post| / (mean|X_pre| + 1e-8)` over all tokens. It is computed
///   from the unrotated `X`, even for `rotate`.
/// - If the criterion removes one block, `d` is computed from all sequences. Otherwise, it is computed from the first
///   `operator_sequences` sequences.
struct LinearPatch {
    rotate: bool,
    placement: Placement,
}

fn build(name: &str, options: &Options) -> Result<Box<dyn Recovery>> {
    let LinearPatchOptions { boundary } = options::read(name, options)?;
    Ok(Box::new(LinearPatch { rotate: name == ROTATE, placement: boundary }))
}

impl Recovery for LinearPatch {
    fn check(&self, config: &Config) -> Result<()> {
        if !self.rotate || hadamard::is_supported(config.hidden) {
            return Ok(());
        }
        Err(Error::bad_input(format!("`{ROTATE}` has no Hadamard matrix for the backbone's hidden size"))
            .expected("a power of two, or a power of two times 12, 20, 28, 36, 40, 52 or 60")
            .found(config.hidden)
            .hint(format!("use `{DIAG}`")))
    }

    fn is_tunable(&self) -> bool {
        self.placement == Placement::Region
    }

    fn spans(&self, region: Span) -> Vec<Span> {
        self.placement.spans(region)
    }

    /// Returns the sequences on which the scales are fitted. They depend on the criterion, but not on the layers that
    /// it selects, as in the reference code (docs/design.md §1).
    fn fit_sequences(&self, one_block: bool) -> FitSequences {
        if one_block && self.placement == Placement::Region { FitSequences::All } else { FitSequences::First }
    }

    fn estimated_operations(&self, channels: usize, rows: usize) -> f64 {
        // A Hadamard transform takes log2(C) additions per element.
        let rotation = if self.rotate { ELEMENT_COST / 2.0 * (channels as f64).log2() } else { 0.0 };
        2.0 * (ELEMENT_COST + rotation) * (rows * channels) as f64
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let channels = boundary.channels();
        let (scale, notes) = self.compute_scale(boundary)?;
        let operator = if self.rotate {
            Operator::dense(channels, compute_rotated_matrix(&scale))?
        } else {
            Operator::diagonal(scale)?
        };
        Ok(Solution { notes, ..Solution::new(Repair::Stream(operator)) })
    }
}

/// Computes the row-major matrix `H·diag(d)·Hᵀ [C, C]`. For some sizes, `Hᵀ` differs from `H`.
fn compute_rotated_matrix(scale: &[f32]) -> Vec<f32> {
    let mut matrix = hadamard::matrix(scale.len());
    for row in matrix.chunks_exact_mut(scale.len()) {
        row.iter_mut().zip(scale).for_each(|(v, d)| *v *= d);
    }
    hadamard::inverse_transform(&mut matrix, scale.len());
    matrix
}

impl LinearPatch {
    /// Computes `d [C]`, and notes about zero channels.
    fn compute_scale(&self, boundary: &Boundary<'_>) -> Result<(Vec<f32>, Vec<String>)> {
        let channels = boundary.channels();
        let mut ratios = Ratios::new(channels);
        for index in 0..boundary.fitted {
            let rows = boundary.sequence(index);
            let pre = self.compute_magnitudes(boundary.pre(rows.clone())?, channels);
            let post = self.compute_magnitudes(boundary.post(rows)?, channels);
            ratios.add(&pre, &post);
        }
        let tokens = (boundary.fitted * boundary.length()) as f64;
        Ok(match self.placement {
            Placement::Region => ratios.mean_over_sequences(),
            Placement::Layer => (ratios.over_tokens(tokens), Vec::new()),
        })
    }

    /// Computes `Σ_t |x|` for each channel over one sequence, which is rotated first if the options require it.
    fn compute_magnitudes(&self, x: &[f32], channels: usize) -> Vec<f64> {
        let rotated = (self.rotate && self.placement == Placement::Region).then(|| {
            let mut x = x.to_vec();
            hadamard::transform(&mut x, channels);
            x
        });
        let mut sums = vec![0.0; channels];
        add_magnitudes(&mut sums, rotated.as_deref().unwrap_or(x));
        sums
    }
}

/// Magnitudes of each channel before and after a span, and their ratios.
struct Ratios {
    /// For each channel, the sum of the per-sequence ratios, and the number of sequences in which the ratio is defined.
    per_sequence: Vec<(f64, usize)>,
    pre: Vec<f64>,
    post: Vec<f64>,
    sequences: usize,
}

impl Ratios {
    fn new(channels: usize) -> Self {
        let zeros = vec![0.0; channels];
        Self { per_sequence: vec![(0.0, 0); channels], pre: zeros.clone(), post: zeros, sequences: 0 }
    }

    fn add(&mut self, pre: &[f64], post: &[f64]) {
        self.sequences += 1;
        for (channel, (pre, post)) in pre.iter().zip(post).enumerate() {
            self.pre[channel] += pre;
            self.post[channel] += post;
            if *pre > 0.0 {
                self.per_sequence[channel].0 += post / pre;
                self.per_sequence[channel].1 += 1;
            }
        }
    }

    /// Averages the ratios over the sequences.
    ///
    /// Skips sequences in which a channel is zero before the region, where the reference code would divide by zero. A
    /// channel that is zero in all sequences gets scale 1.
    fn mean_over_sequences(&self) -> (Vec<f32>, Vec<String>) {
        let always = self.per_sequence.iter().filter(|(_, count)| *count == 0).count();
        let sometimes = self.per_sequence.iter().filter(|(_, count)| (1..self.sequences).contains(count)).count();
        let mut notes = Vec::new();
        if always > 0 {
            notes.push(format!("{always} channels are zero in all sequences and keep scale 1"));
        }
        if sometimes > 0 {
            notes.push(format!("{sometimes} channels are zero in some sequences: scales are fitted on the others"));
        }
        (
            self.per_sequence
                .iter()
                .map(|&(sum, count)| if count == 0 { 1.0 } else { (sum / count as f64) as f32 })
                .collect(),
            notes,
        )
    }

    /// Computes the ratios of the mean magnitudes over all tokens.
    fn over_tokens(&self, tokens: f64) -> Vec<f32> {
        let magnitudes = self.pre.iter().zip(&self.post);
        magnitudes.map(|(pre, post)| ((post / tokens) / (pre / tokens + MAGNITUDE_EPSILON)) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linearpatch_deviations_from_official_code_are_reported() {
        for (case, expected) in [
            (prune_case(128, true, None), 0),
            (prune_case(16, true, None), 1),
            (prune_case(16, false, Some(&[2, 5][..])), 0),
            (prune_case(256, true, None), 1),
            (prune_case(256, false, None), 0),
            (prune_case(128, false, Some(&[0, 5])), 1),
            (PruneCase { operator_sequences: 200, ..prune_case(256, false, Some(&[0])) }, 2),
        ] {
            for name in [DIAG, ROTATE] {
                let found = crate::recovery::deviations(name, &case);
                assert_eq!(found.len(), expected, "{name} {case:?}: {found:?}");
            }
            let selection = usize::from(case.sequences > OFFICIAL_SEQUENCES);
            assert_eq!(crate::criterion::deviations("shortgpt", &case).len(), selection, "{case:?}");
            assert!(crate::recovery::deviations("ghosted", &case).is_empty());
        }
    }

    fn prune_case(sequences: usize, one_block: bool, removed: Option<&[usize]>) -> PruneCase<'_> {
        PruneCase { sequences, operator_sequences: 32, one_block, removed }
    }

    #[test]
    fn rotated_scales_give_symmetric_operators() {
        // The Hadamard matrices of size 24 and 40 are not symmetric.
        for channels in [16, 24, 28, 40] {
            let matrix = compute_rotated_matrix(&vec![3.0; channels]);
            let uneven = compute_rotated_matrix(&(0..channels).map(|i| i as f32).collect::<Vec<_>>());
            for (index, v) in matrix.iter().enumerate() {
                let i = index / channels;
                let j = index % channels;
                assert!((v - if i == j { 3.0 } else { 0.0 }).abs() < 1e-5, "{channels}: {v} at {i}, {j}");
                assert!((uneven[index] - uneven[j * channels + i]).abs() < 1e-5, "{channels}: asymmetry at {i}, {j}");
            }
        }
    }

    #[test]
    fn linearpatch_weights_sequences_equally() {
        let mut ratios = Ratios::new(1);
        ratios.add(&[1.0], &[2.0]);
        ratios.add(&[100.0], &[400.0]);
        // Computed by hand: the mean of 2 and 4, and 402 / 101.
        assert_eq!(ratios.mean_over_sequences(), (vec![3.0], Vec::new()));
        assert!((ratios.over_tokens(2.0)[0] - 402.0 / 101.0).abs() < 1e-6);
    }

    #[test]
    fn zero_channels_are_noted_without_division_by_zero() {
        let mut ratios = Ratios::new(3);
        ratios.add(&[0.0, 0.0, 1.0], &[5.0, 1.0, 1.0]);
        ratios.add(&[0.0, 2.0, 1.0], &[5.0, 6.0, 1.0]);
        let (scale, notes) = ratios.mean_over_sequences();
        assert_eq!(scale, [1.0, 3.0, 1.0]);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(ratios.over_tokens(2.0).iter().all(|v| v.is_finite()));
    }
}

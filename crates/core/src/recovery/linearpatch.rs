//! LinearPatch: one scale a channel, in the given basis or in a rotated one (reference: the LinearPatch repository; design §7).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Placement, Repair, Solution, Span, add_magnitudes};
use super::method::{Fitted, READ, Recovery, RecoveryEntry};
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

/// Found by running the official repository at commit 680c8a7; `docs/methods.md` has their effect.
const DEVIATIONS: &[Deviation] = &[
    Deviation {
        applies: |case| case.one_block && case.sequences < OFFICIAL_SEQUENCES,
        text: "divides LinearPatch's sums by 128, not by the number of calibration sequences: its scales are too small",
    },
    Deviation {
        applies: |case| fitted_sequences(case) > OFFICIAL_SEQUENCES,
        text: "computes LinearPatch from the first 128 calibration sequences, however many there are",
    },
    Deviation {
        applies: |case| !case.one_block && case.removed.is_some_and(|layers| layers.contains(&0)),
        text: "inserts no LinearPatch where layer 0 is removed",
    },
];

/// The sequences that the scales are measured on.
fn fitted_sequences(case: &PruneCase<'_>) -> usize {
    if case.one_block { case.sequences } else { case.operator_sequences }
}

/// What the reference code adds to the magnitude before a removed layer where it repairs layer by layer.
const LEAST_MAGNITUDE: f64 = 1e-8;

/// A scale for each channel, of the stream as it is (`diag`) or turned by a Hadamard matrix (`rotate`).
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct LinearPatchOptions {
    /// What gets an operator each.
    boundary: Placement,
}

/// `W = diag(d)`, or `W = H·diag(d)·Hᵀ` with `d` measured on `X·H`.
///
/// By region, `d` is the mean over sequences of `mean_t|X_post| / mean_t|X_pre|`. Layer by layer it is
/// `mean|X_post| / (mean|X_pre| + 1e-8)` over all tokens, and of `X` itself even where `W` is rotated: so does the
/// reference code. The block of a criterion that removes one is measured on all sequences, other cuts on the operator's.
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
        if !self.rotate || hadamard::exists(config.hidden) {
            return Ok(());
        }
        Err(Error::bad_input(format!("`{ROTATE}` has no Hadamard matrix of the backbone's hidden size"))
            .expected("a power of two, or one times 12, 20, 28, 36, 40, 52 or 60")
            .found(config.hidden)
            .hint(format!("use `{DIAG}`")))
    }

    fn tunable(&self) -> bool {
        self.placement == Placement::Region
    }

    fn spans(&self, region: Span) -> Vec<Span> {
        self.placement.spans(region)
    }

    /// As the reference code does (design §1): it asks the criterion, not the layers that were picked.
    fn fitted_on(&self, one_block: bool) -> Fitted {
        if one_block && self.placement == Placement::Region { Fitted::All } else { Fitted::First }
    }

    fn operations(&self, channels: usize, rows: usize) -> f64 {
        // Of a rotated stream each number goes through the transform's steps before.
        let turned = if self.rotate { READ / 2.0 * (channels as f64).log2() } else { 0.0 };
        2.0 * (READ + turned) * (rows * channels) as f64
    }

    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution> {
        let channels = boundary.channels();
        let (scale, notes) = self.scale(boundary)?;
        let operator =
            if self.rotate { Operator::dense(channels, rotated(&scale))? } else { Operator::diagonal(scale)? };
        Ok(Solution { notes, ..Solution::of(Repair::Stream(operator)) })
    }
}

/// `H·diag(d)·Hᵀ [C, C]`, row-major: rows of `H` scaled by channel, then each times `Hᵀ`, which is not `H` for every size.
fn rotated(scale: &[f32]) -> Vec<f32> {
    let mut matrix = hadamard::matrix(scale.len());
    for row in matrix.chunks_exact_mut(scale.len()) {
        row.iter_mut().zip(scale).for_each(|(v, d)| *v *= d);
    }
    hadamard::inverse(&mut matrix, scale.len());
    matrix
}

impl LinearPatch {
    /// `d [C]`
    fn scale(&self, boundary: &Boundary<'_>) -> Result<(Vec<f32>, Vec<String>)> {
        let sequences = boundary.fitted;
        let magnitudes = |index: usize| -> Result<(Vec<f64>, Vec<f64>)> {
            let rows = boundary.sequence(index);
            let (pre, post) = (boundary.pre(rows.clone())?, boundary.post(rows)?);
            Ok((self.magnitudes(pre, boundary.channels()), self.magnitudes(post, boundary.channels())))
        };
        let mut ratios = Ratios::new(boundary.channels());
        for index in 0..sequences {
            let (pre, post) = magnitudes(index)?;
            ratios.add(&pre, &post);
        }
        let tokens = (sequences * boundary.length()) as f64;
        Ok(match self.placement {
            Placement::Region => ratios.mean_over_sequences(),
            Placement::Layer => (ratios.over_tokens(tokens), Vec::new()),
        })
    }

    /// `Σ_t |x|` of each channel of one sequence, rotated first where asked.
    fn magnitudes(&self, x: &[f32], channels: usize) -> Vec<f64> {
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

/// Magnitudes after and before, by channel.
struct Ratios {
    /// Sum of the sequences' ratios, and the number of sequences that have one.
    of_sequences: Vec<(f64, usize)>,
    pre: Vec<f64>,
    post: Vec<f64>,
    sequences: usize,
}

impl Ratios {
    fn new(channels: usize) -> Self {
        let zeros = vec![0.0; channels];
        Self { of_sequences: vec![(0.0, 0); channels], pre: zeros.clone(), post: zeros, sequences: 0 }
    }

    fn add(&mut self, pre: &[f64], post: &[f64]) {
        self.sequences += 1;
        for (channel, (pre, post)) in pre.iter().zip(post).enumerate() {
            self.pre[channel] += pre;
            self.post[channel] += post;
            if *pre > 0.0 {
                self.of_sequences[channel].0 += post / pre;
                self.of_sequences[channel].1 += 1;
            }
        }
    }

    /// A sequence in which a channel is silent before the region says nothing of that channel's scale (the reference
    /// code would divide by zero); a channel that is silent in all keeps 1, which nothing ever multiplies.
    fn mean_over_sequences(&self) -> (Vec<f32>, Vec<String>) {
        let scale = |&(sum, count): &(f64, usize)| if count == 0 { 1.0 } else { (sum / count as f64) as f32 };
        let silent = |least: usize, most: usize| {
            self.of_sequences.iter().filter(|(_, count)| (least..=most).contains(count)).count()
        };
        let (always, sometimes) = (silent(0, 0), silent(1, self.sequences.saturating_sub(1)));
        let mut notes = Vec::new();
        if always > 0 {
            notes.push(format!("{always} silent channels keep scale 1"));
        }
        if sometimes > 0 {
            notes.push(format!("{sometimes} channels are silent in some sequences, which do not count for them"));
        }
        (self.of_sequences.iter().map(scale).collect(), notes)
    }

    fn over_tokens(&self, tokens: f64) -> Vec<f32> {
        let ratio = |(pre, post): (&f64, &f64)| ((post / tokens) / (pre / tokens + LEAST_MAGNITUDE)) as f32;
        self.pre.iter().zip(&self.post).map(ratio).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_apply_where_the_official_code_departs() {
        let case = |sequences, one_block, removed| PruneCase { sequences, operator_sequences: 32, one_block, removed };
        for (case, expected) in [
            (case(128, true, None), 0),
            (case(16, true, None), 1),
            (case(16, false, Some(&[2, 5][..])), 0),
            (case(256, true, None), 1),
            (case(256, false, None), 0),
            (case(128, false, Some(&[0, 5])), 1),
            (PruneCase { operator_sequences: 200, ..case(256, false, Some(&[0])) }, 2),
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

    #[test]
    fn in_every_basis_equal_scales_scale_and_unequal_ones_stay_symmetric() {
        // 40 and 24 have matrices that are not symmetric.
        for channels in [16, 24, 28, 40] {
            let matrix = rotated(&vec![3.0; channels]);
            let uneven = rotated(&(0..channels).map(|i| i as f32).collect::<Vec<_>>());
            for (at, v) in matrix.iter().enumerate() {
                let (i, j) = (at / channels, at % channels);
                assert!((v - if i == j { 3.0 } else { 0.0 }).abs() < 1e-5, "{channels}: {v} at {i}, {j}");
                assert!((uneven[at] - uneven[j * channels + i]).abs() < 1e-5, "{channels}: asymmetry at {i}, {j}");
            }
        }
    }

    #[test]
    fn sequences_count_alike_whatever_their_magnitude() {
        let mut ratios = Ratios::new(1);
        ratios.add(&[1.0], &[2.0]);
        ratios.add(&[100.0], &[400.0]);
        // By hand: the mean of 2 and 4; and 402 / 101.
        assert_eq!(ratios.mean_over_sequences(), (vec![3.0], Vec::new()));
        assert!((ratios.over_tokens(2.0)[0] - 402.0 / 101.0).abs() < 1e-6);
    }

    #[test]
    fn silent_channels_are_said_and_never_divide_by_zero() {
        let mut ratios = Ratios::new(3);
        ratios.add(&[0.0, 0.0, 1.0], &[5.0, 1.0, 1.0]);
        ratios.add(&[0.0, 2.0, 1.0], &[5.0, 6.0, 1.0]);
        let (scale, notes) = ratios.mean_over_sequences();
        assert_eq!(scale, [1.0, 3.0, 1.0]);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(ratios.over_tokens(2.0).iter().all(|v| v.is_finite()));
    }
}

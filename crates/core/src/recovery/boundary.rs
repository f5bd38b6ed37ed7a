//! The dense activations on both sides of removed layers, and what is put there.

use std::ops::Range;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sums::Sums;
use crate::calibrate::{Activations, HookPoint};
use crate::corpus::Start;
use crate::error::{Error, Result};
use crate::linalg::solve::NormalEquations;
use crate::model::{Batch, Engine, HostRows, Operator, Step};

/// Rows read at a time: what a method holds of a corpus of any size.
const BLOCK_ROWS: usize = 2048;

/// Removed layers `[start, end)` that are repaired together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

/// Where a selection's operators stand.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Placement {
    /// One for each region (the paper's text).
    #[default]
    Region,
    /// One for each removed layer (the reference code for selections of several regions).
    Layer,
}

impl Placement {
    pub(super) fn spans(self, region: Span) -> Vec<Span> {
        match self {
            Self::Region => vec![region],
            Self::Layer => (region.start..region.end).map(|start| Span { start, end: start + 1 }).collect(),
        }
    }
}

/// One span of a selection with the calibration activations around it, in sequences of equal length.
pub struct Boundary<'a> {
    /// The dense backbone.
    pub backbone: &'a dyn Engine,
    pub activations: &'a Activations,
    pub span: Span,
    /// The repair is solved on the first of the sequences, so many; on all of them it is measured.
    pub fitted: usize,
    /// The spans of the selection before this one, ascending, with their repairs.
    pub earlier: &'a [(Span, Repair)],
    /// Where the sequences begin in their text; empty where no two are known to share tokens.
    pub starts: &'a [Start],
}

impl Boundary<'_> {
    /// `C`
    pub fn channels(&self) -> usize {
        self.activations.shape().channels
    }

    /// All calibration sequences.
    pub fn sequences(&self) -> usize {
        self.activations.shape().sequences
    }

    /// Tokens of a sequence.
    pub fn length(&self) -> usize {
        self.activations.shape().length
    }

    /// Blocks of rows that cover the first `sequences` sequences.
    pub fn blocks(&self, sequences: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        self.activations.blocks(0..sequences * self.length(), BLOCK_ROWS)
    }

    /// Sums over rows of this boundary, none yet.
    pub(super) fn sums(&self) -> Sums {
        Sums::new(self.channels(), self.backbone.sums_device())
    }

    /// `XᵀX` and `XᵀΔ` over the operator sequences, `X = X_pre` and `Δ = X_post − X_pre`.
    pub(super) fn normal_equations(&self) -> Result<NormalEquations> {
        let mut sums = self.sums();
        for rows in self.blocks(self.fitted) {
            sums.add_difference(self.pre(rows.clone())?, self.post(rows)?)?;
        }
        sums.finish()
    }

    /// Whether two sequences are known to share tokens of their text.
    pub fn overlap(&self, one: usize, other: usize) -> bool {
        let (one, other) = (self.starts.get(one), self.starts.get(other));
        one.zip(other).is_some_and(|(a, b)| a.document == b.document && a.token.abs_diff(b.token) < self.length())
    }

    /// The rows of one sequence.
    pub fn sequence(&self, index: usize) -> Range<usize> {
        index * self.length()..(index + 1) * self.length()
    }

    /// `X_pre`, `[rows, C]`.
    pub fn pre(&self, rows: Range<usize>) -> Result<&[f32]> {
        self.activations.rows(HookPoint::Stream(self.span.start), rows)
    }

    /// `X_post`, `[rows, C]`.
    pub fn post(&self, rows: Range<usize>) -> Result<&[f32]> {
        self.activations.rows(HookPoint::Stream(self.span.end), rows)
    }

    /// What enters the span where everything before it is cut and repaired, of one sequence, `[rows, C]`: the dense stream
    /// that enters the first span, taken through the repairs and the layers between.
    ///
    /// # Errors
    /// A repair before it that stands in the weights of a layer.
    pub fn repaired(&self, sequence: usize) -> Result<HostRows> {
        let rows = self.sequence(sequence);
        let Some((first, _)) = self.earlier.first() else { return HostRows::new(self.pre(rows)?.to_vec()) };
        let mut steps = Vec::new();
        let next = self.earlier[1..].iter().map(|(span, _)| span.start).chain([self.span.start]);
        for ((span, repair), next) in self.earlier.iter().zip(next) {
            match repair {
                Repair::Cut => {}
                Repair::Stream(operator) => steps.push(Step::Apply(Arc::clone(operator))),
                Repair::Branches { .. } => return Err(Error::job("a repair in the weights of a layer is no step")),
            }
            steps.extend((span.end..next).flat_map(|layer| [Step::Attention(layer), Step::Mlp(layer)]));
        }
        let batch = Batch::windows([vec![0; rows.len()].as_slice()]);
        self.backbone.resume(&batch, &steps, self.activations.rows(HookPoint::Stream(first.start), rows)?)
    }

    /// The residual stream before the MLP of layer `start − 1`, `[rows, C]`: `X_pre` minus this is that MLP's output `A`.
    pub fn middle(&self, rows: Range<usize>) -> Result<&[f32]> {
        self.activations.rows(HookPoint::Middle(self.layer_before()?), rows)
    }

    /// The layer that ends where the span begins.
    ///
    /// # Errors
    /// The span begins with layer 0.
    pub fn layer_before(&self) -> Result<usize> {
        self.span.start.checked_sub(1).ok_or_else(|| {
            Error::job("no layer stands before layer 0 whose weights could take the repair in")
                .expected("a selection that keeps layer 0")
                .found("layer 0 is removed")
        })
    }
}

/// `X_pre` and `Δ = X_post − X_pre` in f64.
pub(super) fn pre_and_delta(pre: &[f32], post: &[f32]) -> (Vec<f64>, Vec<f64>) {
    pre.iter().zip(post).map(|(&pre, &post)| (f64::from(pre), f64::from(post) - f64::from(pre))).unzip()
}

/// `A = X_pre − X_mid` and `Y = X_post − X_mid` in f64: what ReplaceMe maps, and to what.
pub(super) fn branch_and_target(pre: &[f32], middle: &[f32], post: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let rows = pre.iter().zip(middle).zip(post);
    rows.map(|((&pre, &middle), &post)| {
        let middle = f64::from(middle);
        (f64::from(pre) - middle, f64::from(post) - middle)
    })
    .unzip()
}

/// Adds `Σ_t |x|` of each channel of some rows.
pub(super) fn add_magnitudes(sums: &mut [f64], x: &[f32]) {
    for row in x.chunks_exact(sums.len()) {
        for (sum, v) in sums.iter_mut().zip(row) {
            *sum += f64::from(v.abs());
        }
    }
}

/// A channel is constant whose values lie within so many roundings of f32 of each other.
const ROUNDINGS: f32 = 16.0;

/// Why the activations that a repair is solved on cannot determine one: too few tokens for the channels, or channels that
/// have one value in all of them. Empty where they can. A channel that is always zero needs no repair and does not count.
///
/// # Errors
/// Activations that cannot be read.
pub fn degenerate(boundary: &Boundary<'_>) -> Result<Vec<String>> {
    let (channels, tokens) = (boundary.channels(), boundary.fitted * boundary.length());
    let mut ranges = vec![(f32::INFINITY, f32::NEG_INFINITY); channels];
    for rows in boundary.blocks(boundary.fitted) {
        for row in boundary.pre(rows)?.chunks_exact(channels) {
            for ((least, most), &v) in ranges.iter_mut().zip(row) {
                (*least, *most) = (least.min(v), most.max(v));
            }
        }
    }
    let size = |(least, most): &(f32, f32)| least.abs().max(most.abs());
    let speaking = ranges.iter().filter(|range| size(range) > 0.0).count();
    let still = |range: &&(f32, f32)| size(range) > 0.0 && range.1 - range.0 <= ROUNDINGS * f32::EPSILON * size(range);
    let constant = ranges.iter().filter(still).count();
    let mut reasons = Vec::new();
    if tokens < speaking {
        reasons.push(format!("only {tokens} tokens of calibration for {channels} channels"));
    }
    if constant > 0 {
        reasons.push(format!("{constant} of {channels} channels are constant in the calibration"));
    }
    Ok(reasons)
}

/// What a method changes for one span.
#[derive(Debug, Clone)]
pub enum Repair {
    /// Nothing: the layers are only removed.
    Cut,
    /// `x ← x·W` in the place of the span.
    Stream(Arc<Operator>),
    /// `branch ← branch·T` in the layer before the span: in its MLP, and in its attention where that is asked for too.
    Branches { operator: Arc<Operator>, attention: bool },
}

impl Repair {
    /// The operator, wherever it stands.
    pub fn operator(&self) -> Option<&Arc<Operator>> {
        match self {
            Self::Cut => None,
            Self::Stream(operator) | Self::Branches { operator, .. } => Some(operator),
        }
    }
}

/// A repair and what is known of how it came about.
#[derive(Debug, Clone)]
pub struct Solution {
    pub repair: Repair,
    /// What a reader of the table has to know.
    pub notes: Vec<String>,
    /// Of the matrix whose least-squares problem was solved, where one was.
    pub system: Option<System>,
    /// The mean loss of each epoch, where the method iterates.
    pub losses: Vec<f64>,
}

/// The matrix of a least-squares problem, `[rows, C]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct System {
    pub rank: usize,
    /// Its largest singular value over its smallest one; infinite where the rank is below `C`.
    pub condition: f64,
}

impl Solution {
    /// A repair about which there is nothing to say.
    pub fn of(repair: Repair) -> Self {
        Self { repair, notes: Vec::new(), system: None, losses: Vec::new() }
    }

    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::calibrate::{ActivationShape, InMemory, Spool};
    use crate::model::engine::tests::Adding;
    use crate::options::Options;

    /// Activations around removed layers that are written down: the stream entering some layers, `[rows, C]`.
    pub(in crate::recovery) struct Written {
        engine: Adding,
        activations: Activations,
        pub(in crate::recovery) fitted: usize,
        pub(in crate::recovery) starts: Vec<Start>,
    }

    impl Written {
        pub(in crate::recovery) fn new(channels: usize, sequences: usize, streams: &[(usize, &[f32])]) -> Self {
            let mut kept = InMemory::of(streams.iter().map(|(layer, _)| HookPoint::Stream(*layer)));
            streams.iter().for_each(|(layer, rows)| kept.push(HookPoint::Stream(*layer), rows).unwrap());
            let length = streams[0].1.len() / channels / sequences;
            let activations = kept.finish(ActivationShape { channels, sequences, length }).unwrap();
            Self { engine: Adding::new(), activations, fitted: sequences, starts: Vec::new() }
        }

        /// What a method with options gives at `[start, end)`.
        pub(in crate::recovery) fn solve(
            &self,
            at: (usize, usize),
            earlier: &[(Span, Repair)],
            name: &str,
            options: &serde_json::Value,
        ) -> Result<Solution> {
            let options: Options = options.as_object().unwrap().clone();
            self.solve_by(at, earlier, &*crate::recovery::build(name, &options)?)
        }

        /// What a method gives there.
        pub(in crate::recovery) fn solve_by(
            &self,
            (start, end): (usize, usize),
            earlier: &[(Span, Repair)],
            method: &dyn crate::recovery::Recovery,
        ) -> Result<Solution> {
            let span = Span { start, end };
            let (backbone, activations) = (&self.engine, &self.activations);
            method.solve(&Boundary { backbone, activations, span, fitted: self.fitted, earlier, starts: &self.starts })
        }

        /// What cannot be determined at `[start, end)`.
        pub(in crate::recovery) fn degenerate(&self, (start, end): (usize, usize)) -> Vec<String> {
            let (backbone, activations, starts) = (&self.engine, &self.activations, &self.starts);
            let (span, fitted) = (Span { start, end }, self.fitted);
            let boundary = Boundary { backbone, activations, span, fitted, earlier: &[], starts };
            crate::recovery::degenerate(&boundary).unwrap()
        }
    }

    /// Fails unless numbers agree within 1e-5, more than the ridge of 1e-6 makes of numbers near 1.
    pub(in crate::recovery) fn near(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{found:?}, expected {expected:?}");
    }

    #[test]
    fn too_few_tokens_and_constant_channels_are_said_and_silent_ones_are_not() {
        let of = |pre: &[f32], sequences: usize| Written::new(2, sequences, &[(1, pre), (2, pre)]).degenerate((1, 2));
        assert_eq!(of(&[1.0, 2.0, 3.0, 1.0], 1), Vec::<String>::new());
        assert_eq!(of(&[1.0, 0.0, 3.0, 0.0], 1), Vec::<String>::new(), "a silent channel");
        assert_eq!(of(&[1.0, 5.0, 3.0, 5.0], 1), ["1 of 2 channels are constant in the calibration"]);
        // Rounding makes no difference of values that are the same; more than rounding does.
        assert_eq!(of(&[1.0, 5.0, 3.0, 5.000_002], 1).len(), 1);
        assert!(of(&[1.0, 5.0, 3.0, 5.001], 1).is_empty());
        let one = of(&[1.0, 2.0], 1);
        assert_eq!(one[0], "only 1 tokens of calibration for 2 channels");
        assert!(one[1].contains("2 of 2 channels"), "{one:?}");
    }
}

//! Boundary of removed layers: the activations of the dense model on both sides, and the repair.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sums::Sums;
use crate::calibrate::{Activations, HookPoint};
use crate::corpus::Start;
use crate::error::{Error, Result};
use crate::linalg::solve::NormalEquations;
use crate::linalg::spectrum::Spectrum;
use crate::model::{Batch, Engine, HostRows, LayerMerge, MergedLayer, Operator, Step, Sublayer};

/// Number of rows per block that a method reads, so that memory use does not depend on the size of the calibration set.
const BLOCK_ROWS: usize = 2048;

/// Removed layers `[start, end)` that are repaired together, or one removed sublayer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    pub start: usize,
    pub end: usize,
    /// Sublayer that is removed from layer `start`, or `None` if whole layers are removed.
    pub sublayer: Option<Sublayer>,
}

impl Span {
    /// Creates a span of whole layers.
    pub fn layers(start: usize, end: usize) -> Self {
        Self { start, end, sublayer: None }
    }

    /// Creates the span of a single sublayer.
    pub fn sublayer(layer: usize, sublayer: Sublayer) -> Self {
        Self { start: layer, end: layer + 1, sublayer: Some(sublayer) }
    }

    /// Returns the hook point at which the stream enters the span.
    pub fn input(&self) -> HookPoint {
        match self.sublayer {
            Some(Sublayer::Mlp) => HookPoint::Middle(self.start),
            _ => HookPoint::Stream(self.start),
        }
    }

    /// Returns the hook point at which the stream leaves the span.
    pub fn output(&self) -> HookPoint {
        match self.sublayer {
            Some(Sublayer::Attention) => HookPoint::Middle(self.start),
            _ => HookPoint::Stream(self.end),
        }
    }

    /// Returns the hook points at the ends of the span, and one in the layer before it, if there is a layer.
    pub(super) fn ends_and(&self, site_before: fn(usize) -> HookPoint) -> Vec<HookPoint> {
        [self.input(), self.output()].into_iter().chain(self.start.checked_sub(1).map(site_before)).collect()
    }
}

/// Whether operators replace regions or single layers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Placement {
    /// One operator per region, as in the paper's text.
    #[default]
    Region,
    /// One operator per removed layer, as in the reference code for selections with several regions.
    Layer,
}

impl Placement {
    pub(super) fn spans(self, region: Span) -> Vec<Span> {
        match self {
            Self::Region => vec![region],
            Self::Layer => (region.start..region.end).map(|start| Span::layers(start, start + 1)).collect(),
        }
    }
}

/// Removed span that a method repairs, with the calibration activations on both sides of it. All sequences have the
/// same length.
pub struct Boundary<'a> {
    pub backbone: &'a dyn Engine,
    pub activations: &'a Activations,
    pub span: Span,
    /// Number of leading sequences on which the repair is fitted. The repair's metrics cover all sequences.
    pub fitted: usize,
    /// Preceding spans of the selection and their repairs, in ascending order.
    pub earlier: &'a [(Span, Repair)],
    /// Last remaining layer before the span if the backbone is pruned iteratively, or `None` if the backbone is dense.
    pub before: Option<&'a RemainingLayer>,
    /// Merges by which the criterion removed the layers. Empty if the criterion does not merge layers.
    pub merges: &'a [LayerMerge],
    /// Start of each sequence in the corpus. If the list is empty, sequences are assumed not to overlap.
    pub starts: &'a [Start],
}

impl<'a> Boundary<'a> {
    /// Creates the boundary of a span in the dense backbone, without earlier repairs and merges. Sequences are assumed
    /// not to overlap.
    pub fn new(backbone: &'a dyn Engine, activations: &'a Activations, span: Span, fitted: usize) -> Self {
        Self { backbone, activations, span, fitted, earlier: &[], before: None, merges: &[], starts: &[] }
    }
}

/// Remaining layer of a pruned backbone, with the repairs folded into it.
#[derive(Debug, Clone)]
pub struct RemainingLayer {
    pub layer: usize,
    /// Earlier repairs that are folded into the layer's weights, by sublayer.
    pub edits: BTreeMap<Sublayer, Arc<Operator>>,
}

impl RemainingLayer {
    /// Returns the steps of the layer with another operator applied to both branches.
    ///
    /// # Errors
    /// Fails if the operator cannot be composed with an earlier one.
    pub(super) fn edited_steps(&self, operator: &Arc<Operator>) -> Result<Vec<Step>> {
        let edited = Sublayer::ALL.map(|sublayer| {
            let operator = match self.edits.get(&sublayer) {
                Some(edit) => edit.compose(operator)?,
                None => Arc::clone(operator),
            };
            Ok(Step::Edited(sublayer, self.layer, operator))
        });
        edited.into_iter().collect()
    }
}

impl Boundary<'_> {
    /// Returns the hidden size `C`.
    pub fn channels(&self) -> usize {
        self.activations.shape().channels
    }

    /// Returns the number of calibration sequences.
    pub fn sequences(&self) -> usize {
        self.activations.shape().sequences
    }

    /// Returns the number of tokens in a sequence.
    pub fn length(&self) -> usize {
        self.activations.shape().length
    }

    /// Returns blocks of rows that together cover the first `sequences` sequences.
    pub fn blocks(&self, sequences: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        self.activations.blocks(0..sequences * self.length(), BLOCK_ROWS)
    }

    /// Returns empty sums for the channels of this boundary.
    pub(super) fn new_sums(&self) -> Sums {
        Sums::new(self.channels(), self.backbone.accumulation_device())
    }

    /// Computes `XᵀX` and `XᵀΔ` over the first [`Self::fitted`] sequences, where `X = X_pre` and `Δ = X_post − X_pre`.
    pub(super) fn normal_equations(&self) -> Result<NormalEquations> {
        let mut sums = self.new_sums();
        for rows in self.blocks(self.fitted) {
            sums.add_difference(self.pre(rows.clone())?, self.post(rows)?)?;
        }
        sums.finish()
    }

    /// Returns whether two sequences overlap in the corpus. Returns `false` if their starts are unknown.
    pub fn sequences_overlap(&self, one: usize, other: usize) -> bool {
        let one = self.starts.get(one);
        let other = self.starts.get(other);
        one.zip(other).is_some_and(|(a, b)| a.document == b.document && a.token.abs_diff(b.token) < self.length())
    }

    /// Returns the range of rows that belong to one sequence.
    pub fn sequence(&self, index: usize) -> Range<usize> {
        index * self.length()..(index + 1) * self.length()
    }

    /// Reads `X_pre [rows, C]`, the stream that enters the span.
    pub fn pre(&self, rows: Range<usize>) -> Result<&[f32]> {
        self.activations.rows(self.span.input(), rows)
    }

    /// Reads `X_post [rows, C]`, the stream that leaves the span.
    pub fn post(&self, rows: Range<usize>) -> Result<&[f32]> {
        self.activations.rows(self.span.output(), rows)
    }

    /// Computes the stream `[rows, C]` that enters the span once all preceding spans are repaired.
    ///
    /// The computation starts with the dense model's stream at the first span. It runs the repairs, and the layers
    /// between them, on one sequence.
    ///
    /// # Errors
    /// Fails if a preceding repair changes the weights of a layer, because such a repair cannot be run as a step.
    pub fn repaired(&self, sequence: usize) -> Result<HostRows> {
        let rows = self.sequence(sequence);
        let Some((first, _)) = self.earlier.first() else { return HostRows::new(self.pre(rows)?.to_vec()) };
        let mut steps = Vec::new();
        let next = self.earlier[1..].iter().map(|(span, _)| span.start).chain([self.span.start]);
        for ((span, repair), next) in self.earlier.iter().zip(next) {
            match repair {
                Repair::Cut => {}
                Repair::Stream(operator) => steps.push(Step::Apply(Arc::clone(operator))),
                Repair::Branches { .. } | Repair::Merged(_) => {
                    return Err(Error::job("a repair that changes weights cannot run as a separate step"));
                }
            }
            steps.extend(
                (span.end..next).flat_map(|layer| Sublayer::ALL.map(|sublayer| Step::Sublayer(sublayer, layer))),
            );
        }
        let batch = Batch::windows([vec![0; rows.len()].as_slice()]);
        self.backbone.run_steps(&batch, &steps, self.activations.rows(HookPoint::Stream(first.start), rows)?)
    }

    /// Reads the residual stream `[rows, C]` before the MLP of [`Self::layer_before`]. The MLP's output `A` is `X_pre`
    /// minus this stream.
    pub fn middle(&self, rows: Range<usize>) -> Result<&[f32]> {
        self.activations.rows(HookPoint::Middle(self.layer_before()?), rows)
    }

    /// Returns the last remaining layer before the span.
    ///
    /// # Errors
    /// Fails if no layer before the span remains.
    pub fn layer_before(&self) -> Result<usize> {
        if let Some(remaining) = self.before {
            return Ok(remaining.layer);
        }
        self.span.start.checked_sub(1).ok_or_else(|| {
            Error::job("no layer before layer 0 to fold the repair into")
                .expected("a selection that keeps layer 0")
                .found("layer 0 is removed")
        })
    }
}

/// Computes `X_pre` and `Δ = X_post − X_pre` in f64.
pub(super) fn pre_and_delta(pre: &[f32], post: &[f32]) -> (Vec<f64>, Vec<f64>) {
    pre.iter().zip(post).map(|(&pre, &post)| (f64::from(pre), f64::from(post) - f64::from(pre))).unzip()
}

/// Computes ReplaceMe's input `A = X_pre − X_mid` and target `Y = X_post − X_mid` in f64.
pub(super) fn branch_and_target(pre: &[f32], middle: &[f32], post: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let rows = pre.iter().zip(middle).zip(post);
    rows.map(|((&pre, &middle), &post)| {
        let middle = f64::from(middle);
        (f64::from(pre) - middle, f64::from(post) - middle)
    })
    .unzip()
}

/// Adds `Σ_t |x|` for each channel to `sums`.
pub(super) fn add_magnitudes(sums: &mut [f64], x: &[f32]) {
    for row in x.chunks_exact(sums.len()) {
        for (sum, v) in sums.iter_mut().zip(row) {
            *sum += f64::from(v.abs());
        }
    }
}

/// Maximum range of a constant channel's values, as a multiple of the f32 epsilon times the channel's largest
/// magnitude.
const CONSTANT_RANGE_EPSILONS: f32 = 16.0;

/// Returns the reasons why the activations cannot determine a repair: fewer tokens than channels, or constant channels.
/// Returns an empty list if the activations suffice.
///
/// Channels that are always zero are ignored, because they need no repair.
///
/// # Errors
/// Fails if the activations cannot be read.
pub fn degenerate(boundary: &Boundary<'_>) -> Result<Vec<String>> {
    let channels = boundary.channels();
    let tokens = boundary.fitted * boundary.length();
    let mut ranges = vec![(f32::INFINITY, f32::NEG_INFINITY); channels];
    for rows in boundary.blocks(boundary.fitted) {
        for row in boundary.pre(rows)?.chunks_exact(channels) {
            for ((min, max), &v) in ranges.iter_mut().zip(row) {
                *min = min.min(v);
                *max = max.max(v);
            }
        }
    }
    ranges.retain(|(min, max)| *min != 0.0 || *max != 0.0);
    let nonzero = ranges.len();
    ranges.retain(|(min, max)| max - min <= CONSTANT_RANGE_EPSILONS * f32::EPSILON * min.abs().max(max.abs()));
    let constant = ranges.len();
    let mut reasons = Vec::new();
    if tokens < nonzero {
        reasons.push(format!("only {tokens} calibration tokens for {channels} channels"));
    }
    if constant > 0 {
        reasons.push(format!("{constant} of {channels} channels are constant in the calibration"));
    }
    Ok(reasons)
}

/// Change that repairs one span of the model.
#[derive(Debug, Clone)]
pub enum Repair {
    /// No repair: the layers are only removed.
    Cut,
    /// An operator on the stream, which replaces the span: `x ← x·W`.
    Stream(Arc<Operator>),
    /// An operator on the outputs of sublayers in the layer before the span: `output ← output·T` for the MLP, and also
    /// for the attention if `attention` is set.
    Branches { operator: Arc<Operator>, attention: bool },
    /// Merged weights in the layer before the span.
    Merged(Arc<MergedLayer>),
}

impl Repair {
    /// Returns the operator, if the repair has one.
    pub fn operator(&self) -> Option<&Arc<Operator>> {
        match self {
            Self::Cut | Self::Merged(_) => None,
            Self::Stream(operator) | Self::Branches { operator, .. } => Some(operator),
        }
    }
}

/// A repair, with diagnostics from the solver.
#[derive(Debug, Clone)]
pub struct Solution {
    pub repair: Repair,
    /// Footnotes for the results table.
    pub notes: Vec<String>,
    /// Rank and condition number of the least-squares problem, if the method solves one.
    pub system: Option<Spectrum>,
    /// Mean loss in each epoch, if the method is iterative.
    pub losses: Vec<f64>,
}

impl Solution {
    /// Creates a solution without diagnostics.
    pub fn new(repair: Repair) -> Self {
        Self { repair, notes: Vec::new(), system: None, losses: Vec::new() }
    }

    /// Adds a footnote.
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
    use crate::model::engine::tests::AddingEngine;
    use crate::options::Options;

    /// Activations for tests, given as literals: the stream `[rows, C]` that enters each listed layer.
    pub(in crate::recovery) struct LiteralActivations {
        engine: AddingEngine,
        activations: Activations,
        pub(in crate::recovery) fitted: usize,
        pub(in crate::recovery) starts: Vec<Start>,
    }

    impl LiteralActivations {
        pub(in crate::recovery) fn new(channels: usize, sequences: usize, streams: &[(usize, &[f32])]) -> Self {
            let sites: Vec<_> = streams.iter().map(|&(layer, rows)| (HookPoint::Stream(layer), rows)).collect();
            Self::at(channels, sequences, &sites)
        }

        /// Creates activations from the streams at the given hook points.
        pub(in crate::recovery) fn at(channels: usize, sequences: usize, streams: &[(HookPoint, &[f32])]) -> Self {
            let mut collected = InMemory::new(streams.iter().map(|(site, _)| *site));
            streams.iter().for_each(|(site, rows)| collected.push(*site, rows).unwrap());
            let length = streams[0].1.len() / channels / sequences;
            let activations = collected.finish(ActivationShape { channels, sequences, length }).unwrap();
            Self { engine: AddingEngine::new(), activations, fitted: sequences, starts: Vec::new() }
        }

        /// Runs the method `name` with the given options on the removed layers `[start, end)`.
        pub(in crate::recovery) fn solve(
            &self,
            boundaries: (usize, usize),
            earlier: &[(Span, Repair)],
            name: &str,
            options: &serde_json::Value,
        ) -> Result<Solution> {
            let options: Options = options.as_object().unwrap().clone();
            self.solve_by(boundaries, earlier, &*crate::recovery::build(name, &options)?)
        }

        /// Runs a method on the removed layers `[start, end)`.
        pub(in crate::recovery) fn solve_by(
            &self,
            (start, end): (usize, usize),
            earlier: &[(Span, Repair)],
            method: &dyn crate::recovery::Recovery,
        ) -> Result<Solution> {
            method.solve(&Boundary { earlier, ..self.boundary(Span::layers(start, end)) })
        }

        /// Runs a method on a span.
        pub(in crate::recovery) fn solve_at(
            &self,
            span: Span,
            method: &dyn crate::recovery::Recovery,
        ) -> Result<Solution> {
            method.solve(&self.boundary(span))
        }

        fn boundary(&self, span: Span) -> Boundary<'_> {
            Boundary { starts: &self.starts, ..Boundary::new(&self.engine, &self.activations, span, self.fitted) }
        }

        /// Returns the reasons that [`degenerate`](crate::recovery::degenerate) gives for the removed layers
        /// `[start, end)`.
        pub(in crate::recovery) fn degenerate(&self, (start, end): (usize, usize)) -> Vec<String> {
            crate::recovery::degenerate(&self.boundary(Span::layers(start, end))).unwrap()
        }
    }

    /// Asserts that values agree to within 1e-5. A ridge of 1e-6 changes values near 1 by less than that.
    pub(in crate::recovery) fn near(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "{found:?}, expected {expected:?}");
    }

    #[test]
    fn degenerate_calibration_data_is_reported() {
        fn reasons(pre: &[f32]) -> Vec<String> {
            LiteralActivations::new(2, 1, &[(1, pre), (2, pre)]).degenerate((1, 2))
        }
        assert_eq!(reasons(&[1.0, 2.0, 3.0, 1.0]), Vec::<String>::new());
        assert_eq!(reasons(&[1.0, 0.0, 3.0, 0.0]), Vec::<String>::new(), "a zero channel");
        assert_eq!(reasons(&[1.0, 5.0, 3.0, 5.0]), ["1 of 2 channels are constant in the calibration"]);
        // A channel is constant if its values differ only by rounding errors.
        assert_eq!(reasons(&[1.0, 5.0, 3.0, 5.000_002]).len(), 1);
        assert!(reasons(&[1.0, 5.0, 3.0, 5.001]).is_empty());
        let one_token = reasons(&[1.0, 2.0]);
        assert_eq!(one_token[0], "only 1 calibration tokens for 2 channels");
        assert!(one_token[1].contains("2 of 2 channels"), "{one_token:?}");
    }
}

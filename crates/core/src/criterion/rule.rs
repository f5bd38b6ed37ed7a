//! Interface of a pruning criterion: request, measurements and selection.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::depth::DepthUnit;
pub use super::trial::{Trial, TrialMetric, Trials};
use crate::calibrate::{Activations, HookPoint, Pair, Similarities, SimilarityAxis};
use crate::corpus::Windows;
use crate::deviation::{Deviation, OFFICIAL_SEQUENCES};
use crate::error::{Error, Result};
use crate::model::{Config, Cut, LayerMerge, RmsNorm, Sublayer};
use crate::options::{self, Options, Variant};

/// Request to remove layers or sublayers from a backbone.
#[derive(Debug, Clone, Copy)]
pub struct PruneSpec<'a> {
    /// Name of the backbone in the grid.
    pub backbone: &'a str,
    /// Number of layers `L` in the backbone.
    pub layers: usize,
    /// Number of layers or sublayers to remove.
    pub depth: usize,
    pub unit: DepthUnit,
}

impl PruneSpec<'_> {
    /// Returns the [indices](DepthUnit::candidate_indices) of the candidates that `removed` does not contain.
    pub fn remaining(&self, removed: &Cut) -> Vec<usize> {
        let mut candidates = self.unit.candidate_indices(self.layers);
        candidates
            .retain(|&candidate| self.unit.cut([candidate]).iter().any(|(layer, kind)| !removed.contains(layer, kind)));
        candidates
    }
}

/// Measurements of the calibration pass, and a function that measures [`Trial`]s, which are pruned backbones.
pub struct CalibrationStats<'a> {
    pub similarities: &'a Similarities,
    /// Streams requested by [`Criterion::sites`]. `None` if they exceed the disk limit.
    pub activations: Option<&'a Activations>,
    /// Function that measures trials on the calibration windows. All trials of a call are measured in one run, which
    /// computes common prefixes of layers once. A trial removes its cut in addition to [`Self::removed`].
    pub trials: &'a mut Trials<'a>,
    norms: Option<&'a InputNorms<'a>>,
    /// Layers and sublayers already removed from the measured backbone.
    removed: Cut,
}

/// Function that returns the norm that a sublayer applies to the stream
/// ([`Engine::input_norm`](crate::model::Engine::input_norm)).
pub type InputNorms<'a> = dyn Fn((usize, Sublayer)) -> Result<RmsNorm> + 'a;

impl CalibrationStats<'_> {
    /// Measures the backbone once without each of the given cuts. Returns one value per cut.
    ///
    /// # Errors
    /// See [`Self::measure_trials`].
    pub fn measure(&mut self, metric: TrialMetric, cuts: &[Cut]) -> Result<Vec<f64>> {
        let trials: Vec<Trial> = cuts.iter().cloned().map(Trial::from).collect();
        self.measure_trials(metric, &trials)
    }

    /// Measures trials. Returns the value of `metric` for each trial, in order.
    ///
    /// # Errors
    /// Fails if a measurement fails. Also fails if a value is not finite, because such values cannot be ranked.
    pub fn measure_trials(&mut self, metric: TrialMetric, trials: &[Trial]) -> Result<Vec<f64>> {
        let found = (self.trials)(metric, trials)?;
        let name = match metric {
            TrialMetric::Perplexity => "perplexity",
            TrialMetric::Distance(_) => "distance",
            TrialMetric::Cosine => "cosine",
        };
        match trials.iter().zip(&found).find(|(_, value)| !value.is_finite()) {
            None => Ok(found),
            Some((trial, value)) => Err(Error::job(format!("cannot rank layers: the {name} of a trial is not finite"))
                .at(format!("the backbone without {}", trial.removed))
                .found(value)
                .hint("use --dtype bf16 or f32, because f16 may overflow")),
        }
    }

    /// Returns the similarities of the pairs whose first layer is not removed, with that layer.
    pub(super) fn remaining_similarities(&self, pairs: Vec<Pair>) -> Result<Vec<(usize, f64)>> {
        let remaining = pairs.into_iter().filter(|pair| !self.removed.contains_layer(pair.from));
        remaining.map(|pair| Ok((pair.from, self.similarity(pair)?))).collect()
    }

    /// Returns a similarity requested by [`Criterion::pairs`].
    ///
    /// # Errors
    /// Fails if the similarity was not measured or is not finite.
    pub fn similarity(&self, pair: Pair) -> Result<f64> {
        match self.similarities.get(pair) {
            Some(value) if value.is_finite() => Ok(value),
            other => Err(Error::job("a similarity is missing or not finite")
                .at(format!("layers {} and {}", pair.from, pair.to))
                .found(other.map_or_else(|| "no measurement".to_owned(), |value| value.to_string()))),
        }
    }
}

impl<'a> CalibrationStats<'a> {
    /// Creates the statistics of a pass, without the norms of the backbone.
    pub fn new(
        similarities: &'a Similarities,
        activations: Option<&'a Activations>,
        trials: &'a mut Trials<'a>,
    ) -> Self {
        Self { similarities, activations, trials, norms: None, removed: Cut::default() }
    }

    #[must_use]
    pub fn with_norms(self, norms: &'a InputNorms<'a>) -> Self {
        Self { norms: Some(norms), ..self }
    }

    /// Sets the layers and sublayers that are already removed from the measured backbone.
    #[must_use]
    pub fn without(self, removed: Cut) -> Self {
        Self { removed, ..self }
    }

    /// Returns the layers and sublayers that are already removed from the measured backbone. They are not candidates.
    pub fn removed(&self) -> &Cut {
        &self.removed
    }

    /// Returns the norm that a sublayer applies to the stream, or `None` if the norm has no weights.
    ///
    /// # Errors
    /// Fails if the norms were not provided or cannot be read.
    pub fn input_norm(&self, sublayer: (usize, Sublayer)) -> Result<Option<RmsNorm>> {
        let norms =
            self.norms.ok_or_else(|| Error::job("the norms of the backbone were not provided to the criterion"))?;
        Ok(Some(norms(sublayer)?).filter(|norm| norm.weight.is_some()))
    }

    /// Returns the activations requested by [`Criterion::sites`].
    ///
    /// # Errors
    /// Fails if the activations exceed the disk limit for a pass.
    pub fn activations(&self) -> Result<&'a Activations> {
        self.activations.ok_or_else(|| {
            Error::job("the activations that the criterion reads exceed the disk limit of a pass")
                .hint("reduce `sequences` or `length` of the calibration")
        })
    }
}

/// Quantity that a criterion's scores measure, and the direction in which they rank the candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Importance {
    /// Name of the measured quantity.
    pub quantity: &'static str,
    /// Whether the candidate with the lowest score is removed first, instead of the one with the highest.
    pub lowest_first: bool,
}

/// Rule that selects the layers to remove.
pub trait Criterion: Send + Sync {
    /// Returns the units in which the depth may be given.
    fn units(&self) -> &'static [DepthUnit] {
        &[DepthUnit::Layers]
    }

    /// Rejects a backbone that the rule cannot prune.
    fn check_backbone(&self, config: &Config) -> Result<()> {
        let _ = config;
        Ok(())
    }

    /// Rejects a request that the rule, called `name`, cannot satisfy. The unit of the request must be one of
    /// [`Self::units`]. By default, every layer or sublayer is a candidate.
    fn check(&self, name: &str, spec: &PruneSpec<'_>) -> Result<()> {
        check_all_candidates(name, spec)
    }

    /// Returns the similarities that the calibration pass has to measure. A rule that needs neither pairs nor
    /// [`Self::sites`] selects layers before the pass.
    fn pairs(&self, spec: &PruneSpec<'_>) -> Vec<Pair> {
        let _ = spec;
        Vec::new()
    }

    /// Returns the sites whose activations the rule reads. The pass spools them for all calibration sequences.
    fn sites(&self, spec: &PruneSpec<'_>) -> Vec<HookPoint> {
        let _ = spec;
        Vec::new()
    }

    /// Returns the regions that the selection may contain. A region `[start, end)` is a block of adjacent removed
    /// layers. The pass spools the activations at its boundaries.
    fn regions(&self, spec: &PruneSpec<'_>) -> Vec<(usize, usize)> {
        if self.one_block(spec) {
            return self.pairs(spec).iter().map(|pair| (pair.from, pair.to)).collect();
        }
        any_regions(spec)
    }

    /// Returns whether the rule always removes one block of adjacent layers. As in the reference code, rules that only
    /// happen to select adjacent layers return `false`.
    fn one_block(&self, spec: &PruneSpec<'_>) -> bool {
        let _ = spec;
        false
    }

    /// Returns cuts for the cost estimate, similar to those that [`Self::select`] measures. A rule that returns none
    /// must not measure trials.
    fn trials(&self, spec: &PruneSpec<'_>) -> Vec<Cut> {
        let _ = spec;
        Vec::new()
    }

    /// Returns the cuts of [`Self::trials`] that remain after `done` steps of an iterative selection.
    fn remaining_trials(&self, spec: &PruneSpec<'_>, done: usize) -> Vec<Cut> {
        let measured = self.trials(&PruneSpec { depth: done, ..*spec }).len();
        self.trials(spec).split_off(measured)
    }

    /// Returns the quantity by which [`Self::select`] ranks its trials.
    fn trial_metric(&self) -> TrialMetric {
        TrialMetric::Perplexity
    }

    /// Returns the removal order of the layers if it is known in advance, for example because it was published. The
    /// order is part of the selection's cache key.
    ///
    /// # Errors
    /// See [`Self::check`].
    fn prior_order(&self, spec: &PruneSpec<'_>) -> Result<Option<Vec<usize>>> {
        let _ = spec;
        Ok(None)
    }

    /// Returns whether the rule removes one layer or sublayer at a time and measures the repaired backbone again
    /// ([`iterative`](crate::iterative)). It then ranks the candidates that are not in [`CalibrationStats::removed`].
    fn is_iterative(&self) -> bool {
        false
    }

    /// Returns the quantity that the scores measure, or `None` if a selection with a depth of 1 does not score every
    /// candidate. If the rule measures trials, the scores are the trial results.
    fn importance(&self) -> Option<Importance> {
        None
    }

    /// Selects the layers to remove.
    fn select(&self, spec: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection>;
}

/// Selected cut with the scores of the candidates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// Removed layers or sublayers.
    pub removed: Cut,
    /// Pairs of candidate and score, in an order that depends on the criterion. A candidate is a layer, the first layer
    /// of a block, or the [index](crate::model::Sublayer::index_in_model) of a sublayer.
    pub scores: Vec<(usize, f64)>,
    /// Merges by which the layers were removed, in order. Empty if the criterion does not merge layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merges: Vec<LayerMerge>,
}

impl Selection {
    /// Creates a selection without merges.
    pub fn new(removed: Cut, scores: Vec<(usize, f64)>) -> Self {
        Self { removed, scores, merges: Vec::new() }
    }

    /// Creates a selection of whole layers.
    pub(super) fn from_layers(layers: impl IntoIterator<Item = usize>, scores: Vec<(usize, f64)>) -> Self {
        Self::new(Cut::layers(layers), scores)
    }

    /// Returns the maximal blocks `[start, end)` of adjacent removed layers.
    pub fn regions(&self) -> Vec<(usize, usize)> {
        self.removed.regions()
    }

    /// Selects the block with the highest or the lowest score, or the first one if scores are equal. Scores are indexed
    /// by the start of the block.
    pub(super) fn best_block(spec: &PruneSpec<'_>, scores: Vec<(usize, f64)>, lowest_first: bool) -> Result<Self> {
        let is_better = |new: f64, old: f64| if lowest_first { new < old } else { new > old };
        let best = scores.iter().copied().reduce(|best, next| if is_better(next.1, best.1) { next } else { best });
        let (start, _) = best.ok_or_else(|| Error::job("no block of layers can be removed"))?;
        Ok(Self::from_layers(start..start + spec.depth, scores))
    }

    /// Selects the candidates with the lowest scores. The first candidate wins ties.
    pub(super) fn lowest(spec: &PruneSpec<'_>, scores: Vec<(usize, f64)>) -> Self {
        let mut ranked = scores.clone();
        // The sort is stable, so the first of several equal scores stays first.
        ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
        Self::new(spec.unit.cut(ranked.into_iter().take(spec.depth).map(|(candidate, _)| candidate)), scores)
    }
}

/// Returns every region that a selection of `depth` layers may contain. Returns none for cuts of sublayers, because
/// regions consist of whole layers.
pub(super) fn any_regions(spec: &PruneSpec<'_>) -> Vec<(usize, usize)> {
    let PruneSpec { layers, depth, unit, .. } = *spec;
    if unit != DepthUnit::Layers {
        return Vec::new();
    }
    (0..layers).flat_map(|start| (start + 1..=(start + depth).min(layers)).map(move |end| (start, end))).collect()
}

/// Axis over which the cosine is computed.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Cosine {
    /// Over the positions of each channel, as in the reference code.
    #[default]
    ChannelSeries,
    /// Over the channels of each token.
    Token,
}

impl Cosine {
    pub(super) fn axis(self) -> SimilarityAxis {
        match self {
            Self::ChannelSeries => SimilarityAxis::ChannelSeries,
            Self::Token => SimilarityAxis::Token,
        }
    }
}

/// Rejects a request that a rule cannot satisfy, or whose unit the rule does not support.
///
/// # Errors
/// Fails if the request is rejected. The error states the reason.
pub fn check(name: &str, rule: &dyn Criterion, spec: &PruneSpec<'_>) -> Result<()> {
    let units = rule.units();
    if units.contains(&spec.unit) {
        return rule.check(name, spec);
    }
    let counts_layers = units.contains(&DepthUnit::Layers);
    let removes = if counts_layers { "whole layers" } else { "sublayers" };
    let expected: Vec<String> = units
        .iter()
        .map(|unit| match unit {
            DepthUnit::Layers => format!("`{}`", spec.depth),
            unit => format!("`{{{unit}: {}}}`", spec.depth),
        })
        .collect();
    Err(Error::bad_input(format!("`{name}` removes {removes}, but the depth is given in {}", spec.unit))
        .expected(format!("a depth such as {}", expected.join(", ")))
        .found(format!("{} {}", spec.depth, spec.unit))
        .hint(if counts_layers {
            "use llm-drop, block-pruner or finercut to remove sublayers"
        } else {
            "use another criterion, such as llm-streamline, to remove whole layers"
        }))
}

/// Rejects a depth that exceeds the number of layers or sublayers, or that would remove all sublayers of the backbone.
pub(super) fn check_all_candidates(name: &str, spec: &PruneSpec<'_>) -> Result<()> {
    let max = spec.unit.available(spec.layers) - usize::from(spec.unit == DepthUnit::Sublayers);
    check_depth(name, if spec.unit.is_layers() { TOO_FEW_LAYERS } else { TOO_FEW_SUBLAYERS }, max, spec)
}

/// Rejects a depth that exceeds the number of candidates.
pub(super) fn check_depth(name: &str, reason: &str, max: usize, spec: &PruneSpec<'_>) -> Result<()> {
    if spec.depth <= max {
        return Ok(());
    }
    Err(Error::bad_input(format!("`{name}` {reason}"))
        .expected(format!("a depth of at most {max}, for {} layers", spec.layers))
        .found(spec.depth))
}

/// Reasons passed to [`check_depth`] if any candidate may be removed.
pub(super) const TOO_FEW_LAYERS: &str = "has too few layers to choose from";
const TOO_FEW_SUBLAYERS: &str = "has too few sublayers to choose from";

/// Deviation of the official repository that applies to all criteria it implements.
pub(super) const READS_FIRST_SEQUENCES: &[Deviation] = &[Deviation {
    applies: |case| case.sequences > OFFICIAL_SEQUENCES,
    text: "selects layers using only the first 128 calibration sequences",
}];

/// Name of the option that removes one layer or sublayer at a time and measures again after each removal.
pub(super) const ITERATIVE: &str = "iterative";

/// Creates the variant of a criterion that the option [`ITERATIVE`] selects.
pub(super) const fn iterative(label: &'static str) -> Variant {
    Variant { option: ITERATIVE, value: "true", word: ITERATIVE, label }
}

pub(super) type CriterionEntry = options::RegistryEntry<dyn Criterion>;

/// Builds a criterion by deserializing its options into `T`.
pub(super) fn build<T: Criterion + DeserializeOwned + 'static>(
    name: &str,
    options: &Options,
) -> Result<Box<dyn Criterion>> {
    Ok(Box::new(options::read::<T>(name, options)?))
}

/// Relative difference up to which two scores are considered equal. Smaller differences are rounding errors of the f32
/// streams.
const SCORE_TOLERANCE: f64 = 1e-9;

/// Returns the reasons why the calibration data cannot distinguish the layers. The list is empty if it can.
///
/// Possible reasons are a text of one repeated token (all channels are then constant), fewer tokens than channels for a
/// rule that compares streams, and equal scores. The list is also empty for rules that read no calibration data.
pub fn degenerate(
    criterion: &dyn Criterion,
    spec: &PruneSpec<'_>,
    selection: &Selection,
    calibration: &Windows,
    channels: usize,
) -> Vec<String> {
    let compares = !criterion.pairs(spec).is_empty() || !criterion.sites(spec).is_empty();
    if !compares && criterion.trials(spec).is_empty() {
        return Vec::new();
    }
    let tokens = calibration.ids.len();
    let first = calibration.ids.first();
    let mut reasons = Vec::new();
    if tokens == 1 {
        reasons.push("the calibration text has only one token".to_owned());
    } else if calibration.ids.iter().all(|id| Some(id) == first) {
        reasons.push("the calibration text repeats one token and has constant channels".to_owned());
    }
    if tokens > 1 && tokens < channels && compares {
        reasons.push(format!(
            "the calibration text has fewer tokens ({tokens}) than the backbone has channels ({channels})"
        ));
    }
    let min = selection.scores.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
    let max = selection.scores.iter().map(|(_, score)| *score).fold(f64::NEG_INFINITY, f64::max);
    if selection.scores.len() > 1 && max - min <= SCORE_TOLERANCE * min.abs().max(max.abs()) {
        reasons.push("all candidates have the same score".to_owned());
    }
    reasons
}

#[cfg(test)]
pub(super) mod tests;

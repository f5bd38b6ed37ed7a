//! A rule that picks layers: what it is asked for, what it may look at, what it gives.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::calibrate::{Activations, HookPoint, Pair, Similarities, SimilarityAxis};
use crate::corpus::Windows;
use crate::deviation::{Deviation, OFFICIAL_SEQUENCES};
use crate::error::{Error, Result};
use crate::options::{self, Options};

/// What a rule is asked for: so many layers out of a backbone.
#[derive(Debug, Clone, Copy)]
pub struct PruneSpec<'a> {
    /// The backbone's name in the grid.
    pub backbone: &'a str,
    /// `L`
    pub layers: usize,
    /// How many layers go.
    pub depth: usize,
}

/// Perplexities without each of some sets of layers.
pub type Perplexities<'a> = dyn FnMut(&[Vec<usize>]) -> Result<Vec<f64>> + 'a;

/// What a rule may look at: what the calibration pass measured, and the perplexity of trials.
pub struct Evidence<'a> {
    pub similarities: &'a Similarities,
    /// The streams that [`Criterion::sites`] asked for; none where there was no room for them.
    pub activations: Option<&'a Activations>,
    /// The backbone's perplexity on the calibration windows without each of some sets of layers:
    /// `exp(total negative log-likelihood / predicted tokens)`. All sets are measured in one run of their trie.
    pub perplexities: &'a mut Perplexities<'a>,
}

impl Evidence<'_> {
    /// The perplexities without each of some sets of layers.
    ///
    /// # Errors
    /// One of them is no number: of a backbone that overflows nothing can be ranked.
    pub fn perplexities_without(&mut self, removed: &[Vec<usize>]) -> Result<Vec<f64>> {
        let found = (self.perplexities)(removed)?;
        match removed.iter().zip(&found).find(|(_, perplexity)| !perplexity.is_finite()) {
            None => Ok(found),
            Some((layers, perplexity)) => Err(Error::job("a perplexity is no number: no layers can be ranked by it")
                .at(format!("the backbone without {layers:?}"))
                .found(perplexity)
                .hint("--dtype bf16 or f32 has the range that f16 lacks")),
        }
    }

    /// A similarity that [`Criterion::pairs`] asked for.
    ///
    /// # Errors
    /// It was not measured, or is not finite.
    pub fn similarity(&self, pair: Pair) -> Result<f64> {
        match self.similarities.get(pair) {
            Some(value) if value.is_finite() => Ok(value),
            other => Err(Error::job("a similarity is missing or not finite")
                .at(format!("layers {} and {}", pair.from, pair.to))
                .found(format!("{other:?}"))),
        }
    }
}

impl<'a> Evidence<'a> {
    /// The activations that [`Criterion::sites`] asked for.
    ///
    /// # Errors
    /// There was no room for them.
    pub fn activations(&self) -> Result<&'a Activations> {
        self.activations.ok_or_else(|| {
            Error::job("the activations that the criterion compares were not kept: they exceed what a pass may write")
                .hint("fewer or shorter calibration sequences take less")
        })
    }
}

/// A rule that picks layers.
pub trait Criterion: Send + Sync {
    /// Refuses a cut that the rule cannot make.
    fn check(&self, cut: &PruneSpec<'_>) -> Result<()>;

    /// The similarities that the calibration pass has to measure. A rule that wants none, and
    /// no [`Self::sites`], picks before the pass.
    fn pairs(&self, cut: &PruneSpec<'_>) -> Vec<Pair> {
        let _ = cut;
        Vec::new()
    }

    /// The activations that the rule reads itself, of all calibration sequences: they are spooled while the pass runs.
    fn sites(&self, cut: &PruneSpec<'_>) -> Vec<HookPoint> {
        let _ = cut;
        Vec::new()
    }

    /// The regions `[start, end)` that a selection may have: their activations are spooled while the pass runs.
    fn regions(&self, cut: &PruneSpec<'_>) -> Vec<(usize, usize)> {
        any_regions(cut)
    }

    /// Whether a cut is one block by the rule itself, whatever layers it picks. Reference codes tell one block from many
    /// layers by the rule: layers that happen to be neighbours are many layers all the same.
    fn one_block(&self, cut: &PruneSpec<'_>) -> bool {
        let _ = cut;
        false
    }

    /// Sets of layers like those whose perplexity [`Self::select`] will ask for: what they cost is told by these, and a
    /// rule that has none may not ask.
    fn trials(&self, cut: &PruneSpec<'_>) -> Vec<Vec<usize>> {
        let _ = cut;
        Vec::new()
    }

    /// What the rule knows of the backbone beforehand, such as a published order found by its name in the grid: a part of
    /// what makes a selection.
    ///
    /// # Errors
    /// As [`Self::check`].
    fn known(&self, cut: &PruneSpec<'_>) -> Result<Option<Vec<usize>>> {
        let _ = cut;
        Ok(None)
    }

    /// Picks the layers.
    fn select(&self, cut: &PruneSpec<'_>, evidence: &mut Evidence<'_>) -> Result<Selection>;
}

/// The layers picked, and the scores that spoke for them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// Removed layers, ascending.
    pub removed: Vec<usize>,
    /// `(candidate, score)` in the criterion's order; what a candidate is, is the criterion's own.
    pub scores: Vec<(usize, f64)>,
}

impl Selection {
    /// Maximal runs of removed layers, `[start, end)`.
    pub fn regions(&self) -> Vec<(usize, usize)> {
        self.removed.chunk_by(|a, b| a + 1 == *b).map(|run| (run[0], run[run.len() - 1] + 1)).collect()
    }

    /// The block whose pair of ends has the highest score; the first of equal ones. Scores are kept by the block's start.
    pub(super) fn highest_block(
        cut: &PruneSpec<'_>,
        pairs: Vec<Pair>,
        evidence: &Evidence<'_>,
        score: impl Fn(f64) -> f64,
    ) -> Result<Self> {
        let of_pair = |pair: Pair| Ok((pair.from, evidence.similarity(pair)?));
        let scores = pairs.into_iter().map(of_pair).collect::<Result<Vec<_>>>()?;
        let better = |best: (usize, f64), next: (usize, f64)| if score(next.1) > score(best.1) { next } else { best };
        let best = scores.iter().copied().reduce(better);
        let (start, _) = best.ok_or_else(|| Error::job("no block to choose from"))?;
        Ok(Self { removed: (start..start + cut.depth).collect(), scores })
    }

    /// The `depth` candidates with the lowest scores; of equal scores the lower layer.
    pub(super) fn lowest(scores: Vec<(usize, f64)>, depth: usize) -> Self {
        let mut ranked = scores.clone();
        ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut removed: Vec<usize> = ranked[..depth].iter().map(|(layer, _)| *layer).collect();
        removed.sort_unstable();
        Self { removed, scores }
    }
}

/// Every region that some layers of a cut may make.
pub(super) fn any_regions(cut: &PruneSpec<'_>) -> Vec<(usize, usize)> {
    let PruneSpec { layers, depth, .. } = *cut;
    (0..layers).flat_map(|start| (start + 1..=(start + depth).min(layers)).map(move |end| (start, end))).collect()
}

/// The option that two rules share: what their cosine is taken over.
#[derive(Debug, Default, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Cosine {
    /// Over the positions of each channel, as the reference code does.
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

/// Refuses more layers than a rule has candidates.
pub(super) fn at_most(name: &str, why: &str, most: usize, cut: &PruneSpec<'_>) -> Result<()> {
    if cut.depth <= most {
        return Ok(());
    }
    Err(Error::bad_input(format!("`{name}` {why}"))
        .expected(format!("a depth of at most {most}, for {} layers", cut.layers))
        .found(cut.depth))
}

/// The deviation of the criteria that the official repository implements.
pub(super) const READS_FIRST_SEQUENCES: &[Deviation] = &[Deviation {
    applies: |case| case.sequences > OFFICIAL_SEQUENCES,
    text: "selects layers by the first 128 calibration sequences, however many there are",
}];

pub(super) type CriterionEntry = options::Registered<dyn Criterion>;

/// A rule that is its options.
pub(super) fn build<T: Criterion + DeserializeOwned + 'static>(
    name: &str,
    options: &Options,
) -> Result<Box<dyn Criterion>> {
    Ok(Box::new(options::read::<T>(name, options)?))
}

/// Scores that lie within this part of each other are the same: the streams that they come from are of f32.
const SAME: f64 = 1e-9;

/// Why layers were chosen by what cannot tell them apart: a text of one token, or of one token over and over (then every
/// channel of the residual stream is constant), fewer tokens than channels where the rule compares streams of so many
/// `channels`, or scores that are all the same. Empty where they were not, and of a rule that reads no calibration.
pub fn degenerate(
    criterion: &dyn Criterion,
    cut: &PruneSpec<'_>,
    selection: &Selection,
    calibration: &Windows,
    channels: usize,
) -> Vec<String> {
    let compares = !criterion.pairs(cut).is_empty() || !criterion.sites(cut).is_empty();
    if !compares && criterion.trials(cut).is_empty() {
        return Vec::new();
    }
    let (tokens, mut reasons) = (calibration.ids.len(), Vec::new());
    let first = calibration.ids.first();
    if tokens == 1 {
        reasons.push("the layers were chosen by one token of calibration".to_owned());
    } else if calibration.ids.iter().all(|id| Some(id) == first) {
        reasons.push(
            "the layers were chosen by a calibration of one token over and over: its channels do not change".to_owned(),
        );
    }
    if tokens > 1 && tokens < channels && compares {
        reasons
            .push(format!("the layers were chosen by {tokens} tokens of calibration: fewer than {channels} channels"));
    }
    let scores = || selection.scores.iter().map(|(_, score)| *score);
    let (least, most) = (scores().fold(f64::INFINITY, f64::min), scores().fold(f64::NEG_INFINITY, f64::max));
    if selection.scores.len() > 1 && most - least <= SAME * least.abs().max(most.abs()) {
        reasons.push("all scores that the layers were chosen by are the same".to_owned());
    }
    reasons
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::corpus::Start;
    use crate::criterion::build;

    /// What a criterion picks on evidence that is given by formulas.
    pub(crate) fn select(
        entry: &CriterionEntry,
        options: &serde_json::Value,
        cut: &PruneSpec<'_>,
        similarity: impl Fn(Pair) -> f64,
        perplexity: impl Fn(&[usize]) -> f64,
    ) -> Result<Selection> {
        let criterion = entry.build(options.as_object().unwrap())?;
        criterion.check(cut)?;
        let pairs: BTreeSet<Pair> = criterion.pairs(cut).into_iter().collect();
        let mut similarities = Similarities::new(&pairs);
        similarities.add_sums(&pairs.into_iter().map(similarity).collect::<Vec<_>>(), 1);
        let mut perplexities = |sets: &[Vec<usize>]| Ok(sets.iter().map(|set| perplexity(set)).collect());
        let mut evidence = Evidence { similarities: &similarities, activations: None, perplexities: &mut perplexities };
        let selection = criterion.select(cut, &mut evidence)?;
        for region in selection.regions() {
            assert!(criterion.regions(cut).contains(&region), "{region:?} was not announced");
        }
        Ok(selection)
    }

    #[test]
    fn a_similarity_that_was_not_measured_or_is_none_is_refused_with_its_layers() {
        let pair = |from| Pair { axis: crate::calibrate::SimilarityAxis::Token, from, to: 3 };
        let mut similarities = Similarities::new(&[pair(1), pair(2)].into());
        similarities.add_sums(&[f64::NAN, 0.5], 1);
        let evidence =
            Evidence { similarities: &similarities, activations: None, perplexities: &mut |_| Ok(Vec::new()) };
        assert_eq!(evidence.similarity(pair(2)).unwrap(), 0.5);
        for (from, found) in [(0, "None"), (1, "NaN")] {
            let text = evidence.similarity(pair(from)).unwrap_err().to_string();
            assert!(text.contains(&format!("layers {from} and 3")) && text.contains(found), "{text}");
        }
    }

    #[test]
    fn regions_are_maximal_runs() {
        let selection = Selection { removed: vec![0, 2, 3, 4, 7], scores: Vec::new() };
        assert_eq!(selection.regions(), [(0, 1), (2, 5), (7, 8)]);
    }

    #[test]
    fn of_equal_scores_the_lower_layer_goes_first() {
        let selection = Selection::lowest(vec![(0, 2.0), (1, 1.0), (2, 1.0), (3, 1.0)], 2);
        assert_eq!(selection.removed, [1, 2]);
    }

    fn reasons(rule: &str, options: &serde_json::Value, ids: &[u32], scores: &[f64]) -> Vec<String> {
        let starts = vec![Start { document: 0, token: 0 }];
        let calibration = Windows { ids: ids.to_vec(), length: ids.len(), starts, corpus_tokens: ids.len(), bytes: 0 };
        let selection = Selection { removed: vec![1], scores: scores.iter().copied().enumerate().collect() };
        let cut = PruneSpec { backbone: "llama-3-8b", layers: 32, depth: 1 };
        degenerate(&*build(rule, options.as_object().unwrap()).unwrap(), &cut, &selection, &calibration, 4)
    }

    #[test]
    fn what_tells_no_layers_apart_is_said_of_every_rule_that_reads_a_calibration() {
        let of = |rule: &str, ids: &[u32], scores: &[f64]| reasons(rule, &json!({}), ids, scores);
        for rule in ["llm-streamline", "shortgpt", "angular", "cca", "sleb", "shortened-llama"] {
            let compares = !["sleb", "shortened-llama"].contains(&rule);
            assert_eq!(of(rule, &[1, 2, 3, 4], &[0.5, 0.25]), [""; 0], "{rule}");
            assert!(of(rule, &[7; 8], &[0.5, 0.25])[0].contains("one token over and over"), "{rule}");
            assert_eq!(of(rule, &[7], &[0.5, 0.25]), ["the layers were chosen by one token of calibration"], "{rule}");
            let few = of(rule, &[1, 2, 3], &[0.5, 0.25]);
            assert_eq!(few.len(), usize::from(compares), "{rule}: {few:?}");
            assert!(few.iter().all(|why| why.contains("3 tokens of calibration: fewer than 4 channels")), "{few:?}");
            let tied = of(rule, &[1, 2, 3, 4], &[0.5, 0.5 + 1e-12, 0.5]);
            assert_eq!(tied, ["all scores that the layers were chosen by are the same"], "{rule}");
            assert!(of(rule, &[1, 2, 3, 4], &[0.0]).is_empty(), "one candidate is no tie");
        }
        for (rule, options) in [("explicit", json!({"layers": [1]})), ("shortened-llama", json!({"order": "released"}))]
        {
            assert!(reasons(rule, &options, &[7], &[]).is_empty(), "{rule} reads none");
        }
    }
}

//! Floor 2: rules that pick which layers to remove (design §6). One rule, one file, one line in [`ENTRIES`].

mod angular;
mod explicit;
mod llm_streamline;
mod shortened_llama;
mod shortgpt;
mod similarity;
mod sleb;

use serde::{Deserialize, Serialize};

use crate::calibrate::Pair;
use crate::error::{Error, Result};
use crate::options::{self, Appearance, Described, Options};
use crate::style::{Dash, Hue, Marker, Style};

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

/// What a rule may look at.
pub trait CalibrationEvidence {
    /// A similarity that [`Criterion::pairs`] asked for.
    fn similarity(&self, pair: Pair) -> Result<f64>;

    /// The backbone's perplexity on the calibration windows without each of some sets of layers:
    /// `exp(total negative log-likelihood / predicted tokens)`. All sets are measured in one run of their trie.
    fn perplexities(&mut self, removed: &[Vec<usize>]) -> Result<Vec<f64>>;
}

/// A rule that picks layers.
pub trait Criterion: Send + Sync {
    /// Refuses a cut that the rule cannot make.
    fn check(&self, cut: &PruneSpec<'_>) -> Result<()>;

    /// The similarities that the calibration pass has to measure. A rule that wants none picks before the pass.
    fn pairs(&self, cut: &PruneSpec<'_>) -> Vec<Pair> {
        let _ = cut;
        Vec::new()
    }

    /// The regions `[start, end)` that a selection may have: their activations are spooled while the pass runs.
    fn regions(&self, cut: &PruneSpec<'_>) -> Vec<(usize, usize)> {
        let PruneSpec { layers, depth, .. } = *cut;
        (0..layers).flat_map(|start| (start + 1..=(start + depth).min(layers)).map(move |end| (start, end))).collect()
    }

    /// Sets of layers like those whose perplexity [`Self::select`] will ask for: what they cost is told by these, and a
    /// rule that has none may not ask.
    fn trials(&self, cut: &PruneSpec<'_>) -> Vec<Vec<usize>> {
        let _ = cut;
        Vec::new()
    }

    /// Whether the choice depends on what the grid calls the backbone, which nothing else may.
    fn reads_name(&self) -> bool {
        false
    }

    /// Picks the layers.
    fn select(&self, cut: &PruneSpec<'_>, evidence: &mut dyn CalibrationEvidence) -> Result<Selection>;
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
    fn highest_block(
        cut: &PruneSpec<'_>,
        pairs: Vec<Pair>,
        evidence: &dyn CalibrationEvidence,
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
    fn lowest(scores: Vec<(usize, f64)>, depth: usize) -> Self {
        let mut ranked = scores.clone();
        ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut removed: Vec<usize> = ranked[..depth].iter().map(|(layer, _)| *layer).collect();
        removed.sort_unstable();
        Self { removed, scores }
    }
}

/// Refuses more layers than a rule has candidates.
fn at_most(name: &str, why: &str, most: usize, cut: &PruneSpec<'_>) -> Result<()> {
    if cut.depth <= most {
        return Ok(());
    }
    Err(Error::bad_input(format!("`{name}` {why}"))
        .expected(format!("a depth of at most {most}, for {} layers", cut.layers))
        .found(cut.depth.to_string()))
}

type CriterionEntry = options::Registered<Build>;
type Build = fn(&Options) -> Result<Box<dyn Criterion>>;

/// Every criterion that a grid may name.
#[rustfmt::skip] // One line each.
const ENTRIES: &[CriterionEntry] = &[
    llm_streamline::ENTRY,
    shortgpt::ENTRY,
    shortened_llama::ENTRY,
    sleb::ENTRY,
    angular::ENTRY,
    explicit::ENTRY,
];

/// The criterion of a name, with its options.
///
/// # Errors
/// An unknown name (with the nearest), an unknown option or a wrong value.
pub fn build(name: &str, options: &Options) -> Result<Box<dyn Criterion>> {
    (options::lookup("criterion", name, ENTRIES)?.build)(options)
}

/// The options of a criterion with every default filled in: what it is known by in keys.
///
/// # Errors
/// As [`build`].
pub fn resolve(name: &str, options: &Options) -> Result<Options> {
    let entry = options::lookup("criterion", name, ENTRIES)?;
    (entry.build)(options)?;
    entry.resolve(options)
}

/// The names of all criteria and what their options are.
pub fn described() -> Vec<Described> {
    ENTRIES.iter().map(CriterionEntry::described).collect()
}

/// What stands in a criterion's place where nothing is removed.
pub const DENSE: Appearance = Appearance {
    name: "dense",
    label: "Dense",
    style: Some(Style::new(Hue::Ink, Marker::Star, Dash::Dashed)),
    ours: false,
};

/// A criterion as the paper prints it, [`DENSE`] among them; a name that is no criterion's as it is.
pub fn label(name: &str) -> &str {
    let dense = Some(DENSE).filter(|dense| dense.name == name);
    dense.or_else(|| options::appearance(name, ENTRIES)).map_or(name, |shown| shown.label)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Evidence that is given by formulas.
    pub(crate) struct Given<S, P> {
        pub(crate) similarity: S,
        pub(crate) perplexity: P,
        /// How many sets were measured in each run.
        pub(crate) runs: Vec<usize>,
    }

    impl<S: Fn(Pair) -> f64, P: Fn(&[usize]) -> f64> CalibrationEvidence for Given<S, P> {
        fn similarity(&self, pair: Pair) -> Result<f64> {
            Ok((self.similarity)(pair))
        }

        fn perplexities(&mut self, removed: &[Vec<usize>]) -> Result<Vec<f64>> {
            self.runs.push(removed.len());
            Ok(removed.iter().map(|set| (self.perplexity)(set)).collect())
        }
    }

    pub(crate) fn select(
        name: &str,
        options: &serde_json::Value,
        cut: &PruneSpec<'_>,
        similarity: impl Fn(Pair) -> f64,
        perplexity: impl Fn(&[usize]) -> f64,
    ) -> Result<Selection> {
        let criterion = build(name, options.as_object().unwrap())?;
        criterion.check(cut)?;
        let mut given = Given { similarity, perplexity, runs: Vec::new() };
        let selection = criterion.select(cut, &mut given)?;
        for region in selection.regions() {
            assert!(criterion.regions(cut).contains(&region), "{name}: {region:?} was not announced");
        }
        Ok(selection)
    }

    #[test]
    fn a_criterion_has_the_papers_name_where_the_paper_has_one() {
        assert_eq!((label("dense"), label("sleb"), label("angular")), ("Dense", "SLEB", "angular"));
        assert_eq!(label("of-mine"), "of-mine");
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

    #[test]
    fn a_misspelt_criterion_or_option_is_refused() {
        let text = build("llm_streamline", &Options::new()).err().unwrap().to_string();
        assert!(text.contains("did you mean `llm-streamline`?"), "{text}");
        let options = serde_json::json!({"cosin": "token"}).as_object().unwrap().clone();
        let text = build("llm-streamline", &options).err().unwrap().to_string();
        assert!(text.contains("cosin") && text.contains("cosine"), "{text}");
    }
}

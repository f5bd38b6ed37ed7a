//! Floor 2: rules that pick which layers to remove (design §6). One rule, one file, one line in [`ENTRIES`].

mod llm_streamline;

use crate::calibrate::{Pair, Similarities};
use crate::error::Result;
use crate::options::{self, Options};

/// A rule that picks layers.
pub trait Criterion: Send + Sync {
    /// Refuses a depth that the rule cannot pick from `layers` layers.
    fn check(&self, layers: usize, depth: usize) -> Result<()>;

    /// The similarities that the calibration pass has to measure for this depth.
    fn pairs(&self, layers: usize, depth: usize) -> Vec<Pair>;

    /// The boundaries that a selection of this depth can have: their residual streams may be needed.
    fn boundaries(&self, layers: usize, depth: usize) -> Vec<usize>;

    /// Picks `depth` of `layers` layers.
    fn select(&self, layers: usize, depth: usize, similarities: &Similarities) -> Result<Selection>;
}

/// The layers picked, and the scores that spoke for them.
#[derive(Debug, Clone, PartialEq)]
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
}

type Build = fn(&Options) -> Result<Box<dyn Criterion>>;

/// Every criterion by its name in a grid.
const ENTRIES: &[(&str, Build)] = &[(llm_streamline::NAME, llm_streamline::build)];

/// The criterion of a name, with its options.
///
/// # Errors
/// An unknown name (with the nearest), an unknown option or a wrong value.
pub fn build(name: &str, options: &Options) -> Result<Box<dyn Criterion>> {
    options::lookup("criterion", name, ENTRIES)?(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_maximal_runs() {
        let selection = Selection { removed: vec![0, 2, 3, 4, 7], scores: Vec::new() };
        assert_eq!(selection.regions(), [(0, 1), (2, 5), (7, 8)]);
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

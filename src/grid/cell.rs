//! One variant of a grid.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::method::Method;
use crate::criterion::Criterion;
use crate::recovery::Recovery;

/// The keys of the axes that say how layers are cut out: a grid has all of them or none.
pub(super) const CUT_AXES: [&str; 4] = ["criterion", DEPTH, "recovery", "calibration"];
/// The axis of how many layers go.
pub(super) const DEPTH: &str = "depth";
/// The keys of all axes, in the order in which a cell's name has those that it has.
pub(super) const AXES: [&str; 5] = ["backbone", CUT_AXES[0], CUT_AXES[1], CUT_AXES[2], CUT_AXES[3]];

/// Which text the activations come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Calibration {
    /// A name in [`Grid::corpora`](super::Grid::corpora).
    pub corpus: String,
    pub sequences: usize,
    /// Tokens of a sequence.
    pub length: usize,
    pub seed: u64,
    /// How many of the sequences, the first ones, an operator is computed from; selection uses all. It is `sequences`
    /// where the file does not say.
    pub operator_sequences: usize,
}

/// `wikitext2-validation:32x512@0`: corpus, sequences, length and seed.
impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { corpus, sequences, length, seed, operator_sequences } = self;
        write!(f, "{corpus}:{sequences}x{length}@{seed}")?;
        if operator_sequences == sequences { Ok(()) } else { write!(f, "(operator_sequences={operator_sequences})") }
    }
}

/// One variant of the grid. The dense backbone is the one without criterion, recovery and calibration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// A name in [`Grid::backbones`](super::Grid::backbones).
    pub backbone: String,
    pub criterion: Option<Method<dyn Criterion>>,
    /// How many layers are removed.
    pub depth: usize,
    pub recovery: Option<Method<dyn Recovery>>,
    pub calibration: Option<Calibration>,
    /// What it is called in its grid: `llama-3.1-8b.streamline-7.ghosted`. Nothing is read out of it.
    #[serde(default)]
    pub name: String,
}

impl Cell {
    /// The whole backbone.
    pub(super) fn dense(backbone: &str) -> Self {
        let (backbone, name) = (backbone.to_owned(), String::new());
        Self { backbone, criterion: None, depth: 0, recovery: None, calibration: None, name }
    }

    /// A whole backbone of any name.
    #[cfg(test)]
    pub(crate) fn named(backbone: &str, name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::dense(backbone) }
    }

    /// Whether nothing is removed.
    pub fn is_dense(&self) -> bool {
        self.criterion.is_none()
    }
}

/// Its name.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

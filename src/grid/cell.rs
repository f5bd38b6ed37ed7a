//! From axes to cells.

use std::fmt;

use serde::Serialize;

use super::{Grid, Method};

/// Which text the activations come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Calibration {
    /// A name in [`Grid::corpora`].
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
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// A name in [`Grid::backbones`].
    pub backbone: String,
    pub criterion: Option<Method>,
    /// How many layers are removed.
    pub depth: usize,
    pub recovery: Option<Method>,
    pub calibration: Option<Calibration>,
}

impl Cell {
    /// Whether nothing is removed.
    pub fn is_dense(&self) -> bool {
        self.criterion.is_none()
    }
}

/// `english/llm-streamline/3/ghosted/c4:32x512@0`, or `english/dense`.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.backbone)?;
        let (Some(criterion), Some(recovery), Some(calibration)) = (&self.criterion, &self.recovery, &self.calibration)
        else {
            return f.write_str("/dense");
        };
        write!(f, "/{criterion}/{}/{recovery}/{calibration}", self.depth)
    }
}

impl Grid {
    /// All variants: for each backbone the dense one, then criterion by criterion, in it depth by depth, then recovery,
    /// then calibration, each in the order of the file.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for backbone in &self.backbone {
            let backbone = || backbone.clone();
            cells.push(Cell { backbone: backbone(), criterion: None, depth: 0, recovery: None, calibration: None });
            for criterion in &self.criterion {
                for &depth in &self.depth {
                    for recovery in &self.recovery {
                        for calibration in &self.calibration {
                            cells.push(Cell {
                                backbone: backbone(),
                                criterion: Some(criterion.clone()),
                                depth,
                                recovery: Some(recovery.clone()),
                                calibration: Some(calibration.clone()),
                            });
                        }
                    }
                }
            }
        }
        cells
    }
}

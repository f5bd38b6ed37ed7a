//! Result of a check: the number of agreeing values, the differing ones with their difference, and those that cannot be
//! checked with the missing parts.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use crate::archive::{Altered, METADATA, Unpacked};

/// Results folders that were checked.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Verification {
    /// The part of all items that was to be drawn.
    pub share: f64,
    /// The seed of the draw.
    pub seed: u64,
    /// Work to be done.
    pub work: Work,
    pub folders: Vec<FolderCheck>,
}

/// Work for recomputing the drawn part, as far as known in advance.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct Work {
    /// Cells that are drawn.
    pub cells: usize,
    /// The folders of the backbones that are loaded, each once.
    pub backbones: Vec<String>,
    /// Passes over a calibration's text; what several folders share is counted for each.
    pub calibrations: usize,
    /// Batches of windows or documents, each scored for all drawn cells of its backbone.
    pub chunks: usize,
    /// Floating-point operations, by the cost model.
    pub flop: f64,
}

impl Work {
    /// Combines two checks.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        let Self { cells, backbones, calibrations, chunks, flop } = other;
        self.cells += cells;
        self.backbones.extend(backbones);
        self.backbones.sort();
        self.backbones.dedup();
        self.calibrations += calibrations;
        self.chunks += chunks;
        self.flop += flop;
        self
    }
}

/// One results folder.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FolderCheck {
    /// Where it lies.
    pub folder: String,
    /// The artifact, or the grid.
    pub name: String,
    /// Version and commit of the program that wrote it.
    pub program: String,
    pub checks: Vec<Check>,
    /// Remarks for readers: parts not verified or left out.
    pub notes: Vec<String>,
}

/// Kind of comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckKind {
    /// Each file with its hash in the folder's list.
    Files,
    /// Each number with the items that it was made of.
    Items,
    /// Each form of the table with the numbers, and with the others.
    Tables,
    /// The verdict on each sentence of the paper, judged again on the numbers.
    Claims,
    /// The inputs, by their hashes.
    Inputs,
    /// Window losses, recomputed.
    Windows,
    /// Answers to documents, recomputed.
    Documents,
    /// Log-likelihoods of choices and texts, recomputed.
    LogLikelihoods,
    /// Removed layers, chosen again.
    Selections,
    /// Operators' figures, solved again.
    Operators,
}

impl CheckKind {
    /// Names the check in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Files => "files by their hashes",
            Self::Items => "numbers from their items",
            Self::Tables => "tables from the numbers",
            Self::Claims => "claims judged again",
            Self::Inputs => "inputs by their hashes",
            Self::Windows => "window losses, recomputed",
            Self::Documents => "answers, recomputed",
            Self::LogLikelihoods => "log-likelihoods, recomputed",
            Self::Selections => "layer choices, recomputed",
            Self::Operators => "operators, recomputed",
        }
    }
}

/// One kind of check.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Check {
    pub kind: CheckKind,
    /// Numbers that agree within the tolerance of engine and float type.
    pub agreed: usize,
    /// The largest difference among those that agree; 0 where all do to the last bit.
    pub largest: f64,
    /// All numbers of the kind; those that were not drawn were not looked at.
    pub all: usize,
    /// The chance that a single altered number of the kind is found.
    pub chance: f64,
    pub differs: Vec<Differing>,
    pub cannot: Vec<Lacking>,
}

/// A number that is another one.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Differing {
    /// Cell, column and item, or file and line.
    pub at: String,
    /// Value in the folder.
    pub recorded: String,
    /// Value computed here.
    pub found: String,
    /// How far apart; none of what is no number.
    pub by: Option<f64>,
}

/// An item that cannot be checked.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Lacking {
    /// Cell, column and item, or file.
    pub at: String,
    /// The missing input.
    pub lacks: String,
}

impl Check {
    pub(super) fn new(kind: CheckKind) -> Self {
        Self { kind, agreed: 0, largest: 0.0, all: 0, chance: 1.0, differs: Vec::new(), cannot: Vec::new() }
    }

    pub(super) fn agree(&mut self, by: f64) {
        self.agreed += 1;
        self.largest = self.largest.max(by);
    }

    pub(super) fn differ(&mut self, at: impl Into<String>, [recorded, found]: [impl Into<String>; 2], by: Option<f64>) {
        self.differs.push(Differing { at: at.into(), recorded: recorded.into(), found: found.into(), by });
    }

    /// Compares two values that must be equal.
    pub(super) fn same(&mut self, at: impl FnOnce() -> String, [recorded, found]: [String; 2]) {
        if recorded == found { self.agree(0.0) } else { self.differ(at(), [recorded, found], None) }
    }

    /// Compares two numbers within a tolerance.
    pub(super) fn number(&mut self, at: impl Fn() -> String, recorded: f64, found: f64, tolerance: f64) {
        let by = (found - recorded).abs();
        match recorded.to_bits() == found.to_bits() || by <= tolerance || (recorded.is_nan() && found.is_nan()) {
            true => self.agree(if by.is_finite() { by } else { 0.0 }),
            false => self.differ(at(), [recorded.to_string(), found.to_string()], Some(by).filter(|by| by.is_finite())),
        }
    }

    /// Compares a printed number with a value, within half a unit of its last digit.
    pub(super) fn rounded(&mut self, at: impl Fn() -> String, printed: f64, value: f64, half: f64) {
        match (printed - value).abs() <= half {
            true => self.agree(0.0),
            false => self.number(at, printed, value, half),
        }
    }

    pub(super) fn lack(&mut self, at: impl Into<String>, lacks: impl Into<String>) {
        let lacking = Lacking { at: at.into(), lacks: lacks.into() };
        if !self.cannot.contains(&lacking) {
            self.cannot.push(lacking);
        }
    }

    /// Returns how many numbers were compared.
    pub fn compared(&self) -> usize {
        self.agreed + self.differs.len()
    }

    /// Sets the total from which the compared numbers were sampled.
    #[must_use]
    pub(super) fn of(mut self, all: usize) -> Self {
        self.all = all.max(self.compared());
        self.chance = if self.all == 0 { 1.0 } else { self.compared() as f64 / self.all as f64 };
        self
    }
}

impl FolderCheck {
    /// Converts an archive's check of its own list.
    pub fn of_archive(path: &Path, unpacked: &Unpacked) -> Self {
        let mut check = Check::new(CheckKind::Files);
        (0..unpacked.sound).for_each(|_| check.agree(0.0));
        for Altered { name, listed, found } in &unpacked.altered {
            check.differ(name, [listed, found], None);
        }
        let all = check.compared();
        Self {
            folder: path.display().to_string(),
            name: "archive".to_owned(),
            program: METADATA.to_owned(),
            checks: vec![check.of(all)],
            notes: Vec::new(),
        }
    }
}

impl Verification {
    fn checks(&self) -> impl Iterator<Item = &Check> {
        self.folders.iter().flat_map(|folder| &folder.checks)
    }

    /// Returns whether anything differs.
    pub fn differs(&self) -> bool {
        self.checks().any(|check| !check.differs.is_empty())
    }

    /// Returns whether anything cannot be checked.
    pub fn cannot(&self) -> bool {
        self.checks().any(|check| !check.cannot.is_empty())
    }
}

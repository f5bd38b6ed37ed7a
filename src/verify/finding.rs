//! Results of checks: which values agree, which differ, and which cannot be checked.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use crate::archive::{AlteredFile, METADATA, UnpackedRecord};

/// Checks of one or more results folders.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Verification {
    /// Requested share of items to sample.
    pub share: f64,
    /// Seed for the sample.
    pub seed: u64,
    /// Estimated work for recomputing the sample.
    pub work: RecomputeCost,
    pub folders: Vec<FolderCheck>,
}

/// Estimated work for recomputing the sample.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub struct RecomputeCost {
    /// Number of sampled cells.
    pub cells: usize,
    /// Folders of the backbones to load, without duplicates.
    pub backbones: Vec<String>,
    /// Number of calibration passes. A pass that several folders share is counted once per folder.
    pub calibrations: usize,
    /// Number of batches of windows or documents. Each batch is scored for all sampled cells of its backbone.
    pub chunks: usize,
    /// Estimated floating-point operations.
    pub flop: f64,
}

impl RecomputeCost {
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
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

/// Checks of one results folder.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FolderCheck {
    /// Path of the folder.
    pub folder: String,
    /// Name of the artifact or grid.
    pub name: String,
    /// Version and commit of the program that wrote the folder.
    pub program: String,
    pub checks: Vec<CheckResult>,
    /// Notes on parts that were omitted or not verified.
    pub notes: Vec<String>,
}

/// Kind of check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckKind {
    /// Hashes of the folder's files.
    Files,
    /// Numbers recomputed from their items.
    Items,
    /// Tables compared with the numbers and with their versions in other formats.
    Tables,
    /// Verdicts on the paper's claims, recomputed from the numbers.
    Claims,
    /// Hashes of inputs.
    Inputs,
    /// Recomputed window losses.
    Windows,
    /// Recomputed answers for documents.
    Documents,
    /// Recomputed log-likelihoods of choices and texts.
    LogLikelihoods,
    /// Recomputed layer selections.
    Selections,
    /// Recomputed diagnostics of operators.
    Operators,
}

impl CheckKind {
    pub fn words(self) -> &'static str {
        match self {
            Self::Files => "file hashes",
            Self::Items => "numbers, recomputed from items",
            Self::Tables => "tables, rebuilt from numbers",
            Self::Claims => "claims, re-evaluated",
            Self::Inputs => "input hashes",
            Self::Windows => "window losses, recomputed",
            Self::Documents => "answers, recomputed",
            Self::LogLikelihoods => "log-likelihoods, recomputed",
            Self::Selections => "layer choices, recomputed",
            Self::Operators => "operators, recomputed",
        }
    }
}

/// Result of one kind of check.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct CheckResult {
    pub kind: CheckKind,
    /// Number of values that agree within the tolerance for the engine and float type.
    pub agreed: usize,
    /// Largest difference among the agreeing values; 0 if all are bit-identical.
    pub largest: f64,
    /// Total number of values of this kind, including values that were not sampled.
    pub all: usize,
    /// Probability that a single altered value of this kind would be found.
    pub chance: f64,
    pub differs: Vec<ValueMismatch>,
    pub cannot: Vec<UncheckedValue>,
}

/// Value that differs from the record.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ValueMismatch {
    /// Cell, column and item, or file and line.
    pub at: String,
    /// Value in the folder.
    pub recorded: String,
    /// Value that the check found.
    pub found: String,
    /// Absolute difference; null if a value is not a number.
    pub by: Option<f64>,
}

/// Value that cannot be checked.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct UncheckedValue {
    /// Cell, column and item, or file.
    pub at: String,
    /// Missing input.
    pub lacks: String,
}

impl CheckResult {
    pub(super) fn new(kind: CheckKind) -> Self {
        Self { kind, agreed: 0, largest: 0.0, all: 0, chance: 1.0, differs: Vec::new(), cannot: Vec::new() }
    }

    pub(super) fn agree(&mut self, by: f64) {
        self.agreed += 1;
        self.largest = self.largest.max(by);
    }

    pub(super) fn differ(&mut self, at: impl Into<String>, [recorded, found]: [impl Into<String>; 2], by: Option<f64>) {
        self.differs.push(ValueMismatch { at: at.into(), recorded: recorded.into(), found: found.into(), by });
    }

    pub(super) fn compare_equal(&mut self, at: impl FnOnce() -> String, [recorded, found]: [String; 2]) {
        if recorded == found { self.agree(0.0) } else { self.differ(at(), [recorded, found], None) }
    }

    pub(super) fn number(&mut self, at: impl Fn() -> String, recorded: f64, found: f64, tolerance: f64) {
        let by = (found - recorded).abs();
        match recorded.to_bits() == found.to_bits() || by <= tolerance || (recorded.is_nan() && found.is_nan()) {
            true => self.agree(if by.is_finite() { by } else { 0.0 }),
            false => self.differ(at(), [recorded.to_string(), found.to_string()], Some(by).filter(|by| by.is_finite())),
        }
    }

    /// Compares a printed number with a value. The tolerance `half` is half a unit in the last printed digit.
    pub(super) fn printed(&mut self, at: impl Fn() -> String, printed: f64, value: f64, half: f64) {
        match (printed - value).abs() <= half {
            true => self.agree(0.0),
            false => self.number(at, printed, value, half),
        }
    }

    pub(super) fn record_missing(&mut self, at: impl Into<String>, lacks: impl Into<String>) {
        let lacking = UncheckedValue { at: at.into(), lacks: lacks.into() };
        if !self.cannot.contains(&lacking) {
            self.cannot.push(lacking);
        }
    }

    pub fn compared(&self) -> usize {
        self.agreed + self.differs.len()
    }

    /// Sets the total number of values from which the sample was drawn, and the detection probability that follows from
    /// it.
    #[must_use]
    pub(super) fn with_total(mut self, all: usize) -> Self {
        self.all = all.max(self.compared());
        self.chance = if self.all == 0 { 1.0 } else { self.compared() as f64 / self.all as f64 };
        self
    }
}

impl FolderCheck {
    pub fn from_archive(path: &Path, unpacked: &UnpackedRecord) -> Self {
        let mut check = CheckResult::new(CheckKind::Files);
        (0..unpacked.intact).for_each(|_| check.agree(0.0));
        for AlteredFile { name, listed, found } in &unpacked.altered {
            check.differ(name, [listed, found], None);
        }
        let all = check.compared();
        Self {
            folder: path.display().to_string(),
            name: "archive".to_owned(),
            program: METADATA.to_owned(),
            checks: vec![check.with_total(all)],
            notes: Vec::new(),
        }
    }
}

impl Verification {
    fn checks(&self) -> impl Iterator<Item = &CheckResult> {
        self.folders.iter().flat_map(|folder| &folder.checks)
    }

    pub fn differs(&self) -> bool {
        self.checks().any(|check| !check.differs.is_empty())
    }

    pub fn has_unchecked(&self) -> bool {
        self.checks().any(|check| !check.cannot.is_empty())
    }
}

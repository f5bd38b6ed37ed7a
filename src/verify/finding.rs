//! Results of checks: which values agree, which differ, and which cannot be checked.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use crate::archive::{AlteredFile, METADATA, UnpackedRecord};

/// Result of verifying one or more results folders.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Verification {
    /// Requested fraction of items to sample.
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
    pub fn label(self) -> &'static str {
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
    #[serde(rename = "largest")]
    pub max_difference: f64,
    /// Total number of values of this kind, including values that were not sampled.
    #[serde(rename = "all")]
    pub total: usize,
    /// Probability that a single altered value of this kind would be found.
    #[serde(rename = "chance")]
    pub detection_probability: f64,
    #[serde(rename = "differs")]
    pub mismatches: Vec<ValueMismatch>,
    #[serde(rename = "cannot")]
    pub unchecked: Vec<UncheckedValue>,
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
    #[serde(rename = "by")]
    pub difference: Option<f64>,
}

/// Value that cannot be checked.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct UncheckedValue {
    /// Cell, column and item, or file.
    pub at: String,
    /// Missing input.
    #[serde(rename = "lacks")]
    pub missing_input: String,
}

impl CheckResult {
    pub(super) fn new(kind: CheckKind) -> Self {
        Self {
            kind,
            agreed: 0,
            max_difference: 0.0,
            total: 0,
            detection_probability: 1.0,
            mismatches: Vec::new(),
            unchecked: Vec::new(),
        }
    }

    pub(super) fn record_agreement(&mut self, difference: f64) {
        self.agreed += 1;
        self.max_difference = self.max_difference.max(difference);
    }

    pub(super) fn record_difference(
        &mut self,
        location: impl Into<String>,
        [recorded, found]: [impl Into<String>; 2],
        difference: Option<f64>,
    ) {
        self.mismatches.push(ValueMismatch {
            at: location.into(),
            recorded: recorded.into(),
            found: found.into(),
            difference,
        });
    }

    /// Records an agreement, or the difference between two values unless they agree.
    pub(super) fn compare(
        &mut self,
        agrees: bool,
        at: impl FnOnce() -> String,
        [recorded, found]: [impl Into<String>; 2],
    ) {
        match agrees {
            true => self.record_agreement(0.0),
            false => self.record_difference(at(), [recorded, found], None),
        }
    }

    pub(super) fn compare_equal(&mut self, at: impl FnOnce() -> String, [recorded, found]: [String; 2]) {
        self.compare(recorded == found, at, [recorded, found]);
    }

    /// Compares two numbers. They agree if they are bit-identical, both NaN, or differ by at most `tolerance`.
    pub(super) fn compare_numbers(&mut self, at: impl Fn() -> String, recorded: f64, found: f64, tolerance: f64) {
        let difference = (found - recorded).abs();
        match recorded.to_bits() == found.to_bits() || difference <= tolerance || (recorded.is_nan() && found.is_nan())
        {
            true => self.record_agreement(if difference.is_finite() { difference } else { 0.0 }),
            false => self.record_difference(
                at(),
                [recorded.to_string(), found.to_string()],
                Some(difference).filter(|difference| difference.is_finite()),
            ),
        }
    }

    /// Compares a printed number with a value. The tolerance `half_unit` is half a unit in the last printed digit.
    pub(super) fn compare_printed(&mut self, at: impl Fn() -> String, printed: f64, value: f64, half_unit: f64) {
        match (printed - value).abs() <= half_unit {
            true => self.record_agreement(0.0),
            false => self.compare_numbers(at, printed, value, half_unit),
        }
    }

    /// Records a value that cannot be checked, unless the same value and input are already recorded.
    pub(super) fn record_missing(&mut self, at: impl Into<String>, missing_input: impl Into<String>) {
        let value = UncheckedValue { at: at.into(), missing_input: missing_input.into() };
        if !self.unchecked.contains(&value) {
            self.unchecked.push(value);
        }
    }

    pub fn compared_count(&self) -> usize {
        self.agreed + self.mismatches.len()
    }

    /// Sets the number of values from which the sample was drawn, and computes the detection probability.
    #[must_use]
    pub(super) fn with_total(mut self, total: usize) -> Self {
        self.total = total.max(self.compared_count());
        self.detection_probability =
            if self.total == 0 { 1.0 } else { self.compared_count() as f64 / self.total as f64 };
        self
    }
}

impl FolderCheck {
    pub fn from_archive(path: &Path, unpacked: &UnpackedRecord) -> Self {
        let mut check = CheckResult::new(CheckKind::Files);
        (0..unpacked.intact).for_each(|_| check.record_agreement(0.0));
        for AlteredFile { name, listed, found } in &unpacked.altered {
            check.record_difference(name, [listed, found], None);
        }
        let all = check.compared_count();
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

    pub fn has_differences(&self) -> bool {
        self.checks().any(|check| !check.mismatches.is_empty())
    }

    pub fn has_unchecked(&self) -> bool {
        self.checks().any(|check| !check.unchecked.is_empty())
    }
}

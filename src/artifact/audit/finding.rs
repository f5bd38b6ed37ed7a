//! What was found.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::row::words;
use crate::artifact::paper::PaperNumber;
use crate::results::distinct;
use crate::results::record::Condition;

/// What was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    Average,
    Agreement,
    Calibration,
    Count,
    Chance,
    Copy,
    Duplicate,
    Speedup,
    Memory,
}

impl Check {
    /// What each is called in CSV and JSON, and what is compared with what.
    const WORDS: [(Self, &'static str, &'static str); 9] = [
        (Self::Average, "average", "a printed mean is the mean of its columns, as far as rounding allows"),
        (Self::Agreement, "agreement", "one condition has one value, in whatever table"),
        (
            Self::Calibration,
            "calibration",
            "a row without a number of calibration sequences is the row of the stated number",
        ),
        (Self::Count, "count", "an accuracy is a whole number of right answers out of the task's documents"),
        (Self::Chance, "chance", "a row is above chance in some task"),
        (Self::Copy, "copy", "two conditions have two rows"),
        (Self::Duplicate, "duplicate", "a table gives a metric of a condition once"),
        (Self::Speedup, "speedup", "a speedup is the dense latency by the row's own"),
        (Self::Memory, "memory", "an operator takes no more memory than a matrix of C² numbers"),
    ];

    pub fn all() -> impl Iterator<Item = Self> {
        Self::WORDS.into_iter().map(|(check, ..)| check)
    }

    pub fn name(self) -> &'static str {
        Self::WORDS[self as usize].1
    }

    pub fn about(self) -> &'static str {
        Self::WORDS[self as usize].2
    }
}

/// How much a finding says, the worst first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// A number that cannot be, or two that cannot both be.
    Contradiction,
    /// Probably wrong, but there is an honest way to it.
    Suspicion,
    /// Worth knowing; no more than a last digit, or explained.
    #[default]
    Remark,
}

impl Severity {
    pub const ALL: [Self; 3] = [Self::Contradiction, Self::Suspicion, Self::Remark];

    pub fn name(self) -> &'static str {
        match self {
            Self::Contradiction => "contradiction",
            Self::Suspicion => "suspicion",
            Self::Remark => "remark",
        }
    }

    /// What one is.
    pub fn about(self) -> &'static str {
        match self {
            Self::Contradiction => "a number that cannot be, or two that cannot both be",
            Self::Suspicion => "probably wrong, but there is an honest way to it",
            Self::Remark => "worth knowing; no more than a last digit, or explained",
        }
    }
}

/// One finding. Its numbers are as printed in the paper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// How much it says. Contradictions come first.
    pub severity: Severity,
    /// The rule that does not hold.
    pub check: Check,
    /// The table, or the tables with commas: `table3, tableA5`.
    pub artifact: String,
    /// The row in words: `llama-3-8b, 7/32, llm-streamline, ghosted, c4`.
    pub row: String,
    /// The metric, or the metrics with commas.
    pub column: String,
    /// What the rule asks for, as printed.
    pub expected: String,
    /// What the tables print.
    pub found: String,
    /// How it may have come about; may be empty.
    pub note: String,
    /// Lines of the data: `table3.csv:2, tableA5.csv:22`.
    pub places: String,
}

impl Finding {
    /// A finding about `condition`, seen at `entries`: their tables, metrics and lines are named, each once.
    pub(super) fn new(check: Check, severity: Severity, condition: &Condition, entries: &[&PaperNumber]) -> Self {
        Self {
            severity,
            check,
            artifact: listed(entries.iter().map(|entry| entry.artifact.clone())),
            row: words(condition),
            column: listed(entries.iter().map(|entry| entry.record.metric.clone())),
            expected: String::new(),
            found: String::new(),
            note: String::new(),
            places: listed(entries.iter().map(|entry| entry.place())),
        }
    }

    /// What is expected, what is found, and how that may have come about.
    pub(super) fn says(self, expected: impl Into<String>, found: impl Into<String>, note: impl Into<String>) -> Self {
        Self { expected: expected.into(), found: found.into(), note: note.into(), ..self }
    }

    /// In a column of this name.
    pub(super) fn in_column(self, column: impl Into<String>) -> Self {
        Self { column: column.into(), ..self }
    }
}

/// With commas, each once, in the order of their first coming.
pub(super) fn listed(items: impl Iterator<Item = String>) -> String {
    distinct(&items.collect::<Vec<_>>()).join(", ")
}

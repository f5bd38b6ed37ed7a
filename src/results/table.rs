//! A table as a person reads it: numbers in rows and columns, with ranks and paired tests. Who lays it out fills it in;
//! what is best in it is found here.

use std::sync::Arc;

use super::factors::distinct;
use super::latency::NOISY;
use super::measurement::{Measurement, Sample};
use super::paired::{self, Paired, PaperComparison};
use crate::metric::{Direction, Metric};
use crate::recovery;

/// Text in place of a number when memory was insufficient.
pub(super) const OUT_OF_MEMORY: &str = "OOM";

/// A table, laid out.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// Above it; may be empty.
    pub title: String,
    /// Below it in Markdown, as it stands.
    pub caption: String,
    /// The columns before the numbers.
    pub lead: Vec<Lead>,
    /// A head over several columns and how many they are; empty where there is none.
    pub groups: Vec<(String, usize)>,
    pub columns: Vec<NumberColumn>,
    /// The columns behind the numbers.
    pub tail: Vec<Lead>,
    pub rows: Vec<TableRow>,
    /// The recovery that every other one of the same selection is tested against; none where ours is, against the best
    /// other.
    pub against: Option<String>,
    /// Values common to all columns of a printed table: backbone, removed layers. May be empty.
    pub scope: String,
    /// How its numbers were made, in a sentence; may be empty.
    pub protocol: String,
    /// Notes below the table in every format.
    pub notes: Vec<String>,
}

/// A column of words or counts next to the numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lead {
    pub head: String,
    /// Whether it holds counts: they stand to the right.
    pub count: bool,
    pub visibility: LeadPlace,
    pub kind: LeadKind,
}

/// Content of a column of words, where print treats it specially.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LeadKind {
    #[default]
    Words,
    /// Same in all rows of one [`TableRow::backbone`]: printed once, spanning them.
    Spanning,
    /// Layers removed, of all.
    Fraction,
    /// An address on the web, where it is one.
    Link,
    /// Remarks on single rows: a terminal shows them below the table.
    Remark,
}

/// In which forms of a table a column of words stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LeadPlace {
    #[default]
    Everywhere,
    /// On the terminal alone: a time is another one in every run.
    Terminal,
    /// Where programs read it: what the label is made of.
    Data,
}

/// A column of numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberColumn {
    pub head: String,
    pub metric: Metric,
    /// Whether print has an arrow to the better side in its head.
    pub arrow: bool,
}

/// A row.
#[derive(Debug, Clone, Default)]
pub struct TableRow {
    /// One text for each lead; empty where there is nothing to say.
    pub lead: Vec<String>,
    /// Rows of one backbone, and in it of one block, stand together.
    pub backbone: usize,
    pub block: usize,
    pub dense: bool,
    pub ours: bool,
    /// Whether print shades it.
    pub shaded: bool,
    /// Whether it heads those below it, so that print has its words bold.
    pub heading: bool,
    /// One for each column; none where the grid has no such cell.
    pub cells: Vec<Option<PrintedNumber>>,
    pub tail: Vec<String>,
}

/// One number in its place.
#[derive(Debug, Clone)]
pub struct PrintedNumber {
    pub measurement: Arc<Measurement>,
    /// The value with the table's decimals, or `failed`.
    pub text: String,
    /// The value behind the text; `None` if the cell failed.
    pub value: Option<f64>,
    /// Among the pruned variants in this column of this block.
    pub best: bool,
    pub second: bool,
    /// Ours against the best other row of the same selection, or what [`Table::against`] says, where both have items.
    pub paired: Option<Paired>,
    /// The paper's value, where it has one for this condition.
    pub comparison: Option<PaperComparison>,
}

impl Lead {
    pub fn text(head: impl Into<String>) -> Self {
        Self { head: head.into(), ..Self::default() }
    }

    pub fn count(head: impl Into<String>) -> Self {
        Self { head: head.into(), count: true, ..Self::default() }
    }

    /// Changes the kind of a column.
    #[must_use]
    pub fn kind(self, kind: LeadKind) -> Self {
        Self { kind, ..self }
    }

    /// Restricts a column to some formats.
    #[must_use]
    pub fn only(self, visibility: LeadPlace) -> Self {
        Self { visibility, ..self }
    }
}

impl PrintedNumber {
    /// Formats a number without rank: a latency or speedup with its spread, or the word for out of memory. `lacking`
    /// replaces missing values. Failed cells have no value.
    pub fn printed(measurement: &Arc<Measurement>, decimals: usize, lacking: &str) -> Self {
        let over_seeds = matches!(measurement.sample, Sample::Seeds(_));
        let text = match measurement.record.value.filter(|_| measurement.failure.is_none()) {
            Some(value) => match spread_text(over_seeds, measurement) {
                Some(error) => {
                    let noisy = if measurement.is_noise() { NOISY } else { "" };
                    format!("{noisy}{} ± {}", Metric::print(value, decimals), Metric::print(error, decimals))
                }
                None => Metric::print(value, decimals),
            },
            None if measurement.sample == Sample::OutOfMemory => OUT_OF_MEMORY.to_owned(),
            None => lacking.to_owned(),
        };
        // Computed from fewer seeds than the others.
        let text = match &measurement.sample {
            Sample::Seeds(seeds)
                if measurement.record.value.is_some() && seeds.iter().any(|seed| seed.value.is_none()) =>
            {
                format!("{text} (n = {})", seeds.iter().filter(|seed| seed.value.is_some()).count())
            }
            _ => text,
        };
        let value = measurement.record.value.map(|value| Metric::printed(value, decimals));
        let value = value.filter(|value| value.is_finite() && measurement.failure.is_none());
        Self {
            measurement: Arc::clone(measurement),
            text,
            value,
            best: false,
            second: false,
            paired: None,
            comparison: None,
        }
    }

    /// Returns the number of seeds of a mean, if it is one.
    pub fn seeds(&self) -> Option<usize> {
        match &self.measurement.sample {
            Sample::Seeds(seeds) => Some(seeds.iter().filter(|seed| seed.value.is_some()).count()),
            _ => None,
        }
    }

    /// Returns `+` if ours is better than the best other row, `-` if worse, empty if not significant.
    pub fn mark(&self) -> &'static str {
        self.paired.as_ref().map_or("", Paired::mark)
    }
}

fn spread_text(over_seeds: bool, measurement: &Measurement) -> Option<f64> {
    measurement.record.error.filter(|_| measurement.metric.is_latency() || over_seeds)
}

impl Table {
    /// Marks the best and the second of each column of each block, and tests ours against the best of the others.
    /// Values that print equally are equal; failed cells, and those whose calibration determines no operator, do not
    /// compete; a column of equal values has no best.
    #[must_use]
    pub fn ranked(mut self) -> Self {
        for block in distinct(self.rows.iter().map(|row| &row.block)) {
            let places = 0..self.rows.len();
            let block: Vec<usize> = places.filter(|&at| self.rows[at].block == block && !self.rows[at].dense).collect();
            (0..self.columns.len()).for_each(|column| self.rank(&block, column));
        }
        self
    }

    fn rank(&mut self, block: &[usize], column: usize) {
        let metric = &self.columns[column].metric;
        // Times within noise of each other have no best.
        if metric.is_latency() {
            return;
        }
        let shown = |at: usize| {
            let shown = self.rows[at].cells[column].as_ref().filter(|shown| !shown.measurement.setup.undetermined)?;
            metric.cost(shown.value?).map(|cost| (cost, &shown.measurement))
        };
        let mut costs: Vec<f64> = block.iter().filter_map(|&at| shown(at)).map(|(cost, _)| cost).collect();
        costs.sort_by(f64::total_cmp);
        costs.dedup();
        // Another row of the same selection, be it without a repair: what else differs is the criterion's merit.
        let runner_up = |measurement: &Measurement| {
            let others = block.iter().filter(|&&at| !self.rows[at].ours).filter_map(|&at| shown(at));
            let others = others.filter(|(_, other)| other.same_selection(measurement));
            others.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, other)| other)
        };
        let named = |measurement: &Measurement, name: &str| {
            let is_named = |measurement: &Measurement| measurement.record.condition.recovery == name;
            let mut others = block.iter().filter_map(|&at| shown(at)).map(|(_, other)| other);
            others.find(|other| !is_named(measurement) && is_named(other) && other.same_selection(measurement))
        };
        let tested = |at: usize| {
            let (_, measurement) = shown(at)?;
            let other = match &self.against {
                Some(name) => named(measurement, name),
                None => runner_up(measurement).filter(|_| self.rows[at].ours),
            };
            paired::test(measurement, other?)
        };
        let found: Vec<(Option<f64>, Option<Paired>)> =
            block.iter().map(|&at| (shown(at).map(|(cost, _)| cost), tested(at))).collect();
        for (&at, (cost, paired)) in block.iter().zip(found) {
            let Some(shown) = &mut self.rows[at].cells[column] else { continue };
            shown.best = costs.len() > 1 && costs.first().copied() == cost;
            shown.second = costs.len() > 2 && costs.get(1).copied() == cost;
            shown.paired = paired;
        }
    }

    /// Iterates over all shown numbers with their rows.
    pub fn shown(&self) -> impl Iterator<Item = (&TableRow, &PrintedNumber)> {
        self.rows.iter().flat_map(|row| row.cells.iter().flatten().map(move |shown| (row, shown)))
    }

    /// Iterates over the lines below the table: protocol and notes.
    pub fn below(&self) -> impl Iterator<Item = &String> {
        Some(&self.protocol).filter(|protocol| !protocol.is_empty()).into_iter().chain(&self.notes)
    }

    /// Removes the paper's values.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.rows.iter_mut().flat_map(|row| row.cells.iter_mut()).flatten().for_each(|shown| shown.comparison = None);
        self
    }

    /// Prepares a table without a description for print: ours shaded, and no words that all rows share.
    #[must_use]
    pub fn printed(&self, title: &str) -> Self {
        let mut table = self.clone();
        table.title = [title, &self.title].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
        // In Markdown it explains each column; that is what the protocol's line says in one.
        table.caption.clear();
        table.rows.iter_mut().for_each(|row| row.shaded = row.ours);
        let kept: Vec<usize> =
            (0..self.tail.len()).filter(|at| distinct(self.rows.iter().map(|row| &row.tail[*at])).len() > 1).collect();
        table.tail = kept.iter().map(|&at| self.tail[at].clone()).collect();
        for (row, original) in table.rows.iter_mut().zip(&self.rows) {
            row.tail = kept.iter().map(|&at| original.tail[at].clone()).collect();
        }
        table
    }

    /// Returns whether anything is ranked. A table of one variant has no best.
    pub fn has_ranks(&self) -> bool {
        self.shown().any(|(_, shown)| shown.best)
    }

    /// Returns whether the paper has a value for any shown number.
    pub fn has_paper(&self) -> bool {
        self.shown().any(|(_, shown)| shown.comparison.is_some())
    }

    /// Explains the signs of paper values that occur in the table.
    pub fn signs(&self) -> String {
        let mut known: Vec<(&str, &str)> = self
            .shown()
            .filter_map(|(_, shown)| shown.comparison.as_ref())
            .map(|comparison| (comparison.verdict.sign(), comparison.verdict.word()))
            .filter(|(sign, _)| !sign.is_empty())
            .collect();
        known.sort_unstable();
        known.dedup();
        let known: Vec<String> = known.into_iter().map(|(sign, word)| format!("{sign} {word}")).collect();
        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
    }

    /// Explains `+` and `-`.
    pub fn marks(&self) -> String {
        match &self.against {
            Some(name) => {
                let name = recovery::label(name);
                format!("better or worse than {name} on the same selection (paired test on the same items, p < 0.05)")
            }
            None => {
                "ours is better or worse than the best other row of the same selection, no repair among them (paired \
                 test on the same items, p < 0.05, not corrected for choosing that row)"
                    .to_owned()
            }
        }
    }

    /// Returns whether any paired test is significant.
    pub fn significant(&self) -> bool {
        self.shown().any(|(_, shown)| shown.paired.as_ref().is_some_and(Paired::significant))
    }
}

impl NumberColumn {
    pub fn of(metric: Metric, head: impl Into<String>) -> Self {
        Self { head: head.into(), metric, arrow: false }
    }

    /// Returns the direction of a header, if there is one.
    pub fn higher_is_better(&self) -> Option<bool> {
        match self.metric.direction {
            Direction::Higher => Some(true),
            Direction::Lower => Some(false),
            Direction::Neither => None,
        }
    }
}

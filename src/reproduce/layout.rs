//! A table as a person reads it: the numbers of an outcome in the rows and columns that a description asks for.

use super::beside::PaperComparison;
use super::ours::Number;
use super::paired::{self, Paired};
use super::setup::protocol_line;
use crate::error::{Error, Result};
use crate::grid::{Description, Lead, TableEntry};
use crate::metric::Metric;
use crate::paper::backbone_label;
use crate::record::{Condition, DENSE, Record};
use crate::{criterion, recovery};

/// A table, laid out.
#[derive(Debug, Clone)]
pub struct View {
    pub title: String,
    pub caption: String,
    /// The heads of the columns before the numbers.
    pub lead: Vec<String>,
    /// A head over several columns and how many they are; empty where there is none.
    pub groups: Vec<(String, usize)>,
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
    /// What stands under the table in every form: how its numbers were made, and what a reader has to know of them.
    pub notes: Vec<String>,
}

/// A column of numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub head: String,
    pub metric: Metric,
    /// The place of its depth among a backbone's depths, where the columns are repeated for each.
    depth: Option<usize>,
}

/// A row.
#[derive(Debug, Clone)]
pub struct Row {
    pub lead: Vec<String>,
    /// Rows of one backbone, and in it of one block, stand together.
    pub backbone: usize,
    pub block: usize,
    pub dense: bool,
    pub ours: bool,
    /// One for each column; none where the grid has no such cell.
    pub cells: Vec<Option<Shown>>,
}

/// One number in its place.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Its place in the list of numbers.
    pub number: usize,
    /// The value with the table's decimals, or `failed`.
    pub text: String,
    /// What a reader takes from the text; none where the cell failed.
    pub value: Option<f64>,
    /// Of the pruned variants in this column of this block.
    pub best: bool,
    pub second: bool,
    /// Ours against the best other repair of the same selection, where both have items.
    pub paired: Option<Paired>,
    /// The paper's value, where it has one for this condition.
    pub beside: Option<PaperComparison>,
}

impl View {
    /// Lays the numbers out. `paper` are the paper's numbers for the same artifact; empty where there are none.
    ///
    /// # Errors
    /// Two cells of the grid that the table cannot tell apart; a metric that there is not.
    pub fn new(description: &Description, table: &TableEntry, numbers: &[Number], paper: &[Record]) -> Result<Self> {
        let mut rows = Vec::new();
        let backbones = distinct(numbers.iter().map(|number| &number.record.condition.backbone));
        let pruned = |backbone: &str| {
            let own = numbers.iter().map(|number| &number.record.condition);
            let own = own.filter(|of| of.backbone == backbone && of.criterion != DENSE);
            own.cloned().collect::<Vec<Condition>>()
        };
        let depths_of = |conditions: &[Condition]| {
            let mut depths = distinct(conditions.iter().map(|of| &of.depth));
            depths.sort_unstable();
            depths
        };
        let most = backbones.iter().map(|backbone| depths_of(&pruned(backbone)).len()).max().unwrap_or(0);
        let metric = |id: &String| match numbers.iter().find(|number| number.metric.id == *id) {
            Some(number) => Ok(number.metric.clone()),
            None => Metric::find(id),
        };
        let asked = table.metrics.iter().map(metric).collect::<Result<Vec<_>>>()?;
        // Beside perplexities of unlike vocabularies stand the bits per byte, where there are any.
        let beside = |metric: &Metric| {
            let id = metric.id.strip_prefix("ppl_").map(|text| Metric::bits_per_byte(text).id)?;
            numbers.iter().find(|number| number.metric.id == id).map(|number| number.metric.clone())
        };
        let metrics: Vec<Metric> = asked.iter().flat_map(|of| [Some(of.clone()), beside(of)]).flatten().collect();
        let (groups, columns) = heads(table, &metrics, &backbones, most, |backbone| depths_of(&pruned(backbone)));
        let mut block = 0;
        for (place, backbone) in backbones.iter().enumerate() {
            let conditions = pruned(backbone);
            let depths = depths_of(&conditions);
            let mut add = |dense: bool, at: &[Condition], block: usize| -> Result<()> {
                let cells =
                    columns.iter().map(|column| find(numbers, at, column, dense)).collect::<Result<Vec<_>>>()?;
                if cells.iter().all(Option::is_none) {
                    return Ok(());
                }
                let ours = at.iter().any(|of| recovery::is_ours(&of.recovery));
                let lead = table.lead.iter().map(|lead| lead_text(*lead, at, table)).collect();
                let cells = cells.into_iter().map(|number| number.map(|of| shown(of, &numbers[of], table))).collect();
                rows.push(Row { lead, backbone: place, block, dense, ours, cells });
                Ok(())
            };
            if table.dense {
                let dense = numbers.iter().map(|number| &number.record.condition);
                let dense = dense.filter(|of| of.backbone == *backbone && of.criterion == DENSE).take(1);
                add(true, &dense.cloned().collect::<Vec<_>>(), block)?;
                block += 1;
            }
            let steps: Vec<Vec<usize>> = match table.across_depths {
                true => vec![depths],
                false => depths.into_iter().map(|depth| vec![depth]).collect(),
            };
            for step in steps {
                for entry in &table.rows {
                    for (criterion, recovery) in
                        entry.criterion.iter().flat_map(|c| entry.recovery.iter().map(move |r| (c, r)))
                    {
                        let same = |of: &&Condition| of.criterion == *criterion && of.recovery == *recovery;
                        let own: Vec<&Condition> = conditions.iter().filter(same).collect();
                        for calibration in distinct(own.iter().map(|of| &of.calibration)) {
                            let at = |of: &&&Condition| of.calibration == calibration && step.contains(&of.depth);
                            let mut at: Vec<Condition> = own.iter().filter(at).map(|of| (*of).clone()).collect();
                            at.sort();
                            at.dedup();
                            add(false, &at, block)?;
                        }
                    }
                    // Columns for each depth leave blocks to the entries.
                    block += usize::from(table.across_depths);
                }
                block += usize::from(!table.across_depths);
            }
        }
        let mut view = Self {
            title: description.title.clone(),
            caption: description.caption.clone().unwrap_or_default(),
            lead: table.lead.iter().map(|lead| head(*lead).to_owned()).collect(),
            groups,
            columns,
            rows,
            notes: Vec::new(),
        };
        view.rank(numbers);
        view.compare(numbers, paper, description);
        Ok(view)
    }

    /// Marks the best and the second of each column of each block, and tests ours against the best of the others.
    fn rank(&mut self, numbers: &[Number]) {
        let blocks = distinct(self.rows.iter().map(|row| &row.block));
        for block in blocks {
            for (column, head) in self.columns.iter().enumerate() {
                // What prints alike is alike; a cell that failed is no rival.
                let value = |row: &Row| {
                    let shown = row.cells[column].as_ref()?;
                    let printed = shown.value?;
                    head.metric.cost(printed).map(|cost| (cost, shown.number))
                };
                let in_block: Vec<usize> =
                    (0..self.rows.len()).filter(|&at| self.rows[at].block == block && !self.rows[at].dense).collect();
                let mut values: Vec<f64> =
                    in_block.iter().filter_map(|&at| value(&self.rows[at])).map(|(value, _)| value).collect();
                values.sort_by(f64::total_cmp);
                values.dedup();
                // Another repair of the same selection: what else differs is the criterion's merit.
                let criterion = |number: usize| &numbers[number].record.condition.criterion;
                let runner_up = |own: usize| {
                    let others = in_block.iter().filter(|&&at| !self.rows[at].ours);
                    let others = others.filter_map(|&at| value(&self.rows[at]));
                    let others = others.filter(|(_, other)| criterion(*other) == criterion(own));
                    others.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, of)| of)
                };
                let paired: Vec<Option<Paired>> = in_block
                    .iter()
                    .map(|&at| {
                        let (_, own) = value(&self.rows[at]).filter(|_| self.rows[at].ours)?;
                        paired::test(&numbers[own], &numbers[runner_up(own)?])
                    })
                    .collect();
                for (&at, paired) in in_block.iter().zip(paired) {
                    let own = value(&self.rows[at]);
                    let Some(shown) = &mut self.rows[at].cells[column] else { continue };
                    let Some((own, _)) = own else { continue };
                    // A column in which all are the same has no best.
                    shown.best = values.len() > 1 && values[0] == own;
                    shown.second = values.len() > 2 && values[1] == own;
                    shown.paired = paired;
                }
            }
        }
    }

    fn compare(&mut self, numbers: &[Number], paper: &[Record], description: &Description) {
        for shown in self.rows.iter_mut().flat_map(|row| row.cells.iter_mut()).flatten() {
            shown.beside = PaperComparison::of(&numbers[shown.number], paper, &description.tolerance);
        }
    }

    /// The line of protocols, and what has to be said besides.
    pub fn noted(mut self, profile: &str, numbers: &[Number], besides: Vec<String>) -> Self {
        let shown: Vec<&Number> = self.shown().map(|(_, shown)| &numbers[shown.number]).collect();
        let line = protocol_line(profile, shown);
        self.notes =
            Some(line).filter(|line| !line.is_empty()).map(|line| format!("Protocol: {line}.")).into_iter().collect();
        self.notes.extend(besides);
        self
    }

    /// Everything that is shown, with its row.
    pub fn shown(&self) -> impl Iterator<Item = (&Row, &Shown)> {
        self.rows.iter().flat_map(|row| row.cells.iter().flatten().map(move |shown| (row, shown)))
    }

    /// Whether the paper has a value for anything that is shown.
    pub fn has_paper(&self) -> bool {
        self.shown().any(|(_, shown)| shown.beside.is_some())
    }

    /// What the signs beside the paper's values mean: those that the table has.
    pub fn signs(&self) -> String {
        let mut known: Vec<(&str, &str)> = self
            .shown()
            .filter_map(|(_, shown)| shown.beside.as_ref())
            .map(|beside| (beside.verdict.sign(), beside.verdict.word()))
            .filter(|(sign, _)| !sign.is_empty())
            .collect();
        known.sort_unstable();
        known.dedup();
        let known: Vec<String> = known.into_iter().map(|(sign, word)| format!("{sign} {word}")).collect();
        if known.is_empty() { "none".to_owned() } else { known.join(", ") }
    }

    /// Whether a paired test says that ours and the best other differ, anywhere.
    pub fn significant(&self) -> bool {
        self.shown().any(|(_, shown)| shown.paired.as_ref().is_some_and(Paired::significant))
    }
}

/// The columns, and the heads over them.
fn heads(
    table: &TableEntry,
    metrics: &[Metric],
    backbones: &[String],
    most: usize,
    depths: impl Fn(&str) -> Vec<usize>,
) -> (Vec<(String, usize)>, Vec<Column>) {
    let of = |depth: Option<usize>| {
        metrics.iter().map(move |metric| Column { head: metric.label.clone(), metric: metric.clone(), depth })
    };
    if !table.across_depths {
        return (Vec::new(), of(None).collect());
    }
    let group = |place: usize| {
        let counts = distinct(
            backbones.iter().filter_map(|backbone| depths(backbone).get(place).copied()).collect::<Vec<_>>().iter(),
        );
        let counts: Vec<String> = counts.iter().map(|depth: &usize| format!("{depth}-layer")).collect();
        (counts.join(", "), metrics.len())
    };
    ((0..most).map(group).collect(), (0..most).flat_map(|place| of(Some(place))).collect())
}

/// The place of the number that belongs into a column of a row.
fn find(numbers: &[Number], at: &[Condition], column: &Column, dense: bool) -> Result<Option<usize>> {
    let condition = match column.depth {
        Some(_) if dense => at.first(),
        Some(place) => at.get(place),
        None => at.first(),
    };
    let Some(condition) = condition else { return Ok(None) };
    let fits = |number: &&Number| number.record.condition == *condition && number.metric.id == column.metric.id;
    let mut found = numbers.iter().enumerate().filter(|(_, number)| fits(number));
    match (found.next(), found.next()) {
        (Some((place, _)), None) => Ok(Some(place)),
        (Some(_), Some(_)) => Err(Error::bad_input("a table cannot tell two cells of its grid apart")
            .at(format!("{condition:?}"))
            .expected("cells that differ in what the table names")
            .found("cells that differ in an option or in the calibration's size")
            .hint("name the option in the artifact's `named_options`, or leave one of the cells out")),
        // A cell without any score has failed; it still has its row.
        (None, _) => {
            Ok(numbers.iter().position(|number| number.record.condition == *condition && number.failure.is_some()))
        }
    }
}

fn shown(place: usize, number: &Number, table: &TableEntry) -> Shown {
    let decimals = table.decimals;
    let value = number.record.value.filter(|_| number.failure.is_none());
    let text = value.map_or("failed".to_owned(), |value| Metric::print(value, decimals));
    let value = value.map(|value| Metric::printed(value, decimals));
    Shown { number: place, text, value, best: false, second: false, paired: None, beside: None }
}

fn head(lead: Lead) -> &'static str {
    match lead {
        Lead::Backbone => "Model",
        Lead::Depth => "Lp/Lt",
        Lead::Method => "Method",
        Lead::Sequences => "Num. of sequences",
    }
}

fn lead_text(lead: Lead, at: &[Condition], table: &TableEntry) -> String {
    let Some(condition) = at.first() else { return String::new() };
    match lead {
        Lead::Backbone => backbone_label(&condition.backbone).to_owned(),
        Lead::Depth => format!("{}/{}", condition.depth, condition.layers),
        Lead::Method if condition.recovery == recovery::NONE => criterion::label(&condition.criterion).to_owned(),
        // Beside several criteria a recovery stands below the one that it repairs.
        Lead::Method if table.across_depths => format!("+ {}", recovery::label(&condition.recovery)),
        Lead::Method => recovery::label(&condition.recovery).to_owned(),
        Lead::Sequences => condition.calibration.split(':').nth(1).unwrap_or(&condition.calibration).to_owned(),
    }
}

/// Each value once, in the order of first appearance.
pub(super) fn distinct<'a, T: Clone + PartialEq + 'a>(values: impl IntoIterator<Item = &'a T>) -> Vec<T> {
    let mut all: Vec<T> = Vec::new();
    for value in values {
        if !all.contains(value) {
            all.push(value.clone());
        }
    }
    all
}

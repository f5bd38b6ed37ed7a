//! Counts in how many settings a method is best: for one calibration seed, with statistical significance, and on
//! average over several seeds.

use std::fmt;

use super::aggregate_seeds::mean;
use super::number_record::{Condition, Record};
use super::paired;
use super::result_row::ResultRow;
use super::same_measurement::{RowContent, is_one_measurement};
use super::settings::{SEED, distinct, group_by_key};
use super::stored::StoredResults;
use crate::metric::Metric;

/// Metric, method and settings for which [`BestCounts`] counts how often the method is best.
#[derive(Clone, Copy)]
pub struct BestQuestion<'a> {
    pub metric: &'a str,
    /// Name of the recovery whose wins are counted.
    pub method: &'a str,
    /// Filter that selects the rows to compare.
    pub keeps: &'a dyn Fn(&Condition) -> bool,
    /// Function that returns the fields by which conditions are grouped into settings. Calibration and fine-tuning are
    /// always among these fields.
    pub group_by: &'a dyn Fn(&Condition) -> Vec<String>,
}

/// Number of settings in which a method is best.
#[derive(Debug, Clone, PartialEq)]
pub struct BestCounts {
    /// Total number of settings.
    pub settings: usize,
    /// Number of settings in which no other recovery is better, as printed.
    pub best: usize,
    /// Number of settings in which the best row of any other recovery is significantly worse. `None` if no setting
    /// could be tested.
    pub significant: Option<usize>,
    /// Calibration seed, or `None` if the rows have different seeds.
    pub seed: Option<u64>,
    /// Counts over several seeds, or `None` if any setting was measured for only one seed.
    pub over_seeds: Option<SeedCounts>,
    /// Condition of the best row in each setting where the method is not best.
    pub ahead: Vec<Condition>,
}

/// Counts based on means over several calibration seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeedCounts {
    pub seeds: usize,
    pub best: usize,
}

impl BestCounts {
    /// Counts the settings in a run. `seeds` is a run with the same rows for several calibration seeds. Returns `None`
    /// if no setting has rows of both the method and another recovery.
    pub fn new(run: &StoredResults, seeds: Option<&StoredResults>, question: BestQuestion<'_>) -> Option<Self> {
        let metric = Metric::find(question.metric).ok()?;
        let settings: Vec<Setting<'_>> = Setting::collect_distinct(run, &metric, question);
        let first = settings.first()?;
        let tests: Vec<bool> = settings.iter().filter_map(Setting::is_significant).collect();
        Some(Self {
            settings: settings.len(),
            best: settings.iter().filter(|setting| !setting.is_behind).count(),
            significant: (!tests.is_empty()).then(|| tests.iter().filter(|test| **test).count()),
            seed: setting_seed(run, first)
                .filter(|first| settings.iter().all(|other| setting_seed(run, other) == Some(*first))),
            over_seeds: seeds.and_then(|seeds| SeedCounts::new(&settings, seeds, &metric, question)),
            ahead: settings
                .iter()
                .filter(|setting| setting.is_behind)
                .map(|setting| setting.rival.record.condition.clone())
                .collect(),
        })
    }

    /// Formats the number of settings in which the method is significantly best, and in which it is best over several
    /// seeds. Example: `significantly in 1 of 6; over five seeds in 2 of 6`.
    pub fn significance_text(&self) -> String {
        let total = self.settings;
        let significant = match self.significant {
            Some(count) => format!("significantly in {count} of {total}"),
            None => "significance not tested".to_owned(),
        };
        match self.over_seeds {
            Some(SeedCounts { seeds, best }) => {
                format!("{significant}; over {} seeds in {best} of {total}", spell_out(seeds))
            }
            None => format!("{significant}; not measured over seeds"),
        }
    }
}

fn setting_seed(run: &StoredResults, setting: &Setting<'_>) -> Option<u64> {
    run.number_settings(setting.number).get(SEED).and_then(serde_json::Value::as_u64)
}

/// Formats the counts, as in `5 of 6 on seed 0, significantly in 1 of 6; over five seeds in 2 of 6`.
impl fmt::Display for BestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.seed.map_or_else(String::new, |seed| format!(" on seed {seed}"));
        write!(f, "{} of {}{seed}, {}", self.best, self.settings, self.significance_text())
    }
}

/// Rows of one setting: that of the method, and those of the other recoveries.
struct Setting<'a> {
    key: Vec<String>,
    records: Vec<&'a Record>,
    /// Row of the method.
    number: &'a ResultRow,
    /// Best row of any other recovery.
    rival: &'a ResultRow,
    /// Whether the rival is better than the method, as printed.
    is_behind: bool,
}

impl<'a> Setting<'a> {
    /// Groups the rows of a run into settings. Skips settings without the method or without another recovery.
    fn collect_distinct(run: &'a StoredResults, metric: &Metric, question: BestQuestion<'_>) -> Vec<Self> {
        let rows = run.numbers.iter().filter(|number| matches_question(number, question));
        let groups = group_by_key(rows.map(|rows| (setting_key(&rows.record.condition, question), rows)));
        let mut settings: Vec<Self> = Vec::new();
        for (key, rows) in groups {
            // Criteria that remove the same layers share one measurement, so they are counted only once.
            let setting = Self::new(key, &rows, metric, question.method);
            settings.extend(setting.filter(|setting| !settings.iter().any(|other| setting.is_copy_of(other))));
        }
        settings
    }

    fn new(key: Vec<String>, rows: &[&'a ResultRow], metric: &Metric, method: &str) -> Option<Self> {
        let number = *rows.iter().find(|number| uses_method(method, number))?;
        let others = rows
            .iter()
            .filter(|row| !uses_method(method, row))
            .filter_map(|row| Some((printed_cost(metric, row)?, *row)));
        let (best, rival) = others.min_by(|(one, _), (other, _)| one.total_cmp(other))?;
        Some(Self {
            records: rows.iter().map(|row| &row.record).collect(),
            key,
            number,
            rival,
            is_behind: best < printed_cost(metric, number)?,
        })
    }

    fn is_copy_of(&self, other: &Self) -> bool {
        let [ours, other] = [self, other].map(|row| RowContent::scores(row.records.iter().copied()));
        is_one_measurement(&ours, &other)
    }

    fn is_significant(&self) -> Option<bool> {
        let paired = paired::paired_test(self.number, self.rival)?;
        Some(paired.mark() == "+")
    }
}

fn uses_method(method: &str, number: &&&ResultRow) -> bool {
    number.record.condition.recovery == method
}

impl SeedCounts {
    fn new(
        settings: &[Setting<'_>],
        seeds: &StoredResults,
        metric: &Metric,
        question: BestQuestion<'_>,
    ) -> Option<Self> {
        let rows = seeds.numbers.iter().filter(|number| matches_question(number, question));
        let values =
            group_by_key(rows.map(|rows| (rows.record.condition.clone(), rows.record.value.unwrap_or_default())));
        let mut best = 0;
        for setting in settings {
            let setting_rows: Vec<&(Condition, Vec<f64>)> =
                values.iter().filter(|(condition, _)| setting_key(condition, question) == setting.key).collect();
            if !setting
                .records
                .iter()
                .map(|record| &record.condition)
                .all(|wanted| setting_rows.iter().any(|(condition, _)| condition == wanted))
            {
                return None;
            }
            let means = setting_rows.iter().map(|(condition, values)| Some((condition, mean_cost(metric, values)?)));
            let means: Vec<(&Condition, f64)> = means.collect::<Option<_>>()?;
            let min_cost = means.iter().map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
            best += usize::from(
                means.iter().any(|(condition, cost)| condition.recovery == question.method && *cost <= min_cost),
            );
        }
        let counts: Vec<usize> = values.iter().map(|(_, values)| values.len()).collect();
        match distinct(&counts).as_slice() {
            [seeds] if *seeds > 1 => Some(Self { seeds: *seeds, best }),
            _ => None,
        }
    }
}

fn matches_question(number: &ResultRow, question: BestQuestion<'_>) -> bool {
    let condition = &number.record.condition;
    number.record.metric == question.metric
        && condition.depth > 0
        && number.failure.is_none()
        && number.record.value.is_some()
        && (question.keeps)(condition)
}

fn setting_key(condition: &Condition, question: BestQuestion<'_>) -> Vec<String> {
    let mut key = (question.group_by)(condition);
    key.extend([condition.calibration.clone(), condition.finetuned.to_string()]);
    key
}

/// Returns the cost of a number, rounded as printed. A lower cost is better. Returns `None` if the number has no value
/// or its metric no direction.
fn printed_cost(metric: &Metric, number: &ResultRow) -> Option<f64> {
    metric.cost(Metric::round_to_printed(number.record.value?, metric.decimals))
}

fn mean_cost(metric: &Metric, values: &[f64]) -> Option<f64> {
    metric.cost(Metric::round_to_printed(mean(values)?, metric.decimals))
}

/// Formats a count. Counts up to ten are spelled out.
fn spell_out(count: usize) -> String {
    const WORDS: [&str; 11] = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    WORDS.get(count).map_or_else(|| count.to_string(), |word| (*word).to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::Sample;
    use super::*;

    /// Builds an average over two tasks. In each task, `right` of 50 answers are correct.
    fn number(depth: usize, recovery: &str, right: usize, cell: &str) -> ResultRow {
        let condition = Condition {
            backbone: "a".into(),
            layers: 16,
            depth,
            unit: crate::criterion::DepthUnit::Layers,
            criterion: "llm-streamline".into(),
            recovery: recovery.into(),
            finetuned: false,
            calibration: "c4".into(),
        };
        let metric = "acc_average".to_owned();
        let record = Record { condition, metric, value: Some(2.0 * right as f64), error: None };
        ResultRow { sample: Sample::Answers(vec![answers(right), answers(right)]), ..ResultRow::new(record, cell) }
    }

    fn answers(right: usize) -> Vec<bool> {
        (0..50).map(|index| index < right).collect()
    }

    fn run(numbers: Vec<ResultRow>) -> StoredResults {
        StoredResults { numbers, ..StoredResults::default() }
    }

    fn counts(main: Vec<ResultRow>, seeds: Option<Vec<ResultRow>>) -> BestCounts {
        let question = BestQuestion {
            metric: "acc_average",
            method: "ghosted",
            keeps: &|_| true,
            group_by: &|condition| vec![condition.backbone.clone(), condition.depth.to_string()],
        };
        BestCounts::new(&run(main), seeds.map(run).as_ref(), question).unwrap()
    }

    fn main() -> Vec<ResultRow> {
        vec![
            // `ghosted` is far ahead of the unrepaired row at depth 4, slightly ahead at depth 6, and behind at depth
            // 8.
            number(4, "ghosted", 45, "a"),
            number(4, "none", 10, "b"),
            number(6, "ghosted", 31, "c"),
            number(6, "none", 30, "d"),
            number(8, "ghosted", 20, "e"),
            number(8, "none", 22, "f"),
        ]
    }

    #[test]
    fn best_counts_include_significance_and_seeds() {
        let mut seeds = Vec::new();
        for (seed, shift) in [("0", 0), ("1", 6)] {
            for mut number in main() {
                let is_ours = number.record.condition.recovery == "ghosted";
                number.cell = format!("{}@{seed}", number.cell);
                // With the second seed, our method is worse at all depths except the first.
                if is_ours && number.record.condition.depth > 4 {
                    number.record.value = number.record.value.map(|value| value - f64::from(shift));
                }
                seeds.push(number);
            }
        }
        let counts = counts(main(), Some(seeds));
        assert_eq!((counts.best, counts.settings, counts.significant), (2, 3, Some(1)));
        assert_eq!(counts.over_seeds, Some(SeedCounts { seeds: 2, best: 1 }));
        assert_eq!(counts.to_string(), "2 of 3, significantly in 1 of 3; over two seeds in 1 of 3");
        assert_eq!(
            counts.ahead.iter().map(|condition| (condition.depth, condition.recovery.as_str())).collect::<Vec<_>>(),
            [(8, "none")]
        );
    }

    #[test]
    fn criteria_with_equal_measurements_count_once() {
        let mut numbers = main();
        numbers.push(number(4, "replaceme-ls", 20, "g"));
        let mut copies = numbers.clone();
        copies.iter_mut().for_each(|copy| copy.record.condition.criterion = "shortgpt".into());
        numbers.extend(copies);
        let question = BestQuestion {
            metric: "acc_average",
            method: "ghosted",
            keeps: &|_| true,
            group_by: &|condition| vec![condition.criterion.clone(), condition.depth.to_string()],
        };
        let counts = BestCounts::new(&run(numbers), None, question).unwrap();
        // At the other depths, only two rows are equal. This is not enough to conclude that the criteria share one
        // measurement.
        assert_eq!((counts.settings, counts.best), (5, 3));
    }

    #[test]
    fn best_counts_state_missing_tests_and_seeds() {
        let mut numbers = main();
        numbers.iter_mut().for_each(|number| number.sample = Sample::None);
        let seeds = [main(), main()].map(|numbers| numbers[..2].to_vec()).concat();
        assert_eq!(
            counts(numbers, Some(seeds)).to_string(),
            "2 of 3, significance not tested; not measured over seeds"
        );
    }
}

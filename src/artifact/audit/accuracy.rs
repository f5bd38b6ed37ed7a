//! Checks whether printed accuracies and means are possible, and whether they are above chance.

use super::row::{AuditColumns, AuditRow, AuditTask, EPSILON, agree};
use super::{Check, Finding, Severity};
use crate::artifact::paper::PaperNumber;

/// Returns every count of correct answers whose accuracy rounds to the printed value, with that accuracy in percent.
/// Returns `None` if the entry has no value, or if its metric is not a task with a known document count.
///
/// Ties may be rounded either way. HellaSwag has over 10,000 documents, so every value with two decimals is possible,
/// and some match two counts.
fn possible_counts(entry: &PaperNumber, columns: &AuditColumns) -> Option<Vec<(usize, f64)>> {
    let (documents, value) = documents_and_accuracy(entry, columns)?;
    Some(
        counts_near(documents, value, entry.unit())
            .filter(|(_, accuracy)| rounds_to(entry, value, *accuracy))
            .collect(),
    )
}

/// Returns whether an accuracy rounds to the value of an entry.
fn rounds_to(entry: &PaperNumber, value: f64, accuracy: f64) -> bool {
    (accuracy - value).abs() <= entry.unit() / 2.0 + EPSILON
}

fn documents_and_accuracy(entry: &PaperNumber, columns: &AuditColumns) -> Option<(usize, f64)> {
    Some((columns.task(&entry.record.metric)?.documents?, entry.record.value?))
}

/// Returns the counts of correct answers whose accuracies in percent are within `half_width` of `value`, plus one
/// neighbor on each side, each with its accuracy.
fn counts_near(documents: usize, value: f64, half_width: f64) -> impl Iterator<Item = (usize, f64)> + use<> {
    let total = documents as f64;
    // Float-to-integer casts saturate. A value below 0 therefore yields the counts 0 and 1, and a value above 100
    // yields only the last count.
    let [first, last] =
        [value - half_width, value + half_width].map(|percent| (percent / 100.0 * total).floor() as usize);
    let last = last.saturating_add(1).min(documents);
    (first.min(documents)..=last).map(move |count| (count, 100.0 * count as f64 / total))
}

pub(super) fn check_counts(entries: &[PaperNumber], columns: &AuditColumns, findings: &mut Vec<Finding>) {
    for entry in entries {
        let is_impossible = possible_counts(entry, columns).is_some_and(|counts| counts.is_empty());
        let Some((documents, value)) = documents_and_accuracy(entry, columns).filter(|_| is_impossible) else {
            continue;
        };
        let decimals = entry.decimals();
        let below = counts_near(documents, value, entry.unit()).filter(|(_, accuracy)| *accuracy < value).last();
        let above = counts_near(documents, value, entry.unit()).find(|(_, accuracy)| *accuracy > value);
        let neighbors: Vec<(usize, f64)> = below.into_iter().chain(above).collect();
        let shown: Vec<String> =
            neighbors.iter().map(|(count, accuracy)| format!("{accuracy:.decimals$} ({count}/{documents})")).collect();
        let (severity, note) = judge_count(entry, value, &neighbors);
        let finding = Finding::new(Check::Count, severity, &entry.record.condition, &[entry]);
        findings.push(finding.with_texts(shown.join(" or "), &entry.printed, note));
    }
}

/// Returns the severity of a value that matches no count of correct answers, and its most likely explanation.
fn judge_count(entry: &PaperNumber, value: f64, neighbors: &[(usize, f64)]) -> (Severity, &'static str) {
    let unit = entry.unit();
    if neighbors.iter().any(|(_, accuracy)| ((accuracy / unit + EPSILON).floor() * unit - value).abs() < EPSILON) {
        return (Severity::Remark, "the accuracy of the higher count, truncated instead of rounded");
    }
    if entry.printed.ends_with('0')
        && neighbors.iter().any(|(_, accuracy)| (accuracy - value).abs() <= 5.0 * unit + EPSILON)
    {
        return (Severity::Suspicion, "the accuracy of a count, rounded to one digit less");
    }
    (Severity::Contradiction, "no number of correct answers gives this accuracy")
}

/// Maximum distance from the chance accuracy, in standard errors, at which a score still counts as chance.
const MAX_CHANCE_DISTANCE: f64 = 3.0;

/// Finds rows in which all task accuracies are at chance level, for example after a numeric overflow. Skips incomplete
/// rows.
pub(super) fn check_chance(rows: &[AuditRow], findings: &mut Vec<Finding>) {
    for row in rows {
        let Some(cells) = row.get_all(&row.columns.task_names()).filter(|cells| !cells.is_empty()) else { continue };
        let mut distances = cells.iter().map(|(cell, value)| chance_distance(row, cell, *value));
        let farthest = distances.try_fold(0.0, |largest: f64, distance| Some(largest.max(distance?)));
        let Some(farthest) = farthest.filter(|distance| *distance <= MAX_CHANCE_DISTANCE) else { continue };
        let cells: Vec<&PaperNumber> = cells.iter().map(|(cell, _)| *cell).collect();
        let all = if cells.len() == 9 { "all nine".to_owned() } else { format!("all {}", cells.len()) };
        let note = match is_constant_answer(row) {
            true => {
                let shown = fixed_label_tasks(row)
                    .filter_map(|column| Some(format!("{} {}", column.label, row.get(&column.name)?.0.printed)));
                let shown = shown.collect::<Vec<_>>().join(", ");
                format!(
                    "{shown} are exactly the shares of one label: always the same answer, as when all scores are equal or \
                     not a number"
                )
            }
            false => "the model has collapsed".to_owned(),
        };
        let found = format!("{all} within {farthest:.1} standard errors of chance");
        let finding = Finding::new(Check::Chance, Severity::Suspicion, row.condition, &cells);
        findings.push(finding.with_texts("a task above chance", found, note).in_column(format!("{all} tasks")));
    }
}

/// Computes the distance of a value from the nearest chance accuracy of its task, in standard errors. Returns `None` if
/// the task or its chance accuracy is unknown.
fn chance_distance(row: &AuditRow, cell: &PaperNumber, value: f64) -> Option<f64> {
    let task = row.columns.task(&cell.record.metric).filter(|task| !task.chance.is_empty())?;
    let documents = task.documents? as f64;
    let errors = task.chance.iter().map(|chance| {
        let probability = chance / 100.0;
        (value - chance).abs() / (100.0 * (probability * (1.0 - probability) / documents).sqrt())
    });
    Some(errors.fold(f64::INFINITY, f64::min))
}

/// Returns the tasks in which all documents have the same answer choices, such as yes and no.
fn fixed_label_tasks<'a>(row: &AuditRow<'a>) -> impl Iterator<Item = &'a AuditTask> + use<'a> {
    row.columns.tasks.iter().filter(|task| task.chance.len() > 1)
}

/// Returns whether the score of every fixed-label task equals the frequency of one label to the last printed digit. A
/// model that gives the same answer to every document has such scores.
fn is_constant_answer(row: &AuditRow) -> bool {
    let mut fixed = fixed_label_tasks(row).peekable();
    fixed.peek().is_some()
        && fixed.all(|task| {
            row.get(&task.name).is_some_and(|(cell, value)| {
                task.chance[1..].iter().any(|frequency| rounds_to(cell, value, *frequency))
            })
        })
}

/// Returns whether the task accuracies of two rows are equal and all at chance level.
pub(super) fn are_both_at_chance(one: &AuditRow, other: &AuditRow) -> bool {
    one.get_all(&one.columns.task_names()).is_some_and(|cells| {
        !cells.is_empty()
            && cells.iter().all(|(cell, value)| {
                chance_distance(one, cell, *value).is_some_and(|errors| errors <= MAX_CHANCE_DISTANCE)
                    && other.get(&cell.record.metric).is_some_and(|(twin, _)| agree(cell, twin))
            })
    })
}

/// Checks that every printed mean is the mean of its columns. Skips incomplete rows.
///
/// Rounding moves each column, and thus their mean, by at most half a unit of the last digit. Rounding the mean itself
/// adds another half unit.
///
/// If the accuracies determine the counts of correct answers, the true mean is known and only the second half unit
/// applies. A mean that fails only this stricter test was computed from rounded columns and is reported as a remark.
pub(super) fn check_averages(rows: &[AuditRow], findings: &mut Vec<Finding>) {
    for row in rows {
        let columns = row.columns;
        for (average, parts) in [(&columns.accuracy, columns.task_names()), (&columns.perplexity, columns.text_names())]
        {
            let (Some((cell, printed)), Some(parts)) = (row.get(average), row.get_all(&parts)) else { continue };
            if parts.is_empty() {
                continue;
            }
            if let Some((severity, mean, note)) = judge_average(cell, printed, &parts, columns) {
                let finding = Finding::new(Check::Average, severity, row.condition, &[cell]);
                findings.push(finding.with_texts(mean, &cell.printed, note));
            }
        }
    }
}

/// Compares a printed mean with the mean of its columns. Returns the severity, the expected mean and a note, or `None`
/// if rounding explains any difference.
fn judge_average(
    cell: &PaperNumber,
    printed: f64,
    parts: &[(&PaperNumber, f64)],
    columns: &AuditColumns,
) -> Option<(Severity, String, String)> {
    let half = cell.unit() / 2.0;
    let printed_mean = mean(&parts.iter().map(|part| part.1).collect::<Vec<_>>());
    let tolerance = half + mean(&parts.iter().map(|part| part.0.unit() / 2.0).collect::<Vec<_>>());
    if (printed_mean - printed).abs() > tolerance + EPSILON {
        let note =
            format!("the mean of {} printed columns, which rounding moves by at most {tolerance:.3}", parts.len());
        return Some((Severity::Contradiction, format!("{printed_mean:.4}"), note));
    }
    let (lows, highs): (Vec<f64>, Vec<f64>) =
        parts.iter().map(|part| accuracy_range(part.0, columns)).collect::<Option<Vec<_>>>()?.into_iter().unzip();
    let low = mean(&lows);
    let high = mean(&highs);
    if (low - half - EPSILON..=high + half + EPSILON).contains(&printed) {
        return None;
    }
    let expected = if high - low < EPSILON { format!("{low:.4}") } else { format!("{low:.4} to {high:.4}") };
    let note = "the mean of the exact accuracies; the printed one is the mean of the rounded columns";
    Some((Severity::Remark, expected, note.to_owned()))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Returns the lowest and highest accuracy, in percent, that round to a printed cell. Returns `None` if there is none
/// or the document count is unknown.
fn accuracy_range(entry: &PaperNumber, columns: &AuditColumns) -> Option<(f64, f64)> {
    let counts = possible_counts(entry, columns)?;
    Some((counts.first()?.1, counts.last()?.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::audit::paper_test::entries;
    use crate::metric;
    use crate::tasks::{TASKS, Task};

    fn count_severity(task: &str, printed: &str) -> Option<(Severity, String)> {
        let mut findings = Vec::new();
        check_counts(
            &entries("t", "b,32,7,sleb,none,false,c4", &[(task, printed)]),
            AuditColumns::paper(),
            &mut findings,
        );
        findings.pop().map(|finding| (finding.severity, finding.expected))
    }

    fn paper_tasks() -> impl Iterator<Item = &'static Task> {
        TASKS.iter().filter(|task| task.in_paper)
    }

    #[test]
    fn every_correct_count_gives_a_possible_accuracy() {
        for task in paper_tasks() {
            for count in (0..=task.documents).step_by(7).chain([task.documents]) {
                let printed = format!("{:.2}", 100.0 * count as f64 / task.documents as f64);
                assert_eq!(count_severity(task.name, &printed), None, "{count} of {}", task.name);
            }
        }
    }

    #[test]
    fn no_accuracy_is_a_rounding_tie_at_two_decimals() {
        for task in paper_tasks() {
            // The value is exactly halfway between two numbers with two decimals if it is an odd multiple of 1/20000.
            assert_eq!(
                (0..=task.documents).find(|count: &usize| {
                    let parts = 20_000 * count;
                    let documents = task.documents;
                    parts.is_multiple_of(documents) && !(parts / documents).is_multiple_of(2)
                }),
                None,
                "{}",
                task.name
            );
        }
    }

    #[test]
    fn openbookqa_accuracy_must_be_a_multiple_of_a_fifth() {
        for fifth in 0..500 {
            for (hundredths, possible) in [(0, true), (7, false), (10, false), (13, false)] {
                let value = fifth * 20 + hundredths;
                let printed = format!("{}.{:02}", value / 100, value % 100);
                assert_eq!(count_severity("openbookqa", &printed).is_none(), possible, "{printed}");
            }
        }
        assert_eq!(
            count_severity("openbookqa", "37.87"),
            Some((Severity::Contradiction, "37.80 (189/500) or 38.00 (190/500)".to_owned()))
        );
    }

    #[test]
    fn truncated_digit_is_less_severe_than_wrong_digit() {
        // 1608 of 2376 is 67.6768 %, 1955 of 3270 is 59.7859 %, and 418 of 1045 is 40 %.
        assert_eq!(count_severity("arc_easy", "67.67").unwrap().0, Severity::Remark);
        assert_eq!(count_severity("boolq", "59.80").unwrap().0, Severity::Suspicion);
        assert_eq!(count_severity("race", "40.04").unwrap().0, Severity::Contradiction);
    }

    #[test]
    fn percentage_above_100_is_a_contradiction() {
        assert_eq!(count_severity("copa", "101.00"), Some((Severity::Contradiction, "100.00 (100/100)".to_owned())));
        assert_eq!(count_severity("ppl_c4", "101.37"), None);
    }

    #[test]
    fn row_is_reported_only_if_all_tasks_are_at_chance_level() {
        let at_chance = ["25.08", "22.70", "25.04", "49.57", "37.83", "27.60", "52.71", "55.00", "25.93"];
        let findings = chance_findings(&at_chance);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].note.contains("exactly the shares"), "{}", findings[0].note);
        // Three standard errors of ARC-Easy are 2.66 points, so 28.79 is above chance.
        for (task, value) in [(0, "28.79"), (0, "10.00"), (8, "40.00"), (6, "70.04")] {
            let mut columns = at_chance;
            columns[task] = value;
            assert!(chance_findings(&columns).is_empty(), "{value}");
        }
        assert!(chance_findings(&at_chance[..8]).is_empty(), "a task is missing");
    }

    fn chance_findings(columns: &[&str]) -> Vec<Finding> {
        let metrics: Vec<(&str, &str)> = metric::tasks().into_iter().zip(columns.iter().copied()).collect();
        let entries = entries("t", "b,32,7,sleb,none,false,c4", &metrics);
        let mut findings = Vec::new();
        check_chance(&AuditRow::group(&entries, AuditColumns::paper()), &mut findings);
        findings
    }

    fn average_findings(metrics: &[(&str, &str)]) -> Vec<Finding> {
        let entries = entries("t", "b,32,7,sleb,none,false,c4", metrics);
        let mut findings = Vec::new();
        check_averages(&AuditRow::group(&entries, AuditColumns::paper()), &mut findings);
        findings
    }

    #[test]
    fn mean_within_rounding_is_accepted() {
        // The mean of 10.00, 20.00 and 30.01 is 20.0033: 20.01 is possible after rounding, 20.02 is not.
        let parts = [("ppl_wikitext2", "10.00"), ("ppl_c4", "20.00"), ("ppl_ptb", "30.01")];
        for (average, wrong) in [("20.00", false), ("20.01", false), ("20.02", true), ("19.99", true), ("20.0", false)]
        {
            let findings = average_findings(&[&parts[..], &[("ppl_average", average)]].concat());
            assert_eq!(!findings.is_empty(), wrong, "{average}");
            assert!(
                findings
                    .iter()
                    .all(|finding| finding.severity == Severity::Contradiction && finding.expected == "20.0033")
            );
        }
    }

    #[test]
    fn mean_of_rounded_columns_is_a_remark() {
        // Dense LLaMA-3.1-8B in table 2: the counts average to 67.7645, the printed columns to 67.7656.
        let columns = ["81.19", "53.41", "78.92", "73.64", "82.11", "44.80", "69.68", "87.00", "39.14"];
        let mut metrics: Vec<(&str, &str)> = metric::tasks().into_iter().zip(columns).collect();
        let mut severities = |average| {
            metrics.truncate(9);
            metrics.push(("acc_average", average));
            average_findings(&metrics).iter().map(|finding| finding.severity).collect::<Vec<_>>()
        };
        let mean: f64 = columns.iter().map(|column| column.parse::<f64>().unwrap()).sum::<f64>() / 9.0;
        assert!((mean - 67.7656).abs() < 1e-4, "{mean}");
        assert_eq!(severities("67.76"), []);
        assert_eq!(severities("67.77"), [Severity::Remark]);
        assert_eq!(severities("67.78"), [Severity::Contradiction]);
    }

    #[test]
    fn mean_of_incomplete_row_is_not_checked() {
        assert!(
            average_findings(&[("ppl_wikitext2", "10.00"), ("ppl_c4", "20.00"), ("ppl_average", "99.00")]).is_empty()
        );
    }
}

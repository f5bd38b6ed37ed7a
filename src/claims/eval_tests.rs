//! What the functions read, and what becomes of numbers that are missing.

use super::super::filter::Depths;
use super::super::parse::parse;
use super::super::samples::{record, with_metric};
use super::*;
use crate::record::Record;

fn on(records: &[Record], check: &str) -> (Outcome, String) {
    let depths = Depths::of(records);
    truth(&parse(check).unwrap(), &Group { records: records.iter().collect(), depths: &depths })
}

fn outcome(records: &[Record], check: &str) -> Outcome {
    on(records, check).0
}

/// Llama-3-8B, 7 layers, table 2 of the paper, and the same at another depth.
fn table() -> Vec<Record> {
    vec![record("a", 7, "none", 40.70), record("a", 7, "replaceme-ls", 59.45), record("a", 7, "ghosted", 60.10)]
}

fn without(recovery: &str, value: Option<f64>) -> Vec<Record> {
    let mut records = table();
    for record in records.iter_mut().filter(|record| record.condition.recovery == recovery) {
        record.value = value;
    }
    records
}

#[test]
fn the_best_of_a_metric_is_the_highest_or_the_lowest() {
    assert_eq!(on(&table(), "best(acc_average) == \"ghosted\"").1, "ghosted 60.10 > replaceme-ls 59.45");
    assert_eq!(outcome(&table(), "best(acc_average) == \"ghosted\""), Outcome::True);
    assert_eq!(outcome(&table(), "best(acc_average) != \"ghosted\""), Outcome::False);
    let lower: Vec<Record> = table().into_iter().map(|record| with_metric(record, "ppl_average")).collect();
    assert_eq!(outcome(&lower, "best(ppl_average) == \"none\""), Outcome::True);
    let (outcome, shown) = on(&lower, "best(ppl_average) == \"ghosted\"");
    assert_eq!((outcome, shown.as_str()), (Outcome::False, "none 40.70 < ghosted 60.10"));
}

#[test]
fn a_tie_has_two_best() {
    let tied = without("replaceme-ls", Some(60.10));
    assert_eq!(outcome(&tied, "best(acc_average) == \"ghosted\""), Outcome::True);
    assert_eq!(outcome(&tied, "best(acc_average) == \"replaceme-ls\""), Outcome::True);
    assert_eq!(outcome(&tied, "best(acc_average) == \"none\""), Outcome::False);
    assert_eq!(on(&tied, "best(acc_average) == \"ghosted\"").1, "ghosted 60.10 = replaceme-ls 60.10");
    assert_eq!(outcome(&tied, "gap(acc_average, ghosted, others) > 0"), Outcome::False);
    assert_eq!(outcome(&tied, "rank(acc_average, recovery: ghosted) == 1"), Outcome::True);
    assert_eq!(outcome(&tied, "rank(acc_average, recovery: none) == 3"), Outcome::True);
}

#[test]
fn numbers_that_differ_by_rounding_alone_are_equal() {
    // In binary 40.52 - 40.16 is 0.36000000000000654.
    let records = vec![record("a", 7, "none", 40.16), record("a", 7, "ghosted", 40.52)];
    assert_eq!(outcome(&records, "gap(acc_average, ghosted, none) <= 0.36"), Outcome::True);
    assert_eq!(outcome(&records, "gap(acc_average, ghosted, none) > 0.36"), Outcome::False);
    assert_eq!(outcome(&records, "gap(acc_average, ghosted, none) <= 0.359999"), Outcome::False);
}

#[test]
fn a_gap_is_positive_where_the_first_one_is_better() {
    assert_eq!(outcome(&table(), "gap(acc_average, ghosted, none) == 19.4"), Outcome::True);
    assert_eq!(outcome(&table(), "gap(acc_average, none, ghosted) == -19.4"), Outcome::True);
    assert_eq!(outcome(&table(), "gap(acc_average, ghosted, others) == 0.65"), Outcome::True);
    assert_eq!(outcome(&table(), "gap(acc_average, replaceme-ls, others) == -0.65"), Outcome::True);
    let lower: Vec<Record> = table().into_iter().map(|record| with_metric(record, "ppl_average")).collect();
    assert_eq!(outcome(&lower, "gap(ppl_average, none, others) == 18.75"), Outcome::True);
    let shown = on(&table(), "gap(acc_average, ghosted, others) > 1").1;
    assert_eq!(shown, "0.65 (ghosted 60.10 over replaceme-ls 59.45) < 1");
}

#[test]
fn the_value_of_one_record_is_read_and_of_several_refused() {
    let mut records = table();
    assert_eq!(outcome(&records, "value(acc_average, recovery: ghosted) == 60.1"), Outcome::True);
    records.push(record("a", 11, "ghosted", 53.66));
    let (outcome, shown) = on(&records, "value(acc_average, recovery: ghosted) > 0");
    assert_eq!(outcome, Outcome::Unknown);
    assert_eq!(shown, "unknown: 2 records of acc_average for ghosted instead of one; they differ in depth");
    assert_eq!(on(&records, "value(acc_average, recovery: ghosted, depth: deep) == 53.66").0, Outcome::True);
    assert_eq!(on(&records, "value(acc_average, recovery: ghosted, depth: shallow) == 60.1").0, Outcome::True);
    assert_eq!(on(&records, "best(acc_average) == \"ghosted\"").0, Outcome::Unknown);
    assert_eq!(on(&records, "best(acc_average, depth: 7) == \"ghosted\"").0, Outcome::True);
}

#[test]
fn the_mean_and_the_count_are_over_all_that_match() {
    assert_eq!(outcome(&table(), "mean(acc_average, recovery: not none) == 59.775"), Outcome::True);
    assert_eq!(outcome(&table(), "count(acc_average, recovery: [none, ghosted]) == 2"), Outcome::True);
    assert_eq!(outcome(&table(), "count(acc_average, recovery: prune-and-comp) == 0"), Outcome::Unknown);
    let missing = without("none", None);
    assert_eq!(outcome(&missing, "mean(acc_average) > 0"), Outcome::Unknown);
    assert_eq!(outcome(&missing, "count(acc_average) == 2"), Outcome::Unknown);
    assert_eq!(outcome(&missing, "mean(acc_average, recovery: not none) > 0"), Outcome::True);
}

#[test]
fn names_of_another_field_can_be_compared() {
    let mut records = vec![record("a", 7, "none", 40.0), record("a", 7, "none", 50.0)];
    records[1].condition.criterion = "shortgpt".to_owned();
    assert_eq!(outcome(&records, "best(acc_average, by: criterion) == \"shortgpt\""), Outcome::True);
    assert_eq!(outcome(&records, "gap(acc_average, llm-streamline, others, by: criterion) == -10"), Outcome::True);
    assert_eq!(outcome(&records, "rank(acc_average, by: criterion, criterion: llm-streamline) == 2"), Outcome::True);
}

#[test]
fn an_absent_record_is_unknown_and_named() {
    let (outcome, shown) = on(&table(), "value(acc_average, recovery: linearpatch-diag) < 100");
    assert_eq!((outcome, shown.as_str()), (Outcome::Unknown, "unknown: no record of acc_average for linearpatch-diag"));
    let (outcome, shown) = on(&table(), "best(acc_average) == \"linearpatch-diag\"");
    assert_eq!((outcome, shown.as_str()), (Outcome::Unknown, "unknown: no record of acc_average for linearpatch-diag"));
    assert_eq!(on(&table(), "value(ppl_c4, recovery: ghosted) > 0").0, Outcome::Unknown);
    assert_eq!(on(&table(), "rank(acc_average, recovery: linearpatch-diag) > 0").0, Outcome::Unknown);
}

#[test]
fn a_missing_rival_leaves_the_first_place_open_and_a_lost_one_lost() {
    let missing = without("none", None);
    let (outcome, shown) = on(&missing, "best(acc_average) == \"ghosted\"");
    assert_eq!((outcome, shown.as_str()), (Outcome::Unknown, "unknown: acc_average has no value for none"));
    // ReplaceMe is beaten, whatever the missing number is.
    assert_eq!(on(&missing, "best(acc_average) == \"replaceme-ls\"").0, Outcome::False);
    assert_eq!(on(&missing, "gap(acc_average, ghosted, others) > 0").0, Outcome::Unknown);
    assert_eq!(on(&missing, "gap(acc_average, ghosted, replaceme-ls) > 0").0, Outcome::True);
    assert_eq!(on(&missing, "rank(acc_average, recovery: ghosted) == 1").0, Outcome::Unknown);
}

#[test]
fn the_only_candidate_is_not_the_best() {
    let alone = vec![record("a", 7, "ghosted", 60.0)];
    assert_eq!(outcome(&alone, "best(acc_average) == \"ghosted\""), Outcome::Unknown);
    assert_eq!(outcome(&alone, "gap(acc_average, ghosted, others) > 0"), Outcome::Unknown);
    assert_eq!(outcome(&alone, "rank(acc_average, recovery: ghosted) == 1"), Outcome::Unknown);
}

#[test]
fn a_value_that_is_not_finite_is_missing() {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let records = without("ghosted", Some(value));
        assert_eq!(outcome(&records, "best(acc_average) == \"ghosted\""), Outcome::Unknown, "{value}");
        assert_eq!(outcome(&records, "value(acc_average, recovery: ghosted) > 0"), Outcome::Unknown, "{value}");
        assert_eq!(outcome(&records, "mean(acc_average) > 0"), Outcome::Unknown, "{value}");
        let rival = without("none", Some(value));
        assert_eq!(outcome(&rival, "best(acc_average) == \"ghosted\""), Outcome::Unknown, "{value}");
    }
}

#[test]
fn a_division_by_zero_is_unknown() {
    let records = without("none", Some(0.0));
    let check = "value(acc_average, recovery: ghosted) / value(acc_average, recovery: none) > 1";
    let (outcome, shown) = on(&records, check);
    assert_eq!(outcome, Outcome::Unknown);
    assert!(shown.contains("is not a number"), "{shown}");
}

#[test]
fn and_and_or_are_decided_by_one_side_where_it_can_decide() {
    let unknown = "value(race) > 0";
    let (yes, no) = ("value(acc_average, recovery: none) > 0", "value(acc_average, recovery: none) < 0");
    let of = |check: String| outcome(&table(), &check);
    assert_eq!(of(format!("{unknown} and {no}")), Outcome::False);
    assert_eq!(of(format!("{unknown} and {yes}")), Outcome::Unknown);
    assert_eq!(of(format!("{yes} or {unknown}")), Outcome::True);
    assert_eq!(of(format!("{no} or {unknown}")), Outcome::Unknown);
    assert_eq!(of(format!("not {unknown}")), Outcome::Unknown);
}

#[test]
fn shown_numbers_have_as_many_decimals_as_it_takes_to_tell_them_apart() {
    let records = vec![record("a", 7, "none", 60.001), record("a", 7, "ghosted", 60.004)];
    assert_eq!(on(&records, "best(acc_average) == \"ghosted\"").1, "ghosted 60.004 > none 60.001");
    let small: Vec<Record> = [("none", 0.012_34), ("ghosted", 0.000_02)]
        .map(|(recovery, value)| with_metric(record("a", 7, recovery, value), "boundary_mae"))
        .into();
    assert_eq!(on(&small, "best(boundary_mae) == \"ghosted\"").1, "ghosted 0.00002 < none 0.01234");
}

#[test]
fn a_long_chain_is_evaluated() {
    let check = format!("{}1 == 201 and value(acc_average, recovery: none) > 0", "1 + ".repeat(200));
    assert_eq!(outcome(&table(), &check), Outcome::True);
}

#[test]
fn arithmetic_shows_what_it_was_made_of() {
    let check = "value(acc_average, recovery: ghosted) - value(acc_average, recovery: none) > 2 * 10";
    assert_eq!(on(&table(), check).1, "19.40 (60.10 (ghosted) - 40.70 (none)) < 20.00 (2 * 10)");
}

//! Precedence, types and places; what a check means is seen from its value on records that do not matter.

use super::super::eval::{self, Outcome};
use super::super::filter::Depths;
use super::super::read::Group;
use super::super::samples::record;
use super::*;

/// The outcome of a check on one record of `acc_average`, whose value is 60.
fn outcome(check: &str) -> Outcome {
    let record = record("a", 7, "ghosted", 60.0);
    let depths = Depths::of([&record]);
    eval::truth(&parse(check).unwrap(), &Group { records: vec![&record], depths: &depths }).0
}

/// The character (from 1, as messages count) and the complaint.
fn refused(check: &str) -> (usize, String) {
    let fault = parse(check).unwrap_err();
    (fault.start + 1, fault.complaint.what)
}

fn hint(check: &str) -> String {
    parse(check).unwrap_err().complaint.hint.unwrap_or_default()
}

/// `check`, and a read that makes it one about records.
fn truth(check: &str) -> bool {
    match outcome(&format!("({check}) and value(acc_average) == 60")) {
        Outcome::True => true,
        Outcome::False => false,
        Outcome::Unknown => panic!("{check} is unknown"),
    }
}

#[test]
fn products_bind_before_sums_and_sums_before_comparisons() {
    assert!(truth("1 + 2 * 3 == 7"));
    assert!(truth("(1 + 2) * 3 == 9"));
    assert!(truth("2 + 1 < 2 * 2"));
}

#[test]
fn equal_signs_are_taken_from_the_left() {
    assert!(truth("10 - 4 - 3 == 3"));
    assert!(truth("12 / 3 / 2 == 2"));
    assert!(truth("12 / 3 * 2 == 8"));
}

#[test]
fn a_minus_sign_binds_before_a_product() {
    assert!(truth("-2 * 3 == -6"));
    assert!(truth("2 - -3 == 5"));
    assert!(truth("--2 == 2"));
    assert!(truth("2 * -3 == -6"));
}

#[test]
fn and_binds_before_or_and_not_before_both() {
    assert!(truth("true or false and false"));
    assert!(!truth("(true or false) and false"));
    assert!(truth("not false and true"));
    assert!(truth("not false or true"));
    assert!(!truth("not (false or true)"));
    assert!(truth("not not true"));
}

#[test]
fn not_turns_a_whole_comparison_round() {
    assert!(truth("not 1 == 2"));
    assert!(!truth("not 1 + 1 == 2"));
}

#[test]
fn every_comparison_means_what_its_sign_says() {
    for (check, expected) in [
        ("1 < 2", true),
        ("2 < 2", false),
        ("2 <= 2", true),
        ("3 <= 2", false),
        ("2 > 1", true),
        ("2 > 2", false),
        ("2 >= 2", true),
        ("1 >= 2", false),
        ("2 == 2", true),
        ("2 == 1", false),
        ("2 != 1", true),
        ("2 != 2", false),
    ] {
        assert_eq!(truth(check), expected, "{check}");
    }
}

#[test]
fn the_plain_functions_compute() {
    assert!(truth("abs(2 - 5) == 3"));
    assert!(truth("min(3, 1, 2) == 1 and max(3, 1, 2) == 3"));
}

#[test]
fn unknown_functions_metrics_fields_and_names_are_refused_with_the_nearest_one() {
    assert_eq!(refused("1 < valu(acc_average)"), (5, "unknown function `valu`".to_owned()));
    assert_eq!(hint("valu(acc_average) > 1"), "did you mean `value`?");
    assert_eq!(refused("value(acc_averag) > 1"), (7, "unknown metric `acc_averag`".to_owned()));
    assert_eq!(refused("value(race, recovry: ghosted) > 1"), (13, "unknown field `recovry`".to_owned()));
    assert_eq!(hint("value(race, recovry: ghosted) > 1"), "did you mean `recovery`?");
    assert_eq!(refused("value(race, recovery: gosted) > 1"), (23, "unknown recovery `gosted`".to_owned()));
    assert_eq!(refused("best(race) == \"gosted\""), (15, "unknown recovery `gosted`".to_owned()));
    assert_eq!(refused("gap(race, ghosted, other) > 0"), (20, "unknown recovery `other`".to_owned()));
    assert_eq!(refused("best(race, by: recover) == \"x\""), (16, "unknown field `recover`".to_owned()));
    assert_eq!(refused("ghosted > 1"), (1, "unknown name `ghosted`".to_owned()));
    assert!(hint("ghosted > 1").contains("quotes"));
}

#[test]
fn types_that_do_not_fit_are_refused() {
    assert_eq!(refused("value(race)"), (1, "a check is a number".to_owned()));
    assert_eq!(refused("best(race)"), (1, "a check is the names of the best".to_owned()));
    assert_eq!(refused("1 and value(race) > 1"), (1, "a side of `and` is a number".to_owned()));
    assert_eq!(refused("value(race) > 1 or 2"), (20, "a side of `or` is a number".to_owned()));
    assert_eq!(refused("not value(race)"), (5, "what `not` turns round is a number".to_owned()));
    assert_eq!(refused("1 + (value(race) > 1) > 0"), (5, "a side of `+` is a truth value".to_owned()));
    assert_eq!(refused("value(race) == \"ghosted\""), (16, "a side of a comparison is a text".to_owned()));
    assert_eq!(refused("best(race) == 1"), (15, "the other side of `best` is a number".to_owned()));
    assert_eq!(refused("best(race) < \"ghosted\""), (12, "names have no order".to_owned()));
    assert_eq!(refused("abs(\"x\") < value(race)"), (5, "an argument of `abs` is a text".to_owned()));
    assert_eq!(refused("value(race, depth: ghosted) > 1"), (20, "unknown depth `ghosted`".to_owned()));
    assert_eq!(refused("value(race, finetuned: 1) > 1"), (24, "`finetuned` cannot be the number 1".to_owned()));
}

#[test]
fn functions_that_need_a_direction_refuse_a_metric_without_one() {
    let (place, what) = refused("best(m_symmetric_share) == \"ghosted\"");
    assert_eq!((place, what.as_str()), (6, "of `m_symmetric_share` neither more nor less is better"));
    assert!(parse("gap(m_symmetric_share, ghosted, others) > 0").is_err());
    assert!(parse("rank(m_symmetric_share, recovery: ghosted) == 1").is_err());
    assert!(parse("value(m_symmetric_share) > 0").is_ok());
}

#[test]
fn missing_and_surplus_signs_are_refused_where_they_stand() {
    assert_eq!(refused("value(race > 1").0, 12);
    assert_eq!(refused("(value(race) > 1").0, 17);
    assert_eq!(refused("value(race) > 1)").0, 16);
    assert_eq!(refused("value(race) >").0, 14);
    assert_eq!(refused("").0, 1);
    assert_eq!(refused("value(race) 1").0, 13);
    assert_eq!(refused("1 < value(race) < 3"), (17, "two comparisons follow each other".to_owned()));
    assert_eq!(refused("value(race, recovery: [none ghosted]) > 1").0, 29);
    assert_eq!(refused("value(race, recovery: []) > 1").1, "the filter `recovery` has no value");
    assert_eq!(refused("value(race, ghosted) > 1").0, 13);
    assert_eq!(refused("value() > 1").0, 7);
}

#[test]
fn a_name_with_a_colon_needs_quotes() {
    let check = "value(race, recovery: ghosted:svd) > 1";
    assert_eq!(refused(check).0, 30);
    assert!(hint(check).contains("double quotes"));
    assert!(parse("value(race, recovery: \"ghosted:svd\") > 1").is_ok());
}

#[test]
fn gap_and_rank_refuse_to_guess_whom_they_are_about() {
    assert_eq!(refused("gap(race, ghosted) > 0").1, "`gap` has no two names to compare");
    assert_eq!(refused("gap(race, ghosted, ghosted) > 0"), (20, "`ghosted` is compared with itself".to_owned()));
    assert_eq!(refused("0 < rank(race)").1, "`rank` does not say whose rank is asked");
    assert!(parse("rank(race, recovery: [none, ghosted]) == 1").is_err());
    assert!(parse("rank(race, recovery: not none) == 1").is_err());
    assert!(parse("rank(race, by: criterion, criterion: sleb, recovery: none) == 1").is_ok());
    assert_eq!(refused("value(race, depth: 7, depth: 11) > 1"), (23, "two filters on `depth`".to_owned()));
    assert_eq!(refused("min(1) < value(race)"), (1, "`min` has one argument".to_owned()));
}

#[test]
fn a_check_that_reads_no_record_is_refused() {
    assert_eq!(refused("1 < 2").1, "the check looks at no record");
    assert_eq!(refused("true").1, "the check looks at no record");
}

#[test]
fn deep_and_long_checks_are_refused_and_not_a_stack_overflow() {
    let brackets = format!("{}value(race) > 1{}", "(".repeat(200), ")".repeat(200));
    assert!(refused(&brackets).1.contains("nested deeper"));
    assert!(refused(&format!("{}true", "not ".repeat(300))).1.contains("nested deeper"));
    assert!(refused(&format!("{}1 > value(race)", "1 + ".repeat(100_000))).1.contains("more than"));
}

//! Tests for queries on a setting, including missing numbers.

use super::super::number::Judgement;
use super::super::sample_records::{record, with_metric};
use super::*;

const ACCURACY: &str = "acc_average";
const PERPLEXITY: &str = "ppl_average";
const ALL: [&str; 3] = ["none", "replaceme-ls", "ghosted"];

/// Returns the rows for LLaMA-3-8B in table 2 of the paper.
fn table2_rows() -> Vec<Record> {
    vec![record("a", 7, "none", 40.70), record("a", 7, "replaceme-ls", 59.45), record("a", 7, "ghosted", 60.10)]
}

fn table2_rows_with(recovery: &str, value: Option<f64>) -> Vec<Record> {
    let mut records = table2_rows();
    for record in records.iter_mut().filter(|record| record.condition.recovery == recovery) {
        record.value = value;
    }
    records
}

fn perplexities() -> Vec<Record> {
    table2_rows().into_iter().map(|record| with_metric(record, PERPLEXITY)).collect()
}

fn claim_setting(records: &[Record]) -> ClaimSetting<'_> {
    ClaimSetting::new(records.iter().collect(), Vec::new())
}

#[test]
fn best_value_follows_the_direction_of_the_metric() {
    let records = table2_rows();
    assert_eq!(
        claim_setting(&records).best(ACCURACY, "ghosted", &ALL),
        ClaimCheck::from_verdict(true, "ghosted 60.10 > replaceme-ls 59.45".into())
    );
    assert_eq!(
        claim_setting(&records).best(ACCURACY, "none", &ALL),
        ClaimCheck::from_verdict(false, "ghosted 60.10 > none 40.70".into())
    );
    let records = perplexities();
    assert_eq!((claim_setting(&records).best(PERPLEXITY, "none", &ALL)).outcome, Judgement::Holds);
    assert_eq!(
        claim_setting(&records).best(PERPLEXITY, "ghosted", &ALL),
        ClaimCheck::from_verdict(false, "none 40.70 < ghosted 60.10".into())
    );
}

#[test]
fn claim_values_are_compared_as_printed() {
    // With two decimals, 60.1 and 60.104 are both printed as 60.10.
    let tied = table2_rows_with("replaceme-ls", Some(60.104));
    let setting = claim_setting(&tied);
    assert_eq!(
        setting.best(ACCURACY, "ghosted", &ALL),
        ClaimCheck::from_verdict(true, "ghosted 60.10 = replaceme-ls 60.10".into())
    );
    assert_eq!(setting.best(ACCURACY, "replaceme-ls", &ALL).outcome, Judgement::Holds);
    assert_eq!(setting.best(ACCURACY, "none", &ALL).outcome, Judgement::Fails);
    assert_eq!(setting.lead(ACCURACY, "ghosted", &ALL).check_equal(0.0).outcome, Judgement::Holds);
    assert_eq!(
        setting.value(ACCURACY, "ghosted").check_equal(setting.value(ACCURACY, "replaceme-ls")).outcome,
        Judgement::Holds
    );
    assert_eq!(setting.rank(ACCURACY, "ghosted", &ALL).check_equal(1.0).outcome, Judgement::Holds);
    assert_eq!(setting.rank(ACCURACY, "none", &ALL).check_equal(3.0).outcome, Judgement::Holds);
}

#[test]
fn lead_is_positive_if_the_method_is_better() {
    let records = table2_rows();
    assert_eq!(lead(&records, "ghosted", &ALL).check_equal(0.65).outcome, Judgement::Holds);
    assert_eq!(lead(&records, "replaceme-ls", &ALL).check_equal(-0.65).outcome, Judgement::Holds);
    assert_eq!(
        claim_setting(&records).lead(ACCURACY, "none", &["ghosted"]).check_equal(-19.4).outcome,
        Judgement::Holds
    );
    let shown = lead(&records, "ghosted", &ALL).check_above(1.0).shown;
    assert_eq!(shown, "0.65 (ghosted 60.10 over replaceme-ls 59.45) < 1");
    assert_eq!(
        claim_setting(&perplexities()).lead(PERPLEXITY, "none", &ALL).check_equal(18.75).outcome,
        Judgement::Holds
    );
}

fn lead(records: &[Record], name: &str, rivals: &[&str]) -> Quantity {
    claim_setting(records).lead(ACCURACY, name, rivals)
}

#[test]
fn metric_without_direction_has_no_best() {
    let shares: Vec<Record> =
        table2_rows().into_iter().map(|record| with_metric(record, "m_symmetric_share")).collect();
    let setting = claim_setting(&shares);
    let reason = "m_symmetric_share has no better direction";
    assert_eq!(setting.best("m_symmetric_share", "ghosted", &ALL), ClaimCheck::unknown(reason.into()));
    assert_eq!(setting.lead("m_symmetric_share", "ghosted", &ALL).check_above(0.0), ClaimCheck::unknown(reason.into()));
    assert_eq!(setting.value("m_symmetric_share", "ghosted").check_above(0.0).outcome, Judgement::Holds);
}

#[test]
fn missing_competitor_value_makes_the_check_unknown() {
    let mut without = table2_rows();
    without.remove(1);
    for records in [table2_rows_with("replaceme-ls", None), table2_rows_with("replaceme-ls", Some(f64::NAN)), without] {
        let setting = claim_setting(&records);
        let reason = "acc_average has no value for replaceme-ls";
        assert_eq!(setting.best(ACCURACY, "ghosted", &ALL), ClaimCheck::unknown(reason.into()));
        assert_eq!(setting.lead(ACCURACY, "ghosted", &ALL).check_above(0.0), ClaimCheck::unknown(reason.into()));
        assert_eq!(setting.rank(ACCURACY, "ghosted", &ALL).check_at_most(2.0), ClaimCheck::unknown(reason.into()));
        assert_eq!(setting.mean(ACCURACY, &ALL).check_above(0.0), ClaimCheck::unknown(reason.into()));
        assert_eq!(setting.minimum(ACCURACY, &ALL).check_above(0.0), ClaimCheck::unknown(reason.into()));
        // A single better rival makes the check fail, even if other numbers are missing.
        assert_eq!(setting.best(ACCURACY, "none", &ALL).outcome, Judgement::Fails);
    }
    assert_eq!(
        claim_setting(&table2_rows_with("ghosted", None)).best(ACCURACY, "ghosted", &ALL).outcome,
        Judgement::Unknown
    );
    assert_eq!(claim_setting(&table2_rows()).best(ACCURACY, "ghosted", &["ghosted"]).outcome, Judgement::Unknown);
}

#[test]
fn mean_and_minimum_cover_the_named_methods() {
    let records = table2_rows();
    let setting = claim_setting(&records);
    assert_eq!(setting.mean(ACCURACY, &["replaceme-ls", "ghosted"]).check_equal(59.775).outcome, Judgement::Holds);
    let check = setting.minimum(ACCURACY, &ALL).check_above(50.0);
    assert_eq!(check, ClaimCheck::from_verdict(false, "40.70 (none, minimum of 3) < 50".into()));
}

#[test]
fn ambiguous_value_is_unknown() {
    let mut records = table2_rows();
    records.push(record("a", 11, "ghosted", 53.66));
    let complete = claim_setting(&records);
    assert_eq!(
        complete.value(ACCURACY, "ghosted").check_above(0.0).shown,
        "acc_average has 2 values for ghosted; they differ in depth"
    );
    assert_eq!(complete.best(ACCURACY, "ghosted", &ALL).outcome, Judgement::Unknown);
    assert_eq!(complete.deepest().value(ACCURACY, "ghosted").check_above(0.0).shown, "53.66 (ghosted, depth 11) > 0");
    assert_eq!(complete.shallowest().value(ACCURACY, "ghosted").check_equal(60.1).outcome, Judgement::Holds);
}

#[test]
fn depth_comparison_needs_two_depths_with_values() {
    let mut records = table2_rows();
    let one = claim_setting(&records).between_depths(is_lower_if_deeper);
    assert_eq!(one, ClaimCheck::unknown("no second depth to compare, depth 7".into()));
    records.push(record("a", 9, "ghosted", 55.0));
    assert_eq!(claim_setting(&records).between_depths(is_lower_if_deeper).outcome, Judgement::Holds);
    records.push(Record { value: None, ..record("a", 11, "ghosted", 0.0) });
    let failed = claim_setting(&records).between_depths(is_lower_if_deeper);
    assert_eq!(failed, ClaimCheck::unknown("acc_average has no value for ghosted, depth 11".into()));
}

fn is_lower_if_deeper(deep: &ClaimSetting<'_>, shallow: &ClaimSetting<'_>) -> ClaimCheck {
    deep.value(ACCURACY, "ghosted").check_below(shallow.value(ACCURACY, "ghosted"))
}

#[test]
fn calibration_corpus_and_sequences_are_filtered_separately() {
    let mut records = table2_rows();
    records[1].condition = Condition { calibration: "c4:32".into(), ..records[2].condition.clone() };
    let setting = claim_setting(&records);
    assert_eq!(setting.with_sequences(32).value(ACCURACY, "ghosted").check_equal(59.45).outcome, Judgement::Holds);
    assert_eq!(setting.corpus("wikitext2").value(ACCURACY, "ghosted").check_above(0.0).outcome, Judgement::Unknown);
    assert!(setting.corpus("c4").value(ACCURACY, "ghosted").check_above(0.0).shown.contains("differ in calibration"));
    assert_eq!(setting.criterion("shortgpt").value(ACCURACY, "none").check_above(0.0).outcome, Judgement::Unknown);
}

#[test]
fn check_on_noisy_time_is_unknown_and_shows_deviation() {
    let metric = "prefill_ms:seq=8:batch=1";
    let noise = "noise: prefill_ms:seq=8:batch=1 of ghosted, 10.00 ± 5.00, deviates by 50 % (limit: 5 %)";
    let records = [
        time_record(7, "none", 10.0, 0.4),
        time_record(7, "ghosted", 10.0, 5.0),
        time_record(7, "replaceme-ls", 10.0, 0.5),
    ];
    let setting = claim_setting(&records);
    assert_eq!(
        (setting.value(metric, "ghosted") - setting.value(metric, "none"))
            .abs()
            .check_at_most(3.0 * setting.noise(metric, "ghosted", "none")),
        ClaimCheck::unknown(noise.into())
    );
    assert_eq!(setting.best(metric, "none", &ALL), ClaimCheck::unknown(noise.into()));
    assert_eq!(
        setting.value(metric, "replaceme-ls").check_above(0.0).outcome,
        Judgement::Holds,
        "a deviation of 5 % is accepted"
    );
    let dense = time_record(0, "none", 20.0, 5.0);
    let dense_check = ClaimSetting::new(Vec::new(), vec![&dense]).dense_value(metric).check_above(0.0);
    assert_eq!(dense_check.outcome, Judgement::Unknown);
    assert!(dense_check.shown.contains("of dense, 20.00 ± 5.00, deviates by 25 %"), "{dense_check:?}");
    // The error of an accuracy does not count as noise, because significance tests account for it.
    let accuracy = Record { error: Some(30.0), ..record("a", 7, "ghosted", 60.0) };
    assert_eq!(claim_setting(&[accuracy]).value(ACCURACY, "ghosted").check_above(0.0).outcome, Judgement::Holds);
}

fn time_record(depth: usize, recovery: &str, value: f64, error: f64) -> Record {
    Record { error: Some(error), ..with_metric(record("a", depth, recovery, value), "prefill_ms:seq=8:batch=1") }
}

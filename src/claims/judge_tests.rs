//! Groups, and the count that a verdict is.

use super::super::claim::load;
use super::super::samples::record;
use super::*;

fn claim(over: &str, only: &str, check: &str, holds: &str) -> Claim {
    let text = format!(
        "- {{id: x, artifact: table2, says: s, where: w, over: {over}, only: {only}, check: '{check}', holds: {holds}}}"
    );
    load(&text, "claims.yaml").unwrap().remove(0)
}

const BEST: &str = r#"best(acc_average) == "ghosted""#;

/// Two backbones at two depths and their dense rows; ghosted is first in three of the four settings.
fn records() -> Vec<Record> {
    let mut records = Vec::new();
    for (backbone, depth, none, ghosted) in
        [("a", 4, 40.0, 60.0), ("a", 6, 30.0, 50.0), ("b", 4, 41.0, 61.0), ("b", 6, 52.0, 51.0)]
    {
        records.push(record(backbone, depth, "none", none));
        records.push(record(backbone, depth, "ghosted", ghosted));
    }
    records.insert(0, record("a", 0, "none", 70.0));
    records.insert(5, record("b", 0, "none", 70.0));
    records
}

#[test]
fn there_is_a_check_for_each_combination_of_the_records() {
    let verdict = claim("[backbone, depth]", "{depth: pruned}", BEST, "all").judge(&records());
    assert_eq!((verdict.held, verdict.of, verdict.unknown, verdict.holds), (3, 4, 0, Some(false)));
    let groups: Vec<String> =
        verdict.groups.iter().map(|g| g.group.iter().map(|(f, v)| format!("{}={v} ", f.name())).collect()).collect();
    assert_eq!(groups, ["backbone=a depth=4 ", "backbone=a depth=6 ", "backbone=b depth=4 ", "backbone=b depth=6 "]);
    assert_eq!(verdict.groups[3].outcome, Outcome::False);
    assert_eq!(verdict.groups[3].shown, "none 52.00 > ghosted 51.00");
}

#[test]
fn the_same_counts_hold_or_fail_by_what_is_asked() {
    let holds = |quantity| claim("[backbone, depth]", "{depth: pruned}", BEST, quantity).judge(&records()).holds;
    assert_eq!(holds("most"), Some(true));
    assert_eq!(holds("any"), Some(true));
    assert_eq!(holds("at least 3"), Some(true));
    assert_eq!(holds("at least 4"), Some(false));
    assert_eq!(holds("at least 5"), None);
}

#[test]
fn the_dense_rows_are_groups_where_nothing_excludes_them() {
    let verdict = claim("[backbone, depth]", "{}", BEST, "all").judge(&records());
    assert_eq!((verdict.of, verdict.unknown), (6, 2));
}

#[test]
fn deep_and_shallow_in_only_are_those_of_all_records() {
    let verdict = claim("[backbone, depth]", "{depth: deep}", BEST, "all").judge(&records());
    assert_eq!((verdict.held, verdict.of), (1, 2));
    let widens = claim(
        "[backbone]",
        "{}",
        "gap(acc_average, ghosted, none, depth: deep) < gap(acc_average, ghosted, none, depth: shallow)",
        "all",
    );
    let verdict = widens.judge(&records());
    assert_eq!((verdict.held, verdict.of), (1, 2));
    assert_eq!(
        verdict.groups[1].shown,
        "-1.00 (ghosted 51.00 over none 52.00, depth deep) < 20.00 (ghosted 61.00 over none 41.00, depth shallow)"
    );
}

#[test]
fn a_single_check_has_a_group_without_a_name() {
    let verdict = claim("[]", "{recovery: ghosted}", "mean(acc_average) == 55.5", "all").judge(&records());
    assert_eq!((verdict.held, verdict.of, verdict.holds), (1, 1, Some(true)));
    assert!(verdict.groups[0].group.is_empty());
}

#[test]
fn an_unknown_group_is_counted_as_unknown_and_leaves_the_claim_open() {
    let mut records = records();
    records.retain(|record| record.condition.backbone == "a");
    for record in records.iter_mut().filter(|record| record.condition.depth == 6) {
        record.value = Some(f64::NAN);
    }
    let verdict = claim("[backbone, depth]", "{depth: pruned}", BEST, "all").judge(&records);
    assert_eq!((verdict.held, verdict.of, verdict.unknown, verdict.holds), (1, 2, 1, None));
    assert_eq!(verdict.groups[1].shown, "unknown: acc_average has no value for ghosted");
    assert_eq!(verdict.note, None);
}

#[test]
fn no_record_is_no_verdict() {
    let verdict = claim("[backbone]", "{backbone: c}", BEST, "all").judge(&records());
    assert_eq!((verdict.of, verdict.holds), (0, None));
    assert_eq!(verdict.note.as_deref(), Some("no records"));
    assert_eq!(claim("[]", "{}", BEST, "all").judge(&[]).holds, None);
}

#[test]
fn a_record_that_two_artifacts_share_counts_once_and_a_contradiction_is_unknown() {
    let claim = claim("[backbone, depth]", "{backbone: a, depth: 4}", BEST, "all");
    let mut twice = records();
    twice.extend(records());
    assert_eq!(claim.judge(&twice).holds, Some(true));
    twice.push(record("a", 4, "ghosted", 59.0));
    let verdict = claim.judge(&twice);
    assert_eq!(verdict.holds, None);
    assert!(
        verdict.groups[0].shown.contains("2 records of acc_average for ghosted instead of one; they differ in nothing")
    );
}

#[test]
fn a_verdict_is_json() {
    let verdict = claim("[depth]", "{backbone: b, depth: deep}", BEST, "all").judge(&records());
    let json = serde_json::to_value(&verdict).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "holds": false, "held": 0, "of": 1, "unknown": 0, "note": null,
            "groups": [{"group": [["depth", "6"]], "outcome": "false", "shown": "none 52.00 > ghosted 51.00"}],
        })
    );
}

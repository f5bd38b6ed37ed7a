//! Tests for settings and verdict counts.

use super::super::ClaimAxis::{Backbone, Criterion, Depth};
use super::super::sample_records::{record, run, with_metric};
use super::*;
use crate::pipeline::identity::flatten;
use serde_json::json;

const ALL: [&str; 2] = ["none", "ghosted"];

fn claim(needed: RequiredSettings) -> Claim {
    Claim {
        id: "x",
        artifacts: &["table2"],
        says: "s",
        section: "w",
        reading: None,
        over: &[Backbone, Depth],
        needed,
        best_by: None,
        needs_paper_models: false,
        only: |_| true,
        check: |setting| setting.best("acc_average", "ghosted", &ALL),
    }
}

/// Returns records for two backbones at two depths. `ghosted` is best in three of the four settings.
fn records() -> Vec<Record> {
    let mut records = vec![record("a", 0, "none", 70.0), record("b", 0, "none", 70.0)];
    for (backbone, depth, none, ghosted) in
        [("a", 4, 40.0, 60.0), ("a", 6, 30.0, 50.0), ("b", 4, 41.0, 61.0), ("b", 6, 52.0, 51.0)]
    {
        records.push(record(backbone, depth, "none", none));
        records.push(record(backbone, depth, "ghosted", ghosted));
    }
    records
}

fn artifacts(tables: &[(&str, Vec<Record>)]) -> Artifacts {
    tables.iter().map(|(name, records)| ((*name).to_owned(), ArtifactNumbers::printed(records.clone()))).collect()
}

fn verdict_on(claim: &Claim, records: Vec<Record>) -> ClaimVerdict {
    claim.judge(&artifacts(&[("table2", records)]), |name| format!("{name} has no results"))
}

#[test]
fn claim_is_checked_for_every_backbone_and_depth() {
    let verdict = verdict_on(&claim(RequiredSettings::All), records());
    assert_eq!((verdict.held, verdict.total, verdict.unknown, verdict.outcome), (3, 4, 0, Judgement::Fails));
    let settings: Vec<String> = verdict
        .settings
        .iter()
        .map(|setting| setting.setting.iter().map(|(_, value)| value.as_str()).collect())
        .collect();
    assert_eq!(settings, ["a4", "a6", "b4", "b6"]);
    assert_eq!(verdict.settings[3].outcome, Judgement::Fails);
    assert_eq!(verdict.settings[3].shown, "none 52.00 > ghosted 51.00");
}

#[test]
fn verdict_depends_on_the_required_settings() {
    assert_eq!(decide(RequiredSettings::Most), (Judgement::Holds, "3 of 4, most needed".to_owned()));
    assert_eq!(decide(RequiredSettings::Any), (Judgement::Holds, "3 of 4, any needed".to_owned()));
    assert_eq!(decide(RequiredSettings::AtLeast(3)), (Judgement::Holds, "3 of 4, at least 3 needed".to_owned()));
    assert_eq!(decide(RequiredSettings::AtLeast(4)), (Judgement::Fails, "3 of 4, at least 4 needed".to_owned()));
    assert_eq!(decide(RequiredSettings::AtLeast(5)).0, Judgement::Unknown);
}

fn decide(needed: RequiredSettings) -> (Judgement, String) {
    let verdict = verdict_on(&claim(needed), records());
    (verdict.outcome, verdict.count())
}

#[test]
fn missing_number_makes_setting_and_claim_unknown() {
    let mut records = records();
    records.retain(|record| record.condition.backbone == "a");
    for record in records.iter_mut().filter(|record| record.condition.depth == 6) {
        record.value = Some(f64::NAN);
    }
    let verdict = verdict_on(&claim(RequiredSettings::All), records);
    assert_eq!((verdict.held, verdict.total, verdict.unknown, verdict.outcome), (1, 2, 1, Judgement::Unknown));
    assert_eq!(verdict.reason.as_deref(), Some("acc_average has no value for ghosted"));
    assert_eq!(verdict.count(), "1 of 2, 1 unknown, all needed");
}

#[test]
fn claim_without_numbers_has_unknown_verdict() {
    let none = verdict_on(&claim(RequiredSettings::All), Vec::new());
    assert_eq!((none.outcome, none.count().as_str()), (Judgement::Unknown, "table2 has no results"));
    let dense = verdict_on(&claim(RequiredSettings::All), vec![record("a", 0, "none", 70.0)]);
    assert_eq!((dense.outcome, dense.count().as_str()), (Judgement::Unknown, "no numbers"));
}

fn joined_claim() -> Claim {
    Claim {
        artifacts: &["table2", "tableA7"],
        check: |setting| {
            let [one, other] = ["c4", "wikitext2"].map(|corpus| setting.corpus(corpus).value("acc_average", "ghosted"));
            (one - other).abs().check_at_most(1.0)
        },
        ..claim(RequiredSettings::All)
    }
}

fn on_wikitext(mut record: Record) -> Record {
    record.condition.calibration = "wikitext2".into();
    record
}

#[test]
fn joined_claim_covers_only_common_settings() {
    let second: Vec<Record> =
        records().into_iter().filter(|record| record.condition.backbone == "a").map(on_wikitext).collect();
    let verdict =
        joined_claim().judge(&artifacts(&[("table2", records()), ("tableA7", second.clone())]), |_| String::new());
    assert_eq!((verdict.held, verdict.total, verdict.outcome), (2, 2, Judgement::Holds));
    let mut failed = second.clone();
    failed.iter_mut().for_each(|record| record.value = None);
    let verdict = joined_claim().judge(&artifacts(&[("table2", records()), ("tableA7", failed)]), |_| String::new());
    assert_eq!((verdict.unknown, verdict.outcome), (2, Judgement::Unknown));
    let verdict = joined_claim().judge(&artifacts(&[("table2", records())]), |name| format!("{name} has no results"));
    assert_eq!((verdict.outcome, verdict.count().as_str()), (Judgement::Unknown, "tableA7 has no results"));
}

#[test]
fn claim_joins_only_runs_with_equal_settings() {
    let mut both = artifacts(&[("table2", records()), ("tableA7", records().into_iter().map(on_wikitext).collect())]);
    both.get_mut("table2").unwrap().stored = run("one", true);
    both.get_mut("tableA7").unwrap().stored = run("one", true);
    for artifact in both.values_mut() {
        for IdentifiedRecord { record, identity } in &mut artifact.numbers {
            *identity = Some(flatten(&json!({"model": {"content": record.condition.backbone}})));
        }
    }
    assert_eq!(joined_claim().judge(&both, |_| String::new()).outcome, Judgement::Holds);
    both.get_mut("tableA7").unwrap().stored = run("other", true);
    let verdict = joined_claim().judge(&both, |_| String::new());
    assert_eq!((verdict.outcome, verdict.total), (Judgement::Unknown, 0));
    assert!(verdict.count().contains("table2 was computed by one, tableA7 by other"), "{}", verdict.count());
    // A claim about a single artifact does not combine runs. It still holds although the two runs used different
    // programs.
    assert_eq!(claim(RequiredSettings::Any).judge(&both, |_| String::new()).outcome, Judgement::Holds);
}

#[test]
fn verdict_of_ungated_run_mentions_the_no_gate_flag() {
    assert_eq!(count_of(true), "3 of 4, most needed");
    assert_eq!(count_of(false), "3 of 4, most needed (computed with --no-gate)");
}

fn count_of(gate: bool) -> String {
    let mut one = artifacts(&[("table2", records())]);
    one.get_mut("table2").unwrap().stored = run("one", gate);
    claim(RequiredSettings::Most).judge(&one, |_| String::new()).count()
}

#[test]
fn repeated_record_counts_once_and_conflict_is_unknown() {
    let claim = Claim { artifacts: &["table2", "tableA6"], ..claim(RequiredSettings::Most) };
    assert_eq!(judge(&claim, records()).count(), "3 of 4, most needed");
    let mut other = records();
    other
        .iter_mut()
        .filter(|record| record.condition.recovery == "ghosted")
        .for_each(|record| record.value = Some(1.0));
    let verdict = judge(&claim, other);
    assert_eq!(verdict.outcome, Judgement::Unknown);
    assert_eq!(verdict.settings[0].shown, "acc_average has 2 values for ghosted");
}

fn judge(claim: &Claim, second: Vec<Record>) -> ClaimVerdict {
    claim.judge(&artifacts(&[("table2", records()), ("tableA6", second)]), |_| String::new())
}

#[test]
fn cells_of_one_condition_are_distinguished_by_setting() {
    let records = vec![record("a", 4, "none", 40.0), record("a", 4, "ghosted", 60.0), record("a", 4, "ghosted", 60.0)];
    let identities = [0, 0, 1].map(|seed| flatten(&json!({"calibration": {"seed": seed}}))).to_vec();
    let verdict = verdict_of(records.clone(), identities.clone());
    assert_eq!(verdict.settings[0].outcome, Judgement::Unknown, "two seeds of equal values are two cells");
    let shown = &verdict.settings[0].shown;
    assert!(shown.ends_with("2 values for ghosted; the cells differ in calibration.seed"), "{shown}");
    assert_eq!(verdict_of(records[..2].to_vec(), identities[..2].to_vec()).settings[0].outcome, Judgement::Holds);
}

fn verdict_of(records: Vec<Record>, identities: Vec<FlatSettings>) -> ClaimVerdict {
    let numbers = records.into_iter().zip(identities.into_iter().map(Some));
    let numbers = numbers.map(|(record, identity)| IdentifiedRecord { record, identity }).collect();
    let numbers = ArtifactNumbers { numbers, stored: None };
    claim(RequiredSettings::All)
        .judge(&[("table2".to_owned(), numbers)].into(), |name| format!("{name} has no results"))
}

#[test]
fn criteria_with_equal_cuts_count_once() {
    let claim = Claim { over: &[Backbone, Criterion, Depth], ..claim(RequiredSettings::All) };
    let verdict =
        verdict_on(&claim, [rows("shortened-llama", 0.0), rows("sleb", 5.0), rows("shortgpt", 0.001)].concat());
    let named: Vec<&str> = verdict.settings.iter().map(|setting| setting.setting[1].1.as_str()).collect();
    assert_eq!((named, verdict.total), (vec!["shortened-llama = shortgpt", "sleb"], 2));
    let repeated = verdict_on(
        &claim,
        [
            rows_of_three_metrics("llm-streamline", 0.0),
            rows_of_three_metrics("shortgpt", 1.0),
            rows_of_three_metrics("sleb", 0.0),
        ]
        .concat(),
    );
    assert_eq!(repeated.settings[0].setting[1].1, "llm-streamline = sleb");
    assert_eq!(repeated.settings[1].cut_of.as_deref(), Some("llm-streamline = sleb"));
    assert_eq!(repeated.count(), "2 of 2, 1 on a cut already counted, all needed");
    // Two criteria are not merged if one of their rows differs, or if they have too few rows to rule out a coincidence.
    let mut other = rows("shortgpt", 0.0);
    other[1].value = Some(46.0);
    assert_eq!(verdict_on(&claim, [rows("sleb", 0.0), other].concat()).total, 2);
    assert_eq!(
        verdict_on(&claim, [rows("sleb", 0.0)[1..].to_vec(), rows("shortgpt", 0.0)[1..].to_vec()].concat()).total,
        2
    );
}

fn rows(criterion: &str, added: f64) -> Vec<Record> {
    let values = [("none", 40.0), ("linearpatch-diag", 45.0), ("ghosted", 60.0)];
    values
        .map(|(name, value)| {
            let mut record = record("a", 4, name, value + added);
            record.condition.criterion = criterion.to_owned();
            record
        })
        .to_vec()
}

/// Returns an unrepaired and a repaired record for each of three metrics. The unrepaired scores are the same for every
/// criterion. `added` is added to the repaired scores.
fn rows_of_three_metrics(criterion: &str, added: f64) -> Vec<Record> {
    ["acc_average", "rte", "copa"]
        .into_iter()
        .flat_map(|metric| {
            [rows(criterion, 0.0)[0].clone(), rows(criterion, added)[2].clone()]
                .map(|record| with_metric(record, metric))
        })
        .collect()
}

#[test]
fn claim_on_noisy_times_is_unknown_and_suggests_retime() {
    let claim = Claim {
        check: |setting| setting.value("prefill_ms", "ghosted").check_below(setting.value("prefill_ms", "none")),
        ..claim(RequiredSettings::All)
    };
    let time =
        |name, value, error| Record { error: Some(error), ..with_metric(record("a", 4, name, value), "prefill_ms") };
    let judge = |deviation, stored| {
        let records = vec![time("none", 20.0, 0.1), time("ghosted", 10.0, deviation)];
        let numbers = ArtifactNumbers { stored, ..ArtifactNumbers::printed(records) };
        claim.judge(&[("table2".to_owned(), numbers)].into(), |_| String::new())
    };
    assert_eq!(judge(0.5, None).outcome, Judgement::Holds);
    let printed = judge(5.0, None);
    assert_eq!((printed.outcome, printed.unknown), (Judgement::Unknown, 1));
    let expected = "noise: prefill_ms of ghosted, 10.00 ± 5.00, deviates by 50 % (limit: 5 %)";
    assert_eq!(printed.reason.as_deref(), Some(expected));
    let ours = judge(5.0, run("one", true)).reason.unwrap();
    assert_eq!(ours, format!("{expected}; run the same command with --retime to measure again"));
}

#[test]
fn verdict_lists_each_setting_with_its_numbers() {
    let verdict = verdict_on(
        &Claim {
            over: &[Depth],
            only: |condition| condition.backbone == "b" && condition.depth == 6,
            ..claim(RequiredSettings::All)
        },
        records(),
    );
    let setting = SettingVerdict {
        setting: vec![(Depth, "6".to_owned())],
        outcome: Judgement::Fails,
        cut_of: None,
        shown: "none 52.00 > ghosted 51.00".to_owned(),
    };
    let expected = ClaimVerdict {
        outcome: Judgement::Fails,
        reason: None,
        held: 0,
        unknown: 0,
        total: 1,
        needed: RequiredSettings::All,
        ungated: false,
        best: None,
        settings: vec![setting],
    };
    assert_eq!(verdict, expected);
}

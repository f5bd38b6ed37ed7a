//! What a reader sees of both sides.

use super::super::claim::load;
use super::super::samples::record;
use super::*;

fn claims(artifact: &str, holds: &str) -> Vec<Claim> {
    let text = format!(
        "- {{id: x, artifact: {artifact}, says: s, where: w, over: [depth], check: 'best(acc_average) == \"ghosted\"', holds: {holds}}}"
    );
    load(&text, "claims.yaml").unwrap()
}

fn rows(depth: usize, ghosted: f64) -> Vec<Record> {
    vec![record("a", depth, "none", 50.0), record("a", depth, "ghosted", ghosted)]
}

fn artifacts(of: &[(&str, Vec<Record>)]) -> Artifacts {
    of.iter().map(|(name, records)| ((*name).to_owned(), records.clone())).collect()
}

#[test]
fn both_counts_stand_in_one_line_with_a_word_each() {
    let paper = artifacts(&[("table2", [rows(7, 60.0), rows(11, 55.0)].concat())]);
    let ours = artifacts(&[("table2", [rows(4, 60.0), rows(6, 45.0)].concat())]);
    let text = render(&compare(&claims("table2", "all"), &paper, &ours, "tiny"));
    assert_eq!(text, "x: paper 2 of 2 HOLDS, ours 1 of 2 (tiny): FAILS\n  ours 6: false: none 50.00 > ghosted 45.00\n");
}

#[test]
fn a_figure_has_no_numbers_in_the_paper_and_may_not_have_been_run() {
    let text = render(&compare(&claims("figure5", "all"), &artifacts(&[]), &artifacts(&[]), "tiny"));
    assert_eq!(text, "x: paper not printed as numbers UNKNOWN, ours not run (tiny): UNKNOWN\n");
}

#[test]
fn unknown_groups_are_counted_and_explained() {
    let mut ours = rows(4, 60.0);
    ours[0].value = None;
    let ours = artifacts(&[("table2", [ours, rows(6, 60.0)].concat())]);
    let text = render(&compare(&claims("table2", "all"), &artifacts(&[]), &ours, "tiny"));
    let expected = "x: paper no data UNKNOWN, ours 1 of 2, 1 unknown (tiny): UNKNOWN\n  \
                    ours 4: unknown: acc_average has no value for none\n";
    assert_eq!(text, expected);
}

#[test]
fn an_absent_artifact_settles_only_what_it_could_not_change() {
    let word = |holds: &str, ghosted| {
        let ours = artifacts(&[("table2", rows(4, ghosted))]);
        let claims = claims("[table2, tableA6]", holds);
        let comparisons = compare(&claims, &artifacts(&[]), &ours, "tiny");
        (comparisons[0].ours.word(), comparisons[0].ours.note.clone().unwrap_or_default())
    };
    assert_eq!(word("all", 60.0), ("UNKNOWN", "tableA6: not run".to_owned()));
    assert_eq!(word("all", 40.0).0, "FAILS");
    assert_eq!(word("any", 60.0).0, "HOLDS");
    assert_eq!(word("any", 40.0).0, "UNKNOWN");
    assert_eq!(word("most", 60.0).0, "UNKNOWN");
}

#[test]
fn a_comparison_is_json() {
    let paper = artifacts(&[("table2", rows(7, 60.0))]);
    let claims = claims("table2", "all");
    let json = serde_json::to_value(compare(&claims, &paper, &artifacts(&[]), "tiny")).unwrap();
    assert_eq!(json[0]["claim"]["id"], "x");
    assert_eq!(json[0]["paper"]["holds"], true);
    assert_eq!(json[0]["ours"]["note"], "not run");
}

//! Tests for the report that lists the verdicts on the paper's numbers and on ours.

use super::super::ClaimAxis::Depth;
use super::super::RequiredSettings;
use super::super::artifact_numbers::ArtifactNumbers;
use super::super::sample_records::record;
use super::*;
use crate::results::number_record::Record;

const CLAIM: Claim = Claim {
    id: "x",
    artifacts: &["table2"],
    says: "s",
    section: "w",
    reading: Some("r"),
    over: &[Depth],
    needed: RequiredSettings::All,
    best_by: None,
    needs_paper_models: false,
    only: |_| true,
    check: |setting| setting.best("acc_average", "ghosted", &["none", "ghosted"]),
};

fn rows(depth: usize, ghosted: f64) -> Vec<Record> {
    vec![record("a", depth, "none", 50.0), record("a", depth, "ghosted", ghosted)]
}

fn table2(records: Vec<Record>) -> Artifacts {
    [("table2".to_owned(), ArtifactNumbers::printed(records))].into()
}

fn render_verdict(claim: &Claim, paper: &Artifacts, ours: &Artifacts) -> String {
    render(&judge_all([claim], paper, ours, "tiny"), true)
}

#[test]
fn claim_line_shows_counts_requirement_and_reading() {
    let paper = table2([rows(7, 60.0), rows(11, 55.0)].concat());
    let ours = table2([rows(4, 60.0), rows(6, 45.0)].concat());
    let expected = "1 claim: 1 fails (on the paper's numbers: 1 holds)\n\
                    x: paper 2 of 2, all needed: HOLDS; ours (tiny) 1 of 2, all needed: FAILS\n  read as: r\n  \
                    ours 6: fails: none 50.00 > ghosted 45.00\n";
    assert_eq!(render_verdict(&CLAIM, &paper, &ours), expected);
    let short = render(&judge_all([&CLAIM, &CLAIM], &paper, &ours, "tiny"), false);
    let line = "x: paper 2 of 2, all needed: HOLDS; ours (tiny) 1 of 2, all needed: FAILS\n";
    assert_eq!(short, format!("2 claims: 2 fail (on the paper's numbers: 2 hold)\n{line}{line}"));
}

#[test]
fn claim_on_a_missing_figure_is_unknown() {
    let claim = Claim { artifacts: &["figure5"], reading: None, ..CLAIM };
    let text = render_verdict(&claim, &Artifacts::new(), &Artifacts::new());
    assert_eq!(
        text,
        "1 claim: 1 is unknown (on the paper's numbers: 1 is unknown)\n\
         x: paper figure5 is not printed as numbers: UNKNOWN; \
         ours (tiny) figure5 has no results: run `ghostlab reproduce figure5 --profile tiny`: UNKNOWN\n"
    );
}

#[test]
fn unknown_settings_are_counted_and_explained() {
    let mut four = rows(4, 60.0);
    four[0].value = None;
    let text = render_verdict(&CLAIM, &Artifacts::new(), &table2([four, rows(6, 60.0)].concat()));
    let expected = "1 claim: 1 is unknown (on the paper's numbers: 1 is unknown)\n\
                    x: paper table2 has no data: UNKNOWN; ours (tiny) 1 of 2, 1 unknown, all needed: UNKNOWN\n  read as: r\n  \
                    ours 4: unknown: acc_average has no value for none\n";
    assert_eq!(text, expected);
}

#[test]
fn claims_about_the_papers_models_are_not_judged_on_others() {
    let claim = Claim { needs_paper_models: true, reading: None, ..CLAIM };
    let artifacts_of =
        |backbone: &str| table2(vec![record(backbone, 7, "none", 50.0), record(backbone, 7, "ghosted", 45.0)]);
    let cases = [
        (artifacts_of("tiny-llama"), Judgement::NotApplicable, "the sentence is about the paper's models"),
        (artifacts_of("llama-3-8b"), Judgement::Fails, "0 of 1, all needed"),
        (Artifacts::new(), Judgement::Unknown, "table2 has no results: run `ghostlab reproduce table2 --profile tiny`"),
    ];
    for (ours, outcome, count) in cases {
        assert_eq!(
            (
                (judge_all([&claim], &artifacts_of("llama-3-8b"), &ours, "tiny")[0].ours.clone()).outcome,
                (judge_all([&claim], &artifacts_of("llama-3-8b"), &ours, "tiny")[0].ours.clone()).count().as_str()
            ),
            (outcome, count)
        );
    }
}

// The expected numbers were computed by hand from the recorded run.
#[test]
fn recorded_headline_states_significance_and_seeds() {
    let results = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let folders = ["table2", "seeds"].map(|artifact| results.join(artifact).join("tiny"));
    let expected = "5 of 6 on seed 0, significantly in 1 of 6; over five seeds in 2 of 6";
    let headline = find_headline(&folders, "tiny").unwrap().unwrap();
    assert_eq!(headline, format!("Ghost Layer (Ours): highest ACC AVG in {expected}."));
    let judged = judge_folders(&folders, "tiny").unwrap();
    assert_eq!(
        count(&judged, "table2-highest"),
        "5 of 6 (significantly in 1 of 6; over five seeds in 2 of 6), all needed"
    );
    assert_eq!(count(&judged, "table2-average"), "6 of 6, all needed", "significance does not apply to second place");
}

fn count(judged: &[JudgedClaim<'_>], id: &str) -> String {
    judged.iter().find(|entry| entry.claim.id == id).unwrap().ours.count()
}

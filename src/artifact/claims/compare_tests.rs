//! What a reader sees of both sides.

use super::super::ClaimAxis::Depth;
use super::super::Needed;
use super::super::run::ArtifactNumbers;
use super::super::samples::record;
use super::*;
use crate::results::record::Record;

const CLAIM: Claim = Claim {
    id: "x",
    artifacts: &["table2"],
    says: "s",
    place: "w",
    reading: Some("r"),
    over: &[Depth],
    needed: Needed::All,
    only: |_| true,
    check: |of| of.best("acc_average", "ghosted", &["none", "ghosted"]),
};

fn rows(depth: usize, ghosted: f64) -> Vec<Record> {
    vec![record("a", depth, "none", 50.0), record("a", depth, "ghosted", ghosted)]
}

fn table2(records: Vec<Record>) -> Artifacts {
    [("table2".to_owned(), ArtifactNumbers::printed(records))].into()
}

fn rendered(claim: &Claim, paper: &Artifacts, ours: &Artifacts) -> String {
    render(&judged([claim], paper, ours, "tiny"))
}

#[test]
fn both_counts_stand_in_one_line_with_what_is_needed_and_how_it_is_read() {
    let paper = table2([rows(7, 60.0), rows(11, 55.0)].concat());
    let ours = table2([rows(4, 60.0), rows(6, 45.0)].concat());
    let expected = "x: paper 2 of 2, all needed: HOLDS; ours (tiny) 1 of 2, all needed: FAILS\n  read as: r\n  \
                    ours 6: fails: none 50.00 > ghosted 45.00\n";
    assert_eq!(rendered(&CLAIM, &paper, &ours), expected);
}

#[test]
fn a_figure_has_no_numbers_in_the_paper_and_may_not_have_been_run() {
    let claim = Claim { artifacts: &["figure5"], reading: None, ..CLAIM };
    let text = rendered(&claim, &Artifacts::new(), &Artifacts::new());
    assert_eq!(
        text,
        "x: paper figure5 is not printed as numbers: UNKNOWN; \
         ours (tiny) figure5 is not made: `ghostlab reproduce figure5 --profile tiny` makes it: UNKNOWN\n"
    );
}

#[test]
fn unknown_settings_are_counted_and_explained() {
    let mut four = rows(4, 60.0);
    four[0].value = None;
    let text = rendered(&CLAIM, &Artifacts::new(), &table2([four, rows(6, 60.0)].concat()));
    let expected = "x: paper table2 has no data: UNKNOWN; ours (tiny) 1 of 2, 1 unknown, all needed: UNKNOWN\n  read as: r\n  \
                    ours 4: unknown: acc_average has no value for none\n";
    assert_eq!(text, expected);
}

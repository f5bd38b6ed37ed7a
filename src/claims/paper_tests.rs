//! The claims of `experiments/claims.yaml` on the paper's own tables.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::record::{Condition, Record};

fn claims() -> Vec<Claim> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("experiments/claims.yaml");
    load(&std::fs::read_to_string(path).unwrap(), "experiments/claims.yaml").unwrap()
}

/// The paper's tables as they are printed. Tables of tasks call the mean `average`; elsewhere it is `acc_average`.
fn paper() -> Artifacts {
    let mut artifacts = Artifacts::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/paper")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "csv") {
            continue;
        }
        for line in std::fs::read_to_string(&path).unwrap().lines().skip(1) {
            let cells: Vec<&str> = line.split(',').collect();
            let &[artifact, backbone, layers, depth, criterion, recovery, finetuned, calibration, metric, value, error] =
                cells.as_slice()
            else {
                panic!("{line} has not 11 cells");
            };
            let record = Record {
                condition: Condition {
                    backbone: backbone.to_owned(),
                    layers: layers.parse().unwrap(),
                    depth: depth.parse().unwrap(),
                    criterion: criterion.to_owned(),
                    recovery: recovery.to_owned(),
                    finetuned: finetuned.parse().unwrap(),
                    calibration: calibration.to_owned(),
                },
                metric: if metric == "average" { "acc_average" } else { metric }.to_owned(),
                value: value.parse().ok(),
                error: error.parse().ok(),
            };
            artifacts.entry(artifact.to_owned()).or_default().push(record);
        }
    }
    artifacts
}

#[test]
fn every_claim_about_a_table_is_settled_on_the_papers_own_tables() {
    let (claims, paper) = (claims(), paper());
    for comparison in compare(&claims, &paper, &Artifacts::new(), "tiny") {
        let (id, verdict) = (&comparison.claim.id, &comparison.paper);
        if comparison.claim.artifacts[0].starts_with("figure") {
            assert_eq!(verdict.note.as_deref(), Some("not printed as numbers"), "{id}");
        } else {
            assert!(verdict.holds.is_some() && verdict.unknown == 0, "{id} is open: {verdict:?}");
        }
    }
}

#[test]
fn these_sentences_do_not_hold_on_the_papers_own_tables() {
    let (claims, paper) = (claims(), paper());
    let comparisons = compare(&claims, &paper, &Artifacts::new(), "tiny");
    let fails: Vec<(&str, usize, usize)> = comparisons
        .iter()
        .filter(|comparison| comparison.paper.holds == Some(false))
        .map(|comparison| (comparison.claim.id.as_str(), comparison.paper.held, comparison.paper.of))
        .collect();
    let expected = [
        // LLaMA-3.1-8B, Shortened LLaMA, 11 layers: ReplaceMe (Cos) has 48.08, ghosted 113.18.
        ("abstract-perplexity", 17, 18),
        // The same cell.
        ("table3-margin-widens", 8, 9),
        // 64 to 128 sequences save 1.34, 32 to 64 only 0.58.
        ("table4-returns-diminish", 0, 1),
        // DeepSeek-R1-Distill-LLaMA-8B, 11 layers: 52.11 on C4, 53.20 on WikiText-2.
        ("tableA7-corpus", 5, 6),
        // C4 21.53 and 21.52, accuracy 60.00 and 60.01.
        ("tableA10-identical", 0, 1),
    ];
    assert_eq!(fails, expected, "{}", render(&comparisons));
}

/// Records of all figures for one backbone, in which ghosted has `ghosted` of the pruned model's error.
fn figures(ghosted: f64) -> Artifacts {
    let mut artifacts = Artifacts::new();
    let mut add = |artifact: &str, depth, recovery: &str, metric: &str, value| {
        let record = samples::with_metric(samples::record("tiny-llama", depth, recovery, value), metric);
        artifacts.entry(artifact.to_owned()).or_default().push(record);
    };
    let existing = ["prune-and-comp", "replaceme-ls", "replaceme-cos", "linearpatch-diag", "linearpatch-rotate"];
    let errors = existing.map(|recovery| (recovery, 0.9)).into_iter().chain([("none", 1.0), ("ghosted", ghosted)]);
    for (recovery, error) in errors {
        add("figure1", 4, recovery, "boundary_mae", error * 0.02);
        add("figure4", 4, recovery, "channel_mae_median", error * 0.02);
        add("figure4", 4, recovery, "channels_reduced_share", if error < 0.8 { 1.0 } else { 0.9 });
        add("figure5", 4, recovery, "acc_average", 60.0 - error);
        add("figure5", 6, recovery, "acc_average", 50.0 - 2.0 * error);
    }
    add("figure3", 4, "ghosted", "m_symmetric_share", 1.0 - ghosted * ghosted);
    add("figure3", 4, "ghosted", "m_antisymmetric_share", 1.0 - ghosted);
    artifacts
}

#[test]
fn every_claim_about_a_figure_can_hold_and_can_fail() {
    let claims = claims();
    let words = |ghosted| -> Vec<(String, &'static str)> {
        compare(&claims, &Artifacts::new(), &figures(ghosted), "tiny")
            .iter()
            .filter(|comparison| comparison.claim.artifacts[0].starts_with("figure"))
            .map(|comparison| (comparison.claim.id.clone(), comparison.ours.word()))
            .collect()
    };
    let (good, bad) = (words(0.4), words(1.1));
    assert_eq!(good.len(), 8);
    assert!(good.iter().all(|(_, word)| *word == "HOLDS"), "{good:?}");
    // Those about the existing methods do not look at ghosted.
    let fails: Vec<&str> = bad.iter().filter(|(_, word)| *word == "FAILS").map(|(id, _)| id.as_str()).collect();
    let about_ghosted =
        ["figure3-substantial", "figure3-comparable", "figure4-uniform", "figure5-highest", "figure5-gap-widens"];
    assert_eq!(fails, about_ghosted);
}

#[test]
fn the_claims_are_about_all_artifacts_that_have_sentences() {
    let named: BTreeSet<String> = claims().into_iter().flat_map(|claim| claim.artifacts).collect();
    for artifact in
        ["figure1", "figure3", "figure4", "figure5", "table2", "table3", "table4", "tableA6", "tableA7", "tableA10"]
    {
        assert!(named.contains(artifact), "no claim is about {artifact}");
    }
}

//! The abstract and section 1.

use super::super::claim::ClaimAxis::{Backbone, Criterion, Depth};
use super::super::claim::{Claim, Needed};
use super::words::{ACCURACY, EXISTING, GHOSTED, NONE, PERPLEXITY, REPAIRS, any};
use crate::metric::{ANTISYMMETRIC, BOUNDARY_ERROR};

pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "abstract-accuracy",
        artifacts: &["table3"],
        says: "Experiments across multiple LLM backbones and pruning strategies demonstrate that our method consistently \
               improves accuracy and perplexity over prior training-free baselines",
        place: "Abstract",
        reading: Some("consistently: in every combination of backbone, criterion and depth; here the accuracy"),
        over: &[Backbone, Criterion, Depth],
        needed: Needed::All,
        only: any,
        check: |of| of.lead(ACCURACY, GHOSTED, &REPAIRS).above(0.0),
    },
    Claim {
        id: "abstract-perplexity",
        artifacts: &["table3"],
        says: "Experiments across multiple LLM backbones and pruning strategies demonstrate that our method consistently \
               improves accuracy and perplexity over prior training-free baselines",
        place: "Abstract",
        reading: Some("consistently: in every combination of backbone, criterion and depth; here the perplexity"),
        over: &[Backbone, Criterion, Depth],
        needed: Needed::All,
        only: any,
        check: |of| of.lead(PERPLEXITY, GHOSTED, &REPAIRS).above(0.0),
    },
    Claim {
        id: "figure1-uncorrected",
        artifacts: &["figure1"],
        says: "Existing methods leave a substantial portion of the error uncorrected, suggesting that the boundary \
               activation mismatch is not entirely resolved after recovery.",
        place: "Section 1",
        reading: Some(
            "a substantial portion: every existing method leaves more than half of the error of the pruned model",
        ),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: |of| of.least(BOUNDARY_ERROR.id, &EXISTING).above(0.5 * of.value(BOUNDARY_ERROR.id, NONE)),
    },
    Claim {
        id: "figure3-substantial",
        artifacts: &["figure3"],
        says: "We further show that the optimal operator contains a substantial anti-symmetric component, which is \
               structurally inaccessible to symmetric constructions such as LinearPatch.",
        place: "Section 1",
        reading: Some("substantial: at least half of the operator's norm, which is a quarter of its square"),
        over: &[Backbone],
        needed: Needed::All,
        only: any,
        check: |of| of.value(ANTISYMMETRIC.id, GHOSTED).at_least(0.5),
    },
];

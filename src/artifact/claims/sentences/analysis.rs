//! Section 4, the analysis of the operator.

use super::super::claim::ClaimAxis::{Backbone, Depth};
use super::super::claim::{Claim, Needed};
use super::words::{EXISTING, GHOSTED, NONE, REPAIRS, any};
use crate::metric;

const SYMMETRIC: &str = metric::SYMMETRIC.id;
const ANTISYMMETRIC: &str = metric::ANTISYMMETRIC.id;
const CHANNEL_ERROR: &str = metric::CHANNEL_ERROR.id;
const CHANNELS_REDUCED: &str = metric::CHANNELS_REDUCED.id;

pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "figure3-comparable",
        artifacts: &["figure3"],
        says: "Figure 3 shows that M*_asym is non-zero and comparable in magnitude to M*_sym consistently across all two \
               backbones.",
        place: "Section 4",
        reading: Some("comparable in magnitude: within a factor of two, whichever is larger"),
        over: &[Backbone],
        needed: Needed::All,
        only: any,
        check: |of| {
            let (symmetric, antisymmetric) = (of.value(SYMMETRIC, GHOSTED), of.value(ANTISYMMETRIC, GHOSTED));
            let non_zero = antisymmetric.above(0.0);
            let comparable =
                antisymmetric.at_most(2.0 * symmetric.clone()).and(symmetric.at_most(2.0 * antisymmetric.clone()));
            non_zero.and(comparable)
        },
    },
    Claim {
        id: "figure4-baselines-track",
        artifacts: &["figure4"],
        says: "Existing recovery methods largely track the pruned baseline across channels, and in some cases even exceed \
               it, suggesting that their operators only indirectly affect the activation gap.",
        place: "Section 4",
        reading: Some(
            "largely track: on average over the methods, the median channel keeps at least three quarters of the pruned \
             model's error, or more than all of it; here only this half of the sentence",
        ),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: |of| of.mean(CHANNEL_ERROR, &EXISTING).at_least(0.75 * of.value(CHANNEL_ERROR, NONE)),
    },
    Claim {
        id: "figure4-baselines-exceed",
        artifacts: &["figure4"],
        says: "Existing recovery methods largely track the pruned baseline across channels, and in some cases even exceed \
               it, suggesting that their operators only indirectly affect the activation gap.",
        place: "Section 4",
        reading: Some(
            "in some cases even exceed it: some method's curve lies above the pruned baseline's, its error larger in more \
             than half of the channels; here only this half of the sentence",
        ),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: |of| of.least(CHANNELS_REDUCED, &EXISTING).below(0.5),
    },
    Claim {
        id: "figure4-uniform",
        artifacts: &["figure4"],
        says: "Ghosted Layers, in contrast, directly targets the activation mismatch through its closed-form \
               unconstrained operator, and consequently reduces the per-channel error substantially and uniformly across \
               the hidden dimension.",
        place: "Section 4",
        reading: Some(
            "uniformly: in at least 99 of 100 channels; substantially: the median channel by more than a quarter, and \
             further than any existing method",
        ),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: |of| {
            let uniformly = of.value(CHANNELS_REDUCED, GHOSTED).at_least(0.99);
            let error = of.value(CHANNEL_ERROR, GHOSTED);
            let substantially = error.below(0.75 * of.value(CHANNEL_ERROR, NONE));
            uniformly.and(substantially).and(of.lead(CHANNEL_ERROR, GHOSTED, &REPAIRS).above(0.0))
        },
    },
];

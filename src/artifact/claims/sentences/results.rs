//! Section 5, the results, and section 6, the discussion.

use super::super::claim::ClaimAxis::{Backbone, Criterion, Depth};
use super::super::claim::{Claim, Needed};
use super::super::outcome::Check;
use super::words::{ACCURACY, DIAG, GHOSTED, PERPLEXITY, REPAIRS, ROTATE, ROWS, any, lead_widens, streamlined};

/// The methods of figure 5.
const DEPTHS_SHOWN: [&str; 4] = ["replaceme-ls", DIAG, ROTATE, GHOSTED];

pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "table2-average",
        artifacts: &["table2"],
        says: "Across both pruning ratios and all three backbones, Ghosted Layers attains the highest or competitive \
               average accuracy among training-free recovery methods.",
        place: "Section 5.2",
        reading: Some("competitive: second"),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: streamlined,
        check: |of| of.rank(ACCURACY, GHOSTED, &REPAIRS).at_most(2.0),
    },
    Claim {
        id: "table2-highest",
        artifacts: &["table2"],
        says: "Across both pruning ratios and all three backbones, Ghosted Layers attains the highest or competitive \
               average accuracy among training-free recovery methods.",
        place: "Section 5.2",
        reading: Some("the first half of the sentence alone: the highest"),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: streamlined,
        check: |of| of.best(ACCURACY, GHOSTED, &REPAIRS),
    },
    Claim {
        id: "table3-lowest",
        artifacts: &["table3"],
        says: "Across all three pruning criteria, Ghosted Layers achieves the lowest average perplexity in most \
               combinations, and the margin widens under the more aggressive 11-layer setting.",
        place: "Section 5.2",
        reading: Some("the first half of the sentence"),
        over: &[Backbone, Criterion, Depth],
        needed: Needed::Most,
        only: any,
        check: |of| of.best(PERPLEXITY, GHOSTED, &ROWS),
    },
    Claim {
        id: "table3-margin-widens",
        artifacts: &["table3"],
        says: "Across all three pruning criteria, Ghosted Layers achieves the lowest average perplexity in most \
               combinations, and the margin widens under the more aggressive 11-layer setting.",
        place: "Section 5.2",
        reading: Some(
            "the second half of the sentence: the margin over the best other method, for each backbone and criterion",
        ),
        over: &[Backbone, Criterion],
        needed: Needed::All,
        only: any,
        check: |of| lead_widens(of, PERPLEXITY, &REPAIRS),
    },
    Claim {
        id: "table4-saturates",
        artifacts: &["table4"],
        says: "accuracy saturates almost immediately: 32 sequences already reach 60.01 AVG accuracy, and further increases \
               to 64 or 128 yield essentially no gain (59.99 and 60.04).",
        place: "Section 5.3",
        reading: Some("essentially no gain: less than 0.1 points"),
        over: &[Backbone],
        needed: Needed::All,
        only: any,
        check: |of| {
            let with = |sequences| of.sequences(sequences).value(ACCURACY, GHOSTED);
            (with(64).or_larger(with(128)) - with(32)).below(0.1)
        },
    },
    Claim {
        id: "table4-perplexity-improves",
        artifacts: &["table4"],
        says: "Perplexity continues to improve modestly with more calibration data, but the marginal returns diminish \
               sharply beyond 32.",
        place: "Section 5.3",
        reading: Some(
            "the first half of the sentence: from 32 to 64 and from 64 to 128 sequences the average perplexity falls",
        ),
        over: &[Backbone],
        needed: Needed::All,
        only: any,
        check: |of| {
            let with = |sequences| of.sequences(sequences).value(PERPLEXITY, GHOSTED);
            with(64).below(with(32)).and(with(128).below(with(64)))
        },
    },
    Claim {
        id: "table4-returns-diminish",
        artifacts: &["table4"],
        says: "Perplexity continues to improve modestly with more calibration data, but the marginal returns diminish \
               sharply beyond 32.",
        place: "Section 5.3",
        reading: Some(
            "the second half of the sentence, without the word sharply: each doubling beyond 32 saves less than the \
             doubling before it",
        ),
        over: &[Backbone],
        needed: Needed::All,
        only: any,
        check: |of| {
            let with = |sequences| of.sequences(sequences).value(PERPLEXITY, GHOSTED);
            let saved_by_doubling = |sequences| with(sequences) - with(2 * sequences);
            let diminish = |sequences| saved_by_doubling(sequences).below(saved_by_doubling(sequences / 2));
            diminish(32).and(diminish(64))
        },
    },
    Claim {
        id: "table5-linearpatch",
        artifacts: &["table5"],
        says: "Under this matched cost, Ghosted Layers consistently achieves higher accuracy and lower perplexity than \
               LinearPatch.",
        place: "Section 6",
        reading: None,
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: |of| {
            let better = |metric| of.lead(metric, GHOSTED, &[DIAG, ROTATE]).above(0.0);
            Check::all([ACCURACY, PERPLEXITY].map(better))
        },
    },
    Claim {
        id: "figure5-highest",
        artifacts: &["figure5"],
        says: "Ghosted Layers consistently achieves the highest accuracy across all pruning depths.",
        place: "Section 6",
        reading: None,
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: |of| of.best(ACCURACY, GHOSTED, &DEPTHS_SHOWN),
    },
    Claim {
        id: "figure5-gap-widens",
        artifacts: &["figure5"],
        says: "Notably, the performance gap over competing methods widens as pruning becomes more aggressive, indicating \
               that the unconstrained operator remains effective even under larger activation mismatch.",
        place: "Section 6",
        reading: Some("the gap over the best competing method is wider at the deepest cut than at the shallowest one"),
        over: &[Backbone],
        needed: Needed::All,
        only: any,
        check: |of| lead_widens(of, ACCURACY, &DEPTHS_SHOWN),
    },
];

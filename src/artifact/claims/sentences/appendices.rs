//! The appendices.

use super::super::claim::ClaimAxis::{Backbone, Depth};
use super::super::claim::{Claim, Needed};
use super::super::outcome::Check;
use super::words::{
    ACCURACY, DIAG, GHOSTED, PERPLEXITY, REPAIRS, ROTATE, any, highest_of_all_rows, lead_widens, streamlined,
};
use crate::results::record::Condition;

/// The methods that the paper fine-tunes.
const FINETUNED: [&str; 3] = [DIAG, ROTATE, GHOSTED];
/// The two ways to compute the operator.
const SVD: &str = "ghosted:svd";
const SOLVE: &str = "ghosted:solve";
/// The benchmarks of table A10.
const A10: [&str; 4] = ["ppl_wikitext2", "ppl_c4", "ppl_ptb", ACCURACY];

fn finetuned(of: &Condition) -> bool {
    of.finetuned
}

pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "tableA4-highest",
        artifacts: &["tableA4"],
        says: "As shown in Table A4, Ghosted Layers + FT attains the highest average accuracy across all four backbones \
               under the same fine-tuning budget.",
        place: "Appendix D",
        reading: None,
        over: &[Backbone],
        needed: Needed::All,
        only: finetuned,
        check: |of| of.best(ACCURACY, GHOSTED, &FINETUNED),
    },
    Claim {
        id: "tableA4-margin",
        artifacts: &["tableA4"],
        says: "The margin over the stronger LinearPatch (Rotate) + FT ranges from +0.08 on LLaMA-2-7B to +1.04 on \
               LLaMA-3.1-8B",
        place: "Appendix D",
        reading: Some("a lower bound: on every backbone by 0.08 points or more; a wider margin bears it out"),
        over: &[Backbone],
        needed: Needed::All,
        only: finetuned,
        check: |of| of.gap(ACCURACY, GHOSTED, ROTATE).at_least(0.08),
    },
    Claim {
        id: "tableA4-rotate-stronger",
        artifacts: &["tableA4"],
        says: "The margin over the stronger LinearPatch (Rotate) + FT ranges from +0.08 on LLaMA-2-7B to +1.04 on \
               LLaMA-3.1-8B",
        place: "Appendix D",
        reading: Some(
            "the word stronger: LinearPatch (Rotate) + FT is at least as accurate as LinearPatch (Diag) + FT",
        ),
        over: &[Backbone],
        needed: Needed::All,
        only: finetuned,
        check: |of| of.value(ACCURACY, ROTATE).at_least(of.value(ACCURACY, DIAG)),
    },
    Claim {
        id: "tableA5-lowest",
        artifacts: &["tableA5"],
        says: "Ghosted Layers + FT achieves the lowest average perplexity across all four backbones",
        place: "Appendix D",
        reading: None,
        over: &[Backbone],
        needed: Needed::All,
        only: finetuned,
        check: |of| of.best(PERPLEXITY, GHOSTED, &FINETUNED),
    },
    Claim {
        id: "tableA5-reduction",
        artifacts: &["tableA5"],
        says: "with relative reductions of 14.4% (LLaMA-2-7B), 26.3% (LLaMA-3-8B), 25.7% (LLaMA-3.1-8B), and 30.9% \
               (DeepSeek-R1-Distill-LLaMA-8B) over the stronger LinearPatch (Rotate) + FT.",
        place: "Appendix D",
        reading: Some("a lower bound: on every backbone by 14.4 % or more, as rounded"),
        over: &[Backbone],
        needed: Needed::All,
        only: finetuned,
        check: |of| of.gap(PERPLEXITY, GHOSTED, ROTATE).share_of(of.value(PERPLEXITY, ROTATE)).at_least(0.1435),
    },
    Claim {
        id: "tableA5-more-pronounced",
        artifacts: &["tableA4", "tableA5"],
        says: "Table A5 shows a more pronounced gap on the language modeling benchmarks.",
        place: "Appendix D",
        reading: Some("to LinearPatch (Rotate) + FT, as a part of its value, larger in perplexity than in accuracy"),
        over: &[Backbone],
        needed: Needed::All,
        only: finetuned,
        check: |of| {
            let part = |metric| of.gap(metric, GHOSTED, ROTATE).share_of(of.value(metric, ROTATE));
            part(PERPLEXITY).above(part(ACCURACY))
        },
    },
    Claim {
        id: "tableA6-highest",
        artifacts: &["tableA6"],
        says: "Ghosted Layers attains the highest average accuracy in all six settings across the three backbones and two \
               pruning ratios, consistent with the trend observed in the main paper.",
        place: "Appendix E",
        reading: Some("of all rows of a setting, those of the criteria without a recovery among them"),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: highest_of_all_rows,
    },
    Claim {
        id: "tableA6-qwen-widens",
        artifacts: &["tableA6"],
        says: "Notably, the margin over the strongest training-free baseline tends to widen on Qwen-3-14B under aggressive \
               pruning (15/40), where Ghosted Layers achieves 43.61 AVG accuracy versus 40.08 for the next-best method \
               (ReplaceMe (Cos)).",
        place: "Appendix E",
        reading: None,
        over: &[Backbone],
        needed: Needed::All,
        only: |of| streamlined(of) && ["qwen-3-14b", "tiny-qwen3"].contains(&of.backbone.as_str()),
        check: |of| lead_widens(of, ACCURACY, &REPAIRS),
    },
    Claim {
        id: "tableA7-highest",
        artifacts: &["tableA7"],
        says: "Ghosted Layers attains the highest average accuracy in all six settings, consistent with the C4-calibrated \
               results in the main paper.",
        place: "Appendix F",
        reading: Some("of all rows of a setting, those of the criteria without a recovery among them"),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: highest_of_all_rows,
    },
    Claim {
        id: "tableA7-corpus",
        artifacts: &["table2", "tableA7"],
        says: "The average accuracy of Ghosted Layers changes by at most 0.36 points when the calibration corpus is switched \
               from C4 to WikiText-2 (e.g., 60.01 → 59.65 on LLaMA-3.1-8B at 7-layer pruning), indicating that the \
               closed-form operator is not sensitive to the specific calibration distribution.",
        place: "Appendix F",
        reading: Some("an upper bound: by 0.36 points or less, up or down"),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: streamlined,
        check: |of| {
            let on = |corpus| of.corpus(corpus).value(ACCURACY, GHOSTED);
            (on("wikitext2") - on("c4")).abs().at_most(0.36)
        },
    },
    Claim {
        id: "tableA7-gap-widens",
        artifacts: &["tableA7"],
        says: "Notably, the gap over the strongest training-free baseline widens under more aggressive 11-layer pruning, \
               where the boundary activation mismatch is larger, suggesting that the unconstrained formulation is \
               especially beneficial when the gap to reconstruct grows.",
        place: "Appendix F",
        reading: None,
        over: &[Backbone],
        needed: Needed::All,
        only: streamlined,
        check: |of| lead_widens(of, ACCURACY, &REPAIRS),
    },
    Claim {
        id: "tableA10-identical",
        artifacts: &["tableA10"],
        says: "Both procedures produce identical results.",
        place: "Appendix H, caption of Table A10",
        reading: Some("identical: the same as printed"),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: |of| {
            let identical = |metric| of.value(metric, SVD).equal(of.value(metric, SOLVE));
            Check::all(A10.map(identical)).and(identical(PERPLEXITY))
        },
    },
    Claim {
        id: "tableA10-negligible",
        artifacts: &["tableA10"],
        says: "As shown in Table A10, the two procedures yield negligible differences in both perplexity and accuracy across \
               all benchmarks, confirming that the small ridge regularization ε = 10⁻⁶ has no measurable effect on \
               downstream performance.",
        place: "Appendix H",
        reading: Some("negligible: less than a thousandth of the value, up or down"),
        over: &[Backbone, Depth],
        needed: Needed::All,
        only: any,
        check: |of| {
            let negligible = |metric| of.gap(metric, SVD, SOLVE).abs().below(0.001 * of.value(metric, SOLVE));
            Check::all(A10.map(negligible))
        },
    },
];

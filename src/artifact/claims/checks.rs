//! Each check of `claims.yaml`: a short function of the numbers of one setting.

use super::number::ClaimCheck;
use super::setting::ClaimSetting;
use crate::metric;
use crate::recovery::NONE;
use crate::results::record::Condition;

const ACCURACY: &str = metric::ACCURACY.id;
const PERPLEXITY: &str = metric::PERPLEXITY.id;
const BOUNDARY_ERROR: &str = metric::BOUNDARY_ERROR.id;
const SYMMETRIC: &str = metric::SYMMETRIC.id;
const ANTISYMMETRIC: &str = metric::ANTISYMMETRIC.id;
const CHANNEL_ERROR: &str = metric::CHANNEL_ERROR.id;
const CHANNELS_REDUCED: &str = metric::CHANNELS_REDUCED.id;
const PREFILL: &str = metric::PREFILL.id;
const MEMORY: &str = metric::MEMORY.id;
/// The benchmarks of table A10.
const A10: [&str; 4] = ["ppl_wikitext2", "ppl_c4", "ppl_ptb", ACCURACY];

/// The paper's own method.
const GHOSTED: &str = "ghosted";
/// The two ways to compute its operator.
const SVD: &str = "ghosted:svd";
const SOLVE: &str = "ghosted:solve";
const DIAG: &str = "linearpatch-diag";
const ROTATE: &str = "linearpatch-rotate";
/// The methods that the paper compares with.
const EXISTING: [&str; 5] = ["prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE];
/// All that repair.
const REPAIRS: [&str; 6] = ["prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE, GHOSTED];
/// All that a table shows of a criterion; the pruned model is one.
const ROWS: [&str; 7] = [NONE, "prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE, GHOSTED];
/// The methods of figure 5.
const DEPTHS_SHOWN: [&str; 4] = ["replaceme-ls", DIAG, ROTATE, GHOSTED];
/// The methods that the paper fine-tunes.
const FINETUNED: [&str; 3] = [DIAG, ROTATE, GHOSTED];

/// Differences up to that many standard deviations are noise.
const DEVIATIONS: f64 = 3.0;

/// Evaluates a claim for one setting.
pub(super) type Checked = fn(&ClaimSetting<'_>) -> ClaimCheck;
/// Which settings a claim is about.
pub(super) type Only = fn(&Condition) -> bool;

/// Indexed by the text after `only`; the first is the default.
pub(super) static ONLY: [(&str, Only); 4] = [
    ("any", |_| true),
    ("streamlined", streamlined),
    ("streamlined-qwen", |of| streamlined(of) && ["qwen-3-14b", "tiny-qwen3"].contains(&of.backbone.as_str())),
    ("finetuned", |of| of.finetuned),
];

fn streamlined(of: &Condition) -> bool {
    of.criterion == "llm-streamline"
}

/// Indexed by the claim's id.
pub(super) static CHECKS: &[(&str, Checked)] = &[
    ("abstract-accuracy", |of| of.lead(ACCURACY, GHOSTED, &REPAIRS).above(0.0)),
    ("abstract-perplexity", |of| of.lead(PERPLEXITY, GHOSTED, &REPAIRS).above(0.0)),
    ("figure1-uncorrected", |of| of.least(BOUNDARY_ERROR, &EXISTING).above(0.5 * of.value(BOUNDARY_ERROR, NONE))),
    ("figure3-substantial", |of| of.value(ANTISYMMETRIC, GHOSTED).at_least(0.5)),
    ("figure3-comparable", |of| {
        let symmetric = of.value(SYMMETRIC, GHOSTED);
        let antisymmetric = of.value(ANTISYMMETRIC, GHOSTED);
        let non_zero = antisymmetric.above(0.0);
        let comparable =
            antisymmetric.at_most(2.0 * symmetric.clone()).and(symmetric.at_most(2.0 * antisymmetric.clone()));
        non_zero.and(comparable)
    }),
    ("figure4-baselines-track", |of| of.mean(CHANNEL_ERROR, &EXISTING).at_least(0.75 * of.value(CHANNEL_ERROR, NONE))),
    ("figure4-baselines-exceed", |of| of.least(CHANNELS_REDUCED, &EXISTING).below(0.5)),
    ("figure4-uniform", |of| {
        let uniformly = of.value(CHANNELS_REDUCED, GHOSTED).at_least(0.99);
        let error = of.value(CHANNEL_ERROR, GHOSTED);
        let substantially = error.below(0.75 * of.value(CHANNEL_ERROR, NONE));
        uniformly.and(substantially).and(of.lead(CHANNEL_ERROR, GHOSTED, &REPAIRS).above(0.0))
    }),
    ("table2-average", |of| of.rank(ACCURACY, GHOSTED, &REPAIRS).at_most(2.0)),
    ("table2-highest", |of| of.best(ACCURACY, GHOSTED, &REPAIRS)),
    ("table3-lowest", |of| of.best(PERPLEXITY, GHOSTED, &ROWS)),
    ("table3-margin-widens", |of| lead_widens(of, PERPLEXITY, &REPAIRS)),
    ("table4-saturates", |of| {
        let with = |sequences| of.sequences(sequences).value(ACCURACY, GHOSTED);
        (with(64).or_larger(with(128)) - with(32)).below(0.1)
    }),
    ("table4-perplexity-improves", |of| {
        let with = |sequences| of.sequences(sequences).value(PERPLEXITY, GHOSTED);
        with(64).below(with(32)).and(with(128).below(with(64)))
    }),
    ("table4-returns-diminish", |of| {
        let with = |sequences| of.sequences(sequences).value(PERPLEXITY, GHOSTED);
        let saved_by_doubling = |sequences| with(sequences) - with(2 * sequences);
        let diminish = |sequences| saved_by_doubling(sequences).below(saved_by_doubling(sequences / 2));
        diminish(32).and(diminish(64))
    }),
    ("table5-linearpatch", |of| {
        let better = |metric| of.lead(metric, GHOSTED, &[DIAG, ROTATE]).above(0.0);
        ClaimCheck::all([ACCURACY, PERPLEXITY].map(better))
    }),
    ("figure5-highest", |of| of.best(ACCURACY, GHOSTED, &DEPTHS_SHOWN)),
    ("figure5-gap-widens", |of| lead_widens(of, ACCURACY, &DEPTHS_SHOWN)),
    ("tableA4-highest", |of| of.best(ACCURACY, GHOSTED, &FINETUNED)),
    ("tableA4-margin", |of| of.lead(ACCURACY, GHOSTED, &[ROTATE]).at_least(0.08)),
    ("tableA4-rotate-stronger", |of| of.value(ACCURACY, ROTATE).at_least(of.value(ACCURACY, DIAG))),
    ("tableA5-lowest", |of| of.best(PERPLEXITY, GHOSTED, &FINETUNED)),
    ("tableA5-reduction", |of| {
        of.lead(PERPLEXITY, GHOSTED, &[ROTATE]).share_of(of.value(PERPLEXITY, ROTATE)).at_least(0.1435)
    }),
    ("tableA5-more-pronounced", |of| {
        let part = |metric| of.lead(metric, GHOSTED, &[ROTATE]).share_of(of.value(metric, ROTATE));
        part(PERPLEXITY).above(part(ACCURACY))
    }),
    ("tableA6-highest", highest_of_all_rows),
    ("tableA6-qwen-widens", |of| lead_widens(of, ACCURACY, &REPAIRS)),
    ("tableA7-highest", highest_of_all_rows),
    ("tableA7-corpus", |of| {
        let on = |corpus| of.corpus(corpus).value(ACCURACY, GHOSTED);
        (on("wikitext2") - on("c4")).abs().at_most(0.36)
    }),
    ("tableA7-gap-widens", |of| lead_widens(of, ACCURACY, &REPAIRS)),
    ("tableA10-identical", |of| {
        let identical = |metric| of.value(metric, SVD).equal(of.value(metric, SOLVE));
        ClaimCheck::all(A10.map(identical)).and(identical(PERPLEXITY))
    }),
    ("tableA10-negligible", |of| {
        let negligible = |metric| of.lead(metric, SVD, &[SOLVE]).abs().below(0.001 * of.value(metric, SOLVE));
        ClaimCheck::all(A10.map(negligible))
    }),
    ("table5-identical-cost", |of| {
        let same = |other| {
            let apart = (of.value(PREFILL, GHOSTED) - of.value(PREFILL, other)).abs();
            let memory = of.value(MEMORY, GHOSTED).equal(of.value(MEMORY, other));
            apart.at_most(0.01 * of.value(PREFILL, other)).and(memory)
        };
        ClaimCheck::all([DIAG, ROTATE].map(same))
    }),
    ("table5-half-a-millisecond", |of| (of.value(PREFILL, GHOSTED) - of.value(PREFILL, ROTATE)).abs().at_most(0.5)),
    ("tableA8-matches-linearpatch", matches_linearpatch),
    ("tableA8-speedup", speedup_stays),
    ("tableA8-overhead", overhead_is_small),
    ("tableA9-matches-linearpatch", matches_linearpatch),
    ("tableA9-speedup", speedup_stays),
    ("tableA9-overhead", overhead_is_small),
];

/// Checks whether ghosted has the highest accuracy of all rows of a setting, including criteria without a recovery.
fn highest_of_all_rows(of: &ClaimSetting<'_>) -> ClaimCheck {
    let streamlined = of.criterion("llm-streamline");
    let above = |criterion| streamlined.value(ACCURACY, GHOSTED).above(of.criterion(criterion).value(ACCURACY, NONE));
    streamlined.best(ACCURACY, GHOSTED, &ROWS).and(above("shortgpt")).and(above("shortened-llama"))
}

/// Checks whether the lead over the best other repair is larger at the deepest cut than at the shallowest.
fn lead_widens(of: &ClaimSetting<'_>, metric: &str, rivals: &[&str]) -> ClaimCheck {
    of.between_depths(|deep, shallow| deep.lead(metric, GHOSTED, rivals).above(shallow.lead(metric, GHOSTED, rivals)))
}

fn matches_linearpatch(of: &ClaimSetting<'_>) -> ClaimCheck {
    let at = |prompt: &String| {
        let near = |other| {
            let apart = (of.value(prompt, GHOSTED) - of.value(prompt, other)).abs();
            apart.at_most(DEVIATIONS * of.noise(prompt, GHOSTED, other))
        };
        ClaimCheck::all([DIAG, ROTATE].map(near))
    };
    ClaimCheck::all(of.prompts(PREFILL, &[GHOSTED, DIAG, ROTATE]).iter().map(at))
}

fn speedup_stays(of: &ClaimSetting<'_>) -> ClaimCheck {
    let at = |prompt: &String| {
        let saved = |recovery| of.of_dense(prompt) - of.value(prompt, recovery);
        saved(GHOSTED).above(0.0).and(saved(GHOSTED).at_least(0.9 * saved(NONE)))
    };
    ClaimCheck::all(of.prompts(PREFILL, &[GHOSTED, NONE]).iter().map(at))
}

fn overhead_is_small(of: &ClaimSetting<'_>) -> ClaimCheck {
    let at = |prompt: &String| {
        let one_layer = (1.0 / of.depth()) * (of.of_dense(prompt) - of.value(prompt, NONE));
        (of.value(prompt, GHOSTED) - of.value(prompt, NONE)).below(one_layer)
    };
    ClaimCheck::all(of.prompts(PREFILL, &[GHOSTED, NONE]).iter().map(at))
}

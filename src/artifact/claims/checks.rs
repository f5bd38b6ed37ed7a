//! Check functions for the claims in `claims.yaml`.

use super::number::{ClaimCheck, Quantity};
use super::setting::ClaimSetting;
use crate::metric;
use crate::recovery::NONE;
use crate::results::number_record::Condition;

const ACCURACY: &str = metric::ACCURACY.id;
const PERPLEXITY: &str = metric::PERPLEXITY.id;
const BOUNDARY_ERROR: &str = metric::BOUNDARY_ERROR.id;
const SYMMETRIC: &str = metric::SYMMETRIC.id;
const ANTISYMMETRIC: &str = metric::ANTISYMMETRIC.id;
const CHANNEL_ERROR: &str = metric::CHANNEL_ERROR.id;
const CHANNELS_REDUCED: &str = metric::CHANNELS_REDUCED.id;
const PREFILL: &str = metric::PREFILL.id;
const MEMORY: &str = metric::MEMORY.id;
/// Metrics compared in table A10.
const A10_METRICS: [&str; 4] = ["ppl_wikitext2", "ppl_c4", "ppl_ptb", ACCURACY];

/// The paper's proposed method.
const GHOSTED: &str = "ghosted";
/// The two solvers for the ghosted operator.
const SVD: &str = "ghosted:svd";
const SOLVE: &str = "ghosted:solve";
const DIAG: &str = "linearpatch-diag";
const ROTATE: &str = "linearpatch-rotate";
/// Existing methods with which the paper compares its own.
const EXISTING: [&str; 5] = ["prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE];
/// All methods that repair a pruned model.
const REPAIRS: [&str; 6] = ["prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE, GHOSTED];
/// All recoveries in the paper's tables, plus `none`.
const RECOVERIES: [&str; 7] = [NONE, "prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE, GHOSTED];
const FIGURE5_METHODS: [&str; 4] = ["replaceme-ls", DIAG, ROTATE, GHOSTED];
/// Methods that the paper fine-tunes.
const FINETUNED: [&str; 3] = [DIAG, ROTATE, GHOSTED];

/// Maximum difference that counts as noise, in standard deviations.
const MAX_DEVIATIONS: f64 = 3.0;

pub(super) type CheckSetting = fn(&ClaimSetting<'_>) -> ClaimCheck;
pub(super) type SettingFilter = fn(&Condition) -> bool;

/// Predicates that select settings, by name. The first is the default.
pub(super) static SETTING_FILTERS: [(&str, SettingFilter); 4] = [
    ("any", |_| true),
    ("streamlined", is_llm_streamline),
    ("streamlined-qwen", |setting| {
        is_llm_streamline(setting) && ["qwen-3-14b", "tiny-qwen3"].contains(&setting.backbone.as_str())
    }),
    ("finetuned", |setting| setting.finetuned),
];

fn is_llm_streamline(condition: &Condition) -> bool {
    condition.criterion == "llm-streamline"
}

/// Check functions by claim id.
pub(super) static CHECKS: &[(&str, CheckSetting)] = &[
    ("abstract-accuracy", |setting| setting.lead(ACCURACY, GHOSTED, &REPAIRS).check_above(0.0)),
    ("abstract-perplexity", |setting| setting.lead(PERPLEXITY, GHOSTED, &REPAIRS).check_above(0.0)),
    ("figure1-uncorrected", |setting| {
        setting.minimum(BOUNDARY_ERROR, &EXISTING).check_above(0.5 * setting.value(BOUNDARY_ERROR, NONE))
    }),
    ("figure3-substantial", |setting| setting.value(ANTISYMMETRIC, GHOSTED).check_at_least(0.5)),
    ("figure3-comparable", |setting| {
        let symmetric = setting.value(SYMMETRIC, GHOSTED);
        let antisymmetric = setting.value(ANTISYMMETRIC, GHOSTED);
        let non_zero = antisymmetric.check_above(0.0);
        let comparable = antisymmetric
            .check_at_most(2.0 * symmetric.clone())
            .and(symmetric.check_at_most(2.0 * antisymmetric.clone()));
        non_zero.and(comparable)
    }),
    ("figure4-baselines-track", |setting| {
        setting.mean(CHANNEL_ERROR, &EXISTING).check_at_least(0.75 * setting.value(CHANNEL_ERROR, NONE))
    }),
    ("figure4-baselines-exceed", |setting| setting.minimum(CHANNELS_REDUCED, &EXISTING).check_below(0.5)),
    ("figure4-uniform", |setting| {
        let uniformly = setting.value(CHANNELS_REDUCED, GHOSTED).check_at_least(0.99);
        let error = setting.value(CHANNEL_ERROR, GHOSTED);
        let substantially = error.check_below(0.75 * setting.value(CHANNEL_ERROR, NONE));
        uniformly.and(substantially).and(setting.lead(CHANNEL_ERROR, GHOSTED, &REPAIRS).check_above(0.0))
    }),
    ("table2-average", |setting| setting.rank(ACCURACY, GHOSTED, &REPAIRS).check_at_most(2.0)),
    ("table2-highest", |setting| setting.best(ACCURACY, GHOSTED, &REPAIRS)),
    ("table3-lowest", |setting| setting.best(PERPLEXITY, GHOSTED, &RECOVERIES)),
    ("table3-margin-widens", |setting| check_lead_widens(setting, PERPLEXITY, &REPAIRS)),
    ("table4-saturates", |setting| {
        let [few, more, most] = values_by_sequences(setting, ACCURACY, [32, 64, 128]);
        (more.max(most) - few).check_below(0.1)
    }),
    ("table4-perplexity-improves", |setting| {
        let [few, more, most] = values_by_sequences(setting, PERPLEXITY, [32, 64, 128]);
        more.clone().check_below(few).and(most.check_below(more))
    }),
    ("table4-returns-diminish", |setting| {
        let [first, second, third] = [16, 32, 64].map(|sequences| perplexity_saved_by_doubling(setting, sequences));
        second.clone().check_below(first).and(third.check_below(second))
    }),
    ("table5-linearpatch", |setting| {
        ClaimCheck::all(
            [ACCURACY, PERPLEXITY].map(|metric| setting.lead(metric, GHOSTED, &[DIAG, ROTATE]).check_above(0.0)),
        )
    }),
    ("figure5-highest", |setting| setting.best(ACCURACY, GHOSTED, &FIGURE5_METHODS)),
    ("figure5-gap-widens", |setting| check_lead_widens(setting, ACCURACY, &FIGURE5_METHODS)),
    ("tableA4-highest", |setting| setting.best(ACCURACY, GHOSTED, &FINETUNED)),
    ("tableA4-margin", |setting| setting.lead(ACCURACY, GHOSTED, &[ROTATE]).check_at_least(0.08)),
    ("tableA4-rotate-stronger", |setting| {
        setting.value(ACCURACY, ROTATE).check_at_least(setting.value(ACCURACY, DIAG))
    }),
    ("tableA5-lowest", |setting| setting.best(PERPLEXITY, GHOSTED, &FINETUNED)),
    ("tableA5-reduction", |setting| {
        setting.lead(PERPLEXITY, GHOSTED, &[ROTATE]).ratio_to(setting.value(PERPLEXITY, ROTATE)).check_at_least(0.1435)
    }),
    ("tableA5-more-pronounced", |setting| {
        relative_lead_over_rotate(setting, PERPLEXITY).check_above(relative_lead_over_rotate(setting, ACCURACY))
    }),
    ("tableA6-highest", check_highest_of_all_rows),
    ("tableA6-qwen-widens", |setting| check_lead_widens(setting, ACCURACY, &REPAIRS)),
    ("tableA7-highest", check_highest_of_all_rows),
    ("tableA7-corpus", |setting| {
        let [one, other] = ["wikitext2", "c4"].map(|corpus| setting.corpus(corpus).value(ACCURACY, GHOSTED));
        (one - other).abs().check_at_most(0.36)
    }),
    ("tableA7-gap-widens", |setting| check_lead_widens(setting, ACCURACY, &REPAIRS)),
    ("tableA10-identical", |setting| {
        ClaimCheck::all(A10_METRICS.map(|metric| check_equal_by_solvers(setting, metric)))
            .and(check_equal_by_solvers(setting, PERPLEXITY))
    }),
    ("tableA10-negligible", |setting| {
        ClaimCheck::all(
            A10_METRICS.map(|metric| {
                setting.lead(metric, SVD, &[SOLVE]).abs().check_below(0.001 * setting.value(metric, SOLVE))
            }),
        )
    }),
    ("table5-identical-cost", |setting| {
        ClaimCheck::all([DIAG, ROTATE].map(|other| {
            let difference = (setting.value(PREFILL, GHOSTED) - setting.value(PREFILL, other)).abs();
            let memory = setting.value(MEMORY, GHOSTED).check_equal(setting.value(MEMORY, other));
            difference.check_at_most(0.01 * setting.value(PREFILL, other)).and(memory)
        }))
    }),
    ("table5-half-a-millisecond", |setting| {
        (setting.value(PREFILL, GHOSTED) - setting.value(PREFILL, ROTATE)).abs().check_at_most(0.5)
    }),
    ("tableA8-matches-linearpatch", check_matches_linearpatch),
    ("tableA8-speedup", check_speedup_stays),
    ("tableA8-overhead", check_overhead_is_small),
    ("tableA9-matches-linearpatch", check_matches_linearpatch),
    ("tableA9-speedup", check_speedup_stays),
    ("tableA9-overhead", check_overhead_is_small),
];

/// Checks whether ghosted has the highest accuracy of all rows, including the unrepaired rows of other criteria.
fn check_highest_of_all_rows(setting: &ClaimSetting<'_>) -> ClaimCheck {
    let streamlined = setting.criterion("llm-streamline");
    let above = |criterion| {
        streamlined.value(ACCURACY, GHOSTED).check_above(setting.criterion(criterion).value(ACCURACY, NONE))
    };
    streamlined.best(ACCURACY, GHOSTED, &RECOVERIES).and(above("shortgpt")).and(above("shortened-llama"))
}

/// Returns the value of `metric` for the `ghosted` recovery at each calibration-sequence count in `counts`.
fn values_by_sequences<const N: usize>(setting: &ClaimSetting<'_>, metric: &str, counts: [usize; N]) -> [Quantity; N] {
    counts.map(|sequences| setting.with_sequences(sequences).value(metric, GHOSTED))
}

/// Returns the decrease in perplexity from doubling the number of calibration sequences.
fn perplexity_saved_by_doubling(setting: &ClaimSetting<'_>, sequences: usize) -> Quantity {
    let [once, twice] = values_by_sequences(setting, PERPLEXITY, [sequences, 2 * sequences]);
    once - twice
}

fn check_equal_by_solvers(setting: &ClaimSetting<'_>, metric: &str) -> ClaimCheck {
    setting.value(metric, SVD).check_equal(setting.value(metric, SOLVE))
}

/// Returns the lead of `ghosted` over LinearPatch (Rotate), as a fraction of LinearPatch's value.
fn relative_lead_over_rotate(setting: &ClaimSetting<'_>, metric: &str) -> Quantity {
    setting.lead(metric, GHOSTED, &[ROTATE]).ratio_to(setting.value(metric, ROTATE))
}

/// Checks whether the lead over the best rival is larger at the deepest cut than at the shallowest.
fn check_lead_widens(setting: &ClaimSetting<'_>, metric: &str, rivals: &[&str]) -> ClaimCheck {
    setting.between_depths(|deep, shallow| {
        deep.lead(metric, GHOSTED, rivals).check_above(shallow.lead(metric, GHOSTED, rivals))
    })
}

/// Checks that the prefill times of `ghosted` and of both LinearPatch variants differ only by noise.
fn check_matches_linearpatch(setting: &ClaimSetting<'_>) -> ClaimCheck {
    ClaimCheck::all(setting.timed_metrics(PREFILL, &[GHOSTED, DIAG, ROTATE]).iter().map(|metric| {
        ClaimCheck::all([DIAG, ROTATE].map(|other| {
            let difference = (setting.value(metric, GHOSTED) - setting.value(metric, other)).abs();
            difference.check_at_most(MAX_DEVIATIONS * setting.noise(metric, GHOSTED, other))
        }))
    }))
}

/// Checks that `ghosted` is faster than the dense model and keeps at least 90 % of the time that pruning alone saves.
fn check_speedup_stays(setting: &ClaimSetting<'_>) -> ClaimCheck {
    ClaimCheck::all(setting.timed_metrics(PREFILL, &[GHOSTED, NONE]).iter().map(|metric| {
        time_saved(setting, metric, GHOSTED)
            .check_above(0.0)
            .and(time_saved(setting, metric, GHOSTED).check_at_least(0.9 * time_saved(setting, metric, NONE)))
    }))
}

fn time_saved(setting: &ClaimSetting<'_>, metric: &str, recovery: &str) -> Quantity {
    setting.dense_value(metric) - setting.value(metric, recovery)
}

/// Checks that the operator of `ghosted` takes less time than one layer.
fn check_overhead_is_small(setting: &ClaimSetting<'_>) -> ClaimCheck {
    ClaimCheck::all(setting.timed_metrics(PREFILL, &[GHOSTED, NONE]).iter().map(|metric| {
        let one_layer = (1.0 / setting.depth()) * (setting.dense_value(metric) - setting.value(metric, NONE));
        (setting.value(metric, GHOSTED) - setting.value(metric, NONE)).check_below(one_layer)
    }))
}

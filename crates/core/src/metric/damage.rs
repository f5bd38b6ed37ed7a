//! Metrics for how much a variant's predictions differ from the dense model's on the windows of a text.

use super::entry::{Direction, MetricEntry, MetricSource, MetricVisibility, PairedTest, TEXT_DEFAULTS, Unit};
use crate::evaluate::damage_eval::{Damage, WindowPart};

/// Defaults for damage metrics. Their error is computed over windows.
const DAMAGE_DEFAULTS: MetricEntry = MetricEntry {
    decimals: 4,
    test: Some(PairedTest::Bootstrap),
    visibility: MetricVisibility::IfNamed,
    ..TEXT_DEFAULTS
};

/// `kl_c4`: KL divergence from the dense model to the variant.
pub(super) static KL: MetricEntry = MetricEntry {
    id: "kl",
    name: "kl_dense_variant",
    label: " (KL)",
    head: "KL",
    note: "mean KL divergence of the dense model's predictions to the variant's, Σ p ln(p/q), in nats",
    unit: Unit::Nats,
    direction: Direction::Lower,
    visibility: MetricVisibility::Always,
    source: MetricSource::Damage(Damage::KlDenseVariant, WindowPart::All),
    ..DAMAGE_DEFAULTS
};

/// `rkl_c4`: KL divergence from the variant to the dense model.
pub(super) static REVERSE_KL: MetricEntry = MetricEntry {
    id: "rkl",
    name: "kl_variant_dense",
    label: " (reverse KL)",
    head: "reverse KL",
    note: "mean KL divergence of the variant's predictions to the dense model's, Σ q ln(q/p), in nats",
    unit: Unit::Nats,
    direction: Direction::Lower,
    source: MetricSource::Damage(Damage::KlVariantDense, WindowPart::All),
    ..DAMAGE_DEFAULTS
};

/// `same_top_c4`: agreement of the top tokens.
pub(super) static SAME_TOP: MetricEntry = MetricEntry {
    id: "same_top",
    name: "same_top",
    label: " (same top)",
    head: "same top",
    note: "share of predictions with the same most likely token as the dense model",
    unit: Unit::Share,
    direction: Direction::Higher,
    visibility: MetricVisibility::Always,
    source: MetricSource::Damage(Damage::SameTop, WindowPart::All),
    ..DAMAGE_DEFAULTS
};

/// `dp_c4`: change of the true token's probability.
pub(super) static MEAN_CHANGE: MetricEntry = MetricEntry {
    id: "dp",
    name: "mean_dp",
    label: " (Δp)",
    head: "Δp",
    note: "mean change of the true token's probability, q − p",
    unit: Unit::Share,
    direction: Direction::Neither,
    source: MetricSource::Damage(Damage::MeanChange, WindowPart::All),
    ..DAMAGE_DEFAULTS
};

/// `abs_dp_c4`: absolute change of the true token's probability.
pub(super) static MEAN_ABSOLUTE_CHANGE: MetricEntry = MetricEntry {
    id: "abs_dp",
    name: "mean_abs_dp",
    label: " (|Δp|)",
    head: "|Δp|",
    note: "mean absolute change of the true token's probability",
    unit: Unit::Share,
    direction: Direction::Lower,
    source: MetricSource::Damage(Damage::MeanAbsoluteChange, WindowPart::All),
    ..DAMAGE_DEFAULTS
};

/// `rms_dp_c4`: root mean square change of the true token's probability.
pub(super) static RMS_CHANGE: MetricEntry = MetricEntry {
    id: "rms_dp",
    name: "rms_dp",
    label: " (RMS Δp)",
    head: "RMS Δp",
    note: "root mean square change of the true token's probability",
    unit: Unit::Share,
    direction: Direction::Lower,
    source: MetricSource::Damage(Damage::RmsChange, WindowPart::All),
    ..DAMAGE_DEFAULTS
};

/// `ratio_c4`: ratio of the variant's perplexity to the dense model's.
pub(super) static PERPLEXITY_RATIO: MetricEntry = MetricEntry {
    id: "ratio",
    name: "ppl_ratio",
    label: " (ratio)",
    head: "ppl ratio",
    note: "perplexity divided by the dense model's",
    unit: Unit::One,
    direction: Direction::Lower,
    source: MetricSource::Damage(Damage::PerplexityRatio, WindowPart::All),
    ..DAMAGE_DEFAULTS
};

/// Returns the defaults of a metric over the second half of each window.
const fn second_half(all: &MetricEntry) -> MetricEntry {
    let source = match all.source {
        MetricSource::Damage(damage, _) => MetricSource::Damage(damage, WindowPart::SecondHalf),
        other => other,
    };
    MetricEntry { unit: all.unit, direction: all.direction, source, ..DAMAGE_DEFAULTS }
}

/// `half_kl_c4`: [`KL`] over the second half of each window.
pub(super) static HALF_KL: MetricEntry = MetricEntry {
    id: "half_kl",
    name: "second_half_kl_dense_variant",
    label: " (2nd half, KL)",
    head: "2nd half KL",
    note: "mean KL divergence of the dense model's predictions to the variant's, Σ p ln(p/q), in nats; for predictions at positions T/2 to T − 2, as in llama.cpp",
    ..second_half(&KL)
};

/// `half_rkl_c4`: [`REVERSE_KL`] over the second half of each window.
pub(super) static HALF_REVERSE_KL: MetricEntry = MetricEntry {
    id: "half_rkl",
    name: "second_half_kl_variant_dense",
    label: " (2nd half, reverse KL)",
    head: "2nd half reverse KL",
    note: "mean KL divergence of the variant's predictions to the dense model's, Σ q ln(q/p), in nats; for predictions at positions T/2 to T − 2, as in llama.cpp",
    ..second_half(&REVERSE_KL)
};

/// `half_same_top_c4`: [`SAME_TOP`] over the second half of each window.
pub(super) static HALF_SAME_TOP: MetricEntry = MetricEntry {
    id: "half_same_top",
    name: "second_half_same_top",
    label: " (2nd half, same top)",
    head: "2nd half same top",
    note: "share of predictions with the same most likely token as the dense model; for predictions at positions T/2 to T − 2, as in llama.cpp",
    ..second_half(&SAME_TOP)
};

/// `half_dp_c4`: [`MEAN_CHANGE`] over the second half of each window.
pub(super) static HALF_MEAN_CHANGE: MetricEntry = MetricEntry {
    id: "half_dp",
    name: "second_half_mean_dp",
    label: " (2nd half, Δp)",
    head: "2nd half Δp",
    note: "mean change of the true token's probability, q − p; for predictions at positions T/2 to T − 2, as in llama.cpp",
    ..second_half(&MEAN_CHANGE)
};

/// `half_abs_dp_c4`: [`MEAN_ABSOLUTE_CHANGE`] over the second half of each window.
pub(super) static HALF_MEAN_ABSOLUTE_CHANGE: MetricEntry = MetricEntry {
    id: "half_abs_dp",
    name: "second_half_mean_abs_dp",
    label: " (2nd half, |Δp|)",
    head: "2nd half |Δp|",
    note: "mean absolute change of the true token's probability; for predictions at positions T/2 to T − 2, as in llama.cpp",
    ..second_half(&MEAN_ABSOLUTE_CHANGE)
};

/// `half_rms_dp_c4`: [`RMS_CHANGE`] over the second half of each window.
pub(super) static HALF_RMS_CHANGE: MetricEntry = MetricEntry {
    id: "half_rms_dp",
    name: "second_half_rms_dp",
    label: " (2nd half, RMS Δp)",
    head: "2nd half RMS Δp",
    note: "root mean square change of the true token's probability; for predictions at positions T/2 to T − 2, as in llama.cpp",
    ..second_half(&RMS_CHANGE)
};

/// `half_ratio_c4`: [`PERPLEXITY_RATIO`] over the second half of each window.
pub(super) static HALF_PERPLEXITY_RATIO: MetricEntry = MetricEntry {
    id: "half_ratio",
    name: "second_half_ppl_ratio",
    label: " (2nd half, ratio)",
    head: "2nd half ppl ratio",
    note: "perplexity divided by the dense model's; for predictions at positions T/2 to T − 2, as in llama.cpp",
    ..second_half(&PERPLEXITY_RATIO)
};

//! Metrics for a variant's size, as a percentage of the dense model's.

use super::entry::{DEFAULTS, DifferenceKind, Direction, MetricEntry, MetricSource, MetricVisibility, Unit};

const SIZE_DEFAULTS: MetricEntry = MetricEntry {
    unit: Unit::Percent,
    direction: Direction::Neither,
    difference: DifferenceKind::Absolute,
    visibility: MetricVisibility::IfNamed,
    ..DEFAULTS
};

pub static PARAMETERS_REMOVED: MetricEntry = MetricEntry {
    note: "parameters that the variant does not store, in % of the dense model's; operators count as stored",
    source: MetricSource::Size(|savings| 100.0 * savings.parameters),
    ..SIZE_DEFAULTS.with_name("parameters_removed", "Params removed")
};

pub(super) static KV_CACHE: MetricEntry = MetricEntry {
    note: "KV cache that the variant does not need, in % of the dense model's",
    source: MetricSource::Size(|savings| 100.0 * savings.kv_cache),
    ..SIZE_DEFAULTS.with_name("kv_cache_removed", "KV removed")
};

pub(super) static OPERATIONS: MetricEntry = MetricEntry {
    note: "operations for a prompt of 512 tokens that the variant saves, in % of the dense model's, from the cost model",
    source: MetricSource::Size(|savings| 100.0 * savings.operations),
    ..SIZE_DEFAULTS.with_name("operations_removed", "Work removed")
};

//! Setting pairs that differ in how latency is measured.

use super::{Pair, between, pair};

/// Returns setting pairs that differ in how latency is measured.
pub(super) fn latencies() -> Vec<Pair> {
    vec![
        pair("longer prompts", &["measure.prefill.length"], |setting| {
            setting.replace_in_grid("latency: {length: 16}", "latency: {length: 8}");
        }),
        pair("a larger batch of prompts", &["measure.prefill.batch"], |setting| {
            setting.replace_in_grid("latency: {length: 16}", "latency: {length: 16, batch: 2}");
        }),
        pair("tokens decoded after a prompt", &["measure.prefill.decode"], |setting| {
            setting.replace_in_grid("latency: {length: 16}", "latency: {length: 16, decode: 3}");
        }),
        between(
            "a different timing cohort",
            &["measure.prefill.among"],
            |setting| setting.replace_in_grid("recovery: ghosted", "recovery: [none, ghosted]"),
            |setting| setting.replace_in_grid("recovery: ghosted", "recovery: [affine, ghosted]"),
        ),
    ]
}

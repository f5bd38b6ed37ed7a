//! `ppl_c4`: perplexity over the windows of a text.

use super::entry::{MetricEntry, OF_TEXT, Of, PairedTest, Shown, TextSample};
use crate::tasks::Measure;

pub static ENTRY: MetricEntry = MetricEntry {
    id: "ppl",
    name: "perplexity",
    head: "ppl",
    test: Some(PairedTest::Bootstrap),
    shown: Shown::Always,
    of: Of::Text(estimate),
    ..OF_TEXT
};

pub(super) fn estimate(of: &TextSample<'_>) -> Option<Measure> {
    let stderr = of.losses.standard_error().filter(|error| error.is_finite());
    Some(Measure { value: of.losses.perplexity(), stderr })
}

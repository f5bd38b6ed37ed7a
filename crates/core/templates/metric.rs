//! `my_metric_c4`: geometric mean of the probabilities of the predicted tokens. (This is a template: replace the
//! computation with your own.)

use super::entry::{Direction, MetricEntry, MetricSource, MetricVisibility, PairedTest, TEXT_DEFAULTS, TextSample};
use crate::tasks::Measure;

pub(super) static ENTRY: MetricEntry = MetricEntry {
    id: "my_metric",
    name: "my_metric",
    label: " (My Metric)",
    head: "My Metric",
    note: "geometric mean of the probabilities of the predicted tokens",
    direction: Direction::Higher,
    decimals: 4,
    test: Some(PairedTest::Bootstrap),
    visibility: MetricVisibility::IfNamed,
    source: MetricSource::Text(estimate),
    ..TEXT_DEFAULTS
};

/// Estimates `exp(−mean loss)`. The standard error is propagated through `exp`, as for the perplexity.
fn estimate(sample: &TextSample<'_>) -> Option<Measure> {
    let perplexity = sample.losses.perplexity();
    let stderr = sample.losses.standard_error().map(|error| error / perplexity.powi(2));
    Some(Measure { value: perplexity.recip(), stderr })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::perplexity::Losses;

    #[test]
    fn metric_and_error_derive_from_the_perplexity() {
        let losses = Losses { windows: vec![1.0, 1.5] };
        let MetricSource::Text(estimate) = ENTRY.source else { panic!("not a text metric") };
        let found = estimate(&TextSample { losses: &losses, length: 11, bytes: None, damages: None }).unwrap();
        assert!((found.value * losses.perplexity() - 1.0).abs() < 1e-12);
        let relative = losses.standard_error().unwrap() / losses.perplexity();
        assert!((found.stderr.unwrap() / found.value - relative).abs() < 1e-12);
    }
}

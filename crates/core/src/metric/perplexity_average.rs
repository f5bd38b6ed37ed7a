//! `ppl_average`: the mean of the texts' perplexities.

use super::entry::{MetricEntry, OF_TEXT, Of, TextSample};
use super::perplexity;
use crate::tasks::Measure;

pub static ENTRY: MetricEntry =
    MetricEntry { id: "ppl_average", name: "perplexity_average", label: "PPL AVG", of: Of::Texts(estimate), ..OF_TEXT };

fn estimate(of: &[TextSample<'_>]) -> Option<Measure> {
    let parts: Vec<Measure> = of.iter().map(perplexity::estimate).collect::<Option<_>>()?;
    let count = parts.len() as f64;
    let value = parts.iter().map(|part| part.value).sum::<f64>() / count;
    // Of texts that have nothing in common.
    let squares: Option<f64> = parts.iter().map(|part| part.stderr.map(|error| error * error)).sum();
    Some(Measure { value, stderr: squares.map(|squares| squares.sqrt() / count) })
}

//! `bpb_c4`: what the model needs for a byte of the predicted text, whatever its tokens are. Backbones with unlike
//! vocabularies can be compared by it.

use std::f64::consts::LN_2;

use super::entry::{MetricEntry, OF_TEXT, Of, Shown, TextSample, Unit};
use super::perplexity;
use crate::tasks::Measure;

pub static ENTRY: MetricEntry = MetricEntry {
    id: "bpb",
    name: "bits_per_byte",
    label: " (bits/byte)",
    head: "bits/byte",
    note: "the same loss for each byte of the predicted text, in bits: vocabularies differ here",
    unit: Unit::Bits,
    decimals: 4,
    shown: Shown::OfUnlikeVocabularies,
    of: Of::Text(estimate),
    ..OF_TEXT
};

pub(super) fn estimate(of: &TextSample<'_>) -> Option<Measure> {
    let bytes = of.bytes.filter(|bytes| *bytes > 0)?;
    let nats = of.losses.windows.iter().sum::<f64>() * (of.length - 1) as f64;
    let value = nats / LN_2 / bytes as f64;
    // Bits are the mean loss in another unit, and a perplexity's error is that of the mean loss, times itself.
    let error = perplexity::estimate(of).and_then(|of| Some((of.stderr?, of.value)));
    let error = error.map(|(error, perplexity)| error / perplexity * value / of.losses.mean());
    value.is_finite().then_some(Measure { value, stderr: error.filter(|error| error.is_finite()) })
}

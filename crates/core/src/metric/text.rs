//! Text metrics: perplexity and bits per byte, per text and averaged.

use std::f64::consts::LN_2;

use super::entry::{MetricEntry, MetricSource, MetricVisibility, PairedTest, TEXT_DEFAULTS, TextSample, Unit};
use crate::tasks::Measure;

/// `ppl_c4`: perplexity over the windows of a text.
pub static TEXT: MetricEntry = MetricEntry {
    id: "ppl",
    name: "perplexity",
    head: "ppl",
    test: Some(PairedTest::Bootstrap),
    visibility: MetricVisibility::Always,
    source: MetricSource::Text(perplexity),
    ..TEXT_DEFAULTS
};

/// `bpb_c4`: bits per byte of the predicted text. It is independent of the tokenizer, so backbones with different
/// vocabularies can be compared.
pub static BITS_PER_BYTE: MetricEntry = MetricEntry {
    id: "bpb",
    name: "bits_per_byte",
    label: " (bits/byte)",
    head: "bits/byte",
    note: "loss per byte of the predicted text, in bits; comparable across vocabularies",
    unit: Unit::Bits,
    decimals: 4,
    visibility: MetricVisibility::IfVocabulariesDiffer,
    source: MetricSource::Text(bits_per_byte),
    ..TEXT_DEFAULTS
};

/// `byte_ppl_c4`: perplexity per byte of the predicted text, as in lm-evaluation-harness. It is 2 to the power of the
/// bits per byte.
pub(super) static BYTE_PERPLEXITY: MetricEntry = MetricEntry {
    id: "byte_ppl",
    name: "byte_perplexity",
    label: " (per byte)",
    head: "byte ppl",
    note: "perplexity per byte of the predicted text; independent of the tokenization",
    decimals: 4,
    test: Some(PairedTest::Bootstrap),
    visibility: MetricVisibility::IfNamed,
    source: MetricSource::Text(byte_perplexity),
    ..TEXT_DEFAULTS
};

/// `ppl_average`: mean perplexity over the texts.
pub static PERPLEXITY: MetricEntry = MetricEntry {
    id: "ppl_average",
    name: "perplexity_average",
    label: "PPL AVG",
    source: MetricSource::Texts(average_perplexity),
    ..TEXT_DEFAULTS
};

fn perplexity(sample: &TextSample<'_>) -> Option<Measure> {
    let stderr = sample.losses.standard_error().filter(|error| error.is_finite());
    Some(Measure { value: sample.losses.perplexity(), stderr })
}

fn bits_per_byte(sample: &TextSample<'_>) -> Option<Measure> {
    let bytes = sample.bytes.filter(|bytes| *bytes > 0)?;
    let nats = sample.losses.windows.iter().sum::<f64>() * (sample.length - 1) as f64;
    let value = nats / LN_2 / bytes as f64;
    // Bits per byte are the mean loss in another unit, so both have the same relative error. The error of the mean loss
    // is the error of the perplexity divided by the perplexity.
    let error = perplexity(sample).and_then(|sample| Some((sample.stderr?, sample.value)));
    let error = error.map(|(error, perplexity)| error / perplexity * value / sample.losses.mean());
    value.is_finite().then_some(Measure { value, stderr: error.filter(|error| error.is_finite()) })
}

fn byte_perplexity(sample: &TextSample<'_>) -> Option<Measure> {
    let bits = bits_per_byte(sample)?;
    let value = bits.value.exp2();
    Some(Measure { value, stderr: bits.stderr.map(|error| error * LN_2 * value) })
}

fn average_perplexity(samples: &[TextSample<'_>]) -> Option<Measure> {
    let measures: Vec<Measure> = samples.iter().map(perplexity).collect::<Option<_>>()?;
    let count = measures.len() as f64;
    let value = measures.iter().map(|measure| measure.value).sum::<f64>() / count;
    // Errors of independent texts add in quadrature.
    let squares: Option<f64> = measures.iter().map(|measure| measure.stderr.map(|error| error * error)).sum();
    Some(Measure { value, stderr: squares.map(|squares| squares.sqrt() / count) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::perplexity::Losses;

    #[test]
    fn byte_perplexity_depends_on_bytes_per_token() {
        let losses = Losses { windows: vec![1.0, 1.5] };
        let tokens = byte_perplexity(&sample_of_bytes(20, &losses)).unwrap();
        let halves = byte_perplexity(&sample_of_bytes(40, &losses)).unwrap();
        assert!((tokens.value - losses.perplexity()).abs() < 1e-12);
        assert!((tokens.stderr.unwrap() - losses.standard_error().unwrap()).abs() < 1e-12);
        assert!(
            (halves.value - losses.perplexity().sqrt()).abs() < 1e-12,
            "twice the bytes must give half the bits per byte"
        );
        assert_eq!(byte_perplexity(&sample_of_bytes(0, &losses)), None);
    }

    fn sample_of_bytes(bytes: usize, losses: &Losses) -> TextSample<'_> {
        TextSample { losses, length: 11, bytes: Some(bytes), damages: None }
    }
}

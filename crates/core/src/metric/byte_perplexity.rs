//! `byte_ppl_c4`: the perplexity of a byte of the predicted text, as lm-evaluation-harness has it: 2 to the bits per byte.

use std::f64::consts::LN_2;

use super::bits_per_byte;
use super::entry::{MetricEntry, OF_TEXT, Of, PairedTest, Shown, TextSample};
use crate::tasks::Measure;

pub(super) static ENTRY: MetricEntry = MetricEntry {
    id: "byte_ppl",
    name: "byte_perplexity",
    label: " (per byte)",
    head: "byte ppl",
    note: "perplexity of a byte of the predicted text, whatever its tokens are",
    decimals: 4,
    test: Some(PairedTest::Bootstrap),
    shown: Shown::IfNamed,
    of: Of::Text(estimate),
    ..OF_TEXT
};

fn estimate(of: &TextSample<'_>) -> Option<Measure> {
    let bits = bits_per_byte::estimate(of)?;
    let value = bits.value.exp2();
    Some(Measure { value, stderr: bits.stderr.map(|error| error * LN_2 * value) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::perplexity::Losses;

    #[test]
    fn bytes_as_many_as_tokens_have_the_perplexity_of_tokens() {
        let losses = Losses { windows: vec![1.0, 1.5] };
        let sample = |bytes| TextSample { losses: &losses, length: 11, bytes: Some(bytes) };
        let (tokens, halves) = (estimate(&sample(20)).unwrap(), estimate(&sample(40)).unwrap());
        assert!((tokens.value - losses.perplexity()).abs() < 1e-12);
        assert!((tokens.stderr.unwrap() - losses.standard_error().unwrap()).abs() < 1e-12);
        assert!((halves.value - losses.perplexity().sqrt()).abs() < 1e-12, "twice the bytes, half the bits");
        assert_eq!(estimate(&sample(0)), None);
    }
}

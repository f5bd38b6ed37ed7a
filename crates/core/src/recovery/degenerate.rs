//! Calibrations that cannot determine a repair, whatever the method.

use super::boundary::Boundary;
use crate::error::Result;

/// A channel is constant whose values lie within so many roundings of f32 of each other.
const ROUNDINGS: f32 = 16.0;

/// Why the activations that a repair is solved on cannot determine one: too few tokens for the channels, or channels that
/// have one value in all of them. Empty where they can. A channel that is always zero needs no repair and does not count.
///
/// # Errors
/// Activations that cannot be read.
pub fn degenerate(boundary: &Boundary<'_>) -> Result<Vec<String>> {
    let (channels, tokens) = (boundary.channels(), boundary.fitted * boundary.length());
    let mut ranges = vec![(f32::INFINITY, f32::NEG_INFINITY); channels];
    for rows in boundary.blocks(boundary.fitted) {
        for row in boundary.pre(rows)?.chunks_exact(channels) {
            for ((least, most), &v) in ranges.iter_mut().zip(row) {
                (*least, *most) = (least.min(v), most.max(v));
            }
        }
    }
    let size = |(least, most): &(f32, f32)| least.abs().max(most.abs());
    let speaking = ranges.iter().filter(|range| size(range) > 0.0).count();
    let still = |range: &&(f32, f32)| size(range) > 0.0 && range.1 - range.0 <= ROUNDINGS * f32::EPSILON * size(range);
    let constant = ranges.iter().filter(still).count();
    let mut reasons = Vec::new();
    if tokens < speaking {
        reasons.push(format!("only {tokens} tokens of calibration for {channels} channels"));
    }
    if constant > 0 {
        reasons.push(format!("{constant} of {channels} channels are constant in the calibration"));
    }
    Ok(reasons)
}

#[cfg(test)]
mod tests {
    use crate::recovery::boundary::tests::Written;

    #[test]
    fn too_few_tokens_and_constant_channels_are_said_and_silent_ones_are_not() {
        let of = |pre: &[f32], sequences: usize| Written::new(2, sequences, &[(1, pre), (2, pre)]).degenerate((1, 2));
        assert_eq!(of(&[1.0, 2.0, 3.0, 1.0], 1), Vec::<String>::new());
        assert_eq!(of(&[1.0, 0.0, 3.0, 0.0], 1), Vec::<String>::new(), "a silent channel");
        assert_eq!(of(&[1.0, 5.0, 3.0, 5.0], 1), ["1 of 2 channels are constant in the calibration"]);
        // Rounding makes no difference of values that are the same; more than rounding does.
        assert_eq!(of(&[1.0, 5.0, 3.0, 5.000_002], 1).len(), 1);
        assert!(of(&[1.0, 5.0, 3.0, 5.001], 1).is_empty());
        let one = of(&[1.0, 2.0], 1);
        assert_eq!(one[0], "only 1 tokens of calibration for 2 channels");
        assert!(one[1].contains("2 of 2 channels"), "{one:?}");
    }
}

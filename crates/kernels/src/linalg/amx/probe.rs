//! Self-test that checks whether the processor's products match the documented arithmetic.

use super::{Parts, model, multiply_on_tiles};
use crate::linalg::pairs::{PairPanels, RowWords};
use crate::linalg::panels::{LANES, PanelsOutput};

/// Shape of the test product: two left tiles of different heights, with full and partial steps of 16 pairs.
const ROWS: usize = 19;
const PAIRS: usize = 37;

/// Returns whether a product on tile registers is bitwise equal to the scalar model.
///
/// # Safety
/// The processor must have AMX-TILE and AMX-BF16, and the process must have permission to use them.
pub(super) unsafe fn matches_documented_arithmetic() -> bool {
    let left = noise(ROWS * PAIRS, 1);
    let right = noise(PAIRS * LANES, 2);
    let rows = RowWords { words: &left, row_words: PAIRS, count: ROWS };
    let panels = PairPanels::consecutive(&right, PAIRS, 1);
    let mut ours = vec![0.0; ROWS * LANES];
    let mut expected = ours.clone();
    // SAFETY: the caller guarantees that AMX is usable, and the slices have these shapes.
    unsafe { multiply_on_tiles(&rows, &panels, PanelsOutput::row_major(&mut ours, LANES, false), Parts::One) };
    model::multiply(&rows, &panels, PanelsOutput::row_major(&mut expected, LANES, false), Parts::One);
    ours.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Generates pairs of bf16 values. Their magnitudes span forty powers of two, and a few of them are denormal.
fn noise(count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut half = || {
        // Constants of Knuth's MMIX generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state >> 33) as u32;
        let exponent = if bits.is_multiple_of(61) { 0 } else { 107 + (bits >> 8) % 40 };
        (bits & 0x8000) | exponent << 7 | bits & 0x7f
    };
    (0..count).map(|_| half() | half() << 16).collect()
}

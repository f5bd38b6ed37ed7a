//! A small product that shows whether the processor multiplies as documented.

use super::{model, tiled_product};
use crate::linalg::pairs::{PairPanels, RowWords};
use crate::linalg::panels::LANES;

/// Rows, pairs along `inner` and panels: two left tiles of unlike heights, and steps of 16 pairs and of fewer.
const ROWS: usize = 19;
const PAIRS: usize = 37;

/// Whether a product on tile registers has the bits of the scalar model.
///
/// # Safety
/// The processor has AMX-TILE and AMX-BF16, and the process may use them.
pub(super) unsafe fn is_documented_arithmetic() -> bool {
    let left = noise(ROWS * PAIRS, 1);
    let right = noise(PAIRS * LANES, 2);
    let rows = RowWords { words: &left, row_words: PAIRS, count: ROWS };
    let panels = PairPanels::consecutive(&right, PAIRS, 1);
    let mut ours = vec![0.0; ROWS * LANES];
    let mut expected = ours.clone();
    // SAFETY: the caller's; the slices have these shapes.
    unsafe { tiled_product(&rows, &panels, (&mut ours, LANES), false) };
    model::product(&rows, &panels, (&mut expected, LANES), false);
    ours.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Pairs of numbers whose sizes span forty powers of two, and some denormals.
fn noise(count: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut half = || {
        // The constants of Knuth's MMIX.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state >> 33) as u32;
        let exponent = if bits.is_multiple_of(61) { 0 } else { 107 + (bits >> 8) % 40 };
        (bits & 0x8000) | exponent << 7 | bits & 0x7f
    };
    (0..count).map(|_| half() | half() << 16).collect()
}

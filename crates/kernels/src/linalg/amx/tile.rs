//! Tile registers: their configuration, and one block of a product.
//!
//! The compiler never uses tile registers itself. Between [`configured`]'s two ends they belong to its body.

use std::arch::asm;

use super::{BLOCK_ROWS, TILE_PAIRS, TILE_ROWS};
use crate::linalg::panels::LANES;

/// Bytes of a word: a pair, or a sum.
const WORD: usize = 4;
/// Sums: two rows of two tiles. Left operands: two tiles above each other. Right operands: two tiles side by side.
const SUMS: [[usize; 2]; 2] = [[0, 1], [2, 3]];
const LEFT: [usize; 2] = [4, 5];
const RIGHT: [usize; 2] = [6, 7];

/// Rows of the two left tiles, and pairs that are multiplied at once.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    rows: [usize; 2],
    pairs: usize,
}

impl Shape {
    pub(super) fn new(rows: usize, pairs: usize) -> Self {
        assert!((1..=BLOCK_ROWS).contains(&rows) && (1..=TILE_PAIRS).contains(&pairs), "no tile has this shape");
        let top = rows.min(TILE_ROWS);
        Self { rows: [top, rows - top], pairs }
    }

    fn config(self) -> TileConfig {
        let mut config = TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (half, rows) in self.rows.into_iter().enumerate() {
            SUMS[half].into_iter().for_each(|tile| set_tile(tile, rows, LANES / 2, &mut config));
            set_tile(LEFT[half], rows, self.pairs, &mut config);
            set_tile(RIGHT[half], self.pairs, LANES / 2, &mut config);
        }
        config
    }
}

fn set_tile(tile: usize, rows: usize, words: usize, config: &mut TileConfig) {
    // An unused tile has neither rows nor columns.
    config.rows[tile] = rows as u8;
    config.row_bytes[tile] = if rows == 0 { 0 } else { (words * WORD) as u16 };
}

/// The operand of `LDTILECFG`.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tile registers that are configured.
pub(super) struct Tiles {
    has_bottom: bool,
}

/// Runs `body` with configured tile registers, and gives them back however it ends.
///
/// # Safety
/// The processor has AMX-TILE, and the process may use it.
pub(super) unsafe fn configured(shape: Shape, body: impl FnOnce(&Tiles)) {
    struct Released(Tiles);
    impl Drop for Released {
        fn drop(&mut self) {
            // SAFETY: a value exists only between the two ends of `configured`, whose caller vouches for AMX.
            unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        }
    }
    let config = shape.config();
    // SAFETY: the caller's; 64 bytes are read.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(readonly, nostack, preserves_flags)) };
    let tiles = Released(Tiles { has_bottom: shape.rows[1] > 0 });
    body(&tiles.0);
}

impl Tiles {
    /// Multiplies one block of rows with some lines of a panel. Sums start from `sums` where `loads`, else from zero.
    ///
    /// # Safety
    /// The processor has AMX-BF16. There are as many rows as the shape says, `steps` times its pairs in each and as many
    /// lines in the panel, and 32 sums for each row. Strides count words.
    #[inline]
    pub(super) unsafe fn multiply(
        &self,
        left: (*const u32, usize),
        right: *const u32,
        steps: usize,
        sums: (*mut f32, usize),
        loads: bool,
    ) {
        // SAFETY: the caller's.
        unsafe {
            if self.has_bottom {
                multiply_four(left, right, steps, sums, loads);
            } else {
                multiply_two(left, right, steps, sums, loads);
            }
        }
    }
}

/// Two left tiles times two right ones.
///
/// # Safety
/// As [`Tiles::multiply`].
unsafe fn multiply_four(
    (left, left_stride): (*const u32, usize),
    right: *const u32,
    steps: usize,
    (sums, stride): (*mut f32, usize),
    loads: bool,
) {
    // SAFETY: the caller's; each tile reads or writes as many rows and bytes as it is configured for.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "test {loads}, {loads}",
            "jz 2f",
            "tileloadd tmm0, [{top} + {stride}]",
            "tileloadd tmm1, [{top} + {stride} + 64]",
            "tileloadd tmm2, [{bottom} + {stride}]",
            "tileloadd tmm3, [{bottom} + {stride} + 64]",
            "2:",
            "tileloadd tmm6, [{right} + {line}]",
            "tileloadd tmm4, [{left} + {left_stride}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{right} + {line} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{below} + {left_stride}]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {left}, 64",
            "add {below}, 64",
            "add {right}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{top} + {stride}], tmm0",
            "tilestored [{top} + {stride} + 64], tmm1",
            "tilestored [{bottom} + {stride}], tmm2",
            "tilestored [{bottom} + {stride} + 64], tmm3",
            loads = in(reg) usize::from(loads),
            top = in(reg) sums,
            bottom = in(reg) sums.add(TILE_ROWS * stride),
            stride = in(reg) WORD * stride,
            left = inout(reg) left => _,
            below = inout(reg) left.add(TILE_ROWS * left_stride) => _,
            left_stride = in(reg) WORD * left_stride,
            right = inout(reg) right => _,
            line = in(reg) WORD * LANES,
            steps = inout(reg) steps => _,
            options(nostack),
        );
    }
}

/// One left tile times two right ones.
///
/// # Safety
/// As [`Tiles::multiply`].
unsafe fn multiply_two(
    (left, left_stride): (*const u32, usize),
    right: *const u32,
    steps: usize,
    (sums, stride): (*mut f32, usize),
    loads: bool,
) {
    // SAFETY: the caller's; each tile reads or writes as many rows and bytes as it is configured for.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "test {loads}, {loads}",
            "jz 2f",
            "tileloadd tmm0, [{top} + {stride}]",
            "tileloadd tmm1, [{top} + {stride} + 64]",
            "2:",
            "tileloadd tmm4, [{left} + {left_stride}]",
            "tileloadd tmm6, [{right} + {line}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{right} + {line} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {left}, 64",
            "add {right}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{top} + {stride}], tmm0",
            "tilestored [{top} + {stride} + 64], tmm1",
            loads = in(reg) usize::from(loads),
            top = in(reg) sums,
            stride = in(reg) WORD * stride,
            left = inout(reg) left => _,
            left_stride = in(reg) WORD * left_stride,
            right = inout(reg) right => _,
            line = in(reg) WORD * LANES,
            steps = inout(reg) steps => _,
            options(nostack),
        );
    }
}

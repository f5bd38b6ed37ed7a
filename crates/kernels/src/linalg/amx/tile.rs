//! Configuration of tile registers, and the product of one block.
//!
//! The compiler never uses tile registers. During a call of [`configured`], only the closure uses them.

use std::arch::asm;

use super::{BLOCK_ROWS, TILE_PAIRS, TILE_ROWS};
use crate::linalg::panels::LANES;

/// Bytes of a word, which is a bf16 pair or an f32 sum.
const WORD: usize = 4;
/// Tile registers of the sums (2 × 2 tiles), the left operands (two tiles stacked) and the right operands (two tiles
/// side by side).
const SUMS: [[usize; 2]; 2] = [[0, 1], [2, 3]];
const LEFT: [usize; 2] = [4, 5];
const RIGHT: [usize; 2] = [6, 7];

/// Rows of the two left tiles, and pairs per step.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    rows: [usize; 2],
    pairs: usize,
}

impl Shape {
    pub(super) fn new(rows: usize, pairs: usize) -> Self {
        assert!((1..=BLOCK_ROWS).contains(&rows) && (1..=TILE_PAIRS).contains(&pairs), "invalid tile shape");
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

/// Operand of `LDTILECFG`.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Proof that the tile registers are configured.
pub(super) struct Tiles {
    has_bottom: bool,
}

/// Runs `body` with configured tile registers, and releases them even if `body` panics.
///
/// # Safety
/// The processor must have AMX-TILE, and the process must have permission to use it.
pub(super) unsafe fn configured(shape: Shape, body: impl FnOnce(&Tiles)) {
    struct Released(Tiles);
    impl Drop for Released {
        fn drop(&mut self) {
            // SAFETY: a value exists only during `configured`, whose caller guarantees usable AMX.
            unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        }
    }
    let config = shape.config();
    // SAFETY: the caller guarantees usable AMX. The instruction reads the 64 bytes of `config`.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(readonly, nostack, preserves_flags)) };
    let tiles = Released(Tiles { has_bottom: shape.rows[1] > 0 });
    body(&tiles.0);
}

impl Tiles {
    /// Multiplies one block of rows by lines of a panel. Sums start from `sums` if `loads`, otherwise from zero.
    ///
    /// # Safety
    /// The processor must have AMX-BF16. `left` must have the rows of the configured shape, each with `steps` times its
    /// pairs. `right` must have as many lines, and `sums` must have 32 elements per row. Strides are in words.
    #[inline]
    pub(super) unsafe fn multiply(
        &self,
        left: (*const u32, usize),
        right: *const u32,
        steps: usize,
        sums: (*mut f32, usize),
        loads: bool,
    ) {
        // SAFETY: the caller guarantees usable AMX and the extents.
        unsafe {
            if self.has_bottom {
                multiply_four(left, right, steps, sums, loads);
            } else {
                multiply_two(left, right, steps, sums, loads);
            }
        }
    }
}

/// Multiplies two left tiles by two right tiles.
///
/// # Safety
/// See [`Tiles::multiply`].
unsafe fn multiply_four(
    (left, left_stride): (*const u32, usize),
    right: *const u32,
    steps: usize,
    (sums, stride): (*mut f32, usize),
    loads: bool,
) {
    // SAFETY: the caller guarantees usable AMX and the extents. Each tile accesses only its configured rows and bytes.
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

/// Multiplies one left tile by two right tiles.
///
/// # Safety
/// See [`Tiles::multiply`].
unsafe fn multiply_two(
    (left, left_stride): (*const u32, usize),
    right: *const u32,
    steps: usize,
    (sums, stride): (*mut f32, usize),
    loads: bool,
) {
    // SAFETY: the caller guarantees usable AMX and the extents. Each tile accesses only its configured rows and bytes.
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

//! Configuration of tile registers, and the product of one block.
//!
//! The compiler never allocates tile registers, so only the closure passed to [`with_tiles`] accesses them.

use std::arch::asm;

use super::{BLOCK_ROWS, Parts, TILE_PAIRS, TILE_ROWS};
use crate::linalg::panels::LANES;

/// Size in bytes of a word, which is a bf16 pair or an f32 sum.
const WORD: usize = 4;
/// Tile registers for the sums (2 × 2 tiles), the left operands (two tiles stacked) and the right operands (two tiles
/// side by side).
const SUMS: [[usize; 2]; 2] = [[0, 1], [2, 3]];
const LEFT: [usize; 2] = [4, 5];
const RIGHT: [usize; 2] = [6, 7];

/// Shape of a block product: rows of the two left tiles, pairs per part and step, and number of parts.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    rows: [usize; 2],
    pairs: usize,
    parts: Parts,
}

impl Shape {
    pub(super) fn new(rows: usize, pairs: usize, parts: Parts) -> Self {
        assert!((1..=BLOCK_ROWS).contains(&rows) && (1..=TILE_PAIRS).contains(&pairs), "invalid tile shape");
        assert!(parts == Parts::One || pairs == TILE_PAIRS, "parts are padded to full steps");
        let top = rows.min(TILE_ROWS);
        Self { rows: [top, rows - top], pairs, parts }
    }

    fn build_config(self) -> TileConfig {
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
    /// Rows of the two left tiles.
    rows: [usize; 2],
    parts: Parts,
}

/// Runs `body` with configured tile registers, and releases them even if `body` panics.
///
/// # Safety
/// The processor must have AMX-TILE, and the process must have permission to use it.
pub(super) unsafe fn with_tiles(shape: Shape, body: impl FnOnce(&Tiles)) {
    struct ReleaseGuard(Tiles);
    impl Drop for ReleaseGuard {
        fn drop(&mut self) {
            // SAFETY: a value exists only during `with_tiles`, whose caller guarantees that AMX is usable.
            unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        }
    }
    let config = shape.build_config();
    // SAFETY: the caller guarantees that AMX is usable. The instruction reads the 64 bytes of `config`.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(readonly, nostack, preserves_flags)) };
    let tiles = ReleaseGuard(Tiles { rows: shape.rows, parts: shape.parts });
    body(&tiles.0);
}

/// Operands for multiplying one block of rows by lines of one panel.
#[derive(Clone, Copy)]
pub(super) struct BlockProduct {
    /// Pointer to the first row, and row stride in words.
    pub(super) left: (*const u32, usize),
    /// Pointer to the first panel line.
    pub(super) right: *const u32,
    /// Number of steps along the inner dimension.
    pub(super) steps: usize,
    /// Pointer to the first row of the sums.
    pub(super) sums: *mut f32,
    /// Row stride of the sums.
    pub(super) stride: usize,
    /// Whether to add to the sums. Otherwise, they start at zero.
    pub(super) continues: bool,
    /// First word to prefetch into the L2 cache. Each step prefetches [`PREFETCHED_WORDS`] per part.
    pub(super) ahead: *const u32,
    /// First row of the sums of the next block, to prefetch. Each step prefetches two rows per part.
    pub(super) next_sums: *const f32,
}

/// Number of words (two cache lines) that a block of 32 rows prefetches per step and part. Sixteen blocks prefetch the
/// entire next panel. Four cache lines per step are slower.
pub(super) const PREFETCHED_WORDS: usize = 32;

impl Tiles {
    pub(super) fn parts(&self) -> Parts {
        self.parts
    }

    /// Returns the number of rows of a block.
    pub(super) fn rows(&self) -> usize {
        self.rows[0] + self.rows[1]
    }

    /// Computes the product of one block.
    ///
    /// # Safety
    /// The processor must have AMX-BF16. The left operand must have the rows of the configured shape, each with `steps`
    /// times the configured number of pairs. The right operand must have as many lines. The sums must have as many rows
    /// of 32 elements.
    #[inline]
    pub(super) unsafe fn multiply(&self, block: BlockProduct) {
        // SAFETY: the caller guarantees that AMX is usable and that the operands have the stated extents.
        unsafe {
            match (self.parts, self.rows[1] > 0) {
                (Parts::One, true) => multiply_four(block),
                (Parts::One, false) => multiply_two(block),
                (Parts::Two, true) => multiply_four_split_2(block),
                (Parts::Two, false) => multiply_two_split_2(block),
                (Parts::Three, true) => multiply_four_split_3(block),
                (Parts::Three, false) => multiply_two_split_3(block),
            }
        }
    }
}

/// Instructions that load the left tiles of part `$part` of the rows. With four tiles of sums, the loads bypass the L1
/// cache where possible (`T1`), so that the lines of the panel stay there for all blocks of rows.
macro_rules! load_left {
    (four, $part:literal) => {
        concat!(
            concat!("tileloaddt1 tmm4, [{left} + {left_stride} + 64 * ", $part, "]\n"),
            concat!("tileloaddt1 tmm5, [{below} + {left_stride} + 64 * ", $part, "]\n")
        )
    };
    (two, $part:literal) => {
        concat!("tileloadd tmm4, [{left} + {left_stride} + 64 * ", $part, "]\n")
    };
}

/// Instructions that load the right tiles of part `$part` of the weights. With four tiles of sums, the instructions
/// also prefetch [`PREFETCHED_WORDS`] words of the next panel, and two rows of the sums of the next block.
macro_rules! load_right {
    (four, $part:literal) => {
        concat!(
            load_right!(two, $part),
            concat!("prefetcht1 [{ahead} + 128 * ", $part, "]\n"),
            concat!("prefetcht1 [{ahead} + 128 * ", $part, " + 64]\n"),
            "prefetcht0 [{next}]\nprefetcht0 [{next} + 64]\nadd {next}, {next_stride}\n",
            "prefetcht0 [{next}]\nprefetcht0 [{next} + 64]\nadd {next}, {next_stride}\n"
        )
    };
    (two, $part:literal) => {
        concat!(
            concat!("tileloadd tmm6, [{right} + {line} + 2048 * ", $part, "]\n"),
            concat!("tileloadd tmm7, [{right} + {line} + 2048 * ", $part, " + 64]\n")
        )
    };
}

/// Instructions that add the products of the loaded tiles to the sums.
macro_rules! products {
    (four) => {
        concat!(products!(two), "tdpbf16ps tmm2, tmm5, tmm6\ntdpbf16ps tmm3, tmm5, tmm7\n")
    };
    (two) => {
        "tdpbf16ps tmm0, tmm4, tmm6\ntdpbf16ps tmm1, tmm4, tmm7\n"
    };
}

/// Instructions for one step with four or two tiles of sums, in the order of [`Parts::products`].
macro_rules! step {
    (1, $sums:tt) => {
        concat!(load_left!($sums, 0), load_right!($sums, 0), products!($sums))
    };
    (2, $sums:tt) => {
        concat!(
            concat!(load_left!($sums, 0), load_right!($sums, 1), products!($sums)),
            concat!(load_right!($sums, 0), products!($sums)),
            concat!(load_left!($sums, 1), products!($sums))
        )
    };
    (3, $sums:tt) => {
        concat!(
            concat!(load_left!($sums, 0), load_right!($sums, 2), products!($sums)),
            concat!(load_right!($sums, 1), products!($sums)),
            concat!(load_left!($sums, 1), products!($sums)),
            concat!(load_right!($sums, 0), products!($sums)),
            concat!(load_left!($sums, 2), products!($sums)),
            concat!(load_left!($sums, 0), products!($sums))
        )
    };
}

const _: () = assert!(64 == TILE_PAIRS * WORD && 2048 == TILE_PAIRS * LANES * WORD);

/// Defines a function that multiplies two left tiles by two right tiles, for numbers with `$parts` parts.
macro_rules! multiply_four {
    ($name:ident, $parts:tt) => {
        /// Multiplies two left tiles by two right tiles.
        ///
        /// # Safety
        /// See [`Tiles::multiply`].
        unsafe fn $name(BlockProduct { left, right, steps, sums, stride, continues, ahead, next_sums }: BlockProduct) {
            // SAFETY: the caller guarantees that AMX is usable and that the operands have the stated extents. Each tile
            // accesses only its configured rows and bytes. Prefetches never fault.
            unsafe {
                if continues {
                    asm!(
                        "tileloaddt1 tmm0, [{top} + {stride}]",
                        "tileloaddt1 tmm1, [{top} + {stride} + 64]",
                        "tileloaddt1 tmm2, [{bottom} + {stride}]",
                        "tileloaddt1 tmm3, [{bottom} + {stride} + 64]",
                        top = in(reg) sums,
                        bottom = in(reg) sums.add(TILE_ROWS * stride),
                        stride = in(reg) WORD * stride,
                        options(nostack, preserves_flags, readonly),
                    );
                } else {
                    asm!(
                        "tilezero tmm0",
                        "tilezero tmm1",
                        "tilezero tmm2",
                        "tilezero tmm3",
                        options(nostack, preserves_flags, nomem),
                    );
                }
                asm!(
                    "2:",
                    step!($parts, four),
                    concat!("add {left}, 64 * ", $parts),
                    concat!("add {below}, 64 * ", $parts),
                    concat!("add {right}, 2048 * ", $parts),
                    concat!("add {ahead}, 128 * ", $parts),
                    "dec {steps}",
                    "jnz 2b",
                    left = inout(reg) left.0 => _,
                    below = inout(reg) left.0.add(TILE_ROWS * left.1) => _,
                    left_stride = in(reg) WORD * left.1,
                    right = inout(reg) right => _,
                    line = in(reg) WORD * LANES,
                    steps = inout(reg) steps => _,
                    ahead = inout(reg) ahead => _,
                    next = inout(reg) next_sums => _,
                    next_stride = in(reg) WORD * stride,
                    options(nostack, readonly),
                );
                asm!(
                    "tilestored [{top} + {stride}], tmm0",
                    "tilestored [{top} + {stride} + 64], tmm1",
                    "tilestored [{bottom} + {stride}], tmm2",
                    "tilestored [{bottom} + {stride} + 64], tmm3",
                    top = in(reg) sums,
                    bottom = in(reg) sums.add(TILE_ROWS * stride),
                    stride = in(reg) WORD * stride,
                    options(nostack, preserves_flags),
                );
            }
        }
    };
}

/// Defines a function that multiplies one left tile by two right tiles, for numbers with `$parts` parts.
macro_rules! multiply_two {
    ($name:ident, $parts:tt) => {
        /// Multiplies one left tile by two right tiles.
        ///
        /// # Safety
        /// See [`Tiles::multiply`].
        unsafe fn $name(BlockProduct { left, right, steps, sums, stride, continues, .. }: BlockProduct) {
            // SAFETY: the caller guarantees that AMX is usable and that the operands have the stated extents. Each tile
            // accesses only its configured rows and bytes.
            unsafe {
                if continues {
                    asm!(
                        "tileloaddt1 tmm0, [{top} + {stride}]",
                        "tileloaddt1 tmm1, [{top} + {stride} + 64]",
                        top = in(reg) sums,
                        stride = in(reg) WORD * stride,
                        options(nostack, preserves_flags, readonly),
                    );
                } else {
                    asm!("tilezero tmm0", "tilezero tmm1", options(nostack, preserves_flags, nomem));
                }
                asm!(
                    "2:",
                    step!($parts, two),
                    concat!("add {left}, 64 * ", $parts),
                    concat!("add {right}, 2048 * ", $parts),
                    "dec {steps}",
                    "jnz 2b",
                    left = inout(reg) left.0 => _,
                    left_stride = in(reg) WORD * left.1,
                    right = inout(reg) right => _,
                    line = in(reg) WORD * LANES,
                    steps = inout(reg) steps => _,
                    options(nostack, readonly),
                );
                asm!(
                    "tilestored [{top} + {stride}], tmm0",
                    "tilestored [{top} + {stride} + 64], tmm1",
                    top = in(reg) sums,
                    stride = in(reg) WORD * stride,
                    options(nostack, preserves_flags),
                );
            }
        }
    };
}

multiply_four!(multiply_four, 1);
multiply_two!(multiply_two, 1);
multiply_four!(multiply_four_split_2, 2);
multiply_two!(multiply_two_split_2, 2);
multiply_four!(multiply_four_split_3, 3);
multiply_two!(multiply_two_split_3, 3);

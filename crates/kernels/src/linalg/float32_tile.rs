//! Vectorized kernels that multiply a tile of rows by one panel in f32.

#[cfg(target_arch = "x86_64")]
use super::gemm::l1_cache_ways;
use super::panels::{LANES, PanelPiece, TileOutput};
#[cfg(target_arch = "x86_64")]
use super::panels::{ROWS, by_rows, tiles};

/// Instruction set of a tile kernel.
#[derive(Clone, Copy)]
pub(super) enum F32Tile {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512 {
        /// Maximum number of rows per tile.
        max_rows: usize,
    },
}

impl F32Tile {
    pub(super) fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Self::Avx512 { max_rows: max_avx512_rows() };
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Plain
    }

    /// Returns the number of columns in a panel. AVX2 registers hold half as many values as AVX-512 registers, so AVX2
    /// panels are half as wide. A piece of such a panel fits in L1.
    #[inline]
    pub(super) fn lanes(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => LANES / 2,
            _ => LANES,
        }
    }

    /// Multiplies rows by a [`PanelPiece`] in chunks of `depth` lines. Stores the products in `out`, or adds them if
    /// [`TileOutput::adds`] is set. `x` is a slice and its row stride.
    ///
    /// # Shapes
    /// `x [rows, inner]`, `panel.words [inner, lanes]`.
    ///
    /// # Panics
    /// Panics if there are no rows, or a slice is too short for its shape.
    #[inline]
    pub(super) fn multiply(
        self,
        x: (&[f32], usize),
        rows: usize,
        panel: &PanelPiece<'_, f32>,
        depth: usize,
        mut out: TileOutput<'_>,
    ) {
        let (inner, (numbers, row_stride)) = (panel.words.len() / self.lanes(), x);
        assert!(rows > 0 && (rows - 1) * row_stride + inner <= numbers.len());
        // Each piece of the panel stays in L1 for all rows, while the next one is prefetched.
        let mut pieces = panel.words.chunks(depth * self.lanes()).enumerate().peekable();
        while let Some((index, words)) = pieces.next() {
            let next = pieces.peek().map_or(&panel.next[..panel.next.len().min(words.len())], |&(_, words)| words);
            self.multiply_piece((&numbers[index * depth..], row_stride), rows, [words, next], &mut out);
            out.adds = true;
        }
    }

    /// Multiplies rows by one piece of a panel, and prefetches `next`.
    ///
    /// # Shapes
    /// `x [rows, piece]`, `panel [piece, lanes]`.
    #[inline]
    fn multiply_piece(
        self,
        (x, row_stride): (&[f32], usize),
        rows: usize,
        [panel, next]: [&[f32]; 2],
        out: &mut TileOutput<'_>,
    ) {
        assert!((rows - 1) * row_stride + panel.len() / self.lanes() <= x.len());
        match self {
            Self::Plain => multiply_plain((x, row_stride), rows, panel, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `best` detected the instruction set, the assertion above bounds all reads, and `TileOutput::rows`
            // all writes.
            Self::Avx512 { max_rows } => unsafe {
                let ((first, stride), adds) = (out.rows(rows, self.lanes()), out.adds);
                let mut ahead = PrefetchSchedule::new(next, rows.div_ceil(max_rows));
                for tile in tiles(rows, max_rows) {
                    let x = (&x[tile.start * row_stride..], row_stride);
                    let tile_out = (first.add(tile.start * stride), stride);
                    let fetched = ahead.next_chunk();
                    by_rows!(tile.len(), [1 2 3 4 5 6 7 8 9 10], (x86::avx512), (x, [panel, fetched], tile_out, adds));
                }
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above. The sums of six rows occupy twelve of sixteen registers.
            Self::Avx2 => unsafe {
                let ((first, stride), adds) = (out.rows(rows, self.lanes()), out.adds);
                let mut ahead = PrefetchSchedule::new(next, rows.div_ceil(6));
                for tile in tiles(rows, 6) {
                    let x = (&x[tile.start * row_stride..], row_stride);
                    let tile_out = (first.add(tile.start * stride), stride);
                    by_rows!(tile.len(), [1 2 3 4 5 6], (x86::avx2), (x, [panel, ahead.next_chunk()], tile_out, adds));
                }
            },
        }
    }
}

/// Returns the maximum number of rows per AVX-512 tile. With more rows, the panel is read less often. However, rows that
/// are a multiple of 4 KiB apart share a set of the L1 cache, and ten of them exceed a set of eight ways.
#[cfg(target_arch = "x86_64")]
fn max_avx512_rows() -> usize {
    if l1_cache_ways() >= 12 { 10 } else { ROWS }
}

/// Prefetch schedule that divides the next panel piece evenly among the tiles of the current piece.
#[cfg(target_arch = "x86_64")]
struct PrefetchSchedule<'a> {
    remaining: &'a [f32],
    chunk_len: usize,
}

#[cfg(target_arch = "x86_64")]
impl<'a> PrefetchSchedule<'a> {
    /// Minimum number of tiles for prefetching. With fewer tiles, prefetches would complete too late, and the hardware
    /// prefetcher suffices.
    const MIN_TILES: usize = 4;

    fn new(next: &'a [f32], tiles: usize) -> Self {
        let chunk_len = next.len().div_ceil(tiles.max(1)).next_multiple_of(x86::CACHE_LINE);
        Self { remaining: if tiles < Self::MIN_TILES { &[] } else { next }, chunk_len }
    }

    /// Returns the elements of the next piece to prefetch during one tile.
    fn next_chunk(&mut self) -> &'a [f32] {
        let (chunk, remaining) = self.remaining.split_at(self.chunk_len.min(self.remaining.len()));
        self.remaining = remaining;
        chunk
    }
}

/// Multiplies rows by a panel on any CPU. Without hardware FMA (x86 before 2013), products and sums are rounded
/// separately, as in the `gemm` crate.
fn multiply_plain((x, row_stride): (&[f32], usize), rows: usize, panel: &[f32], out: &mut TileOutput<'_>) {
    for (index, row) in (0..rows).map(|row| &x[row * row_stride..][..panel.len() / LANES]).enumerate() {
        let mut parts = [0.0f32; LANES];
        for (&x, weights) in row.iter().zip(panel.as_chunks::<LANES>().0) {
            parts.iter_mut().zip(weights).for_each(|(part, &weight)| {
                *part = {
                    if cfg!(any(target_arch = "x86", target_arch = "x86_64")) {
                        x * weight + (*part)
                    } else {
                        x.mul_add(weight, *part)
                    }
                }
            });
        }
        out.store_row(index, &parts);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m256, __m512, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch, _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
        _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps, _mm512_add_ps, _mm512_loadu_ps, _mm512_setzero_ps,
        _mm512_storeu_ps,
    };

    /// Number of f32 values per cache line.
    pub(super) const CACHE_LINE: usize = 16;
    /// Number of panel lines per iteration of the inner loop.
    const UNROLLED_LINES: usize = 4;

    /// Prefetches the cache line at an address.
    #[inline(always)]
    #[allow(unused_unsafe, reason = "the intrinsic was unsafe in earlier releases of Rust")]
    fn prefetch<const LEVEL: i32>(number: *const f32) {
        // SAFETY: a prefetch has no visible effect and never faults.
        unsafe { _mm_prefetch::<LEVEL>(number.cast()) };
    }

    /// Adds the products of element `x` with two registers of weights.
    ///
    /// # Safety
    /// The processor must support the instruction set, and `x` must be valid for reads.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn add_products_avx2(sums: &mut [__m256; 2], x: *const f32, weights: [__m256; 2]) {
        // SAFETY: the caller guarantees that `x` is valid.
        let x = _mm256_set1_ps(unsafe { *x });
        for (sum, weights) in sums.iter_mut().zip(weights) {
            *sum = _mm256_fmadd_ps(x, weights, *sum);
        }
    }

    /// Adds the products of element `x` with two registers of weights.
    ///
    /// Written in assembly, because LLVM loads the elements of all rows in advance. With more than eight rows, it runs
    /// out of registers, and spilling them to the stack halves the speed.
    ///
    /// # Safety
    /// The processor must support the instruction set, and `x` must be valid for reads.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_products_avx512([first, second]: &mut [__m512; 2], x: *const f32, weights: [__m512; 2]) {
        // SAFETY: the caller guarantees that `x` is valid. Nothing is written.
        unsafe {
            asm!(
                "vbroadcastss {number}, dword ptr [{x}]",
                "vfmadd231ps {first}, {number}, {low}",
                "vfmadd231ps {second}, {number}, {high}",
                number = out(zmm_reg) _,
                x = in(reg) x,
                first = inout(zmm_reg) *first,
                second = inout(zmm_reg) *second,
                low = in(zmm_reg) weights[0],
                high = in(zmm_reg) weights[1],
                options(pure, readonly, nostack, preserves_flags),
            );
        }
    }

    /// Defines a tile kernel with two registers of sums per row.
    macro_rules! tile {
        ($name:ident, $line:ident, $sums:ident, $features:literal, $width:literal, $load:ident, $store:ident, $zero:ident, $add:ident, $add_products:ident) => {
            /// Adds the products of one element of each row with one line of a panel.
            ///
            /// # Safety
            /// The processor must support the instruction set. `x` must point to the elements of `R` rows with the
            /// given row stride, and `line` to two registers of weights.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn $line<const R: usize>(
                parts: &mut [[$sums; 2]; R],
                (x, apart): (*const f32, usize),
                line: *const f32,
            ) {
                // SAFETY: the caller guarantees that `line` points to two registers of weights.
                let weights = unsafe { [$load(line), $load(line.add($width))] };
                for (row, parts) in parts.iter_mut().enumerate() {
                    // SAFETY: the caller guarantees that `x` points to the elements of `R` rows.
                    unsafe { $add_products(parts, x.add(row * apart), weights) };
                }
            }

            /// Multiplies `R` rows by a panel, and prefetches `ahead`.
            ///
            /// # Safety
            /// The processor must support the instruction set. `x` must have `R` rows with the given row stride, each
            /// with one element per line of the panel. A line is two registers wide. `out` must point to `R` rows of
            /// one line of sums, with row stride `stride`.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name<const R: usize>(
                (x, apart): (&[f32], usize),
                [panel, ahead]: [&[f32]; 2],
                (out, stride): (*mut f32, usize),
                adds: bool,
            ) {
                let x = x.as_ptr();
                let weights = panel.as_ptr();
                let mut parts = [[$zero(); 2]; R];
                for row in 0..R {
                    // Prefetch the first and last cache line of the row's sums.
                    let sums = out.wrapping_add(row * stride);
                    prefetch::<_MM_HINT_T0>(sums);
                    prefetch::<_MM_HINT_T0>(sums.wrapping_add(2 * $width - 1));
                }
                let lines = panel.len() / (2 * $width);
                let unrolled = lines / UNROLLED_LINES * UNROLLED_LINES;
                let mut ahead = ahead.chunks(CACHE_LINE);
                let prefetches = ahead.len().div_ceil((lines / UNROLLED_LINES).max(1));
                for first in (0..unrolled).step_by(UNROLLED_LINES) {
                    ahead.by_ref().take(prefetches).for_each(|line| prefetch::<_MM_HINT_T1>(line.as_ptr()));
                    for k in first..first + UNROLLED_LINES {
                        // SAFETY: line `k` ends inside the panel, and each row is as long as the panel.
                        unsafe { $line(&mut parts, (x.add(k), apart), weights.add(2 * k * $width)) };
                    }
                }
                for k in unrolled..lines {
                    // SAFETY: as above.
                    unsafe { $line(&mut parts, (x.add(k), apart), weights.add(2 * k * $width)) };
                }
                for (row, parts) in parts.into_iter().enumerate() {
                    for (at, part) in parts.into_iter().enumerate() {
                        // SAFETY: the columns lie within a row of sums.
                        unsafe {
                            let out = out.add(row * stride + $width * at);
                            let sum = if adds { $add($load(out), part) } else { part };
                            $store(out, sum);
                        }
                    }
                }
            }
        };
    }

    #[rustfmt::skip] // One line per instance.
    tile!(avx512, avx512_line, __m512, "avx512f", 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_setzero_ps, _mm512_add_ps, add_products_avx512);
    #[rustfmt::skip]
    tile!(avx2, avx2_line, __m256, "avx2,fma", 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_setzero_ps, _mm256_add_ps, add_products_avx2);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(i: usize) -> f32 {
        (i * 7919 % 10_007) as f32 / 10_007.0 - 0.5
    }

    /// Multiplies rows by one panel in pieces of 128 elements, with an output that initially contains 0.5 everywhere.
    fn multiply_with_tile(tile: F32Tile, x: &[f32], rows: usize, panel: &[f32], adds: bool) -> Vec<f32> {
        let mut sums = vec![0.5; LANES * rows];
        let lanes = tile.lanes();
        let inner = panel.len() / LANES;
        for first in (0..LANES).step_by(lanes) {
            let panel: Vec<f32> = panel.chunks(LANES).flat_map(|line| &line[first..first + lanes]).copied().collect();
            let part = PanelPiece { first: 0, words: &panel, next: &panel };
            tile.multiply((x, inner), rows, &part, 128, TileOutput::new(&mut sums[first..], [lanes, LANES], adds));
        }
        sums
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    #[expect(clippy::disallowed_macros, reason = "prints why tiles are skipped")]
    fn rows_are_bit_identical_in_tiles_of_any_size_and_on_any_fma_cpu() {
        if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("fma") {
            eprintln!("skipped: this CPU has no AVX2 or no FMA");
            return;
        }
        let mut all = vec![F32Tile::Avx2];
        if is_x86_feature_detected!("avx512f") {
            all.extend([8, 10].map(|max_rows| F32Tile::Avx512 { max_rows }));
        } else {
            eprintln!("AVX-512 tiles skipped: this CPU has no AVX-512");
        }
        let x: Vec<f32> = (0..27 * 300).map(noise).collect();
        let panel: Vec<f32> = (0..300 * LANES).map(|i| noise(i + 11)).collect();
        for (rows, adds) in (1..=27).flat_map(|rows| [(rows, false), (rows, true)]) {
            let alone: Vec<f32> = (0..rows)
                .flat_map(|row| multiply_with_tile(F32Tile::best(), &x[row * 300..], 1, &panel, adds))
                .collect();
            for &tile in &all {
                let sums = multiply_with_tile(tile, &x, rows, &panel, adds);
                assert!(sums.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits()), "{rows} rows");
            }
        }
    }

    #[test]
    fn plain_tile_sums_match_the_best_tile_up_to_rounding() {
        let panel: Vec<f32> = (0..300 * LANES).map(|i| noise(i + 11)).collect();
        let row: Vec<f32> = (0..300).map(noise).collect();
        let [best, plain] =
            [F32Tile::best(), F32Tile::Plain].map(|tile| multiply_with_tile(tile, &row, 1, &panel, true));
        assert!(best.iter().zip(plain).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

//! Vectorized kernels that multiply a tile of rows by one panel in bf16.

#[cfg(target_arch = "x86_64")]
use std::ops::Range;
use std::sync::OnceLock;

use super::pairs::{padded_stride, push_bf16_pairs, round_to_bf16, unpack_bf16_pair};
use super::panels::{LANES, TileOutput};
#[cfg(target_arch = "x86_64")]
use super::panels::{ROWS, by_rows, tiles};
use super::simd;

/// Instruction set of a tile kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bf16Tile {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with fused multiply-adds on operands widened to f32.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with `VDPBF16PS`.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

impl Bf16Tile {
    /// Returns the fastest instruction set that this processor supports.
    #[inline]
    pub(super) fn best() -> Self {
        static BEST: OnceLock<Bf16Tile> = OnceLock::new();
        *BEST.get_or_init(|| Self::supported().next().unwrap_or(Self::Plain))
    }

    /// Returns the supported instruction sets, fastest first.
    pub(super) fn supported() -> impl Iterator<Item = Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "only one tile exists on this target"))]
        let mut all = vec![Self::Plain];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(Self::Avx2);
            }
            if is_x86_feature_detected!("avx512f") {
                all.push(Self::Avx512);
                if is_x86_feature_detected!("avx512bf16") {
                    // Intel cores run VDPBF16PS at half the rate of f32 FMA, so it is not faster than widened operands.
                    let index = if is_intel() { all.len() - 1 } else { all.len() };
                    all.insert(index, Self::Avx512Bf16);
                }
            }
        }
        all.into_iter().rev()
    }

    /// Returns whether rows are stored as f32 values rounded to bf16, rather than as pairs.
    #[inline]
    fn widens_rows(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            self == Self::Avx512
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            false
        }
    }

    /// Returns the number of words in a row of `inner` elements.
    #[inline]
    pub(super) fn row_words(self, inner: usize) -> usize {
        if !self.widens_rows() {
            return inner.div_ceil(2);
        }
        padded_stride(inner.next_multiple_of(2))
    }

    /// Appends a row in the format of this instruction set.
    #[inline(always)]
    pub(super) fn push_row(self, row: &[f32], words: &mut Vec<u32>) {
        if !self.widens_rows() {
            return push_bf16_pairs(row, words);
        }
        let end = words.len() + self.row_words(row.len());
        words.extend(row.iter().map(|&x| round_to_bf16(x)));
        words.resize(end, 0);
    }

    /// Multiplies rows by one panel and stores the products in `out`, or adds them if [`TileOutput::adds`] is set.
    ///
    /// # Shapes
    /// `words [rows, row_words]`, `panel [width, 32]`.
    ///
    /// # Panics
    /// Panics if a slice is too short for its shape.
    #[inline]
    pub(super) fn multiply(
        self,
        (words, row_words): (&[u32], usize),
        panel: &[u32],
        rows: usize,
        mut out: TileOutput<'_>,
    ) {
        let width = panel.len() / LANES;
        assert!(words.len() >= rows * row_words && row_words >= self.row_words(2 * width));
        match self {
            Self::Plain => {
                for (index, row) in words.chunks_exact(row_words.max(1)).take(rows).enumerate() {
                    out.store_row(index, &multiply_plain(&row[..width], panel));
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `supported` detected the instruction set, the assertion above bounds all reads, and
            // `TileOutput::rows` all writes.
            Self::Avx512Bf16 => unsafe {
                let ((first, stride), adds) = (out.rows(rows, LANES), out.adds);
                for top in (0..rows).step_by(ROWS) {
                    let row = (&words[top * row_words..], row_words);
                    let tile_out = (first.add(top * stride), stride);
                    let height = ROWS.min(rows - top);
                    by_rows!(height, [1 2 3 4 5 6 7 8], (avx512::multiply_pairs), (row, panel, tile_out, adds));
                }
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above. The sums of twelve rows occupy 24 of 32 registers.
            Self::Avx512 => unsafe {
                let ((first, stride), adds) = (out.rows(rows, LANES), out.adds);
                for tile in tiles(rows, 12) {
                    let row = (&words[tile.start * row_words..], row_words);
                    let tile_out = (first.add(tile.start * stride), stride);
                    by_rows!(tile.len(), [1 2 3 4 5 6 7 8 9 10 11 12], (avx512::multiply_widened), (row, panel, tile_out, adds));
                }
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above. Each tile writes only its own rows and columns.
            Self::Avx2 => unsafe {
                let ((first, stride), adds) = (out.rows(rows, LANES), out.adds);
                let tile_out = |tile: &Range<usize>| (first.add(tile.start * stride), stride);
                if (1..=2).contains(&rows) {
                    // Memory bandwidth limits the speed, so read full lines of the panel and use enough sums to hide
                    // the FMA latency.
                    by_rows!(rows, [1 2], (avx2::multiply_few_rows), ((words, row_words), panel, tile_out(&(0..rows)), adds));
                    return;
                }
                // The sums of four rows and half of the columns fill half of the registers, and half a panel stays in
                // L1.
                for column in [0, LANES / 2] {
                    for tile in tiles(rows, 4) {
                        let row = (&words[tile.start * row_words..], row_words);
                        let tile_out = tile_out(&tile);
                        by_rows!(tile.len(), [1 2 3 4], (avx2::multiply_half_panel), (row, panel, column, tile_out, adds));
                    }
                }
            },
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    let vendor = std::arch::x86_64::__cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == *b"GenuineIntel"
}

/// Multiplies one row by one panel, without intrinsics.
fn multiply_plain(row: &[u32], panel: &[u32]) -> [f32; LANES] {
    let mut parts = [0.0f32; LANES];
    simd::in_widest!({
        for (&x, weights) in row.iter().zip(panel.as_chunks::<LANES>().0) {
            let x = unpack_bf16_pair(x);
            for (part, &weight) in parts.iter_mut().zip(weights) {
                let weight = unpack_bf16_pair(weight);
                *part += x[1] * weight[1];
                *part += x[0] * weight[0];
            }
        }
    });
    parts
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, __m256i, _mm256_add_ps, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
        _mm256_loadu_si256, _mm256_set1_epi32, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
    };

    use super::LANES;

    /// Number of f32 lanes per register.
    const WIDTH: usize = 8;

    /// Computes all columns of one or two rows.
    ///
    /// # Safety
    /// See [`multiply_columns`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn multiply_few_rows<const R: usize>(
        row: (&[u32], usize),
        panel: &[u32],
        out: (*mut f32, usize),
        adds: bool,
    ) {
        // SAFETY: the caller upholds the contract of `multiply_columns`. Four registers cover 32 columns.
        unsafe { multiply_columns::<R, 4>(row, panel, 0, out, adds) }
    }

    /// Computes sixteen columns of `R` rows, starting at `column`.
    ///
    /// # Safety
    /// See [`multiply_columns`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn multiply_half_panel<const R: usize>(
        row: (&[u32], usize),
        panel: &[u32],
        column: usize,
        out: (*mut f32, usize),
        adds: bool,
    ) {
        // SAFETY: the caller upholds the contract of `multiply_columns`.
        unsafe { multiply_columns::<R, 2>(row, panel, column, out, adds) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn second_of_pairs(words: __m256i) -> __m256 {
        _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32.cast_signed())))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn first_of_pairs(words: __m256i) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
    }

    /// Adds both products of two pairs to a sum. Index 0 of `x` and `weights` contains the second numbers, whose
    /// product is added first.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn add_pairs(sum: __m256, x: &[__m256; 2], weights: &[__m256; 2]) -> __m256 {
        _mm256_fmadd_ps(x[1], weights[1], _mm256_fmadd_ps(x[0], weights[0], sum))
    }

    /// Computes `C` registers of columns for `R` rows, starting at `column`.
    ///
    /// # Safety
    /// The processor must have AVX2 and FMA. `words [R, row_words]` and `panel [width, 32]` must be complete, and the
    /// columns must end at or before column 32. `out` must point to `R` rows of 32 sums with row stride `stride`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn multiply_columns<const R: usize, const C: usize>(
        (words, row_words): (&[u32], usize),
        panel: &[u32],
        column: usize,
        (out, stride): (*mut f32, usize),
        adds: bool,
    ) {
        let x = words.as_ptr();
        let weights = panel.as_ptr();
        let width = panel.len() / LANES;
        let mut parts = [[_mm256_setzero_ps(); C]; R];
        for k in 0..width {
            // SAFETY: `k` is below `width` and the columns end at or before 32, so loads stay inside the panel.
            let weights =
                |index: usize| unsafe { _mm256_loadu_si256(weights.add(k * LANES + column + WIDTH * index).cast()) };
            // SAFETY: `row` is below `R`, and `k` is below `width`.
            let x = |row: usize| _mm256_set1_epi32(unsafe { *x.add(row * row_words + k) }.cast_signed());
            // Keep the smaller operand in registers.
            if R < C {
                let mut rows = [[_mm256_setzero_ps(); 2]; R];
                for (row, numbers) in rows.iter_mut().enumerate() {
                    *numbers = [second_of_pairs(x(row)), first_of_pairs(x(row))];
                }
                for index in 0..C {
                    let weights = [second_of_pairs(weights(index)), first_of_pairs(weights(index))];
                    for (parts, x) in parts.iter_mut().zip(&rows) {
                        parts[index] = add_pairs(parts[index], x, &weights);
                    }
                }
            } else {
                let mut line = [[_mm256_setzero_ps(); 2]; C];
                for (index, numbers) in line.iter_mut().enumerate() {
                    *numbers = [second_of_pairs(weights(index)), first_of_pairs(weights(index))];
                }
                for (row, parts) in parts.iter_mut().enumerate() {
                    let x = [second_of_pairs(x(row)), first_of_pairs(x(row))];
                    for (part, weights) in parts.iter_mut().zip(&line) {
                        *part = add_pairs(*part, &x, weights);
                    }
                }
            }
        }
        for (row, parts) in parts.into_iter().enumerate() {
            for (index, part) in parts.into_iter().enumerate() {
                // SAFETY: the columns lie within a row of sums.
                unsafe {
                    let out = out.add(row * stride + column + WIDTH * index);
                    let sum = if adds { _mm256_add_ps(_mm256_loadu_ps(out), part) } else { part };
                    _mm256_storeu_ps(out, sum);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::{
        __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_and_si512, _mm512_castsi512_ps, _mm512_dpbf16_ps,
        _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_slli_epi32, _mm512_storeu_ps,
    };

    use super::LANES;

    /// Multiplies `R` rows of bf16 pairs by one panel.
    ///
    /// # Safety
    /// The processor must have AVX512-BF16. `words [R, row_words]` and `panel [width, 32]` must be complete. `out` must
    /// point to `R` rows of 32 sums with row stride `stride`.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn multiply_pairs<const R: usize>(
        (words, row_words): (&[u32], usize),
        panel: &[u32],
        out: (*mut f32, usize),
        adds: bool,
    ) {
        let bf16 = |bits: __m512i| {
            // SAFETY: both types have 512 bits and no invalid values.
            unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
        };
        let x = words.as_ptr();
        let weights = panel.as_ptr();
        let width = panel.len() / LANES;
        let mut parts = [[_mm512_setzero_ps(); 2]; R];
        for k in 0..width {
            // SAFETY: `k` is below `width`, so both loads stay inside the panel.
            let halves = unsafe {
                let line = weights.add(k * LANES);
                [bf16(_mm512_loadu_si512(line.cast())), bf16(_mm512_loadu_si512(line.add(LANES / 2).cast()))]
            };
            for (row, parts) in parts.iter_mut().enumerate() {
                // SAFETY: `row` is below `R`, and `k` is below `width`.
                let x = bf16(_mm512_set1_epi32(unsafe { *x.add(row * row_words + k) } as i32));
                for (part, half) in parts.iter_mut().zip(halves) {
                    *part = _mm512_dpbf16_ps(*part, x, half);
                }
            }
        }
        // SAFETY: the caller guarantees the extent of `out`.
        unsafe { store(parts, out, adds) };
    }

    /// Multiplies `R` rows, which are already widened to f32, by one panel.
    ///
    /// # Safety
    /// See [`multiply_pairs`]. AVX-512F is sufficient, and `words [R, row_words]` must contain f32 values.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn multiply_widened<const R: usize>(
        (words, row_words): (&[u32], usize),
        panel: &[u32],
        out: (*mut f32, usize),
        adds: bool,
    ) {
        let x = words.as_ptr().cast::<f32>();
        let weights = panel.as_ptr();
        let width = panel.len() / LANES;
        let second_half = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let mut parts = [[_mm512_setzero_ps(); 2]; R];
        for k in 0..width {
            // SAFETY: `k` is below `width`, so both loads stay inside the panel.
            let line = unsafe {
                let line = weights.add(k * LANES);
                [_mm512_loadu_si512(line.cast()), _mm512_loadu_si512(line.add(LANES / 2).cast())]
            };
            let second = line.map(|words| _mm512_castsi512_ps(_mm512_and_si512(words, second_half)));
            let first = line.map(|words| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)));
            for (row, parts) in parts.iter_mut().enumerate() {
                // SAFETY: `row` is below `R`, and a row has two numbers per line.
                let [x_first, x_second] = unsafe {
                    let pair = x.add(row * row_words + 2 * k);
                    [_mm512_set1_ps(*pair), _mm512_set1_ps(*pair.add(1))]
                };
                for (half, part) in parts.iter_mut().enumerate() {
                    *part = _mm512_fmadd_ps(x_first, first[half], _mm512_fmadd_ps(x_second, second[half], *part));
                }
            }
        }
        // SAFETY: the caller guarantees the extent of `out`.
        unsafe { store(parts, out, adds) };
    }

    /// Stores the sums in `out`, or adds them to `out` if `adds` is set.
    ///
    /// # Safety
    /// See [`multiply_pairs`].
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store<const R: usize>(parts: [[__m512; 2]; R], (out, stride): (*mut f32, usize), adds: bool) {
        for (row, parts) in parts.into_iter().enumerate() {
            for (half, part) in parts.into_iter().enumerate() {
                // SAFETY: a row of sums is two registers wide.
                unsafe {
                    let out = out.add(row * stride + LANES / 2 * half);
                    let sum = if adds { _mm512_add_ps(_mm512_loadu_ps(out), part) } else { part };
                    _mm512_storeu_ps(out, sum);
                }
            }
        }
    }
}

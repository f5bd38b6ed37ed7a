//! Products with weights in bf16: a row and a weight are rounded to bf16, what they make is summed in f32.
//!
//! Two numbers that are multiplied one after the other (`2k` and `2k + 1`) stand as a pair in one word, the form that the
//! instruction `VDPBF16PS` takes (AVX512-BF16; found when the program runs). Elsewhere fused additions in f32, or plain
//! loops, do the same: a product of two bf16 is exact in f32, and all add that of `2k + 1` before that of `2k`, so that
//! results are the same to the bit on every processor, but for numbers below 1e-38.

#[cfg(target_arch = "x86_64")]
use std::ops::Range;

use super::gemm::MatrixView;
use super::panels::{Kind, LANES, PanelPiece, TileOut, lay_panel};
#[cfg(target_arch = "x86_64")]
use super::panels::{ROWS, by_rows, tiles};
use super::simd;

/// Weights in bf16, pairs of them in one word.
pub struct Bf16;

/// Rows in bf16, `[rows, width]` pairs.
pub struct PairedRows {
    words: Vec<u32>,
    width: usize,
}

impl Kind for Bf16 {
    type Word = u32;
    type Rows<'x> = PairedRows;

    /// Where numbers are odd a zero ends the last pair.
    fn depth(inner: usize) -> usize {
        inner.div_ceil(2)
    }

    #[inline(always)]
    fn lay(row: &[f32], column: usize, panel: &mut [u32]) {
        for (line, of) in panel.chunks_exact_mut(LANES).zip(row.chunks(2)) {
            line[column] = pair(of[0], of.get(1).copied().unwrap_or(0.0));
        }
    }

    fn lay_panel(columns: &[f32], inner: usize, panel: &mut [u32]) {
        lay_panel::<Self>(columns, inner, panel);
    }

    fn number(panel: &[u32], k: usize, column: usize) -> f32 {
        let word = panel[k / 2 * LANES + column];
        f32::from_bits(if k.is_multiple_of(2) { word << 16 } else { word & 0xffff_0000 })
    }

    fn rows(x: MatrixView<'_, f32>) -> PairedRows {
        let width = Self::depth(x.width());
        let mut words = Vec::with_capacity(x.height() * width); // [rows, inner / 2]
        // A loop, as what is given to an iterator's own one is not compiled for the widest instructions.
        simd::in_widest!({
            for row in 0..x.height() {
                push_pairs(x.row(row), &mut words);
            }
        });
        PairedRows { words, width }
    }

    #[inline]
    fn multiply(rows: &PairedRows, height: usize, piece: PanelPiece<'_, u32>, out: TileOut<'_>) {
        Bf16Tile::best().multiply(&rows.words, rows.width, piece.words, height, out);
    }
}

/// The nearest bf16 in the upper half of a word, the even one of two as near; NaN stays NaN.
#[inline(always)]
fn rounded(x: f32) -> u32 {
    let bits = x.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    (if x.is_nan() { bits | 0x40_0000 } else { nearest }) & 0xffff_0000
}

/// Two numbers that follow each other along `inner`, as bf16 in one word.
#[inline(always)]
pub fn pair(first: f32, second: f32) -> u32 {
    rounded(first) >> 16 | rounded(second)
}

/// The pairs of a row, behind others; of an odd one the last is filled up with zero.
#[inline(always)]
pub fn push_pairs(row: &[f32], words: &mut Vec<u32>) {
    let (whole, rest) = row.as_chunks::<2>();
    words.extend(whole.iter().map(|&[first, second]| pair(first, second)));
    words.extend(rest.iter().map(|&last| pair(last, 0.0)));
}

/// Rows of pairs with one panel, to rows of `out` whose starts lie `stride` apart. Other shapes panic.
///
/// # Shapes
/// `words [rows, width]`, `panel [width, 32]`.
pub fn tile(words: &[u32], rows: usize, panel: &[u32], (out, stride): (&mut [f32], usize), adds: bool) {
    Bf16Tile::best().multiply(words, panel.len() / LANES, panel, rows, TileOut::new(out, [LANES, stride], adds));
}

/// How a tile is multiplied on this processor.
#[derive(Clone, Copy)]
enum Bf16Tile {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

impl Bf16Tile {
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16") {
                return Self::Avx512Bf16;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Plain
    }

    /// Rows with one panel.
    ///
    /// # Shapes
    /// `words [rows, width]`, `panel [width, 32]`; panics where there are fewer.
    #[inline]
    fn multiply(self, words: &[u32], width: usize, panel: &[u32], rows: usize, mut out: TileOut<'_>) {
        assert!(words.len() == rows * width && panel.len() == width * LANES);
        match self {
            Self::Plain => {
                for (index, row) in words.chunks_exact(width.max(1)).enumerate() {
                    out.put(index, &plain(row, panel));
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `best` found the instructions; the assertion above has the extents that are read, that of `rows` those
            // that are written.
            Self::Avx512Bf16 => unsafe {
                let ((first, stride), adds) = (out.rows(rows, LANES), out.adds);
                for top in (0..rows).step_by(ROWS) {
                    let (words, place) = (&words[top * width..], (first.add(top * stride), stride));
                    let height = ROWS.min(rows - top);
                    by_rows!(height, [1 2 3 4 5 6 7 8], (avx512::rows), (words, width, panel, place, adds));
                }
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; rows and columns further on lie their own sums.
            Self::Avx2 => unsafe {
                let ((first, stride), adds) = (out.rows(rows, LANES), out.adds);
                let place = |tile: &Range<usize>| (first.add(tile.start * stride), stride);
                if (1..=2).contains(&rows) {
                    // As fast as weights come from memory: a line of a panel at a time, as many sums as hide their additions.
                    by_rows!(rows, [1 2], (avx2::few), (words, width, panel, place(&(0..rows)), adds));
                    return;
                }
                // Half of the sums of four rows fill half of the registers; half a panel stays in a near cache.
                for column in [0, LANES / 2] {
                    for tile in tiles(rows, 4) {
                        let (words, place) = (&words[tile.start * width..], place(&tile));
                        by_rows!(tile.len(), [1 2 3 4], (avx2::half), (words, width, panel, column, place, adds));
                    }
                }
            },
        }
    }
}

/// One row with one panel, on any processor.
fn plain(row: &[u32], panel: &[u32]) -> [f32; LANES] {
    let mut parts = [0.0f32; LANES];
    simd::in_widest!({
        let [first, second] = [|word: u32| f32::from_bits(word << 16), |word| f32::from_bits(word & 0xffff_0000)];
        for (&x, weights) in row.iter().zip(panel.as_chunks::<LANES>().0) {
            for (part, &weight) in parts.iter_mut().zip(weights) {
                *part += second(x) * second(weight);
                *part += first(x) * first(weight);
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

    /// Numbers of a register.
    const WIDTH: usize = 8;

    /// All columns of one row or two.
    ///
    /// # Safety
    /// As [`rows`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn few<const R: usize>(
        words: &[u32],
        width: usize,
        panel: &[u32],
        place: (*mut f32, usize),
        adds: bool,
    ) {
        // SAFETY: the caller's; four registers are 32 columns.
        unsafe { rows::<R, 4>(words, width, panel, 0, place, adds) }
    }

    /// Sixteen columns of some rows, from `column` on.
    ///
    /// # Safety
    /// As [`rows`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn half<const R: usize>(
        words: &[u32],
        width: usize,
        panel: &[u32],
        column: usize,
        place: (*mut f32, usize),
        adds: bool,
    ) {
        // SAFETY: the caller's.
        unsafe { rows::<R, 2>(words, width, panel, column, place, adds) }
    }

    /// The second number of each pair.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn second(words: __m256i) -> __m256 {
        _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32.cast_signed())))
    }

    /// The first.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn first(words: __m256i) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
    }

    /// A sum and two more products, that of the second numbers first.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn added(sum: __m256, x: &[__m256; 2], weights: &[__m256; 2]) -> __m256 {
        _mm256_fmadd_ps(x[1], weights[1], _mm256_fmadd_ps(x[0], weights[0], sum))
    }

    /// So many registers of columns of some rows, from `column` on.
    ///
    /// # Safety
    /// The processor has AVX2 and fused additions; `words [R, width]` and `panel [width, 32]` are whole; the columns end before
    /// 32; `out` is the place of the first row's sums and how far the others' are apart, each 32 numbers long.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn rows<const R: usize, const C: usize>(
        words: &[u32],
        width: usize,
        panel: &[u32],
        column: usize,
        (out, stride): (*mut f32, usize),
        adds: bool,
    ) {
        let (x, weights) = (words.as_ptr(), panel.as_ptr());
        let mut parts = [[_mm256_setzero_ps(); C]; R];
        for k in 0..width {
            // SAFETY: `k` is below `width` and the columns end before 32, so that loads end inside the panel.
            let weights =
                |at: usize| unsafe { _mm256_loadu_si256(weights.add(k * LANES + column + WIDTH * at).cast()) };
            // SAFETY: `row` is below `R`, and `k` below `width`.
            let x = |row: usize| _mm256_set1_epi32(unsafe { *x.add(row * width + k) }.cast_signed());
            // What there is less of stays in registers.
            if R < C {
                let mut rows = [[_mm256_setzero_ps(); 2]; R];
                for (row, numbers) in rows.iter_mut().enumerate() {
                    *numbers = [second(x(row)), first(x(row))];
                }
                for at in 0..C {
                    let weights = [second(weights(at)), first(weights(at))];
                    for (parts, x) in parts.iter_mut().zip(&rows) {
                        parts[at] = added(parts[at], x, &weights);
                    }
                }
            } else {
                let mut line = [[_mm256_setzero_ps(); 2]; C];
                for (at, numbers) in line.iter_mut().enumerate() {
                    *numbers = [second(weights(at)), first(weights(at))];
                }
                for (row, parts) in parts.iter_mut().enumerate() {
                    let x = [second(x(row)), first(x(row))];
                    for (part, weights) in parts.iter_mut().zip(&line) {
                        *part = added(*part, &x, weights);
                    }
                }
            }
        }
        for (row, parts) in parts.into_iter().enumerate() {
            for (at, part) in parts.into_iter().enumerate() {
                // SAFETY: the columns lie within a row's sums.
                unsafe {
                    let out = out.add(row * stride + column + WIDTH * at);
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
        __m512bh, __m512i, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_set1_epi32,
        _mm512_setzero_ps, _mm512_storeu_ps,
    };

    use super::LANES;

    /// # Safety
    /// The processor has AVX512-BF16; `words [R, width]` and `panel [width, 32]` are whole; `out` is the place of the first
    /// row's sums and how far the others' are apart, each 32 numbers long.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn rows<const R: usize>(
        words: &[u32],
        width: usize,
        panel: &[u32],
        (out, stride): (*mut f32, usize),
        adds: bool,
    ) {
        let bf16 = |bits: __m512i| {
            // SAFETY: both are 512 bits of any value.
            unsafe { std::mem::transmute::<__m512i, __m512bh>(bits) }
        };
        let (x, weights) = (words.as_ptr(), panel.as_ptr());
        let mut parts = [[_mm512_setzero_ps(); 2]; R];
        for k in 0..width {
            // SAFETY: `k` is below `width`, so that both loads end inside the panel.
            let halves = unsafe {
                let line = weights.add(k * LANES);
                [bf16(_mm512_loadu_si512(line.cast())), bf16(_mm512_loadu_si512(line.add(LANES / 2).cast()))]
            };
            for (row, parts) in parts.iter_mut().enumerate() {
                // SAFETY: `row` is below `R`, and `k` below `width`.
                let x = bf16(_mm512_set1_epi32(unsafe { *x.add(row * width + k) } as i32));
                for (part, half) in parts.iter_mut().zip(halves) {
                    *part = _mm512_dpbf16_ps(*part, x, half);
                }
            }
        }
        for (row, parts) in parts.into_iter().enumerate() {
            for (half, part) in parts.into_iter().enumerate() {
                // SAFETY: a row's sums are two registers wide.
                unsafe {
                    let out = out.add(row * stride + LANES / 2 * half);
                    let sum = if adds { _mm512_add_ps(_mm512_loadu_ps(out), part) } else { part };
                    _mm512_storeu_ps(out, sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::linalg::gemm::Update;
    use crate::linalg::panels::{Panels, product};

    fn noise(i: usize) -> f32 {
        (i * 7919 % 10_007) as f32 / 10_007.0 - 0.5
    }

    fn panels(weights: &[f32], inner: usize, outer: usize) -> Panels<Bf16> {
        Panels::of_rows(weights, inner, outer)
    }

    #[test]
    fn numbers_are_rounded_as_the_float_library_rounds_them() {
        let ends = [0.0, -0.0, 1.0, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, 1.003_906_3, 1.011_718_8];
        let many = (0..100_000).map(|i| noise(i) * 1e3);
        for x in ends.into_iter().chain(many) {
            assert_eq!(rounded(x) >> 16, u32::from(bf16::from_f32(x).to_bits()), "{x}");
        }
        assert!(f32::from_bits(rounded(f32::from_bits(0x7fff_ffff))).is_nan());
    }

    #[test]
    fn a_product_equals_the_sums_of_what_was_rounded_whatever_its_shape() {
        for (rows, inner, outer) in [(1, 1, 1), (3, 7, 5), (8, 64, 32), (13, 65, 70), (20, 300, 96)] {
            let x: Vec<f32> = (0..rows * inner).map(noise).collect();
            let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
            let mut out = vec![0.25; rows * outer];
            let matrix = panels(&w, inner, outer);
            product(&mut out, Update::Add, MatrixView::rows(&x, rows, inner), &matrix);
            let mut again = vec![7.0; rows * outer];
            product(&mut again, Update::Replace, MatrixView::rows(&x, rows, inner), &matrix);
            let round = |x: f32| bf16::from_f32(x).to_f64();
            for i in 0..rows {
                for j in 0..outer {
                    let sum: f64 = (0..inner).map(|k| round(x[i * inner + k]) * round(w[k * outer + j])).sum();
                    let (added, replaced) = (out[i * outer + j], again[i * outer + j]);
                    assert!((f64::from(replaced) - sum).abs() < 1e-5, "[{rows}, {inner}, {outer}] at {i}, {j}");
                    assert_eq!(added, 0.25 + replaced);
                }
            }
        }
    }

    #[test]
    fn a_row_is_the_same_to_the_bit_whatever_rows_stand_beside_it_and_on_any_processor() {
        let (inner, outer) = (301, 70);
        let x: Vec<f32> = (0..37 * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let matrix = panels(&w, inner, outer);
        let of_rows = |rows: usize| {
            let mut out = vec![0.0; rows * outer];
            product(&mut out, Update::Replace, MatrixView::rows(&x[..rows * inner], rows, inner), &matrix);
            out
        };
        let all = of_rows(37);
        for rows in 1..37 {
            assert!(of_rows(rows).iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits()), "{rows} rows");
        }
        let width = Bf16::depth(inner);
        let Some(panel) = matrix.words().chunks_exact(width * LANES).next() else { panic!("no panel") };
        let words = Bf16::rows(MatrixView::rows(&x, 37, inner)).words;
        let mut tiles = vec![Bf16Tile::best()];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            tiles.push(Bf16Tile::Avx2);
        }
        for (rows, adds) in (1..=19).flat_map(|rows| [(rows, false), (rows, true)]) {
            let sums = |tile: Bf16Tile| {
                let mut sums = vec![0.5f32; LANES * rows];
                tile.multiply(&words[..rows * width], width, panel, rows, TileOut::new(&mut sums, [LANES; 2], adds));
                sums.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            assert!(tiles.iter().all(|&tile| sums(tile) == sums(Bf16Tile::Plain)), "{rows} rows");
        }
    }
}

//! Products with weights in f32: the tiles of [`super::panels`], by the instructions that the processor has.

use std::ops::Range;

use super::gemm::MatrixView;
use super::panels::{Kind, LANES, ROWS, Sums, piece};

/// Weights in f32.
pub(crate) struct F32;

impl Kind for F32 {
    type Word = f32;
    /// As they are: each number is read once for a panel, and stands in the cache for the next.
    type Rows<'x> = MatrixView<'x, f32>;

    fn depth(inner: usize) -> usize {
        inner
    }

    #[inline(always)]
    fn lay(row: &[f32], column: usize, panel: &mut [f32]) {
        panel.chunks_exact_mut(LANES).zip(row).for_each(|(line, &number)| line[column] = number);
    }

    fn number(panel: &[f32], k: usize, column: usize) -> f32 {
        panel[k * LANES + column]
    }

    fn rows(x: MatrixView<'_, f32>) -> MatrixView<'_, f32> {
        x
    }

    fn multiply(rows: &MatrixView<'_, f32>, block: Range<usize>, panel: &[f32], sums: &mut Sums, carry: bool) {
        let mut carry = carry;
        let step = piece(rows.width());
        for (index, panel) in panel.chunks(step * LANES).enumerate() {
            let mut of = [&[][..]; ROWS];
            for (of, row) in of.iter_mut().zip(block.clone()) {
                *of = &rows.row(row)[index * step..][..panel.len() / LANES];
            }
            Tile::best().multiply(&of[..block.len()], panel, sums, carry);
            carry = true;
        }
        if panel.is_empty() && !carry {
            *sums = [[0.0; LANES]; ROWS];
        }
    }
}

/// How a tile is multiplied on this processor.
#[derive(Clone, Copy)]
enum Tile {
    Plain,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Tile {
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Plain
    }

    /// The sums of up to 8 rows with one piece of a panel.
    ///
    /// # Shapes
    /// `rows [rows][depth]`, `panel [depth, 32]`; panics where there are fewer.
    #[inline]
    fn multiply(self, rows: &[&[f32]], panel: &[f32], sums: &mut Sums, carry: bool) {
        let depth = panel.len() / LANES;
        assert!(rows.len() <= ROWS && rows.iter().all(|row| row.len() == depth));
        match self {
            Self::Plain => {
                for (row, sums) in rows.iter().zip(sums) {
                    plain(row, panel, sums, carry);
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `best` found the instructions, and the assertion above the extents that are read.
            Self::Avx512 => unsafe {
                match *rows {
                    [a, b, c, d, e, f, g, h] => x86::avx512([a, b, c, d, e, f, g, h], panel, sums, carry),
                    [a, b, c, d, e, f, g] => x86::avx512([a, b, c, d, e, f, g], panel, sums, carry),
                    [a, b, c, d, e, f] => x86::avx512([a, b, c, d, e, f], panel, sums, carry),
                    [a, b, c, d, e] => x86::avx512([a, b, c, d, e], panel, sums, carry),
                    [a, b, c, d] => x86::avx512([a, b, c, d], panel, sums, carry),
                    [a, b, c] => x86::avx512([a, b, c], panel, sums, carry),
                    [a, b] => x86::avx512([a, b], panel, sums, carry),
                    [a] => x86::avx512([a], panel, sums, carry),
                    _ => (),
                }
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx2 => unsafe {
                // Sixteen registers hold the sums of three rows, and what they are made of.
                for (rows, sums) in rows.chunks(3).zip(sums.chunks_mut(3)) {
                    match *rows {
                        [a, b, c] => x86::avx2([a, b, c], panel, sums, carry),
                        [a, b] => x86::avx2([a, b], panel, sums, carry),
                        [a] => x86::avx2([a], panel, sums, carry),
                        _ => (),
                    }
                }
            },
        }
    }
}

/// One row with one piece of a panel, on any processor. Where additions are not fused in hardware (x86 before 2013), they are
/// two operations, as those of the `gemm` crate.
fn plain(row: &[f32], panel: &[f32], sums: &mut [f32; LANES], carry: bool) {
    let fused = |x: f32, weight: f32, sum: f32| {
        if cfg!(any(target_arch = "x86", target_arch = "x86_64")) { x * weight + sum } else { x.mul_add(weight, sum) }
    };
    let mut parts = [0.0f32; LANES];
    for (&x, weights) in row.iter().zip(panel.as_chunks::<LANES>().0) {
        parts.iter_mut().zip(weights).for_each(|(part, &weight)| *part = fused(x, weight, *part));
    }
    sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum = if carry { *sum + part } else { part });
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        _mm256_add_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
        _mm512_add_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
    };

    use super::LANES;

    /// # Safety
    /// The processor has AVX-512F; each row is as long as the panel has lines of 32, and there are as many `sums` as rows.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512<const R: usize>(
        rows: [&[f32]; R],
        panel: &[f32],
        sums: &mut [[f32; LANES]],
        carry: bool,
    ) {
        let weights = panel.as_ptr();
        let rows = rows.map(<[f32]>::as_ptr);
        let mut parts = [[_mm512_setzero_ps(); 2]; R];
        for k in 0..panel.len() / LANES {
            // SAFETY: line `k` ends inside the panel.
            let halves = unsafe {
                let line = weights.add(k * LANES);
                [_mm512_loadu_ps(line), _mm512_loadu_ps(line.add(16))]
            };
            for (row, parts) in rows.iter().zip(&mut parts) {
                // SAFETY: rows are as long as the panel has lines.
                let x = _mm512_set1_ps(unsafe { *row.add(k) });
                for (part, half) in parts.iter_mut().zip(halves) {
                    *part = _mm512_fmadd_ps(x, half, *part);
                }
            }
        }
        for (parts, sums) in parts.into_iter().zip(sums) {
            let out = sums.as_mut_ptr();
            for (half, part) in parts.into_iter().enumerate() {
                // SAFETY: `sums` are two registers wide.
                unsafe {
                    let out = out.add(16 * half);
                    let sum = if carry { _mm512_add_ps(_mm512_loadu_ps(out), part) } else { part };
                    _mm512_storeu_ps(out, sum);
                }
            }
        }
    }

    /// # Safety
    /// The processor has AVX2 and FMA; else as [`avx512`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2<const R: usize>(
        rows: [&[f32]; R],
        panel: &[f32],
        sums: &mut [[f32; LANES]],
        carry: bool,
    ) {
        let weights = panel.as_ptr();
        let rows = rows.map(<[f32]>::as_ptr);
        let mut parts = [[_mm256_setzero_ps(); 4]; R];
        for k in 0..panel.len() / LANES {
            // SAFETY: line `k` ends inside the panel.
            let quarters = [0, 8, 16, 24].map(|at| unsafe { _mm256_loadu_ps(weights.add(k * LANES + at)) });
            for (row, parts) in rows.iter().zip(&mut parts) {
                // SAFETY: rows are as long as the panel has lines.
                let x = _mm256_set1_ps(unsafe { *row.add(k) });
                for (part, quarter) in parts.iter_mut().zip(quarters) {
                    *part = _mm256_fmadd_ps(x, quarter, *part);
                }
            }
        }
        for (parts, sums) in parts.into_iter().zip(sums) {
            let out = sums.as_mut_ptr();
            for (quarter, part) in parts.into_iter().enumerate() {
                // SAFETY: `sums` are four registers wide.
                unsafe {
                    let out = out.add(8 * quarter);
                    let sum = if carry { _mm256_add_ps(_mm256_loadu_ps(out), part) } else { part };
                    _mm256_storeu_ps(out, sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::gemm::{MatrixViewMut, Update, gemm};
    use crate::linalg::panels::{Panels, product, product_of_few};

    fn noise(i: usize) -> f32 {
        (i * 7919 % 10_007) as f32 / 10_007.0 - 0.5
    }

    const SHAPES: [(usize, usize, usize); 7] =
        [(2, 3, 5), (3, 7, 65), (8, 64, 32), (13, 65, 70), (20, 300, 96), (67, 700, 130), (9, 1500, 200)];

    #[test]
    fn a_product_is_that_of_the_gemm_crate_to_the_bit() {
        for (rows, inner, outer) in SHAPES {
            let x: Vec<f32> = (0..rows * inner).map(noise).collect();
            let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
            let panels = Panels::<F32>::of_rows(&w, inner, outer);
            assert_eq!(panels.to_rows(), w);
            for into in [Update::Replace, Update::Add] {
                let mut theirs = vec![0.25; rows * outer];
                let (mut ours, mut few) = (theirs.clone(), theirs.clone());
                let x = MatrixView::rows(&x, rows, inner);
                gemm(MatrixViewMut::rows(&mut theirs, rows, outer), into, x, MatrixView::rows(&w, inner, outer));
                product(&mut ours, into, x, &panels);
                product_of_few(&mut few, into, x, &panels);
                assert!(ours.iter().zip(&theirs).all(|(a, b)| a.to_bits() == b.to_bits()), "{rows} {inner} {outer}");
                assert_eq!(ours, few, "{rows} {inner} {outer}");
            }
        }
    }

    #[test]
    fn a_row_is_the_same_to_the_bit_whatever_rows_stand_beside_it_and_on_any_processor_that_fuses() {
        let (inner, outer) = (1301, 70);
        let x: Vec<f32> = (0..37 * inner).map(noise).collect();
        let w: Vec<f32> = (0..inner * outer).map(|i| noise(i + 3)).collect();
        let panels = Panels::<F32>::of_rows(&w, inner, outer);
        let product = |rows: usize| {
            let mut out = vec![0.0; rows * outer];
            super::super::panels::product(
                &mut out,
                Update::Replace,
                MatrixView::rows(&x[..rows * inner], rows, inner),
                &panels,
            );
            out
        };
        let all = product(37);
        for rows in 1..37 {
            assert!(product(rows).iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits()), "{rows} rows");
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
            let panel: Vec<f32> = (0..300 * LANES).map(|i| noise(i + 11)).collect();
            let rows: Vec<&[f32]> = x.chunks(300).take(8).collect();
            for carry in [false, true] {
                let [mut a, mut b] = [[[0.5; LANES]; ROWS]; 2];
                Tile::Avx512.multiply(&rows, &panel, &mut a, carry);
                Tile::Avx2.multiply(&rows, &panel, &mut b, carry);
                assert_eq!(a.map(|row| row.map(f32::to_bits)), b.map(|row| row.map(f32::to_bits)));
            }
        }
    }

    #[test]
    fn the_plain_way_gives_the_same_sums_but_for_rounding() {
        let panel: Vec<f32> = (0..300 * LANES).map(|i| noise(i + 11)).collect();
        let row: Vec<f32> = (0..300).map(noise).collect();
        let [mut best, mut by_hand] = [[[0.5; LANES]; ROWS]; 2];
        Tile::best().multiply(&[&row], &panel, &mut best, true);
        Tile::Plain.multiply(&[&row], &panel, &mut by_hand, true);
        assert!(best[0].iter().zip(by_hand[0]).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

//! Matrix transposition.

use rayon::prelude::*;

/// Side length of the copied tiles: one cache line of f64. Larger tiles would cause L1 conflicts between lines whose
/// addresses differ by a power of two, which is common for rows here.
const TILE_SIDE: usize = 8;
/// Number of destination lines per task, few enough that their pages stay in the TLB.
const BAND_LINES: usize = 32;

/// Transposes rows into columns: `destination[j·stride + offset + i] ← source[i·columns + j]`.
///
/// # Shapes
/// `source [rows, columns]`. `destination` has at least `columns` rows of `stride` elements. In each row, `rows`
/// elements from `offset` on are written.
///
/// # Panics
/// Panics if `destination` is too small.
pub(super) fn transpose(destination: &mut [f64], stride: usize, offset: usize, source: &[f64], columns: usize) {
    let rows = source.len() / columns;
    assert!(offset + rows <= stride && columns * stride <= destination.len(), "the transpose exceeds its destination");
    destination[..columns * stride].par_chunks_mut(BAND_LINES * stride).enumerate().for_each(|(band, lines)| {
        for first_row in (0..rows).step_by(TILE_SIDE) {
            for first in (0..lines.len() / stride).step_by(TILE_SIDE) {
                let column = band * BAND_LINES + first;
                let high = TILE_SIDE.min(rows - first_row);
                let wide = TILE_SIDE.min(columns - column);
                let mut tile = [[0.0; TILE_SIDE]; TILE_SIDE];
                for (i, tile) in tile[..high].iter_mut().enumerate() {
                    let start = (first_row + i) * columns + column;
                    tile[..wide].copy_from_slice(&source[start..start + wide]);
                }
                for j in 0..wide {
                    let start = (first + j) * stride + offset + first_row;
                    lines[start..start + high].iter_mut().zip(&tile).for_each(|(v, tile)| *v = tile[j]);
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transpose_writes_only_columns_at_its_offset() {
        for (rows, columns, stride, offset) in [(2, 3, 4, 1), (70, 33, 100, 30), (1, 64, 1, 0), (65, 1, 70, 5)] {
            let source: Vec<f64> = (0..rows * columns).map(|i| i as f64).collect();
            let mut destination = vec![-1.0; columns * stride];
            transpose(&mut destination, stride, offset, &source, columns);
            for (index, &v) in destination.iter().enumerate() {
                let j = index / stride;
                let i = (index % stride).wrapping_sub(offset);
                assert_eq!(v, if i < rows { source[i * columns + j] } else { -1.0 });
            }
        }
    }
}

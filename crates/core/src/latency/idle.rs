//! Timing noise of the machine.

use std::time::Instant;

use super::rounds::Rounds;
use super::spread::TimeSpread;
use crate::linalg::gemm::{MatrixView, MatrixViewMut, Update, gemm_parallel};

/// Number of rows in each square matrix.
const MATRIX_ORDER: usize = 512;
/// Number of products per pass. A pass takes about as long as the prefill of a small model.
const PRODUCTS: usize = 8;

/// Times a fixed computation on all threads, in the same number of rounds as a variant, and returns the spread. If
/// other programs use the processor, the spread is considered noise ([`TimeSpread::is_noise`]).
pub fn measure_idle_spread() -> TimeSpread {
    let factor = vec![1.0f32 / MATRIX_ORDER as f32; MATRIX_ORDER * MATRIX_ORDER];
    let mut product = vec![0.0f32; MATRIX_ORDER * MATRIX_ORDER];
    let mut times = Vec::with_capacity(Rounds::PAPER.timed);
    for round in 0..Rounds::PAPER.warmups + Rounds::PAPER.timed {
        let started = Instant::now();
        for _ in 0..PRODUCTS {
            let [a, b] = [
                MatrixView::rows(&factor, MATRIX_ORDER, MATRIX_ORDER),
                MatrixView::rows(&factor, MATRIX_ORDER, MATRIX_ORDER),
            ];
            gemm_parallel(MatrixViewMut::rows(&mut product, MATRIX_ORDER, MATRIX_ORDER), Update::Add, a, b);
        }
        if round >= Rounds::PAPER.warmups {
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
    }
    TimeSpread::from_times(&times).unwrap_or(TimeSpread { mean: 0.0, deviation: 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_spread_is_positive_and_finite() {
        let spread = measure_idle_spread();
        assert!(spread.mean > 0.0 && spread.deviation.is_finite(), "{spread:?}");
    }
}

//! Benchmarks the steps of fitting an operator by least squares (Gram matrices, Cholesky, streamed QR), each compared
//! with a plain matrix product of the same size. Also compares the fast Hadamard transform with a product by the dense
//! Hadamard matrix.
//!
//! `cargo bench --bench solve [-- CHANNELS…]` measures the given numbers of channels in addition to 1024 and 2048. Each
//! system has as many rows as channels.
#![allow(clippy::disallowed_macros, clippy::unwrap_used, reason = "a benchmark prints, and panics on setup errors")]

use std::time::Instant;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};
use ghostlab::linalg::gemm::{MatrixView, MatrixViewMut, Update, gemm_parallel, gram_parallel};
use ghostlab::linalg::hadamard;
use ghostlab::linalg::solve::NormalEquations;
use ghostlab::linalg::streaming_qr::StreamingQr;
use rayon::prelude::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Number of rounds in which each measurement runs once. Only the best round is reported, because other processes can
/// only slow a round down.
const ROUNDS: usize = 7;

/// Table row: label, minimum number of floating-point operations, and best time so far in seconds.
struct Line {
    label: &'static str,
    operations: f64,
    seconds: f64,
}

/// Table rows for one number of channels, in measurement order.
#[derive(Default)]
struct Table {
    lines: Vec<Line>,
    /// Index of the row to time next.
    next: usize,
}

impl Table {
    /// Times `work` as the next row, and keeps the best time of all rounds. Returns the result of `work`.
    fn time<R>(&mut self, label: &'static str, operations: f64, work: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let result = work();
        let seconds = started.elapsed().as_secs_f64();
        if self.next == self.lines.len() {
            self.lines.push(Line { label, operations, seconds });
        }
        let line = &mut self.lines[self.next];
        line.seconds = line.seconds.min(seconds);
        self.next += 1;
        result
    }

    /// Prints each row, with the ratio of its time to that of the first row.
    fn print(&self, title: &str) {
        println!("\n{title:<38} {:>10} {:>10} {:>8}", "seconds", "GFLOP/s", "ratio");
        for line in &self.lines {
            let speed = line.operations / line.seconds * 1e-9;
            let ratio = line.seconds / self.lines[0].seconds;
            println!("{:<38} {:>10.4} {speed:>10.1} {ratio:>8.2}", line.label, line.seconds);
        }
    }
}

fn main() {
    let more = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    for channels in [1024, 2048].into_iter().chain(more) {
        measure_solving(channels);
    }
    for order in [4096, 5120] {
        measure_hadamard(order);
    }
}

/// Returns deterministic pseudo-random numbers between −1 and 1, `[rows, columns]`.
fn random_matrix(rows: usize, columns: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f32 / (1u32 << 30) as f32 - 1.0
    })
    .take(rows * columns)
    .collect()
}

/// Times the steps of solving for an operator of `c` channels.
fn measure_solving(c: usize) {
    let (pre, post) = (random_matrix(c, c, 1), random_matrix(c, c, 2)); // [C, C] each, as many rows as channels
    let x = to_f64(&pre);
    let y = to_f64(&post);
    let a = Mat::from_fn(c, c, |i, j| x[j * c + i]);
    let b = Mat::from_fn(c, c, |i, j| y[j * c + i]);
    let mut out = Mat::<f64>::zeros(c, c);
    let mut gram = vec![0.0; c * c];
    let mut converted = vec![0.0; c * c];
    let cube = (c as f64).powi(3);
    let mut table = Table::default();
    for _ in 0..ROUNDS.min(2 + 8192 / c) {
        table.next = 0;
        table.time("matrix product (faer)", 2.0 * cube, || {
            matmul(out.as_mut(), Accum::Add, &a, &b, 1.0, Par::rayon(0));
        });
        table.time("XᵀX", cube, || gram_parallel(&mut gram, &x, c));
        table.time("XᵀX from f32", cube, || {
            let pieces = converted.par_chunks_mut(c).zip(pre.par_chunks(c));
            pieces.for_each(|(to_f64, x)| to_f64.iter_mut().zip(x).for_each(|(to_f64, &x)| *to_f64 = f64::from(x)));
            gram_parallel(&mut gram, &converted, c);
        });
        let mut normal = NormalEquations::new(c);
        // Add rows before timing, so that the Gram matrices are allocated and there are twice as many rows as channels.
        normal.add(&y, &x);
        table.time("XᵀX and XᵀΔ from f32", 3.0 * cube, || normal.add_difference(&pre, &post));
        let factor = table.time("Cholesky", cube / 3.0, || normal.factor(1e-3).unwrap());
        table.time("two triangular solves", 2.0 * cube, || factor.solve().unwrap());
        table.time("rank and condition", 0.0, || factor.spectrum().unwrap());
        drop(factor);
        drop(normal);
        let mut tall = StreamingQr::new(c);
        table.time("streamed QR of [X | Y]", 6.0 * cube, || tall.add(&x, &y));
    }
    table.print(&format!("{c} channels and rows, f64"));
    if c <= 2048 {
        let mut once = Table::default();
        let mut tall = StreamingQr::new(c);
        tall.add(&x, &y);
        let mut normal = NormalEquations::new(c);
        normal.add(&x, &y);
        once.time("SVD of R and solution", 0.0, || tall.solve(1e-6).unwrap());
        once.time("minimum norm by eigenvalues", 0.0, || normal.solve_minimum_norm().unwrap());
        for line in &once.lines {
            println!(
                "{:<38} {:>10.4} {:>10} {:>8.2}",
                line.label,
                line.seconds,
                "",
                line.seconds / table.lines[0].seconds
            );
        }
    }
}

fn to_f64(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

/// Times the fast Hadamard transform and the dense product on 512 rows of `order` channels.
fn measure_hadamard(order: usize) {
    const ROWS: usize = 512;
    let x = random_matrix(ROWS, order, 3);
    let matrix = hadamard::matrix(order);
    let mut fast = x.clone();
    let mut dense = vec![0.0; x.len()];
    let mut best = [f64::INFINITY; 2]; // fast, dense
    for _ in 0..ROUNDS {
        let started = Instant::now();
        hadamard::transform(&mut fast, order);
        best[0] = best[0].min(started.elapsed().as_secs_f64());
        let started = Instant::now();
        let x = MatrixView::rows(&x, ROWS, order);
        let matrix = MatrixView::rows(&matrix, order, order);
        gemm_parallel(MatrixViewMut::rows(&mut dense, ROWS, order), Update::Replace, x, matrix);
        best[1] = best[1].min(started.elapsed().as_secs_f64());
    }
    let [fast, dense] = best.map(|seconds| ROWS as f64 / seconds);
    println!("\nHadamard {order}: {fast:.0} rows/s fast, {dense:.0} rows/s dense, ratio {:.0}", fast / dense);
}

//! Linear layers, with norms and residual additions fused in.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use rayon::prelude::*;

use super::tasks::{may_use_all_cores, task_rows};
use super::{Norm, PackedWeights, with_panels};
use crate::linalg::gemm::{MatrixView, MatrixViewMut, Update, gemm};
use crate::linalg::panels::{Panels, matmul, matmul_few_rows};
use crate::linalg::simd;
use crate::scratch::{Scratch, take_scratch};

/// Maximum number of rows per task with plain weights. It is large enough that repacking the weights for each task costs
/// little.
const MAX_PLAIN_ROWS: usize = 256;
const MIN_TASK_ROWS: usize = 64;

#[derive(Clone, Copy)]
pub enum Weight<'a> {
    /// Row-major weights and their number of columns. Used for operators that are applied to too few rows to justify
    /// prepacking.
    Plain(&'a [f32], usize),
    Packed(&'a PackedWeights),
}

impl PackedWeights {
    pub(super) fn outer(&self) -> usize {
        with_panels!(self, |panels| panels.outer())
    }

    /// Computes the same product as [`Weight::matmul`].
    pub(super) fn matmul(&self, x: MatrixView<'_, f32>, on_all_cores: bool, into: Update, out: &mut [f32]) {
        with_panels!(self, |panels| match on_all_cores {
            true => matmul_few_rows(out, into, x, panels),
            false => matmul(out, into, x, panels),
        });
    }

    /// Computes `Σ factor·matrix` over matrices of equal shape. Returns `None` if the types differ or there are no
    /// matrices.
    pub fn weighted_sum(matrices: &[(f64, &Self)]) -> Option<Self> {
        /// Computes the sum, or returns `None` if a matrix has another weight type.
        macro_rules! sum {
            ($variant:ident) => {{
                let panels = matrices.iter().map(|&(factor, matrix)| match matrix {
                    Self::$variant(panels) => Some((factor, &**panels)),
                    _ => None,
                });
                let panels: Option<Vec<_>> = panels.collect();
                panels.map(|panels| Self::$variant(Arc::new(Panels::weighted_sum(&panels))))
            }};
        }
        match matrices.first()? {
            (_, Self::F32(_)) => sum!(F32),
            (_, Self::Bf16(_)) => sum!(Bf16),
            (_, Self::Bf16Amx(_)) => sum!(Bf16Amx),
            (_, Self::Bf16x3(_)) => sum!(Bf16x3),
            (_, Self::Bf16x6(_)) => sum!(Bf16x6),
        }
    }
}

impl Weight<'_> {
    /// Returns the maximum number of rows per task.
    fn max_task_rows(self) -> usize {
        match self {
            Self::Plain(..) => MAX_PLAIN_ROWS,
            Self::Packed(packed) => with_panels!(packed, |panels| panels.max_task_rows()),
        }
    }

    pub(super) fn outer(self) -> usize {
        match self {
            Self::Plain(_, outer) => outer,
            Self::Packed(packed) => packed.outer(),
        }
    }

    /// Computes `out ← x·W` or `out ← out + x·W`. If `on_all_cores` is set, the product is distributed over all
    /// threads, which is faster for a few rows without concurrent work.
    ///
    /// # Shapes
    /// `x [rows, inner]`, `out [rows, outer]`.
    fn matmul(self, x: MatrixView<'_, f32>, on_all_cores: bool, into: Update, out: &mut [f32]) {
        match self {
            Self::Plain(weight, outer) => {
                let (rows, weight) = (x.row_count(), MatrixView::rows(weight, x.column_count(), outer));
                gemm(MatrixViewMut::rows(out, rows, outer), into, x, weight);
            }
            Self::Packed(packed) => packed.matmul(x, on_all_cores, into, out),
        }
    }
}

/// Linear layer with weights `[inner, outer]` and an optional bias `[outer]`.
#[derive(Clone, Copy)]
pub struct Linear<'a> {
    pub weight: Weight<'a>,
    pub bias: Option<&'a [f32]>,
}

impl<'a> From<Weight<'a>> for Linear<'a> {
    /// Creates a linear layer without a bias.
    fn from(weight: Weight<'a>) -> Self {
        Self { weight, bias: None }
    }
}

impl Linear<'_> {
    /// Computes [`Weight::matmul`] and adds the bias.
    pub(super) fn matmul(self, x: MatrixView<'_, f32>, on_all_cores: bool, into: Update, out: &mut [f32]) {
        self.weight.matmul(x, on_all_cores, into, out);
        if let Some(bias) = self.bias {
            out.chunks_exact_mut(self.weight.outer()).for_each(|row| add_assign(row, bias));
        }
    }
}

/// Computes `norm(x)·W + b`.
///
/// # Shapes
/// `x [rows, inner]`, result `[rows, outer]`.
pub fn norm_linear(x: &[f32], inner: usize, input_norm: Option<Norm<'_>>, projection: Linear<'_>) -> Scratch {
    let mut out = take_scratch(x.len() / inner * projection.weight.outer());
    for_each_block(x, inner, &mut out, projection.weight, |x, _, out, on_all_cores| {
        let normed = input_norm.map(|norm| normalize(x, norm));
        let x = MatrixView::rows(normed.as_deref().unwrap_or(x), x.len() / inner, inner);
        projection.matmul(x, on_all_cores, Update::Replace, out);
    });
    out
}

/// Computes `x·W + b`, optionally followed by a norm and by the addition of a residual stream.
///
/// # Shapes
/// `x [rows, inner]`, `residual [rows, outer]`, result `[rows, outer]`.
pub fn linear(
    x: &[f32],
    inner: usize,
    projection: Linear<'_>,
    output_norm: Option<Norm<'_>>,
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let outer = projection.weight.outer();
    compute_blocks(
        x,
        inner,
        projection.weight,
        direct_residual(output_norm, residual),
        |x, first, out, on_all_cores| {
            let residual = residual.map(|stream| &stream[first * outer..][..out.len()]);
            let x = MatrixView::rows(x, x.len() / inner, inner);
            linear_into(x, projection, on_all_cores, out, output_norm, residual);
        },
    )
}

/// Computes `x·diag(d)`.
///
/// # Shapes
/// `x [rows, C]`, `diagonal [C]`.
pub fn apply_diagonal(x: &[f32], diagonal: &[f32]) -> Vec<f32> {
    let mut out = x.to_vec();
    simd::in_widest!({
        for row in out.chunks_exact_mut(diagonal.len()) {
            for (v, d) in row.iter_mut().zip(diagonal) {
                *v *= d;
            }
        }
    });
    out
}

/// Computes `x ← norm(x)`.
///
/// # Shapes
/// `x [rows, C]`.
pub fn apply_norm(x: &mut [f32], norm: Norm<'_>) {
    simd::in_widest!({
        for row in x.chunks_exact_mut(norm.weight.len()) {
            simd::rms_norm_in_place(row, norm.weight, norm.eps);
        }
    });
}

/// Gathers rows of `x [rows, C]`.
pub fn gather_rows(x: &[f32], channels: usize, rows: &[u32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len() * channels);
    rows.iter().for_each(|&row| out.extend_from_slice(&x[row as usize * channels..][..channels]));
    out
}

/// Adds rows of `values`, each multiplied by its factor, to the given rows of `out [rows, C]`.
pub fn scatter_add(out: &mut [f32], channels: usize, rows: &[u32], factors: &[f32], values: &[f32]) {
    simd::in_widest!({
        for ((&row, factor), values) in rows.iter().zip(factors).zip(values.chunks_exact(channels)) {
            let out = &mut out[row as usize * channels..][..channels];
            out.iter_mut().zip(values).for_each(|(out, value)| *out += factor * value);
        }
    });
}

/// Computes `x ← x + y`.
pub fn add_assign(x: &mut [f32], y: &[f32]) {
    simd::in_widest!(simd::add(x, y));
}

/// Returns the residual stream if the product is added to it directly, without a norm in between.
pub(super) fn direct_residual<'a>(output_norm: Option<Norm<'_>>, residual: Option<&'a [f32]>) -> Option<&'a [f32]> {
    residual.filter(|_| output_norm.is_none())
}

/// Allocates `[rows, columns of weight]` and runs `task` on its blocks like [`for_each_block`]. Each block is initialized with the
/// corresponding rows of `initial_rows`, or with zeros. Each task initializes its own block, because the other threads
/// would have to wait if one thread initialized all blocks.
///
/// # Panics
/// Panics if the lengths of `initial_rows` and the result differ.
pub(super) fn compute_blocks(
    x: &[f32],
    inner: usize,
    weight: Weight<'_>,
    initial_rows: Option<&[f32]>,
    task: impl Fn(&[f32], usize, &mut [f32], bool) + Sync,
) -> Vec<f32> {
    let outer = weight.outer();
    let len = x.len() / inner * outer;
    assert!(initial_rows.is_none_or(|rows| rows.len() == len), "shape mismatch of the residual stream");
    let mut out: Vec<f32> = Vec::with_capacity(len);
    for_each_block(x, inner, &mut out.spare_capacity_mut()[..len], weight, |x, first, block, on_all_cores| {
        match initial_rows {
            Some(rows) => {
                let rows = &rows[first * outer..];
                block.iter_mut().zip(rows).for_each(|(number, &row)| _ = number.write(row));
            }
            None => block.fill(MaybeUninit::new(0.0)),
        }
        // SAFETY: every element of the block was just initialized.
        let block = unsafe { &mut *(ptr::from_mut(block) as *mut [f32]) };
        task(x, first, block, on_all_cores);
    });
    // SAFETY: the blocks cover all `len` elements, and each was initialized.
    unsafe { out.set_len(len) };
    out
}

/// Runs `task` on blocks of rows in parallel. The arguments of `task` are a block of `x`, its first row, the
/// corresponding block of `out`, and whether products may use all cores. `out` has a column for each column of `weight`.
fn for_each_block<T: Send>(
    x: &[f32],
    inner: usize,
    out: &mut [T],
    weight: Weight<'_>,
    task: impl Fn(&[f32], usize, &mut [T], bool) + Sync,
) {
    let (rows, outer) = (x.len() / inner, weight.outer());
    let step = task_rows(rows, MIN_TASK_ROWS, weight.max_task_rows());
    if rows <= step {
        return task(x, 0, out, may_use_all_cores());
    }
    let blocks = x.par_chunks(step * inner).zip(out.par_chunks_mut(step * outer));
    blocks.enumerate().for_each(|(index, (x, out))| task(x, index * step, out, false));
}

/// Returns `norm(x)`.
pub(super) fn normalize(x: &[f32], norm: Norm<'_>) -> Scratch {
    let mut out = take_scratch(x.len());
    let width = norm.weight.len();
    normalize_selected_rows(x, width, norm, 0..x.len() / width, &mut out);
    out
}

/// Writes the norms of the given rows of `x [tokens, channels]` to `out`.
pub(super) fn normalize_selected_rows(
    x: &[f32],
    channels: usize,
    norm: Norm<'_>,
    rows: impl Iterator<Item = usize>,
    out: &mut [f32],
) {
    simd::in_widest!({
        for (row, out) in rows.zip(out.chunks_exact_mut(channels)) {
            simd::rms_norm(&x[row * channels..(row + 1) * channels], norm.weight, norm.eps, out);
        }
    });
}

/// Writes `x·W + b` to `out`, followed by the norm and the residual addition of [`linear`].
pub(super) fn linear_into(
    x: MatrixView<'_, f32>,
    projection: Linear<'_>,
    on_all_cores: bool,
    out: &mut [f32],
    output_norm: Option<Norm<'_>>,
    residual: Option<&[f32]>,
) {
    let into = if output_norm.is_none() && residual.is_some() { Update::Add } else { Update::Replace };
    projection.matmul(x, on_all_cores, into, out);
    let Some(norm) = output_norm else { return };
    apply_norm(out, norm);
    if let Some(residual) = residual {
        add_assign(out, residual);
    }
}

//! Attention among the rows of a [`Piece`](crate::model::candle::batch_layout::Piece) (prefill).

use std::ops::Range;
use std::sync::OnceLock;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::cudarc::nvrtc::CompileOptions;
use candle_core::{Device, Error as Failed, Tensor};

use super::attend::{WIDTHS, kernel_width_index};
use super::kernel::{CompileResult, Kernel, compile, load_kernel};
use super::{CudaResult, DeviceTensor, Number, THREADS, TernaryOp, apply_ternary};
use crate::error::Result;
use crate::model::candle::fused::Scores;

/// Minimum compute capability for the tensor-core instructions used, and its NVRTC `arch` name.
const MIN_CAPABILITY: ((i32, i32), &str) = ((8, 0), "compute_80");
/// Queries per thread block.
const QUERIES: usize = 64;

/// Returns a kernel from `prefill.cu`, compiled for one head width.
fn kernel(device: &CudaDevice, name: &str, width: usize) -> candle_core::Result<Kernel> {
    static KERNELS: [OnceLock<CompileResult>; WIDTHS.len()] = [const { OnceLock::new() }; WIDTHS.len()];
    let index =
        kernel_width_index(width).ok_or_else(|| Failed::msg(format!("no kernel for heads of {width} channels")))?;
    let compiled = KERNELS[index].get_or_init(|| {
        let options = CompileOptions {
            options: vec![format!("-DWIDTH={}", WIDTHS[index])],
            arch: Some(MIN_CAPABILITY.1),
            ..CompileOptions::default()
        };
        compile(concat!(include_str!("../kernels.cu"), include_str!("../prefill.cu")), options)
    });
    let kernel_width = WIDTHS[index];
    load_kernel(device, &format!("{name}_{kernel_width}"), &format!("ghostlab-prefill-{kernel_width}"), compiled)
}

/// Rows that each row of a piece attends to in layers without a sliding window. The kernels apply windows.
pub(in crate::model::candle) struct AttendedRanges {
    /// For each row: start and end of its prefix, and start of its segment.
    table: CudaSlice<u32>,
    rows: usize,
}

impl AttendedRanges {
    /// Builds the table for a piece that consists of the batch rows `rows`. `attended_rows[i]` contains the rows that
    /// batch row `i` attends to: its prefix, and its segment up to and including itself. Returns `None` for devices and
    /// head widths that the kernels do not support.
    pub(in crate::model::candle) fn new(
        attended_rows: &[(Range<usize>, Range<usize>)],
        rows: Range<usize>,
        head_dim: usize,
        device: &Device,
    ) -> Result<Option<Self>> {
        let Device::Cuda(device) = device else { return Ok(None) };
        let capability = device.cuda_stream().context().compute_capability().w()?;
        if kernel_width_index(head_dim).is_none() || capability < MIN_CAPABILITY.0 {
            return Ok(None);
        }
        let table: Vec<u32> = attended_rows[rows.clone()]
            .iter()
            .flat_map(|(prefix, visible)| {
                let [first, end] =
                    if prefix.is_empty() { [0; 2] } else { [prefix.start, prefix.end].map(|row| row - rows.start) };
                [first, end, visible.start - rows.start].map(|row| row as u32)
            })
            .collect();
        Ok(Some(Self { table: device.clone_htod(&table)?, rows: rows.len() }))
    }
}

/// Computes the attention of each query over its visible rows.
///
/// # Shapes
/// `operands`: queries `[rows, H, D]`, keys and values `[rows, K, D]`; result `[rows, H·D]`.
pub(in crate::model::candle) fn prefill(
    operands: [&Tensor; 3],
    attended: &AttendedRanges,
    window: Option<usize>,
    scores: Scores,
) -> Result<Tensor> {
    let operation = Prefill { attended, window: window.unwrap_or(usize::MAX), scores };
    apply_ternary(operation, operands)
}

struct Prefill<'a> {
    attended: &'a AttendedRanges,
    window: usize,
    scores: Scores,
}

impl TernaryOp for Prefill<'_> {
    const NAME: &'static str = "prefill";

    fn run<T: Number>(&self, [queries, keys, values]: [&DeviceTensor<'_>; 3]) -> CudaResult {
        let (rows, heads, width) = queries.1.shape().dims3()?;
        let (_, kv_heads, _) = keys.1.shape().dims3()?;
        if rows != self.attended.rows {
            return Err(Failed::msg(format!("attention got {rows} rows, expected {}", self.attended.rows)));
        }
        let out = queries.allocate::<T>(queries.count())?;
        // In half precision, four warps process 16 queries each, which is the tile height of tensor cores.
        let threads = if T::KIND == f32::KIND { THREADS } else { THREADS / 2 };
        launch!(
            kernel(queries.0.device(), &format!("prefill_{}", T::NAME), width),
            rows.div_ceil(QUERIES) * heads,
            threads,
            &queries.view::<T>()?,
            &keys.view::<T>()?,
            &values.view::<T>()?,
            &self.attended.table,
            &out,
            &(rows as u32),
            &(heads as u32),
            &(kv_heads as u32),
            &(width as u32),
            &(self.window.min(u32::MAX as usize) as u32),
            &(self.scores.scale as f32),
            &self.scores.cap.unwrap_or(0.0)
        );
        Ok((queries.stored(out), (rows, heads * width).into()))
    }
}

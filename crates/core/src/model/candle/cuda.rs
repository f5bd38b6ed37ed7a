//! Fused CUDA kernels for operations that need no gradient. Each kernel makes one pass over memory, whereas candle
//! makes up to nine. This module also provides a half-precision product with f32 results, which candle lacks.
//!
//! The kernels (`kernels.cu`) run on the device's only stream, like candle's kernels.

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::cublas::{result::gemm_ex, sys};
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaView, DevicePtr, DevicePtrMut, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Error, Layout, Shape, Tensor};

pub(super) use self::attend::{AddressTable, BlockAddress, VisibleBlocks, attend, device_address};
use self::kernel::kernel;
pub(super) use self::prefill::{AttendedRanges, prefill};
use super::fused::Scores;
use crate::error::Result;

/// Returns whether the kernels support these tensors. All of them must be on a CUDA device, have a float type, and not
/// require gradients.
pub(super) fn supports(tensors: &[&Tensor]) -> bool {
    tensors
        .iter()
        .all(|x| x.device().is_cuda() && (matches!(x.dtype(), DType::F32 | DType::BF16 | DType::F16)) && !x.track_op())
}

/// Computes [`super::ops::rms_norm`].
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    Ok(x.contiguous()?.apply_op2_no_bwd(&contiguous_f32(weight)?, &BinaryAdapter(Norm { eps: eps as f32 }))?)
}

/// Computes [`super::ops::rotate`] over all channels of a head.
pub(super) fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    apply_ternary(Rotate, [x, &contiguous_f32(cos)?, &contiguous_f32(sin)?])
}

/// Computes [`super::fused::attention_weights`] in the dtype of the scores.
pub(super) fn attention_weights(scores: &Tensor, mask: &Tensor, settings: Scores) -> Result<Tensor> {
    Ok(scores.contiguous()?.apply_op2_no_bwd(&contiguous_f32(mask)?, &BinaryAdapter(Weights(settings)))?)
}

/// Computes `silu(gate) * up`.
pub(super) fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    Ok(gate.contiguous()?.apply_op2_no_bwd(&up.contiguous()?, &BinaryAdapter(SiluMul))?)
}

/// Computes `x·Wᵀ` for half-precision operands, with f32 accumulation and output.
///
/// # Shapes
/// `x [rows, in]`, `weight [out, in]`, of the same dtype; result `[rows, out]` in f32.
pub(super) fn linear_f32_out(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    Ok(x.contiguous()?.apply_op2_no_bwd(&weight.contiguous()?, &BinaryAdapter(WideLinear))?)
}

/// Computes the log-sum-exp and the argmax (lowest token id on ties) of each row.
///
/// # Shapes
/// `logits [rows, vocab]`; result `[2, rows]` in f32.
pub(super) fn head_rows(logits: &Tensor) -> Result<Tensor> {
    Ok(logits.contiguous()?.apply_op1_no_bwd(&HeadRows)?)
}

fn contiguous_f32(x: &Tensor) -> Result<Tensor> {
    Ok(x.to_dtype(DType::F32)?.contiguous()?)
}

/// Element type supported by the kernels.
trait Number: CudaDType + DeviceRepr {
    const NAME: &'static str;
    const KIND: sys::cudaDataType_t;
}

impl Number for f32 {
    const NAME: &'static str = "f32";
    const KIND: sys::cudaDataType_t = sys::cudaDataType_t::CUDA_R_32F;
}

impl Number for half::bf16 {
    const NAME: &'static str = "bf16";
    const KIND: sys::cudaDataType_t = sys::cudaDataType_t::CUDA_R_16BF;
}

impl Number for half::f16 {
    const NAME: &'static str = "f16";
    const KIND: sys::cudaDataType_t = sys::cudaDataType_t::CUDA_R_16F;
}

/// Dispatches to the instance of a generic method for the element type of a storage.
macro_rules! by_type {
    ($storage:expr, $op:ident.$method:ident($($argument:expr),*)) => {
        match $storage.dtype() {
            DType::F32 => $op.$method::<f32>($($argument),*),
            DType::BF16 => $op.$method::<half::bf16>($($argument),*),
            DType::F16 => $op.$method::<half::f16>($($argument),*),
            other => Err(candle_core::Error::msg(format!("no kernel for {other:?}"))),
        }
    };
}

/// Launches a kernel with `blocks` thread blocks. Does nothing if `blocks` is 0.
macro_rules! launch {
    ($kernel:expr, $blocks:expr, $threads:expr, $($argument:expr),+) => {
        if $blocks > 0 {
            let kernel = $kernel?;
            let [grid_dim, block_dim] = [$blocks, $threads].map(|count| (count as u32, 1, 1));
            let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 };
            // SAFETY: the arguments match the kernel's signature. `out` and the inputs are large enough for all accesses
            // of the kernel.
            unsafe { kernel.stream.launch_builder(&kernel.function)$(.arg($argument))+.launch(config) }.w()?;
        }
    };
}

// Declared after the macros because the modules use them.
mod attend;
mod kernel;
mod prefill;

/// Storage and layout of a contiguous tensor on a device.
struct DeviceTensor<'a>(&'a CudaStorage, &'a Layout);

impl DeviceTensor<'_> {
    fn view<T: Number>(&self) -> candle_core::Result<CudaView<'_, T>> {
        Ok(self.0.as_cuda_slice::<T>()?.slice(self.1.start_offset()..))
    }

    /// Returns the device address of the first element.
    fn address<T: Number>(&self) -> candle_core::Result<u64> {
        Ok(self.view::<T>()?.device_ptr(&self.0.device().cuda_stream()).0)
    }

    /// Returns the size of the last dimension.
    fn width(&self) -> usize {
        self.1.dims().last().copied().unwrap_or(1)
    }

    fn count(&self) -> usize {
        self.1.shape().elem_count()
    }

    /// Allocates `count` uninitialized elements on the device.
    fn allocate<T: Number>(&self, count: usize) -> candle_core::Result<CudaSlice<T>> {
        // SAFETY: every kernel writes its complete output before it is read.
        unsafe { self.0.device().alloc::<T>(count) }
    }

    fn stored<T: Number>(&self, out: CudaSlice<T>) -> CudaStorage {
        T::wrap_cuda_slice(out, self.0.device().clone())
    }
}

type CudaResult = candle_core::Result<(CudaStorage, Shape)>;
type CpuResult = candle_core::Result<(CpuStorage, Shape)>;

fn unsupported_on_cpu() -> CpuResult {
    Err(Error::msg("a CUDA kernel received a tensor in host memory"))
}

/// Operation on two tensors. The result has the dtype of the first tensor.
trait BinaryOp: Send + Sync {
    const NAME: &'static str;

    fn run<T: Number>(&self, a: &DeviceTensor<'_>, b: &DeviceTensor<'_>) -> CudaResult;
}

struct BinaryAdapter<O>(O);

impl<O: BinaryOp> CustomOp2 for BinaryAdapter<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> CpuResult {
        unsupported_on_cpu()
    }

    fn cuda_fwd(&self, a: &CudaStorage, a_layout: &Layout, b: &CudaStorage, b_layout: &Layout) -> CudaResult {
        let operation = &self.0;
        let a = DeviceTensor(a, a_layout);
        let b = DeviceTensor(b, b_layout);
        by_type!(a.0, operation.run(&a, &b))
    }
}

/// Operation on three tensors. The result has the dtype of the first tensor.
trait TernaryOp: Send + Sync {
    const NAME: &'static str;

    fn run<T: Number>(&self, operands: [&DeviceTensor<'_>; 3]) -> CudaResult;
}

struct TernaryAdapter<O>(O);

fn apply_ternary<O: TernaryOp>(operation: O, [a, b, c]: [&Tensor; 3]) -> Result<Tensor> {
    Ok(a.contiguous()?.apply_op3_no_bwd(&b.contiguous()?, &c.contiguous()?, &TernaryAdapter(operation))?)
}

impl<O: TernaryOp> CustomOp3 for TernaryAdapter<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> CpuResult {
        unsupported_on_cpu()
    }

    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        a_layout: &Layout,
        b: &CudaStorage,
        b_layout: &Layout,
        c: &CudaStorage,
        c_layout: &Layout,
    ) -> CudaResult {
        let operation = &self.0;
        let a = DeviceTensor(a, a_layout);
        let b = DeviceTensor(b, b_layout);
        let c = DeviceTensor(c, c_layout);
        by_type!(a.0, operation.run([&a, &b, &c]))
    }
}

/// Threads per warp.
const WARP: usize = 32;
/// Threads per block in elementwise kernels and in kernels that process several rows per block.
const THREADS: usize = 256;

struct Norm {
    eps: f32,
}

impl BinaryOp for Norm {
    const NAME: &'static str = "rms_norm";

    fn run<T: Number>(&self, x: &DeviceTensor<'_>, weight: &DeviceTensor<'_>) -> CudaResult {
        let width = x.width();
        let out = x.allocate::<T>(x.count())?;
        let threads = if width > THREADS { THREADS } else { WARP };
        launch!(
            kernel(x.0.device(), &format!("rms_norm_{}", T::NAME)),
            x.count() / width.max(1),
            threads,
            &x.view::<T>()?,
            &weight.view::<f32>()?,
            &out,
            &(width as u32),
            &self.eps
        );
        Ok((x.stored(out), x.1.shape().clone()))
    }
}

struct Rotate;

impl TernaryOp for Rotate {
    const NAME: &'static str = "rotate";

    fn run<T: Number>(&self, [x, cos, sin]: [&DeviceTensor<'_>; 3]) -> CudaResult {
        let ((_, heads, width), out) = (x.1.shape().dims3()?, x.allocate::<T>(x.count())?);
        let count = x.count() / 2;
        launch!(
            kernel(x.0.device(), &format!("rotate_{}", T::NAME)),
            count.div_ceil(THREADS),
            THREADS,
            &x.view::<T>()?,
            &cos.view::<f32>()?,
            &sin.view::<f32>()?,
            &out,
            &(count as u32),
            &(heads as u32),
            &(width as u32 / 2)
        );
        Ok((x.stored(out), x.1.shape().clone()))
    }
}

struct Weights(Scores);

impl BinaryOp for Weights {
    const NAME: &'static str = "weights";

    fn run<T: Number>(&self, scores: &DeviceTensor<'_>, mask: &DeviceTensor<'_>) -> CudaResult {
        let (queries, keys) = mask.1.shape().dims2()?;
        let rows = scores.count() / keys.max(1);
        let out = scores.allocate::<T>(scores.count())?;
        launch!(
            kernel(scores.0.device(), &format!("weights_{}", T::NAME)),
            rows.div_ceil(THREADS / WARP),
            THREADS,
            &scores.view::<T>()?,
            &mask.view::<f32>()?,
            &out,
            &(rows as u32),
            &(queries as u32),
            &(keys as u32),
            &(self.0.scale as f32),
            &self.0.cap.unwrap_or(0.0)
        );
        Ok((scores.stored(out), scores.1.shape().clone()))
    }
}

struct SiluMul;

impl BinaryOp for SiluMul {
    const NAME: &'static str = "silu_mul";

    fn run<T: Number>(&self, gate: &DeviceTensor<'_>, up: &DeviceTensor<'_>) -> CudaResult {
        let out = gate.allocate::<T>(gate.count())?;
        launch!(
            kernel(gate.0.device(), &format!("silu_mul_{}", T::NAME)),
            gate.count().div_ceil(THREADS),
            THREADS,
            &gate.view::<T>()?,
            &up.view::<T>()?,
            &out,
            &(gate.count() as u64)
        );
        Ok((gate.stored(out), gate.1.shape().clone()))
    }
}

struct HeadRows;

impl CustomOp1 for HeadRows {
    fn name(&self) -> &'static str {
        "head_rows"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> CpuResult {
        unsupported_on_cpu()
    }

    fn cuda_fwd(&self, logits: &CudaStorage, logits_layout: &Layout) -> CudaResult {
        let logits = DeviceTensor(logits, logits_layout);
        let (rows, vocab) = logits_layout.shape().dims2()?;
        let mut out = logits.allocate::<f32>(2 * rows)?;
        let (mut denominators, mut argmax) = out.split_at_mut(rows);
        launch!(
            kernel(logits.0.device(), "head_rows"),
            rows,
            1024,
            &logits.view::<f32>()?,
            &(vocab as u32),
            &mut denominators,
            &mut argmax
        );
        Ok((logits.stored(out), (2, rows).into()))
    }
}

struct WideLinear;

impl BinaryOp for WideLinear {
    const NAME: &'static str = "linear_f32_out";

    fn run<T: Number>(&self, x: &DeviceTensor<'_>, weight: &DeviceTensor<'_>) -> CudaResult {
        let ((rows, inner), (outer, _)) = (x.1.shape().dims2()?, weight.1.shape().dims2()?);
        let device = x.0.device();
        let mut out = x.allocate::<f32>(rows * outer)?;
        {
            let stream = device.cuda_stream();
            let blas = device.cublas_handle();
            let x_view = x.view::<T>()?;
            let weight_view = weight.view::<T>()?;
            let ((x, _read_x), (weight, _read_weight)) = (x_view.device_ptr(&stream), weight_view.device_ptr(&stream));
            let (out, _written) = out.device_ptr_mut(&stream);
            let [m, n, k] = [outer, rows, inner].map(|count| count as i32);
            let one = 1.0f32;
            let none = 0.0f32;
            // cuBLAS is column-major: outᵀ [outer, rows] = (weightᵀ)ᵀ·xᵀ.
            //
            // SAFETY: the pointers refer to allocations of these sizes and types that outlive the launch.
            unsafe {
                gemm_ex(
                    *blas.handle(),
                    sys::cublasOperation_t::CUBLAS_OP_T,
                    sys::cublasOperation_t::CUBLAS_OP_N,
                    m,
                    n,
                    k,
                    std::ptr::from_ref(&one).cast(),
                    weight as *const _,
                    T::KIND,
                    k,
                    x as *const _,
                    T::KIND,
                    k,
                    std::ptr::from_ref(&none).cast(),
                    out as *mut _,
                    f32::KIND,
                    m,
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
                )
            }
            .w()?;
        }
        Ok((x.stored(out), (rows, outer).into()))
    }
}

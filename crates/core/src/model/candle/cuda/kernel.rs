//! Compilation of the CUDA kernels with NVRTC on first use.

use std::sync::{Arc, OnceLock};

use candle_core::Error;
use candle_core::cuda_backend::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaStream};
use candle_core::cuda_backend::cudarc::nvrtc::{self, CompileOptions};

/// Compiled kernel and the stream it runs on.
pub(super) struct Kernel {
    pub(super) function: CudaFunction,
    pub(super) stream: Arc<CudaStream>,
}

/// Returns a kernel from `kernels.cu`.
pub(super) fn kernel(device: &CudaDevice, name: &str) -> candle_core::Result<Kernel> {
    static KERNELS: OnceLock<CompileResult> = OnceLock::new();
    let compiled = KERNELS.get_or_init(|| compile(include_str!("../kernels.cu"), CompileOptions::default()));
    load_kernel(device, name, "ghostlab", compiled)
}

/// PTX source, or the compiler's error message.
pub(super) type CompileResult = std::result::Result<String, String>;

pub(super) fn compile(source: &str, options: CompileOptions) -> CompileResult {
    match nvrtc::compile_ptx_with_opts(source, options) {
        Ok(ptx) => Ok(ptx.to_src()),
        Err(error) => Err(format!("cannot compile the CUDA kernels: {error:?}")),
    }
}

pub(super) fn load_kernel(
    device: &CudaDevice,
    name: &str,
    module: &str,
    compiled: &CompileResult,
) -> candle_core::Result<Kernel> {
    let function = device.get_or_load_custom_func(name, module, compiled.as_deref().map_err(Error::msg)?)?;
    Ok(Kernel { function: function.into_cuda_function(), stream: device.cuda_stream() })
}

//! Device memory: free bytes, budgeting and out-of-memory errors.

use candle_core::Device;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::{
    CudaDevice,
    cudarc::driver::result::{self, mem_pool},
    cudarc::driver::sys,
};

use crate::error::Error;
use crate::model::config::Config;

/// Maximum number of tokens per [`Piece`](super::batch_layout::Piece) of a batch on a GPU.
pub(in crate::model) const MAX_PIECE_TOKENS: usize = 8192;
/// Minimum number of tokens per piece. With fewer tokens, reading weights takes longer than computing.
const MIN_PIECE_TOKENS: usize = 1024;
/// Maximum number of elements in a large intermediate (attention scores or logits) on a GPU.
pub(super) const DEVICE_MAX_ELEMENTS: usize = 1 << 26;

/// Returns the number of free bytes on a device, after releasing unused memory of the CUDA pool. Returns `None` for the
/// CPU, or if the driver fails.
pub(super) fn free_bytes(device: &Device) -> Option<u64> {
    match device {
        Device::Cpu => None,
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let stream = device.cuda_stream();
            // Synchronize first, because memory freed by the previous backbone may not yet be released.
            stream.synchronize().ok()?;
            if let Some(pool) = memory_pool(device) {
                // SAFETY: the pool is the device's default pool, which lives as long as the device.
                unsafe { mem_pool::trim_to(pool, 0) }.ok()?;
            }
            let (free, _) = stream.context().mem_get_info().ok()?;
            Some(free as u64)
        }
        #[cfg(feature = "metal")]
        Device::Metal(device) => {
            let device = device.metal_device();
            let max = device.recommended_max_working_set_size() as u64;
            Some(max.saturating_sub(device.current_allocated_size() as u64))
        }
        #[allow(unreachable_patterns, reason = "candle has the variants even if the device features are disabled")]
        _ => None,
    }
}

/// Returns the memory pool of a device, if it has one.
#[cfg(feature = "cuda")]
fn memory_pool(device: &CudaDevice) -> Option<sys::CUmemoryPool> {
    // SAFETY: the device is open.
    unsafe { result::device::get_default_mem_pool(device.cuda_stream().context().cu_device()) }.ok()
}

/// Keeps freed memory in the pool until [`free_bytes`] trims it. By default, the driver releases freed memory at every
/// synchronization, such as after each token, and later allocations have to wait.
#[cfg(feature = "cuda")]
pub(super) fn keep_freed_memory(device: &CudaDevice) {
    let mut threshold = u64::MAX;
    if let Some(pool) = memory_pool(device) {
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool belongs to the device, and the attribute is a `u64`. Ignoring a failure only costs speed.
        let _ = unsafe { mem_pool::set_attribute(pool, attribute, std::ptr::from_mut(&mut threshold).cast()) };
    }
}

/// Returns whether the device ran out of memory. candle forwards the driver's message, so the error is recognized by
/// its text.
pub(crate) fn is_out_of_memory(error: &Error) -> bool {
    let text = error.one_line().to_lowercase();
    ["out of memory", "out_of_memory", "alloc_failed", "failed to create metal resource"]
        .iter()
        .any(|words| text.contains(words))
}

/// Creates the out-of-memory error for a device. `cause` names the allocation that did not fit.
pub(crate) fn out_of_memory_error(error: &Error, cause: String) -> Error {
    let found = error.one_line();
    let mut hint = "set --device-memory below the free memory, or use shorter windows".to_owned();
    if is_cuda_message(&found) {
        hint += "; `nvidia-smi` shows other processes on the GPU";
    }
    Error::missing("out of device memory").at(cause).found(found).hint(hint)
}

/// Returns whether an error message comes from the CUDA driver or cuBLAS.
fn is_cuda_message(message: &str) -> bool {
    ["CUDA_", "CUBLAS_"].iter().any(|prefix| message.contains(prefix))
}

/// Divides memory between the activations of a piece and the weights. Returns the number of tokens per piece and the
/// number of bytes for weights. The number of tokens is halved, down to [`MIN_PIECE_TOKENS`], until all weights fit.
pub(super) fn split_memory(memory: u64, weights: u64, activations: impl Fn(usize) -> u64) -> (usize, u64) {
    let mut tokens = MAX_PIECE_TOKENS;
    while tokens > MIN_PIECE_TOKENS && weights.saturating_add(activations(tokens)) > memory {
        tokens /= 2;
    }
    (tokens, memory.saturating_sub(activations(tokens)))
}

/// Estimates the size in bytes of the activations of `tokens` tokens, including eight streams for trie branches.
pub(super) fn estimate_activations(config: &Config, tokens: usize) -> u64 {
    // The second term covers scores and logits, with several temporaries each.
    config.batch_bytes(tokens, 8) + 8 * 4 * DEVICE_MAX_ELEMENTS as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_memory_is_split_into_weights_and_activations() {
        // The weights fit next to the activations of the largest piece, of a smaller piece, or of no piece.
        assert_eq!(split_memory(100_000_000, 1_000_000, activation_bytes), (8192, 100_000_000 - 8_192_000));
        assert_eq!(split_memory(5_000_000, 1_000_000, activation_bytes), (2048, 5_000_000 - 2_048_000));
        assert_eq!(split_memory(5_000_000, 50_000_000, activation_bytes), (1024, 5_000_000 - 1_024_000));
        assert_eq!(split_memory(1_000, 50_000_000, activation_bytes), (1024, 0));
    }

    fn activation_bytes(tokens: usize) -> u64 {
        1000 * tokens as u64
    }

    #[test]
    fn out_of_memory_errors_of_drivers_are_recognized() {
        for (words, full, is_cuda) in [
            ("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")", true, true),
            ("CublasError(CUBLAS_STATUS_ALLOC_FAILED)", true, true),
            ("Failed to create metal resource: Buffer", true, false),
            ("shape mismatch in matmul", false, false),
        ] {
            let error = Error::job("a tensor operation failed").found(words);
            assert_eq!(is_out_of_memory(&error), full, "{words}");
            let message = out_of_memory_error(&error, "cuda:0".to_owned()).to_string();
            assert_eq!(message.contains("nvidia-smi"), is_cuda, "{message}");
        }
    }
}

//! Memory of a device: free bytes, division, and out-of-memory errors.

use candle_core::Device;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::{
    CudaDevice,
    cudarc::driver::result::{self, mem_pool},
    cudarc::driver::sys,
};

use crate::error::Error;
use crate::model::config::Config;

/// Tokens that run together where there is room.
pub(in crate::model) const MAX_PIECE: usize = 8192;
/// Below this a device waits for its weights more than it computes.
const MIN_PIECE: usize = 1024;
/// Numbers of an intermediate that grows with the square of something: scores of a group of blocks, logits of some rows.
pub(super) const DEVICE_NUMBERS: usize = 1 << 26;

/// Returns the free bytes of a device, if it reports them.
pub(super) fn free(device: &Device) -> Option<u64> {
    match device {
        Device::Cpu => None,
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let stream = device.cuda_stream();
            // Synchronises first, because memory freed by the preceding backbone may be pending.
            stream.synchronize().ok()?;
            if let Some(pool) = pool(device) {
                // SAFETY: the pool is the device's own, which lives as long as it.
                unsafe { mem_pool::trim_to(pool, 0) }.ok()?;
            }
            let (free, _) = stream.context().mem_get_info().ok()?;
            Some(free as u64)
        }
        #[cfg(feature = "metal")]
        Device::Metal(device) => {
            let device = device.metal_device();
            let most = device.recommended_max_working_set_size() as u64;
            Some(most.saturating_sub(device.current_allocated_size() as u64))
        }
        #[allow(unreachable_patterns, reason = "a build without the devices' features has their variants too")]
        _ => None,
    }
}

/// Returns the memory pool of a device, if it has one.
#[cfg(feature = "cuda")]
fn pool(device: &CudaDevice) -> Option<sys::CUmemoryPool> {
    // SAFETY: the device is one that is open.
    unsafe { result::device::get_default_mem_pool(device.cuda_stream().context().cu_device()) }.ok()
}

/// Has memory that tensors gave up stay with the process until [`free`] is asked. Otherwise the driver takes it back whenever
/// the device has done all that it was given, as after each token, and what comes next waits for it.
#[cfg(feature = "cuda")]
pub(super) fn keep_freed(device: &CudaDevice) {
    let mut all = u64::MAX;
    if let Some(pool) = pool(device) {
        let kept = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool is the device's own, and this attribute is a number of 64 bits. Without it all is slower only.
        let _ = unsafe { mem_pool::set_attribute(pool, kept, std::ptr::from_mut(&mut all).cast()) };
    }
}

/// Returns whether an operation failed because the device ran out of memory. candle passes the driver's message on.
pub(crate) fn is_out_of_memory(error: &Error) -> bool {
    let text = error.one_line().to_lowercase();
    ["out of memory", "out_of_memory", "alloc_failed", "failed to create metal resource"]
        .iter()
        .any(|words| text.contains(words))
}

/// Creates the out-of-memory error of a device. `cause` names the object that did not fit.
pub(crate) fn out_of_memory(error: &Error, cause: String) -> Error {
    Error::missing("the device's memory is full").at(cause).found(error.one_line()).hint(
        "--device-memory with fewer GB than are free leaves more room beside the weights; shorter windows need less; \
         `nvidia-smi` shows who else is there",
    )
}

/// Divides memory into tokens per pass and bytes for weights: all weights if a piece fits next to them, else what the
/// smallest piece leaves.
pub(super) fn share(memory: u64, weights: u64, activations: impl Fn(usize) -> u64) -> (usize, u64) {
    let mut tokens = MAX_PIECE;
    while tokens > MIN_PIECE && weights.saturating_add(activations(tokens)) > memory {
        tokens /= 2;
    }
    (tokens, memory.saturating_sub(activations(tokens)))
}

/// Estimates the bytes that `tokens` tokens take on a device, with a few streams of a trie's branches.
pub(super) fn activations(config: &Config, tokens: usize) -> u64 {
    // Scores and logits, in a few forms at a time.
    config.batch_bytes(tokens, 8) + 8 * 4 * DEVICE_NUMBERS as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_between_weights_and_what_runs_at_a_time() {
        // All weights next to the largest piece, next to a smaller one, and not at all.
        assert_eq!(share(100_000_000, 1_000_000, activation_bytes), (8192, 100_000_000 - 8_192_000));
        assert_eq!(share(5_000_000, 1_000_000, activation_bytes), (2048, 5_000_000 - 2_048_000));
        assert_eq!(share(5_000_000, 50_000_000, activation_bytes), (1024, 5_000_000 - 1_024_000));
        assert_eq!(share(1_000, 50_000_000, activation_bytes), (1024, 0));
    }

    fn activation_bytes(tokens: usize) -> u64 {
        1000 * tokens as u64
    }

    #[test]
    fn what_drivers_say_of_a_full_memory_is_understood() {
        for (words, full) in [
            ("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")", true),
            ("CublasError(CUBLAS_STATUS_ALLOC_FAILED)", true),
            ("Failed to create metal resource: Buffer", true),
            ("shape mismatch in matmul", false),
        ] {
            assert_eq!(is_out_of_memory(&Error::job("a tensor operation failed").found(words)), full, "{words}");
        }
    }
}

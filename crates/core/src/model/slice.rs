//! Borrowed access to the elements of an f32 CPU tensor.

use std::ops::Deref;

use candle_core::{CpuStorage, Device, Storage, Tensor};

use crate::error::{Error, Result};

/// Borrows the elements of a tensor. The tensor stays read-locked until the result is dropped.
///
/// # Errors
/// Fails unless the tensor is a contiguous f32 tensor on the CPU.
pub fn elements(tensor: &Tensor) -> Result<impl Deref<Target = [f32]> + Sync + '_> {
    let (storage, layout) = tensor.storage_and_layout();
    let is_f32 = matches!(&*storage, Storage::Cpu(CpuStorage::F32(_)));
    match layout.contiguous_offsets() {
        Some((start, end)) if is_f32 => Ok(Elements { storage, start, end }),
        _ => {
            let order = if tensor.is_contiguous() { "contiguous" } else { "non-contiguous" };
            Err(Error::job("a kernel received an unsupported tensor").expected("contiguous F32 on Cpu").found(format!(
                "{order} {:?} on {:?}",
                tensor.dtype(),
                tensor.device()
            )))
        }
    }
}

struct Elements<S> {
    storage: S,
    start: usize,
    end: usize,
}

impl<S: Deref<Target = Storage>> Deref for Elements<S> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &*self.storage {
            Storage::Cpu(CpuStorage::F32(values)) => &values[self.start..self.end],
            _ => unreachable!("checked when the elements were borrowed"),
        }
    }
}

/// Creates a CPU tensor from `values` without copying them.
pub(super) fn tensor(values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

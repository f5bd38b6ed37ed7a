//! Application of operators on a device, with a cache of their device copies.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Tensor};

use super::ops;
use crate::error::Result;
use crate::model::operator::{Matrix, Operator};

/// Maximum total size in bytes of the operators cached on a device.
const MAX_CACHED_BYTES: usize = 1 << 30;

/// Cache of operators that are copied to a device on first use.
pub(super) struct OperatorCache {
    device: Device,
    cached: Mutex<HashMap<String, Arc<Operator>>>,
}

impl OperatorCache {
    pub(super) fn new(device: &Device) -> Self {
        Self { device: device.clone(), cached: Mutex::default() }
    }

    /// Applies an operator in f32, and rounds the result once to the dtype of `x`.
    ///
    /// # Shapes
    /// `x` and the result are `[rows, C]`.
    pub(super) fn apply(&self, operator: &Arc<Operator>, x: &Tensor) -> Result<Tensor> {
        let operator = self.on_device(operator)?;
        let input = ops::widen(x)?;
        let mapped = match &operator.matrix {
            Matrix::Identity => input,
            Matrix::Normed { norm, matrix } => {
                let normed = ops::rms_norm(&input, &norm.weight, f64::from(norm.eps))?;
                (&input + ops::apply_matrix(&normed, matrix)?)?
            }
            Matrix::Dense(matrix) | Matrix::Diagonal(matrix) => ops::apply_matrix(&input, matrix)?,
            Matrix::LowRank { down, up } => (&input + ops::apply_matrix(&ops::apply_matrix(&input, down)?, up)?)?,
        };
        Ok(ops::add_bias(&mapped, operator.bias.as_ref())?.to_dtype(x.dtype())?)
    }

    /// Returns the operator in device memory, copying it on first use. Empties the cache if the copy would exceed
    /// [`MAX_CACHED_BYTES`].
    fn on_device(&self, operator: &Arc<Operator>) -> Result<Arc<Operator>> {
        if self.device.is_cpu() {
            return Ok(Arc::clone(operator));
        }
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = cached.get(&operator.key()) {
            return Ok(Arc::clone(copy));
        }
        if cached.values().map(operator_bytes).sum::<usize>() + operator_bytes(operator) > MAX_CACHED_BYTES {
            cached.clear();
        }
        let copy = Arc::new(operator.to_device(&self.device)?);
        cached.insert(operator.key(), Arc::clone(&copy));
        Ok(copy)
    }
}

fn operator_bytes(operator: &Arc<Operator>) -> usize {
    size_of::<f32>() * operator.parameter_count()
}

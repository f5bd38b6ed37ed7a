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
        match (&operator.matrix, &operator.bias) {
            (Matrix::Identity, bias) => ops::add_bias(x, bias.as_ref()),
            (Matrix::Normed { norm, matrix }, bias) => {
                let input = ops::widen(x)?;
                let normed = ops::rms_norm(&input, &norm.weight, f64::from(norm.eps))?;
                let sum = (&input + ops::apply_matrix(&normed, matrix)?)?;
                Ok(ops::add_bias(&sum, bias.as_ref())?.to_dtype(x.dtype())?)
            }
            (Matrix::Dense(matrix) | Matrix::Diagonal(matrix), None) => ops::apply_matrix(x, matrix),
            (Matrix::Dense(matrix) | Matrix::Diagonal(matrix), Some(bias)) => {
                // Add the bias in f32 so that the result is rounded once.
                let sum = ops::add_bias(&ops::apply_matrix(&ops::widen(x)?, matrix)?, Some(bias))?;
                Ok(sum.to_dtype(x.dtype())?)
            }
            (Matrix::LowRank { down, up }, bias) => {
                let input = ops::widen(x)?;
                let sum = (&input + ops::apply_matrix(&ops::apply_matrix(&input, down)?, up)?)?;
                Ok(ops::add_bias(&sum, bias.as_ref())?.to_dtype(x.dtype())?)
            }
        }
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

//! Operators on a device.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use candle_core::{Device, Tensor};

use crate::error::Result;
use crate::model::program::{Matrix, Operator};

/// Bytes of operators that stay on a device.
const KEPT: usize = 1 << 30;

/// Matrices and diagonals in f32, copied when they are first asked for.
pub(super) struct Operators {
    device: Device,
    held: Mutex<HashMap<String, Tensor>>,
}

impl Operators {
    pub(super) fn new(device: &Device) -> Self {
        Self { device: device.clone(), held: Mutex::default() }
    }

    /// # Shapes
    /// `[C, C]`, or the diagonal `[C]`.
    pub(super) fn get(&self, operator: &Operator) -> Result<Tensor> {
        let (Matrix::Dense(matrix) | Matrix::Diagonal(matrix)) = &operator.matrix;
        if matches!(self.device, Device::Cpu) {
            return Ok(matrix.clone());
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = held.get(&operator.key()) {
            return Ok(copy.clone());
        }
        let bytes = |matrix: &Tensor| size_of::<f32>() * matrix.elem_count();
        if held.values().map(bytes).sum::<usize>() + bytes(matrix) > KEPT {
            held.clear();
        }
        let copy = matrix.to_device(&self.device)?;
        held.insert(operator.key(), copy.clone());
        Ok(copy)
    }
}

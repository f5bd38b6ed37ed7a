//! Operators on a device.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use candle_core::{Device, Tensor};

use super::ops;
use crate::error::Result;
use crate::model::operator::{Matrix, Operator};

/// Bytes of operators that stay on a device.
const KEPT: usize = 1 << 30;

/// An operator's numbers on a device, in f32.
#[derive(Clone)]
pub(super) struct Placed {
    matrix: Factors,
    bias: Option<Tensor>, // [C]
}

#[derive(Clone)]
enum Factors {
    /// `[C, C]`, or the diagonal `[C]`.
    One(Tensor),
    /// `I + D·U`: `[C, r]` and `[r, C]`.
    Thin(Tensor, Tensor),
}

impl Placed {
    /// `x·W + b` in f32, rounded to `x`'s type.
    ///
    /// # Shapes
    /// `x [rows, C]`; result the same.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        match (&self.matrix, &self.bias) {
            (Factors::One(matrix), None) => ops::apply(x, matrix),
            (Factors::One(matrix), Some(bias)) => {
                // One rounding at the end.
                let sum = ops::biased(&ops::apply(&ops::wide(x)?, matrix)?, Some(bias))?;
                Ok(sum.to_dtype(x.dtype())?)
            }
            (Factors::Thin(down, up), bias) => {
                let of = ops::wide(x)?;
                let sum = (&of + ops::apply(&ops::apply(&of, down)?, up)?)?;
                Ok(ops::biased(&sum, bias.as_ref())?.to_dtype(x.dtype())?)
            }
        }
    }

    fn map(&self, f: impl Fn(&Tensor) -> candle_core::Result<Tensor>) -> Result<Self> {
        let matrix = match &self.matrix {
            Factors::One(matrix) => Factors::One(f(matrix)?),
            Factors::Thin(down, up) => Factors::Thin(f(down)?, f(up)?),
        };
        Ok(Self { matrix, bias: self.bias.as_ref().map(f).transpose()? })
    }

    fn bytes(&self) -> usize {
        let matrix = match &self.matrix {
            Factors::One(matrix) => matrix.elem_count(),
            Factors::Thin(down, up) => down.elem_count() + up.elem_count(),
        };
        size_of::<f32>() * (matrix + self.bias.as_ref().map_or(0, Tensor::elem_count))
    }
}

/// Operators, copied when they are first asked for.
pub(super) struct Operators {
    device: Device,
    held: Mutex<HashMap<String, Placed>>,
}

impl Operators {
    pub(super) fn new(device: &Device) -> Self {
        Self { device: device.clone(), held: Mutex::default() }
    }

    pub(super) fn get(&self, operator: &Operator) -> Result<Placed> {
        let matrix = match &operator.matrix {
            Matrix::Dense(matrix) | Matrix::Diagonal(matrix) => Factors::One(matrix.clone()),
            Matrix::LowRank { down, up } => Factors::Thin(down.clone(), up.clone()),
        };
        // A clone shares the numbers.
        let own = Placed { matrix, bias: operator.bias.clone() };
        if matches!(self.device, Device::Cpu) {
            return Ok(own);
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = held.get(&operator.key()) {
            return Ok(copy.clone());
        }
        if held.values().map(Placed::bytes).sum::<usize>() + own.bytes() > KEPT {
            held.clear();
        }
        let copy = own.map(|part| part.to_device(&self.device))?;
        held.insert(operator.key(), copy.clone());
        Ok(copy)
    }
}

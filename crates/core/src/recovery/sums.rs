//! Accumulation of `XᵀX` and `XᵀY` for least squares on the backbone's device.
//!
//! Devices that support f64 (CUDA) accumulate the products over all rows. On devices that do not (Metal), blocks of
//! rows are multiplied in f32, and the CPU accumulates the products in f64. The CPU always solves the system. If the
//! device runs out of memory, the CPU takes over.

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::linalg::solve::NormalEquations;
use crate::model::is_out_of_memory;

/// Running sums of `XᵀX` and `XᵀY`.
pub(super) struct Sums {
    /// Sums on the CPU, including those already fetched from the device.
    normal: NormalEquations,
    device: Option<DeviceSums>,
}

struct DeviceSums {
    device: Device,
    dtype: DType,
    /// `XᵀX` and `YᵀX`, each `[C, C]`, and the number of rows in the sums.
    sums: Option<([Tensor; 2], usize)>,
}

impl Sums {
    /// Creates empty sums for `channels` channels on the given device, or on the CPU if there is none.
    pub(super) fn new(channels: usize, device: Option<Device>) -> Self {
        let device = device.map(|device| {
            let dtype = if device.is_metal() { DType::F32 } else { DType::F64 };
            DeviceSums { device, dtype, sums: None }
        });
        Self { normal: NormalEquations::new(channels), device }
    }

    /// Adds the rows `x` with right-hand sides `y`.
    ///
    /// # Shapes
    /// `x`, `y [rows, C]`.
    pub(super) fn add(&mut self, x: &[f64], y: &[f64]) -> Result<()> {
        let c = self.normal.channels();
        let added = self.device.as_mut().map(|device_sums| -> Result<()> {
            let [x, y] = [x, y].map(|rows| Tensor::from_slice(rows, (rows.len() / c, c), &Device::Cpu));
            let [x, y] = [device_sums.to_device(&x?)?, device_sums.to_device(&y?)?];
            device_sums.add(&mut self.normal, &x, &y)
        });
        if !self.check_added(added)? {
            self.normal.add(x, y);
        }
        Ok(())
    }

    /// Adds the rows `x` with right-hand sides `y − x`.
    ///
    /// # Shapes
    /// `x`, `y [rows, C]`.
    pub(super) fn add_difference(&mut self, x: &[f32], y: &[f32]) -> Result<()> {
        let c = self.normal.channels();
        let added = self.device.as_mut().map(|device_sums| -> Result<()> {
            // Transfer f32 values, because f64 values would take twice as many bytes.
            let [x, y] = [x, y].map(|rows| Tensor::from_slice(rows, (rows.len() / c, c), &device_sums.device));
            let [x, y] = [x?.to_dtype(device_sums.dtype)?, y?.to_dtype(device_sums.dtype)?];
            let difference = (y - &x)?;
            device_sums.add(&mut self.normal, &x, &difference)
        });
        if !self.check_added(added)? {
            self.normal.add_difference(x, y);
        }
        Ok(())
    }

    /// Returns the sums over all rows, on the CPU.
    pub(super) fn finish(mut self) -> Result<NormalEquations> {
        self.fetch()?;
        Ok(self.normal)
    }

    /// Returns whether the device added the rows. If the device ran out of memory, moves its sums to the CPU and does
    /// not use the device again.
    fn check_added(&mut self, added: Option<Result<()>>) -> Result<bool> {
        match added {
            None => Ok(false),
            Some(Err(error)) if is_out_of_memory(&error) => {
                self.fetch()?;
                self.device = None;
                Ok(false)
            }
            Some(added) => added.map(|()| true),
        }
    }

    /// Moves the sums from the device to the CPU.
    fn fetch(&mut self) -> Result<()> {
        let Some(([gram, cross], rows)) = self.device.as_mut().and_then(|device_sums| device_sums.sums.take()) else {
            return Ok(());
        };
        add_sums(&mut self.normal, &gram, &cross, rows)
    }
}

impl DeviceSums {
    fn to_device(&self, rows: &Tensor) -> Result<Tensor> {
        Ok(rows.to_dtype(self.dtype)?.to_device(&self.device)?)
    }

    /// Adds rows that are already on the device.
    ///
    /// # Shapes
    /// `x`, `y [rows, C]`.
    fn add(&mut self, normal: &mut NormalEquations, x: &Tensor, y: &Tensor) -> Result<()> {
        let (gram, cross) = (x.t()?.matmul(x)?, y.t()?.matmul(x)?); // [C, C]
        let rows = x.dim(0)?;
        if self.dtype != DType::F64 {
            return add_sums(normal, &gram, &cross, rows);
        }
        self.sums = Some(match &self.sums {
            None => ([gram, cross], rows),
            Some(([gram_sum, cross_sum], before)) => ([(gram_sum + gram)?, (cross_sum + cross)?], before + rows),
        });
        Ok(())
    }
}

fn add_sums(normal: &mut NormalEquations, gram: &Tensor, cross: &Tensor, rows: usize) -> Result<()> {
    normal.add_sums(&tensor_values(gram)?, &tensor_values(cross)?, rows);
    Ok(())
}

fn tensor_values(sums: &Tensor) -> candle_core::Result<Vec<f64>> {
    sums.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn rows(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i + 1) * (i + seed) * 7919 % 10_007) as f32 / 10_007.0 - 0.5).collect()
    }

    fn to_f64(rows: &[f32]) -> Vec<f64> {
        rows.iter().map(|&v| f64::from(v)).collect()
    }

    /// Adds two f32 blocks and one f64 block. Returns the solution, the number of rows in total, and the number of rows
    /// added on the device.
    fn solve_sums(mut sums: Sums) -> (Vec<f64>, usize, usize) {
        let c = sums.normal.channels();
        for (count, seed) in [(70, 71), (33, 83)] {
            sums.add_difference(&rows(count * c, seed), &rows(count * c, seed + 300)).unwrap();
        }
        sums.add(&to_f64(&rows(50 * c, 59)), &to_f64(&rows(50 * c, 97))).unwrap();
        let on_device =
            sums.device.as_ref().and_then(|device_sums| device_sums.sums.as_ref()).map_or(0, |(_, rows)| *rows);
        let normal = sums.finish().unwrap();
        (normal.solve(1e-6).unwrap(), normal.rows(), on_device)
    }

    #[test]
    fn device_sums_match_the_cpu_solution() {
        let c = 12;
        let (expected, count, on_device) = solve_sums(Sums::new(c, None));
        assert_eq!((count, on_device), (153, 0));
        let largest = expected.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        for (dtype, kept, tolerance) in [(DType::F64, 153, 1e-11), (DType::F32, 0, 1e-4)] {
            let mut sums = Sums::new(c, Some(Device::Cpu));
            sums.device.as_mut().unwrap().dtype = dtype;
            let (found, rows, on_device) = solve_sums(sums);
            assert_eq!((rows, on_device), (153, kept), "{dtype:?}");
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(
                worst < tolerance * largest && (dtype == DType::F64 || worst > 0.0),
                "{dtype:?}: {worst:e} of {largest}"
            );
        }
    }

    #[test]
    fn sums_fall_back_to_cpu_if_device_memory_is_full() {
        let c = 12;
        let x = rows(40 * c, 71);
        let y = rows(40 * c, 90);
        let mut sums = Sums::new(c, Some(Device::Cpu));
        sums.add_difference(&x, &y).unwrap();
        let full = Error::job("a tensor operation failed").found("CUDA_ERROR_OUT_OF_MEMORY");
        assert!(!sums.check_added(Some(Err(full))).unwrap() && sums.device.is_none());
        sums.add_difference(&y, &x).unwrap();
        let mut on_cpu = NormalEquations::new(c);
        on_cpu.add_difference(&x, &y);
        on_cpu.add_difference(&y, &x);
        let found = sums.finish().unwrap().solve(1e-6).unwrap();
        let expected = on_cpu.solve(1e-6).unwrap();
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-10));
        let other = Error::job("a tensor operation failed").found("unspecified launch failure");
        assert!(
            Sums::new(c, Some(Device::Cpu)).check_added(Some(Err(other))).is_err(),
            "only out-of-memory errors may fall back to the CPU"
        );
    }
}

//! Names of devices and float types, and availability of devices in this build and on this machine.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device};
use safetensors::Dtype;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::model::tensor_name::{EMBEDDING, HEAD};
use crate::model::weights::Weights;
use crate::named::named;

/// GPU as described by its driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Product name.
    pub model: Option<String>,
    /// Unique id of the device, if the driver reports one.
    pub serial: Option<String>,
}

/// Device that can run a backbone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    Cpu,
    /// NVIDIA GPU by ordinal.
    Cuda(usize),
    /// Apple GPU.
    Metal,
}

impl DeviceName {
    /// Returns the best device that this build supports and this machine has.
    pub fn detect() -> Self {
        let found = [Self::Cuda(0), Self::Metal].into_iter().find(|device| device.is_built() && device.open().is_ok());
        found.unwrap_or(Self::Cpu)
    }

    /// Returns the device class used in cache keys. Results within a class differ only by rounding.
    pub fn class(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda(_) => "cuda",
            Self::Metal => "metal",
        }
    }

    /// Returns whether this build supports the device.
    pub fn is_built(self) -> bool {
        match self {
            Self::Cpu => true,
            Self::Cuda(_) => cfg!(feature = "cuda"),
            Self::Metal => cfg!(feature = "metal"),
        }
    }

    /// Returns the driver's description of the GPU, or `None` for the CPU and unusable devices.
    pub fn gpu(self) -> Option<Gpu> {
        match self.open().ok()? {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                let stream = device.cuda_stream();
                let serial = stream.context().uuid().ok().map(|id| format_hex(id.bytes.iter().map(|&byte| byte as u8)));
                Some(Gpu { model: stream.context().name().ok(), serial })
            }
            #[cfg(feature = "metal")]
            Device::Metal(_) => Some(Gpu { model: None, serial: None }),
            _ => None,
        }
    }

    /// Opens the device.
    ///
    /// # Errors
    /// Fails if this build does not support the device or the machine does not have it.
    pub fn open(self) -> Result<Device> {
        if !self.is_built() {
            let hint = match self {
                Self::Cuda(_) => "build with `tools/cuda_build.sh`",
                _ => "build with `cargo build --release --features metal` on a Mac",
            };
            return Err(Error::missing("this build does not support the device")
                .at(format!("device {self}"))
                .expected(format!("a build with the feature `{}`", self.class()))
                .hint(hint));
        }
        let opened = match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda(number) => open_cuda(number),
            Self::Metal => Device::new_metal(0),
        };
        opened.map_err(|error| {
            Error::missing("cannot use the device")
                .at(format!("device {self}"))
                .found(error)
                .hint("use `--device cpu`, or check that the GPU driver is installed and recent enough")
        })
    }
}

/// Opens an NVIDIA GPU once per process, because candle treats two handles to one GPU as different devices.
///
/// All threads share one stream, which orders their work. candle's default, one unordered stream per thread, would be
/// wrong here, because weights are created and freed on other threads than those that compute. With a single stream,
/// event tracking is unnecessary and would cost more than a kernel launch.
fn open_cuda(number: usize) -> candle_core::Result<Device> {
    static OPEN_DEVICES: Mutex<BTreeMap<usize, Device>> = Mutex::new(BTreeMap::new());
    let mut opened = OPEN_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = opened.get(&number) {
        return Ok(device.clone());
    }
    let device = Device::new_cuda_with_stream(number)?;
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = &device {
        // SAFETY: all work of this process runs in order on the single stream of this device.
        unsafe { device.disable_event_tracking() };
        super::memory::keep_freed_memory(device);
    }
    opened.insert(number, device.clone());
    Ok(device)
}

#[cfg(feature = "cuda")]
fn format_hex(bytes: impl Iterator<Item = u8>) -> String {
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            other => f.write_str(other.class()),
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            None if text == "metal" => Ok(Self::Metal),
            Some(("cuda", number)) => {
                number.parse().map(Self::Cuda).map_err(|_| format!("`{number}` is not a GPU number"))
            }
            _ => Err(format!("`{text}` is not a device; expected cpu, cuda, cuda:N or metal")),
        }
    }
}

/// Type of weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    F32,
    Bf16,
    F16,
}

named!(FloatType: F32 = "f32", Bf16 = "bf16", F16 = "f16");

impl FloatType {
    /// Returns the size of an element in bytes.
    pub(crate) fn bytes(self) -> u64 {
        self.candle_dtype().size_in_bytes() as u64
    }

    pub(crate) fn candle_dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// Reads the dtype of the stored embedding, or of the output projection if there is no embedding.
    ///
    /// # Errors
    /// Fails if the weight files cannot be read.
    pub fn stored_in(folder: &Path) -> Result<Self> {
        let weights = Weights::open(folder)?;
        Ok(Self::from_stored(weights.dtype(EMBEDDING).or_else(|| weights.dtype(HEAD))))
    }

    /// Converts a safetensors dtype. Unsupported or missing dtypes map to f32.
    pub(crate) fn from_stored(stored: Option<Dtype>) -> Self {
        match stored {
            Some(Dtype::F16) => Self::F16,
            Some(Dtype::BF16) => Self::Bf16,
            _ => Self::F32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_and_float_type_names_round_trip() {
        for device in [DeviceName::Cpu, DeviceName::Cuda(0), DeviceName::Cuda(3), DeviceName::Metal] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
        for wrong in ["gpu", "cuda:x", "cuda:-1", "metal:1", ""] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
        assert!(FloatType::ALL.iter().all(|dtype| dtype.name().parse() == Ok(*dtype)));
        assert!("f64".parse::<FloatType>().unwrap_err().contains("f32, bf16, f16"));
    }

    #[test]
    fn unsupported_device_error_names_the_required_feature() {
        for device in [DeviceName::Cuda(0), DeviceName::Metal].into_iter().filter(|device| !device.is_built()) {
            let error = device.open().unwrap_err();
            assert_eq!(error.exit_code(), 3);
            assert!(error.to_string().contains(&format!("feature `{}`", device.class())), "{error}");
        }
        assert!(DeviceName::detect().open().is_ok());
    }
}

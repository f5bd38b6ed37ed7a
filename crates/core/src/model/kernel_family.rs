//! Kernel families of the CPU engine. Each family gives bit-identical results on every processor that runs it.

use crate::error::{Error, Result};
use crate::linalg::amx::{self, AmxStatus};
use crate::named::named;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelFamily {
    /// Kernels that run on every processor.
    Portable,
    /// Kernels that multiply bf16 matrices in the tile registers of Intel AMX.
    Amx,
}

named!(KernelFamily: Portable = "portable", Amx = "amx");

impl KernelFamily {
    /// Returns the device class used in cache keys. Kernels with bit-identical results share a class.
    pub const fn device_class(self) -> &'static str {
        match self {
            Self::Portable => "cpu",
            Self::Amx => "cpu-amx",
        }
    }

    /// Returns the fastest family for bf16 products that this machine can run.
    pub fn detect() -> Self {
        if amx::status() == AmxStatus::Ready { Self::Amx } else { Self::Portable }
    }

    /// Checks that this machine can run the family. The hint of the error suggests the command-line option
    /// `alternative`.
    ///
    /// # Errors
    /// Fails with kind `Missing` if this machine cannot run the family.
    pub fn check(self, alternative: &str) -> Result<()> {
        match amx::status() {
            AmxStatus::Ready => Ok(()),
            _ if self == Self::Portable => Ok(()),
            status => Err(Error::missing("this machine cannot run the kernel family `amx`")
                .expected("a processor with AMX-BF16, enabled for this process")
                .found(status)
                .hint(format!("use {alternative} (results differ in the last digits and are cached separately)"))),
        }
    }
}

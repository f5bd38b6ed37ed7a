//! Families of the CPU engine's kernels: results of one family have the same bits on every processor that runs it.

use crate::error::{Error, Result};
use crate::linalg::amx::{self, AmxStatus};
use crate::named::named;

/// A family of kernels by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelFamily {
    /// Runs on every processor.
    Portable,
    /// Multiplies bf16 on the tile registers of Intel AMX.
    Amx,
}

named!(KernelFamily: Portable = "portable", Amx = "amx");

impl KernelFamily {
    /// Returns the class of device, as keys name it: one for all kernels whose results have the same bits.
    pub const fn device_class(self) -> &'static str {
        match self {
            Self::Portable => "cpu",
            Self::Amx => "cpu-amx",
        }
    }

    /// Returns the fastest family for products in bf16 on this machine.
    pub fn best() -> Self {
        if amx::status() == AmxStatus::Ready { Self::Amx } else { Self::Portable }
    }

    /// Refuses a family that this machine does not run.
    ///
    /// # Errors
    /// Kind `Missing`, with the reason.
    pub fn check(self) -> Result<()> {
        match amx::status() {
            AmxStatus::Ready => Ok(()),
            _ if self == Self::Portable => Ok(()),
            status => Err(Error::missing("this machine cannot run the kernel family `amx`")
                .expected("a processor with AMX-BF16 that this process may use")
                .found(status)
                .hint("--kernels portable runs everywhere; its results have other last digits, and keys of their own")),
        }
    }
}

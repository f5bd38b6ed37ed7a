//! Availability of AMX to this process.

use std::fmt;
use std::sync::OnceLock;

/// Result of the AMX availability check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AmxStatus {
    Ready,
    /// The processor has no AMX-BF16, or the virtual machine hides it.
    Absent,
    /// The operating system does not save tile registers.
    Disabled,
    /// The Linux kernel denied permission with this error number, for example because of a container's seccomp filter.
    Refused(i32),
    /// The processor's products differ from the documented arithmetic.
    Deviates,
}

impl fmt::Display for AmxStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("AMX is usable"),
            Self::Absent => f.write_str("the processor has no AMX-BF16"),
            Self::Disabled => f.write_str("the processor has AMX-BF16, but the operating system does not enable it"),
            Self::Refused(error) => {
                let error = std::io::Error::from_raw_os_error(*error);
                write!(f, "the processor has AMX-BF16, but the kernel refused permission: {error}")
            }
            Self::Deviates => f.write_str("the processor's AMX products differ from their documented arithmetic"),
        }
    }
}

/// Returns the status of AMX. The first call requests permission from the Linux kernel for the whole process.
pub fn status() -> AmxStatus {
    static STATUS: OnceLock<AmxStatus> = OnceLock::new();
    *STATUS.get_or_init(detect)
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn detect() -> AmxStatus {
    AmxStatus::Absent
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn detect() -> AmxStatus {
    if !linux::is_supported_by_processor() {
        return AmxStatus::Absent;
    }
    if !linux::is_enabled_by_system() {
        return AmxStatus::Disabled;
    }
    match linux::request_permission() {
        Err(error) => AmxStatus::Refused(error),
        // SAFETY: the processor supports tile registers, and the kernel granted permission.
        Ok(()) if unsafe { super::probe::matches_documented_arithmetic() } => AmxStatus::Ready,
        Ok(()) => AmxStatus::Deviates,
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod linux {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// Feature bits in EDX of CPUID leaf 7.
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    /// Bits of XCR0 for tile configuration and tile data.
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;
    /// System call number of `arch_prctl`.
    const ARCH_PRCTL: isize = 158;
    /// Request code for permission to use an extended state component.
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    /// XSAVE state component with the tile data.
    const XFEATURE_XTILEDATA: usize = 18;

    pub(super) fn is_supported_by_processor() -> bool {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
    }

    pub(super) fn is_enabled_by_system() -> bool {
        // SAFETY: `xgetbv` exists because the operating system has enabled XSAVE.
        is_x86_feature_detected!("xsave") && unsafe { _xgetbv(0) } & TILE_STATE == TILE_STATE
    }

    /// Requests permission to use tile data in this process.
    pub(super) fn request_permission() -> Result<(), i32> {
        let mut result = ARCH_PRCTL;
        // SAFETY: the system call accesses no memory. The kernel clobbers rcx and r11.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XFEATURE_XTILEDATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        if result == 0 { Ok(()) } else { Err(-result as i32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amx_status_message_names_the_reason() {
        for (status, text) in [
            (AmxStatus::Absent, "no AMX-BF16"),
            (AmxStatus::Disabled, "does not enable it"),
            (AmxStatus::Refused(1), "refused permission: Operation not permitted"),
            (AmxStatus::Deviates, "documented arithmetic"),
        ] {
            assert!(status.to_string().contains(text), "{status:?}: {status}");
        }
    }

    #[test]
    fn amx_status_does_not_change_between_calls() {
        assert_eq!(status(), status());
    }
}

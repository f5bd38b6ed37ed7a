//! Sizes of the processor's caches, by which products are cut into pieces.

use std::sync::LazyLock;

/// Second-level cache of a core where the processor does not tell: that of the smallest servers in use.
const USUAL_SECOND_LEVEL: usize = 512 << 10;

/// Returns the bytes of a core's second-level cache.
pub(crate) fn second_level_bytes() -> usize {
    static BYTES: LazyLock<usize> = LazyLock::new(|| detected().unwrap_or(USUAL_SECOND_LEVEL));
    *BYTES
}

#[cfg(not(target_arch = "x86_64"))]
fn detected() -> Option<usize> {
    None
}

/// Reads the caches that CPUID lists: leaf 4, or 0x8000_001D of AMD's, which has the same fields.
#[cfg(target_arch = "x86_64")]
fn detected() -> Option<usize> {
    use std::arch::x86_64::{__cpuid_count, CpuidResult};

    /// Caches that one processor lists at most.
    const MAX_CACHES: u32 = 8;
    #[allow(unused_unsafe, reason = "the intrinsic was unsafe in earlier releases of Rust")]
    fn cpuid(leaf: u32, index: u32) -> CpuidResult {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { __cpuid_count(leaf, index) }
    }
    let leaves = [(0x8000_0000, 0x8000_001d), (0, 4)];
    leaves.into_iter().find_map(|(highest, leaf)| {
        if cpuid(highest, 0).eax < leaf {
            return None;
        }
        let caches = (0..MAX_CACHES).map(|index| cpuid(leaf, index));
        let second = caches.take_while(|cache| cache.eax & 0x1f != 0).find(|cache| cache.eax >> 5 & 7 == 2)?;
        let [line, partitions, ways] = [0, 12, 22].map(|shift| (second.ebx >> shift) as usize);
        Some((line % 0x1000 + 1) * (partitions % 0x400 + 1) * (ways + 1) * (second.ecx as usize + 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_level_cache_has_a_plausible_size() {
        assert!((128 << 10..=64 << 20).contains(&second_level_bytes()), "{}", second_level_bytes());
    }
}

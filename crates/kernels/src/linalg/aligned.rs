//! Arrays for packed weights, aligned to cache lines.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

// SAFETY: the struct is a byte array without padding, so all bit patterns are valid.
unsafe impl Zeroable for CacheLine {}
// SAFETY: as above.
unsafe impl Pod for CacheLine {}

/// Array that starts at a cache line. A misaligned row of an AMX tile would span two cache lines, which triples the
/// time of a product. Some allocators align large arrays to 16 bytes only.
pub struct AlignedArray<T> {
    lines: Vec<CacheLine>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> AlignedArray<T> {
    /// Creates an array of `len` zeros.
    ///
    /// # Panics
    /// Panics if the size of `T` does not divide 64.
    pub fn zeroed(len: usize) -> Self {
        assert!(size_of::<CacheLine>().is_multiple_of(size_of::<T>()), "elements must fill cache lines");
        let lines = bytemuck::zeroed_vec((len * size_of::<T>()).div_ceil(size_of::<CacheLine>()));
        Self { lines, len, element: PhantomData }
    }
}

impl<T: Pod> Deref for AlignedArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: Pod> DerefMut for AlignedArray<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_arrays_start_at_a_cache_line_and_contain_zeros() {
        for len in [0, 1, 15, 16, 17, 3 << 20] {
            let mut array = AlignedArray::<u32>::zeroed(len);
            assert_eq!(array.len(), len);
            assert!(array.as_ptr().addr().is_multiple_of(64));
            assert!(array.iter().all(|&number| number == 0));
            array.fill(7);
            assert!(array.iter().all(|&number| number == 7));
        }
    }
}

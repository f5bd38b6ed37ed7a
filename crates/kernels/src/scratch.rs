//! Reusable buffers for intermediate results, with one pool per thread. Reuse avoids zeroing fresh memory in each task.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Maximum number of elements in a pooled buffer (32 MiB). Larger buffers would use too much memory in total.
const MAX_POOLED_ELEMENTS: usize = 1 << 23;

thread_local! {
    /// Pool of free buffers. A thread needs several buffers, because it may start another task while waiting for a
    /// subtask.
    static FREE_BUFFERS: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Slice of a pooled buffer, which returns to the pool on drop.
pub struct Scratch {
    buffer: Vec<f32>,
    len: usize,
}

/// Returns `len` elements with arbitrary values. Callers must write the elements before reading them.
pub(crate) fn take_scratch(len: usize) -> Scratch {
    let buffer = FREE_BUFFERS.with_borrow_mut(|free| {
        let fitting = (0..free.len()).filter(|&index| free[index].len() >= len).min_by_key(|&index| free[index].len());
        // If all buffers are too small, one of them is replaced, so that the pool does not grow.
        fitting.or_else(|| free.len().checked_sub(1)).map(|index| free.swap_remove(index))
    });
    // Zeroed memory from the system costs less than extending the buffer.
    let buffer = buffer.filter(|buffer| buffer.len() >= len).unwrap_or_else(|| vec![0.0; len]);
    Scratch { buffer, len }
}

impl Deref for Scratch {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.buffer[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.buffer[..self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        if buffer.len() > MAX_POOLED_ELEMENTS {
            return;
        }
        // The pool of an exiting thread may already be destroyed.
        let _ = FREE_BUFFERS.try_with(|free| free.borrow_mut().push(buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_buffers_are_reused_but_never_shared() {
        let first = take_scratch(8);
        let second = take_scratch(8);
        let a = first.as_ptr();
        let b = second.as_ptr();
        assert_ne!(a, b);
        drop(second);
        assert_eq!(take_scratch(4).as_ptr(), b);
        assert_eq!(take_scratch(4).len(), 4);
    }

    #[test]
    fn smallest_fitting_buffer_is_taken_and_the_others_are_kept() {
        let buffers = [30, 10, 20].map(take_scratch);
        let start = buffers[2].as_ptr();
        drop(buffers);
        let taken = take_scratch(15);
        assert_eq!((taken.as_ptr(), FREE_BUFFERS.with_borrow(Vec::len)), (start, 2));
    }

    #[test]
    fn large_scratch_buffer_is_not_returned_to_the_pool() {
        drop(take_scratch(MAX_POOLED_ELEMENTS + 1));
        assert_eq!(FREE_BUFFERS.with_borrow(Vec::len), 0);
    }
}

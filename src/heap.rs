//! The heap, with a count of its bytes where somebody asks for one. Floor 0.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Mutex, PoisonError};

use mimalloc::MiMalloc;

/// The program's allocator. Only while [`high_water`] runs does it count.
#[derive(Debug, Clone, Copy)]
pub struct Heap;

static COUNTS: AtomicBool = AtomicBool::new(false);
/// Bytes that were taken since counting began, less those that were given back.
static HELD: AtomicI64 = AtomicI64::new(0);
static MOST: AtomicI64 = AtomicI64::new(0);
/// Whether anything was counted. `MOST` does not tell: another thread may give back more at first than anybody takes.
static COUNTED: AtomicBool = AtomicBool::new(false);
/// One count at a time.
static COUNTING: Mutex<()> = Mutex::new(());

fn took(bytes: usize) {
    if COUNTS.load(Relaxed) {
        COUNTED.store(true, Relaxed);
        let held = HELD.fetch_add(bytes as i64, Relaxed) + bytes as i64;
        MOST.fetch_max(held, Relaxed);
    }
}

fn gave(bytes: usize) {
    if COUNTS.load(Relaxed) {
        HELD.fetch_sub(bytes as i64, Relaxed);
    }
}

// SAFETY: every request goes to mimalloc as it came; counting touches atomics only and never allocates.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promises are those that mimalloc asks for.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        gave(layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.realloc(place, layout, size) }
    }
}

/// What `work` gives, and the most bytes of the heap that were held at a time beyond those at its begin; none where the
/// program has another allocator. What other threads take meanwhile counts too.
pub fn high_water<T>(work: impl FnOnce() -> T) -> (T, Option<u64>) {
    let _alone = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    HELD.store(0, Relaxed);
    MOST.store(0, Relaxed);
    COUNTED.store(false, Relaxed);
    COUNTS.store(true, Relaxed);
    // A program whose allocator counts takes note of this one.
    drop(std::hint::black_box(vec![0u8; 1]));
    let counts = COUNTED.load(Relaxed);
    let done = work();
    COUNTS.store(false, Relaxed);
    (done, counts.then(|| MOST.load(Relaxed) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_is_held_at_a_time_is_counted() {
        // The tests' allocator is another one: the calls are made by hand.
        let layout = Layout::from_size_align(1000, 8).unwrap();
        let ((), most) = high_water(|| {
            took(5000);
            gave(5000);
            // SAFETY: allocated and freed by one allocator, with one layout each.
            unsafe {
                let place = Heap.alloc(layout);
                let place = Heap.realloc(place, layout, 3000);
                Heap.dealloc(place, Layout::from_size_align(3000, 8).unwrap());
            }
        });
        assert_eq!(most, None, "nobody counts here");
        assert_eq!((MOST.load(Relaxed), HELD.load(Relaxed)), (5000, 0));
        took(77);
        assert_eq!(HELD.load(Relaxed), 0, "after it nothing counts");
    }
}

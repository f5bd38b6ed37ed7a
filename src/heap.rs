//! The allocator, with an optional byte count. Layer 0.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use mimalloc::MiMalloc;

/// The program's allocator. Only on a thread in which [`high_water`] runs does it count.
#[derive(Debug, Clone, Copy)]
pub struct Heap;

/// Count of a thread.
#[derive(Clone, Copy)]
struct Count {
    /// Bytes that were taken since counting began, less those that were given back.
    held: i64,
    most: i64,
}

thread_local! {
    // Const-initialized and without a destructor, so that access never allocates, even when the thread ends.
    static COUNT: Cell<Option<Count>> = const { Cell::new(None) };
}

/// Bytes that the process may hold; 0 where there is no limit.
static LIMIT: AtomicI64 = AtomicI64::new(0);
/// Bytes that the process holds, without what threads have not reported yet.
static HELD: AtomicI64 = AtomicI64::new(0);
/// Called once, on the thread whose allocation exceeds the limit.
static ON_EXCEEDED: OnceLock<fn() -> !> = OnceLock::new();
/// Bytes that a thread takes or frees before it reports them. Fewer reports mean less contention.
const REPORTED_BYTES: i64 = 64 << 10;

thread_local! {
    static UNREPORTED: Cell<i64> = const { Cell::new(0) };
}

/// Limits the heap of this process. `on_exceeded` runs before the allocation that would exceed the limit.
pub fn limit(bytes: u64, on_exceeded: fn() -> !) {
    ON_EXCEEDED.get_or_init(|| on_exceeded);
    LIMIT.store(i64::try_from(bytes).unwrap_or(i64::MAX), Relaxed);
}

/// Adds to the bytes that the process holds, where it has a limit.
fn report(bytes: i64) {
    let limit = LIMIT.load(Relaxed);
    if limit == 0 {
        return;
    }
    let unreported = UNREPORTED.get() + bytes;
    if unreported.abs() < REPORTED_BYTES {
        UNREPORTED.set(unreported);
        return;
    }
    UNREPORTED.set(0);
    if HELD.fetch_add(unreported, Relaxed) + unreported > limit {
        // The handler may allocate.
        LIMIT.store(0, Relaxed);
        if let Some(exceeded) = ON_EXCEEDED.get() {
            exceeded();
        }
    }
}

fn took(bytes: usize) {
    report(bytes as i64);
    if let Some(Count { held, most }) = COUNT.get() {
        let held = held + bytes as i64;
        COUNT.set(Some(Count { held, most: most.max(held) }));
    }
}

fn gave(bytes: usize) {
    report(-(bytes as i64));
    if let Some(count) = COUNT.get() {
        COUNT.set(Some(Count { held: count.held - bytes as i64, ..count }));
    }
}

// SAFETY: every request goes to mimalloc as it came; counting touches numbers of the thread only and never allocates.
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

    unsafe fn dealloc(&self, position: *mut u8, layout: Layout) {
        gave(layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.dealloc(position, layout) }
    }

    unsafe fn realloc(&self, position: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        took(size);
        gave(layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.realloc(position, layout, size) }
    }
}

/// Runs `work` and measures this thread's peak heap above its start. `None` with another allocator. Other threads do not
/// count, even if they work for this one.
pub fn high_water<T>(work: impl FnOnce() -> T) -> (T, Option<u64>) {
    COUNT.set(Some(Count { held: 0, most: 0 }));
    // A program whose allocator counts takes note of this one.
    drop(std::hint::black_box(vec![0u8; 1]));
    let counts = COUNT.get().is_some_and(|count| count.most > 0);
    let done = work();
    let most = COUNT.take().map_or(0, |count| count.most);
    (done, counts.then_some(most as u64))
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
                let pointer = Heap.alloc(layout);
                let pointer = Heap.realloc(pointer, layout, 3000);
                Heap.dealloc(pointer, Layout::from_size_align(3000, 8).unwrap());
            }
            std::thread::scope(|threads| drop(threads.spawn(|| took(1 << 30))));
            let count = COUNT.get().unwrap();
            assert_eq!((count.most, count.held), (5000, 0));
        });
        assert_eq!(most, None, "no counter is active");
        took(77);
        assert!(COUNT.get().is_none(), "after it nothing counts");
    }
}

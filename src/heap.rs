//! Global allocator that can measure peak memory per thread and limit the heap of a process (layer 0 of the
//! architecture).

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use mimalloc::MiMalloc;

/// Global allocator that counts the bytes allocated by threads that run [`measure_peak`]. If a limit is set
/// ([`set_limit`]), it also counts the bytes of the whole process.
#[derive(Debug, Clone, Copy)]
pub struct Heap;

#[derive(Clone, Copy)]
struct HeapCount {
    /// Bytes allocated minus bytes freed since counting began.
    current: i64,
    peak: i64,
}

thread_local! {
    // Const-initialized and without a destructor. Access therefore never allocates, not even while the thread exits.
    static COUNT: Cell<Option<HeapCount>> = const { Cell::new(None) };
}

/// Heap limit of the process in bytes, or 0 if there is none.
static LIMIT: AtomicI64 = AtomicI64::new(0);
/// Heap size of the process in bytes, excluding the changes that threads have not reported yet.
static HEAP_BYTES: AtomicI64 = AtomicI64::new(0);
/// Handler that is called once, on the thread whose allocation exceeds the limit.
static ON_EXCEEDED: OnceLock<fn() -> !> = OnceLock::new();
/// Minimum change in a thread's heap size, in bytes, before the thread updates [`HEAP_BYTES`]. Fewer updates reduce
/// contention.
const MIN_REPORTED_BYTES: i64 = 64 << 10;

thread_local! {
    /// Change in this thread's heap size, in bytes, that is not yet included in [`HEAP_BYTES`].
    static UNREPORTED: Cell<i64> = const { Cell::new(0) };
}

/// Limits the heap of this process to `bytes`. An allocation that would exceed the limit calls `on_exceeded` first.
pub fn set_limit(bytes: u64, on_exceeded: fn() -> !) {
    ON_EXCEEDED.get_or_init(|| on_exceeded);
    LIMIT.store(i64::try_from(bytes).unwrap_or(i64::MAX), Relaxed);
}

/// Adds `bytes` to the heap size of the process. Does nothing if no limit is set.
fn add_bytes(bytes: i64) {
    let limit = LIMIT.load(Relaxed);
    if limit == 0 {
        return;
    }
    let unreported = UNREPORTED.get() + bytes;
    if unreported.abs() < MIN_REPORTED_BYTES {
        UNREPORTED.set(unreported);
        return;
    }
    UNREPORTED.set(0);
    if HEAP_BYTES.fetch_add(unreported, Relaxed) + unreported > limit {
        // Disable the limit first, because the handler may allocate memory.
        LIMIT.store(0, Relaxed);
        if let Some(exceeded) = ON_EXCEEDED.get() {
            exceeded();
        }
    }
}

fn record_allocation(bytes: usize) {
    add_bytes(bytes as i64);
    if let Some(HeapCount { current, peak }) = COUNT.get() {
        let current = current + bytes as i64;
        COUNT.set(Some(HeapCount { current, peak: peak.max(current) }));
    }
}

fn record_deallocation(bytes: usize) {
    add_bytes(-(bytes as i64));
    if let Some(count) = COUNT.get() {
        COUNT.set(Some(HeapCount { current: count.current - bytes as i64, ..count }));
    }
}

// SAFETY: every request is forwarded unchanged to mimalloc. Counting only updates thread-local and atomic counters and
// never allocates.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record_allocation(layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is also the contract of mimalloc.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        record_allocation(layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        record_deallocation(layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        record_allocation(size);
        record_deallocation(layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.realloc(pointer, layout, size) }
    }
}

/// Runs `work`, and returns its result with the peak heap growth of this thread in bytes. The peak is `None` if
/// [`Heap`] is not the global allocator of the program. Allocations on other threads are not counted, even if those
/// threads work on behalf of this one.
pub fn measure_peak<T>(work: impl FnOnce() -> T) -> (T, Option<u64>) {
    COUNT.set(Some(HeapCount { current: 0, peak: 0 }));
    // Allocate once to find out whether this allocator is the global allocator of the program.
    drop(std::hint::black_box(vec![0u8; 1]));
    let is_counting = COUNT.get().is_some_and(|count| count.peak > 0);
    let result = work();
    let peak = COUNT.take().map_or(0, |count| count.peak);
    (result, is_counting.then_some(peak as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_excludes_other_threads_and_later_allocations() {
        // Tests use a different global allocator, so this test calls `Heap` directly.
        let layout = Layout::from_size_align(1000, 8).unwrap();
        let ((), peak) = measure_peak(|| {
            record_allocation(5000);
            record_deallocation(5000);
            // SAFETY: the pointer is allocated and freed by the same allocator, with matching layouts.
            unsafe {
                let pointer = Heap.alloc(layout);
                let pointer = Heap.realloc(pointer, layout, 3000);
                Heap.dealloc(pointer, Layout::from_size_align(3000, 8).unwrap());
            }
            std::thread::scope(|threads| drop(threads.spawn(|| record_allocation(1 << 30))));
            let count = COUNT.get().unwrap();
            assert_eq!((count.peak, count.current), (5000, 0));
        });
        assert_eq!(peak, None, "`Heap` is not the global allocator of the tests");
        record_allocation(77);
        assert!(COUNT.get().is_none(), "counting stops when `work` ends");
    }
}

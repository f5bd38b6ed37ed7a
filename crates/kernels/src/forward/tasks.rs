//! Division of a batch into tasks for rayon's threads. Results do not depend on the division.

use std::cell::Cell;

use rayon::prelude::*;

thread_local! {
    /// Whether this thread runs a part of a batch while other parts occupy the other cores.
    static OTHER_CORES_ARE_BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Computes `run(index, part)` for all parts in parallel. Within a part, layers use all cores only if fewer parts than
/// cores remain. Otherwise a core would read the weights again for each task of its own part.
pub fn map_parts<P: Sync, T: Send>(parts: &[P], run: impl Fn(usize, &P) -> T + Sync) -> Vec<T> {
    let threads = rayon::current_num_threads();
    let busy_parts = parts.len() / threads * threads;
    parts
        .par_iter()
        .enumerate()
        .map(|(index, part)| {
            // A waiting thread can start this part in the middle of another one.
            let _outer = RestoreGuard(OTHER_CORES_ARE_BUSY.replace(index < busy_parts));
            run(index, part)
        })
        .collect()
}

/// Guard that restores [`OTHER_CORES_ARE_BUSY`], even if a part panics.
struct RestoreGuard(bool);

impl Drop for RestoreGuard {
    fn drop(&mut self) {
        OTHER_CORES_ARE_BUSY.set(self.0);
    }
}

/// Returns whether a task that contains all rows may use all cores.
pub(super) fn may_use_all_cores() -> bool {
    !OTHER_CORES_ARE_BUSY.get()
}

/// Returns the number of rows per task. Tasks should keep all threads busy and fit into the cache, but have at least
/// `min` rows, because preparing the weights would otherwise cost as much as the product.
pub(super) fn task_rows(rows: usize, min: usize, max: usize) -> usize {
    let threads = if may_use_all_cores() { rayon::current_num_threads() } else { 1 };
    rows.div_ceil(threads).clamp(min, max)
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use super::*;

    #[test]
    fn parts_run_on_one_core_unless_fewer_than_threads_remain() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let rows = pool.install(|| map_parts(&[512; 5], |_, &rows| task_rows(rows, 64, 512)));
        assert_eq!(rows, [512, 512, 512, 512, 256]);
        assert_eq!(pool.install(|| map_parts(&[512], |_, &rows| task_rows(rows, 64, 512))), [256]);
        assert!(pool.install(may_use_all_cores));
        let panicking = || pool.install(|| map_parts(&[(); 2], |_, ()| panic!("on purpose")));
        let panicked = std::panic::catch_unwind(AssertUnwindSafe(panicking));
        assert!(panicked.is_err() && pool.broadcast(|_| may_use_all_cores()).into_iter().all(|may| may));
    }

    #[test]
    fn task_rows_stay_within_limits() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        assert_eq!(pool.install(|| [10, 300, 5000].map(|rows| task_rows(rows, 64, 256))), [64, 150, 256]);
    }
}

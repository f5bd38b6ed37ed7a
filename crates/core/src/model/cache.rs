//! Cache of values computed on demand, with a size limit in bytes. Values are requested cyclically, so the cache evicts
//! the idle value whose next request is furthest away.
//!
//! Values are computed on a separate thread pool. Callers of [`Cache::get`] are often workers of the global pool, and
//! block until the value is available. A computation on the same pool could deadlock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};
use crate::files::panics;

pub(super) struct Cache<T> {
    shared: Arc<SharedState<T>>,
    threads: ThreadPool,
}

struct SharedState<T> {
    compute: Box<dyn Fn(usize) -> Result<T> + Send + Sync>,
    /// Size of each value in bytes.
    value_bytes: Vec<u64>,
    budget: u64,
    state: Mutex<State<T>>,
    changed: Condvar,
    load_nanoseconds: AtomicU64,
}

struct State<T> {
    slots: Vec<Slot<T>>,
    /// Total size in bytes of all values that are cached or being computed.
    held_bytes: u64,
    last_index: usize,
    /// Number of times that the requested index changed.
    clock: u64,
}

enum Slot<T> {
    Absent,
    Computing,
    /// Error from the last computation, kept until the value is requested.
    Failed(Error),
    Cached {
        value: Arc<T>,
        last_use: u64,
    },
}

impl<T: Send + Sync + 'static> Cache<T> {
    /// Creates a cache for values of the given sizes in bytes, limited to `budget` bytes. Values in use are never
    /// evicted, so they may exceed the budget.
    ///
    /// # Errors
    /// Fails if the threads cannot be started.
    pub(super) fn new(
        value_bytes: Vec<u64>,
        budget: u64,
        compute: impl Fn(usize) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Self> {
        let threads = ThreadPoolBuilder::new().num_threads(rayon::current_num_threads()).build();
        let threads = threads.map_err(|error| Error::job("cannot start threads").found(error))?;
        let slots = value_bytes.iter().map(|_| Slot::Absent).collect();
        let state = Mutex::new(State { slots, held_bytes: 0, last_index: usize::MAX, clock: 0 });
        let changed = Condvar::new();
        let load_nanoseconds = AtomicU64::new(0);
        let shared = SharedState { compute: Box::new(compute), value_bytes, budget, state, changed, load_nanoseconds };
        Ok(Self { shared: Arc::new(shared), threads })
    }

    /// Returns a value, computing it if it is not cached.
    ///
    /// # Errors
    /// Propagates errors from the computation.
    pub(super) fn get(&self, index: usize) -> Result<Arc<T>> {
        let mut state = self.shared.lock();
        if state.last_index != index {
            (state.last_index, state.clock) = (index, state.clock + 1);
        }
        loop {
            let now = state.clock;
            match &mut state.slots[index] {
                Slot::Cached { value, last_use } => {
                    *last_use = now;
                    return Ok(Arc::clone(value));
                }
                slot @ Slot::Failed(_) => {
                    if let Slot::Failed(error) = std::mem::replace(slot, Slot::Absent) {
                        return Err(error);
                    }
                }
                Slot::Absent => {
                    self.shared.make_room(&mut state, index, None);
                    self.start_computing(&mut state, index);
                }
                Slot::Computing => {
                    state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Starts computing the value `now` in the background, and then the value `next` if both fit into the budget.
    pub(super) fn prefetch(&self, now: Option<usize>, next: usize) {
        let mut state = self.shared.lock();
        // Start `now` first: its caller is about to request it and must not wait for `next`.
        if let Some(now) = now.filter(|&now| matches!(state.slots[now], Slot::Absent)) {
            self.shared.make_room(&mut state, now, None);
            self.start_computing(&mut state, now);
        }
        if matches!(state.slots[next], Slot::Absent)
            && state.held_bytes - self.shared.evictable_bytes(&state, now) + self.shared.value_bytes[next]
                <= self.shared.budget
        {
            self.shared.make_room(&mut state, next, now);
            self.start_computing(&mut state, next);
        }
    }

    /// Returns the total time spent computing values, in seconds.
    pub(super) fn load_seconds(&self) -> f64 {
        self.shared.load_nanoseconds.load(Relaxed) as f64 * 1e-9
    }

    fn start_computing(&self, state: &mut State<T>, index: usize) {
        state.held_bytes += self.shared.value_bytes[index];
        state.slots[index] = Slot::Computing;
        let shared = Arc::clone(&self.shared);
        self.threads.spawn(move || {
            let started = Instant::now();
            let computed = panics::catch(|| (shared.compute)(index)).unwrap_or_else(|panic| {
                Err(Error::job("loading weights of a backbone panicked; this is a bug").found(panic))
            });
            shared.load_nanoseconds.fetch_add(started.elapsed().as_nanos() as u64, Relaxed);
            let mut state = shared.lock();
            state.slots[index] = match computed {
                Ok(value) => Slot::Cached { value: Arc::new(value), last_use: state.clock },
                Err(error) => {
                    state.held_bytes -= shared.value_bytes[index];
                    Slot::Failed(error)
                }
            };
            drop(state);
            shared.changed.notify_all();
        });
    }
}

impl<T> SharedState<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the clock value at the last use, or `None` if the value is in use or not cached.
    fn last_use_if_idle(&self, slot: &Slot<T>) -> Option<u64> {
        match slot {
            // Values are handed out under the lock, so the reference count cannot increase meanwhile.
            Slot::Cached { value, last_use } if Arc::strong_count(value) == 1 => Some(*last_use),
            _ => None,
        }
    }

    fn evictable_bytes(&self, state: &State<T>, protected: Option<usize>) -> u64 {
        let slots = state.slots.iter().zip(&self.value_bytes).enumerate();
        slots
            .filter(|&(index, (slot, _))| Some(index) != protected && self.last_use_if_idle(slot).is_some())
            .map(|(_, (_, value_bytes))| value_bytes)
            .sum()
    }

    /// Evicts idle values other than `protected` until the value `index` fits or no such value is left. Values whose
    /// next request is furthest away are evicted first.
    fn make_room(&self, state: &mut State<T>, index: usize, protected: Option<usize>) {
        let count = self.value_bytes.len();
        while state.held_bytes + self.value_bytes[index] > self.budget {
            let slots = state.slots.iter().enumerate().filter(|&(slot_index, _)| Some(slot_index) != protected);
            let candidates = slots.filter_map(|(slot_index, slot)| {
                let unused = state.clock - self.last_use_if_idle(slot)?;
                // A value that has been unused for more than one cycle may no longer be part of the request cycle, so
                // it is evicted first.
                let overdue = unused.saturating_sub(count as u64);
                Some((overdue, (slot_index + count - index) % count, slot_index))
            });
            let Some((_, _, slot_index)) = candidates.max() else { return };
            state.slots[slot_index] = Slot::Absent;
            state.held_bytes -= self.value_bytes[slot_index];
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    use rayon::prelude::*;

    use super::*;

    /// Returns a cache of 10-byte values that equal their index, and the number of computations of each value.
    fn counting_cache(count: usize, budget: u64) -> (Cache<usize>, Arc<Vec<AtomicUsize>>) {
        let loads: Arc<Vec<AtomicUsize>> = Arc::new((0..count).map(|_| AtomicUsize::new(0)).collect());
        let counts = Arc::clone(&loads);
        (
            Cache::new(vec![10; count], budget, move |index: usize| {
                counts[index].fetch_add(1, SeqCst);
                Ok(index)
            })
            .unwrap(),
            loads,
        )
    }

    fn load_counts(loads: &[AtomicUsize]) -> Vec<usize> {
        loads.iter().map(|count| count.load(SeqCst)).collect()
    }

    /// Waits until no value is being computed.
    fn wait_until_idle<T>(cache: &Cache<T>) {
        while cache.shared.lock().slots.iter().any(|slot| matches!(slot, Slot::Computing)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn slightly_too_small_cache_recomputes_few_values() {
        let rounds = 10;
        // Two slots serve the current and the next value. The other slots keep their values from round to round.
        for (capacity, max_loads) in [(10, 10), (9, 10 + 3 * (rounds - 1)), (5, 10 + 7 * (rounds - 1))] {
            let (cache, loads) = counting_cache(10, 10 * capacity);
            for step in 0..10 * rounds {
                let index = step % 10;
                assert_eq!(*cache.get(index).unwrap(), index);
                assert!(cache.shared.lock().held_bytes <= 10 * capacity);
                if step + 1 < 10 * rounds {
                    cache.prefetch(Some(index), (index + 1) % 10);
                }
            }
            wait_until_idle(&cache);
            let total: usize = load_counts(&loads).iter().sum();
            assert!(
                (10..=max_loads).contains(&total),
                "capacity {capacity}: {total} loads; LRU eviction would need 100"
            );
        }
    }

    #[test]
    fn values_outside_the_new_request_cycle_are_evicted() {
        let (cache, loads) = counting_cache(6, 40);
        (0..6).for_each(|index| assert_eq!(*cache.get(index).unwrap(), index));
        // Now request only four values, which fit.
        for index in (0..8).flat_map(|_| 0..4) {
            assert_eq!(*cache.get(index).unwrap(), index);
        }
        let before = load_counts(&loads);
        for index in (0..8).flat_map(|_| 0..4) {
            assert_eq!(*cache.get(index).unwrap(), index);
        }
        assert_eq!(load_counts(&loads), before);
    }

    #[test]
    fn values_in_use_may_exceed_the_budget_until_dropped() {
        let (cache, loads) = counting_cache(3, 10);
        let first = cache.get(0).unwrap();
        let second = cache.get(1).unwrap();
        assert_eq!((*first, *second, cache.shared.lock().held_bytes), (0, 1, 20));
        drop((first, second));
        assert_eq!((*cache.get(2).unwrap(), cache.shared.lock().held_bytes), (2, 10));
        assert_eq!(load_counts(&loads), [1, 1, 1]);
    }

    #[test]
    fn prefetch_does_not_evict_values_in_use() {
        let (cache, loads) = counting_cache(3, 20);
        cache.prefetch(Some(0), 1);
        wait_until_idle(&cache);
        assert_eq!(load_counts(&loads), [1, 1, 0]);
        let held_value = cache.get(1).unwrap();
        cache.prefetch(Some(0), 2);
        wait_until_idle(&cache);
        assert_eq!(load_counts(&loads), [1, 1, 0], "values in use must not be evicted");
        cache.prefetch(Some(1), 2);
        wait_until_idle(&cache);
        drop(held_value);
        assert_eq!((load_counts(&loads), cache.shared.lock().held_bytes), (vec![1, 1, 1], 20));
    }

    #[test]
    fn concurrent_requests_compute_a_value_once() {
        let (cache, loads) = counting_cache(1, 10);
        (0..64).into_par_iter().for_each(|_| assert_eq!(*cache.get(0).unwrap(), 0));
        assert_eq!(load_counts(&loads), [1]);
    }

    #[test]
    fn failed_computation_is_reported_once_and_then_retried() {
        let tried = AtomicUsize::new(0);
        let cache = Cache::new(vec![10], 10, move |_| match tried.fetch_add(1, SeqCst) {
            0 => Err(Error::bad_input("not finite")),
            1 => panic!("no such tensor"),
            tried => Ok(tried),
        })
        .unwrap();
        cache.prefetch(None, 0);
        wait_until_idle(&cache);
        assert!(cache.get(0).unwrap_err().to_string().contains("not finite"));
        assert!(cache.get(0).unwrap_err().to_string().contains("no such tensor"));
        assert_eq!(*cache.get(0).unwrap(), 2);
        assert_eq!(cache.shared.lock().held_bytes, 10);
    }
}

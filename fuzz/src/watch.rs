//! Tells a call that hangs from one that a busy machine keeps waiting: who waits for a processor gets the time back.

use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// Longer than any call takes on the slowest machine, without what it waits for a processor.
const HANGS: Duration = Duration::from_secs(120);
/// How often the watch looks.
const LOOKS: Duration = Duration::from_secs(2);

/// The current call: its kind, its start, and the earlier waiting time of this process for processors.
static CALL: Mutex<Option<(String, Instant, Duration)>> = Mutex::new(None);

/// Subtracts waiting from a call's time. Several waiting threads count each.
pub fn charged(taken: Duration, waited: Duration) -> Duration {
    taken.saturating_sub(waited)
}

/// Returns how long all threads of this process were runnable but not running, if known.
pub fn waited() -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    // `ran waited slices`, in nanoseconds and a count.
    Some(Duration::from_nanos(
        threads
            .filter_map(|thread| {
                let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
                text.split_whitespace().nth(1)?.parse::<u64>().ok()
            })
            .sum::<u64>(),
    ))
}

/// Makes a call under the watch: where it hangs the process is ended, and says on what.
pub fn watched<T>(what: impl FnOnce() -> String, call: impl FnOnce() -> T) -> T {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| drop(std::thread::spawn(watch)));
    let what = what();
    let before = waited().unwrap_or_default();
    *lock() = Some((what, Instant::now(), before));
    // However the call ends, by a panic too.
    let _over = Over;
    call()
}

struct Over;

impl Drop for Over {
    fn drop(&mut self) {
        *lock() = None;
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<(String, Instant, Duration)>> {
    CALL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_macros, reason = "no other thread can report the hang")]
fn watch() {
    loop {
        std::thread::sleep(LOOKS);
        let Some((what, begun, before)) = lock().clone() else { continue };
        let taken = charged(begun.elapsed(), waited().unwrap_or_default().saturating_sub(before));
        if taken > HANGS {
            eprintln!("{what} hangs: {taken:?} without what it waited for a processor");
            std::process::abort();
        }
    }
}

//! Watchdog that distinguishes hanging calls from calls on a busy machine. Time spent waiting for a processor does not
//! count.

use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// Timeout after which a call counts as hanging, excluding the time spent waiting for a processor. No call takes this
/// long, even on a slow machine.
const HANGS: Duration = Duration::from_secs(120);
const LOOKS: Duration = Duration::from_secs(2);

/// Description of the current call, its start, and the time that this process had spent waiting for processors before
/// it.
static CALL: Mutex<Option<(String, Instant, Duration)>> = Mutex::new(None);

/// Subtracts the waiting time, summed over all threads, from the duration of a call.
pub fn charged(taken: Duration, waited: Duration) -> Duration {
    taken.saturating_sub(waited)
}

/// Returns how long all threads of this process were runnable but not running, if known.
pub fn waited() -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    // Each line is `ran waited slices`, with times in nanoseconds.
    Some(Duration::from_nanos(
        threads
            .filter_map(|thread| {
                let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
                text.split_whitespace().nth(1)?.parse::<u64>().ok()
            })
            .sum::<u64>(),
    ))
}

/// Runs a call under the watchdog, which reports the call and aborts the process if it hangs.
pub fn watched<T>(what: impl FnOnce() -> String, call: impl FnOnce() -> T) -> T {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| drop(std::thread::spawn(watch)));
    let what = what();
    let before = waited().unwrap_or_default();
    *lock() = Some((what, Instant::now(), before));
    // `Over` clears the current call on return or panic.
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
            eprintln!("{what} hangs: running for {taken:?}, excluding time spent waiting for a processor");
            std::process::abort();
        }
    }
}

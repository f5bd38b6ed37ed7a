//! Watchdog that aborts the process if a call hangs. Time spent waiting for a processor is not counted, so calls that
//! are only slow because the machine is busy do not trigger it.

use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// Timeout after which a call counts as hanging, excluding the time spent waiting for a processor. No call takes this
/// long, even on a slow machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval between the checks of the watchdog thread.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Description of the current call, its start, and the time that this process had spent waiting for processors before
/// it.
static CALL: Mutex<Option<(String, Instant, Duration)>> = Mutex::new(None);

/// Returns the duration of a call without the time that threads spent waiting for a processor (`waited`, summed over
/// all threads).
pub fn time_without_waits(taken: Duration, waited: Duration) -> Duration {
    taken.saturating_sub(waited)
}

/// Returns the time that the threads of this process spent runnable but not running, summed over threads. Returns
/// `None` if the system does not report it.
pub fn cpu_wait_time() -> Option<Duration> {
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
pub fn run_watched<T>(describe_call: impl FnOnce() -> String, call: impl FnOnce() -> T) -> T {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| drop(std::thread::spawn(watch)));
    let description = describe_call();
    let before = cpu_wait_time().unwrap_or_default();
    *lock() = Some((description, Instant::now(), before));
    // Clear the current call on return or panic.
    let _clear_call = ClearCall;
    call()
}

/// Guard that clears [`CALL`] when it is dropped.
struct ClearCall;

impl Drop for ClearCall {
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
        std::thread::sleep(CHECK_INTERVAL);
        let Some((description, begun, before)) = lock().clone() else { continue };
        let taken = time_without_waits(begun.elapsed(), cpu_wait_time().unwrap_or_default().saturating_sub(before));
        if taken > HANG_TIMEOUT {
            eprintln!("{description} hangs: running for {taken:?}, excluding time spent waiting for a processor");
            std::process::abort();
        }
    }
}

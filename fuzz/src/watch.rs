//! Tells a call that hangs from one that a busy machine keeps waiting: who waits for a processor gets the time back.

use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

/// Longer than any call takes on the slowest machine, without what it waits for a processor.
const HANGS: Duration = Duration::from_secs(120);
/// How often the watch looks.
const LOOKS: Duration = Duration::from_secs(2);

/// The call that is under way: what it is, since when, and what this process had waited for processors before.
static CALL: Mutex<Option<(String, Instant, Duration)>> = Mutex::new(None);

/// What a call took but for the waiting; a process of several threads waits more than once at a time, which counts for it.
pub fn charged(taken: Duration, waited: Duration) -> Duration {
    taken.saturating_sub(waited)
}

/// How long all threads of this process together have been ready to run and did not; none where the system does not tell.
pub fn waited() -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    // `ran waited slices`, in nanoseconds and a count.
    let of = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    Some(Duration::from_nanos(threads.filter_map(of).sum::<u64>()))
}

/// Makes a call under the watch: where it hangs the process is ended, and says on what.
pub fn watched<T>(what: impl FnOnce() -> String, call: impl FnOnce() -> T) -> T {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| drop(std::thread::spawn(watch)));
    let (what, before) = (what(), waited().unwrap_or_default());
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

#[expect(clippy::disallowed_macros, reason = "nobody else can say what hangs")]
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

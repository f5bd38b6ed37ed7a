//! Waiting that a stop ends.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

/// How often it is looked whether to stop.
const TICK: Duration = Duration::from_millis(50);

/// Why there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    Stopped,
    TooLong,
}

/// The result of a future, unless it takes longer than `limit` or `stop` is set.
pub(crate) async fn within<T>(
    stop: &AtomicBool,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Result<T, WaitEnd> {
    let (mut future, end) = (pin!(future), Instant::now() + limit);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if let Ok(result) = timeout(TICK.min(left), &mut future).await {
            return Ok(result);
        }
        if stop.load(Relaxed) {
            return Err(WaitEnd::Stopped);
        }
        if left.is_zero() {
            return Err(WaitEnd::TooLong);
        }
    }
}

/// Waits so long; whether nobody said to stop.
pub(crate) async fn pause(stop: &AtomicBool, time: Duration) -> bool {
    within(stop, time, std::future::pending::<()>()).await == Err(WaitEnd::TooLong)
}

/// Until something is true, with looks in growing distance; whether nobody said to stop.
pub(crate) async fn until(stop: &AtomicBool, mut done: impl FnMut() -> bool) -> bool {
    while !done() {
        if stop.load(Relaxed) {
            return false;
        }
        sleep(TICK).await;
    }
    true
}

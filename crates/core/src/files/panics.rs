//! Conversion of panics in third-party parsers into errors. The panic message is not printed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether panics on this thread are being caught.
    static CATCHES_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `read` and converts a panic into an error with the panic message. Any state that a panic could leave
/// inconsistent must be dropped with `read`.
///
/// # Errors
/// Fails with the panic message if `read` panics.
pub fn catch<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    // The default hook would print "thread panicked", which is misleading for a damaged file.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !CATCHES_PANICS.get() {
                before(panic);
            }
        }));
    });
    let outer = CATCHES_PANICS.replace(true);
    let result = catch_unwind(AssertUnwindSafe(read));
    CATCHES_PANICS.set(outer);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic without a message").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn catch_returns_value_or_panic_message() {
        assert_eq!(catch(|| 3), Ok(3));
        let found = 7;
        let max = 3;
        assert_eq!(catch(|| assert!(found < max, "{found} of {max}")), Err("7 of 3".to_owned()));
        assert_eq!(catch(|| Vec::<u8>::new()[max]).unwrap_err().split(':').next(), Some("index out of bounds"));
    }
}

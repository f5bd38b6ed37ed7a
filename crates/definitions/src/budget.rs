//! How much text one rendering may make.

use std::cell::Cell;

use minijinja::{Error, ErrorKind};

/// Bytes that one rendering may make.
pub(crate) const MOST_BYTES: usize = 256 << 20;

thread_local! {
    /// Bytes that values have printed in the rendering of this thread.
    static PRINTED: Cell<usize> = const { Cell::new(0) };
}

/// Begins a rendering: nothing is printed yet.
pub(crate) fn begin() {
    PRINTED.set(0);
}

/// Counts bytes that a rendering makes.
///
/// # Errors
/// When there are too many.
pub(crate) fn printed(bytes: usize) -> Result<(), Error> {
    let all = PRINTED.get().saturating_add(bytes);
    PRINTED.set(all);
    let too_many =
        || Error::new(ErrorKind::InvalidOperation, format!("it makes more than {} MB of text", MOST_BYTES >> 20));
    if all > MOST_BYTES { Err(too_many()) } else { Ok(()) }
}

//! Standard output and standard error, either of which may be closed or full while a run goes on.
//!
//! The standard library's macros panic then. Those of this floor write here: a reader that has gone (`| head`) has all
//! that it wanted, and what cannot be said stops no run. Only output that is lost for want of room is an error, at the end.
//! Control characters in names and paths go out as escapes: they would move the cursor.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result, printable};

/// The first failure to write what was asked for.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// Writes to standard output.
pub(super) fn say(text: Arguments<'_>) {
    let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
    if lost.is_none()
        && let Err(error) = io::stdout().lock().write_all(printable(&text.to_string()).as_bytes())
    {
        *lost = Some(error);
    }
}

/// Writes to standard error.
pub(super) fn tell(text: Arguments<'_>) {
    io::stderr().lock().write_all(printable(&text.to_string()).as_bytes()).ok();
}

/// # Errors
/// Exit code 3: standard output took less than was said, and not because nobody reads it any more.
pub(super) fn end() -> Result<()> {
    let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
    let flushed = io::stdout().lock().flush().err();
    match lost.take().or(flushed) {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::missing("standard output cannot be written").found(error.to_string()))
        }
        _ => Ok(()),
    }
}

/// How many columns a table may take: those of the terminal, or any number where standard output is none.
pub(super) fn width() -> Option<usize> {
    let (_, columns) = console::Term::stdout().size_checked()?;
    Some(usize::from(columns))
}

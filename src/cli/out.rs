//! Standard output and standard error, either of which may be closed or full while a run goes on.
//!
//! The standard library's macros panic then. Those of this floor write here: a reader that has gone (`| head`) has all
//! that it wanted, and what cannot be said stops no run. Only output that is lost for want of room is an error, at the end.
//! Control characters in names and paths go out as escapes: they would move the cursor.

use std::cell::RefCell;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::verbosity::Look;
use crate::error::{Error, Result, hidden, printable};

thread_local! {
    /// What this thread says on standard output and standard error, where that is kept and not written.
    static KEPT: RefCell<Option<[String; 2]>> = const { RefCell::new(None) };
}

/// Runs something on this thread and keeps what it says on standard output and standard error.
pub(super) fn kept<T>(run: impl FnOnce() -> T) -> (T, [String; 2]) {
    KEPT.set(Some(Default::default()));
    let made = run();
    (made, KEPT.take().unwrap_or_default())
}

/// Whether `text` was kept, as what stands at `place` of [`KEPT`].
fn keep(place: usize, text: &str) -> bool {
    KEPT.with_borrow_mut(|kept| kept.as_mut().map(|kept| kept[place].push_str(text)).is_some())
}

/// Help, the version, or what is wrong with the command line.
pub(super) fn show_usage(error: &clap::Error) {
    if !keep(usize::from(error.use_stderr()), &error.render().to_string()) {
        // Who has closed the stream wants none of it.
        error.print().ok();
    }
}

/// The first failure to write what was asked for.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// Writes to standard output.
pub(super) fn say(text: Arguments<'_>) {
    say_raw(&printable(&text.to_string()));
}

fn say_raw(text: &str) {
    if keep(0, text) {
        return;
    }
    let mut lost = LOST.lock().unwrap_or_else(PoisonError::into_inner);
    if lost.is_none()
        && let Err(error) = io::stdout().lock().write_all(text.as_bytes())
    {
        *lost = Some(error);
    }
}

/// Writes to standard error.
pub(super) fn tell(text: Arguments<'_>) {
    tell_raw(&printable(&text.to_string()));
}

fn tell_raw(text: &str) {
    if !keep(1, text) {
        io::stderr().lock().write_all(text.as_bytes()).ok();
    }
}

/// Writes a line to standard output whose pieces look differently where colours are shown.
pub(super) fn say_line(pieces: &[(Look, &str)]) {
    // What is said goes out as it is: only the colours may hold what moves a cursor.
    say_raw(&painted(pieces, |style| style));
}

/// The same to standard error.
pub(super) fn tell_line(pieces: &[(Look, &str)]) {
    tell_raw(&painted(pieces, console::Style::for_stderr));
}

fn painted(pieces: &[(Look, &str)], of: impl Fn(console::Style) -> console::Style) -> String {
    let shown = |(look, text): &(Look, &str)| of(look.style()).apply_to(printable(text)).to_string();
    pieces.iter().map(shown).collect::<String>() + "\n"
}

/// Tells an error.
pub(super) fn tell_error(error: &Error) {
    let text = error.to_string();
    for (place, line) in text.lines().enumerate() {
        // `  where:    …`
        let label = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')).and_then(|rest| rest.find(':'));
        match (place, label) {
            (0, _) => tell_line(&[(Look::Bad, "error:"), (Look::Plain, " "), (Look::Plain, line)]),
            (_, Some(end)) => {
                let (label, rest) = line.split_at(end + 3);
                tell_line(&[(Look::Label, label), (Look::Plain, rest)]);
            }
            _ => tell_line(&[(Look::Plain, line)]),
        }
    }
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

/// Writes a value to standard output as JSON. What a terminal must not see is escaped as JSON has it, so that the text is the
/// same value wherever it is read.
///
/// # Errors
/// Exit code 4: it has no JSON form.
pub(super) fn say_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::job("the answer has no JSON form").found(error.to_string()))?;
    // Line breaks of the layout are all that it has of these outside its strings.
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match hidden(c) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| safe.push_str(&format!("\\u{unit:04x}"))),
            false => safe.push(c),
        }
    }
    say(format_args!("{safe}\n"));
    Ok(())
}

/// How many columns a table may take: those of the terminal, or any number where standard output is none.
pub(super) fn width() -> Option<usize> {
    let (_, columns) = console::Term::stdout().size_checked()?;
    Some(usize::from(columns))
}

//! Output to stdout and stderr that survives write errors, and formatting of quantities.
//!
//! The macros in the standard library panic if a write fails. Here, a failed write never stops a run. Output to a
//! closed pipe (`| head`) is discarded, and any other error on stdout, such as a full disk, is reported when the
//! command ends. Control characters in names and paths are escaped, because they could alter the state of the terminal.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use clap::{Args, ColorChoice};
use console::Style;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result, is_hidden, printable};

thread_local! {
    /// Captured stdout and stderr of this thread; `None` while its output is not captured.
    static CAPTURED: RefCell<Option<[String; 2]>> = const { RefCell::new(None) };
}

/// Runs a closure on this thread and captures its stdout and stderr.
pub(super) fn capture<T>(run: impl FnOnce() -> T) -> (T, [String; 2]) {
    CAPTURED.set(Some(Default::default()));
    let outcome = run();
    (outcome, CAPTURED.take().unwrap_or_default())
}

/// Appends `text` to the captured stdout (`position` 0) or stderr (1). Returns false if the output of this thread is
/// not captured.
fn append_captured(position: usize, text: &str) -> bool {
    CAPTURED.with_borrow_mut(|captured| captured.as_mut().map(|captured| captured[position].push_str(text)).is_some())
}

/// Prints help, the version, or a command-line error.
pub(super) fn print_usage(error: &clap::Error) {
    if !append_captured(usize::from(error.use_stderr()), &error.render().to_string()) {
        // Ignore errors, because the reader may have closed the pipe.
        error.print().ok();
    }
}

/// Error from the first failed write to stdout. Later output is discarded.
static WRITE_ERROR: Mutex<Option<io::Error>> = Mutex::new(None);

/// Writes text to stdout, with control characters escaped.
pub(super) fn print(text: Arguments<'_>) {
    print_raw(&printable(&text.to_string()));
}

fn print_raw(text: &str) {
    if append_captured(0, text) {
        return;
    }
    let mut lost = WRITE_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
    if lost.is_none()
        && let Err(error) = io::stdout().lock().write_all(text.as_bytes())
    {
        *lost = Some(error);
    }
}

/// Writes text to stderr, with control characters escaped.
pub(super) fn eprint(text: Arguments<'_>) {
    eprint_raw(&printable(&text.to_string()));
}

fn eprint_raw(text: &str) {
    if !append_captured(1, text) {
        io::stderr().lock().write_all(text.as_bytes()).ok();
    }
}

/// Writes a line of styled pieces to stdout.
pub(super) fn print_line(pieces: &[(TextStyle, &str)]) {
    // `style_text` escapes the pieces, so the only remaining escape sequences are those of the styles.
    print_raw(&style_text(pieces, |style| style));
}

/// Writes a line of styled pieces to stderr.
pub(super) fn eprint_line(pieces: &[(TextStyle, &str)]) {
    eprint_raw(&style_text(pieces, console::Style::for_stderr));
}

fn style_text(pieces: &[(TextStyle, &str)], styled: impl Fn(console::Style) -> console::Style) -> String {
    pieces.iter().map(|(look, text)| styled(look.style()).apply_to(printable(text)).to_string()).collect::<String>()
        + "\n"
}

/// Prints an error with highlighted labels.
pub(super) fn eprint_error(error: &Error) {
    let text = error.to_string();
    for (index, line) in text.lines().enumerate() {
        // Label lines look like `  where:    …`.
        let label = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')).and_then(|rest| rest.find(':'));
        match (index, label) {
            (0, _) => eprint_line(&[(TextStyle::Bad, "error:"), (TextStyle::Plain, " "), (TextStyle::Plain, line)]),
            (_, Some(end)) => {
                let (label, rest) = line.split_at(end + 3);
                eprint_line(&[(TextStyle::Label, label), (TextStyle::Plain, rest)]);
            }
            _ => eprint_line(&[(TextStyle::Plain, line)]),
        }
    }
}

/// Flushes stdout and reports whether output was lost.
///
/// # Errors
/// Fails with exit code 3 if writing to stdout failed for any reason other than a closed pipe.
pub(super) fn finish_stdout() -> Result<()> {
    let mut lost = WRITE_ERROR.lock().unwrap_or_else(PoisonError::into_inner);
    let flushed = io::stdout().lock().flush().err();
    match lost.take().or(flushed) {
        Some(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::missing("cannot write to standard output").found(error.to_string()))
        }
        _ => Ok(()),
    }
}

/// Writes a value to stdout as JSON. Characters that must not reach a terminal are JSON-escaped, which preserves the
/// value.
///
/// # Errors
/// Fails with exit code 4 if the value cannot be serialized as JSON.
pub(super) fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::job("cannot write the output as JSON").found(error.to_string()))?;
    // The only control characters outside strings are line breaks.
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match is_hidden(c) {
            true => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| safe.push_str(&format!("\\u{unit:04x}"))),
            false => safe.push(c),
        }
    }
    print(format_args!("{safe}\n"));
    Ok(())
}

/// Returns the width of the terminal in characters, or `None` if stdout is not a terminal.
pub(super) fn width() -> Option<usize> {
    let (_, columns) = console::Term::stdout().size_checked()?;
    Some(usize::from(columns))
}

/// Formats a JSON value. Strings are not quoted.
pub(super) fn format_json_value(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub(super) fn format_bytes(bytes: u64) -> String {
    format_scaled(bytes as f64, "B")
}

pub(super) fn format_flops(flops: f64) -> String {
    format_scaled(flops, "FLOP")
}

fn format_scaled(value: f64, unit: &str) -> String {
    let (divisor, prefix) = match value {
        v if v >= 1e15 => (1e15, "P"),
        v if v >= 1e12 => (1e12, "T"),
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "k"),
        _ => return format!("{value:.0} {unit}"),
    };
    let value = value / divisor;
    let decimals = usize::from(value < 100.0);
    format!("{value:.decimals$} {prefix}{unit}")
}

/// Formats a duration as `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min` or `3 d 4 h`.
pub(super) fn format_seconds(seconds: f64) -> String {
    let rounded = seconds.round().max(0.0) as u64;
    match rounded {
        _ if seconds < 9.95 => format!("{seconds:.1} s"),
        0..60 => format!("{rounded} s"),
        60..3600 => format!("{} min {} s", rounded / 60, rounded % 60),
        3600..86_400 => format!("{} h {} min", rounded / 3600, rounded % 3600 / 60),
        _ => format!("{} d {} h", rounded / 86_400, rounded % 86_400 / 3600),
    }
}

/// Aligns rows in columns. The first row is the header. The columns with indices in `right_aligned` are right-aligned.
pub(super) fn format_columns(rows: &[Vec<String>], right_aligned: &[usize]) -> String {
    let widths = column_widths(rows);
    let mut text = String::new();
    for row in rows {
        let cells =
            row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match right_aligned.contains(&column) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Returns the width of each column in characters.
fn column_widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = 0..rows.first().map_or(0, Vec::len);
    columns.map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect()
}

/// Minimum width of a shortened column, in characters.
const MIN_COLUMN_WIDTH: usize = 16;

/// Elides the middles of cells, widest column first, until the rows fit `width` characters. Columns in `numeric` and
/// columns narrower than [`MIN_COLUMN_WIDTH`] are never shortened.
pub(super) fn shorten_columns(mut rows: Vec<Vec<String>>, numeric: &[usize], width: Option<usize>) -> Vec<Vec<String>> {
    let Some(width) = width else { return rows };
    let count = rows.first().map_or(0, Vec::len);
    loop {
        let widths = column_widths(&rows);
        let overflow = (widths.iter().sum::<usize>() + 2 * count.saturating_sub(1)).saturating_sub(width);
        let texts = (0..count).filter(|column| !numeric.contains(column) && widths[*column] > MIN_COLUMN_WIDTH);
        let Some(widest) = texts.max_by_key(|column| widths[*column]).filter(|_| overflow > 0) else { return rows };
        // Shrink the widest column no further than the width of the next widest one, so that several columns share the
        // reduction.
        let next =
            (0..count).filter(|column| *column != widest && !numeric.contains(column)).map(|column| widths[column]);
        let next = next.max().unwrap_or(0).max(MIN_COLUMN_WIDTH).min(widths[widest] - 1);
        let room = next.max(widths[widest].saturating_sub(overflow));
        for row in &mut rows {
            row[widest] = shorten_in_middle(&row[widest], room);
        }
    }
}

/// Shortens a string to at most `max_chars` characters by eliding its middle.
fn shorten_in_middle(text: &str, max_chars: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= max_chars {
        return text.to_owned();
    }
    let end = max_chars.saturating_sub(1) / 2;
    let start = max_chars.saturating_sub(1) - end;
    letters[..start].iter().chain(&['…']).chain(&letters[letters.len() - end..]).collect()
}

/// Global options for the output of commands.
#[derive(Args)]
pub(super) struct OutputArgs {
    /// Print the result or the error as JSON.
    ///
    /// `ghostlab schema output` prints the schema.
    #[arg(long, global = true)]
    json: bool,
    /// Print only results and errors.
    ///
    /// Suppresses progress and notes.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Print more detail.
    ///
    /// Shows the store, files, models and engine in use, why results must be recomputed, and every value as soon as it
    /// is available.
    #[arg(short, long, global = true)]
    verbose: bool,
    /// When to use colors.
    ///
    /// `auto` uses colors on a terminal unless NO_COLOR is set, CLICOLOR is 0 or TERM is dumb. Elsewhere it uses them
    /// if CLICOLOR_FORCE is set.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
}

/// Whether `--json` was given. Set once after the arguments are parsed, like the other options below.
static JSON: AtomicBool = AtomicBool::new(false);
/// Whether `-q` was given.
static QUIET: AtomicBool = AtomicBool::new(false);
/// Whether `-v` was given.
static VERBOSE: AtomicBool = AtomicBool::new(false);

pub(super) fn is_json() -> bool {
    JSON.load(Relaxed)
}

/// Returns whether progress and notes are printed, which `-q` disables.
pub(super) fn shows_notes() -> bool {
    !QUIET.load(Relaxed)
}

pub(super) fn shows_details() -> bool {
    VERBOSE.load(Relaxed)
}

impl OutputArgs {
    pub(super) fn apply(&self) {
        JSON.store(self.json, Relaxed);
        QUIET.store(self.quiet, Relaxed);
        VERBOSE.store(self.verbose, Relaxed);
        let [stdout, stderr] = [io::stdout().is_terminal(), io::stderr().is_terminal()]
            .map(|terminal| use_colors(self.color, |name: &str| std::env::var_os(name), terminal));
        console::set_colors_enabled(stdout);
        console::set_colors_enabled_stderr(stderr);
    }
}

/// Returns whether to use colors, following <https://no-color.org> and <https://bixense.com/clicolors>. `--color` takes
/// precedence, followed by NO_COLOR, CLICOLOR_FORCE, and CLICOLOR with TERM.
fn use_colors(when: ColorChoice, variable: impl Fn(&str) -> Option<OsString>, terminal: bool) -> bool {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    match when {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto if set("NO_COLOR").is_some() => false,
        ColorChoice::Auto if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
        ColorChoice::Auto => {
            let off = set("CLICOLOR").is_some_and(|value| value == "0") || set("TERM").is_some_and(|set| set == "dumb");
            terminal && !off
        }
    }
}

/// Finds the value of `--color` before the arguments are parsed, because it also applies to help and usage errors.
pub(super) fn color_choice(words: impl Iterator<Item = OsString>) -> ColorChoice {
    let mut words = words.take_while(|word| word != "--").peekable();
    while let Some(word) = words.next() {
        let value = match word.to_str() {
            Some("--color") => words.peek().cloned(),
            Some(text) => text.strip_prefix("--color=").map(OsString::from),
            None => None,
        };
        match value.as_deref().and_then(OsStr::to_str) {
            Some("always") => return ColorChoice::Always,
            Some("never") => return ColorChoice::Never,
            _ => {}
        }
    }
    ColorChoice::Auto
}

/// Style of a piece of text.
#[derive(Clone, Copy)]
pub(super) enum TextStyle {
    Plain,
    Good,
    Doubtful,
    Bad,
    Label,
}

impl TextStyle {
    pub(super) fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Good => Style::new().green(),
            Self::Doubtful => Style::new().yellow(),
            Self::Bad => Style::new().red().bold(),
            Self::Label => Style::new().cyan(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_truncated_in_the_middle() {
        let long = {
            vec![
                vec!["condition".to_owned(), "A".to_owned()],
                vec!["tiny-llama 4/16 llm-streamline linearpatch-rotate c4".to_owned(), "12345.6789".to_owned()],
            ]
        };
        let shown = shorten_columns(long.clone(), &[1], Some(40));
        assert_eq!(shown[1], ["tiny-llama 4/1…tch-rotate c4".to_owned(), "12345.6789".to_owned()]);
        assert_eq!(shorten_columns(long.clone(), &[1], None), long);
        assert_eq!(shorten_columns(long.clone(), &[1], Some(80)), long);
        assert_eq!(shorten_columns(long, &[1], Some(5))[1][0].chars().count(), MIN_COLUMN_WIDTH);
    }

    #[test]
    fn quantities_are_shown_in_a_suitable_unit() {
        assert_eq!(format_bytes(0), "0 B");
        assert_eq!(format_bytes(1_500), "1.5 kB");
        assert_eq!(format_bytes(250_000_000), "250 MB");
        assert_eq!(format_flops(2.34e12), "2.3 TFLOP");
        for (value, text) in
            [(0.04, "0.0 s"), (12.4, "12 s"), (200.0, "3 min 20 s"), (7_500.0, "2 h 5 min"), (273_600.0, "3 d 4 h")]
        {
            assert_eq!(format_seconds(value), text);
        }
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "number"], ["bcd", "7"]].map(|row| row.map(str::to_string).to_vec());
        assert_eq!(format_columns(&rows, &[1]), "a    number\nbcd       7\n");
    }

    #[test]
    fn color_option_overrides_variables_and_terminal() {
        for (set, on_terminal, without_terminal) in [
            (&[][..], true, false),
            (&[("NO_COLOR", "1")], false, false),
            (&[("NO_COLOR", "")], true, false),
            (&[("CLICOLOR", "0")], false, false),
            (&[("TERM", "dumb")], false, false),
            (&[("CLICOLOR_FORCE", "1")], true, true),
            (&[("CLICOLOR_FORCE", "0")], true, false),
            (&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false, false),
        ] {
            assert_eq!(
                [is_colored(ColorChoice::Auto, set, true), is_colored(ColorChoice::Auto, set, false)],
                [on_terminal, without_terminal],
                "{set:?}"
            );
            assert!(
                is_colored(ColorChoice::Always, set, false) && !is_colored(ColorChoice::Never, set, true),
                "{set:?}"
            );
        }
    }

    #[test]
    fn color_option_is_found_before_parsing_arguments() {
        assert_eq!(parse_color(&["ghostlab", "--color", "never", "--help"]), ColorChoice::Never);
        assert_eq!(parse_color(&["ghostlab", "plan", "--color=always"]), ColorChoice::Always);
        assert_eq!(parse_color(&["ghostlab", "plan", "--", "--color=always"]), ColorChoice::Auto);
        assert_eq!(parse_color(&["ghostlab", "--color"]), ColorChoice::Auto);
    }

    fn parse_color(words: &[&str]) -> ColorChoice {
        color_choice(words.iter().map(OsString::from))
    }

    fn is_colored(when: ColorChoice, set: &[(&str, &str)], terminal: bool) -> bool {
        use_colors(
            when,
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value)),
            terminal,
        )
    }
}

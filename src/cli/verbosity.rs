//! How much is said beside the results, and whether in colour: `-q`, `-v`, `--color`.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use clap::{Args, ColorChoice, ValueEnum};
use console::Style;

#[derive(Args)]
pub(super) struct Verbosity {
    /// Say nothing but results (on standard output) and errors, among them cells that fail: no progress and no notes.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Say more of what is done and why: which store, files, models and engine are used and how they were found, why what
    /// is not stored has to be made, and every value as it comes.
    #[arg(short, long, global = true)]
    verbose: bool,
    /// Colours: `auto` shows them on a terminal, unless NO_COLOR is set, CLICOLOR is 0 or TERM is dumb, and elsewhere where
    /// CLICOLOR_FORCE is set. No meaning is in a colour alone.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = When::Auto)]
    color: When,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum When {
    Auto,
    Always,
    Never,
}

const QUIET: u8 = 0;
const PLAIN: u8 = 1;
const VERBOSE: u8 = 2;

/// The arguments are read once, and everything that speaks asks here.
static LEVEL: AtomicU8 = AtomicU8::new(PLAIN);

/// Whether progress and notes are wanted.
pub(super) fn notes() -> bool {
    LEVEL.load(Relaxed) >= PLAIN
}

/// Whether it is wanted to be known what is done, and why.
pub(super) fn details() -> bool {
    LEVEL.load(Relaxed) >= VERBOSE
}

impl Verbosity {
    pub(super) fn set(&self) {
        let level = match (self.quiet, self.verbose) {
            (true, _) => QUIET,
            (_, true) => VERBOSE,
            _ => PLAIN,
        };
        LEVEL.store(level, Relaxed);
        let variable = |name: &str| std::env::var_os(name);
        console::set_colors_enabled(coloured(self.color, variable, std::io::stdout().is_terminal()));
        console::set_colors_enabled_stderr(coloured(self.color, variable, std::io::stderr().is_terminal()));
    }
}

/// By <https://no-color.org> and <https://bixense.com/clicolors>: what is asked for on the command line counts first, then
/// NO_COLOR, CLICOLOR_FORCE, and CLICOLOR.
fn coloured(when: When, variable: impl Fn(&str) -> Option<OsString>, terminal: bool) -> bool {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto if set("NO_COLOR").is_some() => false,
        When::Auto if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
        When::Auto => {
            let off = set("CLICOLOR").is_some_and(|value| value == "0") || set("TERM").is_some_and(|of| of == "dumb");
            terminal && !off
        }
    }
}

/// What `--color` says for help and for mistakes in the arguments, which are shown before the arguments are read.
pub(super) fn of_help(words: impl Iterator<Item = OsString>) -> ColorChoice {
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

/// How a piece of a line looks where colours are shown.
#[derive(Clone, Copy)]
pub(super) enum Look {
    Plain,
    Good,
    Doubtful,
    Bad,
    Label,
}

impl Look {
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
    fn what_is_asked_for_counts_before_the_variables_and_these_before_the_terminal() {
        let shown = |when, set: &[(&str, &str)], terminal| {
            let of = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
            coloured(when, of, terminal)
        };
        for (set, on_terminal, elsewhere) in [
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
                [shown(When::Auto, set, true), shown(When::Auto, set, false)],
                [on_terminal, elsewhere],
                "{set:?}"
            );
            assert!(shown(When::Always, set, false) && !shown(When::Never, set, true), "{set:?}");
        }
    }

    #[test]
    fn colours_of_help_are_known_before_the_arguments_are_read() {
        let of = |words: &[&str]| of_help(words.iter().map(OsString::from));
        assert_eq!(of(&["ghostlab", "--color", "never", "--help"]), ColorChoice::Never);
        assert_eq!(of(&["ghostlab", "plan", "--color=always"]), ColorChoice::Always);
        assert_eq!(of(&["ghostlab", "plan", "--", "--color=always"]), ColorChoice::Auto);
        assert_eq!(of(&["ghostlab", "--color"]), ColorChoice::Auto);
    }
}

//! `ghostlab completions SHELL`, and the answers to a shell that completes a line.
//!
//! clap's engine knows commands and options, and asks `candidates` for names. For zsh and fish its own adapters speak with
//! the shell; bash has one here, because names of cells hold what bash cuts words at (`:`, `=`, `@`) and what it would read
//! as its own (`(`).

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::CompleteEnv;
use clap_complete::engine;
use clap_complete::env::{EnvCompleter, Fish, Shells, Zsh};

use super::answer::done::Completions;
use super::answer::{self, Answer};
use super::{candidates, out};
use crate::error::{Error, Result};

#[derive(Args)]
pub(super) struct Arguments {
    /// The shell that completes.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// The variable by which a shell asks, and its values.
const VARIABLE: &str = "COMPLETE";
const PROGRAM: &str = "ghostlab";
/// Variables that bash passes: the line up to the cursor, and the characters at which it splits words.
const LINE: &str = "_GHOSTLAB_LINE";
const BREAKS: &str = "_GHOSTLAB_BREAKS";

/// In the order of [`Shell`].
const SHELLS: [&dyn EnvCompleter; 3] = [&Bash, &Zsh, &Fish];

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let shell = SHELLS[arguments.shell as usize];
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, PROGRAM, PROGRAM, &completer(), &mut script)
        .map_err(|error| Error::job("the script cannot be made").found(error.to_string()))?;
    let script = Completions { script: String::from_utf8_lossy(&script).into_owned() };
    answer::show(script, Answer::Completions, |of| out::say(format_args!("{}", of.script)))
}

/// Returns how the shell finds the program: by name if that works, else by path.
fn completer() -> String {
    let own = std::env::current_exe().and_then(std::fs::canonicalize).unwrap_or_else(|_| PathBuf::from(PROGRAM));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let first = std::env::split_paths(&path).map(|folder| folder.join(PROGRAM)).find(|file| file.is_file());
    match first.and_then(|file| std::fs::canonicalize(file).ok()) {
        Some(found) if found == own => PROGRAM.to_owned(),
        _ => own.display().to_string(),
    }
}

/// Answers a completion request of a shell, if there is one. The answer contains names only; on errors it is empty.
pub(super) fn asked() -> bool {
    // Scripts that were made for another shell by hand name it so; without words to complete they ask for the script.
    let mut behind = std::env::args_os().skip_while(|word| word != "--").skip(1).peekable();
    let shell = std::env::var_os(VARIABLE).filter(|shell| !shell.is_empty());
    let Some(shell) = shell.filter(|_| behind.peek().is_some()) else { return false };
    let (words, current) = line_words(Path::new(&shell).file_stem().unwrap_or_default(), behind.collect());
    candidates::note_line(words.clone(), current);
    let completed = CompleteEnv::with_factory(super::Arguments::command)
        .var(VARIABLE)
        .shells(Shells(&SHELLS))
        .try_complete([PROGRAM.into(), "--".into()].into_iter().chain(words), std::env::current_dir().ok().as_deref());
    completed.unwrap_or(true)
}

/// Converts what a shell passes to the program's words, and the index of the one under the cursor.
fn line_words(shell: &OsStr, handed: Vec<OsString>) -> (Vec<OsString>, usize) {
    let plain = |word: LineWord| OsString::from(word.text);
    let words: Vec<OsString> = match shell.to_str() {
        Some("bash") => split(&line()).0.into_iter().map(plain).collect(),
        // Words as typed, with quotes and backslashes.
        Some("zsh") => {
            let read = |word: OsString| match word.to_str() {
                Some(text) => split(text).0.pop().map_or_else(OsString::new, plain),
                None => word,
            };
            handed.into_iter().map(read).collect()
        }
        _ => handed,
    };
    let told = std::env::var("_CLAP_COMPLETE_INDEX").ok().filter(|_| shell == "zsh");
    let current = told.and_then(|index| index.parse().ok()).unwrap_or(words.len().saturating_sub(1));
    (words, current)
}

fn line() -> String {
    std::env::var(LINE).unwrap_or_default()
}

/// bash from 3.2 on.
struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        "bash"
    }

    fn is(&self, name: &str) -> bool {
        name == "bash"
    }

    fn write_registration(
        &self,
        variable: &str,
        name: &str,
        bin: &str,
        completer: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let completer = escaped(completer, None);
        write!(
            out,
            r#"_{name}() {{
    local reply
    COMPREPLY=()
    while IFS= read -r reply; do
        COMPREPLY+=("$reply")
    done < <({variable}=bash {LINE}="${{COMP_LINE:0:COMP_POINT}}" {BREAKS}="$COMP_WORDBREAKS" {completer} -- {bin} 2> /dev/null)
    if [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == */ ]]; then
        compopt -o nospace 2> /dev/null
    fi
}}
complete -o bashdefault -o nosort -F _{name} {bin} 2> /dev/null || complete -o bashdefault -F _{name} {bin}
"#
        )
    }

    fn write_complete(
        &self,
        command: &mut clap::Command,
        words: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let current = words.len().saturating_sub(1);
        // The part of the word before the position from which bash replaces it.
        let breaks = std::env::var(BREAKS).unwrap_or_default();
        let (mut line, quote) = split(&line());
        let kept = line.pop().map_or(0, |word| word.bare_up_to(&breaks));
        for candidate in engine::complete(command, words, current, folder)? {
            let name = candidate.get_value().to_string_lossy();
            let rest: String = name.chars().skip(kept).collect();
            writeln!(out, "{}", escaped(&rest, quote))?;
        }
        Ok(())
    }
}

/// A word of a line, without its quotes and backslashes.
#[derive(Debug, Default, PartialEq)]
struct LineWord {
    text: String,
    /// For each character, whether it was typed without quote and backslash.
    bare: Vec<bool>,
}

impl LineWord {
    /// Counts the characters up to the last one that bash splits at.
    fn bare_up_to(&self, breaks: &str) -> usize {
        let cut = |(c, bare): (char, &bool)| *bare && breaks.contains(c);
        let last = self.text.chars().zip(&self.bare).map(cut).enumerate().filter(|(_, cuts)| *cuts).last();
        last.map_or(0, |(place, _)| place + 1)
    }
}

/// Splits a line up to the cursor into words, the last under the cursor, and the open quote.
fn split(line: &str) -> (Vec<LineWord>, Option<char>) {
    let mut words = vec![LineWord::default()];
    let mut quote = None;
    let mut backslash = false;
    let mut between = true;
    for c in line.chars() {
        let mut put = |bare: bool| {
            if let Some(word) = words.last_mut() {
                word.text.push(c);
                word.bare.push(bare);
            }
        };
        match (quote, c) {
            _ if backslash => {
                put(false);
                backslash = false;
            }
            (None | Some('"'), '\\') => backslash = true,
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => put(false),
            (None, '\'' | '"') => quote = Some(c),
            (None, ' ' | '\t' | '\n') => {
                if !between {
                    words.push(LineWord::default());
                }
                between = true;
                continue;
            }
            (None, _) => put(true),
        }
        between = false;
    }
    (words, quote)
}

/// Escapes a name for a shell, inside an open quote or without one.
fn escaped(name: &str, quote: Option<char>) -> String {
    let means_itself = |c: char| match quote {
        None => c.is_alphanumeric() || "/_-.,+%~".contains(c),
        Some('"') => !"\"\\$`".contains(c),
        Some(_) => true,
    };
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        if !means_itself(c) {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_as_the_shell_cuts_it() {
        let words = |line: &str| split(line).0.into_iter().map(|word| word.text).collect::<Vec<_>>();
        assert_eq!(words("ghostlab explain  a.yaml "), ["ghostlab", "explain", "a.yaml", ""]);
        assert_eq!(words(r#"g 'a b' "c \"d" e\ f/g\(h"#), ["g", "a b", "c \"d", "e f/g(h"]);
        assert_eq!(words(""), [""]);
        assert_eq!(split("g 'a b").1, Some('\''));
    }

    #[test]
    fn bash_replaces_what_stands_behind_the_last_bare_break() {
        let kept = |line: &str| split(line).0.pop().unwrap().bare_up_to(" :=@(");
        assert_eq!(kept("g tiny/c4:12"), "tiny/c4:".len());
        assert_eq!(kept(r"g tiny/c4\:12"), 0);
        assert_eq!(kept("g 'tiny/c4:12"), 0);
        assert_eq!(escaped("a(b=c)/c4:1x2@0", None), r"a\(b\=c\)/c4\:1x2\@0");
        assert_eq!(escaped("a(b=c)$", Some('"')), r"a(b=c)\$");
    }
}

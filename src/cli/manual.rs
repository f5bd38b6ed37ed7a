//! `ghostlab man`, `completions` and `schema`: manual pages, shell completions and JSON schemas.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;

use super::answer::write_commands::{CompletionsAnswer, ManAnswer, SchemaAnswer, display_path};
use super::answer::{self, Answer};
use super::{help, terminal};
use crate::error::{Error, Result};
use crate::files::output::OutputFolder;
use crate::grid;

#[derive(Args)]
pub(super) struct Arguments {
    /// Output folder, e.g. `~/.local/share/man/man1`; earlier pages there are replaced.
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let folder = &arguments.to;
    let mut command = help::build_command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    render_pages(&command, &mut pages)?;
    OutputFolder::new(folder, "pages").put(&pages)?;
    answer::print_answer(ManAnswer { folder: display_path(folder), pages: pages.len() }, Answer::Man, |answer| {
        println!(
            "wrote {} pages to {} (view the first with `man {}`)",
            answer.pages,
            folder.display(),
            folder.join("ghostlab.1").display()
        );
    })
}

/// Renders the manual pages for a command and its subcommands, each with its file name.
fn render_pages(command: &clap::Command, pages: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let page = Man::new(command.clone()).manual("ghostlab");
    let mut text = Vec::new();
    page.render(&mut text).map_err(|error| Error::job("cannot write a manual page").found(error.to_string()))?;
    pages.push((page.get_filename(), text));
    command.get_subcommands().try_for_each(|inner| render_pages(inner, pages))
}

#[derive(Args)]
pub(super) struct CompletionsArguments {
    /// Shell to generate completions for.
    #[arg(value_parser = PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<Shell>()))]
    shell: Shell,
}

pub(super) fn run_completions(arguments: &CompletionsArguments) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut help::build_command(), "ghostlab", &mut script);
    let script = CompletionsAnswer { script: String::from_utf8_lossy(&script).into_owned() };
    answer::print_answer(script, Answer::Completions, |answer| terminal::print(format_args!("{}", answer.script)))
}

#[derive(Args)]
pub(super) struct SchemaArguments {
    /// Schema to print: `grid` for grid files, or `output` for the output of `--json`.
    #[arg(value_enum, default_value_t = SchemaKind::Grid)]
    subject: SchemaKind,
}

#[derive(Clone, Copy, ValueEnum)]
enum SchemaKind {
    Grid,
    Output,
}

pub(super) fn run_schema(arguments: &SchemaArguments) -> Result<ExitCode> {
    let schema = match arguments.subject {
        SchemaKind::Grid => grid::json_schema(),
        SchemaKind::Output => answer::output_schema(),
    };
    match answer::is_json() {
        true => answer::print_answer(SchemaAnswer { schema }, Answer::Schema, |_| {}),
        false => terminal::print_json(&schema).map(|()| ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists the commands and options that have no help text.
    fn list_undocumented(command: &clap::Command, path: &str) -> Vec<String> {
        let path = format!("{path} {}", command.get_name());
        let undocumented =
            command.get_about().is_none_or(|about| about.to_string().trim().is_empty()).then(|| path.clone());
        let arguments = command
            .get_arguments()
            .filter(|argument| argument.get_help().is_none_or(|help| help.to_string().trim().is_empty()))
            .map(|argument| format!("{path} {}", argument.get_id()));
        let inner = command.get_subcommands().flat_map(|inner| list_undocumented(inner, &path));
        undocumented.into_iter().chain(arguments).chain(inner).collect()
    }

    /// Collects arguments of subcommands whose ID or long name equals that of a global argument.
    fn find_shadowed_arguments(command: &clap::Command, all: &[&clap::Arg], found: &mut Vec<String>) {
        for inner in command.get_subcommands() {
            let inner_arguments =
                inner.get_arguments().filter(|argument| argument.get_long().is_some() || argument.is_positional());
            let shadowed = inner_arguments.filter(|argument| all.iter().any(|known| is_same_argument(argument, known)));
            found.extend(shadowed.map(|argument| format!("{} {}", inner.get_name(), argument.get_id())));
            find_shadowed_arguments(inner, all, found);
        }
    }

    fn is_same_argument(argument: &clap::Arg, other: &clap::Arg) -> bool {
        argument.get_id() == other.get_id() || argument.get_long() == other.get_long()
    }

    #[test]
    fn no_command_shadows_a_global_argument() {
        let command = help::build_command();
        let all: Vec<&clap::Arg> = command.get_arguments().filter(|argument| argument.is_global_set()).collect();
        assert!(all.len() >= 4);
        let mut found = Vec::new();
        find_shadowed_arguments(&command, &all, &mut found);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn every_command_and_option_is_documented() {
        let mut command = help::build_command();
        command.build();
        assert_eq!(list_undocumented(&command, ""), Vec::<String>::new());
    }
}

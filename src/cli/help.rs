//! Top-level command, whose help lists the subcommands in groups.

use std::fmt::Write;

use clap::{Command, CommandFactory};

use super::Arguments;

/// Groups of subcommands in the help, each with its heading.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run", &["init", "plan", "run", "explain", "status", "compare", "verify", "record"]),
    ("Paper", &["reproduce", "audit", "report"]),
    ("Model", &["score", "layers", "search", "export", "fetch", "doctor"]),
    ("Store", &["cache", "store"]),
    ("Cluster", &["worker", "submit", "cancel"]),
    ("Program", &["schema", "completions", "man"]),
];

pub(super) fn build_command() -> Command {
    let command = Arguments::command();
    let template = build_template(&command);
    command.help_template(template)
}

/// Builds the help template, which lists the subcommands by group.
fn build_template(command: &Command) -> String {
    let header = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let width = command.get_subcommands().map(|inner| inner.get_name().len()).max().unwrap_or_default();
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for (heading, names) in GROUPS {
        writeln!(text, "{header}{heading}:{header:#}").ok();
        for inner in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = inner.get_about().map(ToString::to_string).unwrap_or_default();
            writeln!(text, "  {literal}{:width$}{literal:#}  {about}", inner.get_name()).ok();
        }
        text.push('\n');
    }
    text + &format!(
        "{header}Options:{header:#}\n{{options}}\n\n`ghostlab help COMMAND` prints the options of a command.\n"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn help_lists_every_command_once_in_short_lines() {
        let mut command = build_command();
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let arguments = Arguments::command();
        let known: BTreeSet<&str> = arguments.get_subcommands().map(Command::get_name).collect();
        assert_eq!(listed.len(), known.len());
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), known);
        let help = command.render_help().to_string();
        let (commands, _) = help.split_once("Options:").unwrap();
        let lines: Vec<&str> = commands.lines().filter(|line| line.starts_with("  ")).collect();
        assert_eq!(lines.len(), known.len(), "{help}");
        assert!(lines.iter().all(|line| line.len() <= 80), "{help}");
    }
}

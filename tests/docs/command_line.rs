//! Generates docs/cli.md from the help of the program (`just docs`), and checks that it is up to date.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::common::output::stdout;
use crate::common::world::World;

const BEGIN: &str = "<!-- Made by `just docs` from the help of the program. -->\n";
const END: &str = "<!-- Until here. -->\n";

/// Command or argument in a help text.
struct Entry {
    heading: String,
    name: String,
    description: String,
}

/// Reads the commands and arguments in a help text, which precede the options.
fn read_entries(help: &str) -> Vec<Entry> {
    let mut heading = None;
    let mut entries = Vec::new();
    for line in help.lines().take_while(|line| *line != "Options:") {
        if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with(' ')) {
            heading = Some(name.to_owned());
        } else if let (Some(heading), Some((name, description))) = (&heading, line.trim().split_once("  ")) {
            entries.push(Entry {
                heading: heading.clone(),
                name: name.to_owned(),
                description: description.trim().to_owned(),
            });
        }
    }
    entries.retain(|entry| entry.name != "help");
    entries
}

/// Lists the commands of the program by group. A command with subcommands is replaced by them.
fn format_command_list(world: &World) -> String {
    let mut text = String::new();
    let mut last = String::new();
    for Entry { heading, name, description } in read_entries(&stdout(&world.ghostlab(&["-h"]))) {
        if heading != last {
            let _ = write!(text, "\n## {heading}\n\n");
            last = heading;
        }
        let mut inner = read_entries(&stdout(&world.ghostlab(&[name.as_str(), "-h"])));
        inner.retain(|entry| entry.heading == "Commands");
        if inner.is_empty() {
            let _ = writeln!(text, "- `{name}`: {description}.");
        }
        for entry in inner {
            let _ = writeln!(text, "- `{name} {}`: {}.", entry.name, entry.description);
        }
    }
    text
}

#[test]
fn command_reference_matches_the_help() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
    let text = fs::read_to_string(&file).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let list = format_command_list(&World::new());
    assert!(list.lines().count() > 30, "the help lists too few commands: {list}");
    let expected = format!("{before}{BEGIN}{list}\n{END}{after}");
    if std::env::var("GHOSTLAB_DOCS").is_ok_and(|value| value == "write") {
        fs::write(&file, &expected).unwrap();
        return;
    }
    assert!(text == expected, "docs/cli.md is stale: run `just docs` to regenerate it");
}

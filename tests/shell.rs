//! Tests for the shell integration: completion, manual pages, verbosity and colors.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "tests panic on setup errors, and print why they are skipped"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::world::World;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ghostlab");

/// Finds a shell on the PATH. Returns `None` if it is missing, unless it is bash, which is required.
fn find_shell(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    if found.is_none() {
        assert_ne!(name, "bash", "bash is required");
        eprintln!("skipped: {name} is not installed");
    }
    found
}

/// Runs a script in a shell that has `ghostlab` on its PATH, and returns the output.
fn run_script(world: &World, shell: &Path, arguments: &[&str], script: &str) -> String {
    let bin = Path::new(PROGRAM).parent().unwrap();
    let path = std::env::join_paths(
        [bin.to_owned()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let output = Command::new(shell)
        .args(arguments)
        .arg(script)
        .current_dir(world.folder.path())
        .env("PATH", path.unwrap())
        .env("HOME", world.folder.path())
        .env_remove("GHOSTLAB_STORE")
        .env_remove("GHOSTLAB_EXPERIMENTS")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Shell scripts that load the completions and print the candidates for `ghostlab re` and `ghostlab run --dtyp`.
const COMPLETION_SCRIPTS: [(&str, &[&str], &str); 3] = [
    (
        "bash",
        &["--norc", "-c"],
        "source <(ghostlab completions bash); complete -p ghostlab >&2 || exit 1\n\
         COMP_WORDS=(ghostlab re) COMP_CWORD=1; _ghostlab ghostlab re ghostlab; printf '%s\\n' \"${COMPREPLY[@]}\"\n\
         COMP_WORDS=(ghostlab run --dtyp) COMP_CWORD=2; _ghostlab ghostlab --dtyp run; printf '%s\\n' \"${COMPREPLY[@]}\"",
    ),
    (
        "zsh",
        &["-f", "-c"],
        "autoload -Uz compinit; compinit -u -D; source <(ghostlab completions zsh); [[ -n $_comps[ghostlab] ]] || exit 1\n\
         ghostlab completions zsh | grep -oE \"^'(record|report|reproduce):\" | tr -d \"':\"; print -- --dtype",
    ),
    (
        "fish",
        &["--no-config", "-c"],
        "ghostlab completions fish | source; complete -C 'ghostlab re' | cut -f1; complete -C 'ghostlab run --dtyp' | cut -f1",
    ),
];

#[test]
fn shells_complete_commands_and_options() {
    let world = World::new();
    for (name, arguments, script) in COMPLETION_SCRIPTS {
        let Some(shell) = find_shell(name) else { continue };
        let output = run_script(&world, &shell, arguments, script);
        let mut offered: Vec<&str> = output.lines().collect();
        offered.sort_unstable();
        assert_eq!(offered, ["--dtype", "record", "report", "reproduce"], "{name}");
    }
}

#[test]
fn cell_names_are_single_shell_words_and_resolve() {
    let (world, Some(bash)) = (World::new(), find_shell("bash")) else { return };
    // Use two values on each axis so that names contain all possible parts, and a backbone whose name contains a space.
    let axes = [
        ("  tiny: {path: backbone}", "  tiny: {path: backbone}\n  my model: {path: backbone}"),
        ("backbone: [tiny]", "backbone: [tiny, my model]"),
        (
            "criterion: [llm-streamline]",
            "criterion: [{name: llm-streamline, cosine: [channel-series, token]}, {name: explicit, layers: [[0, 1], [1, 2]]}]",
        ),
        ("depth: [1, 2]", "depth: 2"),
        ("[none, linearpatch-diag, linearpatch-rotate, ", "[none, "),
        (
            "{corpus: train, sequences: 8, length: 64}",
            "{corpus: train, sequences: [8, 6], length: 64, operator_sequences: [6, 5], seed: [0, 1]}",
        ),
    ];
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let grid = grid.replace("ghosted]", "{name: ghosted, solver: [normal, svd]}]");
    world.write("grid.yaml", axes.iter().fold(grid, |grid, (from, to)| grid.replace(from, to)));
    let plan = run_script(&world, &bash, &["--norc", "-c"], "ghostlab plan grid.yaml --json");
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let cells = plan["answer"]["grids"][0]["cells_to_run"].as_array().unwrap();
    let names: Vec<&str> = cells.iter().map(|cell| cell["cell"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 2 * (1 + 4 * 3 * 8), "{names:?}");
    // bash must pass the names on unchanged even though they are not quoted.
    let typed = names.iter().map(|name| format!("printf '%s\\n' {name}")).collect::<Vec<_>>().join("\n");
    let arrived = run_script(&world, &bash, &["--norc", "-c"], &typed);
    assert_eq!(arrived.lines().collect::<Vec<_>>(), names);
    for name in names.iter().step_by(17) {
        let explained = run_script(&world, &bash, &["--norc", "-c"], &format!("ghostlab explain grid.yaml {name}"));
        assert_eq!(explained.lines().next(), Some(*name));
    }
}

#[test]
fn manual_pages_name_every_command_and_option() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let output = Command::new(PROGRAM).args(["man", "--to"]).arg(&pages).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut left = vec![Vec::<String>::new()];
    let mut seen = 0;
    while let Some(command) = left.pop() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let name = [&["ghostlab"], &words[..]].concat().join("-");
        let page = std::fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        let text = help_of(&words);
        let plain = page.replace("\\-", "-");
        let (_, described) = plain.split_once(".SH NAME").unwrap();
        let about = described.lines().nth(1).unwrap();
        assert!(about.contains(" - ") && about.len() > name.len() + 10, "{name}: {about}");
        let inner = commands_in(&text);
        for word in &inner {
            assert!(plain.contains(&format!("{name}-{word}(1)")), "{name} does not contain {word}");
        }
        let options: Vec<&str> = text.split_whitespace().filter(|word| word.starts_with("--")).collect();
        for option in options.iter().filter(|word| word[2..].chars().all(|c| c.is_ascii_lowercase() || c == '-')) {
            assert!(plain.contains(option), "{name} does not contain {option}");
        }
        left.extend(inner.into_iter().map(|word| [&command[..], &[word]].concat()));
        seen += 1;
    }
    // The folder also contains the list of generated files.
    let paths = std::fs::read_dir(&pages).unwrap().map(|entry| entry.unwrap().path());
    let written: Vec<_> = paths.filter(|path| path.extension().is_some_and(|extension| extension == "1")).collect();
    assert_eq!(seen, written.len(), "expected one page per command");
    let Ok(groff) = Command::new("groff").arg("--version").output() else {
        return eprintln!("skipped: groff is not installed");
    };
    assert!(groff.status.success());
    for page in &written {
        let output = Command::new("groff").args(["-k", "-ww", "-man", "-Tutf8"]).arg(page).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn help_of(words: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(words).arg("--help").output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the commands listed in a help text. They are indented by two spaces and appear between the usage and the
/// options.
fn commands_in(text: &str) -> Vec<String> {
    let list = text.split_once("Usage:").unwrap().1.split("\nOptions:").next().unwrap().lines().skip(1);
    let names = list.filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next().map(str::to_owned));
    names.filter(|name| name != "help" && name.chars().all(|c| c.is_ascii_lowercase() || c == '-')).collect()
}

#[test]
fn quiet_keeps_results_and_errors_and_verbose_adds_reasons() {
    let world = World::new();
    let (code, loud, log) = run(&world, &["run", "grid.yaml", "-v"]);
    assert_eq!(code, Some(0), "{log}");
    for words in [
        "store: data/store",
        "grid grid: grid.yaml, no profile",
        "backbone tiny: backbone",
        "corpus train: train.txt, rule wikitext2",
        "engine cpu f32 on cpu",
        "to compute  reason",
        "tiny.dense on test@64: ",
        "tiny.dense is complete",
        "wrote ",
    ] {
        assert!(log.contains(words), "`{words}` is not in\n{log}");
    }
    let (code, plain, log) = run(&world, &["run", "grid.yaml"]);
    assert!(code == Some(0) && log.contains("9 of 9 cells cached") && log.contains("wrote "), "{log}");
    assert!(!log.contains("store: ") && !log.contains("is complete"), "{log}");
    let (code, quiet, log) = run(&world, &["-q", "run", "grid.yaml", "--rehash"]);
    assert_eq!((code, log.as_str()), (Some(0), ""));
    assert!(cell_lines(&quiet) == cell_lines(&plain) && quiet.contains("ghosted"), "{quiet}");
    assert!(!cell_lines(&loud).is_empty());
    let (_, _, log) = run(&world, &["run", "grid.yaml", "-v", "--set", "calibration.seed=7", "--set", "depth=1"]);
    assert!(log.contains("seed: 0 → 7"), "{log}");
    // `--quiet` does not suppress errors and failed cells.
    let (code, _, log) = run(&world, &["plan", "gird.yaml", "--quiet"]);
    assert!(code == Some(3) && log.starts_with("error: grid file not found\n  where:    gird.yaml\n"), "{log}");
    world.write(
        "grid.yaml",
        std::fs::read_to_string(world.path("grid.yaml"))
            .unwrap()
            .replace("[llm-streamline]", "[{name: explicit, layers: [0]}]")
            .replace("[1, 2]", "1")
            .replace("ghosted]", "replaceme-ls]"),
    );
    let (code, _, log) = run(&world, &["run", "grid.yaml", "-q"]);
    assert!(code == Some(4) && log.contains("failed: ") && !log.contains("wrote "), "{log}");
    let (code, _, log) = run(&world, &["run", "grid.yaml", "-q", "-v"]);
    assert!(code == Some(2) && log.contains("cannot be used with"), "{log}");
}

fn run(world: &World, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = world.ghostlab(arguments);
    (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn cell_lines(text: &str) -> Vec<String> {
    text.lines().filter(|line| line.contains("tiny")).map(str::to_owned).collect::<Vec<_>>()
}

fn without_colors(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').unwrap().1)
}

#[test]
fn colors_follow_the_option_and_change_no_text() {
    let world = World::new();
    // Outside a checkout, the first command reports where it writes the bundled data. Run one now so that the outputs
    // below are equal.
    run_doctor(&world, &["nosuch"], &[]);
    for arguments in [&[][..], &["nosuch"], &["--help"], &["--nosuch"]] {
        let with = |more: &[&str], set: &[(&str, &str)]| run_doctor(&world, &[arguments, more].concat(), set);
        let plain = with(&[], &[]);
        assert!(!plain.contains('\u{1b}'), "{plain}: colors without a terminal");
        let colors = with(&["--color", "always"], &[]);
        assert!(colors.contains("\u{1b}["), "{colors}");
        assert!(with(&[], &[("CLICOLOR_FORCE", "1")]).contains("\u{1b}["));
        assert!(!with(&[], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]).contains('\u{1b}'));
        assert!(!with(&["--color=never"], &[("CLICOLOR_FORCE", "1")]).contains('\u{1b}'));
        if arguments != ["--help"] {
            assert_eq!(
                without_free_space(&without_colors(&colors)),
                without_free_space(&plain),
                "only colors may differ"
            );
        }
    }
    assert!(
        run_doctor(&world, &["nosuch"], &[]).contains("error: ") && run_doctor(&world, &[], &[]).contains("ok    ")
    );
}

fn run_doctor(world: &World, arguments: &[&str], set: &[(&str, &str)]) -> String {
    let mut command = world.command(&["doctor"]);
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    let output = command.args(arguments).envs(set.iter().copied()).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// Drops the lines on free memory and disk space, which vary between calls.
fn without_free_space(text: &str) -> String {
    text.lines().filter(|line| !line.contains("free")).collect::<Vec<_>>().join("\n")
}

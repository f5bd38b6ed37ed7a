//! The program in a shell: completion, manual pages, verbosity and colours.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "a test panics on setup errors, and says what it skips"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::world::World;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ghostlab");

/// Creates a world whose cell names need corpus and options, and three artifacts.
fn world() -> World {
    let world = World::new();
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write(
        "grid.yaml",
        grid.replace("ghosted]", "{name: ghosted, solver: [normal, svd]}]")
            + "profile: a\nprofiles: {a: {}, b: {depth: 1}}\n",
    );
    std::fs::create_dir(world.path("experiments")).unwrap();
    for name in ["table2", "table3", "figure1"] {
        world.write(&format!("experiments/{name}.yaml"), "artifact: {title: A list, list: methods}\n");
    }
    world
}

/// Returns the program's completions for a bash line.
fn offered(world: &World, line: &str) -> Vec<String> {
    let output = world
        .command(&["--", "ghostlab"])
        .envs([("COMPLETE", "bash"), ("_GHOSTLAB_LINE", line), ("_GHOSTLAB_BREAKS", " \t\n\"'@><=;|&(:")])
        .env_remove("GHOSTLAB_STORE")
        .env_remove("GHOSTLAB_EXPERIMENTS")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{line}");
    assert!(output.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The cell that the tests look for, and a beginning that is no other's.
const CELL: &str = "tiny.streamline-2.ghosted.solver-svd";
const TYPED: &str = "tiny.streamline-2.ghosted.";

#[test]
fn commands_options_and_names_of_all_kinds_are_offered() {
    let world = world();
    let has = |line: &str, names: &[&str]| {
        let offered = offered(&world, line);
        for name in names {
            assert!(offered.iter().any(|of| of == name), "`{name}` is not offered behind `{line}`: {offered:?}");
        }
        offered
    };
    has("ghostlab ", &["run", "plan", "completions", "--quiet"]);
    has("ghostlab re", &["report", "reproduce"]);
    has("ghostlab plan --js", &["--json"]);
    has("ghostlab run --color ", &["auto", "always", "never"]);
    has("ghostlab run --dtype b", &["bf16"]);
    // Grids are files and artifacts, and no other files.
    let grids = has("ghostlab plan ", &["grid.yaml"]);
    assert!(!grids.iter().any(|of| of == "train.txt" || of == "table2"), "a list has no cells: {grids:?}");
    has("ghostlab reproduce ta", &["table2", "table3"]);
    has("ghostlab reproduce table2 f", &["figure1"]);
    has("ghostlab fetch a", &["all"]);
    has("ghostlab plan grid.yaml --profile ", &["a", "b"]);
    // bash replaces the text after the `=`.
    assert_eq!(offered(&world, "ghostlab plan grid.yaml --profile=b"), ["b"]);
    has("ghostlab score ba", &["backbone/"]);
    has("ghostlab score backbone --tasks arc_e", &["arc_easy"]);
    // Cells, as the rest of the line has the grid.
    let cells = has("ghostlab explain grid.yaml ", &["tiny.dense", "tiny.streamline-1.none"]);
    assert_eq!(cells.iter().filter(|of| of.starts_with("tiny.")).count(), 11);
    let fewer = offered(&world, "ghostlab explain grid.yaml --profile b tiny.");
    assert_eq!(fewer.len(), 6, "{fewer:?}");
    let fewer = offered(&world, "ghostlab export grid.yaml --set recovery=none tiny.");
    assert_eq!(fewer.len(), 3, "{fewer:?}");
}

#[test]
fn bash_completion_quotes_special_characters() {
    let world = world();
    world.write("a grid (old): 1.yaml", std::fs::read_to_string(world.path("grid.yaml")).unwrap());
    let quoted = r"a\ grid\ \(old\)\:\ 1.yaml";
    for (typed, rest) in [
        ("a", quoted),
        (r"a\ grid\ \(o", quoted),
        // Typed by hand: bash replaces the text after the last colon.
        (r"a\ grid\ \(old\):", r"\ 1.yaml"),
        ("'a grid (o", "a grid (old): 1.yaml"),
        ("\"a grid (o", "a grid (old): 1.yaml"),
    ] {
        assert_eq!(offered(&world, &format!("ghostlab plan {typed}")), [rest], "{typed}");
    }
    for typed in [TYPED, "'tiny.streamline-2.ghosted.", "\"tiny.streamline-2.ghosted."] {
        assert_eq!(offered(&world, &format!("ghostlab explain grid.yaml {typed}")), [CELL], "{typed}");
    }
}

#[test]
fn completions_of_a_broken_grid_come_from_the_store() {
    let world = world();
    world.runs(&["--set", "depth=2"]);
    let key = world.ghostlab(&["cache", "ls", "--all", "--json"]);
    let listing: serde_json::Value = serde_json::from_slice(&key.stdout).unwrap();
    let key = listing["answer"]["artifacts"][0]["key"].as_str().unwrap();
    assert_eq!(offered(&world, &format!("ghostlab cache path {}", &key[..8])), [key]);
    let results = offered(&world, "ghostlab compare res");
    assert!(results.iter().any(|of| of.starts_with("results/grid/")), "{results:?}");
    // The backbone is missing: the cells are known from the results.
    let made = std::fs::read_dir(world.path("results/grid")).unwrap().next().unwrap().unwrap().path();
    assert!(made.join("numbers.json").is_file());
    std::fs::rename(world.path("backbone"), world.path("elsewhere")).unwrap();
    let cells = offered(&world, "ghostlab explain grid.yaml tiny.str");
    assert_eq!(cells.len(), 5, "{cells:?}");
}

#[test]
fn completing_in_a_bad_state_says_nothing_and_makes_nothing() {
    let empty = tempfile::tempdir().unwrap();
    std::fs::write(empty.path().join("bad.yaml"), "backbones: [\n").unwrap();
    for line in [
        "ghostlab explain bad.yaml ",
        "ghostlab explain nosuch.yaml ti",
        "ghostlab plan bad.yaml --profile ",
        "ghostlab cache path ab",
        "ghostlab cancel ",
        "ghostlab reproduce ",
        "ghostlab nosuch --what ",
        "ghostlab explain 'ba",
        "",
    ] {
        let output = Command::new(PROGRAM)
            .args(["--", "ghostlab"])
            .current_dir(empty.path())
            .envs([("COMPLETE", "bash"), ("_GHOSTLAB_LINE", line), ("GHOSTLAB_STORE", "nowhere")])
            .output()
            .unwrap();
        assert_eq!((output.status.code(), output.stderr.is_empty()), (Some(0), true), "{line}");
    }
    let left: Vec<_> = std::fs::read_dir(empty.path()).unwrap().map(|item| item.unwrap().file_name()).collect();
    assert_eq!(left, ["bad.yaml"], "no store was begun");
}

/// Finds a shell. bash is required.
fn shell(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    if found.is_none() {
        assert_ne!(name, "bash", "bash is needed");
        eprintln!("skipped: there is no {name} here");
    }
    found
}

/// Runs a script in a shell with `ghostlab` as the program, and returns its output.
fn said(world: &World, shell: &Path, arguments: &[&str], script: &str) -> String {
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

#[test]
fn bash_completes_a_cell() {
    let (world, Some(bash)) = (world(), shell("bash")) else { return };
    let line = format!("ghostlab explain grid.yaml {TYPED}");
    let script = format!(
        "source <(ghostlab completions bash); complete -p ghostlab >&2 || exit 1\n\
         COMP_LINE='{line}' COMP_POINT={} COMP_WORDBREAKS=$' \\t\\n\"\\'@><=;|&(:'\n\
         COMP_WORDS=({line}) COMP_CWORD=3; _ghostlab ghostlab '{TYPED}' grid.yaml\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"; eval \"printf '%s\\n' ${{COMPREPLY[0]}}\"",
        line.len()
    );
    let said = said(&world, &bash, &["--norc", "-c"], &script);
    assert_eq!(said, format!("{CELL}\n{CELL}\n"));
}

#[test]
fn cell_names_are_single_shell_words_and_resolve() {
    let (world, Some(bash)) = (world(), shell("bash")) else { return };
    // Two of everything that a name may have to tell apart, and a backbone with a blank.
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
    world.write("grid.yaml", axes.iter().fold(grid, |grid, (from, to)| grid.replace(from, to)));
    let plan = said(&world, &bash, &["--norc", "-c"], "ghostlab plan grid.yaml --json");
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let cells = plan["answer"]["grids"][0]["cells_to_run"].as_array().unwrap();
    let names: Vec<&str> = cells.iter().map(|of| of["cell"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 2 * (1 + 4 * 3 * 8), "{names:?}");
    // Typed without quotes, bash passes it on unchanged.
    let typed = names.iter().map(|name| format!("printf '%s\\n' {name}")).collect::<Vec<_>>().join("\n");
    let arrived = said(&world, &bash, &["--norc", "-c"], &typed);
    assert_eq!(arrived.lines().collect::<Vec<_>>(), names);
    for name in names.iter().step_by(17) {
        let explained = said(&world, &bash, &["--norc", "-c"], &format!("ghostlab explain grid.yaml {name}"));
        assert_eq!(explained.lines().next(), Some(*name));
    }
}

#[test]
fn zsh_completes_a_cell() {
    let (world, Some(zsh)) = (world(), shell("zsh")) else { return };
    // `_describe` receives names, then descriptions after a colon; colons in names are escaped by a backslash.
    let script = format!(
        "autoload -Uz compinit; compinit -u -D; source <(ghostlab completions zsh)\n\
         _describe() {{ local name; for name in \"$@\"; do [[ $name == (dirs|other) ]] && print -rl -- \"${{(@P)name}}\"; done }}\n\
         words=(ghostlab explain grid.yaml {TYPED}); CURRENT=4; _clap_dynamic_completer_ghostlab\n\
         words=(ghostlab explain grid.yaml 'tiny.streamline-2.ghosted.'); _clap_dynamic_completer_ghostlab"
    );
    assert_eq!(said(&world, &zsh, &["-f", "-c"], &script), format!("{CELL}\n{CELL}\n"));
}

#[test]
fn fish_completes_a_cell() {
    let (world, Some(fish)) = (world(), shell("fish")) else { return };
    let script = format!("ghostlab completions fish | source; complete -C 'ghostlab explain grid.yaml {TYPED}'");
    assert_eq!(said(&world, &fish, &["--no-config", "-c"], &script), format!("{CELL}\n"));
}

#[test]
fn manual_pages_name_every_command_and_option() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let help = |words: &[&str]| {
        let output = Command::new(PROGRAM).args(words).arg("--help").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let output = Command::new(PROGRAM).args(["man", "--to"]).arg(&pages).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Commands stand two blanks in below their head; options begin with two dashes.
    let of_help = |text: &str, head: &str| -> Vec<String> {
        let list = text.split_once(head).map_or("", |(_, rest)| rest).lines().skip(1);
        let list = list.take_while(|line| line.is_empty() || line.starts_with(' '));
        let named = list.filter(|line| line.starts_with("  ") && !line[2..].starts_with(' '));
        named
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help")
            .map(str::to_owned)
            .collect()
    };
    let mut left = vec![Vec::<String>::new()];
    let mut seen = 0;
    while let Some(command) = left.pop() {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let name = [&["ghostlab"], &words[..]].concat().join("-");
        let page = std::fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        let text = help(&words);
        let plain = page.replace("\\-", "-");
        let (_, described) = plain.split_once(".SH NAME").unwrap();
        let about = described.lines().nth(1).unwrap();
        assert!(about.contains(" - ") && about.len() > name.len() + 10, "{name}: {about}");
        let inner = of_help(&text, "Commands:");
        for word in &inner {
            assert!(plain.contains(&format!("{name}-{word}(1)")), "{name} does not name {word}");
        }
        let options: Vec<&str> = text.split_whitespace().filter(|word| word.starts_with("--")).collect();
        for option in options.iter().filter(|word| word[2..].chars().all(|c| c.is_ascii_lowercase() || c == '-')) {
            assert!(plain.contains(option), "{name} does not name {option}");
        }
        left.extend(inner.into_iter().map(|word| [&command[..], &[word]].concat()));
        seen += 1;
    }
    // Next to them is the list of written files.
    let paths = std::fs::read_dir(&pages).unwrap().map(|entry| entry.unwrap().path());
    let written: Vec<_> = paths.filter(|path| path.extension().is_some_and(|of| of == "1")).collect();
    assert_eq!(seen, written.len(), "a page for each command");
    let Ok(groff) = Command::new("groff").arg("--version").output() else {
        return eprintln!("skipped: there is no groff here to read the pages with");
    };
    assert!(groff.status.success());
    for page in &written {
        let output = Command::new("groff").args(["-k", "-ww", "-man", "-Tutf8"]).arg(page).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn quiet_keeps_results_and_errors_verbose_adds_reasons() {
    let world = World::new();
    let said = |arguments: &[&str]| {
        let output = world.ghostlab(arguments);
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, loud, log) = said(&["run", "grid.yaml", "-v"]);
    assert_eq!(code, Some(0), "{log}");
    for words in [
        "store: data/store",
        "grid grid: grid.yaml, no profile",
        "backbone tiny: backbone",
        "corpus train: train.txt, rule wikitext2",
        "engine cpu f32 on cpu",
        "to make  why",
        "tiny.dense on test@64: ",
        "tiny.dense is complete",
        "written: ",
    ] {
        assert!(log.contains(words), "`{words}` is not in\n{log}");
    }
    let (code, plain, log) = said(&["run", "grid.yaml"]);
    assert!(code == Some(0) && log.contains("9 of 9 cells are stored already") && log.contains("written: "), "{log}");
    assert!(!log.contains("store: ") && !log.contains("is complete"), "{log}");
    let (code, quiet, log) = said(&["-q", "run", "grid.yaml", "--rehash"]);
    assert_eq!((code, log.as_str()), (Some(0), ""));
    let numbers = |text: &str| text.lines().filter(|line| line.contains("tiny")).map(str::to_owned).collect::<Vec<_>>();
    assert!(numbers(&quiet) == numbers(&plain) && quiet.contains("ghosted"), "{quiet}");
    assert!(!numbers(&loud).is_empty());
    // The reason: one changed setting.
    let (_, _, log) = said(&["run", "grid.yaml", "-v", "--set", "calibration.seed=7", "--set", "depth=1"]);
    assert!(log.contains("seed: 0 → 7"), "{log}");
    // Errors and failed cells are printed even with `--quiet`.
    let (code, _, log) = said(&["plan", "gird.yaml", "--quiet"]);
    assert!(code == Some(3) && log.starts_with("error: the grid is not there\n  where:    gird.yaml\n"), "{log}");
    world.write(
        "grid.yaml",
        std::fs::read_to_string(world.path("grid.yaml"))
            .unwrap()
            .replace("[llm-streamline]", "[{name: explicit, layers: [0]}]")
            .replace("[1, 2]", "1")
            .replace("ghosted]", "replaceme-ls]"),
    );
    let (code, _, log) = said(&["run", "grid.yaml", "-q"]);
    assert!(code == Some(4) && log.contains("failed: ") && !log.contains("written: "), "{log}");
    let (code, _, log) = said(&["run", "grid.yaml", "-q", "-v"]);
    assert!(code == Some(2) && log.contains("cannot be used with"), "{log}");
}

fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').unwrap().1)
}

#[test]
fn colours_follow_the_option_and_change_no_text() {
    let world = World::new();
    let said = |arguments: &[&str], set: &[(&str, &str)]| {
        let mut command = world.command(&["doctor"]);
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        let output = command.args(arguments).envs(set.iter().copied()).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    // Outside a checkout the first command says where the program's own data lies.
    said(&["nosuch"], &[]);
    for arguments in [&[][..], &["nosuch"], &["--help"], &["--nosuch"]] {
        let with = |more: &[&str], set: &[(&str, &str)]| said(&[arguments, more].concat(), set);
        let plain = with(&[], &[]);
        assert!(!plain.contains('\u{1b}'), "{plain}: no terminal");
        let colours = with(&["--color", "always"], &[]);
        assert!(colours.contains("\u{1b}["), "{colours}");
        assert!(with(&[], &[("CLICOLOR_FORCE", "1")]).contains("\u{1b}["));
        assert!(!with(&[], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]).contains('\u{1b}'));
        assert!(!with(&["--color=never"], &[("CLICOLOR_FORCE", "1")]).contains('\u{1b}'));
        if arguments != ["--help"] {
            // Free memory and disk differ from call to call.
            let words = |text: &str| text.lines().filter(|line| !line.contains("free")).collect::<Vec<_>>().join("\n");
            assert_eq!(words(&without_colours(&colours)), words(&plain), "the same words");
        }
    }
    assert!(said(&["nosuch"], &[]).contains("error: ") && said(&[], &[]).contains("ok    "));
}

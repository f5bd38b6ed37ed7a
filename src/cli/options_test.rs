//! Tests of all options with a number or an enumerated value, found by walking clap's command tree.

use std::any::TypeId;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory};

/// Values that every typed option must reject.
const INVALID_NUMBERS: [&str; 10] =
    ["nan", "inf", "-inf", "-1", "1e30", "-0.5", "", " ", "garbage", "99999999999999999999999"];

/// Options that accept any text or path, so parsing them cannot fail.
const UNCHECKED_OPTIONS: [&str; 39] = [
    "--figure",
    "--data",
    "--from",
    "--definitions",
    "--rows",
    "--samples",
    "--system",
    "--budget",
    "--calibration",
    "--criteria",
    "--recoveries",
    "--export",
    "--license",
    "--average",
    "--cell",
    "--corpus",
    "--experiments",
    "--files",
    "--frozen",
    "--inputs",
    "--keep",
    "--metric",
    "--output",
    "--perplexity",
    "--profile",
    "--profile-file",
    "--reports",
    "--results",
    "--set",
    "--store",
    "--tasks",
    "--to",
    "--map",
    "--label",
    "--labels",
    "--stage",
    "--text-average",
    "--texts",
    "--on",
];

fn collect_options(command: &Command, words: &[String], found: &mut Vec<(Vec<String>, Arg)>) {
    let options = command
        .get_arguments()
        .filter(|argument| argument.get_long().is_some() && argument.get_action().takes_values());
    found.extend(options.map(|options| (words.to_vec(), options.clone())));
    for inner in command.get_subcommands() {
        collect_options(inner, &[words, &[inner.get_name().to_owned()]].concat(), found);
    }
}

fn all_options() -> Vec<(Vec<String>, Arg)> {
    let mut command = super::Arguments::command();
    command.build();
    let mut found = Vec::new();
    collect_options(&command, &["ghostlab".to_owned()], &mut found);
    found.retain(|(words, _)| words.last().is_some_and(|word| word != "help"));
    found
}

fn is_unchecked(option: &Arg) -> bool {
    let kind = option.get_value_parser().type_id();
    let text = [TypeId::of::<String>(), TypeId::of::<PathBuf>(), TypeId::of::<OsString>()]
        .iter()
        .any(|text_type| kind == *text_type);
    text && option.get_possible_values().is_empty()
}

#[test]
fn typed_options_reject_invalid_values() {
    let mut tried = BTreeSet::new();
    for (words, option) in all_options() {
        let long = format!("--{}", option.get_long().unwrap());
        if is_unchecked(&option) || long == "--map" {
            continue;
        }
        for value in INVALID_NUMBERS {
            let line = [&words[..], &[format!("{long}={value}")]].concat();
            let error = super::Arguments::command().try_get_matches_from(&line).expect_err(&line.join(" "));
            let text = error.render().to_string();
            assert_eq!(error.exit_code(), 2, "{line:?}: {text}");
            assert!(text.contains(&long) && text.starts_with("error: "), "{line:?}: {text}");
        }
        tried.insert(long);
    }
    let known =
        ["--memory", "--device-memory", "--store-limit", "--older", "--documents", "--bos", "--text", "--shard-size"];
    assert!(known.iter().all(|name| tried.contains(*name)), "{tried:?}");
}

#[test]
fn every_option_without_a_typed_parser_is_listed() {
    let unchecked: BTreeSet<String> = all_options()
        .iter()
        .filter(|(_, option)| is_unchecked(option))
        .map(|(_, option)| format!("--{}", option.get_long().unwrap()))
        .filter(|long| !UNCHECKED_OPTIONS.contains(&long.as_str()))
        .collect();
    assert_eq!(
        unchecked,
        BTreeSet::new(),
        "give the option a typed parser (crates/core/src/quantity.rs), or list it in UNCHECKED_OPTIONS"
    );
}

/// Regression test: with invalid numbers such as `nan`, commands deleted all stored objects.
#[test]
fn invalid_numeric_arguments_are_usage_errors() {
    for line in [
        "run g.yaml --store-limit=nan",
        "cache gc --older=nan",
        "cache gc --older=-1",
        "cache gc --older=inf",
        "cache gc --older=1e30",
        "score m --tasks copa --limit=nan",
        "score m --tasks copa --limit=inf",
        "score m --tasks copa --limit=1e30",
        "score m --tasks copa --bos=garbage",
        "run g.yaml --memory=nan",
        "run g.yaml --memory=-1",
        "plan g.yaml --device-memory=0",
        "worker g.yaml --idle-exit=18446744073709551615",
        "worker g.yaml --retries=4294967295",
    ] {
        let words = std::iter::once("ghostlab").chain(line.split(' '));
        let error = super::Arguments::command().try_get_matches_from(words).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

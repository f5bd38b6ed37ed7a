//! `ghostlab compare A B`: compares two results directories.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::answer::read_commands::{CompareAnswer, ComparedRun};
use super::answer::{self, Answer};
use super::comparison_summary::summarize;
use super::directories::{folders_in, with_similar_path_hint};
use super::terminal::{self, format_columns, format_json_value, shorten_columns};
use crate::error::{Error, Result};
use crate::pipeline::identity::{Canonical, SettingDifference};
use crate::quantity::pluralize;
use crate::results::number_record::Record;
use crate::results::{Differences, StoredResults, Unpaired, ValueDifference, distinct, settings_that_differ, wrap};

#[derive(Args)]
pub(super) struct Arguments {
    /// First results folder (A), e.g. `results/table2/tiny`.
    first: PathBuf,
    /// Second results folder (B).
    second: PathBuf,
    /// Match name A in the first run with name B in the second; can be repeated.
    ///
    /// The names are those of backbones, criteria, recoveries, corpora or tasks, e.g. `tiny-llama=tiny-qwen3`.
    #[arg(long = "map", value_name = "A=B", value_parser = parse_name_pair)]
    names: Vec<(String, String)>,
}

fn parse_name_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=').map(|(from, to)| (from.trim(), to.trim())) {
        Some((from, to)) if !from.is_empty() && !to.is_empty() => Ok((from.to_owned(), to.to_owned())),
        _ => Err("expected `NAME_A=NAME_B`, a name in the first run and its counterpart in the second".to_owned()),
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (first, second) = (
        StoredResults::read(&find_run_folder(&arguments.first)?)?,
        StoredResults::read(&find_run_folder(&arguments.second)?)?,
    );
    let differences = Differences::between(&first, &second, &arguments.names)?;
    let first = ComparedRun::new(&first, &arguments.first);
    let second = ComparedRun::new(&second, &arguments.second);
    answer::print_answer(CompareAnswer { first, second, differences }, Answer::Compare, print_comparison)
}

fn print_comparison(CompareAnswer { first, second, differences }: &CompareAnswer) {
    println!("{}", wrap(&summarize(differences), terminal::width()));
    println!("");
    for (letter, ComparedRun { name, profile, folder, program }) in [("A", first), ("B", second)] {
        println!("{letter}: {name} {profile} ({folder}), {program}");
    }
    println!("");
    for part in [format_settings, format_data, format_protocols, format_engines, format_global_differences] {
        print!("{}", part(differences));
    }
    print!("\n{}{}{}", format_values(differences), format_omitted_note(differences), format_coinciding(differences));
    for (letter, only) in [("A", &differences.only_first), ("B", &differences.only_second)] {
        if !only.is_empty() {
            println!("\nonly in {letter}: {} ({})", pluralize(only.len(), "value"), list_conditions(only).join("; "));
        }
    }
    if differences.compared == 0 {
        print!("{}", explain_unpaired(differences));
    }
}

/// Returns `path` if it contains the results of a run. Otherwise returns its only subdirectory that does.
fn find_run_folder(path: &Path) -> Result<PathBuf> {
    if path.join(StoredResults::FILE).is_file() {
        return Ok(path.to_owned());
    }
    if !path.exists() {
        let error = Error::missing("results folder not found")
            .at(path.display().to_string())
            .expected(format!("a folder with `{}`", StoredResults::FILE))
            .found("nothing");
        return Err(with_similar_path_hint(
            error,
            path,
            "look in `results`, where `ghostlab run` and `ghostlab reproduce` write by default",
        ));
    }
    let mut runs = folders_in(path);
    runs.retain(|folder| folder.join(StoredResults::FILE).is_file());
    match runs.as_slice() {
        [one] => Ok(one.clone()),
        [] => Ok(path.to_owned()),
        several => Err(Error::bad_input("the folder contains several runs")
            .at(path.display().to_string())
            .expected("the folder of one run")
            .found(several.iter().map(|run| run.display().to_string()).collect::<Vec<_>>().join(", "))
            .hint("pass one of these folders")),
    }
}

fn format_settings(differences: &Differences) -> String {
    format_differing("setting", &differences.settings, "settings that differ:", &ToString::to_string)
        .unwrap_or_else(|| "settings: the same\n".to_owned())
}

fn format_data(differences: &Differences) -> String {
    if !differences.data_known {
        return "data: unknown; one of the runs did not record input hashes\n".to_owned();
    }
    format_differing("data", &differences.data, "data that differ (hashes):", &shorten_hash)
        .unwrap_or_else(|| "data: the same for all inputs that both runs use\n".to_owned())
}

/// Formats the settings in which the evaluation protocols differ. Data hashes are omitted.
fn format_protocols(differences: &Differences) -> String {
    let mut text = String::new();
    for protocol in &differences.protocols {
        let (Some(one), Some(two)) = (&protocol.first, &protocol.second) else { continue };
        for setting in settings_that_differ(&one.value(), &two.value()) {
            if !setting.path.as_str().split('.').any(|part| part == "data") {
                let [one, two] = [setting.first, setting.second].map(format_protocol_value);
                text.push_str(&format!("  {}.{}: {one} → {two}\n", protocol.path, setting.path));
            }
        }
    }
    if text.is_empty() { text } else { format!("protocols that differ:\n{text}") }
}

fn format_protocol_value(value: Option<Canonical>) -> String {
    value.map_or("—".to_owned(), |value| value.to_string())
}

fn format_engines(differences: &Differences) -> String {
    format_differing("backbone", &differences.engines, "engines that differ:", &format_json_value).unwrap_or_default()
}

/// Formats the settings that differ between paired numbers.
fn format_global_differences(differences: &Differences) -> String {
    let heading = "paired despite different settings:";
    format_differing("setting", &differences.global_differences, heading, &shorten_hash).unwrap_or_default()
}

/// Formats the numbers that were not paired because several numbers of the other run match them.
fn format_coinciding(differences: &Differences) -> String {
    let mut text = String::new();
    for entry in &differences.coinciding {
        let settings = match entry.settings.as_slice() {
            [] => "none of the recorded settings".to_owned(),
            settings => settings.join(", "),
        };
        let name = entry
            .first
            .first()
            .or(entry.second.first())
            .map(|number| format!("{}, {}", number.cell, number.record.metric));
        text.push_str(&format!(
            "  {}: {} in A and {} in B, which differ in {settings}\n",
            name.unwrap_or_default(),
            entry.first.len(),
            entry.second.len()
        ));
    }
    if text.is_empty() { text } else { format!("\nnot paired, because several numbers match:\n{text}") }
}

/// Shortens hashes to 12 characters. Leaves other values unchanged.
fn shorten_hash(value: &Value) -> String {
    match Canonical::from_value(value).is_hash() {
        true => format_json_value(value).chars().take(12).collect(),
        false => format_json_value(value),
    }
}

/// Formats a table of settings under a heading. Returns `None` if there are no settings.
fn format_differing(
    column: &str,
    settings: &[SettingDifference],
    heading: &str,
    format: &dyn Fn(&Value) -> String,
) -> Option<String> {
    let mut rows = vec![[column, "A", "B"].map(str::to_owned).to_vec()];
    for setting in settings {
        let [first, second] = [&setting.first, &setting.second]
            .map(|value| value.as_ref().map_or("—".to_owned(), |value| format(&value.value())));
        rows.push(vec![setting.path.to_string(), first, second]);
    }
    let table = format_columns(&shorten_columns(rows, &[], terminal::width()), &[]);
    (!settings.is_empty()).then(|| format!("{heading}\n{table}"))
}

/// Explains why no values were paired. Suggests `--map` if the runs use different backbones.
fn explain_unpaired(differences: &Differences) -> String {
    match (backbone_names(&differences.only_first).as_slice(), backbone_names(&differences.only_second).as_slice()) {
        ([one, ..], [two, ..]) if one != two => {
            format!("\nthe runs have no condition in common; use `--map {one}={two}` to compare the two backbones\n")
        }
        _ => "\nthe runs have no condition in common\n".to_owned(),
    }
}

fn backbone_names(unpaired: &[Unpaired]) -> Vec<String> {
    let names: BTreeSet<&String> = unpaired.iter().map(|number| &number.record.condition.backbone).collect();
    names.into_iter().cloned().collect()
}

/// Indices of the numeric columns in the table of values.
const NUMERIC_COLUMNS: [usize; 3] = [2, 3, 4];

fn format_values(differences: &Differences) -> String {
    let differ = differences.values.len();
    let all = differences.compared;
    if differ == 0 {
        return format!("values: all {all} common values are the same\n");
    }
    // Only values from different engines are compared with a tolerance.
    let engines_differ = !differences.engines.is_empty();
    let head = ["condition", "metric", "A", "B", "B − A", "paired test"]
        .into_iter()
        .chain(engines_differ.then_some("tolerance"));
    let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    // Use a cell's full name if other cells have the same short name. Use a column's full name if its metric has
    // several columns.
    let cell_label = |record: &Record, cell: &String| {
        let alike = differences
            .values
            .iter()
            .filter(|pair| format_condition(&pair.first) == format_condition(record))
            .map(|pair| &pair.cell)
            .collect::<BTreeSet<_>>();
        if alike.len() > 1 { cell.clone() } else { format_condition(record) }
    };
    for value in differences.values.iter().filter(|value| !is_printed_identically(value)) {
        let a = value.first.value;
        let b = value.second.value;
        let decimals = choose_decimals(a, b);
        let difference = a.zip(b).map_or("—".to_owned(), |(a, b)| format!("{:+.decimals$}", b - a));
        let paired = match &value.paired {
            Some(test) => format!("{} p = {:.3}", test.test, test.p),
            None if value.same_items => "—".to_owned(),
            None => "different items".to_owned(),
        };
        let same_metric = differences.values.iter().filter(|pair| pair.first.metric == value.first.metric);
        let columns: BTreeSet<&String> = same_metric.map(|pair| &pair.column).collect();
        let metric = if columns.len() > 1 { &value.column } else { &value.first.metric };
        let row = [
            cell_label(&value.first, &value.cell),
            metric.clone(),
            format_value(a, decimals),
            format_value(b, decimals),
            difference,
            paired,
        ];
        let tolerance = match value.beyond {
            Some(true) => "beyond",
            Some(false) => "within",
            None => "—",
        };
        rows.push(row.into_iter().chain(engines_differ.then(|| tolerance.to_owned())).collect());
    }
    let beyond = differences.values.iter().filter(|value| value.beyond == Some(true)).count();
    let beyond =
        if engines_differ { format!(", {beyond} beyond the tolerance of the float types") } else { String::new() };
    format!(
        "values that differ: {differ} of {all} common values{beyond}\n{}",
        format_columns(&shorten_columns(rows, &NUMERIC_COLUMNS, terminal::width()), &NUMERIC_COLUMNS)
    )
}

/// Minimum number of decimals in the table of values.
const MIN_DECIMALS: usize = 4;
/// Maximum relative difference at which the table omits a pair of values. Both values must also print identically.
const MAX_NEGLIGIBLE_DIFFERENCE: f64 = 1e-4;

fn format_value(value: Option<f64>, decimals: usize) -> String {
    value.map_or("failed".to_owned(), |value| format!("{value:.decimals$}"))
}

/// Returns the smallest number of decimals, at least [`MIN_DECIMALS`], at which two values are printed differently.
fn choose_decimals(a: Option<f64>, b: Option<f64>) -> usize {
    (MIN_DECIMALS..=9).find(|&decimals| format_value(a, decimals) != format_value(b, decimals)).unwrap_or(MIN_DECIMALS)
}

/// Returns whether two values differ by a negligible amount and are printed identically.
fn is_printed_identically(difference: &ValueDifference) -> bool {
    let a = difference.first.value;
    let b = difference.second.value;
    let close = a.zip(b).is_some_and(|(a, b)| (b - a).abs() <= MAX_NEGLIGIBLE_DIFFERENCE * a.abs());
    close && format_value(a, MIN_DECIMALS) == format_value(b, MIN_DECIMALS)
}

/// Formats a note with the number of rows that were omitted because their values print identically. Returns an empty
/// string if there are none.
fn format_omitted_note(differences: &Differences) -> String {
    match differences.values.iter().filter(|value| is_printed_identically(value)).count() {
        0 => String::new(),
        1 => "1 of them differs only after the fourth decimal and is omitted (see `--json`)\n".to_owned(),
        count => format!("{count} of them differ only after the fourth decimal and are omitted (see `--json`)\n"),
    }
}

fn format_condition(record: &Record) -> String {
    let condition = &record.condition;
    let backbone = &condition.backbone;
    let depth = condition.depth;
    let layers = condition.layers;
    format!("{backbone} {depth}/{layers} {} {} {}", condition.criterion, condition.recovery, condition.calibration)
}

fn list_conditions(unpaired: &[Unpaired]) -> Vec<String> {
    let mut all: BTreeMap<String, BTreeSet<&String>> = BTreeMap::new();
    for number in unpaired {
        all.entry(format_condition(&number.record)).or_default().insert(&number.cell);
    }
    distinct(
        &unpaired
            .iter()
            .map(|unpaired| {
                let name = format_condition(&unpaired.record);
                if all[&name].len() > 1 { unpaired.cell.clone() } else { name }
            })
            .collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_added_until_the_values_print_differently() {
        for (a, b, expected) in [
            (Some(1.0), Some(2.0), 4),
            (Some(0.000_011), Some(0.000_033), 5),
            (Some(1.0), Some(1.0 + 1e-12), 4),
            (None, Some(1.0), 4),
        ] {
            assert_eq!(choose_decimals(a, b), expected, "{a:?} {b:?}");
        }
    }

    #[test]
    fn error_for_a_folder_without_results_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_path_buf();
        let error = super::find_run_folder(&path).and_then(|path| StoredResults::read(&path)).unwrap_err();
        assert!(error.to_string().contains("numbers.json"), "{error}");
    }
}

//! `ghostlab compare A B`: two results folders side by side.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::units::columns;
use crate::error::Result;
use crate::record::Record;
use crate::reproduce::{Differences, Stored};

#[derive(Args)]
pub(super) struct Arguments {
    /// A results folder, for example `results/table2/tiny`.
    first: PathBuf,
    /// Another one.
    second: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (first, second) = (Stored::read(&arguments.first)?, Stored::read(&arguments.second)?);
    let differences = Differences::of(&first, &second);
    for (letter, folder, stored) in [("A", &arguments.first, &first), ("B", &arguments.second, &second)] {
        println!("{letter}: {} {} ({}), {}", stored.name, stored.profile, folder.display(), stored.program);
    }
    print!("\n{}", settings(&differences));
    print!("\n{}", values(&differences));
    for (letter, only) in [("A", &differences.only_first), ("B", &differences.only_second)] {
        if !only.is_empty() {
            println!("\nonly in {letter}: {} values, of {}", only.len(), conditions(only).join("; "));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn settings(differences: &Differences) -> String {
    if differences.settings.is_empty() {
        return "settings: the same\n".to_owned();
    }
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "—".to_owned());
    let mut rows = vec![["setting", "A", "B"].map(str::to_owned).to_vec()];
    rows.extend(differences.settings.iter().map(|of| vec![of.path.clone(), shown(&of.first), shown(&of.second)]));
    format!("settings that differ:\n{}", columns(&rows, &[]))
}

fn values(differences: &Differences) -> String {
    let (differ, all) = (differences.values.len(), differences.compared);
    if differ == 0 {
        return format!("values: all {all} that both have are the same\n");
    }
    let number = |value: Option<f64>| value.map_or("failed".to_owned(), |value| format!("{value:.4}"));
    let mut rows = vec![["condition", "metric", "A", "B", "B − A", "paired test"].map(str::to_owned).to_vec()];
    for value in &differences.values {
        let (a, b) = (value.first.value, value.second.value);
        let difference = a.zip(b).map_or("—".to_owned(), |(a, b)| format!("{:+.4}", b - a));
        let paired = value.paired.as_ref().map_or("—".to_owned(), |of| format!("{} p = {:.3}", of.test, of.p));
        let row = [named(&value.first), value.first.metric.clone(), number(a), number(b), difference, paired];
        rows.push(row.to_vec());
    }
    format!("values that differ: {differ} of the {all} that both have\n{}", columns(&rows, &[2, 3, 4]))
}

fn named(record: &Record) -> String {
    let of = &record.condition;
    let (backbone, depth, layers) = (&of.backbone, of.depth, of.layers);
    format!("{backbone} {depth}/{layers} {} {} {}", of.criterion, of.recovery, of.calibration)
}

fn conditions(records: &[Record]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in records.iter().map(named) {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_numbers_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_path_buf();
        let error = run(&Arguments { first: path.clone(), second: path }).unwrap_err();
        assert!(error.to_string().contains("numbers.json"), "{error}");
    }
}

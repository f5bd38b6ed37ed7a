//! `ghostlab audit [TABLE.csv…]`: checks the paper's tables, or the given tables, for internal consistency.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::answer::write_commands::AuditAnswer;
use super::answer::{self, Answer};
use crate::artifact::audit::{AuditColumns, AuditTask};
use crate::artifact::paper::PaperNumber;
use crate::artifact::{audit, paper};
use crate::error::Result;

#[derive(Args)]
pub(super) struct Arguments {
    /// Tables to check [default: the paper's].
    ///
    /// Each table is checked individually and against the others. A table contains either one number per line, as in
    /// `data/paper/`, or one row per method and one column per task.
    #[arg(value_name = "TABLE.csv")]
    tables: Vec<PathBuf>,
    /// Accuracy columns in percent: `arc_easy`, `ARC-e=arc_easy` or `PIQA=1838:50`.
    ///
    /// A column can be mapped to a known task (`ARC-e=arc_easy`), to the number of documents in its split
    /// (`PIQA=1838`), or to that number and the chance accuracy in percent (`PIQA=1838:50`).
    #[arg(long, value_name = "COLUMN[=TASK]", num_args = 1.., value_delimiter = ',', requires = "tables")]
    tasks: Vec<String>,
    /// Column with the mean accuracy; `acc_average` if a table has one number per line.
    #[arg(long, value_name = "COLUMN", requires = "tables")]
    average: Option<String>,
    /// Perplexity columns.
    #[arg(long, value_name = "COLUMN", num_args = 1.., value_delimiter = ',', requires = "tables")]
    texts: Vec<String>,
    /// Column with the mean perplexity.
    #[arg(long, value_name = "COLUMN", requires = "tables")]
    text_average: Option<String>,
    /// Label columns in a table with one row per method [default: the first].
    #[arg(long, value_name = "COLUMN", num_args = 1.., value_delimiter = ',', requires = "tables")]
    label: Vec<String>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = AuditFormat::Text)]
    format: AuditFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum AuditFormat {
    Text,
    Csv,
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let findings = match arguments.tables.is_empty() {
        true => audit::run(&paper::all()?),
        false => {
            let columns = resolve_columns(arguments)?;
            audit::run_with(&read_tables(arguments, &columns)?, &columns)
        }
    };
    let csv = audit::format_csv(&findings)?;
    let json = audit::format_json(&findings)?;
    answer::print_answer(AuditAnswer { findings }, Answer::Audit, |answer| match arguments.format {
        AuditFormat::Text => print!("{}", audit::format_text(&answer.findings)),
        AuditFormat::Csv => print!("{csv}"),
        AuditFormat::Json => println!("{json}"),
    })
}

/// Returns which columns are tasks, texts and averages. Options that are not given default to the paper's columns.
fn resolve_columns(arguments: &Arguments) -> Result<AuditColumns> {
    let mut columns = AuditColumns::paper().clone();
    if !arguments.tasks.is_empty() {
        columns.tasks = arguments.tasks.iter().map(|text| AuditTask::parse(text)).collect::<Result<_>>()?;
    }
    if !arguments.texts.is_empty() {
        columns.texts.clone_from(&arguments.texts);
    }
    for (named, column) in
        [(&arguments.average, &mut columns.accuracy), (&arguments.text_average, &mut columns.perplexity)]
    {
        named.iter().for_each(|name| column.clone_from(name));
    }
    Ok(columns)
}

fn read_tables(arguments: &Arguments, columns: &AuditColumns) -> Result<Vec<PaperNumber>> {
    let tasks = columns.tasks.iter().map(|task| task.name.as_str()).filter(|_| !arguments.tasks.is_empty());
    let named = [&arguments.average, &arguments.text_average].into_iter().flatten().chain(&arguments.texts);
    let names: Vec<&str> = tasks.chain(named.map(String::as_str)).collect();
    let all = arguments.tables.iter().map(|table| PaperNumber::read(table, &arguments.label, &names));
    Ok(all.collect::<Result<Vec<_>>>()?.concat())
}

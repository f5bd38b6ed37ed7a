//! `ghostlab audit`: the paper against itself.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::answer::done::Audited;
use super::answer::{self, Answer};
use crate::artifact::{audit, paper};
use crate::error::{Error, Result};

#[derive(Args)]
pub(super) struct Arguments {
    /// How the findings are printed.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
}

#[derive(Clone, Copy, ValueEnum)]
enum Form {
    Text,
    Csv,
    Json,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let findings = audit::run(&paper::all()?);
    let json = audit::json(&findings)?;
    let all = serde_json::from_str(&json).map_err(|error| Error::job("no JSON").found(error.to_string()))?;
    answer::show(Audited { findings: all }, Answer::Audit, |_| match arguments.format {
        Form::Text => print!("{}", audit::text(&findings)),
        Form::Csv => print!("{}", audit::csv(&findings)),
        Form::Json => println!("{json}"),
    })?;
    Ok(ExitCode::SUCCESS)
}

//! `ghostlab audit`: the paper against itself.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::artifact::{audit, paper};
use crate::error::Result;

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
    match arguments.format {
        Form::Text => print!("{}", audit::text(&findings)),
        Form::Csv => print!("{}", audit::csv(&findings)),
        Form::Json => println!("{}", audit::json(&findings)?),
    }
    Ok(ExitCode::SUCCESS)
}

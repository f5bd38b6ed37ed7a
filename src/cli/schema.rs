//! `ghostlab schema`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::{answer, out};
use crate::error::Result;
use crate::exec::Methods;
use crate::grid;

#[derive(Args)]
pub(super) struct Arguments {
    /// `grid`: what a grid file may hold. `output`: what commands print with `--json`.
    #[arg(value_enum, default_value_t = Subject::Grid)]
    subject: Subject,
}

#[derive(Clone, Copy, ValueEnum)]
enum Subject {
    Grid,
    Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    out::say_json(&match arguments.subject {
        Subject::Grid => grid::json_schema(&Methods),
        Subject::Output => answer::schema(),
    })?;
    Ok(ExitCode::SUCCESS)
}

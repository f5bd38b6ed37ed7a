//! `ghostlab schema`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::answer::done::PrintedSchema;
use super::answer::{self, Answer};
use super::out;
use crate::error::Result;
use crate::grid;

#[derive(Args)]
pub(super) struct Arguments {
    /// `grid`: what a grid file may hold. `output`: what commands print with `--json`.
    #[arg(value_enum, default_value_t = SchemaOf::Grid)]
    subject: SchemaOf,
}

#[derive(Clone, Copy, ValueEnum)]
enum SchemaOf {
    Grid,
    Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let schema = match arguments.subject {
        SchemaOf::Grid => grid::json_schema(),
        SchemaOf::Output => answer::schema(),
    };
    match answer::json() {
        true => answer::show(PrintedSchema { schema }, Answer::Schema, |_| {}),
        false => out::say_json(&schema).map(|()| ExitCode::SUCCESS),
    }
}

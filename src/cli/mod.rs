//! Floor 5: arguments, exit codes, and the only place that prints.
#![allow(clippy::disallowed_macros)]

mod progress;
mod run;
mod schema;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "ghostlab", version, about, long_about = None)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a grid: prune, repair and score every cell, and write the table.
    ///
    /// Exit codes: 0 done, 2 bad input, 3 something missing (model, data, disk), 4 a cell failed, 130 interrupted.
    Run(run::Arguments),
    /// Print the JSON schema of grid files, for editors.
    Schema,
}

/// Parses the command line, runs it, prints errors; the process's exit code.
pub fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Schema => schema::run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

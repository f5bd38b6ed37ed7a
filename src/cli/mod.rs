//! Command-line interface (layer 5 of the architecture): arguments, exit codes and all printing.

/// Replacements for the standard library macros, which panic if a write to stdout or stderr fails (see `terminal`).
macro_rules! print {
    ($($text:tt)*) => { $crate::cli::terminal::print(format_args!($($text)*)) };
}
macro_rules! println {
    ($($text:tt)*) => { $crate::cli::terminal::print(format_args!("{}\n", format_args!($($text)*))) };
}
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::cli::terminal::eprint(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a note to stderr, unless `-q` is given.
macro_rules! note {
    ($($text:tt)*) => { if $crate::cli::terminal::shows_notes() { $crate::cli::terminal::eprint(format_args!("{}\n", format_args!($($text)*))) } };
}
/// Prints a detail to stderr if `-v` is given.
macro_rules! detail {
    ($($text:tt)*) => { if $crate::cli::terminal::shows_details() { $crate::cli::terminal::eprint(format_args!("{}\n", format_args!($($text)*))) } };
}

mod answer;
mod artifact_report;
mod audit;
mod cache;
mod compare;
mod comparison_summary;
mod directories;
mod doctor;
mod doctor_model;
mod explain;
mod export;
mod fetch;
mod fetch_request;
mod grid_args;
mod help;
mod layers;
mod listing;
mod local_data;
mod manual;
mod named_entries;
#[cfg(test)]
mod options_test;
mod plan;
mod progress;
mod project_setup;
mod record;
mod report;
mod reproduce;
mod requested_work;
mod run;
mod score;
mod search;
mod search_grid;
mod search_methods;
mod status;
mod stop;
mod submit;
mod terminal;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgMatches, FromArgMatches, Parser, Subcommand};

use crate::files::limit::TextLimit;
use crate::quantity::Gigabytes;

#[derive(Parser)]
#[command(name = "ghostlab", version, about, long_about = None)]
struct Arguments {
    /// Maximum size of a text file in GB, after decompression.
    ///
    /// JSON rows and task files are limited to a tenth of this size.
    #[arg(
        long,
        value_name = "GB",
        global = true,
        default_value_t = Gigabytes::from_bytes(TextLimit::DEFAULT),
        help_heading = "Limits",
        display_order = 1000
    )]
    text: Gigabytes,
    #[command(flatten)]
    output: terminal::OutputArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a starter grid for the models in a folder.
    ///
    /// The grid lists the important keys with their possible values. Damaged models and models of unknown architecture
    /// are reported and skipped. `plan` and `run` accept the file unchanged.
    Init(project_setup::Arguments),
    /// Run a grid: prune, repair and score every cell.
    ///
    /// Cached results are not recomputed, and an interrupted run resumes. Exit codes: 0 success, 2 invalid input, 3
    /// missing model, data or disk space (with `--stored`: a cell without results), 4 failed cell, 5 damaged store, 130
    /// interrupted.
    Run(run::Arguments),
    /// Score one model: perplexity on texts, accuracy on tasks.
    ///
    /// The cached scores are shared with grids, in which the same model is the dense cell.
    Score(score::Arguments),
    /// Rank the layers and sublayers of a model by every criterion.
    ///
    /// Prints each layer's score under each criterion, and the order of removal. With --figure, also plots the ranks.
    Layers(layers::Arguments),
    /// Search for the best layers to remove and the best recovery.
    ///
    /// The budget limits the layers, latency or memory of the candidates. Candidates are scored on growing samples and
    /// eliminated once they are significantly worse. The winner is then scored on held-out items. A repeated search
    /// reuses the cached scores. Exit code 4: no candidate meets the budget when measured.
    Search(search::Arguments),
    /// Process jobs of a grid with other workers on the same store.
    ///
    /// A worker takes jobs until none are left. It does not write results. To write them afterwards, use `run --stored`
    /// or `reproduce --stored`. Exit codes: 0 no jobs left for this worker, 75 stopped early by USR1, TERM or Ctrl-C
    /// (start it again), 2, 3 and 5 as for `run`.
    Worker(worker::Arguments),
    /// Submit a grid to a cluster scheduler, which starts the workers.
    #[command(subcommand)]
    Submit(submit::Command),
    /// Cancel the jobs that `submit` started for this store.
    Cancel(status::CancelArguments),
    /// Reproduce tables and figures of the paper, or list them.
    Reproduce(reproduce::Arguments),
    /// Download models, texts and tasks from the Hugging Face hub.
    ///
    /// Files are pinned by hash, verified, and stored in the cache that the Hugging Face Python libraries use. Cached
    /// files are not requested again, and an interrupted download resumes.
    Fetch(fetch::Arguments),
    /// Check that models, data, disk, memory and device are available.
    ///
    /// Exit code 3 if anything is missing.
    Doctor(doctor::Arguments),
    /// Check tables (by default the paper's) for inconsistent numbers.
    Audit(audit::Arguments),
    /// Verify results: recompute a random sample and check the rest.
    ///
    /// Checks the hashes of files, the numbers against their items, and the tables against the numbers. Recomputes a
    /// sample of windows, documents, layer selections and operators. Latencies are not verified. Exit codes: 0
    /// everything agrees, 4 something differs, 3 nothing differs but something could not be checked.
    Verify(record::VerifyArguments),
    /// Pack results folders for sharing.
    #[command(subcommand)]
    Record(record::Command),
    /// Compare two results folders, with paired tests on the same items.
    Compare(compare::Arguments),
    /// Write an HTML report of all finished artifacts.
    Report(report::Arguments),
    /// Show what a run would compute, why, and at what cost.
    Plan(plan::Arguments),
    /// Show the inputs and computations behind one cell.
    Explain(explain::Arguments),
    /// Export cells as Hugging Face models or GGUF files.
    ///
    /// Writes weights, config, tokenizer and a model card. Layer selections and operators that are not cached are
    /// computed first. An earlier export in the same folder is replaced; other files in it are kept.
    #[command(mut_arg("dtype", |dtype| dtype.help(export::DTYPE_HELP)))]
    Export(export::Arguments),
    /// Show the progress and failures of runs, including crashed ones.
    Status(status::Arguments),
    /// Print the JSON schema of grid files or of `--json` output.
    Schema(manual::SchemaArguments),
    /// Generate shell completions.
    ///
    /// For the current session: `source <(ghostlab completions bash)` (the same for zsh) or `ghostlab completions fish
    /// | source`. To enable them permanently, add that line to `~/.bashrc`, `~/.zshrc` (after `compinit`) or
    /// `~/.config/fish/config.fish`.
    Completions(manual::CompletionsArguments),
    /// Write manual pages for the program and its commands.
    Man(manual::Arguments),
    /// List, verify and clean up the store.
    #[command(subcommand)]
    Cache(cache::Command),
    /// Create a store for one or more users.
    #[command(subcommand)]
    Store(project_setup::StoreCommand),
}

/// Parses and runs the process's command line, prints errors, and returns the exit code.
pub fn main() -> ExitCode {
    execute(&std::env::args_os().collect::<Vec<_>>())
}

/// Exit code and captured output of a command that ran within this process.
#[derive(Debug)]
pub struct CallOutput {
    pub code: ExitCode,
    /// Captured stdout.
    pub output: String,
    /// Captured stderr of the calling thread. Other threads, such as those that show progress, write to stderr
    /// directly.
    pub errors: String,
}

/// Runs a command line within this process. The first word is the program name.
pub fn call(words: &[OsString]) -> CallOutput {
    let (code, [output, errors]) = terminal::capture(|| execute(words));
    CallOutput { code, output, errors }
}

/// Returns the full name of a command, such as `cache ls`.
fn command_name(matches: &ArgMatches) -> String {
    let inner = matches.subcommand();
    let names = std::iter::successors(inner, |(_, matches)| matches.subcommand()).map(|(name, _)| name);
    names.collect::<Vec<_>>().join(" ")
}

fn execute(words: &[OsString]) -> ExitCode {
    let command = help::build_command().color(terminal::color_choice(words.iter().cloned()));
    let (name, arguments) = match command
        .try_get_matches_from(words)
        .and_then(|matches| Arguments::from_arg_matches(&matches).map(|arguments| (command_name(&matches), arguments)))
    {
        Ok(read) => read,
        Err(error) => {
            if error.use_stderr() {
                answer::print_usage_error(words.iter().cloned(), &error);
            }
            terminal::print_usage(&error);
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    arguments.output.apply();
    TextLimit::set(arguments.text.bytes());
    let result = match arguments.command {
        Command::Init(arguments) => project_setup::run(&arguments),
        Command::Run(arguments) => run::run(&arguments),
        Command::Score(arguments) => score::run(&arguments),
        Command::Layers(arguments) => layers::run(&arguments),
        Command::Search(arguments) => search::run(&arguments),
        Command::Worker(arguments) => worker::run(&arguments),
        Command::Submit(command) => submit::run(&command),
        Command::Cancel(arguments) => status::run_cancel(&arguments),
        Command::Reproduce(arguments) => reproduce::run(&arguments),
        Command::Fetch(arguments) => fetch::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Audit(arguments) => audit::run(&arguments),
        Command::Verify(arguments) => record::run_verify(&arguments),
        Command::Record(command) => record::run(&command),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Explain(arguments) => explain::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Completions(arguments) => manual::run_completions(&arguments),
        Command::Man(arguments) => manual::run(&arguments),
        Command::Schema(arguments) => manual::run_schema(&arguments),
        Command::Cache(command) => cache::run(&command),
        Command::Store(command) => project_setup::run_store(&command),
    };
    // A failed write to stdout is an error unless the reader closed the pipe.
    match result.and_then(|code| terminal::finish_stdout().map(|()| code)) {
        Ok(code) => code,
        Err(error) => {
            if answer::is_json() {
                answer::print_error(&name, &error);
            }
            terminal::eprint_error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

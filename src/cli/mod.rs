//! Layer 5: command-line arguments, exit codes and all printing.

/// These macros replace those of the standard library, which panic if the output is closed or full (see `out`).
macro_rules! print {
    ($($text:tt)*) => { $crate::cli::out::say(format_args!($($text)*)) };
}
macro_rules! println {
    ($($text:tt)*) => { $crate::cli::out::say(format_args!("{}\n", format_args!($($text)*))) };
}
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::cli::out::tell(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints a note, unless `-q` is given.
macro_rules! note {
    ($($text:tt)*) => { if $crate::cli::out::notes() { $crate::cli::out::tell(format_args!("{}\n", format_args!($($text)*))) } };
}
/// Prints a detail, if `-v` is given.
macro_rules! detail {
    ($($text:tt)*) => { if $crate::cli::out::details() { $crate::cli::out::tell(format_args!("{}\n", format_args!($($text)*))) } };
}

mod answer;
mod audit;
mod begin;
mod cache;
mod compare;
mod comparison_summary;
mod doctor;
mod doctor_model;
mod explain;
mod export;
mod fetch;
mod grid_args;
mod help;
mod home;
mod layers;
mod listing;
mod local_data;
mod manual;
mod named_entries;
#[cfg(test)]
mod options_test;
mod out;
mod plan;
mod progress;
mod record;
mod report;
mod reproduce;
mod run;
mod score;
mod search;
mod search_grid;
mod status;
mod stop;
mod submit;
mod work;
mod worker;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgMatches, FromArgMatches, Parser, Subcommand};

use crate::files::limit::TextLimit;
use crate::quantity::Gigabytes;

#[derive(Parser)]
#[command(name = "ghostlab", version, about, long_about = None)]
struct Arguments {
    /// Maximum size of a text file in GB, after decompression (a tenth of that per JSON row or task file).
    #[arg(
        long,
        value_name = "GB",
        global = true,
        default_value_t = Gigabytes::of_bytes(TextLimit::DEFAULT),
        help_heading = "Limits",
        display_order = 1000
    )]
    text: Gigabytes,
    #[command(flatten)]
    form: answer::Form,
    #[command(flatten)]
    verbosity: out::Verbosity,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a first grid for the models in a folder.
    ///
    /// It has every important key with its possible values. Models of unknown architecture and damaged ones are listed and left out. `plan` accepts the written file.
    Init(begin::Arguments),
    /// Run a grid: prune, repair and score every cell.
    ///
    /// Stored results are not computed again; an interrupted run resumes. Exit codes: 0 done, 2 bad input, 3 something
    /// missing (model, data, disk; with `--stored` a cell without results), 4 a cell failed, 5 stored data damaged, 130
    /// interrupted.
    Run(run::Arguments),
    /// Score one model: perplexity of texts, accuracy on tasks.
    ///
    /// This is the dense cell of a grid: what a grid has scored of the same files is not scored again.
    Score(score::Arguments),
    /// Rank the layers and sublayers of a model by every criterion.
    ///
    /// One table, and with --figure one figure: what each criterion measures of each layer, and what it would remove first.
    Layers(layers::Arguments),
    /// Search what to remove from a model and how to repair it.
    ///
    /// The budget limits layers, time or memory. Candidates race on items that grow round by round; who is worse beyond chance leaves. The winner is judged on items that
    /// the race never saw. A second search on the same items computes only what is new. Exit code 4: none meets the budget when
    /// it is measured.
    Search(search::Arguments),
    /// Run part of a grid next to other workers of one store.
    ///
    /// A worker does job after job, until no work is left. This writes no results: `run --stored` or `reproduce --stored` does when all is done. Exit codes: 0 nothing is left that
    /// it may do, 75 asked to end before (USR1, TERM, Ctrl-C), to be started again; 2, 3 and 5 as of `run`.
    Worker(worker::Arguments),
    /// Submit a grid to a scheduler, which starts many workers.
    #[command(subcommand)]
    Submit(submit::Command),
    /// Cancel what `submit` submitted with this store.
    Cancel(status::CancelArguments),
    /// Make tables and figures of the paper, or list them.
    Reproduce(reproduce::Arguments),
    /// Download models, texts and tasks from the Hugging Face hub.
    ///
    /// They are pinned, checked and stored in the cache that Python uses too. Cached files are not requested again. An interrupted download resumes.
    Fetch(fetch::Arguments),
    /// Check models, texts, tasks, disk, memory, device and token.
    ///
    /// Exit code 3 if something is missing.
    Doctor(doctor::Arguments),
    /// Check the paper's tables against themselves.
    Audit(audit::Arguments),
    /// Verify a results folder by recomputing a sample.
    ///
    /// Files by their hashes, numbers from their items, tables from their numbers; windows, documents, layer choices and
    /// operators are drawn. Latencies are not verified. Exit codes: 0 all agrees, 4 something differs, 3 nothing differs and
    /// something cannot be checked.
    Verify(record::VerifyArguments),
    /// Pack results folders for others.
    #[command(subcommand)]
    Record(record::Command),
    /// Compare two results folders, with paired tests on the same items.
    Compare(compare::Arguments),
    /// Write the page of all finished artifacts.
    Report(report::Arguments),
    /// Show what a run of a grid would do, why, and at what cost.
    Plan(plan::Arguments),
    /// Show everything that one cell is made from.
    Explain(explain::Arguments),
    /// Write cells as Hugging Face folders.
    ///
    /// A folder has weights, config, tokenizer and a model card. Layers and operators that are not stored are computed first. A previous export to the folder is replaced as a
    /// whole; other files in it stay.
    #[command(mut_arg("dtype", |dtype| dtype.help(export::DTYPE)))]
    Export(export::Arguments),
    /// Show runs with their progress and failures, also after a crash.
    Status(status::Arguments),
    /// Print the JSON schema of grid files or of `--json` output.
    Schema(manual::SchemaArguments),
    /// Print a script that completes commands and options in a shell.
    ///
    /// For this session: `source <(ghostlab completions bash)`, the same for zsh, `ghostlab completions fish | source`.
    /// For good: put that line into `~/.bashrc`, `~/.zshrc` (after `compinit`) or `~/.config/fish/config.fish`.
    Completions(manual::CompletionsArguments),
    /// Write manual pages of the program and its commands.
    Man(manual::Arguments),
    /// Inspect, check and clean up the store.
    #[command(subcommand)]
    Cache(cache::Command),
    /// Create a store, for one user or several.
    #[command(subcommand)]
    Store(begin::StoreCommand),
}

/// Parses and runs the command line of the process, prints errors, and returns the exit code.
pub fn main() -> ExitCode {
    execute(&std::env::args_os().collect::<Vec<_>>())
}

/// Result of an in-process command.
#[derive(Debug)]
pub struct Called {
    pub code: ExitCode,
    /// Captured stdout.
    pub output: String,
    /// Captured stderr of the calling thread. Other threads, such as progress, write to stderr directly.
    pub errors: String,
}

/// Runs a command line within this process. The first word is the program name.
pub fn call(words: &[OsString]) -> Called {
    let (code, [output, errors]) = out::kept(|| execute(words));
    Called { code, output, errors }
}

/// Returns the name of the command and its subcommand.
fn called(matches: &ArgMatches) -> String {
    let inner = matches.subcommand();
    let names = std::iter::successors(inner, |(_, matches)| matches.subcommand()).map(|(name, _)| name);
    names.collect::<Vec<_>>().join(" ")
}

fn execute(words: &[OsString]) -> ExitCode {
    let command = help::command().color(out::of_help(words.iter().cloned()));
    let (name, arguments) = match command
        .try_get_matches_from(words)
        .and_then(|matches| Arguments::from_arg_matches(&matches).map(|arguments| (called(&matches), arguments)))
    {
        Ok(read) => read,
        Err(error) => {
            if error.use_stderr() {
                answer::misused(words.iter().cloned(), &error);
            }
            out::show_usage(&error);
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    arguments.verbosity.set();
    arguments.form.set();
    TextLimit::set(arguments.text.bytes());
    let result = match arguments.command {
        Command::Init(arguments) => begin::run(&arguments),
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
        Command::Store(command) => begin::run_store(&command),
    };
    // Fail if output was lost, unless the reader closed the stream.
    match result.and_then(|code| out::end().map(|()| code)) {
        Ok(code) => code,
        Err(error) => {
            if answer::json() {
                answer::failed(&name, &error);
            }
            out::tell_error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

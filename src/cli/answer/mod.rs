//! Output of commands. Each command returns one typed value, which is printed as text or, with `--json`, as JSON.
//!
//! `ghostlab schema output` derives its schema from these types, so the schema always matches the output. If a field is
//! renamed or removed or its meaning changes, increment [`SCHEMA_VERSION`].

pub(super) mod cache;
pub(super) mod layers;
pub(super) mod plan;
pub(super) mod plan_cost;
pub(super) mod read_commands;
pub(super) mod write_commands;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;

use super::terminal;
pub(super) use super::terminal::is_json;
use crate::error::{Error, ErrorParts, Result};

/// Version of the output schema. Adding fields does not change it.
const SCHEMA_VERSION: u32 = 1;

/// Prints the output of a successful command: as JSON if `--json` was given, and by calling `print_text` otherwise.
/// `variant` is the variant of [`Answer`] that contains the output.
pub(super) fn print_answer<T>(answer: T, variant: fn(T) -> Answer, print_text: impl FnOnce(&T)) -> Result<ExitCode> {
    match is_json() {
        true => terminal::print_json(&Document::new(Outcome::Answer(Box::new(variant(answer)))))?,
        false => print_text(&answer),
    }
    Ok(ExitCode::SUCCESS)
}

/// JSON document printed with `--json`: the output of a command, or its error.
#[derive(Serialize, JsonSchema)]
struct Document {
    /// Version of the program.
    ghostlab: &'static str,
    /// Version of this schema. New fields may be added without a new version. Existing fields keep their names and
    /// meanings.
    schema: u32,
    #[serde(flatten)]
    outcome: Outcome,
}

/// Output of a command, or an error.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum Outcome {
    Answer(Box<Answer>),
    Error(CommandError),
}

/// Output of each command.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "command", content = "answer", rename_all = "lowercase")]
#[allow(clippy::large_enum_variant, reason = "values are always boxed")]
pub(super) enum Answer {
    Plan(plan::PlanAnswer),
    Status(read_commands::StatusAnswer),
    #[serde(rename = "cache ls")]
    CacheLs(cache::CacheLsAnswer),
    #[serde(rename = "cache verify")]
    CacheVerify(cache::CacheVerifyAnswer),
    #[serde(rename = "cache gc")]
    CacheGc(cache::CacheGcAnswer),
    #[serde(rename = "cache path")]
    CachePath(cache::CachePathAnswer),
    Compare(read_commands::CompareAnswer),
    Verify(crate::verify::Verification),
    #[serde(rename = "record pack")]
    RecordPack(write_commands::RecordPackAnswer),
    Explain(read_commands::ExplainAnswer),
    Init(write_commands::InitAnswer),
    Run(write_commands::RunAnswer),
    Score(write_commands::ScoreAnswer),
    Layers(layers::LayersAnswer),
    Search(write_commands::SearchAnswer),
    Worker(write_commands::WorkerAnswer),
    #[serde(rename = "submit slurm")]
    SubmitSlurm(write_commands::SubmitAnswer),
    Cancel(write_commands::CancelAnswer),
    Reproduce(write_commands::ReproduceAnswer),
    Fetch(write_commands::FetchAnswer),
    Doctor(read_commands::DoctorAnswer),
    Audit(write_commands::AuditAnswer),
    Report(write_commands::ReportAnswer),
    Export(write_commands::ExportAnswer),
    Schema(write_commands::SchemaAnswer),
    Completions(write_commands::CompletionsAnswer),
    Man(write_commands::ManAnswer),
    #[serde(rename = "store init")]
    StoreInit(write_commands::StoreInitAnswer),
}

/// Error from a failed command.
#[derive(Serialize, JsonSchema)]
struct CommandError {
    /// Name of the command.
    command: String,
    error: ErrorWithExitCode,
}

/// Error that is also printed to stderr as text.
#[derive(Serialize, JsonSchema)]
struct ErrorWithExitCode {
    /// Exit code of the process.
    exit_code: u8,
    #[serde(flatten)]
    #[schemars(with = "ErrorParts")]
    error: Error,
}

impl Document {
    fn new(outcome: Outcome) -> Self {
        Self { ghostlab: env!("CARGO_PKG_VERSION"), schema: SCHEMA_VERSION, outcome }
    }
}

/// Prints an error as a JSON document.
pub(super) fn print_error(command: &str, error: &Error) {
    let failure = ErrorWithExitCode { exit_code: error.exit_code(), error: error.clone() };
    // Ignore write failures, because the error is also printed to stderr.
    terminal::print_json(&Document::new(Outcome::Error(CommandError { command: command.to_owned(), error: failure })))
        .ok();
}

/// Returns the full names of all commands that have no subcommands, such as `run` or `cache ls`.
pub(super) fn command_names() -> Vec<String> {
    fn walk(command: &clap::Command, before: &str, found: &mut Vec<String>) {
        for inner in command.get_subcommands() {
            let name = format!("{before}{}", inner.get_name());
            match inner.has_subcommands() {
                true => walk(inner, &format!("{name} "), found),
                false => found.push(name),
            }
        }
    }
    let mut found = Vec::new();
    walk(&super::Arguments::command(), "", &mut found);
    found
}

/// Prints a command-line usage error as JSON if `--json` was given.
pub(super) fn print_usage_error(words: impl Iterator<Item = OsString>, error: &clap::Error) {
    let words: Vec<String> = words.skip(1).map_while(|word| word.into_string().ok()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).take_while(|word| *word != "--").collect();
    // An option's value may equal a command name, so use the command that comes first on the line.
    let rank = |command: &&String| {
        let places = command.split(' ').map(|part| words.iter().position(|word| *word == part));
        places.collect::<Option<Vec<_>>>().and_then(|places| places.first().copied())
    };
    let known = command_names();
    let named = known.iter().filter(|command| rank(command).is_some()).min_by_key(rank);
    if let Some(command) = named.filter(|_| words.contains(&"--json")) {
        let text = error.render().to_string();
        let what = text.lines().next().unwrap_or_default();
        let what = what.strip_prefix("error: ").unwrap_or(what);
        print_error(
            command,
            &Error::bad_input(what).hint(format!("see `ghostlab {command} --help` for the allowed values")),
        );
    }
}

/// Schema descriptions of enum tags, which cannot have doc comments because serde generates them.
const TAG_DESCRIPTIONS: [(&str, &str); 5] = [
    ("command", "Command that produced the answer."),
    ("answer", "Output of the command."),
    ("job", "Type of the job."),
    ("why", "Type of the reason."),
    ("what", "Changed fields, or the damage."),
];

/// Adds [`TAG_DESCRIPTIONS`] to the enum tags of a schema.
fn describe_tags(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            for (name, text) in TAG_DESCRIPTIONS {
                let property =
                    keys.get_mut("properties").and_then(|keys| keys.get_mut(name)).and_then(Value::as_object_mut);
                if let Some(property) = property {
                    property.entry("description").or_insert_with(|| text.into());
                }
            }
            keys.values_mut().for_each(describe_tags);
        }
        Value::Array(items) => items.iter_mut().for_each(describe_tags),
        _ => {}
    }
}

pub(super) fn output_schema() -> Value {
    let mut schema = SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<Document>();
    schema.insert("title".to_owned(), "Output of ghostlab with --json".into());
    let mut schema = schema.to_value();
    describe_tags(&mut schema);
    schema
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn every_command_has_an_answer_in_the_schema() {
        let schema = super::output_schema();
        let named: BTreeSet<String> = schema["$defs"]["Answer"]["oneOf"]
            .as_array()
            .unwrap()
            .iter()
            .map(|variant| variant["properties"]["command"]["const"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(named, super::command_names().into_iter().collect());
    }
}

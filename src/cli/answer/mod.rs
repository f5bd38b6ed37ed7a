//! Answers of commands: one typed value, printed as text or, with `--json`, as JSON.
//!
//! The schema is made from these types (`ghostlab schema output`), so that what is described is what is written. A field
//! that is renamed, removed or means something else is another schema: [`SCHEMA`].

pub(super) mod cache;
pub(super) mod done;
pub(super) mod layers;
pub(super) mod plan;
pub(super) mod seen;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use clap::{Args, CommandFactory};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;

use super::out;
use crate::error::{Error, ErrorParts, Result};

/// The version of the schema. New fields may come under the same one.
const SCHEMA: u32 = 1;

/// How answers are shown.
#[derive(Args)]
pub(super) struct Form {
    /// Print the answer as one JSON document, an error as well; `ghostlab schema output` prints its schema.
    #[arg(long, global = true)]
    json: bool,
}

/// The arguments are read once, and every command asks here.
static JSON: AtomicBool = AtomicBool::new(false);

impl Form {
    pub(super) fn set(&self) {
        JSON.store(self.json, Relaxed);
    }
}

/// Returns whether answers are printed as JSON.
pub(super) fn json() -> bool {
    JSON.load(Relaxed)
}

/// Prints an answer; `text` formats it for people. The command is complete.
///
/// # Errors
/// It has no JSON form.
pub(super) fn show<T>(answer: T, named: fn(T) -> Answer, text: impl FnOnce(&T)) -> Result<ExitCode> {
    match json() {
        true => out::say_json(&Document::new(Outcome::Answer(Box::new(named(answer)))))?,
        false => text(&answer),
    }
    Ok(ExitCode::SUCCESS)
}

/// Output of `ghostlab --json`: the answer of a command, or the error that prevented it.
#[derive(Serialize, JsonSchema)]
struct Document {
    /// The version of the program.
    ghostlab: &'static str,
    /// Version of this schema. New fields may be added under the same version; existing ones keep name and meaning.
    schema: u32,
    #[serde(flatten)]
    outcome: Outcome,
}

/// An answer or an error.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum Outcome {
    Answer(Box<Answer>),
    Error(Failed),
}

/// The commands that answer.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "command", content = "answer", rename_all = "lowercase")]
#[allow(clippy::large_enum_variant, reason = "it is boxed")]
pub(super) enum Answer {
    Plan(plan::PlanAnswer),
    Status(seen::StatusAnswer),
    #[serde(rename = "cache ls")]
    CacheLs(cache::Listing),
    #[serde(rename = "cache verify")]
    CacheVerify(cache::Verified),
    #[serde(rename = "cache gc")]
    CacheGc(cache::Clearing),
    #[serde(rename = "cache path")]
    CachePath(cache::Located),
    Compare(seen::Comparison),
    Verify(crate::verify::Verification),
    #[serde(rename = "record pack")]
    RecordPack(done::PackedRecord),
    Explain(seen::Explanation),
    Init(done::Begun),
    Run(done::Ran),
    Score(done::Scored),
    Layers(layers::RankedLayers),
    Search(done::Searched),
    Worker(done::WorkerEnd),
    #[serde(rename = "submit slurm")]
    SubmitSlurm(done::Submitted),
    Cancel(done::Cancelled),
    Reproduce(done::Reproduced),
    Fetch(done::Fetched),
    Doctor(seen::Diagnosis),
    Audit(done::Audited),
    Report(done::Reported),
    Export(done::ExportedCells),
    Schema(done::PrintedSchema),
    Completions(done::Completions),
    Man(done::Manual),
    #[serde(rename = "store init")]
    StoreInit(done::BegunStore),
}

/// An error in the place of an answer.
#[derive(Serialize, JsonSchema)]
struct Failed {
    /// The command that was called.
    command: String,
    error: Failure,
}

/// The error. The same is on standard error as text.
#[derive(Serialize, JsonSchema)]
struct Failure {
    /// The process's exit code.
    exit_code: u8,
    #[serde(flatten)]
    parts: ErrorParts,
}

impl Document {
    fn new(outcome: Outcome) -> Self {
        Self { ghostlab: env!("CARGO_PKG_VERSION"), schema: SCHEMA, outcome }
    }
}

/// Prints an error as a document, for programs that read answers.
pub(super) fn failed(command: &str, error: &Error) {
    let failure = Failure { exit_code: error.exit_code(), parts: error.parts().clone() };
    // Standard error has it in any case.
    out::say_json(&Document::new(Outcome::Error(Failed { command: command.to_owned(), error: failure }))).ok();
}

/// Returns the commands with answers.
pub(super) fn commands() -> Vec<String> {
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

/// Prints a mistake in the arguments as a document, where one was asked for.
pub(super) fn misused(words: impl Iterator<Item = OsString>, error: &clap::Error) {
    let words: Vec<String> = words.skip(1).map_while(|word| word.into_string().ok()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).take_while(|word| *word != "--").collect();
    // Values of options may be called as commands are: the command stands before what belongs to it.
    let rank = |command: &&String| {
        let places = command.split(' ').map(|part| words.iter().position(|word| *word == part));
        places.collect::<Option<Vec<_>>>().and_then(|places| places.first().copied())
    };
    let known = commands();
    let named = known.iter().filter(|command| rank(command).is_some()).min_by_key(rank);
    if let Some(command) = named.filter(|_| words.contains(&"--json")) {
        let text = error.render().to_string();
        let what = text.lines().next().unwrap_or_default();
        let what = what.strip_prefix("error: ").unwrap_or(what);
        failed(command, &Error::bad_input(what).hint(format!("`ghostlab {command} --help` lists the allowed values")));
    }
}

/// Descriptions of fields that serde generates and that have no doc comment: tags of enums.
const TAGS: [(&str, &str); 5] = [
    ("command", "The command that answers."),
    ("answer", "What it answers."),
    ("job", "What the job does."),
    ("why", "What sort of reason it is."),
    ("what", "The fields that changed, or the damage."),
];

/// Describes the tags.
fn describe_tags(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            for (name, text) in TAGS {
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

/// Returns the JSON schema of all `--json` output.
pub(super) fn schema() -> Value {
    let mut schema = SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<Document>();
    schema.insert("title".to_owned(), "What ghostlab prints with --json".into());
    let mut schema = schema.to_value();
    describe_tags(&mut schema);
    schema
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn every_command_has_an_answer_in_the_schema() {
        let schema = super::schema();
        let named: BTreeSet<String> = schema["$defs"]["Answer"]["oneOf"]
            .as_array()
            .unwrap()
            .iter()
            .map(|variant| variant["properties"]["command"]["const"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(named, super::commands().into_iter().collect());
    }
}

//! Built-in definitions of the paper's nine tasks, in the format of lm-evaluation-harness.

use std::path::Path;
use std::sync::LazyLock;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::tasks::{DocumentLimit, Questions, Solutions, Task as Known, TokenizedRequest};
use rayon::prelude::*;

use crate::definition::Definition;
use crate::rows::FileRows;
use crate::task::Task;
use crate::yaml::parse;

macro_rules! files {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!("../tasks/", $name, ".yaml")))),*]
    };
}

const FILES: [(&str, &str); 10] = files!(
    "arc_easy",
    "arc_challenge",
    "hellaswag",
    "winogrande",
    "boolq",
    "openbookqa",
    "rte",
    "copa",
    "race",
    "race_v2"
);

/// Returns the definition of a built-in task.
///
/// # Errors
/// Fails only if the built-in definition is missing or invalid.
pub fn definition(task: &Known) -> Result<&'static Definition> {
    static ALL: LazyLock<Vec<Result<Definition>>> =
        LazyLock::new(|| FILES.iter().map(|(name, text)| read_definition(name, text)).collect());
    let found = FILES.iter().position(|(name, _)| *name == task.name);
    match found.and_then(|index| ALL.get(index)) {
        Some(Ok(definition)) => Ok(definition),
        Some(Err(error)) => Err(Error::job(error.one_line())),
        None => Err(Error::job("the task has no built-in definition").at(task.name)),
    }
}

fn read_definition(name: &str, text: &str) -> Result<Definition> {
    let definition = Definition::read(&parse(text, &format!("{name}.yaml"))?)?;
    Ok(Definition { non_finite: Known::NON_FINITE, ..definition })
}

/// Reads the documents of a built-in task from `path`, which is a file or a folder that contains the task's split.
/// Files that belong to other splits are never read.
///
/// # Errors
/// Fails if the split has no file, or the file is named after another split. Also fails if [`Task::with_limit`] does,
/// with an error that names the task, file and row.
pub fn task(known: &Known, path: &Path, limit: Option<DocumentLimit>) -> Result<Task> {
    Task::with_limit(definition(known)?.clone(), &files(known, path)?, limit)
}

/// Finds the files at `path` (a file or a folder) that contain a built-in task's split.
///
/// # Errors
/// Fails if there are none, or if a file is named after another split.
pub fn files(known: &Known, path: &Path) -> Result<FileRows> {
    Ok(FileRows { splits: [(definition(known)?.evaluated_split().to_owned(), known.files(path)?)].into() })
}

/// Returns the data for scoring tokenized documents: gold answers, and the length of each choice in characters, bytes
/// and tokens.
///
/// # Errors
/// Fails if the tokens do not match the documents or a gold answer is not an index.
pub fn solutions(known: &'static Known, task: &Task, tokens: &[Vec<TokenizedRequest>]) -> Result<Solutions> {
    if tokens.len() != task.documents.len() {
        return Err(mismatched_requests_error(known).found(format!(
            "{} of {} documents",
            tokens.len(),
            task.documents.len()
        )));
    }
    let documents: Vec<Result<Questions>> =
        tokens.par_iter().enumerate().map(|(id, tokens)| build_questions(known, task, id, tokens)).collect();
    let documents = documents.into_iter().collect::<Result<_>>()?;
    Ok(Solutions::new(known, task.original, documents))
}

fn build_questions(known: &Known, task: &Task, id: usize, tokens: &[TokenizedRequest]) -> Result<Questions> {
    let (choices, gold) = task.solution(id)?;
    if tokens.len() != choices.len() {
        let found = format!("{} requests for {} choices", tokens.len(), choices.len());
        return Err(mismatched_requests_error(known).found(found));
    }
    let gold = gold.as_int().ok_or_else(|| {
        Error::bad_input("the correct answer is not a choice index").at(task.place(id)).found(gold.repr())
    })?;
    let lengths = choices.iter().zip(tokens).map(|(choice, tokens)| {
        let text = choice.text();
        [text.chars().count(), text.len(), tokens.continuation_ids.len(), tokens.cut_ids.len()]
    });
    Ok(Questions { id, gold, choices: lengths.collect() })
}

fn mismatched_requests_error(known: &Known) -> Error {
    Error::job("the number of tokenized requests does not match the documents").at(format!("task {}", known.name))
}

#[cfg(test)]
#[path = "builtin_tests.rs"]
mod tests;

//! Every choice of every document of every cell, as one Parquet file; and each cell's accuracies for other tools.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use polars::prelude::{DataFrame, IntoColumn, NamedFrom, ParquetWriter, Series};

use super::csv::{failed, unwritten};
use crate::error::{Error, Result};
use crate::files::atomic::write_atomically;
use crate::files::name;
use crate::tasks::DocumentResult;

/// The documents of one cell on one task.
#[derive(Debug, Clone, Copy)]
pub struct Answers<'a> {
    pub cell: &'a str,
    pub task: &'a str,
    pub documents: &'a [DocumentResult],
}

/// The columns that a choice has of its own.
type Numbers<'a> = (&'a str, &'a dyn Fn(&crate::tasks::ChoiceResult) -> u64);

/// Writes `documents.parquet` into `dir`: one row for each choice, in order, so that any metric can be derived later.
///
/// # Errors
/// Exit code 3 when the folder cannot be written to.
pub fn write_documents(dir: &Path, answers: &[Answers<'_>]) -> Result<PathBuf> {
    let choices = || {
        answers.iter().flat_map(|of| {
            of.documents.iter().flat_map(move |document| {
                document.choices.iter().enumerate().map(move |(index, choice)| (of, document, index, choice))
            })
        })
    };
    let numbers: [Numbers<'_>; 4] = [
        ("characters", &|choice| choice.characters as u64),
        ("bytes", &|choice| choice.bytes as u64),
        ("tokens", &|choice| choice.tokens as u64),
        ("truncated_left", &|choice| choice.truncated_left as u64),
    ];
    let mut columns = vec![
        Series::new("cell".into(), choices().map(|(of, ..)| of.cell).collect::<Vec<_>>()).into_column(),
        Series::new("task".into(), choices().map(|(of, ..)| of.task).collect::<Vec<_>>()).into_column(),
        Series::new("document".into(), choices().map(|(_, document, ..)| document.id as u64).collect::<Vec<_>>())
            .into_column(),
        Series::new("gold".into(), choices().map(|(_, document, ..)| document.gold).collect::<Vec<_>>()).into_column(),
        Series::new("choice".into(), choices().map(|(.., index, _)| index as u64).collect::<Vec<_>>()).into_column(),
        Series::new("log_likelihood".into(), choices().map(|(.., choice)| choice.log_likelihood).collect::<Vec<_>>())
            .into_column(),
        Series::new("greedy".into(), choices().map(|(.., choice)| choice.greedy).collect::<Vec<_>>()).into_column(),
    ];
    for (name, number) in numbers {
        let values: Vec<u64> = choices().map(|(.., choice)| number(choice)).collect();
        columns.push(Series::new(name.into(), values).into_column());
    }
    let mut frame = DataFrame::new(choices().count(), columns).map_err(|error| failed(&error))?;
    let path = dir.join("documents.parquet");
    write_atomically(&path, |file| {
        ParquetWriter::new(file).finish(&mut frame).map(|_| ()).map_err(|error| unwritten(&path, &error))
    })?;
    Ok(path)
}

/// Writes results files in the layout of lm-evaluation-harness, named after their cells, into `dir/lm_eval`; the folder.
/// A cell's second file is called so.
///
/// # Errors
/// Exit code 3 when the folder cannot be written to.
pub fn write_lm_eval(dir: &Path, files: &[(&str, serde_json::Value)]) -> Result<PathBuf> {
    let folder = dir.join("lm_eval");
    fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
    for (index, (cell, results)) in files.iter().enumerate() {
        let name = name::of(cell);
        let earlier = files[..index].iter().filter(|(other, _)| other == cell).count();
        let more = if earlier == 0 { String::new() } else { format!(".{}", earlier + 1) };
        let path = folder.join(format!("{name}{more}.json"));
        let text = serde_json::to_vec_pretty(results)
            .map_err(|error| Error::job("the results have no JSON form").at(*cell).found(error.to_string()))?;
        write_atomically(&path, |file| file.write_all(&text).map_err(|error| Error::io("write", &path, &error)))?;
    }
    Ok(folder)
}

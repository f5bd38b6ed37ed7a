//! The documents of a task, read and limited.

use std::path::{Path, PathBuf};

use super::limit::DocumentLimit;
use super::prompt::Prompt;
use super::row::{TaskRow, read_rows};
use super::task::Task;
use crate::error::Result;

/// One document: a row's prompt with its number and place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its number in the split, from 0, in the order of the file.
    pub id: usize,
    /// File and row, for messages.
    pub place: String,
    pub prompt: Prompt,
}

/// The documents of a task that are scored.
#[derive(Debug, Clone)]
pub struct Items {
    pub task: &'static Task,
    /// The files that they were read from.
    pub files: Vec<PathBuf>,
    /// Documents in those files, before the limit.
    pub original: usize,
    pub documents: Vec<Document>,
}

impl Items {
    /// Reads a task's documents from `path`: one file, or a folder that holds the task's split (files of other splits
    /// beside it are never read). Of rows beyond `limit` only the form is checked.
    ///
    /// # Errors
    /// No file of the task's split at `path`, or a file named after another split; everything that
    /// [`read_rows`] and [`Task::prompt`] refuse, with task, file and row.
    pub fn read(task: &'static Task, path: impl AsRef<Path>, limit: Option<DocumentLimit>) -> Result<Self> {
        let named = |error: crate::error::Error| error.at(format!("task {}", task.name));
        let files = task.files(path.as_ref())?;
        let mut rows: Vec<TaskRow> = Vec::new();
        for file in &files {
            rows.extend(read_rows(file, task.columns).map_err(named)?);
        }
        let original = rows.len();
        rows.truncate(limit.map_or(original, |limit| limit.of(original)));
        let document = |(id, row): (usize, TaskRow)| Ok(Document { id, prompt: task.prompt(&row)?, place: row.place });
        let documents = rows.into_iter().enumerate().map(document).collect::<Result<_>>()?;
        Ok(Self { task, files, original, documents })
    }

    /// Whether all documents of the real split are here: only then may a value stand beside a published one.
    pub fn whole(&self) -> bool {
        self.original == self.task.documents && self.documents.len() == self.original
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize) -> String {
        let row = |label: usize| format!("{{\"sentence1\": \"a\", \"sentence2\": \"b\", \"label\": {label}}}\n");
        (0..count).map(row).collect()
    }

    #[test]
    fn a_limit_keeps_the_first_documents_and_does_not_look_into_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rte.jsonl");
        std::fs::write(&path, rows(3) + "{\"label\": null}\n").unwrap();
        let task = Task::find("rte").unwrap();
        let items = Items::read(task, &path, Some(DocumentLimit::new(0.6).unwrap())).unwrap();
        assert_eq!((items.original, items.documents.len()), (4, 3));
        assert_eq!(items.documents.iter().map(|document| document.prompt.gold).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(!items.whole());
        let message = Items::read(task, &path, None).unwrap_err().to_string();
        assert!(message.contains("task rte") && message.contains("rte.jsonl:4"), "{message}");
    }

    #[test]
    fn shards_are_one_split() {
        let folder = tempfile::tempdir().unwrap();
        for (number, count) in [(0, 200), (1, 77)] {
            std::fs::write(folder.path().join(format!("validation-0000{number}-of-00002.jsonl")), rows(count)).unwrap();
        }
        std::fs::write(folder.path().join("train.jsonl"), "never read").unwrap();
        let items = Items::read(Task::find("rte").unwrap(), folder.path(), None).unwrap();
        assert_eq!((items.files.len(), items.documents.len(), items.documents[200].id), (2, 277, 200));
        assert!(items.documents[200].place.ends_with("validation-00001-of-00002.jsonl:1"));
        assert!(items.whole());
    }

    #[test]
    fn errors_of_files_name_the_task() {
        let folder = tempfile::tempdir().unwrap();
        let task = Task::find("copa").unwrap();
        for path in [folder.path().to_owned(), folder.path().join("absent.jsonl")] {
            assert!(Items::read(task, path, None).unwrap_err().to_string().contains("task copa"));
        }
    }
}

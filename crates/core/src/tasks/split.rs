//! Selection of the files that contain a split of a data set.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::files::rows::{TABLES, input_error};

/// Split on which a task is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    Test,
    Validation,
}

/// Names used for training splits in file names.
const TRAIN_NAMES: [&str; 2] = ["train", "training"];

impl Split {
    /// Returns the names used for this split in file names. The first name is the one used on the Hugging Face Hub.
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Self::Test => &["test"],
            Self::Validation => &["validation", "valid", "val", "dev"],
        }
    }

    fn opposite(self) -> Self {
        match self {
            Self::Test => Self::Validation,
            Self::Validation => Self::Test,
        }
    }

    /// Returns the files of this split, in order.
    ///
    /// A folder is searched for `<split>.<ending>`, or for the complete set of shards
    /// `<split>-00000-of-00002.<ending>`. A single file is accepted unless it is named after another split. This
    /// prevents scoring a training or hidden split by mistake.
    ///
    /// # Errors
    /// Fails if the path does not exist, the folder does not contain the split or contains it twice, a shard is
    /// missing, or the single file is named after another split.
    pub(super) fn files(self, path: &Path) -> Result<Vec<PathBuf>> {
        let metadata = std::fs::metadata(path).map_err(|error| Error::path_io("open", path, &error))?;
        if metadata.is_dir() { self.find_files_in(path) } else { self.check_name(path).map(|()| vec![path.to_owned()]) }
    }

    fn check_name(self, path: &Path) -> Result<()> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let is_other_split = contains_word(self.opposite().names(), &name) || contains_word(&TRAIN_NAMES, &name);
        if !is_other_split || contains_word(self.names(), &name) {
            return Ok(());
        }
        Err(input_error("the file belongs to another split", path)
            .expected(format!("the {} split, on which this task is scored", self.names()[0]))
            .found(format!("a file named `{name}`"))
            .hint("use the file of that split, or rename the file if its name is misleading"))
    }

    fn find_files_in(self, folder: &Path) -> Result<Vec<PathBuf>> {
        let names = list_names(folder)?;
        let word = self.names()[0];
        find_files_named(folder, &names, self.names())?.ok_or_else(|| {
            input_error(format!("the folder has no {word} split"), folder)
                .expected(format!("a file such as `{word}.jsonl` or `{word}-00000-of-00001.parquet`"))
                .found(format_names(&mut names.iter()))
        })
    }
}

/// Returns whether a file name, split at characters other than letters and digits, contains one of the words.
fn contains_word(words: &[&str], name: &str) -> bool {
    name.split(|c: char| !c.is_alphanumeric()).any(|part| words.contains(&part))
}

/// Returns the files of the split named `word` in a folder, in order, or `None` if there are none.
///
/// # Errors
/// Fails if the folder cannot be listed, or contains the split twice or incompletely.
pub fn split_files(folder: &Path, word: &str) -> Result<Option<Vec<PathBuf>>> {
    find_files_named(folder, &list_names(folder)?, &[&word.to_lowercase()])
}

fn list_names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| read_error(&error, folder))? {
        names.push(entry.map_err(|error| read_error(&error, folder))?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn read_error(error: &std::io::Error, folder: &Path) -> Error {
    Error::folder_io("read", folder, error)
}

fn format_names(names: &mut dyn Iterator<Item = &String>) -> String {
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "no files".to_owned() } else { names.join(", ") }
}

fn find_files_named(folder: &Path, names: &[String], words: &[&str]) -> Result<Option<Vec<PathBuf>>> {
    let mut named_files: Vec<(&String, SplitPart)> = Vec::new();
    for name in names {
        if let Some(part) = parse_part(name, words) {
            named_files.push((name, part));
        }
    }
    let Some((_, first)) = named_files.first() else { return Ok(None) };
    let shards = match first {
        SplitPart::Whole => 1,
        SplitPart::Shard { count, .. } => *count,
    };
    let are_in_order = named_files.iter().enumerate().all(|(index, (_, part))| match part {
        SplitPart::Whole => true,
        SplitPart::Shard { number, count } => *number == index && *count == shards,
    });
    let is_mixed = named_files.iter().any(|(_, part)| std::mem::discriminant(part) != std::mem::discriminant(first));
    if named_files.len() != shards || is_mixed || !are_in_order {
        let word = words.first().unwrap_or(&"");
        return Err(input_error(format!("the files of the {word} split are incomplete or ambiguous"), folder)
            .expected(format!(
                "one file such as `{word}.jsonl`, or all shards, such as `{word}-00000-of-00002.parquet`"
            ))
            .found(format_names(&mut named_files.iter().map(|(name, _)| *name))));
    }
    Ok(Some(named_files.into_iter().map(|(name, _)| folder.join(name)).collect()))
}

/// Parses a file name. Returns the part of the split that the file contains, or `None` if the name does not match.
fn parse_part(name: &str, words: &[&str]) -> Option<SplitPart> {
    let name = name.to_lowercase();
    // No extension is a suffix of another one, so at most one matches.
    let stem = TABLES.iter().find_map(|(ending, _)| name.strip_suffix(ending))?;
    let rest = words
        .iter()
        .find_map(|word| stem.strip_prefix(word).filter(|rest| rest.is_empty() || rest.starts_with('-')))?;
    if rest.is_empty() {
        return Some(SplitPart::Whole);
    }
    let (number, count) = rest.strip_prefix('-')?.split_once("-of-")?;
    Some(SplitPart::Shard { number: number.parse().ok()?, count: count.parse().ok()? })
}

/// Part of a split that one file contains: the whole split or one of its shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SplitPart {
    Whole,
    Shard { number: usize, count: usize },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::write(folder.path().join(name), "{}").unwrap();
        }
        folder
    }

    fn find_split_files(split: Split, names: &[&str]) -> Result<Vec<String>> {
        let folder = folder(names);
        let files = split.files(folder.path())?;
        Ok(files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn only_files_of_the_split_are_found_in_a_folder() {
        let names = ["train.jsonl", "test.jsonl", "validation.jsonl", "README.md", "test.txt", "testing.jsonl"];
        assert_eq!(find_split_files(Split::Test, &names).unwrap(), ["test.jsonl"]);
        assert_eq!(find_split_files(Split::Validation, &names).unwrap(), ["validation.jsonl"]);
        assert_eq!(find_split_files(Split::Validation, &["dev.json.gz", "test.json.gz"]).unwrap(), ["dev.json.gz"]);
        let shards = ["test-00001-of-00002.parquet", "test-00000-of-00002.parquet", "train-00000-of-00001.parquet"];
        assert_eq!(
            find_split_files(Split::Test, &shards).unwrap(),
            ["test-00000-of-00002.parquet", "test-00001-of-00002.parquet"],
            "shards must be read in order"
        );
    }

    #[test]
    fn missing_incomplete_or_duplicate_split_is_rejected() {
        for names in [
            &["train.jsonl", "validation.jsonl"][..],
            &[],
            &["test-00000-of-00002.parquet"],
            &["test-00000-of-00001.parquet", "test.jsonl"],
            &["test.json", "test.jsonl"],
            &["test-00000-of-00002.parquet", "test-00001-of-00003.parquet"],
            &["test-00000-of-00002.parquet", "test-00000-of-00002.jsonl"],
        ] {
            let error = find_split_files(Split::Test, names).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{error}");
        }
        let error = Split::Test.files(Path::new("absent/folder")).unwrap_err();
        assert_eq!(error.exit_code(), 3);
    }

    #[test]
    fn file_named_after_another_split_is_rejected() {
        let names =
            ["copa.jsonl", "train.jsonl", "copa_test.jsonl", "copa-val.jsonl", "contest.jsonl", "train_dev.jsonl"];
        let folder = folder(&names);
        let accepted = |split: Split| names.map(|name| split.files(&folder.path().join(name)).is_ok());
        assert_eq!(accepted(Split::Validation), [true, false, false, true, true, true]);
        assert_eq!(accepted(Split::Test), [true, false, true, false, true, false]);
    }
}

//! Journals of unfinished objects. An object is computed in chunks, whose results are appended as they finish, so that
//! a killed run can resume.
//!
//! Each writer appends to its own file and reads all files in the folder, so no process or job modifies another's
//! files. A line contains a JSON record and the first 16 digits of its SHA-256. Truncated lines are ignored. Damaged
//! lines are reported and skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use super::disk::Disk;
use super::process::Process;
use crate::fault;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::sha256;

/// Result for one chunk of an unfinished object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalRecord {
    /// Hash of the object's key.
    pub key: String,
    pub chunk: usize,
    /// Values, stored bit for bit.
    #[serde(with = "bits")]
    pub values: Vec<f64>,
    pub seconds: f64,
}

/// Journal of a job, with the records of all processes that have worked on the job.
pub struct Journal {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    own_path: PathBuf,
    /// Lines that are not flushed yet.
    buffer: Vec<u8>,
    /// Read position in each file.
    read_offsets: BTreeMap<PathBuf, u64>,
}

impl Journal {
    pub(super) fn open(disk: Arc<dyn Disk>, folder: PathBuf, process: &str) -> Self {
        // Each writer needs its own file: two jobs of one process share a folder if one model has two names.
        static NEXT_JOURNAL_ID: AtomicU64 = AtomicU64::new(0);
        let path = folder.join(format!("{process}.{}.jsonl", NEXT_JOURNAL_ID.fetch_add(1, Relaxed)));
        Self { disk, folder, own_path: path, buffer: Vec::new(), read_offsets: BTreeMap::new() }
    }

    /// Returns the records that other writers added since the last call, and an error for each damaged one.
    pub fn read(&mut self) -> (Vec<JournalRecord>, Vec<Error>) {
        let mut records = Vec::new();
        let mut errors = Vec::new();
        for path in list_files(&*self.disk, &self.folder) {
            let start = self.read_offsets.get(&path).copied().unwrap_or(0);
            // Skip a file that was removed after the listing, because its job has finished.
            let Ok(text) = self.disk.read_part(&path, start, u64::MAX) else { continue };
            let mut line_start = 0;
            while let Some(length) = text[line_start..].iter().position(|&byte| byte == b'\n') {
                match parse_record(&text[line_start..line_start + length]) {
                    Some(record) => records.push(record),
                    None => errors.push(
                        Error::damaged("damaged journal entry")
                            .at(format!("{}, byte {}", path.display(), start + line_start as u64))
                            .hint("no action needed: the entry is ignored and its chunk is recomputed"),
                    ),
                }
                line_start += length + 1;
            }
            // A line without a newline is still being written, or the process that wrote it died.
            self.read_offsets.insert(path, start + line_start as u64);
        }
        (records, errors)
    }

    /// Appends a record. It is durable after [`Self::flush`].
    pub fn push(&mut self, record: &JournalRecord) -> Result<()> {
        let json = serde_json::to_string(record)
            .map_err(|error| Error::job("cannot serialize a journal record").found(error))?;
        let check = checksum(json.as_bytes());
        self.buffer.extend_from_slice(format!("{json}\t{check}\n").as_bytes());
        Ok(())
    }

    /// Flushes all records to disk.
    ///
    /// # Errors
    /// Fails with exit code 3 if the disk is full.
    pub fn flush(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.disk.append(&self.own_path, &self.buffer).map_err(|error| write_error(&self.own_path, &error))?;
        fault::fault_point("journal");
        // Skip the flushed records in later reads.
        *self.read_offsets.entry(self.own_path.clone()).or_insert(0) += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Removes this process's journal for a job that another process has finished.
    pub fn remove(self) {
        self.disk.remove(&self.own_path).ok();
        self.disk.remove_empty_folder(&self.folder).ok();
    }

    /// Implements [`crate::Store::retire`].
    pub(super) fn retire(self, is_dead: impl Fn(&str) -> bool, is_stored: impl Fn(&str) -> bool) {
        self.disk.remove(&self.own_path).ok();
        remove_stored_journals(&*self.disk, &self.folder, &is_dead, &is_stored);
    }
}

/// Removes the journals of dead processes in which all objects are stored. Removes the folder if it becomes empty.
fn remove_stored_journals(
    disk: &dyn Disk,
    folder: &Path,
    is_dead: &dyn Fn(&str) -> bool,
    is_stored: &dyn Fn(&str) -> bool,
) {
    for path in list_files(disk, folder) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Skip files that are not journals.
        let Some(owner) = parse_owner(&name) else { continue };
        let Some(text) = is_dead(owner).then(|| disk.read(&path).ok()).flatten() else { continue };
        if text.split(|&byte| byte == b'\n').filter_map(parse_record).all(|record| is_stored(&record.key)) {
            disk.remove(&path).ok();
        }
    }
    // This succeeds only if the folder is empty.
    disk.remove_empty_folder(folder).ok();
}

/// Parses the owner from the name of a journal, `PROCESS.NUMBER.jsonl`.
fn parse_owner(name: &str) -> Option<&str> {
    let (owner, number) = name.strip_suffix(".jsonl")?.split_once('.')?;
    (Process::is_id(owner) && number.parse::<u64>().is_ok()).then_some(owner)
}

/// Removes the journals of dead processes in which all objects are stored, for all jobs.
pub(super) fn sweep(
    disk: &dyn Disk,
    journals: &Path,
    is_dead: impl Fn(&str) -> bool,
    is_stored: impl Fn(&str) -> bool,
) {
    list_files(disk, journals).iter().for_each(|folder| remove_stored_journals(disk, folder, &is_dead, &is_stored));
}

fn list_files(disk: &dyn Disk, folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = disk.list(folder).into_iter().map(|name| folder.join(name)).collect();
    files.sort();
    files
}

pub(super) fn checksum(json: &[u8]) -> String {
    sha256::of_bytes(json)[..16].to_string()
}

fn parse_record(line: &[u8]) -> Option<JournalRecord> {
    let tab = line.iter().rposition(|&byte| byte == b'\t')?;
    let json = &line[..tab];
    let check = &line[tab + 1..];
    (checksum(json).as_bytes() == check).then(|| serde_json::from_slice(json).ok())?
}

fn write_error(path: &Path, error: &std::io::Error) -> Error {
    Error::missing("cannot write the results of a chunk to the store")
        .at(path.display())
        .found(error)
        .hint("make sure that the store is writable and its disk has free space, then run the same command to resume")
}

/// Serialization of floats as hexadecimal bits, which is exact and supports NaN and infinities.
mod bits {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = values.iter().map(|value| format!("{:016x}", value.to_bits())).collect();
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.as_bytes()
            .chunks(16)
            .map(|digits| {
                let digits = std::str::from_utf8(digits).map_err(D::Error::custom)?;
                u64::from_str_radix(digits, 16).map(f64::from_bits).map_err(D::Error::custom)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::disk::SystemDisk;

    fn disk() -> Arc<dyn Disk> {
        Arc::new(SystemDisk::default())
    }

    fn record(chunk: usize, values: &[f64]) -> JournalRecord {
        JournalRecord { key: "k".into(), chunk, values: values.to_vec(), seconds: 0.5 }
    }

    fn write_journal(folder: &Path, process: &str, records: &[JournalRecord]) -> Journal {
        let mut journal = Journal::open(disk(), folder.to_owned(), process);
        records.iter().for_each(|record| journal.push(record).unwrap());
        journal.flush().unwrap();
        journal
    }

    #[test]
    fn journal_record_is_read_once_by_another_process() {
        let folder = tempfile::tempdir().unwrap();
        let values = [0.1, -0.0, f64::NEG_INFINITY, 1e-310];
        let mut one = write_journal(folder.path(), "1", &[record(0, &values), record(1, &[])]);
        assert!(one.read().0.is_empty(), "own records must be skipped");
        let mut two = Journal::open(disk(), folder.path().to_owned(), "2");
        let (records, errors) = two.read();
        assert!(errors.is_empty());
        assert_eq!(records.len(), 2);
        assert_eq!(to_bits(&records[0].values), to_bits(&values));
        one.push(&record(2, &[f64::NAN])).unwrap();
        assert!(two.read().0.is_empty(), "unflushed records must be invisible");
        one.flush().unwrap();
        let (records, _) = two.read();
        assert!(records.len() == 1 && records[0].values[0].is_nan());
    }

    fn to_bits(values: &[f64]) -> Vec<u64> {
        values.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
    }

    #[test]
    fn damaged_journal_line_is_reported_and_truncated_one_ignored() {
        let folder = tempfile::tempdir().unwrap();
        write_journal(folder.path(), "1", &[record(0, &[1.0]), record(1, &[2.0]), record(2, &[3.0])]);
        let path = list_files(&*disk(), folder.path()).remove(0);
        let mut text = fs::read(&path).unwrap();
        let second = text.iter().position(|&byte| byte == b'\n').unwrap() + 20;
        text[second] ^= 1;
        text.truncate(text.len() - 3);
        fs::write(&path, &text).unwrap();
        let mut journal = Journal::open(disk(), folder.path().to_owned(), "2");
        let (records, errors) = journal.read();
        assert_eq!(records, [record(0, &[1.0])]);
        assert!(errors.len() == 1 && errors[0].to_string().contains(".jsonl, byte"), "{errors:?}");
        assert_eq!(errors[0].exit_code(), 5);
    }

    #[test]
    fn jobs_of_one_process_use_separate_journal_files() {
        let folder = tempfile::tempdir().unwrap();
        let [mut one, mut two] = [(), ()].map(|()| Journal::open(disk(), folder.path().to_owned(), "1"));
        for chunk in 0..4 {
            let writer = if chunk % 2 == 0 { &mut one } else { &mut two };
            writer.push(&record(chunk, &[chunk as f64; 3])).unwrap();
            writer.flush().unwrap();
        }
        for (journal, theirs) in [(&mut one, [1, 3]), (&mut two, [0, 2])] {
            let (records, errors) = journal.read();
            assert!(errors.is_empty(), "{errors:?}");
            assert_eq!(records.iter().map(|record| record.chunk).collect::<Vec<_>>(), theirs);
        }
    }

    #[test]
    fn retire_keeps_journals_that_are_live_unstored_or_foreign() {
        let folder = tempfile::tempdir().unwrap();
        let journal_dir = folder.path().join("journal");
        let [dead, with_more, living, process] = [1, 2, 3, 4].map(|pid| format!("{pid}-0123456789ab"));
        for (process, key) in [(&dead, "k"), (&with_more, "other"), (&living, "k")] {
            write_journal(&journal_dir, process, &[JournalRecord { key: key.into(), ..record(0, &[1.0]) }]);
        }
        // Create foreign files, whose names are not those of journals.
        let theirs =
            ["1-0123456789ab.txt", "notes.0.jsonl", "1-0123456789ab.mine.jsonl"].map(|name| journal_dir.join(name));
        theirs.iter().for_each(|path| fs::write(path, "a letter").unwrap());
        let journal = write_journal(&journal_dir, &process, &[record(0, &[1.0])]);
        let retired = [&dead, &with_more];
        journal.retire(|owner| retired.iter().any(|id| *id == owner), |key| key == "k");
        let mut left = list_files(&*disk(), &journal_dir);
        left.retain(|path| !theirs.contains(path));
        assert_eq!(
            left.iter()
                .map(|path| path.file_name().unwrap().to_str().unwrap().split('.').next().unwrap().to_string())
                .collect::<Vec<_>>(),
            [with_more, living]
        );
        fs::remove_file(&left[1]).unwrap();
        Journal::open(disk(), journal_dir.clone(), &process).retire(|_| true, |_| true);
        assert!(theirs.iter().all(|path| path.exists()), "foreign files were removed");
        theirs.iter().for_each(|path| fs::remove_file(path).unwrap());
        Journal::open(disk(), journal_dir.clone(), &process).retire(|_| true, |_| true);
        assert!(!journal_dir.exists());
    }
}

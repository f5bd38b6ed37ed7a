//! Texts that are split into several files, the shards. A grid reads only the first shards of a shuffled list. The
//! order depends only on the seeds, so the required files are known before any download.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::validate::EntryPosition;
use crate::corpus::{ShardOrder, WindowRule};
use crate::error::{Error, Result};

/// Default number of shards to fetch and read per group. [`ShardOrder`] defines the groups. For C4, one shard contains
/// enough text for all samples in the paper.
const DEFAULT_SHARDS_READ: usize = 1;
/// Maximum number of shards that a pattern may expand to.
const MAX_SHARDS: usize = 100_000;

/// Shard settings of a corpus entry, and the seeds used to shuffle the shards.
#[derive(Debug, Clone)]
pub(super) struct ShardsEntry {
    order: ShardOrder,
    /// Maximum number of shards to read per group.
    read: usize,
    /// Names of the shards, in the order given by `files`. If empty, all files in the directory are shards.
    names: Vec<String>,
    seeds: BTreeSet<u64>,
}

/// Shards of a corpus that a grid reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    pub shards: ShardOrder,
    /// Total number of shards.
    #[serde(rename = "of")]
    pub count: usize,
    /// Maximum number of shards read per group.
    pub read: usize,
    /// Names of the files to read, by shard index. The names are relative to the corpus path.
    pub files: BTreeMap<usize, String>,
}

impl ShardsEntry {
    /// Reads the shard settings. Returns `None` if the rule reads a single file.
    pub(super) fn read(
        at: &EntryPosition<'_>,
        rule: &str,
        (order, read): (Option<ShardOrder>, Option<usize>),
        files: &[String],
        seeds: BTreeSet<u64>,
    ) -> Result<Option<Self>> {
        if rule != WindowRule::C4Stream.name() {
            for (key, written) in [("shards", order.is_some()), ("shards_read", read.is_some())] {
                if written {
                    let error = at.key(key).error(format!("`{key}` requires `rule: {}`", WindowRule::C4Stream));
                    return Err(error.found(format!("`rule: {rule}`")));
                }
            }
            return Ok(None);
        }
        let files_at = at.key("files");
        let mut names = Vec::new();
        for pattern in files {
            names.extend(expand_braces(pattern).map_err(|error| error.at(files_at.position().to_string()))?);
        }
        if names.iter().any(|name| folder_of(name) != folder_of(&names[0])) {
            return Err(files_at.error("the shards are in several folders").expected("all shards in one folder"));
        }
        if read == Some(0) {
            return Err(at.key("shards_read").error("invalid `shards_read`").expected("1 or more").found("0"));
        }
        Ok(Some(Self { order: order.unwrap_or_default(), read: read.unwrap_or(DEFAULT_SHARDS_READ), names, seeds }))
    }

    /// Returns the names of the shards to fetch.
    pub(super) fn names_to_fetch(&self) -> Vec<String> {
        self.opened_shards(self.names.len()).into_iter().map(|shard| self.names[shard].clone()).collect()
    }

    /// Returns the indices of the shards that any of the seeds reads, out of `count`.
    fn opened_shards(&self, count: usize) -> BTreeSet<usize> {
        self.seeds.iter().flat_map(|seed| self.order.opened_shards(count, *seed, self.read)).collect()
    }

    /// Returns the directory within the repository that contains the shards.
    pub(super) fn folder(&self) -> &str {
        self.names.first().map_or("", |name| folder_of(name))
    }

    /// Finds the shards in a directory.
    ///
    /// # Errors
    /// Fails if the directory cannot be listed or a required shard is missing.
    pub(super) fn find_in_dir(&self, path: &Path) -> Result<Stream> {
        let names = match self.names.as_slice() {
            [] => list_names(path)?,
            names => names.iter().map(|name| name.rsplit('/').next().unwrap_or(name).to_owned()).collect(),
        };
        let files: BTreeMap<usize, String> =
            self.opened_shards(names.len()).into_iter().map(|shard| (shard, names[shard].clone())).collect();
        if let Some(absent) = files.values().find(|name| !path.join(name).is_file()) {
            return Err(Error::missing("shard not found")
                .at(path.display().to_string())
                .expected(format!("a file `{absent}`")));
        }
        if files.is_empty() {
            return Err(Error::missing("no shards in the folder")
                .at(path.display().to_string())
                .expected("at least one file"));
        }
        Ok(Stream { shards: self.order, count: names.len(), read: self.read, files })
    }
}

fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns the names of the visible files in a directory, sorted.
fn list_names(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).map_err(|error| Error::folder_io("read", folder, &error))?;
    let names = entries.filter_map(|entry| {
        let entry = entry.ok().filter(|entry| entry.path().is_file())?;
        entry.file_name().into_string().ok().filter(|name| !name.starts_with('.'))
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// Expands a pattern into names. `part.{00000..01023}.gz` gives 1,024 names with zero-padded numbers.
fn expand_braces(pattern: &str) -> Result<Vec<String>> {
    if pattern.contains(['*', '?', '[', ']']) {
        return Err(pattern_error(pattern, "wildcards are not supported"));
    }
    let Some((before, rest)) = pattern.split_once('{') else { return Ok(vec![pattern.to_owned()]) };
    let (range, after) = rest.split_once('}').ok_or_else(|| pattern_error(pattern, "missing `}`"))?;
    let (first, last) = range.split_once("..").ok_or_else(|| pattern_error(pattern, "missing `..`"))?;
    let (Some(from), Some(to)) = (parse_number(first), parse_number(last)) else {
        return Err(pattern_error(pattern, "not a range of numbers"));
    };
    if from > to || to - from >= MAX_SHARDS || after.contains(['{', '}']) {
        return Err(pattern_error(pattern, "not one ascending range"));
    }
    Ok((from..=to).map(|number| format!("{before}{number:0width$}{after}", width = first.len())).collect())
}

fn pattern_error(pattern: &str, reason: &str) -> Error {
    Error::bad_input("invalid shard pattern")
        .expected("names with a range of numbers, such as `en/c4-train.{00000..01023}-of-01024.json.gz`")
        .found(format!("`{pattern}`: {reason}"))
        .hint("write the full range, because the number of shards determines their order")
}

fn parse_number(text: &str) -> Option<usize> {
    text.parse::<usize>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brace_range_expands_to_one_name_per_shard() {
        let names = expand_braces("en/c4-train.{00000..01023}-of-01024.json.gz").unwrap();
        assert_eq!((names.len(), names[84].as_str()), (1024, "en/c4-train.00084-of-01024.json.gz"));
        assert_eq!(expand_braces("a{8..11}").unwrap(), ["a8", "a9", "a10", "a11"]);
        assert_eq!(expand_braces("one").unwrap(), ["one"]);
        for bad in ["a*", "a{1..", "a{1}", "a{2..1}", "a{x..y}", "a{0..99999999999}", "a{1..2}{1..2}", "a{+1..2}"] {
            assert_eq!(expand_braces(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    #[test]
    fn only_shards_that_the_seeds_select_are_required() {
        let folder = tempfile::tempdir().unwrap();
        for shard in 0..8 {
            std::fs::write(folder.path().join(format!("part-{shard}.json.gz")), "x").unwrap();
        }
        std::fs::write(folder.path().join(".hidden"), "x").unwrap();
        // The expected orders of eight shards are 2, 4, 3, … for seed 0 and 5, 0, 1, … for seed 1.
        let stream = shards_entry(&[], &[0, 1], 1).find_in_dir(folder.path()).unwrap();
        assert_eq!((stream.count, stream.files.keys().copied().collect::<Vec<_>>()), (8, vec![2, 5]));
        assert_eq!(stream.files[&5], "part-5.json.gz");
        let names = expand_braces("x/part-{0..7}.json.gz").unwrap();
        assert_eq!(shards_entry(&names, &[0], 2).names_to_fetch(), ["x/part-2.json.gz", "x/part-4.json.gz"]);
        assert_eq!(shards_entry(&names, &[0], 1).find_in_dir(folder.path()).unwrap().files.len(), 1);
        std::fs::remove_file(folder.path().join("part-2.json.gz")).unwrap();
        let error = shards_entry(&names, &[0], 1).find_in_dir(folder.path()).unwrap_err();
        assert!(error.exit_code() == 3 && error.to_string().contains("part-2.json.gz"), "{error}");
    }

    fn shards_entry(names: &[String], seeds: &[u64], read: usize) -> ShardsEntry {
        ShardsEntry { order: ShardOrder::OneByOne, read, names: names.to_vec(), seeds: seeds.iter().copied().collect() }
    }
}

//! Resolution of requested files: from the lock if the repository is pinned, otherwise from the cache in offline mode,
//! and from the Hub in online mode.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use ghostlab_core::error::{Error, Result};
use glob::{MatchOptions, Pattern};

use crate::answer::page_url;
use crate::client::{FetchControl, Hub};
use crate::event::Reporter;
use crate::lock::{Lock, LockedRepo};
use crate::name::{BlobName, Commit, ContentHash, FileName, KnownFile};
use crate::partial_file::find_abandoned_bytes;
use crate::repo::Source;

/// Request for files in a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoFiles {
    pub source: Source,
    pub files: Vec<FilePattern>,
}

/// File pattern. `*` matches within a path component, `**` across folders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePattern {
    pub pattern: String,
    /// Whether a request may succeed although no file matches the pattern.
    pub optional: bool,
}

/// Requested files, resolved to a commit of each repository. Some of them may be cached.
#[derive(Debug, Clone, Default)]
pub struct FetchPlan {
    pub repos: Vec<PlannedRepo>,
}

/// Requested files of one repository.
#[derive(Debug, Clone)]
pub struct PlannedRepo {
    pub source: Source,
    pub commit: Commit,
    /// Whether the commit comes from the lock. Otherwise it is the current commit of the revision on the Hub or, if
    /// offline, in the cache.
    pub locked: bool,
    pub files: Vec<PlannedFile>,
}

/// Requested file, and its state in the cache.
#[derive(Debug, Clone)]
pub struct PlannedFile {
    pub name: FileName,
    pub bytes: Option<u64>,
    pub sha256: Option<ContentHash>,
    /// Name of the blob in the cache, if known.
    pub(crate) blob: Option<BlobName>,
    /// Path in the cache.
    pub cached: Option<PathBuf>,
    /// Number of bytes present from an earlier attempt.
    pub partial_bytes: u64,
}

impl FilePattern {
    pub fn required(pattern: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), optional: false }
    }

    pub fn optional(pattern: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), optional: true }
    }

    fn compile_matcher(&self) -> Result<impl Fn(&FileName) -> bool> {
        let pattern = Pattern::new(&self.pattern).map_err(|error| pattern_error(error.to_string(), &self.pattern))?;
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
        Ok(move |name: &FileName| pattern.matches_with(name.as_str(), options))
    }

    /// Returns the folder that contains all matches, and whether to search it recursively.
    fn search_folder(&self) -> (String, bool) {
        let wildcard = self.pattern.find(['*', '?', '[']).unwrap_or(self.pattern.len());
        let folder = self.pattern[..wildcard].rfind('/').map_or("", |slash| &self.pattern[..slash]);
        (folder.to_owned(), self.pattern[wildcard..].contains('/') || self.pattern.contains("**"))
    }
}

fn pattern_error(found: String, pattern: &str) -> Error {
    Error::bad_input("invalid file name pattern").at(format!("`{pattern}`")).found(found)
}

impl RepoFiles {
    /// Creates a request for the files needed to load a decoder model.
    pub fn backbone(source: Source) -> Self {
        let needed = ["config.json", "tokenizer.json", "*.safetensors"].map(FilePattern::required);
        let config_files =
            ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json"];
        let optional = ["*.safetensors.index.json"].into_iter().chain(config_files).map(FilePattern::optional);
        Self { source, files: needed.into_iter().chain(optional).collect() }
    }

    /// Selects the requested files. `no_match_error` creates the error for a required pattern without a match.
    fn select<'a>(
        &self,
        names: &'a BTreeSet<FileName>,
        no_match_error: &dyn Fn() -> Error,
    ) -> Result<BTreeSet<&'a FileName>> {
        let mut selected = BTreeSet::new();
        for pattern in &self.files {
            let is_match = pattern.compile_matcher()?;
            let found: Vec<&FileName> = names.iter().filter(|name| is_match(name)).collect();
            if found.is_empty() && !pattern.optional {
                let listed: Vec<&str> = names.iter().map(FileName::as_str).take(20).collect();
                let listed = if listed.is_empty() { "no files".to_owned() } else { listed.join(", ") };
                return Err(no_match_error().expected(format!("`{}`", pattern.pattern)).found(listed));
            }
            selected.extend(found);
        }
        Ok(selected)
    }
}

impl PlannedFile {
    /// Returns the number of bytes still to download, or 0 if the size is unknown.
    pub fn remaining_bytes(&self) -> u64 {
        if self.cached.is_some() { 0 } else { self.bytes.unwrap_or(0).saturating_sub(self.partial_bytes) }
    }
}

impl FetchPlan {
    /// Iterates over all files, each with its repository.
    pub fn files(&self) -> impl Iterator<Item = (&PlannedRepo, &PlannedFile)> {
        self.repos.iter().flat_map(|repo| repo.files.iter().map(move |file| (repo, file)))
    }

    /// Returns the number of bytes still to download, without files of unknown size.
    pub fn remaining_bytes(&self) -> u64 {
        self.files().fold(0, |sum: u64, (_, file)| sum.saturating_add(file.remaining_bytes()))
    }

    /// Returns whether all files are cached.
    pub fn is_complete(&self) -> bool {
        self.files().all(|(_, file)| file.cached.is_some())
    }

    /// Iterates over the repositories that the lock does not pin.
    pub fn unpinned(&self) -> impl Iterator<Item = &Source> {
        self.repos.iter().filter(|repo| !repo.locked).map(|repo| &repo.source)
    }
}

/// Merges requests for the same repository.
fn merge_requests(requests: &[RepoFiles]) -> Vec<RepoFiles> {
    let mut by_source: BTreeMap<&Source, Vec<FilePattern>> = BTreeMap::new();
    for request in requests {
        let files = by_source.entry(&request.source).or_default();
        for pattern in &request.files {
            if !files.contains(pattern) {
                files.push(pattern.clone());
            }
        }
    }
    by_source.into_iter().map(|(source, files)| RepoFiles { source: source.clone(), files }).collect()
}

impl Hub {
    /// Resolves requests into a plan. Pinned repositories and offline mode need no network request.
    ///
    /// # Errors
    /// Fails if a pattern matches no file, the Hub refuses a request, or `stop` is set.
    pub fn plan(
        &self,
        requests: &[RepoFiles],
        lock: &Lock,
        reporter: &dyn Reporter,
        stop: &AtomicBool,
    ) -> Result<FetchPlan> {
        let control = FetchControl { reporter, stop };
        Ok(FetchPlan {
            repos: merge_requests(requests)
                .into_iter()
                .map(|request| match lock.get(&request.source) {
                    None if !self.settings.offline => self.resolve_remote(&request, control),
                    _ => self.resolve_offline(&request, lock),
                })
                .collect::<Result<_>>()?,
        })
    }

    /// Resolves a request without the network: from the lock if it pins the repository, and otherwise from the cache.
    ///
    /// # Errors
    /// Fails if a pattern matches no file in the lock or the cache.
    pub fn resolve_offline(&self, request: &RepoFiles, lock: &Lock) -> Result<PlannedRepo> {
        match lock.get(&request.source) {
            Some(locked) => self.resolve_pinned(request, locked),
            None => self.resolve_cached(request),
        }
    }

    fn resolve_pinned(&self, request: &RepoFiles, locked: &LockedRepo) -> Result<PlannedRepo> {
        let pins = locked.files.iter().map(|(name, pin)| {
            (name.clone(), KnownFile { bytes: Some(pin.bytes), sha256: Some(pin.sha256.clone()), blob: None })
        });
        self.plan_files(request, locked.commit.clone(), true, &pins.collect(), &|| {
            Error::missing("the file is not pinned, unlike other files of its repository")
                .at(format!("{} in {}", request.source, Lock::FILE))
                .hint("run `ghostlab fetch GRID --lock`, where GRID is the grid that uses this file")
        })
    }

    /// Resolves a request from the cached snapshot of the last fetch.
    fn resolve_cached(&self, request: &RepoFiles) -> Result<PlannedRepo> {
        let source = &request.source;
        let commit = self.cache.commit(source).ok_or_else(|| {
            Error::missing(format!("{source} is not in the hub's cache"))
                .at(self.cache.root().display())
                .hint("unset HF_HUB_OFFLINE and run `ghostlab fetch GRID`, where GRID is the grid that uses it")
        })?;
        let snapshot = self.cache.snapshot(&source.repo, &commit);
        let mut known_files = BTreeMap::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(snapshot.join(&folder)).into_iter().flatten().flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                // Do not descend into linked folders, which may form a cycle.
                match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    true => folders.push(name),
                    false if entry.path().is_file() => {
                        known_files.extend(FileName::new(&name).ok().map(|name| (name, KnownFile::default())));
                    }
                    false => {}
                }
            }
        }
        self.plan_files(request, commit, false, &known_files, &|| {
            Error::missing(format!("a file of {source} is not in the hub's cache"))
                .at(snapshot.display())
                .hint("unset HF_HUB_OFFLINE and run `ghostlab fetch GRID`, where GRID is the grid that uses the file")
        })
    }

    /// Resolves a request from the Hub's current listing.
    fn resolve_remote(&self, request: &RepoFiles, control: FetchControl<'_>) -> Result<PlannedRepo> {
        let source = &request.source;
        let mut folders: BTreeMap<String, bool> = BTreeMap::new();
        for (folder, is_recursive) in request.files.iter().map(FilePattern::search_folder) {
            *folders.entry(folder).or_default() |= is_recursive;
        }
        let listing = async {
            let commit = self.fetch_commit(source, control).await?;
            let mut listed = BTreeMap::new();
            for (folder, is_recursive) in &folders {
                listed.extend(self.list_files(source, &commit, folder, *is_recursive, control).await?);
            }
            Ok::<_, Error>((commit, listed))
        };
        let (commit, listed) = self.get_or_create_connection()?.runtime.block_on(listing)?;
        self.plan_files(request, commit.clone(), false, &listed, &|| {
            let page = page_url(&self.settings.endpoint, &source.repo);
            Error::missing(format!("{source} has no such file"))
                .at(format!("commit {commit}"))
                .hint(format!("see the files at {page}/tree/{}", source.revision()))
        })
    }

    /// Selects the requested files among `known_files`, and looks them up in the cache.
    fn plan_files(
        &self,
        request: &RepoFiles,
        commit: Commit,
        locked: bool,
        known_files: &BTreeMap<FileName, KnownFile>,
        no_match_error: &dyn Fn() -> Error,
    ) -> Result<PlannedRepo> {
        let repo = &request.source.repo;
        let files = request
            .select(&known_files.keys().cloned().collect(), no_match_error)?
            .into_iter()
            .map(|name| {
                let KnownFile { bytes, sha256, blob } = known_files[name].clone();
                let cached = self.cache.file(repo, &commit, name, bytes);
                let sought = blob.clone().or_else(|| sha256.clone().map(BlobName::from)).filter(|_| cached.is_none());
                let partial_bytes =
                    sought.map_or(0, |blob| find_abandoned_bytes(&self.cache.blobs_dir(repo), &blob.for_file(name)));
                let partial_bytes = if bytes.is_some_and(|bytes| partial_bytes > bytes) { 0 } else { partial_bytes };
                PlannedFile { name: name.clone(), bytes, sha256, blob, cached, partial_bytes }
            })
            .collect();
        Ok(PlannedRepo { source: request.source.clone(), commit, locked, files })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_in_a_pattern_matches_within_one_folder() {
        let names = ["config.json", "model-1.safetensors", "original/model.safetensors", "en/a.gz"];
        let names: BTreeSet<FileName> = names.iter().map(|name| FileName::new(name).unwrap()).collect();
        let source = Source::parse("o/n").unwrap();
        let selected = |patterns: &[&str]| {
            let files = patterns.iter().map(|pattern| FilePattern::required(*pattern)).collect();
            let request = RepoFiles { source: source.clone(), files };
            request
                .select(&names, &|| Error::missing("none"))
                .map(|found| found.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(selected(&["*.safetensors"]).unwrap(), ["model-1.safetensors"]);
        assert_eq!(selected(&["**/*.safetensors"]).unwrap().len(), 2);
        let error = selected(&["en/b.gz"]).unwrap_err().to_string();
        assert!(error.contains("`en/b.gz`") && error.contains("en/a.gz"), "{error}");
        assert!(selected(&["en/[a"]).is_err());
        for (pattern, folder, is_recursive) in [
            ("en/c4.gz", "en", false),
            ("*.safetensors", "", false),
            ("en/*/x", "en", true),
            ("**/x", "", true),
            ("a/b/c*.parquet", "a/b", false),
        ] {
            assert_eq!(FilePattern::required(pattern).search_folder(), (folder.to_owned(), is_recursive), "{pattern}");
        }
    }
}

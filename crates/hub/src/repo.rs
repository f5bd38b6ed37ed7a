//! Repositories on the Hub and their revisions.

use std::fmt;

use ghostlab_core::error::{Error, Result};

use crate::name::Commit;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RepoKind {
    Model,
    Dataset,
}

/// Repository, such as `org/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Repo {
    kind: RepoKind,
    name: String,
}

/// Repository at a branch, tag or commit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    pub repo: Repo,
    revision: String,
}

const DEFAULT_REVISION: &str = "main";
const DATASET_PREFIX: &str = "datasets/";
/// Maximum length of a repository name on the Hub, in bytes.
const MAX_REPO_NAME_BYTES: usize = 96;

impl Repo {
    /// Parses `org/name` as a repository of the given `kind`, or `datasets/org/name` as a dataset.
    ///
    /// # Errors
    /// Fails if the name is not a valid repository name.
    pub fn new(kind: RepoKind, name: &str) -> Result<Self> {
        let (kind, bare) = match name.strip_prefix(DATASET_PREFIX) {
            Some(rest) => (RepoKind::Dataset, rest),
            None => (kind, name),
        };
        let parts: Vec<&str> = bare.split('/').collect();
        // `--` encodes `/` in the cache, and `..` would escape the cache folder.
        let is_reserved =
            bare.contains("--") || bare.contains("..") || bare.ends_with(".git") || bare.len() > MAX_REPO_NAME_BYTES;
        if parts.len() > 2
            || !parts.iter().all(|part| {
                let known = part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
                known
                    && !part.is_empty()
                    && !part.starts_with(is_forbidden_at_edge)
                    && !part.ends_with(is_forbidden_at_edge)
            })
            || is_reserved
        {
            return Err(Error::bad_input("invalid repository name")
                .expected("`org/name` of letters, digits, `-`, `_` and `.`, without `--` and `..`")
                .found(format!("`{name}`"))
                .hint("copy the name from the repository's URL, after `huggingface.co/` or `datasets/`"));
        }
        Ok(Self { kind, name: bare.to_owned() })
    }

    pub fn kind(&self) -> RepoKind {
        self.kind
    }

    /// Returns `org/name`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the cache folder, such as `models--org--name`.
    pub fn folder(&self) -> String {
        let kind = if self.kind == RepoKind::Model { "models" } else { "datasets" };
        format!("{kind}--{}", self.name.replace('/', "--"))
    }

    /// Returns the path of the repository below `api/` in Hub URLs.
    pub(crate) fn api_path(&self) -> String {
        let kind = if self.kind == RepoKind::Model { "models" } else { "datasets" };
        format!("{kind}/{}", self.name)
    }
}

fn is_forbidden_at_edge(c: char) -> bool {
    c == '.' || c == '-'
}

/// Formats the repository like its URL path: `org/name` or `datasets/org/name`.
impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.kind == RepoKind::Dataset { DATASET_PREFIX } else { "" };
        write!(f, "{prefix}{}", self.name)
    }
}

impl Source {
    /// Creates a source at `revision`, or at the main branch if `revision` is `None`.
    ///
    /// # Errors
    /// Fails if the revision is not a valid branch name, tag name or commit hash.
    pub fn new(repo: Repo, revision: Option<&str>) -> Result<Self> {
        let revision = revision.unwrap_or(DEFAULT_REVISION);
        if revision.len() > 200
            || !revision.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/'))
            || !(revision.split('/').all(|part| !part.is_empty() && part != "." && part != ".."))
        {
            return Err(Error::bad_input("invalid revision")
                .expected("a branch, a tag, or a commit hash of 40 digits")
                .found(format!("`{revision}`")));
        }
        Ok(Self { repo, revision: revision.to_owned() })
    }

    /// Returns the branch, tag or commit, which may contain `/`.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Returns the commit, if the revision is a full commit hash.
    pub(crate) fn commit(&self) -> Option<Commit> {
        Commit::new(&self.revision).ok()
    }

    /// Parses `org/name`, `org/name@revision` or `datasets/org/name@revision`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Repo::new`] and [`Source::new`].
    pub fn parse(text: &str) -> Result<Self> {
        let (repo, revision) = match text.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (text, None),
        };
        Self::new(Repo::new(RepoKind::Model, repo)?, revision)
    }
}

/// Formats the source as `org/name@main`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.repo, self.revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_names_are_parsed_as_on_the_hub() {
        let source = Source::parse("meta-llama/Llama-3.1-8B").unwrap();
        assert_eq!(source.to_string(), "meta-llama/Llama-3.1-8B@main");
        assert_eq!(source.repo.folder(), "models--meta-llama--Llama-3.1-8B");
        let source = Source::parse("datasets/allenai/c4@refs/convert/parquet").unwrap();
        assert_eq!(source.to_string(), "datasets/allenai/c4@refs/convert/parquet");
        assert_eq!(
            (source.repo.folder().as_str(), source.repo.api_path().as_str()),
            ("datasets--allenai--c4", "datasets/allenai/c4")
        );
        assert_eq!(Repo::new(RepoKind::Dataset, "gpt2").unwrap().folder(), "datasets--gpt2");
    }

    #[test]
    fn invalid_repository_name_or_revision_is_rejected() {
        for text in
            ["", "a/b/c", "../b", "a/..", "/a", "a/", "a--b/c", "a/b.git", "a b/c", "a/b@", "a/b@../x", "a/b@x//y"]
        {
            assert_eq!(Source::parse(text).unwrap_err().exit_code(), 2, "{text}");
        }
    }
}

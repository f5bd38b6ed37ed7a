//! File cache with the layout of `huggingface_hub`: `models--org--name/{blobs,snapshots,refs}`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::write_atomically;
use ghostlab_core::files::owner::Owner;

use crate::name::{BlobName, Commit, FileName};
use crate::repo::{Repo, Source};

/// Cache of downloaded files, shared with `huggingface_hub`.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
    symlinks: bool,
}

impl Cache {
    /// Creates a handle to the cache in folder `root`. If `symlinks` is false, snapshots contain the files themselves
    /// instead of links to blobs.
    pub fn new(root: PathBuf, symlinks: bool) -> Self {
        Self { root, symlinks }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of a repository's snapshot at a commit. The folder may not exist.
    pub fn snapshot(&self, repo: &Repo, commit: &Commit) -> PathBuf {
        self.root.join(repo.folder()).join("snapshots").join(commit.as_str())
    }

    /// Returns the path of a file at a commit, if it is cached with a size of `bytes`, or with any size if `bytes` is
    /// `None`.
    pub fn file(&self, repo: &Repo, commit: &Commit, name: &FileName, bytes: Option<u64>) -> Option<PathBuf> {
        let path = self.snapshot(repo, commit).join(name.path());
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        (bytes.is_none() || bytes == Some(metadata.len())).then_some(path)
    }

    /// Returns the commit of a revision: the revision itself if it is a commit hash, or the commit to which a branch or
    /// tag pointed at the last fetch.
    pub fn commit(&self, source: &Source) -> Option<Commit> {
        source.commit().or_else(|| Commit::new(fs::read_to_string(self.ref_path(source)).ok()?.trim()).ok())
    }

    fn ref_path(&self, source: &Source) -> PathBuf {
        self.root.join(source.repo.folder()).join("refs").join(source.revision())
    }

    pub(crate) fn blobs_dir(&self, repo: &Repo) -> PathBuf {
        self.root.join(repo.folder()).join("blobs")
    }

    /// Returns the path of the lock file that `huggingface_hub` also uses while it downloads a blob.
    pub(crate) fn lock_path(&self, repo: &Repo, blob: &BlobName) -> PathBuf {
        self.root.join(".locks").join(repo.folder()).join(format!("{blob}.lock"))
    }

    /// Stores the commit to which a revision points. Replaces a stored commit only if `is_newest` is set, i.e. if
    /// `commit` is the current branch head rather than a pinned and possibly older commit.
    pub(crate) fn store_commit(&self, source: &Source, commit: &Commit, is_newest: bool) -> Result<()> {
        let path = self.ref_path(source);
        if source.commit().is_some() || self.commit(source).is_some_and(|known| !is_newest || known == *commit) {
            return Ok(());
        }
        make_folder(path.parent().unwrap_or(&self.root))?;
        write_atomically(&path, |file| {
            std::io::Write::write_all(file, commit.as_str().as_bytes())
                .map_err(|error| cache_error("write", &path, &error))
        })
    }

    /// Adds a blob to the snapshot of a commit under a file name. If `is_new` is set, no other snapshot uses the blob,
    /// so it is moved instead of copied on systems without symlinks.
    pub(crate) fn add_to_snapshot(
        &self,
        repo: &Repo,
        commit: &Commit,
        name: &FileName,
        blob: &BlobName,
        is_new: bool,
    ) -> Result<()> {
        let snapshot = self.snapshot(repo, commit);
        let path = snapshot.join(name.path());
        let folder = path.parent().unwrap_or(&snapshot);
        self.check_inside_repo(repo, folder)?;
        make_folder(folder)?;
        let blob_path = self.blobs_dir(repo).join(blob.as_str());
        // The link goes up one level for each folder in the name, and two levels out of `snapshots/COMMIT`.
        let levels = name.as_str().split('/').count() + 1;
        let target: PathBuf = std::iter::repeat_n("..", levels).chain(["blobs", blob.as_str()]).collect();
        if fs::read_link(&path).is_ok_and(|known| known == target) {
            return Ok(());
        }
        if self.symlinks && create_symlink(&target, &path).map_err(|error| write_error(&error, &path))? {
            return Ok(());
        }
        // Without symlinks, move the blob into the snapshot, or copy it if other snapshots may need it.
        match is_new {
            true => fs::rename(&blob_path, &path).map_err(|error| write_error(&error, &path)),
            false => fs::copy(&blob_path, &path).map(drop).map_err(|error| write_error(&error, &path)),
        }
    }

    /// Removes a damaged snapshot file and its blob.
    pub(crate) fn remove_damaged(&self, repo: &Repo, path: &Path) -> Result<()> {
        let name = fs::read_link(path).ok().and_then(|to| to.file_name().map(|name| self.blobs_dir(repo).join(name)));
        let blob = name.filter(|blob| fs::symlink_metadata(blob).is_ok());
        for path in blob.iter().map(PathBuf::as_path).chain([path]) {
            fs::remove_file(path).map_err(|error| cache_error("remove", path, &error))?;
        }
        Ok(())
    }

    /// Rejects a folder if any component of its path inside the repository's cache folder is a symlink. File names come
    /// from the network, so a write through a symlink could leave the cache.
    fn check_inside_repo(&self, repo: &Repo, folder: &Path) -> Result<()> {
        let repo_dir = self.root.join(repo.folder());
        let inside = folder.strip_prefix(&repo_dir).unwrap_or(Path::new(""));
        let mut path = repo_dir;
        for part in inside.components() {
            path.push(part);
            if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
                return Err(Error::bad_input("a folder in the cache is a symbolic link")
                    .at(path.display())
                    .expected("a folder inside the cache")
                    .found(fs::read_link(&path).map_or("a link".to_owned(), |to| format!("a link to {}", to.display())))
                    .hint("remove the link, or set HF_HUB_CACHE to move the whole cache"));
            }
        }
        Ok(())
    }
}

fn write_error(error: &std::io::Error, path: &Path) -> Error {
    cache_error("write", path, error)
}

/// Creates a symlink atomically. Returns false if the system does not support or permit symlinks.
fn create_symlink(target: &Path, path: &Path) -> std::io::Result<bool> {
    // Temporary names must be unique, because files in one folder are linked concurrently.
    static NEXT_LINK_ID: AtomicU64 = AtomicU64::new(0);
    let name = format!(".{}-{}.ghostlab-tmp", Owner::current().tag(), NEXT_LINK_ID.fetch_add(1, Ordering::Relaxed));
    let temporary = path.with_file_name(name);
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(target, &temporary);
    #[cfg(windows)]
    let linked = std::os::windows::fs::symlink_file(target, &temporary);
    match linked {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(&temporary)?;
            return create_symlink(target, path);
        }
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => return Ok(false),
        Err(error) => return Err(error),
    }
    fs::rename(&temporary, path).inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    Ok(true)
}

pub(crate) fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(|error| cache_error("create", folder, &error))
}

/// Creates the error for a failed file operation in the cache. `verb` names the operation, such as `write`.
pub(crate) fn cache_error(verb: &str, path: &Path, error: &std::io::Error) -> Error {
    let failure = Error::missing(format!("cannot {verb} a path in the hub's cache")).at(path.display()).found(error);
    failure.hint(match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free some disk space, then run the same command to resume"
        }
        _ => "choose another folder with HF_HUB_CACHE (cached files remain readable)",
    })
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    fn commit() -> Commit {
        Commit::new("0123456789abcdef0123456789abcdef01234567").unwrap()
    }

    fn blob(name: &str) -> BlobName {
        BlobName::new(name).unwrap()
    }

    #[test]
    fn snapshot_links_are_relative_and_checked_for_size() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path().to_owned(), true);
        let source = Source::parse("o/n").unwrap();
        fs::create_dir_all(cache.blobs_dir(&source.repo)).unwrap();
        fs::write(cache.blobs_dir(&source.repo).join("abc"), "12345").unwrap();
        for (name, link) in [("a", "../../blobs/abc"), ("b/c/d", "../../../../blobs/abc")] {
            let name = FileName::new(name).unwrap();
            assert_eq!(cache.file(&source.repo, &commit(), &name, None), None);
            for _ in 0..2 {
                cache.add_to_snapshot(&source.repo, &commit(), &name, &blob("abc"), true).unwrap();
            }
            let path = cache.file(&source.repo, &commit(), &name, Some(5)).unwrap();
            assert_eq!(fs::read_link(&path).unwrap(), Path::new(link));
            assert_eq!(
                cache.file(&source.repo, &commit(), &name, Some(6)),
                None,
                "a file of another size must not be returned"
            );
        }
        fs::remove_file(cache.blobs_dir(&source.repo).join("abc")).unwrap();
        assert_eq!(
            cache.file(&source.repo, &commit(), &FileName::new("a").unwrap(), None),
            None,
            "a dangling link must not be returned"
        );
    }

    #[test]
    fn concurrently_linked_files_point_to_their_blobs() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path().to_owned(), true);
        let source = Source::parse("o/n").unwrap();
        fs::create_dir_all(cache.blobs_dir(&source.repo)).unwrap();
        std::thread::scope(|scope| {
            for first in 0..4 {
                let cache = &cache;
                let source = &source;
                scope.spawn(move || {
                    for index in (first..400).step_by(4) {
                        let name = index.to_string();
                        fs::write(cache.blobs_dir(&source.repo).join(&name), &name).unwrap();
                        cache
                            .add_to_snapshot(&source.repo, &commit(), &numbered_file(index), &blob(&name), true)
                            .unwrap();
                    }
                });
            }
        });
        for index in 0..400 {
            let path = cache.file(&source.repo, &commit(), &numbered_file(index), None).unwrap();
            assert_eq!(fs::read_to_string(path).unwrap(), index.to_string());
        }
        assert_eq!(
            fs::read_dir(cache.snapshot(&source.repo, &commit())).unwrap().count(),
            400,
            "a temporary link remains"
        );
    }

    fn numbered_file(index: usize) -> FileName {
        FileName::new(&format!("f{index}")).unwrap()
    }

    #[test]
    fn symlink_inside_a_snapshot_is_not_written_through() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path().to_owned(), true);
        let source = Source::parse("o/n").unwrap();
        let snapshot = cache.snapshot(&source.repo, &commit());
        fs::create_dir_all(&snapshot).unwrap();
        std::os::unix::fs::symlink(outside.path(), snapshot.join("sub")).unwrap();
        let error = cache
            .add_to_snapshot(&source.repo, &commit(), &FileName::new("sub/x").unwrap(), &blob("abc"), true)
            .unwrap_err();
        assert!(error.to_string().contains("sub") && error.exit_code() == 2, "{error}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn stored_commit_is_replaced_only_by_the_branch_head() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path().to_owned(), true);
        let source = Source::parse("datasets/o/n@refs/convert/parquet").unwrap();
        let other = Commit::new(&"f".repeat(40)).unwrap();
        assert_eq!(cache.commit(&source), None);
        cache.store_commit(&source, &commit(), false).unwrap();
        cache.store_commit(&source, &other, false).unwrap();
        assert_eq!(cache.commit(&source), Some(commit()));
        cache.store_commit(&source, &other, true).unwrap();
        let file = root.path().join("datasets--o--n/refs/refs/convert/parquet");
        assert_eq!(fs::read_to_string(file).unwrap(), other.as_str(), "the file must not end with a newline");
    }

    #[test]
    fn blob_is_moved_into_the_snapshot_without_symlinks() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path().to_owned(), false);
        let source = Source::parse("o/n").unwrap();
        fs::create_dir_all(cache.blobs_dir(&source.repo)).unwrap();
        let content = cache.blobs_dir(&source.repo).join("abc");
        fs::write(&content, "12345").unwrap();
        let name = FileName::new("a/b").unwrap();
        cache.add_to_snapshot(&source.repo, &commit(), &name, &blob("abc"), true).unwrap();
        let path = cache.file(&source.repo, &commit(), &name, Some(5)).unwrap();
        assert!(!content.exists() && fs::symlink_metadata(path).unwrap().is_file());
    }
}

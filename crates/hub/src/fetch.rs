//! Concurrent download of all files in a plan.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use ghostlab_core::error::{Error, ErrorKind, Result};
use ghostlab_core::files::disk;
use tokio::runtime::Runtime;

use crate::client::{FetchControl, Hub, display_name};
use crate::event::{Event, Reporter};
use crate::lock::{LockedFile, LockedRepo};
use crate::name::ContentHash;
use crate::plan::{FetchPlan, PlannedFile, PlannedRepo};
use crate::repo::Source;

/// Result of a fetch.
#[derive(Debug, Default)]
pub struct FetchSummary {
    /// Number of downloaded files.
    pub downloaded: usize,
    /// Number of files that were already cached.
    pub cached: usize,
    /// Number of bytes downloaded.
    pub bytes: u64,
    /// Files that failed, with their errors. All other files are cached, except those of repositories that the Hub
    /// refused.
    pub failures: Vec<(String, Error)>,
}

/// Function that computes the SHA-256 of a file in lowercase hexadecimal.
pub type FileHasher<'a> = &'a (dyn Fn(&Path) -> Result<String> + Sync);

/// Disk space in bytes that must remain free.
const RESERVED_DISK_BYTES: u64 = 64 << 20;

impl Hub {
    /// Downloads the files that are not cached. With `hash`, also verifies the SHA-256 of cached files and downloads
    /// mismatching files again.
    ///
    /// # Errors
    /// Fails if the free disk space is too small, a file is missing or damaged in offline mode, or `stop` is set.
    /// Received data is kept. Errors of individual downloads are returned in [`FetchSummary::failures`].
    pub fn fetch(
        &self,
        plan: &FetchPlan,
        hash: Option<FileHasher<'_>>,
        reporter: &dyn Reporter,
        stop: &AtomicBool,
    ) -> Result<FetchSummary> {
        let control = FetchControl { reporter, stop };
        let mut fetched = FetchSummary::default();
        let mut missing: Vec<(&PlannedRepo, PlannedFile)> = Vec::new();
        for (repo, file) in plan.files() {
            match self.is_cached_intact(repo, file, hash, control)? {
                true => fetched.cached += 1,
                false => missing.push((repo, PlannedFile { cached: None, ..file.clone() })),
            }
        }
        if missing.is_empty() {
            return Ok(fetched);
        }
        let sum_bytes = |bytes: fn(&PlannedFile) -> u64| {
            missing.iter().fold(0_u64, |sum, (_, file)| sum.saturating_add(bytes(file)))
        };
        self.check_disk_space(sum_bytes(PlannedFile::remaining_bytes))?;
        let bytes = sum_bytes(|file| file.bytes.unwrap_or(0));
        let here = sum_bytes(|file| file.partial_bytes);
        reporter.event(Event::FetchPlanned { files: missing.len(), bytes, here });
        // Start with the smallest files, so that an unaccepted license is reported immediately.
        missing.sort_by_key(|(_, file)| file.bytes);

        let runtime = &self.get_or_create_connection()?.runtime;
        self.refused_repos.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let downloads =
            Downloads { hub: self, runtime, missing, next: AtomicUsize::new(0), control, outcome: Mutex::new(fetched) };
        std::thread::scope(|scope| {
            for _ in 0..self.settings.max_downloads.clamp(1, downloads.missing.len()) {
                scope.spawn(|| downloads.download_missing());
            }
        });
        if stop.load(Relaxed) {
            return Err(crate::client::stopped_error());
        }
        Ok(downloads.outcome.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether a file is cached and, if `hash` is given, intact.
    fn is_cached_intact(
        &self,
        repo: &PlannedRepo,
        file: &PlannedFile,
        hash: Option<FileHasher<'_>>,
        control: FetchControl<'_>,
    ) -> Result<bool> {
        let Some(path) = &file.cached else { return Ok(false) };
        let (Some(hash), Some(expected)) = (hash, &file.sha256) else { return Ok(true) };
        let found = hash(path)?;
        if found == expected.as_str() {
            return Ok(true);
        }
        let name = display_name(&repo.source, &file.name);
        if self.settings.offline {
            return Err(Error::damaged("the cached file differs from the pinned one")
                .at(path.display())
                .expected(format!("SHA-256 {expected}"))
                .found(format!("SHA-256 {found}"))
                .hint("unset HF_HUB_OFFLINE to download it again"));
        }
        control.reporter.event(Event::FetchNote {
            text: format!("{name}: the cached file is damaged or was altered; downloading it again"),
        });
        self.cache.remove_damaged(&repo.source.repo, path)?;
        Ok(false)
    }

    fn check_disk_space(&self, needed: u64) -> Result<()> {
        let root = self.cache.root();
        // The cache folder may not exist yet, so query the nearest existing ancestor.
        let Some(free) = root.ancestors().find(|folder| folder.is_dir()).and_then(disk::free) else { return Ok(()) };
        if needed == 0 || needed.saturating_add(RESERVED_DISK_BYTES) <= free {
            return Ok(());
        }
        let all = format_gigabytes(needed.saturating_add(RESERVED_DISK_BYTES));
        let reserve = format_gigabytes(RESERVED_DISK_BYTES);
        Err(Error::missing("not enough disk space for the download")
            .at(root.display())
            .expected(format!("{all} free: {} to download and {reserve} in reserve", format_gigabytes(needed)))
            .found(format_gigabytes(free))
            .hint("free some disk space, or set HF_HUB_CACHE to a folder on another disk"))
    }

    /// Returns the pins for a plan: the commit of each repository, and the size and SHA-256 of each file. Small files
    /// for which the Hub has no SHA-256 are downloaded to compute it.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::fetch`], or with the error of the first file that failed.
    pub fn pin(
        &self,
        plan: &FetchPlan,
        reporter: &dyn Reporter,
        stop: &AtomicBool,
    ) -> Result<Vec<(Source, LockedRepo)>> {
        let mut unhashed = plan.clone();
        for repo in &mut unhashed.repos {
            repo.files.retain(|file| file.sha256.is_none());
        }
        let fetched = self.fetch(&unhashed, None, reporter, stop)?;
        if let Some((_, error)) = fetched.failures.into_iter().next() {
            return Err(error);
        }
        plan.repos
            .iter()
            .map(|repo| {
                let files = repo
                    .files
                    .iter()
                    .map(|file| -> Result<_> { Ok((file.name.clone(), self.build_lock_entry(repo, file)?)) })
                    .collect::<Result<_>>()?;
                Ok((repo.source.clone(), LockedRepo { commit: repo.commit.clone(), files }))
            })
            .collect()
    }

    /// Builds the lock entry of a planned file. If the plan has no size or hash, reads them from the cached file.
    fn build_lock_entry(&self, repo: &PlannedRepo, file: &PlannedFile) -> Result<LockedFile> {
        if let (Some(bytes), Some(sha256)) = (file.bytes, &file.sha256) {
            return Ok(LockedFile { bytes, sha256: sha256.clone() });
        }
        let path = self.cache.file(&repo.source.repo, &repo.commit, &file.name, file.bytes).ok_or_else(|| {
            Error::missing("a downloaded file is missing from the cache").at(display_name(&repo.source, &file.name))
        })?;
        let (sha256, bytes) =
            ghostlab_core::files::sha256::of_file(&path).map_err(|error| Error::io("read", &path, &error))?;
        Ok(LockedFile { bytes, sha256: ContentHash::new(&sha256)? })
    }
}

/// Queue of files that several threads download.
struct Downloads<'a> {
    hub: &'a Hub,
    runtime: &'a Runtime,
    missing: Vec<(&'a PlannedRepo, PlannedFile)>,
    /// Index of the next file to download.
    next: AtomicUsize,
    control: FetchControl<'a>,
    outcome: Mutex<FetchSummary>,
}

impl Downloads<'_> {
    /// Downloads files from the queue until the queue is empty or the fetch is stopped.
    fn download_missing(&self) {
        while !self.control.stop.load(Relaxed) {
            let Some((repo, file)) = self.missing.get(self.next.fetch_add(1, Relaxed)) else { return };
            if self.hub.refused_repos.lock().unwrap_or_else(PoisonError::into_inner).contains(&repo.source) {
                continue;
            }
            let downloaded = self.runtime.block_on(self.hub.ensure_cached(repo, file, self.control));
            let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
            match downloaded {
                Ok((_, bytes)) => {
                    outcome.downloaded += 1;
                    outcome.bytes += bytes;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let file = display_name(&repo.source, &file.name);
                    self.control.reporter.event(Event::FetchFailed { file: file.clone(), why: error.one_line() });
                    outcome.failures.push((file, error));
                }
            }
        }
    }
}

fn format_gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

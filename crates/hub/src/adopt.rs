//! Import of pinned files from another source, such as a package or a local file.

use std::io::{Read, Write};
use std::path::PathBuf;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::write_atomically;
use ghostlab_core::files::sha256::hex;
use sha2::{Digest, Sha256};

use crate::cache::{cache_error, make_folder};
use crate::client::{Hub, display_name};
use crate::name::BlobName;
use crate::plan::{PlannedFile, PlannedRepo};

impl Hub {
    /// Copies a pinned file from a reader into the cache and returns its path. If the size or SHA-256 differs from the
    /// pin, nothing is stored.
    ///
    /// # Errors
    /// Fails if the file is not pinned, the content differs, the reader fails, or the cache is not writable.
    pub fn adopt(&self, repo: &PlannedRepo, file: &PlannedFile, reader: &mut dyn Read) -> Result<PathBuf> {
        let name = display_name(&repo.source, &file.name);
        let (Some(bytes), Some(sha256)) = (file.bytes, &file.sha256) else {
            return Err(Error::missing("the file is not pinned, so a copy cannot be verified")
                .at(name)
                .hint("run `ghostlab fetch GRID --lock` on a machine that can reach the hub"));
        };
        let blobs = self.cache.blobs_dir(&repo.source.repo);
        make_folder(&blobs)?;
        let blob = BlobName::from(sha256.clone());
        let path = blobs.join(blob.as_str());
        write_atomically(&path, |output| {
            let mut hash = Sha256::new();
            let mut copied = 0;
            let mut buffer = vec![0; 1 << 20];
            // Read at most one byte more than expected, which is enough to detect an oversized file.
            let mut reader = reader.take(bytes + 1);
            loop {
                let read = reader
                    .read(&mut buffer)
                    .map_err(|error| Error::damaged("cannot read the file to copy").at(&name).found(error))?;
                if read == 0 {
                    break;
                }
                hash.update(&buffer[..read]);
                copied += read as u64;
                output.write_all(&buffer[..read]).map_err(|error| cache_error("write", &path, &error))?;
            }
            let found = match copied {
                copied if copied > bytes => format!("more than {bytes} bytes"),
                copied if copied < bytes => format!("{copied} bytes"),
                _ => format!("SHA-256 {}", hex(hash.finalize())),
            };
            if found == format!("SHA-256 {sha256}") {
                return Ok(());
            }
            Err(Error::bad_input("the copied file differs from the pinned one")
                .at(&name)
                .expected(format!("{bytes} bytes with SHA-256 {sha256}"))
                .found(found))
        })?;
        self.cache.add_to_snapshot(&repo.source.repo, &repo.commit, &file.name, &blob, true)?;
        self.cache.store_commit(&repo.source, &repo.commit, false)?;
        let cached = self.cache.file(&repo.source.repo, &repo.commit, &file.name, Some(bytes));
        cached.ok_or_else(|| Error::damaged("the copied file is missing from the cache").at(name))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::event::SilentReporter;
    use crate::lock::{Lock, LockedFile, LockedRepo};
    use crate::name::{Commit, ContentHash, FileName};
    use crate::plan::{FetchPlan, FilePattern, RepoFiles};
    use crate::repo::Source;
    use crate::settings::HubSettings;

    const CONTENT: &[u8] = b"GGUF and more";

    /// Creates an offline hub, and the plan, request and lock for one pinned file.
    fn create_offline_hub(folder: &Path) -> (Hub, FetchPlan, RepoFiles, Lock) {
        let settings = HubSettings::from_vars(&|name| match name {
            "HF_HUB_CACHE" => Some(folder.join("cache").into_os_string()),
            "HF_HUB_OFFLINE" => Some("1".into()),
            _ => None,
        });
        let hub = Hub::new(settings.unwrap());
        let source = Source::parse("o/n").unwrap();
        let pin = LockedFile {
            bytes: CONTENT.len() as u64,
            sha256: ContentHash::new(&hex(Sha256::digest(CONTENT))).unwrap(),
        };
        let mut lock = Lock::default();
        let files = BTreeMap::from([(FileName::new("m.gguf").unwrap(), pin)]);
        lock.pin(&source, LockedRepo { commit: Commit::new(&"1".repeat(40)).unwrap(), files });
        let request = RepoFiles { source, files: vec![FilePattern::required("m.gguf")] };
        let plan = hub.plan(std::slice::from_ref(&request), &lock, &SilentReporter, &AtomicBool::new(false)).unwrap();
        (hub, plan, request, lock)
    }

    #[test]
    fn adopted_file_is_cached_at_the_pinned_commit() {
        let folder = tempfile::tempdir().unwrap();
        let (hub, plan, request, lock) = create_offline_hub(folder.path());
        let (repo, file) = plan.files().next().unwrap();
        assert!(file.cached.is_none());
        let path = hub.adopt(repo, file, &mut &CONTENT[..]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), CONTENT);
        assert!(path.ends_with(format!("models--o--n/snapshots/{}/m.gguf", "1".repeat(40))), "{}", path.display());
        assert_eq!(hub.resolve_offline(&request, &lock).unwrap().files[0].cached.as_ref(), Some(&path));
        assert_eq!(fs::read_to_string(folder.path().join("cache/models--o--n/refs/main")).unwrap(), "1".repeat(40));
    }

    #[test]
    fn adopted_file_with_wrong_content_is_rejected_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (hub, plan, request, lock) = create_offline_hub(folder.path());
        let (repo, file) = plan.files().next().unwrap();
        for (content, found) in
            [(&b"GGUF"[..], "4 bytes"), (b"GGUF and much more", "more than 13 bytes"), (b"GGUF and mere", "SHA-256 ")]
        {
            let error = hub.adopt(repo, file, &mut &content[..]).unwrap_err();
            assert!(error.to_string().contains(found) && error.exit_code() == 2, "{error}");
        }
        let blob_count = fs::read_dir(folder.path().join("cache/models--o--n/blobs")).unwrap().count();
        assert_eq!(blob_count, 0);
        assert!(hub.resolve_offline(&request, &lock).unwrap().files[0].cached.is_none());
    }
}

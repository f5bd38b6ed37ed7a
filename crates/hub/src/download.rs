//! Download of one file: request, transfer, verification and publication in the cache.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use ghostlab_core::error::{Error, Result};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use reqwest::{Method, StatusCode};

use crate::answer::{RequestContext, RequestFailure, header_text};
use crate::cache::{cache_error, make_folder};
use crate::client::{FetchControl, Hub, HubRequest, Reply, await_network, display_name, stopped_error, wait_until};
use crate::event::Event;
use crate::listing::percent_encode;
use crate::name::{BlobName, KnownFile, strip_etag};
use crate::partial_file::PartialFile;
use crate::plan::{PlannedFile, PlannedRepo};

/// State of a resumable download.
struct Transfer<'a> {
    request: HubRequest<'a>,
    partial_file: PartialFile,
    display_name: &'a str,
    control: FetchControl<'a>,
    /// Whether the last response was unusable. One such response is tolerated, because it may be the error page of a
    /// proxy.
    had_unusable_response: bool,
}

impl Hub {
    /// Ensures that a file is cached. Returns its path and the number of bytes downloaded.
    pub(crate) async fn ensure_cached(
        &self,
        repo: &PlannedRepo,
        file: &PlannedFile,
        control: FetchControl<'_>,
    ) -> Result<(PathBuf, u64)> {
        let source = &repo.source;
        let display_name = display_name(&repo.source, &file.name);
        let context = self.request_context(source, Some(&file.name));
        let path: Vec<String> = file.name.as_str().split('/').map(percent_encode).collect();
        let url = self.build_url(&format!("{}/resolve/{}/{}", source.repo, repo.commit, path.join("/")))?;
        let (etag, bytes) = match &file.blob {
            Some(blob) => (blob.clone(), file.bytes),
            None => {
                let reply = self.send(&HubRequest::new(Method::HEAD, url.clone(), context), control).await?;
                self.parse_file_head(repo, &context, &reply)?
            }
        };
        let name = etag.for_file(&file.name);
        let expected = merge_expected(repo, file, KnownFile::from_blob(etag.clone(), bytes))?;
        let expected_bytes = expected.bytes;

        let blob = self.cache.blobs_dir(&source.repo).join(name.as_str());
        make_folder(&self.cache.blobs_dir(&source.repo))?;
        let _lock = self.lock_blob(&self.cache.lock_path(&source.repo, &name), &display_name, control).await?;
        let mut received = 0;
        let metadata = fs::metadata(&blob).ok().filter(fs::Metadata::is_file);
        let new = metadata.is_none_or(|metadata| expected_bytes.is_some_and(|bytes| bytes != metadata.len()));
        if new {
            let partial_file = PartialFile::open(&self.cache.blobs_dir(&source.repo), &name, expected)?;
            let here = partial_file.bytes();
            control.reporter.event(Event::FetchStarted { file: display_name.clone(), bytes: expected_bytes, here });
            let request = HubRequest { etag: Some(&etag), ..HubRequest::new(Method::GET, url, context) };
            let display_name = display_name.as_str();
            let mut transfer = Transfer { request, partial_file, display_name, control, had_unusable_response: false };
            received = self.download_rest(&mut transfer).await?;
            transfer.partial_file.publish(&blob)?;
        }
        self.cache.add_to_snapshot(&source.repo, &repo.commit, &file.name, &name, new)?;
        self.cache.store_commit(source, &repo.commit, !repo.locked)?;
        let bytes = expected_bytes.unwrap_or(received);
        control.reporter.event(Event::Fetched { file: display_name.clone(), bytes });
        let path = self.cache.file(&source.repo, &repo.commit, &file.name, expected_bytes);
        let path =
            path.ok_or_else(|| Error::damaged("a downloaded file is missing from the cache").at(display_name))?;
        Ok((path, received))
    }

    /// Returns the ETag and the size of a file from the Hub's response headers.
    fn parse_file_head(
        &self,
        repo: &PlannedRepo,
        context: &RequestContext<'_>,
        reply: &Reply,
    ) -> Result<(BlobName, Option<u64>)> {
        if reply.header("x-repo-commit").is_some_and(|commit| commit != repo.commit.as_str()) {
            return Err(self.endpoint_error(&repo.source, "a file of a different commit"));
        }
        let etag = reply.header("x-linked-etag").or_else(|| reply.header(ETAG.as_str()));
        let Some(etag) = etag else { return Err(self.endpoint_error(&repo.source, "a file without an ETag")) };
        let blob = BlobName::new(strip_etag(etag));
        let blob = blob.map_err(|_| {
            self.endpoint_error(&repo.source, &format!("the ETag {}", context.sanitize_remote_text(etag)))
        })?;
        let bytes = reply.header("x-linked-size").or_else(|| {
            let is_from_hub = reply.is_from_hub && reply.response.status().is_success();
            header_text(CONTENT_LENGTH.as_str(), reply.response.headers()).filter(|_| is_from_hub)
        });
        Ok((blob, bytes.and_then(|bytes| bytes.parse().ok())))
    }

    /// Waits for the lock that prevents concurrent downloads of the same blob. If the file system does not support
    /// locks, continues without the lock: each process writes its own partial file, so the lock only avoids duplicate
    /// downloads.
    async fn lock_blob(&self, path: &Path, display_name: &str, control: FetchControl<'_>) -> Result<Option<File>> {
        make_folder(path.parent().unwrap_or(path))?;
        let file =
            File::options().create(true).append(true).open(path).map_err(|error| cache_error("write", path, &error))?;
        let mut is_reported = false;
        let wait = wait_until(control.stop, || match file.try_lock() {
            Ok(()) | Err(TryLockError::Error(_)) => true,
            Err(TryLockError::WouldBlock) => {
                if !is_reported {
                    control.reporter.event(Event::FetchNote {
                        text: format!("{display_name}: waiting for a download by another process"),
                    });
                    is_reported = true;
                }
                false
            }
        });
        if wait.await { Ok(Some(file)) } else { Err(stopped_error()) }
    }

    /// Downloads the missing bytes of a partial file, with retries. Returns the number of bytes received.
    async fn download_rest(&self, transfer: &mut Transfer<'_>) -> Result<u64> {
        let mut received = 0;
        let mut tries = 0;
        let mut max_bytes = transfer.partial_file.bytes();
        let mut had_mismatch = false;
        loop {
            let failure = match self.download_once(transfer, &mut received).await {
                Ok(()) => match transfer.partial_file.check() {
                    Ok(()) => return Ok(received),
                    Err(found) => {
                        transfer.restart("hash mismatch")?;
                        // The first mismatch may be caused by bytes from an earlier run, so download the whole file
                        // once more.
                        if had_mismatch {
                            let error =
                                Error::damaged("a downloaded file differs from the expected one and was deleted");
                            let error = error
                                .at(transfer.request.context.location())
                                .expected(found.expected)
                                .found(found.found);
                            return Err(error.hint("check the proxy or mirror, or try again later"));
                        }
                        had_mismatch = true;
                        max_bytes = 0;
                        continue;
                    }
                },
                Err(failure) => failure,
            };
            // Only bytes beyond the previous maximum count as progress, so that a server that always disconnects at the
            // same byte is not retried forever.
            if transfer.partial_file.bytes() > max_bytes {
                (max_bytes, tries) = (transfer.partial_file.bytes(), 0);
            }
            self.back_off(failure, &mut tries, &transfer.request.context, transfer.control).await?;
        }
    }

    /// Requests the missing bytes once and appends them to the partial file. Adds their number to `received`.
    async fn download_once(&self, transfer: &mut Transfer<'_>, received: &mut u64) -> Result<(), RequestFailure> {
        let start = transfer.partial_file.bytes();
        let control = transfer.control;
        if transfer.partial_file.expected_bytes() == Some(start) {
            return Ok(());
        }
        transfer.request.start = start;
        let mut reply = match self.send_once(&transfer.request, control).await {
            Err(RequestFailure::RangeNotSatisfiable) => {
                return Err(transfer.discard("the host has no more data".to_owned()));
            }
            reply => reply?,
        };
        let mut known = transfer.count_known_bytes(&reply)?;
        if !reply.is_from_hub {
            let strong = header_text(ETAG.as_str(), reply.response.headers());
            transfer.request.storage_etag = strong.filter(|etag| !etag.starts_with("W/")).map(str::to_owned);
        }
        let stall = self.settings.retry_policy.stall_timeout;
        while let Some(chunk) = await_network(reply.response.chunk(), stall, "the connection stalled", control).await? {
            *received += transfer.append_chunk(&chunk, &mut known)?;
        }
        match transfer.partial_file.expected_bytes() {
            _ if known > 0 => Err(RequestFailure::retryable(format!("the response ended before byte {start}"))),
            Some(bytes) if transfer.partial_file.bytes() < bytes => Err(RequestFailure::retryable(format!(
                "the response ended after {} of {bytes} bytes",
                transfer.partial_file.bytes()
            ))),
            _ => Ok(()),
        }
    }
}

impl Transfer<'_> {
    fn restart(&mut self, why: &str) -> Result<()> {
        self.partial_file.restart().map_err(|error| cache_error("write", self.partial_file.path(), &error))?;
        let event = Event::FetchRestarted { file: self.display_name.to_owned(), why: why.to_owned() };
        self.control.reporter.event(event);
        Ok(())
    }

    /// Discards the partial file after an unusable response.
    fn discard(&mut self, why: String) -> RequestFailure {
        self.restart(&why).map_or_else(RequestFailure::Permanent, |()| RequestFailure::retryable(why))
    }

    /// Keeps the partial file after the first unusable response to a resumed download, because a proxy may have caused
    /// it. Discards the file after a second such response in a row, or if the download started at byte 0.
    fn keep_or_discard(&mut self, why: String) -> RequestFailure {
        let is_resumed = self.request.start > 0;
        if std::mem::replace(&mut self.had_unusable_response, is_resumed) || !is_resumed {
            self.had_unusable_response = false;
            return self.discard(why);
        }
        RequestFailure::retryable(why)
    }

    /// Returns the number of leading bytes in the response that the partial file already contains. If the response is
    /// unusable, keeps or discards the partial file and returns a retryable failure.
    fn count_known_bytes(&mut self, reply: &Reply) -> Result<u64, RequestFailure> {
        self.check_continuation(reply).map_err(|why| match reply.response.status() {
            StatusCode::OK => self.keep_or_discard(why),
            _ => self.discard(why),
        })
    }

    /// Checks that the response continues the partial file, or starts at the first byte of the file. Returns the number
    /// of its leading bytes that the partial file already contains.
    ///
    /// # Errors
    /// Fails with the reason why the response is unusable.
    fn check_continuation(&self, reply: &Reply) -> Result<u64, String> {
        let start = self.request.start;
        let status = reply.response.status();
        let headers = reply.response.headers();
        let expected_bytes = self.partial_file.expected_bytes();
        let length = header_text(CONTENT_LENGTH.as_str(), headers).and_then(|length| length.parse::<u64>().ok());
        if status != StatusCode::PARTIAL_CONTENT {
            return match (expected_bytes, length) {
                (Some(expected), Some(found)) if expected != found => Err(mismatch("the length is", expected, found)),
                _ => Ok(start),
            };
        }
        // The header has the form `bytes 5-9/10`.
        let range = header_text(CONTENT_RANGE.as_str(), headers).and_then(|range| {
            let (span, total) = range.trim().strip_prefix("bytes ")?.split_once('/')?;
            Some((span.split_once('-')?.0.trim().parse::<u64>().ok()?, total.trim().parse::<u64>().ok()))
        });
        let Some((first, total)) = range else {
            return Err("a partial response without a valid `Content-Range`".to_owned());
        };
        if first != start {
            return Err(mismatch("the partial response starts at byte", start, first));
        }
        if let (Some(expected), Some(found)) = (expected_bytes, total)
            && expected != found
        {
            return Err(mismatch("the length is", expected, found));
        }
        let known_etag = if reply.is_from_hub {
            self.request.etag.map(BlobName::as_str)
        } else {
            self.request.storage_etag.as_deref()
        };
        match (known_etag.map(strip_etag), header_text(ETAG.as_str(), headers).map(strip_etag)) {
            (Some(known), Some(received)) if known != received => {
                Err("the ETag changed since the previous request".to_owned())
            }
            _ => Ok(0),
        }
    }

    /// Compares the first `known` bytes of a chunk with the partial file, and appends the remaining bytes. Returns the
    /// number of appended bytes.
    fn append_chunk(&mut self, chunk: &[u8], known: &mut u64) -> Result<u64, RequestFailure> {
        let (overlap, chunk) = chunk.split_at(chunk.len().min(usize::try_from(*known).unwrap_or(usize::MAX)));
        let matches = self.partial_file.contains(self.request.start - *known, overlap);
        if !matches.map_err(|error| RequestFailure::Permanent(cache_error("read", self.partial_file.path(), &error)))? {
            return Err(self.keep_or_discard("the first bytes differ from the downloaded ones".to_owned()));
        }
        *known -= overlap.len() as u64;
        if chunk.is_empty() {
            return Ok(0);
        }
        let total = self.partial_file.bytes() + chunk.len() as u64;
        if let Some(bytes) = self.partial_file.expected_bytes().filter(|bytes| total > *bytes) {
            return Err(self.discard(format!("received more than the expected {bytes} bytes")));
        }
        self.had_unusable_response = false;
        let written = self.partial_file.write(chunk);
        written.map_err(|error| RequestFailure::Permanent(cache_error("write", self.partial_file.path(), &error)))?;
        let event = Event::FetchAdvanced { file: self.display_name.to_owned(), bytes: chunk.len() as u64 };
        self.control.reporter.event(event);
        Ok(chunk.len() as u64)
    }
}

fn mismatch(property: &str, expected: u64, found: u64) -> String {
    format!("{property} {found} instead of {expected}")
}

/// Merges the size and hashes of a file from the lock, the listing and the Hub. Fails if they disagree.
fn merge_expected(repo: &PlannedRepo, file: &PlannedFile, hub_expected: KnownFile) -> Result<KnownFile> {
    let origin = if repo.locked { "as pinned" } else { "as listed" };
    let differs = Error::damaged("the file on the hub differs from the expected one")
        .at(format!("{}, {} at {}", repo.source, file.name, repo.commit))
        .hint("check the mirror and hub.lock: the files of a commit never change");
    if let (Some(expected), Some(found)) = (file.bytes, hub_expected.bytes)
        && expected != found
    {
        return Err(differs.expected(format!("{expected} bytes, {origin}")).found(format!("{found} bytes")));
    }
    if let (Some(expected), Some(found)) = (&file.sha256, &hub_expected.sha256)
        && expected != found
    {
        return Err(differs.expected(format!("SHA-256 {expected}, {origin}")).found(format!("SHA-256 {found}")));
    }
    Ok(KnownFile {
        bytes: file.bytes.or(hub_expected.bytes),
        sha256: file.sha256.clone().or(hub_expected.sha256),
        ..hub_expected
    })
}

//! Requests to the Hub API for the commit that a revision points to and for the files in a commit.

use ghostlab_core::error::{Error, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::answer::header_text;
use crate::client::{FetchControl, Hub, HubRequest, await_network};
use crate::name::{BlobName, Commit, ContentHash, FileName, KnownFile};
use crate::repo::Source;

/// Characters that are percent-encoded in URLs: all except letters, digits and `-._~`.
const PERCENT_ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Maximum size of a response in bytes.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
/// Maximum number of pages in a file list.
const MAX_LISTING_PAGES: usize = 1000;

#[derive(Deserialize)]
struct Revision {
    sha: Commit,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ListingEntry {
    File {
        path: FileName,
        size: u64,
        /// Git hash of the file, or of the pointer to a large file.
        oid: BlobName,
        lfs: Option<LargeFile>,
    },
    /// Folder or unknown entry type.
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct LargeFile {
    oid: ContentHash,
    size: u64,
}

pub(crate) fn percent_encode(part: &str) -> String {
    utf8_percent_encode(part, PERCENT_ENCODED).to_string()
}

impl Hub {
    /// Returns the current commit of a revision on the Hub. A full commit hash needs no request.
    pub(crate) async fn fetch_commit(&self, source: &Source, control: FetchControl<'_>) -> Result<Commit> {
        if let Some(commit) = source.commit() {
            return Ok(commit);
        }
        let url =
            self.build_url(&format!("api/{}/revision/{}", source.repo.api_path(), percent_encode(source.revision())))?;
        Ok(self.get_json::<Revision>(source, url, control).await?.0.sha)
    }

    /// Lists the files in a folder of a commit, recursively if `is_recursive` is set. The empty path is the root.
    pub(crate) async fn list_files(
        &self,
        source: &Source,
        commit: &Commit,
        folder: &str,
        is_recursive: bool,
        control: FetchControl<'_>,
    ) -> Result<Vec<(FileName, KnownFile)>> {
        let folder: String = folder
            .split('/')
            .filter(|part| !part.is_empty())
            .map(|part| format!("/{}", percent_encode(part)))
            .collect();
        let query = if is_recursive { "?recursive=true" } else { "" };
        let mut url = self.build_url(&format!("api/{}/tree/{commit}{folder}{query}", source.repo.api_path()))?;
        let mut files = Vec::new();
        for _ in 0..MAX_LISTING_PAGES {
            let (entries, next) = self.get_json::<Vec<ListingEntry>>(source, url.clone(), control).await?;
            files.extend(entries.into_iter().filter_map(|entry| match entry {
                ListingEntry::File { path, lfs: Some(LargeFile { oid, size }), .. } => {
                    Some((path, KnownFile { bytes: Some(size), sha256: Some(oid.clone()), blob: Some(oid.into()) }))
                }
                ListingEntry::File { path, size, oid, lfs: None } => {
                    Some((path, KnownFile { bytes: Some(size), sha256: None, blob: Some(oid) }))
                }
                ListingEntry::Other => None,
            }));
            match next {
                Some(next) if next != url => url = next,
                _ => return Ok(files),
            }
        }
        Err(self.endpoint_error(source, &format!("a file list of more than {MAX_LISTING_PAGES} pages")))
    }

    /// Requests a JSON document, and returns it with the URL of the next page, if any. Deserializing `T` validates all
    /// names that become paths.
    async fn get_json<T: DeserializeOwned>(
        &self,
        source: &Source,
        url: Url,
        control: FetchControl<'_>,
    ) -> Result<(T, Option<Url>)> {
        let context = self.request_context(source, None);
        let request = HubRequest::new(Method::GET, url.clone(), context);
        let mut tries = 0;
        let (body, next) = loop {
            let mut reply = self.send(&request, control).await?;
            let link = header_text("link", reply.response.headers());
            let next = link.and_then(next_page_url).and_then(|next| url.join(next).ok());
            if next.as_ref().is_some_and(|next| !self.is_hub_url(next)) {
                return Err(self.endpoint_error(source, "a file list that continues on another host"));
            }
            let mut body = Vec::new();
            let failure = loop {
                match await_network(
                    reply.response.chunk(),
                    self.settings.retry_policy.stall_timeout,
                    "the connection stalled",
                    control,
                )
                .await
                {
                    Ok(None) => break None,
                    Ok(Some(chunk)) if body.len() + chunk.len() <= MAX_RESPONSE_BYTES => body.extend_from_slice(&chunk),
                    Ok(Some(_)) => {
                        return Err(
                            self.endpoint_error(source, &format!("a response of more than {MAX_RESPONSE_BYTES} bytes"))
                        );
                    }
                    Err(failure) => break Some(failure),
                }
            };
            match failure {
                None => break (body, next),
                Some(failure) => self.back_off(failure, &mut tries, &context, control).await?,
            }
        };
        let value = serde_json::from_slice(&body).map_err(|error| match error.is_data() {
            true => self.endpoint_error(source, &context.sanitize_remote_text(&error.to_string())),
            false => {
                let start = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
                self.endpoint_error(source, &format!("`{}`", context.sanitize_remote_text(&start)))
            }
        })?;
        Ok((value, next))
    }

    /// Creates the error for a server that does not respond like the Hub.
    pub(crate) fn endpoint_error(&self, source: &Source, found: &str) -> Error {
        Error::missing("invalid response from the hub")
            .at(format!("{source} at {}", self.settings.endpoint))
            .found(found)
            .hint("check HF_ENDPOINT if set, and check for a proxy or login page")
    }
}

/// Returns the URL with `rel="next"` in a `Link` header.
fn next_page_url(link: &str) -> Option<&str> {
    link.split(',').find_map(|part| {
        let (address, relation) = part.split_once(';')?;
        relation.contains("rel=\"next\"").then(|| address.trim().trim_start_matches('<').trim_end_matches('>'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_page_url_is_read_from_link_header() {
        assert_eq!(next_page_url("<https://h/a?cursor=1>; rel=\"next\""), Some("https://h/a?cursor=1"));
        assert_eq!(next_page_url("<https://h/a>; rel=\"prev\", </b>; rel=\"next\""), Some("/b"));
        assert_eq!(next_page_url("<https://h/a>; rel=\"prev\""), None);
    }

    #[test]
    fn slash_in_a_revision_is_percent_encoded() {
        assert_eq!(percent_encode("refs/convert/parquet"), "refs%2Fconvert%2Fparquet");
        assert_eq!(percent_encode("Llama-3.1_8B~a b"), "Llama-3.1_8B~a%20b");
    }
}

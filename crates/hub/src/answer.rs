//! Classification of responses from the Hub: whether and when to retry, and which error to report.

use std::time::{Duration, SystemTime};

use ghostlab_core::error::{Error, printable};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{StatusCode, Url};

use crate::name::FileName;
use crate::repo::{Repo, Source};
use crate::token::Token;

/// Reason why a request failed.
#[derive(Debug)]
pub(crate) enum RequestFailure {
    /// Temporary failure. A retry may succeed after the delay that the Hub requested in `retry_after`.
    Transient { why: String, retry_after: Option<Duration> },
    /// HTTP status 416: the requested range starts at or after the end of the file.
    RangeNotSatisfiable,
    /// Permanent failure of this request.
    Permanent(Error),
    /// Permanent failure of all requests to this repository.
    RepoRefused(Error),
    /// Interruption by the user.
    Stopped,
}

impl RequestFailure {
    pub(crate) fn retryable(why: impl Into<String>) -> Self {
        Self::Transient { why: why.into(), retry_after: None }
    }
}

/// Details of a request, for error messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestContext<'a> {
    pub(crate) source: &'a Source,
    pub(crate) file: Option<&'a FileName>,
    pub(crate) endpoint: &'a Url,
    pub(crate) token: Option<&'a Token>,
}

/// Maximum length of response text quoted in a message, in characters.
const MAX_QUOTED_CHARS: usize = 300;

impl RequestContext<'_> {
    /// Returns the repository and file, such as `org/name@main, config.json`.
    pub(crate) fn location(&self) -> String {
        match self.file {
            Some(file) => format!("{}, {file}", self.source),
            None => self.source.to_string(),
        }
    }

    /// Makes response text safe to quote: redacts the token, truncates the text, and escapes control characters.
    pub(crate) fn sanitize_remote_text(&self, text: &str) -> String {
        let hidden = self.token.map_or(text.to_owned(), |token| token.redact(text));
        printable(&hidden.chars().take(MAX_QUOTED_CHARS).collect::<String>()).replace('\n', " ")
    }

    /// Classifies the response at the end of a redirect chain. `is_from_hub` indicates whether the Hub itself sent it,
    /// rather than another host.
    pub(crate) fn classify(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        is_from_hub: bool,
    ) -> Result<(), RequestFailure> {
        if status.is_success() {
            return Ok(());
        }
        if status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(RequestFailure::RangeNotSatisfiable);
        }
        let code = self.header(headers, "x-error-code");
        let why = match (&code, self.header(headers, "x-error-message")) {
            (_, Some(message)) => format!("{status}: {message}"),
            (Some(code), None) => format!("{status}: {code}"),
            (None, None) => status.to_string(),
        };
        // Signed URLs on other hosts expire. A retry gets a new URL from the Hub.
        let expired = !is_from_hub && matches!(status.as_u16(), 400 | 401 | 403 | 404 | 410);
        let later = matches!(status.as_u16(), 408 | 425 | 429) || status.is_server_error();
        if later || expired {
            return Err(RequestFailure::Transient {
                why,
                retry_after: parse_requested_delay(headers, SystemTime::now()),
            });
        }
        let error = self.status_error(status, code.as_deref(), &why);
        let affects_all_files = matches!(status.as_u16(), 401 | 403)
            || matches!(code.as_deref(), Some("RepoNotFound" | "RevisionNotFound"));
        Err(if is_from_hub && affects_all_files {
            RequestFailure::RepoRefused(error)
        } else {
            RequestFailure::Permanent(error)
        })
    }

    fn header(&self, headers: &HeaderMap, name: &str) -> Option<String> {
        header_text(name, headers).map(|text| self.sanitize_remote_text(text))
    }

    fn status_error(&self, status: StatusCode, code: Option<&str>, why: &str) -> Error {
        let repo = &self.source.repo;
        let page = page_url(self.endpoint, repo);
        let error = |what: String| Error::missing(what).at(self.location()).found(why);
        let tokens_url = format!("{}settings/tokens", self.endpoint);
        let token_hint = match self.token {
            Some(_) => format!("check that your token can read the repository: {tokens_url}"),
            None => format!(
                "then create a token at {tokens_url} and set HF_TOKEN, or save the token in the file HF_TOKEN_PATH"
            ),
        };
        match (status.as_u16(), code) {
            (401 | 403, Some("GatedRepo")) => error(format!("{repo} requires accepting its license"))
                .hint(format!("accept it at {page}\n{token_hint}")),
            (401 | 404, Some("RepoNotFound")) => error(format!("{repo} does not exist on the hub, or is private"))
                .hint(format!("check the name; if the repository is private:\n{token_hint}")),
            (404, Some("RevisionNotFound")) => error(format!("{repo} has no revision `{}`", self.source.revision()))
                .hint(format!("see the branches at {page}/tree/main")),
            (404, Some("EntryNotFound")) => match self.file {
                Some(file) => error(format!("{repo} has no file `{file}` at `{}`", self.source.revision())),
                None => error(format!("{repo} has no such folder at `{}`", self.source.revision())),
            }
            .hint(format!("see the files at {page}/tree/{}", self.source.revision())),
            (404, _) => error("not found on the hub".to_owned())
                .hint(format!("check that the repository, the revision and the file exist: {page}")),
            (401, _) => match self.token {
                Some(_) => error("the hub rejected the token".to_owned())
                    .hint(format!("check that the token is complete and not revoked: {tokens_url}")),
                None => error("the hub requires authentication".to_owned())
                    .hint(format!("check that the repository exists at {page}\n{token_hint}")),
            },
            (403, _) => error(format!("the hub denied access to {repo}")).hint(format!("see {page}\n{token_hint}")),
            _ => error("unexpected response from the hub".to_owned())
                .hint("check that HF_ENDPOINT, if set, is the address of a hub"),
        }
    }
}

/// Returns the URL of the repository's page, on which users accept its license.
pub(crate) fn page_url(endpoint: &Url, repo: &Repo) -> String {
    format!("{endpoint}{repo}")
}

/// Returns the delay requested by the Hub: the larger of the headers `Retry-After` (seconds or a date) and `RateLimit`
/// (its field `t`, in seconds).
fn parse_requested_delay(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let retry_after = header_text(RETRY_AFTER.as_str(), headers).and_then(|text| {
        let seconds = text.trim().parse::<u64>().ok().map(Duration::from_secs);
        seconds.or_else(|| Some(httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default()))
    });
    // `"api";r=0;t=55` means that the quota is exhausted and resets in 55 seconds.
    let limit = header_text("ratelimit", headers).and_then(|text| {
        let remaining = parse_rate_limit_field(text, "r").unwrap_or(0);
        (remaining == 0).then(|| parse_rate_limit_field(text, "t").map(Duration::from_secs)).flatten()
    });
    retry_after.max(limit)
}

/// Parses a number from a `RateLimit` header, such as `55` for the field `t` of `"api";r=0;t=55`.
fn parse_rate_limit_field(text: &str, name: &str) -> Option<u64> {
    text.split(';').find_map(|field| field.trim().strip_prefix(name)?.strip_prefix('=')?.trim().parse().ok())
}

pub(crate) fn header_text<'a>(name: &str, headers: &'a HeaderMap) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn retry_delay_is_read_from_response_headers() {
        let now = httpdate::parse_http_date("Wed, 21 Oct 2026 07:28:00 GMT").unwrap();
        for (response_headers, seconds) in [
            (&[("ratelimit", "\"api\";r=0;t=55")][..], Some(55)),
            (&[("ratelimit", "\"api\";r=12;t=55")], None),
            (&[("retry-after", "7")], Some(7)),
            (&[("retry-after", "Wed, 21 Oct 2026 07:28:30 GMT")], Some(30)),
            (&[("retry-after", "Wed, 21 Oct 2026 07:20:00 GMT")], Some(0)),
            (&[("retry-after", "7"), ("ratelimit", "\"api\";r=0;t=55")], Some(55)),
            (&[("retry-after", "soon")], None),
            (&[], None),
        ] {
            assert_eq!(
                parse_requested_delay(&headers(response_headers), now),
                seconds.map(Duration::from_secs),
                "{response_headers:?}"
            );
        }
    }

    #[test]
    fn http_errors_have_specific_messages_and_hide_the_token() {
        let endpoint = Url::parse("https://huggingface.co").unwrap();
        let source = Source::parse("o/n@dev").unwrap();
        let file = FileName::new("config.json").unwrap();
        let token = Token::new("hf_secret", "").unwrap().unwrap();
        let context = RequestContext { source: &source, file: Some(&file), endpoint: &endpoint, token: Some(&token) };
        for (status, code, message) in [
            (401, "GatedRepo", "accept it at https://huggingface.co/o/n"),
            (403, "GatedRepo", "accept it at https://huggingface.co/o/n"),
            (401, "RepoNotFound", "o/n does not exist on the hub, or is private"),
            (404, "RepoNotFound", "o/n does not exist on the hub, or is private"),
            (404, "RevisionNotFound", "o/n has no revision `dev`"),
            (404, "EntryNotFound", "o/n has no file `config.json` at `dev`"),
            (401, "", "the hub rejected the token"),
            (403, "", "the hub denied access to o/n"),
        ] {
            let response_headers = headers(&[("x-error-code", code), ("x-error-message", "your hf_secret is bad")]);
            let status = StatusCode::from_u16(status).unwrap();
            let error = match context.classify(status, &response_headers, true) {
                Err(RequestFailure::Permanent(error)) if code == "EntryNotFound" => error,
                Err(RequestFailure::RepoRefused(error)) => error,
                other => panic!("{status} {code}: {other:?}"),
            };
            let text = error.to_string();
            assert!(text.contains(message) && error.exit_code() == 3, "{text}");
            assert!(text.contains("your [token] is bad") && !text.contains("hf_secret"), "{text}");
        }
    }

    #[test]
    fn rate_limits_server_errors_and_expired_urls_are_transient() {
        let endpoint = Url::parse("https://huggingface.co").unwrap();
        let source = Source::parse("o/n").unwrap();
        let context = RequestContext { source: &source, file: None, endpoint: &endpoint, token: None };
        for (status, is_from_hub) in [(429, true), (500, true), (503, false), (408, true), (403, false)] {
            let classified = context.classify(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), is_from_hub);
            assert!(matches!(classified, Err(RequestFailure::Transient { .. })), "{status}");
        }
        assert!(context.classify(StatusCode::PARTIAL_CONTENT, &HeaderMap::new(), true).is_ok());
    }
}

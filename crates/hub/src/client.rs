//! HTTP requests to the Hub. Redirects are followed manually, so that the token is sent only to the Hub itself.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ghostlab_core::error::{Error, Result};
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, ETAG, HeaderMap, IF_RANGE, LOCATION, RANGE};
use reqwest::{Client, Method, RequestBuilder, Response, Url};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use crate::answer::{RequestContext, RequestFailure, header_text};
use crate::cache::Cache;
use crate::event::{Event, Reporter};
use crate::name::BlobName;
use crate::repo::Source;
use crate::settings::HubSettings;

/// Maximum number of redirects per request.
const MAX_REDIRECTS: usize = 10;

/// Client for the Hub, with a file cache.
pub struct Hub {
    pub(crate) settings: HubSettings,
    pub(crate) cache: Cache,
    /// Runtime and HTTP client, created on the first request because cached files need no network.
    connection: OnceLock<Connection>,
    /// Repositories that the Hub refused during this fetch: access was denied, or the repository or revision does not
    /// exist. Their remaining files are skipped.
    pub(crate) refused_repos: Mutex<BTreeSet<Source>>,
    /// Time before which no request may be sent, as requested by the Hub.
    paused_until: Mutex<Option<Instant>>,
}

pub(crate) struct Connection {
    pub(crate) runtime: Runtime,
    client: Client,
}

/// Progress reporter and interruption flag for a fetch.
#[derive(Clone, Copy)]
pub(crate) struct FetchControl<'a> {
    pub(crate) reporter: &'a dyn Reporter,
    pub(crate) stop: &'a AtomicBool,
}

/// Request to the Hub, which may redirect it to another host.
pub(crate) struct HubRequest<'a> {
    pub(crate) method: Method,
    pub(crate) url: Url,
    /// Offset of the first requested byte.
    pub(crate) start: u64,
    /// ETag of the file on the Hub. Requests to the Hub send it as `If-Range`.
    pub(crate) etag: Option<&'a BlobName>,
    /// ETag that the host for large files sent with the first bytes. Requests to that host send it as `If-Range`.
    pub(crate) storage_etag: Option<String>,
    pub(crate) context: RequestContext<'a>,
}

impl<'a> HubRequest<'a> {
    /// Creates a request for a whole file or document.
    pub(crate) fn new(method: Method, url: Url, context: RequestContext<'a>) -> Self {
        Self { method, url, start: 0, etag: None, storage_etag: None, context }
    }
}

/// Final response to a request, and the headers of all responses from the Hub itself.
pub(crate) struct Reply {
    pub(crate) response: Response,
    /// Headers of the responses from the Hub itself. The first value of each name is kept, except that the last `ETag`
    /// wins.
    pub(crate) headers: HeaderMap,
    /// Whether the final response comes from the Hub itself.
    pub(crate) is_from_hub: bool,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header_text(name, &self.headers)
    }
}

impl Hub {
    pub fn new(settings: HubSettings) -> Self {
        let cache = Cache::new(settings.cache.clone(), settings.symlinks);
        Self {
            settings,
            cache,
            connection: OnceLock::new(),
            refused_repos: Mutex::default(),
            paused_until: Mutex::default(),
        }
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    pub fn settings(&self) -> &HubSettings {
        &self.settings
    }

    /// Returns the connection, which is created on the first call.
    ///
    /// # Errors
    /// Fails if offline mode is set, or if the runtime or HTTP client cannot be created.
    pub(crate) fn get_or_create_connection(&self) -> Result<&Connection> {
        if self.settings.offline {
            return Err(Error::missing("cannot access the hub: HF_HUB_OFFLINE is set")
                .hint("unset HF_HUB_OFFLINE (and TRANSFORMERS_OFFLINE) to fetch missing files"));
        }
        if let Some(connection) = self.connection.get() {
            return Ok(connection);
        }
        // The client uses the process-wide TLS provider. The call fails if one is already installed, which is fine.
        rustls::crypto::ring::default_provider().install_default().ok();
        let client = Client::builder()
            .user_agent(concat!("ghostlab/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(self.settings.retry_policy.response_timeout);
        let client = client.build().map_err(|error| connection_error(&error))?;
        let threads = self.settings.max_downloads.clamp(1, 16);
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(threads).thread_name("hub").enable_all().build();
        let connection = Connection { client, runtime: runtime.map_err(|error| connection_error(&error))? };
        Ok(self.connection.get_or_init(|| connection))
    }

    pub(crate) fn request_context<'a>(
        &'a self,
        source: &'a Source,
        file: Option<&'a crate::FileName>,
    ) -> RequestContext<'a> {
        RequestContext { source, file, endpoint: &self.settings.endpoint, token: self.settings.token.as_ref() }
    }

    /// Builds a URL from the endpoint and a percent-encoded path.
    pub(crate) fn build_url(&self, path: &str) -> Result<Url> {
        let base = self.settings.endpoint.as_str().trim_end_matches('/');
        Url::parse(&format!("{base}/{path}")).map_err(|error| Error::bad_input("invalid URL").at(path).found(error))
    }

    /// Returns whether a URL belongs to the Hub. Only requests to the Hub carry the token.
    pub(crate) fn is_hub_url(&self, url: &Url) -> bool {
        let endpoint = &self.settings.endpoint;
        url.scheme() == endpoint.scheme()
            && url.host_str() == endpoint.host_str()
            && url.port_or_known_default() == endpoint.port_or_known_default()
    }

    /// Sends a request once and follows redirects. A HEAD request stops at a redirect to another host.
    pub(crate) async fn send_once(
        &self,
        request: &HubRequest<'_>,
        control: FetchControl<'_>,
    ) -> Result<Reply, RequestFailure> {
        let connection = self.get_or_create_connection().map_err(RequestFailure::Permanent)?;
        let mut url = request.url.clone();
        let mut headers = HeaderMap::new();
        let mut seen = Vec::new();
        loop {
            let is_hub = self.is_hub_url(&url);
            let http_request = self.build_http_request(&connection.client, request, &url, is_hub)?;
            let response =
                await_network(http_request.send(), self.settings.retry_policy.response_timeout, "no response", control)
                    .await?;
            if is_hub {
                for (name, value) in response.headers() {
                    headers.entry(name).or_insert_with(|| value.clone());
                }
            }
            let status = response.status();
            let moved = status.is_redirection().then(|| response.headers().get(LOCATION)).flatten();
            let Some(next) = moved.and_then(|to| url.join(to.to_str().ok()?).ok()) else {
                request.context.classify(status, response.headers(), is_hub)?;
                if is_hub && let Some(etag) = response.headers().get(ETAG) {
                    headers.insert(ETAG, etag.clone());
                }
                return Ok(Reply { response, headers, is_from_hub: is_hub });
            };
            if request.method == Method::HEAD && is_hub && !self.is_hub_url(&next) {
                return Ok(Reply { response, headers, is_from_hub: is_hub });
            }
            seen.push(url);
            check_redirect(request, &seen, &next)?;
            url = next;
        }
    }

    /// Builds the HTTP request to one host. Only the Hub receives the token and the Hub's ETag.
    fn build_http_request(
        &self,
        client: &Client,
        request: &HubRequest<'_>,
        url: &Url,
        is_hub: bool,
    ) -> Result<RequestBuilder, RequestFailure> {
        let mut builder = client.request(request.method.clone(), url.clone()).header(ACCEPT_ENCODING, "identity");
        if let Some(token) = self.settings.token.as_ref().filter(|_| is_hub) {
            builder = builder.header(AUTHORIZATION, token.header().map_err(RequestFailure::Permanent)?);
        }
        if request.start > 0 {
            builder = builder.header(RANGE, format!("bytes={}-", request.start));
            let validator =
                if is_hub { request.etag.map(|etag| format!("\"{etag}\"")) } else { request.storage_etag.clone() };
            if let Some(validator) = validator {
                builder = builder.header(IF_RANGE, validator);
            }
        }
        Ok(builder)
    }

    /// Sends a request and retries it after temporary failures.
    pub(crate) async fn send(&self, request: &HubRequest<'_>, control: FetchControl<'_>) -> Result<Reply> {
        let mut tries = 0;
        loop {
            self.wait_for_pause(control).await?;
            match self.send_once(request, control).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => self.back_off(failure, &mut tries, &request.context, control).await?,
            }
        }
    }

    /// Waits before the next attempt, or returns the final error.
    pub(crate) async fn back_off(
        &self,
        failure: RequestFailure,
        tries: &mut u32,
        context: &RequestContext<'_>,
        control: FetchControl<'_>,
    ) -> Result<()> {
        let (why, retry_after) = match failure {
            RequestFailure::Transient { why, retry_after } => (why, retry_after),
            RequestFailure::RangeNotSatisfiable => ("the host does not have the requested range".to_owned(), None),
            RequestFailure::Permanent(error) => return Err(error),
            RequestFailure::RepoRefused(error) => {
                self.refused_repos.lock().unwrap_or_else(PoisonError::into_inner).insert(context.source.clone());
                return Err(error);
            }
            RequestFailure::Stopped => return Err(stopped_error()),
        };
        *tries += 1;
        let retry_policy = &self.settings.retry_policy;
        let gave_up = Error::missing("request to the Hugging Face Hub failed").at(context.location()).found(&why);
        if *tries >= retry_policy.max_attempts {
            let error = gave_up.expected(format!("a response within {} attempts", retry_policy.max_attempts));
            return Err(error.hint("run the same command to resume; downloaded data is kept"));
        }
        if let Some(retry_after) = retry_after.filter(|retry_after| *retry_after > retry_policy.max_requested_delay) {
            let expected = format!("a wait of at most {} s", retry_policy.max_requested_delay.as_secs());
            let error = gave_up.expected(expected).found(format!("{why}; requested wait: {} s", retry_after.as_secs()));
            return Err(error.hint("try again later, or set a token to raise the rate limit"));
        }
        let delay = retry_policy.initial_delay.saturating_mul(1 << (*tries - 1).min(16)).min(retry_policy.max_delay);
        let delay = add_jitter(delay).max(retry_after.unwrap_or_default());
        if retry_after.is_some() {
            let mut paused_until = self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
            *paused_until = (*paused_until).max(Some(Instant::now() + delay));
        }
        control
            .reporter
            .event(Event::FetchWaits { seconds: delay.as_secs_f64(), why: format!("{}: {why}", context.location()) });
        if pause(control.stop, delay).await { Ok(()) } else { Err(stopped_error()) }
    }

    /// Waits until the end of the pause that the Hub requested in response to another request.
    async fn wait_for_pause(&self, control: FetchControl<'_>) -> Result<()> {
        let until = *self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        if left.is_zero() || pause(control.stop, left).await { Ok(()) } else { Err(stopped_error()) }
    }
}

fn connection_error(error: &dyn std::fmt::Display) -> Error {
    Error::job("cannot start the HTTP client").found(error)
}

/// Rejects a redirect to `next` if its scheme is unsafe (HTTP after HTTPS, or neither), if it forms a loop, or if it
/// exceeds [`MAX_REDIRECTS`]. `seen` contains the URLs requested so far.
fn check_redirect(request: &HubRequest<'_>, seen: &[Url], next: &Url) -> Result<(), RequestFailure> {
    let scheme = seen.last().map_or("", Url::scheme);
    let is_unsafe = scheme == "https" && next.scheme() != "https" || !matches!(next.scheme(), "http" | "https");
    if !is_unsafe && !seen.contains(next) && seen.len() < MAX_REDIRECTS {
        return Ok(());
    }
    let found = if is_unsafe {
        format!("a redirect from {scheme} to {}", next.scheme())
    } else if seen.contains(next) {
        "a loop of redirects".to_owned()
    } else {
        format!("more than {MAX_REDIRECTS} redirects")
    };
    Err(RequestFailure::Permanent(
        Error::missing("cannot follow a redirect")
            .at(request.context.location())
            .expected("an HTTPS redirect to the file")
            .found(found)
            .hint("check the proxy and HF_ENDPOINT"),
    ))
}

pub(crate) fn stopped_error() -> Error {
    Error::interrupted("stopped; run the same command to resume the download")
}

/// Awaits a network operation for at most `limit`. A timeout is a retryable failure with the message `timeout_message`.
pub(crate) async fn await_network<T>(
    operation: impl Future<Output = reqwest::Result<T>>,
    limit: Duration,
    timeout_message: &str,
    control: FetchControl<'_>,
) -> Result<T, RequestFailure> {
    match with_timeout(control.stop, limit, operation).await {
        Ok(result) => result.map_err(|error| request_failure(&error)),
        Err(WaitEnd::TimedOut) => Err(RequestFailure::retryable(timeout_message)),
        Err(WaitEnd::Stopped) => Err(RequestFailure::Stopped),
    }
}

/// Converts a network error into a retryable failure. Its message omits URLs, because signed URLs are secrets.
fn request_failure(error: &reqwest::Error) -> RequestFailure {
    let mut causes = Vec::new();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(inner) = cause {
        causes.push(inner.to_string());
        cause = inner.source();
    }
    let what = if error.is_connect() { "cannot connect" } else { "connection lost" };
    let why = causes.last().map_or(what.to_owned(), |last| format!("{what}: {last}"));
    RequestFailure::retryable(why)
}

/// Multiplies a delay by a random factor between 0.75 and 1.25, to spread retries.
fn add_jitter(delay: Duration) -> Duration {
    let noise = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    delay.mul_f64(0.75 + f64::from(noise % 1000) / 2000.0)
}

/// Returns the display name of a file for messages and events.
pub(crate) fn display_name(source: &Source, name: &crate::FileName) -> String {
    format!("{}/{name}", source.repo)
}

/// Polling interval for the interruption flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Reason for ending a wait without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    Stopped,
    TimedOut,
}

/// Awaits a future until `limit` expires or `stop` is set.
pub(crate) async fn with_timeout<T>(
    stop: &AtomicBool,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Result<T, WaitEnd> {
    let mut future = pin!(future);
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if let Ok(result) = timeout(POLL_INTERVAL.min(left), &mut future).await {
            return Ok(result);
        }
        if stop.load(Relaxed) {
            return Err(WaitEnd::Stopped);
        }
        if left.is_zero() {
            return Err(WaitEnd::TimedOut);
        }
    }
}

/// Sleeps for `time`. Returns whether the sleep completed without interruption.
pub(crate) async fn pause(stop: &AtomicBool, time: Duration) -> bool {
    with_timeout(stop, time, std::future::pending::<()>()).await == Err(WaitEnd::TimedOut)
}

/// Polls until `done` returns true. Returns false if interrupted.
pub(crate) async fn wait_until(stop: &AtomicBool, mut done: impl FnMut() -> bool) -> bool {
    while !done() {
        if stop.load(Relaxed) {
            return false;
        }
        sleep(POLL_INTERVAL).await;
    }
    true
}

//! Helpers for fetching from the fake hub in tests: hub clients with short timeouts, requests, and checks of the
//! results.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "each test program uses only some helpers, which panic on setup errors"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ghostlab_core::error::Error;
use ghostlab_hub::{
    Commit, ContentHash, Event, FetchSummary, FilePattern, Hub, HubSettings, Lock, LockedFile, LockedRepo, RepoFiles,
    Reporter, RetryPolicy, Source,
};

use crate::common::{COMMIT, FakeHub, ServedFile, TOKEN};

pub const REPO: &str = "o/n";

/// Reporter that records all events.
#[derive(Default)]
pub struct RecordingReporter(pub Mutex<Vec<Event>>);

impl Reporter for RecordingReporter {
    fn event(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

pub fn settings(endpoint: &str, cache: &Path) -> HubSettings {
    let millis = Duration::from_millis;
    let retry_policy = RetryPolicy {
        response_timeout: millis(2000),
        stall_timeout: millis(300),
        max_attempts: 4,
        initial_delay: millis(10),
        max_delay: millis(40),
        max_requested_delay: millis(5000),
    };
    HubSettings {
        retry_policy,
        ..HubSettings::from_vars(&|name: &str| match name {
            "HF_ENDPOINT" => Some(endpoint.into()),
            "HF_HUB_CACHE" => Some(cache.into()),
            "HF_TOKEN" => Some(TOKEN.into()),
            _ => None,
        })
        .unwrap()
    }
}

pub fn request_files(names: &[&str]) -> RepoFiles {
    RepoFiles {
        source: Source::parse(REPO).unwrap(),
        files: names.iter().map(|name| FilePattern::required(*name)).collect(),
    }
}

pub fn lock(files: &[ServedFile]) -> Lock {
    let mut lock = Lock::default();
    let files = files
        .iter()
        .map(|file| {
            let name = ghostlab_hub::FileName::new(&file.name).unwrap();
            (name, LockedFile { bytes: file.content.len() as u64, sha256: ContentHash::new(&file.sha256()).unwrap() })
        })
        .collect();
    lock.pin(&Source::parse(REPO).unwrap(), LockedRepo { commit: Commit::new(COMMIT).unwrap(), files });
    lock
}

pub fn hash(path: &Path) -> ghostlab_core::error::Result<String> {
    Ok(ghostlab_core::files::sha256::of_file(path).map_err(|error| Error::io("read", path, &error))?.0)
}

pub struct Outcome {
    pub fetched: Result<FetchSummary, Error>,
    pub events: Vec<Event>,
}

impl Outcome {
    /// Returns the error from the call or, if it succeeded, from the first file that failed.
    pub fn error(&self) -> Option<&Error> {
        match &self.fetched {
            Ok(fetched) => fetched.failures.first().map(|(_, error)| error),
            Err(error) => Some(error),
        }
    }
}

/// Plans and fetches files, and checks that the token leaks neither into the output nor to other hosts.
pub fn fetch(server: &FakeHub, cache: &Path, names: &[&str], lock: &Lock) -> Outcome {
    let hub = Hub::new(settings(&server.address, cache));
    let events = RecordingReporter::default();
    let stop = AtomicBool::new(false);
    let plan = hub.plan(&[request_files(names)], lock, &events, &stop);
    let fetched = plan.and_then(|plan| hub.fetch(&plan, Some(&hash), &events, &stop));
    let outcome = Outcome { fetched, events: events.0.into_inner().unwrap() };
    let mut output = format!("{:?} {:?}", outcome.events, outcome.fetched);
    output += &serde_json::to_string(&outcome.events).unwrap();
    if let Some(error) = outcome.error() {
        output += &format!("{error} {}", error.one_line());
    }
    assert!(!output.contains(TOKEN), "{output}");
    for path in files_below(cache) {
        let text = fs::read(&path).unwrap();
        assert!(!text.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes()), "{}", path.display());
    }
    for request in server.requests() {
        let sent = request.headers.values().any(|value| value.contains(TOKEN)) || request.path.contains(TOKEN);
        assert_eq!(sent, !request.elsewhere, "only the hub gets the token: {request:?}");
    }
    outcome
}

pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files.extend(files_below(&entry.path())),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}

pub fn cached(cache: &Path, name: &str) -> Option<Vec<u8>> {
    fs::read(cache.join("models--o--n/snapshots").join(COMMIT).join(name)).ok()
}

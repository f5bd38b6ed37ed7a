//! Tests with injected faults in the Hub, the network and the disk.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "tests panic on setup errors, and print why they are skipped"
)]

mod disk;
mod download;
mod hub_answer;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::common::{Answer, COMMIT, FakeHub, Fault, Request, ServedFile, TOKEN, content, large, no_fault, small};
use crate::fetching::{REPO, RecordingReporter, cached, fetch, files_below, hash, lock, request_files, settings};
use ghostlab_core::error::Error;
use ghostlab_hub::{Event, Hub, HubSettings, Lock};
use tempfile::TempDir;

/// Returns the received requests for the content of a file.
fn get_requests(server: &FakeHub, file: &ServedFile) -> Vec<Request> {
    server
        .requests()
        .into_iter()
        .filter(|request| match file.large {
            true => request.elsewhere,
            false => request.method == "GET" && request.path.contains("/resolve/"),
        })
        .collect()
}

/// Creates a fault that affects only responses with file content.
fn content_fault(
    file: &ServedFile,
    fault: impl Fn(&Request, usize, Answer) -> Answer + Send + Sync + 'static,
) -> Fault {
    let large = file.large;
    Box::new(move |request, before, answer| {
        let is_content =
            if large { request.elsewhere } else { request.method == "GET" && request.path.contains("/resolve/") };
        if is_content { fault(request, before, answer) } else { answer }
    })
}

#[cfg(unix)]
#[test]
fn broken_or_foreign_cache_links_are_repaired() {
    let file = large("f", content(100));
    let outside = TempDir::new().unwrap();
    let precious = outside.path().join("precious");
    for target in [PathBuf::from("../../blobs/gone"), precious.clone()] {
        fs::write(&precious, "mine").unwrap();
        let server = FakeHub::start(REPO, vec![file.clone()], no_fault());
        let cache = TempDir::new().unwrap();
        let snapshot = cache.path().join("models--o--n/snapshots").join(COMMIT);
        fs::create_dir_all(&snapshot).unwrap();
        std::os::unix::fs::symlink(&target, snapshot.join("f")).unwrap();
        fetch(&server, cache.path(), &["f"], &lock(std::slice::from_ref(&file))).fetched.unwrap();
        assert_eq!(cached(cache.path(), "f").as_ref(), Some(&file.content));
        assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
    }
}

#[test]
fn pinned_files_are_reused_and_altered_ones_refetched() {
    let files = [small("config.json", "{}"), large("model.safetensors", content(1000))];
    let names = ["config.json", "*.safetensors"];
    let server = FakeHub::start(REPO, files.to_vec(), no_fault());
    let cache = TempDir::new().unwrap();
    assert_eq!(fetch(&server, cache.path(), &names, &lock(&files)).fetched.unwrap().downloaded, 2);
    server.forget();
    let again = fetch(&server, cache.path(), &names, &lock(&files)).fetched.unwrap();
    assert_eq!((again.cached, again.bytes, server.requests().len()), (2, 0, 0));

    let path = cache.path().join("models--o--n/snapshots").join(COMMIT).join("model.safetensors");
    fs::write(&path, content(999).into_iter().chain([7]).collect::<Vec<u8>>()).unwrap();
    let refetched = fetch(&server, cache.path(), &names, &lock(&files));
    assert!(
        refetched.events.iter().any(|event| matches!(event, Event::FetchNote { text } if text.contains("altered")))
    );
    assert_eq!(fs::read(&path).unwrap(), content(1000));

    // Offline mode makes no requests, whether or not the files are pinned. Damaged files are reported.
    server.forget();
    let offline = Hub::new(HubSettings { offline: true, ..settings(&server.address, cache.path()) });
    let events = RecordingReporter::default();
    let stop = AtomicBool::new(false);
    for lock in [lock(&files), Lock::default()] {
        let plan = offline.plan(&[request_files(&names)], &lock, &events, &stop).unwrap();
        assert!(plan.is_complete());
        assert_eq!(offline.fetch(&plan, Some(&hash), &events, &stop).unwrap().cached, 2);
    }
    fs::write(&path, content(1000).into_iter().rev().collect::<Vec<u8>>()).unwrap();
    let plan = offline.plan(&[request_files(&names)], &lock(&files), &events, &stop).unwrap();
    assert_eq!(offline.fetch(&plan, Some(&hash), &events, &stop).unwrap_err().exit_code(), 5);
    let error = offline.plan(&[request_files(&["none"])], &lock(&files), &events, &stop).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(server.requests().is_empty());
}

#[test]
fn pinned_cached_files_work_while_the_hub_is_unreachable() {
    let files = [large("f", content(100))];
    let cache = TempDir::new().unwrap();
    let server = FakeHub::start(REPO, files.to_vec(), no_fault());
    fetch(&server, cache.path(), &["f"], &lock(&files)).fetched.unwrap();
    let mut unreachable = settings("http://127.0.0.1:1", cache.path());
    unreachable.retry_policy.max_attempts = 2;
    let hub = Hub::new(unreachable);
    let events = RecordingReporter::default();
    let stop = AtomicBool::new(false);
    let plan = hub.plan(&[request_files(&["f"])], &lock(&files), &events, &stop).unwrap();
    assert_eq!(hub.fetch(&plan, None, &events, &stop).unwrap().cached, 1);
    let error = hub.plan(&[request_files(&["f"])], &Lock::default(), &events, &stop).unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("request to the Hugging Face Hub failed"), "{error}");
}

#[test]
fn concurrent_fetches_download_a_file_once() {
    let file = large("f", content(5000));
    let fault =
        content_fault(&file, |_, _, answer| Answer { stall: Some((2500, Duration::from_millis(150))), ..answer });
    let server = FakeHub::start(REPO, vec![file.clone()], fault);
    let cache = TempDir::new().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let outcome = fetch(&server, cache.path(), &["f"], &Lock::default());
                assert!(outcome.error().is_none(), "{:?}", outcome.fetched);
                assert_eq!(cached(cache.path(), "f"), Some(content(5000)));
            });
        }
    });
    assert_eq!(get_requests(&server, &file).len(), 1);
}

#[test]
fn stopped_download_resumes() {
    let file = large("f", content(5000));
    let fault = content_fault(&file, |_, before, answer| match before {
        0 => Answer { stall: Some((2500, Duration::from_secs(2))), ..answer },
        _ => answer,
    });
    let server = FakeHub::start(REPO, vec![file.clone()], fault);
    let cache = TempDir::new().unwrap();
    let mut patient = settings(&server.address, cache.path());
    patient.retry_policy.stall_timeout = Duration::from_secs(20);
    let hub = Hub::new(patient);
    let events = RecordingReporter::default();
    let stop = AtomicBool::new(false);
    let plan = hub.plan(&[request_files(&["f"])], &Lock::default(), &events, &stop).unwrap();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !(events.0.lock().unwrap().iter().any(|event| matches!(event, Event::FetchAdvanced { .. }))) {
                std::thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        hub.fetch(&plan, None, &events, &stop).unwrap_err()
    });
    assert_eq!(error.exit_code(), 130);
    let outcome = fetch(&server, cache.path(), &["f"], &Lock::default());
    assert_eq!(outcome.fetched.unwrap().bytes, 2500);
    assert_eq!(get_requests(&server, &file)[1].range_start(), Some(2500));
}

/// Runs the shell commands `setup` and then [`child_process_fetches_files`] in a child process. The command `wrapper`
/// starts the shell.
fn spawn_child(setup: &str, server: &FakeHub, cache: &Path, wrapper: &[&str]) -> Child {
    let test = std::env::current_exe().unwrap();
    let script =
        format!("{setup} exec '{}' --exact faults::child_process_fetches_files --ignored --nocapture", test.display());
    let mut words = wrapper.iter().copied().chain(["sh", "-c", script.as_str()]);
    Command::new(words.next().unwrap())
        .args(words)
        .env("HUB_TEST_ADDRESS", &server.address)
        .env("HUB_TEST_CACHE", cache)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "helper that other tests run in a child process"]
fn child_process_fetches_files() {
    let (Ok(address), Some(cache)) = (std::env::var("HUB_TEST_ADDRESS"), std::env::var_os("HUB_TEST_CACHE")) else {
        return;
    };
    let mut settings = settings(&address, Path::new(&cache));
    settings.retry_policy.stall_timeout = Duration::from_secs(60);
    let hub = Hub::new(settings);
    let events = RecordingReporter::default();
    let stop = AtomicBool::new(false);
    let fetched = hub
        .plan(&[request_files(&["f"])], &Lock::default(), &events, &stop)
        .and_then(|plan| hub.fetch(&plan, None, &events, &stop));
    let error = match &fetched {
        Ok(fetched) => fetched.failures.first().map(|(_, error)| error),
        Err(error) => Some(error),
    };
    println!("ENDED {} {error:?}", error.map_or(0, Error::exit_code));
}

#[cfg(unix)]
#[test]
fn killed_download_resumes() {
    let file = large("f", content(5000));
    let fault = content_fault(&file, |_, before, answer| match before {
        0 => Answer { stall: Some((3000, Duration::from_secs(30))), ..answer },
        _ => answer,
    });
    let server = FakeHub::start(REPO, vec![file.clone()], fault);
    let cache = TempDir::new().unwrap();
    let mut killed = spawn_child("", &server, cache.path(), &[]);
    let blobs = cache.path().join("models--o--n/blobs");
    let clock = Instant::now();
    while ({
        fs::read_dir(&blobs).into_iter().flatten().flatten().map(|entry| entry.metadata().unwrap().len()).sum::<u64>()
    }) < 3000
        && clock.elapsed() < Duration::from_secs(60)
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    let outcome = fetch(&server, cache.path(), &["f"], &Lock::default());
    assert_eq!(outcome.fetched.unwrap().bytes, 2000);
    assert_eq!(get_requests(&server, &file)[1].range_start(), Some(3000));
    assert_eq!(cached(cache.path(), "f").as_ref(), Some(&file.content));
    let left: BTreeSet<_> =
        fs::read_dir(&blobs).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(left, BTreeSet::from([file.etag()]));
}

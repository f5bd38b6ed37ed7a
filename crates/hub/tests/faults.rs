//! Fault injection for Hub, network and disk.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "a test panics on setup errors, and says what it skips"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::common::{Answer, COMMIT, FakeHub, Fault, Request, Served, TOKEN, content, large, no_fault, small};
use crate::fetching::{REPO, Told, cached, fetch, files_below, hash, lock, settings, want};
use ghostlab_core::error::Error;
use ghostlab_hub::{Event, Hub, HubSettings, Lock};
use tempfile::TempDir;

/// Returns the requests for the content of a file on any host.
fn gets(server: &FakeHub, file: &Served) -> Vec<Request> {
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
fn of_content(file: &Served, fault: impl Fn(&Request, usize, Answer) -> Answer + Send + Sync + 'static) -> Fault {
    let large = file.large;
    Box::new(move |request, before, answer| {
        let content =
            if large { request.elsewhere } else { request.method == "GET" && request.path.contains("/resolve/") };
        if content { fault(request, before, answer) } else { answer }
    })
}

/// Expected outcome of a fault.
enum Then {
    /// The file is complete. Contains the start offset of each request.
    Whole(&'static [Option<usize>]),
    /// The fetch fails with this exit code and text.
    Refused(u8, &'static str),
}

/// Changes a response, given the request and the number of earlier requests.
type ChangeAnswer = fn(&Request, usize, Answer) -> Answer;

/// Faults of a download of 100 bytes.
const DOWNLOAD_FAULTS: &[(&str, ChangeAnswer, Then)] = &[
    ("none", |_, _, a| a, Then::Whole(&[None])),
    ("cut", |_, n, a| if n == 0 { Answer { cut: Some(70), ..a } } else { a }, Then::Whole(&[None, Some(70)])),
    (
        "cut thrice",
        |_, n, a| if n < 3 { Answer { cut: Some(20), ..a } } else { a },
        Then::Whole(&[None, Some(20), Some(40), Some(60)]),
    ),
    ("always cut before a byte", |_, _, a| Answer { cut: Some(0), ..a }, Then::Refused(3, "could not be reached")),
    (
        "cut at one place, and always from the beginning",
        |r, _, a| Answer {
            cut: Some(50),
            status: 200,
            body: if r.from().is_some() { content(100) } else { a.body },
            ..Answer::new(200)
        },
        Then::Refused(3, "could not be reached"),
    ),
    (
        "stalled",
        |_, n, a| if n == 0 { Answer { stall: Some((30, Duration::from_secs(2))), ..a } } else { a },
        Then::Whole(&[None, Some(30)]),
    ),
    (
        "a wrong length, once",
        |_, n, a| {
            if n == 0 {
                let mut b = a;
                b.body.truncate(60);
                b
            } else {
                a
            }
        },
        Then::Whole(&[None, None]),
    ),
    (
        "too long, once",
        |_, n, mut a| {
            if n == 0 {
                a.body.extend([0; 9]);
            }
            a
        },
        Then::Whole(&[None, None]),
    ),
    (
        "too long, always",
        |_, _, mut a| {
            a.body.extend([0; 9]);
            a
        },
        Then::Refused(3, "its length is 109, not 100"),
    ),
    (
        "wrong bytes, once",
        |_, n, mut a| {
            if n == 0 {
                a.body[5] ^= 1;
            }
            a
        },
        Then::Whole(&[None, None]),
    ),
    (
        "wrong bytes, always",
        |_, _, mut a| {
            a.body[5] ^= 1;
            a
        },
        Then::Refused(5, "differs from the expected one"),
    ),
    (
        "200 in answer to a Range",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(200).body(content(100)),
            _ => a,
        },
        Then::Whole(&[None, Some(70)]),
    ),
    (
        "login page in answer to a Range, once",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(200).body("<html>Log in</html>"),
            _ => a,
        },
        Then::Whole(&[None, Some(70), Some(70)]),
    ),
    (
        "other bytes of the right length in answer to a Range, once",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(200).body(vec![7; 100]),
            _ => a,
        },
        Then::Whole(&[None, Some(70), Some(70)]),
    ),
    (
        "other bytes of the right length in answer to a Range, twice",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 | 2 => Answer::new(200).body(vec![7; 100]),
            _ => a,
        },
        Then::Whole(&[None, Some(70), Some(70), None]),
    ),
    (
        "200 in answer to a Range, cut before what came",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer { cut: Some(30), ..Answer::new(200).body(content(100)) },
            _ => a,
        },
        Then::Whole(&[None, Some(70), Some(70)]),
    ),
    (
        "206 from another byte",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(206).with("content-range", "bytes 60-99/100").body(&content(100)[60..]),
            _ => a,
        },
        Then::Whole(&[None, Some(70), None]),
    ),
    (
        "206 of another length",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(206).with("content-range", "bytes 70-119/120").body(content(50)),
            _ => a,
        },
        Then::Whole(&[None, Some(70), None]),
    ),
    (
        "another ETag between two parts",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => a.with("etag", "\"other\""),
            _ => a,
        },
        Then::Whole(&[None, Some(70), None]),
    ),
    (
        "416",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(416),
            _ => a,
        },
        Then::Whole(&[None, Some(70), None]),
    ),
    ("500 a few times", |_, n, a| if n < 3 { Answer::new(500) } else { a }, Then::Whole(&[None, None, None, None])),
    ("500 always", |_, _, _| Answer::new(503), Then::Refused(3, "within 4 attempts")),
];

#[test]
fn every_download_fault_ends_in_right_file_or_error() {
    for large in [true, false] {
        for (name, change, then) in DOWNLOAD_FAULTS {
            check_download_fault(name, *change, then, large);
        }
    }
}

/// Downloads a file with a fault, and compares the outcome.
fn check_download_fault(name: &str, change: ChangeAnswer, then: &Then, large: bool) {
    let file = Served { name: "f".into(), content: content(100), large };
    let server = FakeHub::start(REPO, vec![file.clone()], of_content(&file, change));
    let cache = TempDir::new().unwrap();
    let outcome = fetch(&server, cache.path(), &["f"], &Lock::default());
    let asked: Vec<Option<usize>> = gets(&server, &file).iter().map(Request::from).collect();
    let shown = format!("{name} (large: {large}): {asked:?}, {:?}", outcome.fetched);
    match then {
        Then::Whole(from) => {
            assert_eq!(cached(cache.path(), "f").as_ref(), Some(&file.content), "{shown}");
            assert!(outcome.error().is_none() && asked == *from, "{shown}");
            let blobs = cache.path().join("models--o--n/blobs");
            let names: Vec<_> = fs::read_dir(blobs).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names, [file.etag().as_str()], "{shown}");
        }
        Then::Refused(code, words) => {
            let error = outcome.error().unwrap_or_else(|| panic!("{shown}"));
            assert!(error.exit_code() == *code && error.to_string().contains(words), "{name}: {error}");
            assert_eq!(cached(cache.path(), "f"), None, "{shown}");
            let blob = cache.path().join("models--o--n/blobs").join(file.etag());
            assert!(!blob.exists(), "{shown}");
        }
    }
}

#[test]
fn a_connection_may_be_cut_at_any_byte() {
    for size in [true, false] {
        for cut in 0..=40 {
            let file = Served { name: "sub/f".into(), content: content(40), large: size };
            let fault = of_content(
                &file,
                move |_, before, answer| if before == 0 { Answer { cut: Some(cut), ..answer } } else { answer },
            );
            let server = FakeHub::start(REPO, vec![file.clone()], fault);
            let cache = TempDir::new().unwrap();
            let outcome = fetch(&server, cache.path(), &["sub/f"], &Lock::default());
            assert_eq!(cached(cache.path(), "sub/f"), Some(content(40)), "{cut}: {:?}", outcome.fetched);
            let asked: Vec<_> = gets(&server, &file).iter().map(Request::from).collect();
            let expected = match cut {
                0 => vec![None, None],
                40 => vec![None],
                _ => vec![None, Some(cut)],
            };
            assert_eq!(asked, expected, "what came is not asked for again");
        }
    }
}

#[test]
fn who_asks_to_wait_is_waited_for_and_who_asks_too_much_is_not() {
    for (header, value) in [("ratelimit", "\"api\";r=0;t=1"), ("retry-after", "1")] {
        let file = small("f", "abc");
        let fault: Fault =
            Box::new(move |request, before, answer| match request.path.contains("/revision/") && before == 0 {
                true => Answer::new(429).with(header, value),
                false => answer,
            });
        let server = FakeHub::start(REPO, vec![file], fault);
        let cache = TempDir::new().unwrap();
        let clock = Instant::now();
        let outcome = fetch(&server, cache.path(), &["f"], &Lock::default());
        assert_eq!(cached(cache.path(), "f").unwrap(), b"abc");
        assert!(clock.elapsed() >= Duration::from_secs(1), "{header}");
        assert_eq!(
            outcome
                .events
                .iter()
                .filter(|event| matches!(event, Event::FetchWaits { why, .. } if why.contains("429")))
                .count(),
            1
        );
    }
    let fault: Fault = Box::new(|_, _, _| Answer::new(429).with("retry-after", "100000"));
    let server = FakeHub::start(REPO, vec![], fault);
    let cache = TempDir::new().unwrap();
    let outcome = fetch(&server, cache.path(), &["f"], &Lock::default());
    assert!(outcome.error().unwrap().to_string().contains("requested wait: 100000 s"));
    assert_eq!(server.requests().len(), 1, "and is left alone");
}

#[test]
fn a_hub_that_answers_something_else_is_told_by_what_it_answers() {
    type Make = fn(&Request, Answer) -> Answer;
    let table: &[(&str, Make, &str, &str)] = &[
        ("401", |_, _| Answer::new(401), "f", "the hub rejected the token"),
        ("gated", |_, _| Answer::new(403).with("x-error-code", "GatedRepo"), "f", "requires accepting its licence"),
        (
            "a message with the token in it",
            |r, _| Answer::new(403).with("x-error-message", r.header("authorization").unwrap_or_default()),
            "f",
            "Bearer [token]",
        ),
        (
            "no repository",
            |_, _| Answer::new(404).with("x-error-code", "RepoNotFound"),
            "f",
            "o/n does not exist on the hub",
        ),
        (
            "no revision",
            |_, _| Answer::new(404).with("x-error-code", "RevisionNotFound"),
            "f",
            "has no revision `main`",
        ),
        ("no file", |_, a| a, "g", "has no such file"),
        ("no folder", |_, _| Answer::new(404).with("x-error-code", "EntryNotFound"), "f", "has no such folder"),
        ("a login page", |_, _| Answer::new(200).body("<html>Log in</html>"), "f", "invalid response of the hub"),
        ("a redirect to itself", |r, _| Answer::new(302).with("location", r.path.clone()), "f", "a loop"),
        (
            "a redirect to a file",
            |_, _| Answer::new(302).with("location", "file:///etc/passwd"),
            "f",
            "a redirect from http to file",
        ),
        (
            "a redirect without end",
            |r, _| Answer::new(307).with("location", format!("/x{}", r.path)),
            "f",
            "more than 10 redirects",
        ),
    ];
    for (name, make, asked, words) in table {
        let make = *make;
        let server = FakeHub::start(
            REPO,
            vec![(large("f", content(100)))],
            Box::new(move |request, _, answer| make(request, answer)),
        );
        let cache = TempDir::new().unwrap();
        let outcome = fetch(&server, cache.path(), &[asked], &Lock::default());
        let error = outcome.error().unwrap_or_else(|| panic!("{name}"));
        assert!(error.to_string().contains(words) && error.exit_code() == 3, "{name}: {error}");
        assert!(files_below(cache.path()).is_empty(), "{name}: a page of the hub's is no file");
    }
}

#[test]
fn the_token_does_not_go_to_where_the_hub_sends_us() {
    // `fetch` checks every request. Here the Hub's own API redirects to another host.
    let fault: Fault = Box::new(|request, _, answer| match request.elsewhere {
        true => Answer::new(200).body("{\"sha\":\"x\"}"),
        false if request.path.contains("/revision/") => answer,
        false => answer,
    });
    let other = FakeHub::start("x/y", vec![], Box::new(|_, _, _| Answer::new(403)));
    let address = other.elsewhere.clone();
    let away: Fault = Box::new(move |request, before, answer| match request.path.starts_with("/api/") {
        true => Answer::new(302).with("location", format!("{address}{}", request.path)),
        false => fault(request, before, answer),
    });
    let server = FakeHub::start(REPO, vec![], away);
    let cache = TempDir::new().unwrap();
    assert!(fetch(&server, cache.path(), &["f"], &Lock::default()).error().is_some());
    let asked = other.requests();
    assert!(!asked.is_empty());
    for request in asked {
        assert!(request.header("authorization").is_none() && !format!("{request:?}").contains(TOKEN), "{request:?}");
    }
}

#[test]
fn a_file_name_cannot_leave_its_folder() {
    for name in ["../../../escaped", "/tmp/escaped", "a/../../escaped", "..\\\\escaped"] {
        let (server, cache) =
            (FakeHub::start(REPO, vec![small(name, "x"), small("f", "y")], no_fault()), TempDir::new().unwrap());
        let outcome = fetch(&server, &cache.path().join("hub"), &["f"], &Lock::default());
        let text = outcome.error().unwrap().to_string();
        assert!(text.contains("unsafe file name on the hub"), "{name}: {text}");
        assert!(files_below(cache.path()).is_empty());
    }
}

#[cfg(unix)]
#[test]
fn broken_or_foreign_cache_links_are_repaired() {
    let file = large("f", content(100));
    let elsewhere = TempDir::new().unwrap();
    let precious = elsewhere.path().join("precious");
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
fn pinned_cached_files_need_no_request_altered_are_renewed() {
    let files = [small("config.json", "{}"), large("model.safetensors", content(1000))];
    let names = ["config.json", "*.safetensors"];
    let server = FakeHub::start(REPO, files.to_vec(), no_fault());
    let cache = TempDir::new().unwrap();
    assert_eq!(fetch(&server, cache.path(), &names, &lock(&files)).fetched.unwrap().brought, 2);
    server.forget();
    let again = fetch(&server, cache.path(), &names, &lock(&files)).fetched.unwrap();
    assert_eq!((again.cached, again.bytes, server.requests().len()), (2, 0, 0));

    let path = cache.path().join("models--o--n/snapshots").join(COMMIT).join("model.safetensors");
    fs::write(&path, content(999).into_iter().chain([7]).collect::<Vec<u8>>()).unwrap();
    let mended = fetch(&server, cache.path(), &names, &lock(&files));
    assert!(mended.events.iter().any(|event| matches!(event, Event::FetchNote { text } if text.contains("altered"))));
    assert_eq!(fs::read(&path).unwrap(), content(1000));

    // Offline mode makes no requests, pinned or not. Damage is reported.
    server.forget();
    let offline = Hub::new(HubSettings { offline: true, ..settings(&server.address, cache.path()) });
    let events = Told::default();
    let stop = AtomicBool::new(false);
    for lock in [lock(&files), Lock::default()] {
        let plan = offline.plan(&[want(&names)], &lock, &events, &stop).unwrap();
        assert!(plan.complete());
        assert_eq!(offline.fetch(&plan, Some(&hash), &events, &stop).unwrap().cached, 2);
    }
    fs::write(&path, content(1000).into_iter().rev().collect::<Vec<u8>>()).unwrap();
    let plan = offline.plan(&[want(&names)], &lock(&files), &events, &stop).unwrap();
    assert_eq!(offline.fetch(&plan, Some(&hash), &events, &stop).unwrap_err().exit_code(), 5);
    let error = offline.plan(&[want(&["none"])], &lock(&files), &events, &stop).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(server.requests().is_empty());
}

#[test]
fn offline_pinned_files_work_and_the_rest_is_an_error() {
    let files = [large("f", content(100))];
    let cache = TempDir::new().unwrap();
    let server = FakeHub::start(REPO, files.to_vec(), no_fault());
    fetch(&server, cache.path(), &["f"], &lock(&files)).fetched.unwrap();
    let mut away = settings("http://127.0.0.1:1", cache.path());
    away.patience.attempts = 2;
    let hub = Hub::new(away);
    let events = Told::default();
    let stop = AtomicBool::new(false);
    let plan = hub.plan(&[want(&["f"])], &lock(&files), &events, &stop).unwrap();
    assert_eq!(hub.fetch(&plan, None, &events, &stop).unwrap().cached, 1);
    let error = hub.plan(&[want(&["f"])], &Lock::default(), &events, &stop).unwrap_err();
    assert!(error.exit_code() == 3 && error.to_string().contains("could not be reached"), "{error}");
}

#[test]
fn a_hub_that_has_other_content_than_is_pinned_is_refused() {
    for big in [true, false] {
        let server = FakeHub::start(REPO, vec![served(content(100), big)], no_fault());
        let cache = TempDir::new().unwrap();
        let pinned = served(content(100).into_iter().rev().collect(), big);
        let outcome = fetch(&server, cache.path(), &["f"], &lock(&[pinned]));
        assert_eq!(outcome.error().unwrap().exit_code(), 5, "{:?}", outcome.fetched);
        assert_eq!(cached(cache.path(), "f"), None);
    }
}

#[test]
fn failed_file_keeps_others_and_refusal_is_asked_once() {
    let files: Vec<Served> = (0..6).map(|index| small(&format!("f{index}"), &"x".repeat(index + 1))).collect();
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    // Files are fetched smallest first. The Hub lists `f0` but returns 404 for it.
    let fault: Fault = Box::new(|request, _, answer| match request.path.ends_with("/f0") {
        true => Answer::new(404).with("x-error-code", "EntryNotFound"),
        false => answer,
    });
    let server = FakeHub::start(REPO, files.clone(), fault);
    let cache = TempDir::new().unwrap();
    let fetched = fetch(&server, cache.path(), &names, &Lock::default()).fetched.unwrap();
    assert_eq!((fetched.brought, fetched.failures.len()), (5, 1), "{:?}", fetched.failures);
    assert!((1..6).all(|index| cached(cache.path(), &format!("f{index}")).is_some()));

    let gated: Fault = Box::new(|request, _, answer| match request.path.contains("/resolve/") {
        true => Answer::new(403).with("x-error-code", "GatedRepo"),
        false => answer,
    });
    let server = FakeHub::start(REPO, files.clone(), gated);
    let cache = TempDir::new().unwrap();
    let mut one = settings(&server.address, cache.path());
    one.parallel = 1;
    let hub = Hub::new(one);
    let events = Told::default();
    let stop = AtomicBool::new(false);
    let plan = hub.plan(&[want(&names)], &Lock::default(), &events, &stop).unwrap();
    let fetched = hub.fetch(&plan, None, &events, &stop).unwrap();
    assert_eq!(fetched.failures.len(), 1, "{:?}", fetched.failures);
    assert_eq!(server.requests().iter().filter(|request| request.path.contains("/resolve/")).count(), 1);
}

#[test]
fn two_fetches_of_one_file_bring_it_once() {
    let file = large("f", content(5000));
    let fault = of_content(&file, |_, _, answer| Answer { stall: Some((2500, Duration::from_millis(150))), ..answer });
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
    assert_eq!(gets(&server, &file).len(), 1);
}

#[test]
fn what_is_stopped_goes_on_where_it_was() {
    let file = large("f", content(5000));
    let fault = of_content(&file, |_, before, answer| match before {
        0 => Answer { stall: Some((2500, Duration::from_secs(2))), ..answer },
        _ => answer,
    });
    let server = FakeHub::start(REPO, vec![file.clone()], fault);
    let cache = TempDir::new().unwrap();
    let mut patient = settings(&server.address, cache.path());
    patient.patience.stall = Duration::from_secs(20);
    let hub = Hub::new(patient);
    let events = Told::default();
    let stop = AtomicBool::new(false);
    let plan = hub.plan(&[want(&["f"])], &Lock::default(), &events, &stop).unwrap();
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
    assert_eq!(gets(&server, &file)[1].from(), Some(2500));
}

/// Runs [`fetches_for_another_test`] in a child process, in a shell after the commands `before`.
fn child(before: &str, server: &FakeHub, cache: &Path, wrapped: &[&str]) -> Child {
    let test = std::env::current_exe().unwrap();
    let script =
        format!("{before} exec '{}' --exact faults::fetches_for_another_test --ignored --nocapture", test.display());
    let mut words = wrapped.iter().copied().chain(["sh", "-c", script.as_str()]);
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
#[ignore = "a part of other tests, which run it in a process of its own"]
fn fetches_for_another_test() {
    let (Ok(address), Some(cache)) = (std::env::var("HUB_TEST_ADDRESS"), std::env::var_os("HUB_TEST_CACHE")) else {
        return;
    };
    let mut settings = settings(&address, Path::new(&cache));
    settings.patience.stall = Duration::from_secs(60);
    let hub = Hub::new(settings);
    let events = Told::default();
    let stop = AtomicBool::new(false);
    let fetched = hub
        .plan(&[want(&["f"])], &Lock::default(), &events, &stop)
        .and_then(|plan| hub.fetch(&plan, None, &events, &stop));
    let error = match &fetched {
        Ok(fetched) => fetched.failures.first().map(|(_, error)| error),
        Err(error) => Some(error),
    };
    println!("ENDED {} {error:?}", error.map_or(0, Error::exit_code));
}

#[cfg(unix)]
#[test]
fn after_kill_9_what_came_is_not_asked_for_again() {
    let file = large("f", content(5000));
    let fault = of_content(&file, |_, before, answer| match before {
        0 => Answer { stall: Some((3000, Duration::from_secs(30))), ..answer },
        _ => answer,
    });
    let server = FakeHub::start(REPO, vec![file.clone()], fault);
    let cache = TempDir::new().unwrap();
    let mut killed = child("", &server, cache.path(), &[]);
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
    assert_eq!(gets(&server, &file)[1].from(), Some(3000));
    assert_eq!(cached(cache.path(), "f").as_ref(), Some(&file.content));
    let left: BTreeSet<_> =
        fs::read_dir(&blobs).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(left, BTreeSet::from([file.etag()]));
}

/// Runs the child in its own mounted file system. Returns `None` if mounting is not permitted.
#[cfg(target_os = "linux")]
fn in_own_file_system(mount: &str, server: &FakeHub, cache: &Path) -> Option<String> {
    let wrapped = ["unshare", "--map-root-user", "--mount"];
    let able =
        Command::new(wrapped[0]).args(&wrapped[1..]).args(["sh", "-c", mount]).env("HUB_TEST_CACHE", cache).output();
    if !able.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this system does not let a test mount a file system");
        return None;
    }
    let output = child(&format!("{mount} &&"), server, cache, &wrapped).wait_with_output().unwrap();
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_is_refused_upfront_and_named_during_a_run() {
    let cache = TempDir::new().unwrap();
    let file = large("f", content(30 << 20));
    let server = FakeHub::start(REPO, vec![file.clone()], no_fault());
    let Some(output) = in_own_file_system(&mount_command(80), &server, cache.path()) else { return };
    assert!(output.contains("ENDED 3") && output.contains("not enough disk space"), "{output}");
    // The message states both parts of the required space, because the file alone would fit.
    assert!(output.contains("0.10 GB free: 0.03 GB to download, and 0.07 GB to keep free"), "{output}");
    assert!(gets(&server, &file).is_empty());

    // There is enough space at first, until another process fills it.
    let fault = of_content(&file, |_, _, answer| Answer { stall: Some((1 << 20, Duration::from_secs(3))), ..answer });
    let server = FakeHub::start(REPO, vec![file], fault);
    let filler = "{ (sleep 1; cat /dev/zero > \"$HUB_TEST_CACHE/filler\" 2> /dev/null) & }";
    let Some(output) = in_own_file_system(&format!("{} && {filler}", mount_command(120)), &server, cache.path()) else {
        return;
    };
    assert!(output.contains("ENDED 3") && output.contains("the disk is full"), "{output}");
}

/// Returns the command that mounts a file system of the given size.
fn mount_command(megabytes: u32) -> String {
    format!("mount -t tmpfs -o size={megabytes}m none \"$HUB_TEST_CACHE\"")
}

#[cfg(target_os = "linux")]
#[test]
fn unwritable_cache_is_named_and_still_read() {
    let file = large("f", content(100));
    let cache = TempDir::new().unwrap();
    let server = FakeHub::start(REPO, vec![file], no_fault());
    let mount = "mount --bind \"$HUB_TEST_CACHE\" \"$HUB_TEST_CACHE\" && mount -o remount,ro,bind \"$HUB_TEST_CACHE\"";
    let Some(output) = in_own_file_system(mount, &server, cache.path()) else { return };
    assert!(output.contains("ENDED 3") && output.contains("in the hub's cache"), "{output}");
    fetch(&server, cache.path(), &["f"], &Lock::default()).fetched.unwrap();
    let Some(output) = in_own_file_system(mount, &server, cache.path()) else { return };
    assert!(output.contains("ENDED 0"), "{output}");
}

fn served(content: Vec<u8>, large: bool) -> Served {
    Served { name: "f".into(), content, large }
}

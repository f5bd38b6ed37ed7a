//! Tests with unexpected responses from the Hub.

use super::*;

#[test]
fn unexpected_hub_responses_give_specific_errors() {
    type Alter = fn(&Request, Answer) -> Answer;
    let table: &[(&str, Alter, &str, &str)] = &[
        ("401", |_, _| Answer::new(401), "f", "the hub rejected the token"),
        ("gated", |_, _| Answer::new(403).with("x-error-code", "GatedRepo"), "f", "requires accepting its license"),
        (
            "a message that contains the token",
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
        ("a login page", |_, _| Answer::new(200).body("<html>Log in</html>"), "f", "invalid response from the hub"),
        ("a redirect to itself", |r, _| Answer::new(302).with("location", r.path.clone()), "f", "a loop"),
        (
            "a redirect to a file",
            |_, _| Answer::new(302).with("location", "file:///etc/passwd"),
            "f",
            "a redirect from http to file",
        ),
        (
            "an endless redirect",
            |r, _| Answer::new(307).with("location", format!("/x{}", r.path)),
            "f",
            "more than 10 redirects",
        ),
    ];
    for (name, alter, requested, words) in table {
        let alter = *alter;
        let server = FakeHub::start(
            REPO,
            vec![(large("f", content(100)))],
            Box::new(move |request, _, answer| alter(request, answer)),
        );
        let cache = TempDir::new().unwrap();
        let outcome = fetch(&server, cache.path(), &[requested], &Lock::default());
        let error = outcome.error().unwrap_or_else(|| panic!("{name}"));
        assert!(error.to_string().contains(words) && error.exit_code() == 3, "{name}: {error}");
        assert!(files_below(cache.path()).is_empty(), "{name}: a page was stored as a file");
    }
}

#[test]
fn token_is_not_sent_to_redirect_targets() {
    // The Hub's own API redirects to another host. The helper `fetch` checks that no request to it carries the token.
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
    let received = other.requests();
    assert!(!received.is_empty());
    for request in received {
        assert!(request.header("authorization").is_none() && !format!("{request:?}").contains(TOKEN), "{request:?}");
    }
}

#[test]
fn file_names_cannot_escape_the_cache_folder() {
    for name in ["../../../escaped", "/tmp/escaped", "a/../../escaped", "..\\\\escaped"] {
        let (server, cache) =
            (FakeHub::start(REPO, vec![small(name, "x"), small("f", "y")], no_fault()), TempDir::new().unwrap());
        let outcome = fetch(&server, &cache.path().join("hub"), &["f"], &Lock::default());
        let text = outcome.error().unwrap().to_string();
        assert!(text.contains("unsafe file name on the hub"), "{name}: {text}");
        assert!(files_below(cache.path()).is_empty());
    }
}

#[test]
fn content_that_differs_from_the_lock_is_rejected() {
    for large in [true, false] {
        let server = FakeHub::start(REPO, vec![served(content(100), large)], no_fault());
        let cache = TempDir::new().unwrap();
        let pinned = served(content(100).into_iter().rev().collect(), large);
        let outcome = fetch(&server, cache.path(), &["f"], &lock(&[pinned]));
        assert_eq!(outcome.error().unwrap().exit_code(), 5, "{:?}", outcome.fetched);
        assert_eq!(cached(cache.path(), "f"), None);
    }
}

#[test]
fn failure_keeps_other_files_unless_the_repository_is_denied() {
    let files: Vec<ServedFile> = (0..6).map(|index| small(&format!("f{index}"), &"x".repeat(index + 1))).collect();
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    // Files are fetched smallest first. The Hub lists `f0` but returns 404 for it.
    let fault: Fault = Box::new(|request, _, answer| match request.path.ends_with("/f0") {
        true => Answer::new(404).with("x-error-code", "EntryNotFound"),
        false => answer,
    });
    let server = FakeHub::start(REPO, files.clone(), fault);
    let cache = TempDir::new().unwrap();
    let fetched = fetch(&server, cache.path(), &names, &Lock::default()).fetched.unwrap();
    assert_eq!((fetched.downloaded, fetched.failures.len()), (5, 1), "{:?}", fetched.failures);
    assert!((1..6).all(|index| cached(cache.path(), &format!("f{index}")).is_some()));

    let gated: Fault = Box::new(|request, _, answer| match request.path.contains("/resolve/") {
        true => Answer::new(403).with("x-error-code", "GatedRepo"),
        false => answer,
    });
    let server = FakeHub::start(REPO, files.clone(), gated);
    let cache = TempDir::new().unwrap();
    let mut one = settings(&server.address, cache.path());
    one.max_downloads = 1;
    let hub = Hub::new(one);
    let events = RecordingReporter::default();
    let stop = AtomicBool::new(false);
    let plan = hub.plan(&[request_files(&names)], &Lock::default(), &events, &stop).unwrap();
    let fetched = hub.fetch(&plan, None, &events, &stop).unwrap();
    assert_eq!(fetched.failures.len(), 1, "{:?}", fetched.failures);
    assert_eq!(server.requests().iter().filter(|request| request.path.contains("/resolve/")).count(), 1);
}

fn served(content: Vec<u8>, large: bool) -> ServedFile {
    ServedFile { name: "f".into(), content, large }
}

//! Tests with connection faults during a download.

use super::*;

/// Expected outcome of a fault.
enum ExpectedOutcome {
    /// The file is complete after requests with these start offsets.
    Whole(&'static [Option<usize>]),
    /// The fetch fails with this exit code, and the message contains this text.
    Refused(u8, &'static str),
}

/// Changes a response, given the request and the number of earlier requests.
type ChangeAnswer = fn(&Request, usize, Answer) -> Answer;

/// Faults during a download of 100 bytes: name, altered response, and expected outcome.
const DOWNLOAD_FAULTS: &[(&str, ChangeAnswer, ExpectedOutcome)] = &[
    ("none", |_, _, a| a, ExpectedOutcome::Whole(&[None])),
    (
        "cut",
        |_, n, a| if n == 0 { Answer { cut: Some(70), ..a } } else { a },
        ExpectedOutcome::Whole(&[None, Some(70)]),
    ),
    (
        "cut three times",
        |_, n, a| if n < 3 { Answer { cut: Some(20), ..a } } else { a },
        ExpectedOutcome::Whole(&[None, Some(20), Some(40), Some(60)]),
    ),
    (
        "always cut before a byte",
        |_, _, a| Answer { cut: Some(0), ..a },
        ExpectedOutcome::Refused(3, "request to the Hugging Face Hub failed"),
    ),
    (
        "always cut at the same byte, and resent from the beginning",
        |r, _, a| Answer {
            cut: Some(50),
            status: 200,
            body: if r.range_start().is_some() { content(100) } else { a.body },
            ..Answer::new(200)
        },
        ExpectedOutcome::Refused(3, "request to the Hugging Face Hub failed"),
    ),
    (
        "stalled",
        |_, n, a| if n == 0 { Answer { stall: Some((30, Duration::from_secs(2))), ..a } } else { a },
        ExpectedOutcome::Whole(&[None, Some(30)]),
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
        ExpectedOutcome::Whole(&[None, None]),
    ),
    (
        "too long, once",
        |_, n, mut a| {
            if n == 0 {
                a.body.extend([0; 9]);
            }
            a
        },
        ExpectedOutcome::Whole(&[None, None]),
    ),
    (
        "too long, always",
        |_, _, mut a| {
            a.body.extend([0; 9]);
            a
        },
        ExpectedOutcome::Refused(3, "the length is 109 instead of 100"),
    ),
    (
        "wrong bytes, once",
        |_, n, mut a| {
            if n == 0 {
                a.body[5] ^= 1;
            }
            a
        },
        ExpectedOutcome::Whole(&[None, None]),
    ),
    (
        "wrong bytes, always",
        |_, _, mut a| {
            a.body[5] ^= 1;
            a
        },
        ExpectedOutcome::Refused(5, "differs from the expected one"),
    ),
    (
        "200 in response to a range request",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(200).body(content(100)),
            _ => a,
        },
        ExpectedOutcome::Whole(&[None, Some(70)]),
    ),
    (
        "login page in response to a range request, once",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(200).body("<html>Log in</html>"),
            _ => a,
        },
        ExpectedOutcome::Whole(&[None, Some(70), Some(70)]),
    ),
    (
        "different bytes of the right length in response to a range request, once",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(200).body(vec![7; 100]),
            _ => a,
        },
        ExpectedOutcome::Whole(&[None, Some(70), Some(70)]),
    ),
    (
        "different bytes of the right length in response to a range request, twice",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 | 2 => Answer::new(200).body(vec![7; 100]),
            _ => a,
        },
        ExpectedOutcome::Whole(&[None, Some(70), Some(70), None]),
    ),
    (
        "200 in response to a range request, cut before the known bytes end",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer { cut: Some(30), ..Answer::new(200).body(content(100)) },
            _ => a,
        },
        ExpectedOutcome::Whole(&[None, Some(70), Some(70)]),
    ),
    (
        "206 with a wrong start offset",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(206).with("content-range", "bytes 60-99/100").body(&content(100)[60..]),
            _ => a,
        },
        ExpectedOutcome::Whole(&[None, Some(70), None]),
    ),
    (
        "206 with a wrong total length",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(206).with("content-range", "bytes 70-119/120").body(content(50)),
            _ => a,
        },
        ExpectedOutcome::Whole(&[None, Some(70), None]),
    ),
    (
        "different ETag in the second part",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => a.with("etag", "\"other\""),
            _ => a,
        },
        ExpectedOutcome::Whole(&[None, Some(70), None]),
    ),
    (
        "416",
        |_, n, a| match n {
            0 => Answer { cut: Some(70), ..a },
            1 => Answer::new(416),
            _ => a,
        },
        ExpectedOutcome::Whole(&[None, Some(70), None]),
    ),
    (
        "500 a few times",
        |_, n, a| if n < 3 { Answer::new(500) } else { a },
        ExpectedOutcome::Whole(&[None, None, None, None]),
    ),
    ("500 always", |_, _, _| Answer::new(503), ExpectedOutcome::Refused(3, "within 4 attempts")),
];

#[test]
fn download_faults_give_the_correct_file_or_an_error() {
    for large in [true, false] {
        for (name, change, expected) in DOWNLOAD_FAULTS {
            check_download_fault(name, *change, expected, large);
        }
    }
}

fn check_download_fault(name: &str, change: ChangeAnswer, expected: &ExpectedOutcome, large: bool) {
    let file = ServedFile { name: "f".into(), content: content(100), large };
    let server = FakeHub::start(REPO, vec![file.clone()], content_fault(&file, change));
    let cache = TempDir::new().unwrap();
    let outcome = fetch(&server, cache.path(), &["f"], &Lock::default());
    let requested: Vec<Option<usize>> = get_requests(&server, &file).iter().map(Request::range_start).collect();
    let case = format!("{name} (large: {large}): {requested:?}, {:?}", outcome.fetched);
    match expected {
        ExpectedOutcome::Whole(from) => {
            assert_eq!(cached(cache.path(), "f").as_ref(), Some(&file.content), "{case}");
            assert!(outcome.error().is_none() && requested == *from, "{case}");
            let blobs = cache.path().join("models--o--n/blobs");
            let names: Vec<_> = fs::read_dir(blobs).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names, [file.etag().as_str()], "{case}");
        }
        ExpectedOutcome::Refused(code, words) => {
            let error = outcome.error().unwrap_or_else(|| panic!("{case}"));
            assert!(error.exit_code() == *code && error.to_string().contains(words), "{name}: {error}");
            assert_eq!(cached(cache.path(), "f"), None, "{case}");
            let blob = cache.path().join("models--o--n/blobs").join(file.etag());
            assert!(!blob.exists(), "{case}");
        }
    }
}

#[test]
fn download_resumes_after_a_cut_at_any_byte() {
    for large in [true, false] {
        for cut in 0..=40 {
            let file = ServedFile { name: "sub/f".into(), content: content(40), large };
            let fault = content_fault(
                &file,
                move |_, before, answer| if before == 0 { Answer { cut: Some(cut), ..answer } } else { answer },
            );
            let server = FakeHub::start(REPO, vec![file.clone()], fault);
            let cache = TempDir::new().unwrap();
            let outcome = fetch(&server, cache.path(), &["sub/f"], &Lock::default());
            assert_eq!(cached(cache.path(), "sub/f"), Some(content(40)), "{cut}: {:?}", outcome.fetched);
            let requested: Vec<_> = get_requests(&server, &file).iter().map(Request::range_start).collect();
            let expected = match cut {
                0 => vec![None, None],
                40 => vec![None],
                _ => vec![None, Some(cut)],
            };
            assert_eq!(requested, expected, "downloaded bytes were requested again");
        }
    }
}

#[test]
fn requested_delay_is_respected_up_to_a_limit() {
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
    assert_eq!(server.requests().len(), 1, "the request was retried");
}

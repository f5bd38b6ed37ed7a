//! Tests with a hostile Hub that injects paths and garbage into every field of every response. Nothing may be written
//! outside the cache or under a name taken from a response.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::common::{Answer, COMMIT, FakeHub, Request, content, large, small};
use crate::fetching::{REPO, fetch, files_below};
use ghostlab_hub::Lock;
use tempfile::TempDir;

/// Function that injects a string into one field of a response, if the response has the field.
type Alter = fn(&Request, Answer, &str) -> Answer;

/// Replaces a string in a JSON response.
fn replace_in_body(answer: Answer, from: &str, to: &str) -> Answer {
    let text = String::from_utf8(answer.body.clone()).unwrap();
    let quoted = serde_json::to_string(to).unwrap();
    answer.body(text.replace(&format!("\"{from}\""), &quoted))
}

/// Sets a header of the response if `applies` is true.
fn set_header(answer: Answer, applies: bool, name: &str, value: &str) -> Answer {
    // Replace characters that would terminate the header and break the connection.
    if applies { answer.with(name, value.replace(['\0', '\n'], "?")) } else { answer }
}

/// Replaces the numbers in a field of a JSON response. A value that is not a number is inserted as a string.
fn set_number(answer: Answer, field: &str, value: &str) -> Answer {
    let text = String::from_utf8(answer.body.clone()).unwrap();
    let field = format!("\"{field}\":");
    let mut parts = text.split(&field);
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        let end = part.find([',', '}']).unwrap();
        out += &format!(
            "{field}{}{}",
            if value.parse::<f64>().is_ok() { value.to_owned() } else { serde_json::to_string(value).unwrap() },
            &part[end..]
        );
    }
    answer.body(out)
}

fn is_listing(r: &Request) -> bool {
    r.path.contains("/tree/")
}

fn is_resolving(r: &Request) -> bool {
    !r.elsewhere && r.path.contains("/resolve/")
}

/// All response fields that the crate reads, and related fields that it ignores.
const FIELDS: &[(&str, Alter)] = &[
    ("revision: sha", |r, a, v| if r.path.contains("/revision/") { replace_in_body(a, COMMIT, v) } else { a }),
    ("revision: id", |r, a, v| if r.path.contains("/revision/") { replace_in_body(a, REPO, v) } else { a }),
    ("tree: path of a large file", |r, a, v| if is_listing(r) { replace_in_body(a, "big", v) } else { a }),
    ("tree: path of a small file", |r, a, v| if is_listing(r) { replace_in_body(a, "sub/small", v) } else { a }),
    ("tree: path of a folder", |r, a, v| if is_listing(r) { replace_in_body(a, "sub", v) } else { a }),
    ("tree: oid", |r, a, v| if is_listing(r) { replace_in_body(a, &small("sub/small", "text").etag(), v) } else { a }),
    (
        "tree: lfs.oid",
        |r, a, v| if is_listing(r) { replace_in_body(a, &large("big", content(100)).etag(), v) } else { a },
    ),
    ("tree: type", |r, a, v| if is_listing(r) { replace_in_body(a, "file", v) } else { a }),
    ("tree: size", |r, a, v| if is_listing(r) { set_number(a, "size", v) } else { a }),
    ("tree: xetHash", |r, a, v| {
        if is_listing(r) {
            replace_in_body(a, "oid", "xetHash").with("x-xet-hash", v.replace(['\0', '\n'], "?"))
        } else {
            a
        }
    }),
    ("tree: link", |r, a, v| set_header(a, is_listing(r), "link", &format!("<{v}>; rel=\"next\""))),
    ("resolve: x-repo-commit", |r, a, v| set_header(a, is_resolving(r), "x-repo-commit", v)),
    ("resolve: x-linked-etag", |r, a, v| set_header(a, is_resolving(r), "x-linked-etag", &format!("\"{v}\""))),
    ("resolve: etag", |r, a, v| set_header(a, is_resolving(r), "etag", v)),
    ("resolve: x-linked-size", |r, a, v| set_header(a, is_resolving(r), "x-linked-size", v)),
    ("resolve: location", |r, a, v| set_header(a, is_resolving(r) && r.path.ends_with("big"), "location", v)),
    ("resolve: x-error-code", |r, _, v| {
        Answer::new(if is_resolving(r) { 404 } else { 403 }).with("x-error-code", v.replace(['\0', '\n'], "?"))
    }),
    ("resolve: x-error-message", |_, _, v| Answer::new(403).with("x-error-message", v.replace(['\0', '\n'], "?"))),
    ("content: content-disposition", |r, a, v| {
        set_header(a, r.elsewhere, "content-disposition", &format!("attachment; filename=\"{v}\""))
    }),
    ("content: etag", |r, a, v| set_header(a, r.elsewhere, "etag", v)),
    ("content: content-range", |r, a, v| set_header(a, r.elsewhere, "content-range", v)),
    (
        "content: retry-after",
        |r, a, v| if r.elsewhere { set_header(Answer::new(429), true, "retry-after", v) } else { a },
    ),
    ("content: ratelimit", |r, a, v| {
        if r.elsewhere { set_header(Answer::new(429), true, "ratelimit", &format!("r=0;t={v}")) } else { a }
    }),
];

/// Returns hostile values: paths that leave the folder, names with a special meaning for file systems or URLs, and
/// unexpected numbers.
fn hostile_values(outside: &Path) -> Vec<String> {
    let mut values = [
        "",
        ".",
        "..",
        "/",
        "../escaped",
        "../../escaped",
        "../../../escaped",
        "../../../../../escaped",
        "a/../../../../escaped",
        "..\\..\\escaped",
        "C:escaped",
        "C:\\escaped",
        "\\\\host\\share",
        "~/escaped",
        "$HOME/escaped",
        "%2e%2e%2fescaped",
        "..%2f..%2fescaped",
        "a\0b",
        "a\nb",
        "é🦀",
        "-rf",
        "sub",
        "sub/small",
        "big",
        "refs/main",
        ".incomplete",
        "x.incomplete",
        "file:///etc/passwd",
        "-1",
        "0",
        "1",
        "18446744073709551615",
        "1e400",
    ]
    .map(str::to_owned)
    .to_vec();
    values.push(outside.join("escaped").display().to_string());
    values.push("x".repeat(5000));
    values
}

/// Returns the contents of all regular files below a folder, by path.
fn read_files_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files_below(folder).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn hostile_response_fields_cannot_escape_the_cache() {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some((field, alter)) = FIELDS.get(next.fetch_add(1, Relaxed)) {
                    assert_field_cannot_escape(field, *alter);
                }
            });
        }
    });
}

fn assert_field_cannot_escape(field: &str, alter: Alter) {
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("precious"), "mine").unwrap();
    for locked in [false, true] {
        for value in hostile_values(outside.path()) {
            let files = vec![large("big", content(100)), small("sub/small", "text")];
            let sent = value.clone();
            let server = FakeHub::start(REPO, files.clone(), Box::new(move |r, _, a| alter(r, a, &sent)));
            let parent = TempDir::new_in(outside.path()).unwrap();
            let cache = parent.path().join("a/b/hub");
            let lock = if locked { crate::fetching::lock(&files) } else { Lock::default() };
            let outcome = fetch(&server, &cache, &["big", "sub/*"], &lock);
            let case = format!("{field} = {value:?} (locked: {locked}): {:?}", outcome.fetched);
            let all = read_files_below(outside.path());
            let (in_cache, others): (Vec<_>, Vec<_>) = all.iter().partition(|(path, _)| path.starts_with(&cache));
            assert_eq!(others, [(&outside.path().join("precious"), &b"mine".to_vec())], "{case}");
            let repo = cache.join("models--o--n");
            for (path, bytes) in in_cache {
                let known = match path.strip_prefix(&repo) {
                    Ok(inside) => {
                        let inside: Vec<&str> = inside.iter().map(|part| part.to_str().unwrap()).collect();
                        match inside.as_slice() {
                            ["blobs", name] => files.iter().any(|file| {
                                // A complete file has the expected content, a partial file a prefix of it.
                                let is_complete = file.content == *bytes;
                                is_complete || name.ends_with(".incomplete") && file.content.starts_with(bytes)
                            }),
                            ["refs", "main"] => bytes == COMMIT.as_bytes(),
                            _ => false,
                        }
                    }
                    // Lock files in the layout of `huggingface_hub`.
                    Err(_) => path.starts_with(cache.join(".locks/models--o--n")) && bytes.is_empty(),
                };
                assert!(known, "{}: {case}", path.display());
            }
            for (name, file) in [("big", &files[0]), ("sub/small", &files[1])] {
                let path = repo.join("snapshots").join(COMMIT).join(name);
                assert!(fs::read(&path).map_or(true, |bytes| bytes == file.content), "{case}");
            }
            if let Some(error) = outcome.error() {
                assert!((2..=5).contains(&error.exit_code()), "{case}");
                assert!(!error.to_string().contains('\0'), "{case}");
            }
        }
    }
}

#[test]
fn path_in_place_of_a_listed_hash_is_rejected() {
    for (field, file) in [("oid", small("f", "text")), ("lfs", large("f", content(100)))] {
        let hash = file.etag();
        for value in ["../../x", "/abs", "..", "a/b"] {
            let hash = hash.clone();
            let server = FakeHub::start(
                REPO,
                vec![file.clone()],
                Box::new(move |r: &Request, _, a| if is_listing(r) { replace_in_body(a, &hash, value) } else { a }),
            );
            let cache = TempDir::new().unwrap();
            let outcome = fetch(&server, &cache.path().join("hub"), &["f"], &Lock::default());
            let error = outcome.error().unwrap_or_else(|| panic!("{field} {value}"));
            assert!(error.to_string().contains(&format!("`{value}`")) && error.exit_code() == 3, "{error}");
            assert!(files_below(cache.path()).is_empty(), "{value}");
        }
    }
}

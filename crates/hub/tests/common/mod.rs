//! Fake Hub on the loopback interface, which behaves like the real one except for injected faults.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "each test program uses only some helpers, which panic on setup errors"
)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha1::{Digest, Sha1};
use sha2::Sha256;

/// Test token, which must not appear in any output.
pub const TOKEN: &str = "hf_TheSecretOfTheTests";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Received request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Whether the request was sent to the host for large files instead of the Hub.
    pub elsewhere: bool,
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Returns the offset of the first requested byte.
    pub fn range_start(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.split('-').next()?.parse().ok()
    }
}

/// Response, with the faults that occur while it is sent.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Wrong `Content-Length` to send, if any.
    pub length: Option<usize>,
    /// Number of body bytes after which the connection is closed.
    pub cut: Option<usize>,
    /// Number of body bytes after which sending pauses, and the duration of the pause.
    pub stall: Option<(usize, Duration)>,
}

impl Answer {
    pub fn new(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    fn send(&self, method: &str, to: &mut TcpStream) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", self.status);
        if self.headers.iter().all(|(name, _)| !name.eq_ignore_ascii_case("content-length")) {
            head += &format!("content-length: {}\r\n", self.length.unwrap_or(self.body.len()));
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        to.write_all(format!("{head}\r\n").as_bytes())?;
        if method == "HEAD" {
            return Ok(());
        }
        let body = &self.body[..self.cut.unwrap_or(self.body.len()).min(self.body.len())];
        let (first, rest) = body.split_at(self.stall.map_or(body.len(), |(bytes, _)| bytes.min(body.len())));
        to.write_all(first)?;
        to.flush()?;
        if let Some((_, time)) = self.stall {
            std::thread::sleep(time);
        }
        to.write_all(rest)
    }
}

/// File on the fake Hub.
#[derive(Debug, Clone)]
pub struct ServedFile {
    pub name: String,
    pub content: Vec<u8>,
    /// Whether the file is large, i.e. stored on another host under its SHA-256.
    pub large: bool,
}

impl ServedFile {
    pub fn sha256(&self) -> String {
        hex(&Sha256::digest(&self.content))
    }

    /// Returns the ETag, which is the cache name of the file.
    pub fn etag(&self) -> String {
        if self.large {
            return self.sha256();
        }
        let head = format!("blob {}\0", self.content.len());
        hex(&Sha1::new_with_prefix(head).chain_update(&self.content).finalize())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Function that alters a response, given the request and the number of earlier requests with the same method and path.
pub type Fault = Box<dyn Fn(&Request, usize, Answer) -> Answer + Send + Sync>;

/// Fake repository on two hosts, the Hub and a host for large files.
pub struct FakeHub {
    pub address: String,
    pub elsewhere: String,
    seen: Arc<Mutex<Vec<Request>>>,
    ended: Arc<AtomicBool>,
}

struct FakeRepo {
    repo: String,
    files: Vec<ServedFile>,
    fault: Fault,
    elsewhere: String,
}

/// Returns deterministic test content, which repeats every 32,128 bytes.
pub fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 7 + index / 251) as u8).collect()
}

pub fn large(name: &str, content: Vec<u8>) -> ServedFile {
    ServedFile { name: name.to_owned(), content, large: true }
}

pub fn small(name: &str, content: &str) -> ServedFile {
    ServedFile { name: name.to_owned(), content: content.as_bytes().to_vec(), large: false }
}

pub fn no_fault() -> Fault {
    Box::new(|_, _, answer| answer)
}

impl FakeHub {
    /// Starts a Hub with the repository `repo` (`org/name` or `datasets/org/name`) at [`COMMIT`].
    pub fn start(repo: &str, files: Vec<ServedFile>, fault: Fault) -> Self {
        let hub = bind_any_port();
        let other = bind_any_port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let ended = Arc::new(AtomicBool::new(false));
        let fake = Self {
            address: http_address(&hub),
            elsewhere: http_address(&other),
            seen: Arc::clone(&seen),
            ended: Arc::clone(&ended),
        };
        let world = Arc::new(FakeRepo { repo: repo.to_owned(), files, fault, elsewhere: fake.elsewhere.clone() });
        for (listener, elsewhere) in [(hub, false), (other, true)] {
            let world = Arc::clone(&world);
            let seen = Arc::clone(&seen);
            let ended = Arc::clone(&ended);
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    if ended.load(SeqCst) {
                        return;
                    }
                    let world = Arc::clone(&world);
                    let seen = Arc::clone(&seen);
                    std::thread::spawn(move || world.serve(stream, elsewhere, &seen));
                }
            });
        }
        fake
    }

    pub fn requests(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    pub fn forget(&self) {
        self.seen.lock().unwrap().clear();
    }
}

fn bind_any_port() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn http_address(listener: &TcpListener) -> String {
    format!("http://{}", listener.local_addr().unwrap())
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.ended.store(true, SeqCst);
        for address in [&self.address, &self.elsewhere] {
            TcpStream::connect(address.trim_start_matches("http://")).ok();
        }
    }
}

impl FakeRepo {
    fn serve(&self, mut stream: TcpStream, elsewhere: bool, seen: &Mutex<Vec<Request>>) {
        let mut lines = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        let mut next = || {
            line.clear();
            lines.read_line(&mut line).ok().filter(|read| *read > 0).map(|_| line.trim_end().to_owned())
        };
        let Some(first) = next() else { return };
        let mut words = first.split(' ');
        let method = words.next().unwrap().to_owned();
        let path = words.next().unwrap().to_owned();
        let mut headers = BTreeMap::new();
        while let Some((name, value)) = next().as_deref().and_then(|line| line.split_once(':')) {
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let request = Request { elsewhere, method, path, headers };
        let before = {
            let mut seen = seen.lock().unwrap();
            let before =
                seen.iter().filter(|other| other.method == request.method && other.path == request.path).count();
            seen.push(request.clone());
            before
        };
        let answer = (self.fault)(&request, before, self.answer(&request));
        answer.send(&request.method, &mut stream).ok();
        stream.shutdown(std::net::Shutdown::Write).ok();
        // Drain the socket, because closing it with unread data discards sent bytes.
        let mut rest = [0; 64];
        stream.set_read_timeout(Some(Duration::from_millis(200))).ok();
        while stream.read(&mut rest).is_ok_and(|read| read > 0) {}
    }

    fn answer(&self, request: &Request) -> Answer {
        let path = request.path.replace("%2F", "/");
        let path = path.split('?').next().unwrap_or_default().trim_start_matches('/');
        if request.elsewhere {
            let file = self.files.iter().find(|file| file.large && path == file.sha256());
            return file.map_or(Answer::new(404), |file| serve_file(request, &file.content, "\"of-the-other-host\""));
        }
        let kind = if self.repo.starts_with("datasets/") { self.repo.clone() } else { format!("models/{}", self.repo) };
        if let Some(rest) = path.strip_prefix(&format!("api/{kind}/")) {
            return match rest.split_once('/').unwrap_or((rest, "")) {
                ("revision", revision) if !["main", "refs/convert/parquet", COMMIT].contains(&revision) => {
                    Answer::new(404).with("x-error-code", "RevisionNotFound")
                }
                ("revision", _) => json_answer(&format!("{{\"id\":\"{}\",\"sha\":\"{COMMIT}\"}}", self.repo)),
                ("tree", revision) => {
                    self.list_folder(revision.strip_prefix(COMMIT).unwrap_or_default().trim_start_matches('/'))
                }
                _ => Answer::new(404).with("x-error-code", "EntryNotFound"),
            };
        }
        let Some(rest) = path.strip_prefix(&format!("{}/resolve/", self.repo)) else {
            return Answer::new(404)
                .with("x-error-code", "RepoNotFound")
                .with("x-error-message", "Repository not found");
        };
        let name = ["main/", "refs/convert/parquet/", &format!("{COMMIT}/")]
            .iter()
            .find_map(|revision| rest.strip_prefix(revision));
        let Some(name) = name else { return Answer::new(404).with("x-error-code", "RevisionNotFound") };
        let Some(file) = self.files.iter().find(|file| file.name == name) else {
            return Answer::new(404).with("x-error-code", "EntryNotFound").with("x-repo-commit", COMMIT);
        };
        match file.large {
            false => serve_file(request, &file.content, &format!("\"{}\"", file.etag())).with("x-repo-commit", COMMIT),
            true => Answer::new(302)
                .with("x-repo-commit", COMMIT)
                .with("x-linked-size", file.content.len().to_string())
                .with("x-linked-etag", format!("\"{}\"", file.etag()))
                .with("location", format!("{}/{}", self.elsewhere, file.sha256())),
        }
    }

    /// Lists the files directly in a folder.
    fn list_folder(&self, folder: &str) -> Answer {
        let inside = self.files.iter().filter(|file| {
            name_below(folder, &file.name)
                .is_some_and(|rest| !rest.contains('/') || rest.starts_with('/') || rest.contains(".."))
        });
        let entries: Vec<String> = inside
            .map(|file| {
                let name = &file.name;
                let bytes = file.content.len();
                let lfs = format!(",\"lfs\":{{\"oid\":\"{}\",\"size\":{bytes},\"pointerSize\":130}}", file.sha256());
                let lfs = if file.large { lfs.as_str() } else { "" };
                let oid = ServedFile { large: false, ..file.clone() }.etag();
                format!("{{\"type\":\"file\",\"oid\":\"{oid}\",\"size\":{bytes},\"path\":\"{name}\"{lfs}}}")
            })
            .collect();
        json_answer(
            &format!("[{{\"type\":\"directory\",\"oid\":\"x\",\"size\":0,\"path\":\"sub\"}},{}]", entries.join(","))
                .replace(",]", "]"),
        )
    }
}

fn name_below(folder: &str, name: &str) -> Option<String> {
    match folder {
        "" => Some(name.to_owned()),
        _ => name.strip_prefix(folder)?.strip_prefix('/').map(str::to_owned),
    }
}

fn json_answer(text: &str) -> Answer {
    Answer::new(200).with("content-type", "application/json").body(text)
}

/// Serves a file, or the requested range of it.
fn serve_file(request: &Request, content: &[u8], etag: &str) -> Answer {
    let is_unchanged = request.header("if-range").is_none_or(|known| known == etag);
    match request.range_start().filter(|_| is_unchanged) {
        Some(from) if from >= content.len() => {
            Answer::new(416).with("content-range", format!("bytes */{}", content.len()))
        }
        Some(from) => Answer::new(206)
            .with("content-range", format!("bytes {from}-{}/{}", content.len() - 1, content.len()))
            .body(&content[from..]),
        None => Answer::new(200).body(content),
    }
    .with("etag", etag)
    .with("accept-ranges", "bytes")
}

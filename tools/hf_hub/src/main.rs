//! Downloads from a faulty local server with the `hf-hub` library, and prints which guarantees of `crates/hub` the
//! library provides. `crates/hub/tests/faults` tests the same guarantees for our own client.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use hf_hub::HFClient;

const CONTENT: &str = "0123456789abcdef";
/// SHA-256 of `CONTENT`, as computed by `sha256sum`.
const SHA256: &str = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";
const COMMIT: &str = "0123456789012345678901234567890123456789";

/// Faults in the response to a request for a file's content.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Different bytes of the same length.
    OtherBytes,
    /// Half of the bytes, after which the connection is closed.
    Cut,
    /// An ETag that is a relative path leading out of the cache.
    EtagOutside,
}

/// Answers one request, and records its request line and headers.
fn answer(mut stream: TcpStream, fault: Fault, requests: &Mutex<Vec<String>>) -> Result<(), Box<dyn Error>> {
    let lines: Vec<String> =
        BufReader::new(stream.try_clone()?).lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let head = lines.first().is_some_and(|line| line.starts_with("HEAD"));
    requests.lock().map_err(|_| "poisoned lock")?.push(lines.join("\n"));
    let etag = if fault == Fault::EtagOutside { "../../../outside" } else { SHA256 };
    let headers = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {0}\r\nX-Linked-Size: {0}\r\nETag: \"{etag}\"\r\nX-Linked-Etag: \"{etag}\"\r\n\
         X-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n",
        CONTENT.len()
    );
    let body = match fault {
        _ if head => "",
        Fault::OtherBytes => "0123456789ABCDEF",
        Fault::Cut => &CONTENT[..8],
        Fault::None | Fault::EtagOutside => CONTENT,
    };
    stream.write_all(headers.as_bytes())?;
    Ok(stream.write_all(body.as_bytes())?)
}

/// Starts a server whose fault can be changed while it runs, and returns its address.
fn serve(fault: Arc<Mutex<Fault>>, requests: Arc<Mutex<Vec<String>>>) -> Result<String, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let fault = fault.lock().map_or(Fault::None, |fault| *fault);
            // A client that closes the connection early is not a server error.
            answer(stream, fault, &requests).ok();
        }
    });
    Ok(address)
}

/// Downloads the file into a cache. Returns its content, or the error message.
fn download(address: &str, cache: &Path) -> Result<String, String> {
    let client = HFClient::builder()
        .endpoint(address)
        .cache_dir(cache)
        .retry_max_attempts(0)
        .build_sync()
        .map_err(|error| error.to_string())?;
    let path =
        client.model("org", "name").download_file().filename("f.bin").send().map_err(|error| error.to_string())?;
    fs::read_to_string(path).map_err(|error| error.to_string())
}

fn report(promise: &str, kept: bool, found: &str) {
    println!("{} {promise}: {found}", if kept { "kept    " } else { "NOT KEPT" });
}

fn main() -> Result<(), Box<dyn Error>> {
    let fault = Arc::new(Mutex::new(Fault::None));
    let requests = Arc::new(Mutex::new(Vec::new()));
    let address = serve(fault.clone(), requests.clone())?;
    let set = |new| fault.lock().map(|mut fault| *fault = new).map_err(|_| "poisoned lock");

    let cache = tempfile::tempdir()?;
    let found = download(&address, cache.path());
    report("a file is downloaded", found.as_deref() == Ok(CONTENT), &format!("{found:?}"));

    let blob = cache.path().join("models--org--name/blobs").join(SHA256);
    fs::write(&blob, "damaged in the c")?;
    let found = download(&address, cache.path());
    report("a damaged file in the cache is not used", found.as_deref() == Ok(CONTENT), &format!("{found:?}"));

    set(Fault::OtherBytes)?;
    let cache = tempfile::tempdir()?;
    let found = download(&address, cache.path());
    report("content is used only if its SHA-256 is correct", found.is_err(), &format!("{found:?}"));

    set(Fault::Cut)?;
    let cache = tempfile::tempdir()?;
    let first = download(&address, cache.path());
    set(Fault::None)?;
    requests.lock().map_err(|_| "poisoned lock")?.clear();
    let found = download(&address, cache.path());
    let resumed =
        requests.lock().map_err(|_| "poisoned lock")?.iter().any(|request| request.to_lowercase().contains("\nrange:"));
    report(
        "an interrupted download is resumed",
        resumed,
        &format!("first {first:?}, then {found:?}, with Range: {resumed}"),
    );

    set(Fault::EtagOutside)?;
    let root = tempfile::tempdir()?;
    let cache = root.path().join("a/cache");
    let found = download(&address, &cache);
    let outside: Vec<_> =
        fs::read_dir(root.path().join("a"))?.map_while(Result::ok).map(|entry| entry.file_name()).collect();
    report(
        "nothing is written outside the cache",
        outside.len() == 1,
        &format!("{found:?}, files next to the cache: {outside:?}"),
    );
    Ok(())
}

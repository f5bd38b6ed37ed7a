//! Checks that docs/performance.md matches what tools/performance.py generates from benches/results.
#![allow(clippy::disallowed_macros, reason = "tests print why they are skipped")]

use std::path::Path;
use std::process::Command;

/// Returns the interpreter named by `GHOSTLAB_PYTHON`. Defaults to `python3`, because the script uses only the standard
/// library.
fn interpreter() -> String {
    std::env::var("GHOSTLAB_PYTHON").ok().filter(|named| named != "skip").unwrap_or_else(|| "python3".to_string())
}

#[test]
fn performance_page_matches_the_recorded_results() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/performance.py");
    let output = match Command::new(interpreter()).arg(script).arg("--check").output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && std::env::var_os("CI").is_none() => {
            eprintln!("skipped: no Python found for tools/performance.py");
            return;
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

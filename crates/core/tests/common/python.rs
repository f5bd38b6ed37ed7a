//! Python beside the tests: interpreters that `.ci/run` makes, and scripts of `tools/`.
#![allow(
    clippy::disallowed_macros,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test says what it lacks, and stops there; each crate's tests have it as their own"
)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The path that a variable names, of what has something that the test needs. Where it names none the test says so and is
/// left out; in CI that may not be, but where `skip` says that another group runs it.
pub fn named(variable: &str, with: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable);
    let in_ci = std::env::var("CI").is_ok_and(|value| !value.is_empty());
    assert!(named.is_some() || !in_ci, "{variable} names nothing with {with}: in CI this test may not be left out");
    let path = named.filter(|named| named != "skip").map(PathBuf::from);
    if path.is_none() {
        eprintln!("skipped: {variable} names nothing with {with}");
    }
    path
}

/// The folder of scripts, whichever crate is tested.
fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|of| of.join("tools")).find(|of| of.is_dir()).unwrap()
}

/// The interpreter of `GHOSTLAB_PYTHON`.
pub fn python(with: &str) -> Option<PathBuf> {
    named("GHOSTLAB_PYTHON", with)
}

/// What a program printed that ends well.
pub fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A script of `tools/`, which asks no network for anything.
pub fn script<Argument: AsRef<OsStr>>(
    python: &Path,
    name: &str,
    arguments: impl IntoIterator<Item = Argument>,
) -> Command {
    let mut command = Command::new(python);
    command.arg(tools().join(name)).args(arguments);
    command.envs([("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_OFFLINE", "1"), ("HF_HUB_DISABLE_TELEMETRY", "1")]);
    command
}

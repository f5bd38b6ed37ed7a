//! Notes the commit that the program is built from, for the record of each run.
#![allow(clippy::disallowed_macros, reason = "cargo is told by printing")]

use std::process::Command;

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    println!("cargo::rustc-env=GHOSTLAB_COMMIT={commit}");
    println!("cargo::rustc-env=GHOSTLAB_DIRTY={dirty}");
    // Whatever changes the answer: another commit, another index, another source.
    for path in [".git/HEAD", ".git/index", ".git/refs/heads", "src", "Cargo.toml", "Cargo.lock"] {
        if std::path::Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

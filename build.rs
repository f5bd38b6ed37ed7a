//! Passes the Git commit to the compiler, so that every run can record it. Also generates the list of embedded files.
#![allow(clippy::disallowed_macros, reason = "build scripts pass instructions to cargo through stdout")]

use std::fmt::Write;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let sources = list_sources();
    let mut status = vec!["--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--"];
    status.extend(sources.iter().map(String::as_str));
    let commit = git(&["rev-parse", "HEAD"]).unwrap_or_default();
    let dirty = git(&status).is_some_and(|changes| !changes.is_empty());
    println!("cargo::rustc-env=GHOSTLAB_COMMIT={commit}");
    println!("cargo::rustc-env=GHOSTLAB_DIRTY={dirty}");
    // Rerun if the commit or a source file changes. Git's index is not watched, because even `git status` may update
    // it.
    let git_paths = ["HEAD", "refs/heads"].into_iter().filter_map(|name| git(&["rev-parse", "--git-path", name]));
    for path in git_paths.chain(sources).filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
    // Strip function names, which take up a third of the binary and do not appear in messages. The release profile also
    // sets `strip`, but cargo ignores it for packages with a separate `opt-level`.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg-bins=-Wl,--strip-all");
    }
    embed();
}

/// Returns the files and folders from which the program is built, sorted by path.
fn list_sources() -> Vec<String> {
    let crates = std::fs::read_dir("crates").into_iter().flatten().flatten();
    let crate_paths =
        crates.flat_map(|member| ["src", "Cargo.toml"].map(|name| member.path().join(name).display().to_string()));
    let mut paths =
        ["src", "build.rs", "Cargo.toml", "Cargo.lock", "experiments", "data/tiny"].map(String::from).to_vec();
    paths.extend(crate_paths);
    paths.sort();
    paths
}

/// Writes `embedded.rs`, which embeds the experiments and the data for the `tiny` profile (24 MB) together with their
/// hash.
fn embed() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut files = Vec::new();
    for folder in ["experiments", "data/tiny"] {
        collect_files(&root.join(folder), &mut files);
    }
    files.sort();
    let mut hash = DefaultHasher::new();
    let mut list = String::new();
    for path in &files {
        let name = path.strip_prefix(&root).unwrap_or(path).to_string_lossy().replace('\\', "/");
        hash.write(name.as_bytes());
        hash.write(&std::fs::read(path).unwrap_or_default());
        let _ = writeln!(list, "    ({name:?}, include_bytes!({:?})),", path.display().to_string());
    }
    let text =
        format!("::ghostlab::installed::EmbeddedFiles {{ id: \"{:016x}\", files: &[\n{list}] }}\n", hash.finish());
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("embedded.rs");
    if let Err(error) = std::fs::write(&out, text) {
        println!("cargo::error={}: {error}", out.display());
    }
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|item| item.path()) {
        match path.is_dir() {
            true => collect_files(&path, files),
            false => files.push(path),
        }
    }
}

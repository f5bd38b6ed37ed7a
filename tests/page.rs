//! Tests for the report page in a browser. The page shows the paper's tables or the recorded run, and is read back
//! through the DOM. A note is a dialog about one cell of a table.
//!
//! A test is skipped with a message if Chromium is missing, or if it uses scripts and Node is missing.
//! `GHOSTLAB_BROWSER=require` makes it fail instead, as in `.ci/run`, which installs both. `GHOSTLAB_BROWSER=skip`
//! disables all tests. `GHOSTLAB_SCREENSHOTS=DIR` saves the page and screenshots.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

mod sample;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ghostlab::artifact::audit::{Check, Finding, Severity};
use ghostlab::artifact::page::{CellNote, ClaimRow, FigureView, Judgement, ObjectNote, Page, PageArtifact, render};
use ghostlab::results::{
    PaperVerdict, SavedCell, SavedColumn, SavedComparison, SavedRow, SavedSignificance, SavedTable,
};
use ghostlab::{criterion, recovery};
use sample::build_sample;

/// Finds a program on the PATH. If it is missing, prints that the test is skipped, or panics if browsers are required.
fn find_program(names: &[&str]) -> Option<PathBuf> {
    let browser = std::env::var("GHOSTLAB_BROWSER").unwrap_or_default();
    if browser == "skip" {
        return skip_test("GHOSTLAB_BROWSER=skip");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut files = std::env::split_paths(&path).flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    match files.find(|file| file.is_file()) {
        None => {
            assert_ne!(browser, "require", "none of {names:?} is on the PATH");
            skip_test(&format!("none of {names:?} is on the PATH"))
        }
        found => found,
    }
}

fn skip_test(why: &str) -> Option<PathBuf> {
    #[allow(clippy::disallowed_macros, reason = "tests print why they are skipped")]
    {
        eprintln!("skipped: {why}");
    }
    None
}

fn find_chromium() -> Option<PathBuf> {
    find_program(&["chromium", "chromium-browser", "google-chrome"])
}

fn write_page(folder: &Path) -> PathBuf {
    let file = folder.join("index.html");
    fs::write(&file, render(&build_sample()).unwrap()).unwrap();
    file
}

#[test]
fn browser_opens_the_note_named_in_the_url() {
    let Some(chromium) = find_chromium() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = write_page(folder.path());
    let page = fs::read_to_string(&file).unwrap();
    let (before, _) =
        page.split_once("\"><h3>llama-3-8b without 7 layers: LLM-Streamline, Ghost Layer (Ours)</h3>").unwrap();
    let id = before.rsplit("id=\"").next().unwrap();
    let address = format!("file://{}#{id}", file.display());
    let output = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .args(["--dump-dom", &address])
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let dom = String::from_utf8(output.stdout).unwrap();
    assert!(
        dom.contains("<html lang=\"en\" class=\"js\">"),
        "the script did not run:\n{}",
        &dom[..dom.len().min(2000)]
    );
    let (_, dialog) = dom.split_once("<dialog").unwrap();
    assert!(dialog.split('>').next().unwrap().contains("open"), "the note is not open");
    assert!(dialog.contains(">llama-3-8b without 7 layers: LLM-Streamline, Ghost Layer (Ours)</h2>"));
    // The table has a header row, and a title row above each group of numbers: 10 numbers from Table 2 and 5 from Table
    // 3.
    let (_, numbers) = dialog.split_once("class=\"numbers\"").unwrap();
    let (numbers, _) = numbers.split_once("</table>").unwrap();
    assert_eq!(numbers.matches("<tr").count(), 1 + (1 + 10) + (1 + 5));
    assert_eq!(dom.matches("aria-sort=\"none\"").count(), 1 + 13 + 9 + 15 + 7 + 2, "a column cannot be sorted");
    // The note shows the standard error and the number of items. Links to texts shared by several notes are replaced
    // with these texts.
    assert!(numbers.contains(">Std. error</th>") && numbers.contains("<td>0.93</td><td>2376</td>"), "{numbers}");
    let (dialog, _) = dialog.split_once("</dialog>").unwrap();
    assert!(
        dialog.contains("a processor, 32 threads") && dialog.contains("model") && !dialog.contains("class=\"use\"")
    );
}

/// Runs a script from `tests/browser` on a page, and returns its output.
fn read_in_browser(node: &Path, script: &str, page: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser").join(script);
    let output = Command::new(node).arg(script).arg(page).args(screenshot_folder()).output().unwrap();
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}");
    printed
}

/// Returns the folder for screenshots, or `None` if none are requested.
fn screenshot_folder() -> Option<PathBuf> {
    let pictures = std::env::var_os("GHOSTLAB_SCREENSHOTS").map(PathBuf::from);
    if let Some(pictures) = &pictures {
        fs::create_dir_all(pictures).unwrap();
    }
    pictures
}

#[test]
fn recorded_page_is_short_and_its_tables_scroll() {
    let (Some(_), Some(node)) = (find_chromium(), find_program(&["node"])) else { return };
    let folder = tempfile::tempdir().unwrap();
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    let report = Command::new(env!("CARGO_BIN_EXE_ghostlab"))
        .args(["report", "--results"])
        .arg(results)
        .arg("--reports")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let output = read_in_browser(&node, "recorded.mjs", &folder.path().join("index.html"));
    assert_eq!(output.lines().filter(|line| line.starts_with("ok ")).count(), 4, "{output}");
}

#[test]
fn page_sorts_filters_and_fits_in_a_browser() {
    let (Some(_), Some(node)) = (find_chromium(), find_program(&["node"])) else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = write_page(screenshot_folder().as_deref().unwrap_or(folder.path()));
    let output = read_in_browser(&node, "page.mjs", &page);
    assert!(output.lines().filter(|line| line.starts_with("ok ")).count() == 26, "{output}");
}

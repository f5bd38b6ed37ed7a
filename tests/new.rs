//! Tests for `tools/new.sh`, which adds a method, metric or stage by creating one file and adding one line.
//! `crates/core` and `src/pipeline/stage` compile the templates and run their tests.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Creates a checkout that contains the files touched by the script.
fn create_checkout() -> TempDir {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = TempDir::new().unwrap();
    let templates = ["recovery", "criterion", "metric"].map(|kind| format!("crates/core/templates/{kind}.rs"));
    let module_files = ["recovery", "criterion", "metric"].map(|kind| format!("crates/core/src/{kind}/mod.rs"));
    let others = ["src/pipeline/stage/template.rs", "src/pipeline/stage/mod.rs", "tools/new.sh"];
    for file in templates.iter().chain(&module_files).map(String::as_str).chain(others) {
        fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
        fs::copy(root.join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn run_script(folder: &TempDir, words: &[&str]) -> Output {
    Command::new("bash").arg(folder.path().join("tools/new.sh")).args(words).output().unwrap()
}

#[test]
fn new_method_metric_or_stage_needs_one_file_and_one_line() {
    for (kind, last, line) in [
        ("recovery", "mod sums;", "two_steps::ENTRY"),
        ("criterion", "mod trial;", "two_steps::ENTRY"),
        ("metric", "mod text;", "&two_steps::ENTRY"),
        ("stage", "pub mod tokens;", "two_steps::STAGE"),
    ] {
        let folder = create_checkout();
        let module_folder =
            folder.path().join(if kind == "stage" { "src/pipeline" } else { "crates/core/src" }).join(kind);
        let before = fs::read_to_string(module_folder.join("mod.rs")).unwrap();
        let output = run_script(&folder, &[kind, "two-steps"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let file = fs::read_to_string(module_folder.join("two_steps.rs")).unwrap();
        let expected: &[&str] = match kind {
            "metric" => &["name: \"two_steps\""],
            "stage" => &["ObjectKind::new(\"two-steps\", 1)"],
            _ => &["const NAME: &str = \"two-steps\"", "struct TwoSteps"],
        };
        assert!(expected.iter().all(|words| file.contains(words)), "{file}");
        assert!(!["my-", "my_", "MyR", "MyC"].iter().any(|word| file.contains(word)), "{file}");
        let after = fs::read_to_string(module_folder.join("mod.rs")).unwrap();
        let declared = if kind == "stage" { "pub mod two_steps;\n" } else { "mod two_steps;\n" };
        let module = format!("{last}\n{declared}");
        let entry = format!("    {line},\n];\n");
        assert!(after.contains(&module) && after.contains(&entry), "{after}");
        assert_eq!(after.replace(declared, "").replace(&format!("    {line},\n"), ""), before);
    }
}

#[test]
fn existing_or_invalid_method_name_is_rejected() {
    let folder = create_checkout();
    fs::write(folder.path().join("crates/core/src/recovery/ghosted.rs"), "").unwrap();
    for words in [
        &["recovery", "ghosted"][..],
        &["criterion", "sleb"],
        &["recovery", "Two"],
        &["recovery", "../x"],
        &["recovery", "match"],
        &["stage", "tokens"],
        &["engine", "x"],
        &[],
    ] {
        let output = run_script(&folder, words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(!output.stderr.is_empty());
    }
}

//! Runs the examples on the bundled backbones and texts.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/tiny").join(name)
}

/// Runs an example, and parses the numbers in its output. Cargo builds the binary in `examples/`, next to the folder of
/// the test binary.
fn numbers(example: &str, arguments: &[&str]) -> Vec<f64> {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().with_file_name("examples").join(example);
    let paths = arguments.iter().map(|name| data(name));
    let output = Command::new(program).args(paths).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (_, after) = text.split_once("perplexity").unwrap();
    after.split(|c: char| !c.is_ascii_digit() && c != '.').filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn perplexity_example_scores_a_model_folder() {
    let perplexity = numbers("perplexity", &["llama", "corpora/wiki-test.jsonl.gz"]);
    // A unigram model has a perplexity of at least 206 on these texts (see the backbone's manifest).
    assert!(perplexity[0] > 1.0 && perplexity[0] < 5.0, "{perplexity:?}");
}

#[test]
fn repair_example_perplexity_is_between_dense_and_cut() {
    let scored = numbers("repair", &["llama", "corpora/web-train.jsonl.gz", "corpora/wiki-test.jsonl.gz"]);
    let [dense, cut, repaired] = scored[..] else { panic!("{scored:?}") };
    assert!(dense < repaired && repaired < cut, "{scored:?}");
}

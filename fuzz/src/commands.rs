//! Fuzz targets that run entire commands in this process: command lines, and grids through `plan`. They use a temporary
//! folder as the current folder.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use ghostlab::cli::{CallOutput, call};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{checkout, watch};

/// Number of calls after which the store is cleared, because it keeps the tokens of each grid's texts.
const CALLS_PER_CLEAR: usize = 500;

/// Temporary folder, and the number of calls that have used it. Calls are serialized, because the current folder and
/// the limits that a call sets are process-wide.
static WORK_DIR: Mutex<Option<(TempDir, usize)>> = Mutex::new(None);

const GRID: &str = "name: grid\nbackbones:\n  tiny: {path: backbone}\ncorpora:\n  train: {path: train.txt, rule: wikitext2}\n\
    \x20 test: {path: test.jsonl, rule: ptb, limit: 5}\ntasks:\n  copa: {path: copa.jsonl}\nbackbone: [tiny]\n\
    criterion: [llm-streamline, {name: explicit, order: [1, 2]}, sleb]\ndepth: [1, 50%]\n\
    recovery: [none, ghosted, {name: ghosted, solver: svd}, linearpatch-rotate]\n\
    calibration:\n  - {corpus: train, sequences: [4, 8], length: 32, seed: 1, operator_sequences: 2}\n\
    exclude: {depth: 1, recovery: ghosted}\n\
    evaluate:\n  perplexity: [{corpus: test, length: [16, 32]}]\n  tasks: [{name: copa, limit: 0.5, bos: never, max_length: 40}]\n";

fn generate_words(count: usize) -> String {
    (0..count).map(|i| format!("w{}", (i * i + 7) % 300)).collect::<Vec<_>>().join(" ")
}

/// Creates the temporary folder with a backbone, a tokenizer, two texts, a task, a grid and a store.
fn create_work_dir() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::create_dir_all(path_in("backbone", folder.path())).unwrap();
    fs::create_dir_all(path_in("data/store", folder.path())).unwrap();
    fs::create_dir_all(path_in("empty", folder.path())).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(checkout("tests/fixtures/arch/llama-gqa").join(name), path_in("backbone", folder.path()).join(name))
            .unwrap();
    }
    let vocab: serde_json::Map<String, Value> = (0..300).map(|i| (format!("w{i}"), json!(i))).collect();
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}});
    let copa =
        json!({"premise": "w1 w7 w8.", "question": "cause", "choice1": "w1 w2.", "choice2": "w3 w4.", "label": 1});
    for (name, text) in [
        ("backbone/tokenizer.json", tokenizer.to_string()),
        ("train.txt", generate_words(2000)),
        ("test.jsonl", format!("{}\n", json!({"text": generate_words(300)})).repeat(2)),
        ("copa.jsonl", format!("{copa}\n").repeat(8)),
        ("grid.yaml", GRID.to_owned()),
    ] {
        fs::write(path_in(name, folder.path()), text).unwrap();
    }
    std::env::set_current_dir(folder.path()).unwrap();
    folder
}

fn path_in(name: &str, folder: &Path) -> PathBuf {
    folder.join(name)
}

/// Number of commands that all targets have run so far.
pub static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Runs a command in the temporary folder after calling `prepare`. Checks the exit code, and that the output contains
/// no panic and no control characters.
fn check_call(line: &[&str], prepare: impl FnOnce()) {
    let mut work_dir = WORK_DIR.lock().unwrap_or_else(PoisonError::into_inner);
    let (_folder, calls) = work_dir.get_or_insert_with(|| (create_work_dir(), 0));
    *calls += 1;
    if *calls % CALLS_PER_CLEAR == 0 {
        fs::remove_dir_all("data/store").unwrap();
        fs::create_dir_all("data/store").unwrap();
    }
    prepare();
    let line: Vec<OsString> = ["ghostlab", "-q"].iter().chain(line).map(OsString::from).collect();
    CALLS.fetch_add(1, Relaxed);
    let CallOutput { code, output, errors } = watch::run_watched(
        || match fs::read_to_string("fuzzed.yaml") {
            Ok(grid) => format!("{line:?} with the grid\n{grid}\n"),
            Err(_) => format!("{line:?}"),
        },
        || call(&line),
    );
    let known = [0, 2, 3, 4, 5].map(ExitCode::from);
    assert!(known.contains(&code), "{line:?}: {code:?}\n{errors}");
    let output_text = format!("{output}{errors}");
    assert!(!output_text.contains("panicked"), "{line:?}: {output_text}");
    // Only the command line itself may contain control characters in the output. clap prints unknown words unescaped.
    assert!(
        !output_text.contains(is_control)
            || line.iter().any(|argument| argument.to_string_lossy().contains(is_control)),
        "{line:?}: {output_text:?}"
    );
    if code == ExitCode::from(2) {
        // A command that lacks its subcommand prints the list of subcommands instead of an error.
        assert!(
            errors.contains("error: ") || errors.contains("Usage: "),
            "{line:?}: the output does not explain the error\n{output_text}"
        );
    }
    if code == ExitCode::SUCCESS && line.iter().any(|word| word == "--json") && !output_text.contains("Usage:") {
        assert!(serde_json::from_str::<Value>(&output).is_ok(), "{line:?}: {output}");
    }
}

fn is_control(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
}

/// Fast commands, each with the arguments that are added to keep it fast and free of side effects.
const CHEAP_COMMANDS: [(&str, &[&str]); 13] = [
    ("plan", &[]),
    ("explain", &[]),
    ("compare", &[]),
    ("audit", &[]),
    ("schema", &[]),
    ("cache", &[]),
    ("status", &[]),
    ("score", &[]),
    ("init", &[]),
    ("report", &[]),
    ("completions", &[]),
    ("man", &[]),
    ("run", &["--stored"]),
];

/// Command lines with one word per line, which are the seeds of `fuzz_command`.
const COMMAND_LINES: [&str; 22] = [
    "plan\ngrid.yaml\n--set\ndepth=1\n--all",
    "plan\ngrid.yaml\n--json\n--store-limit\n0.5\n--memory\n4",
    "plan\ngrid.yaml\n--set\ncalibration.sequences=2,4\n--set\nevaluate.tasks[0].limit=3",
    "plan\nbackbone",
    "explain\ngrid.yaml\nsleb/1/none",
    "explain\ngrid.yaml\ndense\n--json",
    "compare\nresults\nempty\n--map\na=b",
    "audit\n--format\ncsv",
    "schema\noutput",
    "cache\nls\n--all\n--json",
    "cache\nverify\n--json",
    "cache\ngc\n--keep\ngrid.yaml\n--older\n1\n--json",
    "cache\ngc\n--kind\nscores\n--older\n0.5\n--yes",
    "cache\npath\nab",
    "status\n--all\n--json",
    "score\nbackbone\n--tasks\ncopa=copa.jsonl\n--limit\n2\n--bos\nnever",
    "score\nbackbone\n--perplexity\ntest.jsonl@16\n--windows\n2\n--rule\nptb\n--json",
    "score\nempty\n--tasks\nnosuch",
    "init\nbackbone\n--to\nmade.yaml\n--corpus\ntrain.txt\n--force",
    "report\n--results\nempty\n--reports\npages",
    "run\ngrid.yaml\n--stored\n--layout\nwide",
    "man\n--to\npages",
];

pub fn command_seeds() -> Vec<Vec<u8>> {
    COMMAND_LINES.iter().map(|line| line.as_bytes().to_vec()).collect()
}

/// Runs a command line given as one word per line. Drops arguments that would leave the temporary folder or use the
/// network, and inserts a command if the first word is not one of `CHEAP_COMMANDS`.
pub fn fuzz_command(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut line: Vec<&str> = text
        .split('\n')
        .filter(|word| {
            let leads_out = word.contains("..") || word.contains(['/', '\\', '\0', '~']) && !word.starts_with("sleb/");
            !leads_out && !word.starts_with("--fetch")
        })
        .collect();
    line.truncate(16);
    let (_, more) = CHEAP_COMMANDS.iter().find(|(name, _)| line.first() == Some(name)).unwrap_or_else(|| {
        // An unknown command would be rejected without running anything.
        let command = &CHEAP_COMMANDS[data.len() % CHEAP_COMMANDS.len()];
        line.insert(0, command.0);
        command
    });
    line.extend(more.iter().filter(|word| !text.contains(*word)));
    check_call(&line, || {});
}

pub fn plan_seeds() -> Vec<Vec<u8>> {
    let tuned = GRID.replace("{name: ghosted, solver: svd}", "{name: ghosted, finetune: {sequences: 2, length: 16}}");
    let timed = format!("{GRID}  latency: {{length: [8, 16], batch: [1, 2]}}\n");
    let dense = "name: d\nbackbones: {tiny: {path: backbone}}\ncorpora: {t: {path: test.jsonl, rule: c4}}\nbackbone: tiny\n\
        evaluate: {perplexity: {corpus: t, length: 16}}\n";
    [GRID, &tuned, &timed, dense].iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Runs a grid through `plan`, which must stay within the machine's memory.
pub fn fuzz_plan(data: &[u8]) {
    check_call(&["plan", "fuzzed.yaml", "--json"], || fs::write("fuzzed.yaml", data).unwrap());
}

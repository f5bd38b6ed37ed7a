//! Tests with malicious task definitions, chat templates and rows that would abort the program, overflow its stack or
//! never terminate. Each must be rejected with exit code 2 and a message that names the file and the limit, within
//! bounded memory and time. The cases are in `tests/fixtures/untrusted`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::common::world::World;
use crate::common::{fixture, gzip, json as read_json, shared};

/// Limits on the address space (KiB) and the CPU time (seconds) of each process. They are twice as high as the
/// documented limits, because the shell can only limit a whole process, including its code and threads.
const LIMITS: &str = "ulimit -v 2000000; ulimit -t 10; exec \"$@\"";
/// Timeout for detecting hangs. It is long enough not to expire on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Malicious input that consists of `unit` repeated `times` times. `{i}` is replaced with the index of the repetition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Case {
    name: String,
    /// Where the input is placed: in a field of a definition, in `chat_template`, among the keys of a definition
    /// (`definition`), in a `group`, or in a file with rows.
    #[serde(rename = "where")]
    target: String,
    before: String,
    unit: String,
    times: usize,
    after: String,
    /// `doc_to_choice` of the definition that reads the rows.
    choices: Option<String>,
}

impl Case {
    fn text(&self) -> String {
        let units: String = match self.unit.contains("{i}") {
            true => (0..self.times).map(|at| self.unit.replace("{i}", &at.to_string())).collect(),
            false => self.unit.repeat(self.times),
        };
        format!("{}{units}{}", self.before, self.after)
    }

    fn is_rows(&self) -> bool {
        self.target.starts_with("rows.")
    }

    fn score(&self, world: &World) -> Output {
        let mut definition = base_definition();
        let mut arguments = vec!["score", "backbone", "--tasks", "t.yaml", "--documents", "2"];
        let mut rows = ("rows.jsonl", "{\"q\":\"w1 w2\",\"label\":0}\n{\"q\":\"w3\",\"label\":1}\n".to_owned());
        match self.target.as_str() {
            "chat_template" => {
                world.write("backbone/chat_template.jinja", self.text());
                arguments.push("--chat");
            }
            "group" => {
                for at in 0..28 {
                    world.write(&format!("g{at}.yaml"), format!("group: g{at}\ntask: [g{0}, g{0}]\n", at + 1));
                }
                world.write("g28.yaml", "group: g28\ntask: [t]\n");
                arguments[3] = "g0";
                arguments.extend(["--definitions", "."]);
            }
            "definition" => {
                let generated = json!({"output_type": "generate_until", "doc_to_target": "{{q}}",
                    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4}});
                definition.extend(generated.as_object().unwrap().clone());
                definition.remove("doc_to_choice");
            }
            file if self.is_rows() => {
                rows = (file, self.text());
                definition["dataset_kwargs"]["data_files"]["test"] = json!(file);
                definition.extend(self.choices.clone().map(|choices| ("doc_to_choice".to_owned(), json!(choices))));
            }
            field => drop(definition.insert(field.to_owned(), json!(self.text()))),
        }
        let mut written = Value::Object(definition).to_string();
        if self.target == "definition" {
            written = format!("{{{}, {}", self.text(), &written[1..]);
        }
        world.write("t.yaml", written);
        world.write(rows.0, if rows.0.ends_with(".gz") { gzip(rows.1.as_bytes()) } else { rows.1.into_bytes() });
        let mut command = Command::new("sh");
        command.args(["-c", LIMITS, "sh", env!("CARGO_BIN_EXE_ghostlab")]).args(arguments);
        command.current_dir(world.folder.path()).env("XDG_DATA_HOME", world.path(".user")).output().unwrap()
    }

    /// Returns a description of what went wrong. Returns `None` if the program exits with code 2 and names the file,
    /// the field and the limit.
    fn find_fault(&self) -> Option<String> {
        let world = World::new();
        let begun = Instant::now();
        let output = self.score(&world);
        let text = String::from_utf8_lossy(&output.stderr);
        let file = match self.target.as_str() {
            "chat_template" => "chat_template.jinja",
            "group" => ".yaml:2",
            "rows.json.gz" | "rows.jsonl.gz" | "rows.jsonl" => &self.target,
            _ => "t.yaml",
        };
        let limited = [
            "at most",
            "exceeds",
            "a number from 1 to",
            "recursion limit",
            "is too large",
            "not supported",
            "unsupported",
        ];
        let is_field = ["doc_to_text", "doc_to_target", "doc_to_choice", "description"].contains(&self.target.as_str());
        let is_named =
            text.contains(&self.target) || text.contains("a prompt") || text.contains("(line 1 of the template)");
        let requirements = [
            (output.status.code() == Some(2), "exit code 2"),
            (begun.elapsed() < TIMEOUT, "the error in time"),
            (text.contains(file), "the file"),
            (limited.iter().any(|words| text.contains(words)), "a limit"),
            (!is_field || is_named, "the field"),
        ];
        let unmet: Vec<&str> = requirements.into_iter().filter(|(is, _)| !is).map(|(_, what)| what).collect();
        let unmet = unmet.join(", ");
        (!unmet.is_empty()).then(|| format!("{} does not report {unmet}: {}\n{text}", self.name, output.status))
    }
}

fn base_definition() -> Map<String, Value> {
    let definition = json!({
        "task": "t", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}}, "test_split": "test",
        "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": ["w1", "w2"], "doc_to_target": "label",
    });
    definition.as_object().unwrap().clone()
}

fn read_cases(file: &str) -> Vec<Case> {
    serde_json::from_value(read_json(&fixture("untrusted").join(file))).unwrap()
}

fn check_rejected(is_wanted: impl Fn(&Case) -> bool) {
    let cases: Vec<Case> = read_cases("refused.json").into_iter().filter(is_wanted).collect();
    assert!(!cases.is_empty());
    let faults: Vec<String> = cases.iter().filter_map(Case::find_fault).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn hostile_templates_are_rejected_within_limits() {
    check_rejected(|case| {
        case.target != "chat_template" && case.target != "definition" && case.target != "group" && !case.is_rows()
    });
}

#[test]
fn hostile_chat_templates_are_rejected_within_limits() {
    check_rejected(|case| case.target == "chat_template");
}

#[test]
fn hostile_definitions_are_rejected_within_limits() {
    check_rejected(|case| case.target == "definition" || case.target == "group");
}

#[test]
fn hostile_rows_are_rejected_within_limits() {
    check_rejected(Case::is_rows);
}

#[test]
fn definitions_with_many_keys_are_scored_within_limits() {
    for case in read_cases("accepted.json") {
        let output = case.score(&World::new());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{}: {}\n{text}", case.name, output.status);
    }
}

/// Columns that the corpus does not select may contain values of any type and length.
#[test]
fn unread_corpus_columns_use_little_memory() {
    for unit in ["1,", "[],", "{\"a\":{}},", "\"\","] {
        let world = World::new();
        let text = (0..300).map(|at| format!("w{} ", at % 200)).collect::<String>();
        let units = unit.repeat(60_000_000 / unit.len());
        let row = format!("{{\"x\":[{units}{}],\"text\":\"{text}\"}}\n", unit.trim_end_matches(','));
        world.write("corpus.jsonl.gz", gzip(row.as_bytes()));
        let arguments = ["score", "backbone", "--perplexity", "corpus.jsonl.gz", "--length", "32", "--windows", "2"];
        let mut command = Command::new("sh");
        command.args(["-c", LIMITS, "sh", env!("CARGO_BIN_EXE_ghostlab")]).args(arguments);
        let output =
            command.current_dir(world.folder.path()).env("XDG_DATA_HOME", world.path(".user")).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{unit}: {}\n{text}", output.status);
    }
}

/// Every case in the reports (`shared/cases/turn4-faults`) must be in the fixtures verbatim.
#[test]
fn every_reported_hostile_case_is_in_the_fixtures() {
    let Some(folder) = shared("cases/turn4-faults") else { return };
    let known = [read_cases("refused.json"), read_cases("accepted.json")].concat();
    let templates: Vec<Value> = serde_json::from_value(read_json(&folder.join("templates.json"))).unwrap();
    for (template, key) in templates.iter().flat_map(|template| [(template, "text"), (template, "larger")]) {
        let text = match &template[key] {
            Value::Null => continue,
            Value::String(text) => text.clone(),
            parts => serde_json::from_value::<Case>(parts.clone()).unwrap().text(),
        };
        assert!(known.iter().any(|case| case.text() == text), "{}, {key}", template["name"]);
    }
    let definitions = read_json(&folder.join("definitions.json"))["cases"].clone();
    let rows = read_json(&folder.join("rows.json"));
    for case in definitions.as_array().into_iter().chain(rows.as_array()).flatten() {
        assert!(known.iter().any(|known| case["name"] == known.name.as_str()), "{}", case["name"]);
    }
}

/// Killing a run while its child process is computing must also end the child.
#[cfg(target_os = "linux")]
#[test]
fn killed_run_ends_its_sandbox_process() {
    let slow =
        Case { target: "doc_to_text".to_owned(), ..read_cases("refused.json").into_iter().find(is_slow).unwrap() };
    let world = World::new();
    let mut definition = base_definition();
    definition.insert(slow.target.clone(), json!(slow.text()));
    world.write("t.yaml", Value::Object(definition).to_string());
    world.write("rows.jsonl", "{\"q\":\"w1\",\"label\":0}\n");
    let mut run = world.command(&["score", "backbone", "--tasks", "t.yaml"]).spawn().unwrap();
    let child = wait_for(|| sandbox_children(run.id()).into_iter().next());
    run.kill().unwrap();
    run.wait().unwrap();
    wait_for(|| (!std::path::Path::new(&format!("/proc/{child}")).exists() || is_zombie(child)).then_some(()));
}

#[cfg(target_os = "linux")]
fn is_slow(case: &Case) -> bool {
    case.name == "slow filter in a loop"
}

#[cfg(target_os = "linux")]
fn wait_for<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(begun.elapsed() < TIMEOUT, "nothing happened within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the process ids of the sandbox children of a process.
#[cfg(target_os = "linux")]
fn sandbox_children(process: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let all = texts.flat_map(|text| text.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>());
    all.filter(|id| {
        std::fs::read(format!("/proc/{id}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("__sandbox"))
    })
    .collect()
}

#[cfg(target_os = "linux")]
fn is_zombie(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

//! Compatibility with Python's libraries: caches are shared with `huggingface_hub` in both directions, and files
//! written by `datasets`, `pyarrow` and `safetensors` can be read.
//!
//! Skipped with a message unless `GHOSTLAB_PYTHON` names an interpreter with these packages, which `.ci/run` installs.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "a test panics on setup errors, and says what it skips"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use crate::common;
use crate::common::fixture;
use crate::common::world::World;
use crate::server::{COMMIT, FakeHub, Served, TOKEN, content, large, no_fault, small};
use candle_core::quantized::gguf_file::{self, Value as Entry};
use ghostlab::corpus;
use ghostlab::hub::{FilePattern, Hub, HubSettings, Lock, RepoFiles, Silent, Source};
use ghostlab::model::weights::Weights;
use ghostlab::model::{Config, check_weights};
use ghostlab::tasks::{TASKS, Task};
use ghostlab_definitions::{FileRows, Request, Setting, Task as Documents, Value as Row, native};
use serde_json::Value;
use tempfile::TempDir;

/// Returns the interpreter, or `None` if the tests are skipped.
fn python() -> Option<PathBuf> {
    common::python::python("huggingface_hub, datasets, pyarrow and safetensors")
}

fn run(python: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let home = TempDir::new().unwrap();
    let mut command = Command::new(python);
    command
        .args(arguments)
        .env("HF_HOME", home.path())
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("HF_HUB_DISABLE_XET", "1");
    command
        .env_remove("HF_HUB_OFFLINE")
        .env_remove("HF_HUB_CACHE")
        .env_remove("HF_TOKEN")
        .envs(variables.iter().copied());
    common::python::printed(&mut command)
}

fn served() -> Vec<Served> {
    vec![
        small("config.json", "{\"a\": 1}\n"),
        large("sub/model.safetensors", content(5000)),
        large("b/copy.bin", content(5000)),
    ]
}

fn wants() -> RepoFiles {
    let files = served().iter().map(|file| FilePattern::needed(&*file.name)).collect();
    RepoFiles { source: Source::parse("o/n").unwrap(), files }
}

fn settings(endpoint: &str, cache: &Path, offline: bool) -> HubSettings {
    HubSettings::of(&|name: &str| match name {
        "HF_ENDPOINT" => Some(endpoint.into()),
        "HF_HUB_CACHE" => Some(cache.into()),
        "HF_TOKEN" => Some(TOKEN.into()),
        "HF_HUB_OFFLINE" if offline => Some("1".into()),
        _ => None,
    })
    .unwrap()
}

const DOWNLOAD: &str = "
import sys
from huggingface_hub import hf_hub_download
for name in sys.argv[2:]:
    print(hf_hub_download('o/n', name, local_files_only=sys.argv[1] == 'local'))
";

/// Reads all files and links of a cache without lock files and metadata: a link's target, or a file's bytes.
fn layout(cache: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![cache.join("models--o--n")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            let kind = entry.file_type().unwrap();
            let name = path.strip_prefix(cache).unwrap().to_owned();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(name, target.to_string_lossy().into_owned().into_bytes());
            } else {
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    found
}

#[test]
fn python_and_ghostlab_share_one_hub_cache() {
    let Some(python) = python() else { return };
    let server = FakeHub::start("o/n", served(), no_fault());
    let ours = TempDir::new().unwrap();
    let theirs = TempDir::new().unwrap();
    let names: Vec<String> = served().into_iter().map(|file| file.name).collect();

    let hub = Hub::new(settings(&server.address, ours.path(), false));
    let stop = AtomicBool::new(false);
    let plan = hub.plan(&[wants()], &Lock::default(), &Silent, &stop).unwrap();
    assert!(hub.fetch(&plan, None, &Silent, &stop).unwrap().failures.is_empty());
    let cache = theirs.path().to_str().unwrap();
    run(&python, &download_arguments(&names, "net"), &[("HF_ENDPOINT", &server.address), ("HF_HUB_CACHE", cache)]);
    assert_eq!(layout(ours.path()), layout(theirs.path()));
    // A subset, because Python may remove unused locks.
    assert!(
        locks_of(theirs.path()).is_subset(&locks_of(ours.path())),
        "the same locks, so that neither brings what the other does"
    );

    // Run both libraries offline, each with the cache that the other one wrote.
    server.forget();
    let cache = ours.path().to_str().unwrap();
    let printed = run(
        &python,
        &download_arguments(&names, "local"),
        &[("HF_ENDPOINT", &server.address), ("HF_HUB_CACHE", cache)],
    );
    for (path, file) in printed.lines().zip(served()) {
        assert!(
            Path::new(path).starts_with(ours.path().canonicalize().unwrap())
                || Path::new(path).starts_with(ours.path()),
            "{path}"
        );
        assert_eq!(fs::read(path).unwrap(), file.content);
    }
    assert_eq!(printed.lines().count(), 3);
    let hub = Hub::new(settings(&server.address, theirs.path(), true));
    let plan = hub.plan(&[wants()], &Lock::default(), &Silent, &stop).unwrap();
    assert!(plan.complete() && plan.repos[0].commit.as_str() == COMMIT);
    assert!(server.requests().is_empty());
    // `huggingface_hub` accepts the cache written here.
    let scan = "from huggingface_hub import scan_cache_dir as s; i = s(); print(len(i.warnings), [r.repo_id for r in i.repos], sorted(f.file_name for r in i.repos for v in r.revisions for f in v.files))";
    let cache = ours.path().to_str().unwrap();
    let scanned = run(&python, &["-c", scan], &[("HF_HUB_CACHE", cache)]);
    assert_eq!(scanned.trim(), "0 ['o/n'] ['config.json', 'copy.bin', 'model.safetensors']");
}

fn download_arguments<'a>(names: &'a [String], mode: &'static str) -> Vec<&'a str> {
    ["-c", DOWNLOAD, mode].into_iter().chain(names.iter().map(String::as_str)).collect::<Vec<_>>()
}

fn locks_of(cache: &Path) -> BTreeSet<std::ffi::OsString> {
    fs::read_dir(cache.join(".locks/models--o--n"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name())
        .collect()
}

/// Returns a folder with the output of `tools/real_formats.py`.
fn real_formats() -> Option<TempDir> {
    let python = python()?;
    let (folder, script) =
        (TempDir::new().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/real_formats.py"));
    let script = script.to_str().unwrap();
    let out = folder.path().to_str().unwrap();
    run(&python, &[script, out], &[("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")]);
    Some(folder)
}

/// Returns the requests of some files' rows, and the expected ones.
fn prompts(known: &Task, files: &[PathBuf]) -> (Vec<Request>, Vec<(Vec<Row>, Row)>) {
    let definition = native::definition(known).unwrap();
    let rows = native::rows(definition, files).unwrap();
    let task = Documents::of_rows(definition.clone(), rows, None).unwrap();
    let requests = task.requests(&FileRows::default(), &Setting::default()).unwrap();
    let solutions = (0..task.documents.len()).map(|at| task.solution(at).unwrap()).collect();
    (requests, solutions)
}

#[test]
fn the_nine_tasks_are_read_from_parquet_as_the_hub_has_them() {
    let Some(folder) = real_formats() else { return };
    for task in TASKS.iter().filter(|task| task.in_paper) {
        let docs = fixture("lm_eval/docs").join(format!("{}.jsonl", task.name));
        let expected = prompts(task, &[docs]);
        assert!(!expected.0.is_empty());
        for folder_name in ["tasks", "shards"] {
            let files = task.files(&folder.path().join(folder_name).join(task.name)).unwrap();
            assert_eq!(files.len(), if folder_name == "tasks" { 1 } else { 2 });
            assert_eq!(prompts(task, &files), expected, "{} in {folder_name}", task.name);
        }
    }
}

#[test]
fn texts_are_read_as_the_hub_has_them_each_byte() {
    let Some(folder) = real_formats() else { return };
    let expected: Value = serde_json::from_slice(&fs::read(folder.path().join("texts.json")).unwrap()).unwrap();
    for (text, file) in [
        ("wikitext", "wikitext/test-00000-of-00001.parquet"),
        ("ptb", "ptb/0000.parquet"),
        ("c4", "c4-train.00000-of-01024.json.gz"),
    ] {
        let rows = corpus::read_rows(folder.path().join(file), None).unwrap();
        assert_eq!(Value::from(rows), expected[text], "{text}");
    }
}

/// Compares the tokenizer of a `llama` GGUF file with SentencePiece, the library behind Llama 2 and Gemma, with and
/// without a leading space, and after rewriting the file.
#[test]
fn gguf_sentencepiece_equals_original_on_10000_lines() {
    let Some(python) = python() else { return };
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let lines = sample_lines();
    assert!(lines.len() > 10_000, "{}", lines.len());
    fs::write(path("lines.json"), serde_json::json!(lines).to_string()).unwrap();
    for prefix in [true, false] {
        let lines_file = path("lines.json");
        let out = path("made.json");
        let arguments =
            ["tools/sentence_piece.py", &lines_file, &out].into_iter().chain((!prefix).then_some("no-prefix"));
        run(&python, &arguments.collect::<Vec<_>>(), &[]);
        let made: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
        write_sentencepiece(&made, prefix, &path("t.gguf"));
        let ours = corpus::Tokenizer::load(path("t.gguf")).unwrap();
        let ids = made["ids"].as_array().unwrap();
        assert_eq!(ids.len(), lines.len());
        for (line, expected) in lines.iter().zip(ids) {
            let expected: Vec<u32> = serde_json::from_value(expected.clone()).unwrap();
            assert_eq!(ours.encode(line).unwrap(), expected, "space before: {prefix}: {line:?}");
        }
    }
}

/// Returns special cases, and lines of the corpora. Some contain words that the tokenizer was not trained on, with mixed
/// scripts.
fn sample_lines() -> Vec<String> {
    let mut lines: Vec<String> = [
        " two  spaces   and a tab\there ",
        "\u{4f60}\u{597d}, \u{1F600}\u{1F469}\u{200D}\u{1F680} \u{645}\u{631}\u{62D}\u{628}\u{627}",
        "x\u{301}\u{e9} 12345 3.14159 I'LL don't",
        "\r\n\r\n",
        "\u{2581}\u{2581}under",
        "",
    ]
    .map(str::to_owned)
    .into();
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tiny/corpora");
    for file in ["news-train", "web-train", "wiki-train"] {
        let texts = corpus::read_rows(corpora.join(format!("{file}.jsonl.gz")), None).unwrap();
        let of_file = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.is_empty());
        lines.extend(of_file.enumerate().take(3600).map(|(at, line): (usize, &str)| match at % 5 {
            0 => line.chars().map(|c| if c == 'e' { '\u{435}' } else { c }).collect(),
            1 => line.replace(' ', "  "),
            _ => line.to_owned(),
        }));
    }
    lines
}

/// Writes a GGUF file with a SentencePiece tokenizer. `prefix` tells whether it adds a leading space.
fn write_sentencepiece(made: &Value, prefix: bool, path: &str) {
    let list = |key: &str| made[key].as_array().unwrap().iter();
    let entries = [
        ("tokenizer.ggml.model", Entry::String("llama".into())),
        ("tokenizer.ggml.pre", Entry::String("default".into())),
        (
            "tokenizer.ggml.tokens",
            Entry::Array(list("tokens").map(|list| Entry::String(list.as_str().unwrap().into())).collect()),
        ),
        (
            "tokenizer.ggml.scores",
            Entry::Array(list("scores").map(|value| Entry::F32(value.as_f64().unwrap() as f32)).collect()),
        ),
        (
            "tokenizer.ggml.token_type",
            Entry::Array(list("kinds").map(|value| Entry::I32(value.as_i64().unwrap() as i32)).collect()),
        ),
        ("tokenizer.ggml.unknown_token_id", Entry::U32(0)),
        ("tokenizer.ggml.add_bos_token", Entry::Bool(false)),
        ("tokenizer.ggml.add_space_prefix", Entry::Bool(prefix)),
    ];
    let entries: Vec<(&str, &Entry)> = entries.iter().map(|(key, value)| (*key, value)).collect();
    gguf_file::write(&mut fs::File::create(path).unwrap(), &entries, &[]).unwrap();
}

#[test]
fn weights_in_shards_are_those_of_one_file() {
    let Some(folder) = real_formats() else { return };
    let [single, sharded] = ["whole", "sharded"].map(|name| folder.path().join(name));
    let config = Config::read(&sharded).unwrap();
    check_weights(&config, &sharded).unwrap();
    assert_eq!(Weights::files(&sharded).unwrap().len(), 2);
    let one = Weights::open(&single).unwrap();
    let other = Weights::open(&sharded).unwrap();
    let bytes = fs::read(single.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut seen = 0;
    for (name, tensor) in tensors.iter() {
        assert_eq!(one.take(name, tensor.shape()).unwrap(), other.take(name, tensor.shape()).unwrap(), "{name}");
        seen += 1;
    }
    assert!(seen > 10);
    // The error names the missing shard.
    fs::remove_file(sharded.join("model-00002-of-00002.safetensors")).unwrap();
    let error = check_weights(&config, &sharded).unwrap_err().to_string();
    assert!(error.contains("model-00002-of-00002.safetensors"), "{error}");
}

/// Script that reads a run's exported files with the projects' published readers and prints their numbers.
const FORMS: &str = r#"
import glob, json, sys, zipfile
import jsonschema, yaml
from huggingface_hub import eval_result_entries_to_yaml, parse_eval_result_entries

results, wheel = sys.argv[1:]
schema = json.loads(zipfile.ZipFile(wheel).read("every_eval_ever/schemas/eval.schema.json"))
jsonschema.Draft7Validator.check_schema(schema)
validator = jsonschema.Draft7Validator(schema)
said = {}
for file in glob.glob(results + "/every_eval_ever/*.json"):
    record = json.load(open(file))
    errors = [error.message for error in validator.iter_errors(record)]
    assert not errors, (file, errors)
    assert record["schema_version"] == schema["version"]
    for lacking in ["model_info", "evaluation_results", "source_metadata"]:
        assert list(validator.iter_errors({key: value for key, value in record.items() if key != lacking})), lacking
    cell = record["model_info"]["name"]
    said[cell] = {of["evaluation_name"]: of["score_details"]["score"] for of in record["evaluation_results"]}
for file in glob.glob(results + "/eval_results/*.yaml"):
    written = yaml.safe_load(open(file))
    entries = parse_eval_result_entries(written)
    assert eval_result_entries_to_yaml(entries) == written, written
    (entry,) = entries
    cell = entry.notes.split("; ")[1]
    said[cell]["hub"] = [entry.dataset_id, entry.task_id, entry.value]
print(json.dumps(said))
"#;

#[test]
fn accuracies_are_in_the_forms_that_others_collect_them_in() {
    let Some(python) = python() else { return };
    let Some(folder) = common::python::named("GHOSTLAB_EVERY_EVAL_EVER", "the wheel of every-eval-ever") else {
        return;
    };
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let wheel = { files }.find(|path| path.extension().is_some_and(|ending| ending == "whl")).unwrap();
    let world = World::large();
    let of_hub = "copa: {path: copa.jsonl, hub: aps/super_glue, files: copa/validation-00000-of-00001.parquet}";
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap().replace("copa: {path: copa.jsonl}", of_hub);
    world.write("grid.yaml", grid);
    world.runs(&[
        "--set",
        "name=forms",
        "--set",
        "criterion=llm-streamline",
        "--set",
        "depth=1",
        "--set",
        "recovery=ghosted",
    ]);
    let results = world.path("results/forms");
    let output = run(&python, &["-c", FORMS, results.to_str().unwrap(), wheel.to_str().unwrap()], &[]);
    let frames: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_str(&output).unwrap();
    let numbers = common::stored_numbers(&common::json(&results.join("numbers.json")));
    let cells: BTreeSet<&str> = numbers.iter().map(|number| number["cell"].as_str().unwrap()).collect();
    assert_eq!(frames.keys().map(String::as_str).collect::<BTreeSet<_>>(), cells, "a file for each cell");
    for (cell, scores) in frames {
        let is = |value: &Value, column: &str| {
            let number = numbers.iter().find(|number| number["cell"] == *cell && number["column"] == column).unwrap();
            (value.as_f64().unwrap() - number["value"].as_f64().unwrap()).abs() < 1e-3
        };
        let hub = scores["hub"].as_array().unwrap();
        assert!(hub[0] == "aps/super_glue" && hub[1] == "copa" && is(&hub[2], "copa"), "{cell}: {scores:?}");
        assert!(
            (100.0 * scores["copa"].as_f64().unwrap() - hub[2].as_f64().unwrap()).abs() < 1e-3,
            "{cell}: {scores:?}"
        );
        assert!(is(&scores["test@64"], "ppl test@64"), "{cell}: {scores:?}");
    }
}

/// Script that validates a packed record by the RO-Crate profile. The validator downloads the profile's context, so the
/// script serves the one in the package `rocrate`, a later version with all of its terms.
const CRATE: &str = r#"
import importlib.resources, io, json, sys, zipfile
import requests, urllib3
from rocrate_validator import models, services
from rocrate_validator.utils.http import HttpRequester

archive = sys.argv[1]
CONTEXT = "https://w3id.org/ro/crate/1.2/context"
context = importlib.resources.files("rocrate").joinpath("data/ro-crate.jsonld").read_bytes()

class Nowhere(requests.adapters.BaseAdapter):
    def send(self, request, **_):
        known = request.url == CONTEXT
        answer = requests.Response()
        answer.request, answer.url, answer.status_code = request, request.url, 200 if known else 504
        body = io.BytesIO(context if known else b"")
        answer.raw = urllib3.HTTPResponse(body=body, status=answer.status_code, preload_content=False)
        answer.headers["content-type"] = "application/ld+json"
        return answer

    def close(self):
        pass

def issues(of, severity):
    settings = models.ValidationSettings(
        rocrate_uri=of, profile_identifier="ro-crate-1.2", requirement_severity=severity, no_cache=True
    )
    session = HttpRequester(no_cache=True).session
    for scheme in ("https://", "http://"):
        session.mount(scheme, Nowhere())
    return [f"{issue.check.identifier}: {issue.message}" for issue in services.validate(settings).get_issues()]

graph = json.loads(zipfile.ZipFile(archive).read("ro-crate-metadata.json"))["@graph"]
terms = json.loads(context)["@context"]
terms = terms if isinstance(terms, dict) else {name: iri for part in terms if isinstance(part, dict) for name, iri in part.items()}
unknown = {key for entity in graph for key in entity if not key.startswith("@") and key not in terms}
with zipfile.ZipFile(archive) as whole, zipfile.ZipFile(archive + ".bad.zip", "w") as bad:
    for name in whole.namelist():
        text = whole.read(name)
        if name == "ro-crate-metadata.json":
            text = text.replace(b'"datePublished"', b'"published"')
        bad.writestr(name, text)
print(json.dumps({
    "required": issues(archive, models.Severity.REQUIRED),
    "recommended": issues(archive, models.Severity.RECOMMENDED),
    "bad": issues(archive + ".bad.zip", models.Severity.REQUIRED),
    "unknown": sorted(unknown),
    "ids": [entity["@id"] for entity in graph],
}))
"#;

#[test]
fn a_packed_record_is_a_research_object_crate() {
    if python().is_none() {
        return;
    }
    let Some(python) = common::python::named("GHOSTLAB_ROCRATE", "roc-validator and rocrate") else { return };
    let world = World::new();
    world.runs(&["--set", "criterion=llm-streamline", "--set", "depth=1", "--set", "recovery=ghosted"]);
    let license = "https://spdx.org/licenses/CC0-1.0";
    let output = world.ghostlab(&["record", "pack", "results", "--to", "record.zip", "--license", license]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let archive = world.path("record.zip");
    let output = run(&python, &["-c", CRATE, archive.to_str().unwrap()], &[]);
    let crate_parts: Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    assert_eq!(crate_parts["required"], Value::Array(Vec::new()), "{crate_parts:#}");
    assert_eq!(crate_parts["unknown"], Value::Array(Vec::new()), "{crate_parts:#}");
    // The program does not know the publisher.
    let wishes: Vec<&str> =
        crate_parts["recommended"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(wishes.iter().all(|wish| wish.contains("publisher")), "{wishes:#?}");
    assert!(crate_parts["bad"].to_string().contains("datePublished"), "{crate_parts:#}");
    let ids = crate_parts["ids"].to_string();
    assert!(ids.contains("/numbers.json") && ids.contains("#sha256-") && ids.contains("#run-grid"), "{ids}");
}

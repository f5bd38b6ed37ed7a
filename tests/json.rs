//! Checks that the `--json` output of every command conforms to one schema.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

mod validator;

use std::path::Path;

use crate::common;
use crate::common::world::World;
use serde_json::{Value, json};
use validator::validate_strict;

fn print_schema() -> Value {
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_ghostlab")).args(["schema", "output"]).output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command with `--json` and checks its exit code. Validates the output against the schema and returns it.
fn run_json(world: &World, schema: &Value, arguments: &[&str], code: i32) -> Value {
    let output = world.ghostlab(&[arguments, &["--json"]].concat());
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {log}");
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
    validate_strict(schema, schema, &document, "document")
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{document:#}"));
    assert_eq!((&document["ghostlab"], &document["schema"]), (&json!(env!("CARGO_PKG_VERSION")), &json!(1)));
    document
}

fn run_answer(world: &World, schema: &Value, arguments: &[&str], command: &str) -> Value {
    let mut document = run_json(world, schema, arguments, 0);
    assert_eq!(document["command"], command);
    document["answer"].take()
}

fn run_text(world: &World, arguments: &[&str]) -> String {
    String::from_utf8(world.ghostlab(arguments).stdout).unwrap()
}

#[test]
fn published_schema_is_current_and_describes_every_field() {
    let schema = print_schema();
    let committed = common::json(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/output.schema.json"));
    assert!(
        committed == schema,
        "docs/output.schema.json is stale; run `ghostlab schema output > docs/output.schema.json`"
    );
    fn collect_undescribed(root: &Value, schema: &Value, at: &str, found: &mut Vec<String>) {
        // If an alternative of `oneOf` has a single property, its description documents the property too.
        let variant = at.ends_with("/oneOf")
            && is_described(schema)
            && schema["properties"].as_object().is_some_and(|schema| schema.len() == 1);
        for (name, property) in schema["properties"].as_object().into_iter().flatten().filter(|_| !variant) {
            let referred =
                |item: &Value| item["$ref"].as_str().is_some_and(|name| is_described(&root["$defs"][&name[8..]]));
            let inside = property["items"].is_object() && referred(&property["items"]);
            let either = property["anyOf"].as_array().is_some_and(|options| options.iter().any(referred));
            if !(is_described(property) || referred(property) || inside || either) {
                found.push(format!("{at}.{name}"));
            }
        }
        match schema {
            Value::Object(keys) => {
                keys.iter().for_each(|(key, value)| collect_undescribed(root, value, &format!("{at}/{key}"), found));
            }
            Value::Array(items) => items.iter().for_each(|item| collect_undescribed(root, item, at, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect_undescribed(&schema, &schema, "", &mut found);
    assert_eq!(found, Vec::<String>::new());
    let documented = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md")).unwrap();
    let named = schema["$defs"]["Answer"]["oneOf"].as_array().unwrap();
    for command in named.iter().map(|variant| variant["properties"]["command"]["const"].as_str().unwrap()) {
        assert!(documented.contains(&format!("`{command}`")), "docs/cli.md does not mention {command}");
    }
}

fn is_described(schema: &Value) -> bool {
    schema["description"].as_str().is_some_and(|text| text.len() > 2)
}

#[test]
fn validator_rejects_extra_missing_and_mistyped_fields() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    assert!(!is_rejected(&schema, &json!({"a": 1})));
    assert!(
        is_rejected(&schema, &json!({"a": 1, "b": 2}))
            && is_rejected(&schema, &json!({"a": "1"}))
            && is_rejected(&schema, &json!({}))
            && is_rejected(&schema, &json!({"a": 1.5}))
    );
}

fn is_rejected(schema: &Value, value: &Value) -> bool {
    validate_strict(schema, schema, value, "x").is_err()
}

#[test]
fn json_answers_match_the_schema_and_the_text_output() {
    let world = World::new();
    let schema = print_schema();
    check_plan_without_results(&world, &schema);
    world.run_ok(&[]);
    check_plan_with_results(&world, &schema);
    let status = run_answer(&world, &schema, &["status"], "status");
    let run = &status["runs"][0];
    assert_eq!((&run["stage"], &run["complete"], &run["cells"]), (&json!("complete"), &json!(9), &json!(9)));
    assert!(run_text(&world, &["status"]).contains("9 of 9 cells complete"));
    check_cache(&world, &schema);
    check_explanation(&world, &schema);
    check_comparison(&world, &schema);
    check_garbage_collection(&world, &schema);
}

fn check_plan_without_results(world: &World, schema: &Value) {
    let nothing = run_answer(world, schema, &["plan", "grid.yaml", "--store-limit", "1"], "plan");
    let grid = &nothing["grids"][0];
    assert_eq!((&grid["cells"], &grid["cells_complete"]), (&json!(9), &json!(0)));
    assert_eq!(grid["cells_to_run"][0]["cell"], "tiny.dense");
    let missing = &grid["cells_to_run"][1]["missing"];
    assert_eq!((&missing[0]["what"], &missing[0]["reason"]["why"]), (&json!("selection"), &json!("first")));
    assert_eq!(grid["jobs"][0]["job"], "calibrate");
    assert_eq!(grid["store_limit"]["limit_bytes"], 1_000_000_000);
    assert!(grid["cost"]["run"]["memory_bytes"].as_u64().unwrap() > 0);
    assert_eq!(run_answer(world, schema, &["status"], "status")["runs"], json!([]));
}

fn check_plan_with_results(world: &World, schema: &Value) {
    let done = run_answer(world, schema, &["plan", "grid.yaml"], "plan");
    assert_eq!((&done["grids"][0]["cells_complete"], &done["grids"][0]["cost"]["run"]), (&json!(9), &Value::Null));
    assert!(run_text(world, &["plan", "grid.yaml"]).contains("9 complete, 0 to run"));
    // The old and new values of a changed setting keep their JSON types and are not turned into strings.
    let changed = run_answer(world, schema, &["plan", "grid.yaml", "--set", "calibration.seed=7"], "plan");
    let reason = &changed["grids"][0]["cells_to_run"][0]["missing"][0]["reason"];
    assert_eq!(reason["why"], "changed", "{changed:#}");
    let change = &reason["what"][0];
    assert_eq!((&change["old"], &change["new"]), (&json!(0), &json!(7)), "{change}");
    assert!(run_text(world, &["plan", "grid.yaml", "--set", "calibration.seed=7"]).contains("seed: 0 → 7"));
}

fn check_cache(world: &World, schema: &Value) {
    let listing = run_answer(world, schema, &["cache", "ls"], "cache ls");
    let artifacts = listing["artifacts"].as_array().unwrap();
    let counted: u64 =
        listing["stages"].as_array().unwrap().iter().map(|stage| stage["artifacts"].as_u64().unwrap()).sum();
    assert_eq!(counted, artifacts.len() as u64);
    let verified = run_answer(world, schema, &["cache", "verify"], "cache verify");
    assert_eq!((&verified["artifacts"], &verified["damaged"]), (&json!(artifacts.len()), &json!([])));
    let key = artifacts[0]["key"].as_str().unwrap();
    let path_answer = run_answer(world, schema, &["cache", "path", &key[..12]], "cache path");
    assert_eq!((&path_answer["key"], &path_answer["stage"]), (&artifacts[0]["key"], &artifacts[0]["stage"]));
    assert_eq!(run_text(world, &["cache", "path", key]).trim(), path_answer["folder"].as_str().unwrap());
}

fn check_explanation(world: &World, schema: &Value) {
    let cell = "tiny.streamline-2.ghosted";
    let explained = run_answer(world, schema, &["explain", "grid.yaml", "depth/2/ghosted"], "explain");
    assert_eq!((&explained["cell"], &explained["backbone"]["name"]), (&json!(cell), &json!("tiny")));
    let removed = explained["removed_layers"].as_array().unwrap();
    let words = run_text(world, &["explain", "grid.yaml", "depth/2/ghosted"]);
    assert!(
        removed.len() == 2 && words.contains(&format!("removes layers [{}, {}]", removed[0], removed[1])),
        "{words}"
    );
    for artifact in explained["artifacts"].as_array().unwrap() {
        assert!(artifact["stored"]["command"].is_array() && artifact["reason"].is_null(), "{artifact}");
        assert!(words.contains(artifact["key"].as_str().unwrap()));
    }
}

/// Checks the output of `compare` for two runs. Its numbers must be bit-identical to the stored ones.
fn check_comparison(world: &World, schema: &Value) {
    world.run_ok(&["--set", "calibration.seed=7", "--set", "name=other"]);
    let mut folder = std::fs::read_dir(world.path("results")).unwrap().map(|item| item.unwrap().path());
    let other = folder.find(|path| path.to_str().unwrap().contains("other")).unwrap();
    let compared = run_answer(world, schema, &["compare", "results/grid", other.to_str().unwrap()], "compare");
    let paths: Vec<&str> =
        compared["settings"].as_array().unwrap().iter().map(|setting| setting["path"].as_str().unwrap()).collect();
    assert!(paths.contains(&"name"), "{paths:?}");
    let values = compared["values"].as_array().unwrap();
    assert!(!values.is_empty());
    let stored = common::json(&world.path("results/grid/numbers.json"));
    let all: Vec<Value> = common::stored_numbers(&stored).iter().map(|number| number["value"].clone()).collect();
    assert!(values.iter().all(|value| all.contains(&value["first"]["value"])), "{values:?}");
}

fn check_garbage_collection(world: &World, schema: &Value) {
    let preview = run_answer(world, schema, &["cache", "gc", "--kind", "scores"], "cache gc");
    assert_eq!((&preview["deleted"], &preview["going"].as_array().unwrap().len()), (&json!(false), &1));
    let deleted = run_answer(world, schema, &["cache", "gc", "--kind", "scores", "--yes"], "cache gc");
    assert_eq!((&deleted["deleted"], &deleted["going"]), (&json!(true), &preview["going"]));
    let deleted = run_answer(world, schema, &["cache", "gc", "--kind", "scores"], "cache gc");
    assert_eq!(deleted["going"], json!([]));
}

#[test]
fn json_answers_of_runs_and_reports_match_the_schema() {
    let world = World::large();
    let schema = print_schema();
    let small = ["--set", "depth=1", "--set", "recovery=[none]", "--set", "criterion=shortgpt"];
    let init = run_answer(&world, &schema, &["init", "backbone", "--to", "made.yaml", "--corpus", "train.txt"], "init");
    assert_eq!(
        (&init["file"], &init["models"], &init["left_out"]),
        (&json!("made.yaml"), &json!(["backbone"]), &json!([]))
    );
    let worker = run_answer(&world, &schema, &[&["worker", "grid.yaml"], &small[..]].concat(), "worker");
    assert_eq!((&worker["end"], &worker["cells"], &worker["failed"]), (&json!("done"), &json!(2), &json!(0)));
    let ran = run_answer(&world, &schema, &[&["run", "grid.yaml"], &small[..]].concat(), "run");
    assert_eq!((&ran["grid"], &ran["cells"], &ran["failed"]), (&json!("grid"), &json!(2), &json!([])));
    assert!(
        ran["files"].as_array().unwrap().iter().any(|file| file.as_str().unwrap().ends_with("results.csv")),
        "{ran}"
    );
    assert!(ran["files"].as_array().unwrap().iter().all(|file| world.path(file.as_str().unwrap()).exists()), "{ran}");
    let scored = run_answer(&world, &schema, &["score", "backbone", "--tasks", "copa.jsonl", "--limit", "4"], "score");
    assert_eq!((&scored["model"], &scored["scores"][0]["of"]), (&json!("backbone"), &json!("copa(limit=4)")));
    assert_eq!(scored["lm_eval"]["n-samples"]["copa"]["effective"], 4);
    let line =
        ["search", "backbone", "--budget", "layers=1", "--tasks", "copa.jsonl", "--calibration", "train.txt:8x64"];
    let searched = run_answer(
        &world,
        &schema,
        &[&line[..], &["--criteria", "shortgpt", "--recoveries", "none,ghosted"]].concat(),
        "search",
    );
    assert_eq!(searched["searches"][0]["candidates"].as_array().unwrap().len(), 2, "{searched}");
    assert!(searched["files"].as_array().unwrap().iter().all(|file| world.path(file.as_str().unwrap()).exists()));
    let exported =
        run_answer(&world, &schema, &[&["export", "grid.yaml", "none", "--to", "out"], &small[..]].concat(), "export");
    assert_eq!(
        (&exported["folders"][0]["folder"], &exported["folders"][0]["needs_code"]),
        (&json!("out"), &json!(false))
    );
    check_reports(&world, &schema);
    // A run with an unfinished cell still returns a valid answer, but with a nonzero exit code.
    let long =
        [&["run", "grid.yaml"], &small[..], &["--set", "backbone=tiny", "--stored", "--set", "calibration.seed=9"]]
            .concat();
    let failure = run_json(&world, &schema, &long, 3)["answer"].take();
    assert_eq!(failure["unmade"].as_array().unwrap().len(), 1, "{failure}");
    assert_eq!(failure["failed"], json!([]), "{failure}");
}

/// Checks the commands that describe results, the program or its inputs.
fn check_reports(world: &World, schema: &Value) {
    let verified = run_answer(world, schema, &["verify", "results"], "verify");
    assert_eq!((&verified["seed"], &verified["folders"][0]["name"]), (&json!(0), &json!("grid")));
    assert!(!run_answer(world, schema, &["audit"], "audit")["findings"].as_array().unwrap().is_empty());
    assert_eq!(run_answer(world, schema, &["report", "--reports", "pages"], "report")["page"], "pages/index.html");
    assert_eq!(run_answer(world, schema, &["man", "--to", "pages"], "man")["folder"], "pages");
    assert!(
        run_answer(world, schema, &["completions", "bash"], "completions")["script"]
            .as_str()
            .unwrap()
            .contains("complete")
    );
    assert_eq!(run_answer(world, schema, &["schema", "output"], "schema")["schema"], *schema);
    let report = run_answer(world, schema, &["doctor"], "doctor");
    assert!(
        report["things"].as_array().unwrap().iter().any(|thing| thing["what"] == "memory" && thing["mark"] == "good"),
        "{report}"
    );
    assert_eq!(run_answer(world, schema, &["fetch", "grid.yaml"], "fetch")["files"], json!([]));
}

#[test]
fn every_command_prints_usage_errors_as_json() {
    let world = World::new();
    let schema = print_schema();
    let named = schema["$defs"]["Answer"]["oneOf"].as_array().unwrap();
    for command in named.iter().map(|variant| variant["properties"]["command"]["const"].as_str().unwrap()) {
        let words: Vec<&str> = command.split(' ').collect();
        let line = [&words[..], &["--no-such-option", "--json"]].concat();
        let output = world.ghostlab(&line);
        assert_eq!(output.status.code(), Some(2), "{command}");
        let document: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{command}: {error}"));
        validate_strict(&schema, &schema, &document, "document").unwrap_or_else(|error| panic!("{command}: {error}"));
        assert_eq!((&document["command"], &document["error"]["exit_code"]), (&json!(command), &json!(2)));
    }
}

#[test]
fn status_after_killed_worker_and_run_matches_the_schema() {
    let world = World::new();
    let schema = print_schema();
    let output = world.command(&["worker", "grid.yaml"]).env("GHOSTLAB_FAULT", "kill@commit:3").output().unwrap();
    assert_eq!(output.status.code(), None, "the run was not killed");
    let status = run_answer(&world, &schema, &["status"], "status");
    let plan = &status["plans"][0];
    assert_eq!((&plan["grid"], &plan["died"], &plan["progress"]["cells"]), (&json!("grid"), &json!(1), &json!(9)));
    let output = world.command(&["run", "grid.yaml"]).env("GHOSTLAB_FAULT", "kill@commit:3").output().unwrap();
    assert_eq!(output.status.code(), None, "the run was not killed");
    let status = run_answer(&world, &schema, &["status"], "status");
    assert_eq!((&status["runs"][0]["died"], &status["runs"][0]["stage"]), (&json!(true), &json!("running")));
}

#[test]
fn errors_are_json_documents_with_their_exit_codes() {
    let world = World::new();
    let schema = print_schema();
    for (arguments, code, command, kind, what) in [
        (&["plan", "gird.yaml"][..], 3, "plan", "missing", "grid file not found"),
        (&["plan", "grid.yaml", "--set", "depht=1"], 2, "plan", "bad_input", ""),
        (&["explain", "grid.yaml", "nosuch"], 2, "explain", "bad_input", "the grid has no cell with this name"),
        (&["compare", "a", "b"], 3, "compare", "missing", "results folder not found"),
        (&["status", "--store", "nowhere"], 3, "status", "missing", "store not found"),
        (&["cache", "path", "abcdef"], 3, "cache path", "missing", "unknown object key"),
        (
            &["cache", "gc", "--kind", "nosuch"],
            2,
            "cache gc",
            "bad_input",
            "invalid value 'nosuch' for '--kind <KIND>'",
        ),
        (&["plan", "grid.yaml", "--nosuch"], 2, "plan", "bad_input", "unexpected argument '--nosuch' found"),
    ] {
        let document = run_json(&world, &schema, arguments, code);
        assert_eq!(document["command"], command, "{document}");
        let error = &document["error"];
        assert_eq!((&error["exit_code"], &error["kind"]), (&json!(code), &json!(kind)), "{document}");
        assert!(error["what"].as_str().unwrap().contains(what), "{document}");
        let output = world.ghostlab(&[arguments, &["--json"]].concat());
        assert!(String::from_utf8(output.stderr).unwrap().contains("error: "), "stderr has no error text");
    }
    // A report on damaged objects is a valid answer, but has a nonzero exit code.
    world.run_ok(&["--set", "depth=1", "--set", "recovery=[none]"]);
    let listing = run_answer(&world, &schema, &["cache", "ls"], "cache ls");
    let key = listing["artifacts"][0]["key"].as_str().unwrap();
    let folder = run_answer(&world, &schema, &["cache", "path", key], "cache path");
    let folder_path = world.path(folder["folder"].as_str().unwrap());
    let mut payloads = std::fs::read_dir(&folder_path).into_iter().flatten().map(|item| item.unwrap().path());
    let payload = payloads.find(|path| !path.ends_with("meta.json"));
    // A small object is stored as a single file and not as a folder.
    std::fs::write(payload.unwrap_or(folder_path), "x").unwrap();
    let verified = run_json(&world, &schema, &["cache", "verify"], 5)["answer"].take();
    assert_eq!((&verified["damaged"][0]["key"], &verified["removed"]), (&json!(key), &json!(false)));
    assert_eq!(verified["damaged"][0]["error"]["kind"], "damaged");
    let verified = run_answer(&world, &schema, &["cache", "verify", "--repair"], "cache verify");
    assert_eq!(verified["removed"], true);
}

#[test]
fn control_characters_in_names_are_escaped_in_json() {
    let world = World::new();
    let schema = print_schema();
    let name = "a\u{202e}b\u{9b}.yaml";
    let document = run_json(&world, &schema, &["plan", name], 3);
    assert_eq!(document["error"]["where"], name, "JSON strings must not be escaped for the terminal");
    let raw = world.ghostlab(&["plan", name, "--json"]).stdout;
    assert!(!String::from_utf8(raw).unwrap().contains(['\u{202e}', '\u{9b}']));
}

//! Tests for run records in formats defined by other projects.

use super::*;

/// Python script that reads the exported files of a run with the published readers of lm-evaluation-harness, Every Eval
/// Ever and `huggingface_hub`, and prints the values that it read.
const READ_FORMATS_SCRIPT: &str = r#"
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
fn every_eval_ever_and_hub_files_contain_the_runs_scores() {
    let Some(python) = python() else { return };
    let Some(folder) = common::python::path_from_env("GHOSTLAB_EVERY_EVAL_EVER", "the wheel of every-eval-ever") else {
        return;
    };
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let wheel = { files }.find(|path| path.extension().is_some_and(|ending| ending == "whl")).unwrap();
    let world = World::large();
    let hub_entry = "copa: {path: copa.jsonl, hub: aps/super_glue, files: copa/validation-00000-of-00001.parquet}";
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap().replace("copa: {path: copa.jsonl}", hub_entry);
    world.write("grid.yaml", grid);
    world.run_ok(&[
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
    let output = run(&python, &["-c", READ_FORMATS_SCRIPT, results.to_str().unwrap(), wheel.to_str().unwrap()], &[]);
    let frames: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_str(&output).unwrap();
    let numbers = common::stored_numbers(&common::json(&results.join("numbers.json")));
    let cells: BTreeSet<&str> = numbers.iter().map(|number| number["cell"].as_str().unwrap()).collect();
    assert_eq!(frames.keys().map(String::as_str).collect::<BTreeSet<_>>(), cells, "expected one file per cell");
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

/// Script that validates a packed record against the RO-Crate profile. The validator would download the profile's
/// context from the web. Instead, the script serves a later version with the same terms, which comes with the package
/// `rocrate`.
const VALIDATE_CRATE_SCRIPT: &str = r#"
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
fn packed_record_is_a_valid_ro_crate() {
    if python().is_none() {
        return;
    }
    let Some(python) = common::python::path_from_env("GHOSTLAB_ROCRATE", "roc-validator and rocrate") else { return };
    let world = World::new();
    world.run_ok(&["--set", "criterion=llm-streamline", "--set", "depth=1", "--set", "recovery=ghosted"]);
    let license = "https://spdx.org/licenses/CC0-1.0";
    let output = world.ghostlab(&["record", "pack", "results", "--to", "record.zip", "--license", license]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let archive = world.path("record.zip");
    let output = run(&python, &["-c", VALIDATE_CRATE_SCRIPT, archive.to_str().unwrap()], &[]);
    let crate_parts: Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    assert_eq!(crate_parts["required"], Value::Array(Vec::new()), "{crate_parts:#}");
    assert_eq!(crate_parts["unknown"], Value::Array(Vec::new()), "{crate_parts:#}");
    // The publisher is the only recommended property that is missing. The program does not know it.
    let wishes: Vec<&str> =
        crate_parts["recommended"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(wishes.iter().all(|wish| wish.contains("publisher")), "{wishes:#?}");
    assert!(crate_parts["bad"].to_string().contains("datePublished"), "{crate_parts:#}");
    let ids = crate_parts["ids"].to_string();
    assert!(ids.contains("/numbers.json") && ids.contains("#sha256-") && ids.contains("#run-grid"), "{ids}");
}

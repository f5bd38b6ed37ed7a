//! Export of a cell's accuracies and perplexities to public results formats: those of lm-evaluation-harness, Hugging
//! Face's `.eval_results` and the Every Eval Ever schema.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ghostlab_definitions::results::Score;
use serde_json::{Value, json};

use super::{CHANNELS_FILE, DOCUMENTS, LATENCY, harness_files, put};
use crate::error::{Error, Result};
use crate::grid::{EvalTask, Grid, TaskData};
use crate::metric::{Direction, ENTRIES, Metric, MetricEntry, MetricSource, PERPLEXITY, TEXT, Unit};
use crate::pipeline::outcome::{CellResult, GridOutcome, TaskScores};

/// Subfolder of a results folder for files in the layout of lm-evaluation-harness.
pub const LM_EVAL: &str = "lm_eval";
/// Subfolder of a results folder for Every Eval Ever records.
pub const EVERY_EVAL_EVER: &str = "every_eval_ever";
pub const EVAL_RESULTS: &str = "eval_results";
/// Subfolders for all formats that other programs read.
pub const PUBLIC_FORMAT_FOLDERS: [&str; 3] = [LM_EVAL, EVERY_EVAL_EVER, EVAL_RESULTS];

/// Bulk data that the repository does not track. `run.json` has the hashes, and `.gitignore` lists the names.
pub const NOT_RECORDED: [&str; 3] = [DOCUMENTS, CHANNELS_FILE, LATENCY];

/// Returns whether a file may be missing from a results folder that is archived or committed. This holds for bulk data,
/// bitmap versions of vector drawings, and exports that can be regenerated from the stored numbers (docs/results.md).
pub fn may_be_left_out(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|ending| ending == "png")
        || NOT_RECORDED.contains(&name)
        || PUBLIC_FORMAT_FOLDERS.iter().any(|form| Path::new(name).starts_with(form))
}

/// Version of the Every Eval Ever schema (github.com/evaleval/every_eval_ever, `eval.schema.json`).
const SCHEMA: &str = "0.3.0";

/// Writes all formats for every cell with scores, and returns the folders it wrote to. The files are named after their
/// cells. If lm-evaluation-harness needs several files for a cell, the later ones have the suffixes `..2`, `..3`, ….
/// The folder `lm_eval` is created even if no cell has scores, as long as the documents of a task have been counted.
///
/// # Errors
/// Fails with exit code 3 if a folder cannot be written.
pub fn write_public_formats(dir: &Path, name: &str, grid: &Grid, outcome: &GridOutcome) -> Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    if grid.evaluate.tasks.iter().any(|task| outcome.task(task).is_some()) {
        written.push(create_folder(dir, LM_EVAL)?);
    }
    for result in &outcome.cells {
        let cell = result.cell.to_string();
        let mut files = Vec::new();
        for (file, number) in harness_files(grid, result, &cell)?.iter().zip(1..) {
            // No cell name ends in such a suffix.
            let suffix = if number == 1 { String::new() } else { format!("..{number}") };
            files.push((LM_EVAL, format!("{cell}{suffix}.json"), format!("{file:#}")));
        }
        let record = every_eval_ever(name, grid, outcome, result);
        files.extend(record.map(|record| (EVERY_EVAL_EVER, format!("{cell}.json"), format!("{record:#}\n"))));
        files.extend(eval_results(grid, result).map(|text| (EVAL_RESULTS, format!("{cell}.yaml"), text)));
        for (folder, name, text) in files {
            let folder = create_folder(dir, folder)?;
            put(&folder.join(name), text.as_bytes())?;
            if !written.contains(&folder) {
                written.push(folder);
            }
        }
    }
    Ok(written)
}

fn create_folder(dir: &Path, name: &str) -> Result<PathBuf> {
    let folder = dir.join(name);
    fs::create_dir_all(&folder).map_err(|error| Error::folder_io("create", &folder, &error))?;
    Ok(folder)
}

/// Converts a cell into an Every Eval Ever record, with accuracies as proportions. Returns `None` for a cell without
/// scores.
fn every_eval_ever(name: &str, grid: &Grid, outcome: &GridOutcome, result: &CellResult) -> Option<Value> {
    let cell = &result.cell;
    let shown = ENTRIES.iter().filter(|metric| metric.is_column(false, &grid.evaluate.metrics));
    let requested = shown.flat_map(|metric| grid.evaluate.perplexity.iter().map(move |text| (metric, text)));
    let texts = requested.filter_map(|(metric, key)| {
        let corpus = grid.corpora.get(&key.corpus)?;
        let sample = result.text_sample(key)?;
        let estimate = sample.estimate(metric)?;
        let (min_score, max_score) = value_range(metric);
        let mut metric_name = metric.name.replace('_', " ");
        metric_name[..1].make_ascii_uppercase();
        let config = json!({
            "metric_id": metric.name, "metric_name": metric_name, "metric_kind": metric.name,
            "metric_parameters": {"window_tokens": key.length}, "lower_is_better": metric.direction == Direction::Lower,
            "score_type": "continuous", "min_score": min_score,
            "max_score": max_score.map_or_else(|| json!("Infinity"), |max_score| json!(max_score)),
        });
        let samples = Some(sample.losses.windows.len());
        let data = source_data(&key.corpus, hub_repository(corpus.hub.as_ref()), corpus.generated, samples);
        let id = format!("{}_{key}", if **metric == TEXT { PERPLEXITY.id } else { metric.id });
        let score = json!({"score": estimate.value});
        Some(evaluation_result(&id, &key.to_string(), &data, &config, &score))
    });
    let scored = result.tasks.iter().filter_map(|task| Some((&task.requested, task.sample.as_ref()?)));
    let tasks = scored.flat_map(|(task, scores)| task_records(grid, task, scores));
    let results: Vec<Value> = tasks.chain(texts).collect();
    let backbone = grid.backbones.get(&cell.backbone)?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()).to_string();
    let source = hub_repository(backbone.hub.as_ref());
    let mut details = json!({
        "deployment_type": "self_deployed",
        "model_availability": if source.is_some() { "open_weights" } else { "unknown" },
        "cell": cell.to_string(), "layers": result.layers.to_string(), "layers_removed": result.removed.to_string(),
    });
    if let Some((_, Some(revision))) = &source {
        details["revision"] = json!(revision);
    }
    let engine = outcome.engines.get(&cell.backbone).map(ToString::to_string).unwrap_or_default();
    (!results.is_empty()).then(|| {
        json!({
            "schema_version": SCHEMA,
            "evaluation_id": format!("{name}/{cell}/{seconds}"),
            "retrieved_timestamp": seconds,
            "source_metadata": {
                "source_name": format!("ghostlab, {name}"), "source_type": "evaluation_run",
                "source_organization_name": "unknown", "evaluator_relationship": "other",
            },
            "eval_library": {"name": "ghostlab", "version": env!("CARGO_PKG_VERSION")},
            "model_info": {
                "name": cell.to_string(),
                "id": source.map_or_else(|| cell.backbone.clone(), |(repository, _)| repository),
                "inference_engine": {"name": format!("ghostlab: {engine}"), "version": env!("CARGO_PKG_VERSION")},
                "additional_details": details,
            },
            "evaluation_results": results,
        })
    })
}

/// Converts the scores of a task into records: one for the metric of a built-in task, or one for each metric of a task
/// definition.
fn task_records(grid: &Grid, task: &EvalTask, scores: &TaskScores) -> Vec<Value> {
    let TaskData { hub: source, generated, .. } = grid.task(task);
    let mut details = json!({
        "documents_of_the_split": scores.original.to_string(), "documents_scored": scores.effective.to_string(),
    });
    if let (Some(builtin), Some(accuracy)) = (grid.task(task).builtin(), scores.main_score()) {
        let config = json!({
            "metric_id": accuracy.metric, "metric_name": "Accuracy", "metric_kind": "accuracy",
            "metric_unit": "proportion", "lower_is_better": false, "score_type": "continuous", "min_score": 0.0,
            "max_score": 1.0,
        });
        details["task_version"] = json!(builtin.version.to_string());
        let score = score_details(accuracy.score, accuracy.error, "analytic", scores.effective, &details);
        let data = source_data(builtin.name, hub_repository(source.as_ref()), *generated, Some(scores.effective));
        return vec![evaluation_result(&scores.label, builtin.name, &data, &config, &score)];
    }
    let Ok(definition) = grid.task(task).definition() else { return Vec::new() };
    details["task_version"] = json!(definition.version);
    details["shots"] = json!(definition.shots(task.how.shots).to_string());
    let data = source_data(&task.name, hub_repository(source.as_ref()), *generated, Some(scores.effective));
    let records = scores.scores.iter().map(|Score { metric, filter, score: value, error, .. }| {
        let shown = Metric::defined(&scores.label, metric, filter);
        let is_percentage = shown.unit == Unit::Percent;
        let config = json!({
            "metric_id": metric, "metric_name": metric, "metric_kind": metric,
            "lower_is_better": shown.direction == Direction::Lower, "score_type": "continuous",
            "min_score": if metric == "mcc" { json!(-1.0) } else { json!(0.0) },
            "max_score": if is_percentage || metric == "mcc" { json!(1.0) } else { json!("Infinity") },
        });
        let error = error.filter(|error| error.is_finite());
        let score = score_details(*value, error, "bootstrap", scores.effective, &details);
        evaluation_result(&shown.id, &task.name, &data, &config, &score)
    });
    records.collect()
}

fn evaluation_result(id: &str, name: &str, source: &Value, metric: &Value, score: &Value) -> Value {
    json!({
        "evaluation_result_id": id, "evaluation_name": name, "source_data": source, "metric_config": metric,
        "score_details": score,
    })
}

/// Returns the minimum and maximum of a text metric. The maximum is `None` if the metric is unbounded.
fn value_range(metric: &MetricEntry) -> (f64, Option<f64>) {
    match metric.source {
        MetricSource::Damage(damage, _) => damage.value_range(),
        _ if metric.unit == Unit::One => (1.0, None),
        _ => (0.0, None),
    }
}

/// Formats a score for an Every Eval Ever record. `method` is the method used to estimate the standard error.
fn score_details(value: f64, error: Option<f64>, method: &str, items: usize, details: &Value) -> Value {
    let mut score = json!({"score": value, "details": details});
    if let Some(error) = error {
        score["uncertainty"] = json!({"standard_error": {"value": error, "method": method}, "num_samples": items});
    }
    score
}

/// Formats the data source for an Every Eval Ever record.
fn source_data(name: &str, source: Option<(String, Option<String>)>, generated: bool, samples: Option<usize>) -> Value {
    let mut data = match source.filter(|_| !generated) {
        Some((repository, _)) => json!({"dataset_name": name, "source_type": "hf_dataset", "hf_repo": repository}),
        None => json!({
            "dataset_name": name, "source_type": "other",
            "additional_details": {"generated": generated.to_string()},
        }),
    };
    if let (Some(samples), "hf_dataset") = (samples, data["source_type"].as_str().unwrap_or_default()) {
        data["samples_number"] = json!(samples);
    }
    data
}

/// Formats a cell's accuracies on built-in tasks, in percent, as the contents of a `.eval_results/` file
/// (huggingface.co/docs/hub/eval-results). Only complete splits of Hugging Face datasets are included, because partial
/// splits are not benchmark results. Returns `None` if there are none.
fn eval_results(grid: &Grid, result: &CellResult) -> Option<String> {
    let scored = result.tasks.iter().filter_map(|task| Some((&task.requested, task.sample.as_ref()?)));
    let entries: String = scored.filter_map(|(task, scores)| result_entry(grid, result, task, scores)).collect();
    (!entries.is_empty()).then_some(entries)
}

fn result_entry(grid: &Grid, result: &CellResult, task: &EvalTask, scores: &TaskScores) -> Option<String> {
    let data = grid.task(task);
    let name = data.builtin()?.name;
    let accuracy = scores.main_score()?;
    let (repository, revision) = hub_repository(data.hub.as_ref())?;
    if data.generated || scores.effective < scores.original {
        return None;
    }
    // Every JSON string is also a valid YAML string.
    let text = |text: &str| Value::from(text).to_string();
    let revision = revision.map(|commit| format!("\n    revision: {}", text(&commit))).unwrap_or_default();
    let notes = format!(
        "{} of {} documents, 0-shot, by ghostlab {}; {}",
        accuracy.metric,
        scores.effective,
        env!("CARGO_PKG_VERSION"),
        result.cell
    );
    let value = 100.0 * accuracy.score;
    Some(format!(
        "- dataset:\n    id: {}\n    task_id: {}{revision}\n  value: {value:.4}\n  notes: {}\n",
        text(&repository),
        text(name),
        text(&notes)
    ))
}

/// Returns the repository name without its type prefix, and the resolved commit.
fn hub_repository(source: Option<&crate::grid::HubSource>) -> Option<(String, Option<String>)> {
    let hub = source?;
    let repository = hub.repository.split('@').next().unwrap_or_default();
    let repository = repository.strip_prefix("datasets/").unwrap_or(repository).to_owned();
    Some((repository, hub.commit.as_ref().map(|commit| commit.as_str().to_owned())))
}

//! Scores of one model, for display and as results files of lm-evaluation-harness.

use std::collections::BTreeSet;

use ghostlab_definitions::Definition;
use ghostlab_definitions::results::Score;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::grid::{EvalTask, Grid, GroupUse, TaskSettings};
use crate::metric::{BITS_PER_BYTE, Direction, Metric, MetricSource, TEXT, Unit};
use crate::pipeline::outcome::{CellResult, GridOutcome, TaskScores, displayed_score, harness_scores};
use crate::tasks::{self, Measure, ScoredTask, Task};

#[derive(Debug)]
pub struct ModelScores<'a> {
    grid: &'a Grid,
    result: &'a CellResult,
    /// Scores on texts and tasks, followed by the average if there are several tasks.
    pub scores: Vec<ModelScore>,
}

/// Score of a model on one text or task.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ScoredTarget")]
pub struct ModelScore {
    /// Text with its window length, task as written in a grid, or `average`.
    #[serde(rename = "of")]
    pub label: String,
    /// Metric name: `perplexity`, `acc` or `acc_norm`.
    // Metrics of task definitions have their filter appended.
    pub metric: String,
    /// Perplexity, or accuracy in percent.
    pub value: f64,
    /// Standard error; null if unavailable.
    #[serde(rename = "standard_error")]
    pub error: Option<f64>,
    /// Bits per byte of text; null for tasks.
    pub bits_per_byte: Option<f64>,
    /// Number of windows or documents.
    pub items: usize,
    /// Whether the value is printed with two decimals, as a percentage.
    #[serde(skip)]
    pub percent: bool,
    /// Whether the score is computed over the windows of a text.
    #[serde(skip)]
    pub windows: bool,
}

impl<'a> ModelScores<'a> {
    /// Collects the scores of the only cell in a grid.
    ///
    /// # Errors
    /// Fails if the grid does not have exactly one cell, or with the cell's error if it failed.
    pub fn new(grid: &'a Grid, outcome: &'a GridOutcome) -> Result<Self> {
        let [result] = outcome.cells.as_slice() else {
            return Err(
                Error::job("the grid must have exactly one cell").found(format!("{} cells", outcome.cells.len()))
            );
        };
        result.ok()?;
        let mut scores = Vec::new();
        for text in &grid.evaluate.perplexity {
            let Some(sample) = result.text_sample(text) else { continue };
            let losses = sample.losses;
            let MetricSource::Text(bits_per_byte) = BITS_PER_BYTE.source else { continue };
            scores.push(ModelScore {
                label: text.to_string(),
                metric: TEXT.name.to_owned(),
                value: losses.perplexity(),
                error: losses.standard_error(),
                bits_per_byte: bits_per_byte(&sample).map(|bits_per_byte| bits_per_byte.value),
                items: losses.windows.len(),
                windows: true,
                ..ModelScore::default()
            });
        }
        let (builtin, defined): (Vec<_>, Vec<_>) =
            result.task_scores().partition(|task| task.answers.builtin().is_some());
        scores.extend(builtin.into_iter().flat_map(ModelScore::from_task));
        let answered: Vec<&ScoredTask> = result.answered_tasks().map(|(_, answered)| answered).collect();
        let accuracies: Vec<Measure> = answered.iter().map(|answered| answered.paper_accuracy()).collect();
        // Average the main metrics of the built-in tasks, as in the paper's tables.
        if let Some(mean) = tasks::average(&accuracies).filter(|_| accuracies.len() > 1) {
            scores.push(ModelScore {
                label: "average".to_owned(),
                metric: "acc, acc_norm".to_owned(),
                value: 100.0 * mean.value,
                error: mean.stderr.map(|error| 100.0 * error),
                items: answered.iter().map(|answered| answered.key().documents()).sum(),
                percent: true,
                ..ModelScore::default()
            });
        }
        for group in &grid.evaluate.groups {
            let all = result.group(group).unwrap_or_default();
            scores.extend(all.iter().map(|score| ModelScore::new(group.to_string(), score)));
        }
        scores.extend(defined.into_iter().flat_map(ModelScore::from_task));
        Ok(Self { grid, result, scores })
    }

    /// Builds a results file in the format of lm-evaluation-harness. Texts are included as tasks, with their
    /// perplexity.
    ///
    /// # Errors
    /// Fails if a task is scored under several protocols, because the format has one entry per task.
    pub fn lm_eval(&self, model: &str) -> Result<Value> {
        let mut files = harness_files(self.grid, self.result, model)?;
        if let Some(second) = files.get(1) {
            let task = second["results"].as_object().and_then(|results| results.keys().next().cloned());
            return Err(Error::bad_input("a task is scored with several settings")
                .at(format!("task {}", task.unwrap_or_default()))
                .expected("each task once, because the results format has one entry per task")
                .hint("request the task only once"));
        }
        // Scores of the same task are adjacent.
        let mut names: Vec<&str> = self.scores.iter().map(|score| score.label.as_str()).collect();
        names.dedup();
        let mut file = files.pop().unwrap_or_else(|| empty_file(model));
        file["config"]["tasks"] = json!(names);
        for score in self.scores.iter().filter(|score| score.windows) {
            let name = &score.label;
            file["results"][name] = json!({
                "name": name, "alias": name, "sample_len": score.items,
                "perplexity,none": score.value,
                "perplexity_stderr,none": score.error.map_or(json!("N/A"), |error| json!(error)),
                "bits_per_byte,none": score.bits_per_byte,
                "bits_per_byte_stderr,none": "N/A",
            });
            file["versions"][name] = json!(1.0);
            file["n-shot"][name] = json!(0);
            file["n-samples"][name] = json!({"original": score.items, "effective": score.items});
            file["higher_is_better"][name] = json!({"perplexity": false, "bits_per_byte": false});
            file["configs"][name] = json!({"task": name, "output_type": "windows", "num_fewshot": 0});
        }
        Ok(file)
    }
}

impl ModelScore {
    fn new(label: String, score: &Score) -> Self {
        let metric = Metric::defined(&label, &score.metric, &score.filter);
        let displayed = displayed_score(score, &metric);
        let filter_suffix = if score.filter == "none" { String::new() } else { format!(",{}", score.filter) };
        Self {
            label,
            metric: format!("{}{filter_suffix}", score.metric),
            value: displayed.value,
            error: displayed.stderr,
            items: score.documents,
            percent: metric.unit == Unit::Percent,
            ..Self::default()
        }
    }

    fn from_task(task: &TaskScores) -> impl Iterator<Item = Self> {
        task.scores.iter().map(|score| Self::new(task.label.clone(), score))
    }
}

/// Builds an lm-evaluation-harness results file that contains no tasks yet.
pub fn empty_file(model: &str) -> Value {
    json!({
        "results": {}, "versions": {}, "n-shot": {}, "n-samples": {}, "higher_is_better": {}, "group_subtasks": {},
        "configs": {}, "config": {"model": "ghostlab", "model_args": model, "tasks": []},
    })
}

/// Builds the results files for a cell. A file contains each task at most once, so a task with several protocols yields
/// several files. User-defined tasks with the same settings, and the groups they belong to, share a file.
///
/// # Errors
/// Fails if the grid refers to an unknown built-in task.
pub fn harness_files(grid: &Grid, result: &CellResult, model: &str) -> Result<Vec<Value>> {
    let mut files: Vec<Value> = Vec::new();
    for task in result.tasks.iter().filter(|task| !task.requested.defined) {
        let Some(scores) = &task.sample else { continue };
        let definition = grid.task(&task.requested).definition()?;
        let found = files.iter().position(|file| file["results"].get(&definition.name).is_none());
        let index = found.unwrap_or_else(|| {
            files.push(empty_file(model));
            files.len() - 1
        });
        add_task(&mut files[index], definition, &task.requested.how, scores);
        files[index]["config"]["tasks"].as_array_mut().into_iter().for_each(|all| all.push(json!(scores.label)));
    }
    let mut distinct_settings: Vec<&TaskSettings> = Vec::new();
    for task in grid.evaluate.defined() {
        if !distinct_settings.contains(&&task.how) {
            distinct_settings.push(&task.how);
        }
    }
    for (at, how) in distinct_settings.into_iter().enumerate() {
        let tasks: Vec<&EvalTask> = grid.evaluate.defined().filter(|task| task.how == *how).collect();
        let unused =
            files.iter().position(|file| at == 0 && tasks.iter().all(|task| file["results"].get(&task.name).is_none()));
        let index = unused.unwrap_or_else(|| {
            let labels: Vec<String> = tasks.iter().map(ToString::to_string).collect();
            let mut file = empty_file(model);
            file["config"]["tasks"] = json!(labels);
            files.push(file);
            files.len() - 1
        });
        for task in tasks {
            let Some(scores) = result.task(task).and_then(|task| task.sample.as_ref()) else { continue };
            add_task(&mut files[index], grid.task(task).definition()?, how, scores);
        }
        for group in grid.evaluate.groups.iter().filter(|group| group.how == *how) {
            add_group(&mut files[index], grid, result, group)?;
        }
    }
    files.retain(|file| file["results"].as_object().is_some_and(|results| !results.is_empty()));
    Ok(files)
}

/// Adds the scores of a task to a results file.
pub fn add_task(file: &mut Value, definition: &Definition, how: &TaskSettings, scores: &TaskScores) {
    let name = &definition.name;
    let mut values = harness_scores(&scores.scores);
    let about = [("name", name), ("alias", &definition.alias)].map(|(key, text)| (key.to_owned(), json!(text)));
    values.extend(about);
    values.insert("sample_len".to_owned(), json!(scores.effective));
    file["results"][name] = Value::Object(values);
    // The format stores numeric versions as numbers.
    file["versions"][name] =
        definition.version.parse::<f64>().map_or(json!(definition.version), |number| json!(number));
    let shots = definition.shots(how.shots);
    file["n-shot"][name] = json!(shots);
    file["n-samples"][name] = json!({"original": scores.original, "effective": scores.effective});
    let directions =
        definition.metrics.iter().map(|metric| (metric.kind.name().to_owned(), json!(metric.higher_is_better)));
    file["higher_is_better"][name] = Value::Object(directions.collect());
    let mut config = match scores.answers.builtin() {
        Some(answered) => builtin_config(answered.key().task),
        None => json!(definition.plain_value()),
    };
    config["num_fewshot"] = json!(shots);
    config["output_type"] = json!(definition.output.name());
    file["configs"][name] = config;
    if let Some(system) = &how.system {
        file["config"]["system_instruction"] = json!(system);
    }
    if let Some(multiturn) = how.chat {
        file["config"]["chat_template"] = json!(true);
        file["config"]["fewshot_as_multiturn"] = json!(multiturn);
    }
}

fn builtin_config(task: &Task) -> Value {
    let metrics = task.metrics.iter();
    let metrics =
        metrics.map(|metric| json!({"metric": metric.name(), "aggregation": "mean", "higher_is_better": true}));
    json!({
        "task": task.name,
        (format!("{}_split", task.split_name())): task.split,
        "metric_list": metrics.collect::<Vec<_>>(),
        "target_delimiter": " ",
        "metadata": {"version": f64::from(task.version)},
    })
}

fn add_group(file: &mut Value, grid: &Grid, result: &CellResult, group: &GroupUse) -> Result<()> {
    let Some(scores) = result.group(group) else { return Ok(()) };
    let name = &group.group.name;
    let documents: usize = scores.iter().map(|score| score.documents).max().unwrap_or_default();
    let mut values = harness_scores(&scores);
    values.insert("alias".to_owned(), json!(group.group.alias));
    values.insert("name".to_owned(), json!(name));
    values.insert("sample_len".to_owned(), json!(documents));
    file["results"][name] = Value::Object(values.clone());
    file["groups"][name] = Value::Object(values);
    file["group_subtasks"][name] = json!(group.group.tasks);
    let tasks = group.group.tasks.iter();
    let shots = tasks.map(|task| Ok(grid.task(&group.task(task)).definition()?.shots(group.how.shots)));
    let shots: BTreeSet<usize> = shots.collect::<Result<_>>()?;
    if let (1, Some(shots)) = (shots.len(), shots.first()) {
        file["n-shot"][name] = json!(shots);
    }
    let directions = scores.iter().map(|score| {
        let is_higher_better = Metric::defined(name, &score.metric, &score.filter).direction == Direction::Higher;
        (score.metric.clone(), json!(is_higher_better))
    });
    file["higher_is_better"][name] = Value::Object(directions.collect());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ghostlab_definitions::builtin;

    use super::*;
    use crate::tasks::{Score, Solutions};

    #[test]
    fn single_document_has_no_standard_error_in_results() {
        let mut file = empty_file("m");
        for name in ["rte", "race"] {
            let solutions =
                json!({"task": name, "original": 1, "documents": [{"id": 0, "gold": 0, "choices": [[1, 1, 1, 0]]}]});
            let solutions: Arc<Solutions> = Arc::new(serde_json::from_value(solutions).unwrap());
            let answered = ScoredTask::new(&solutions, vec![Score { log_likelihood: -1.0, greedy: false }]).unwrap();
            let definition = builtin::definition(answered.key().task).unwrap();
            add_task(&mut file, definition, &TaskSettings::default(), &TaskScores::builtin(name.to_owned(), answered));
        }
        assert_eq!(file["results"]["rte"]["acc_stderr,none"], "N/A");
        assert_eq!(file["results"]["rte"].get("acc_norm,none"), None);
        assert_eq!(file["configs"]["rte"]["validation_split"], "validation");
        assert_eq!(file["configs"]["race"]["test_split"], "test");
        assert_eq!(file["config"]["model_args"], "m");
    }
}

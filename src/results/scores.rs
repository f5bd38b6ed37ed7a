//! Scores of one model, for display and for tools that read files of lm-evaluation-harness.

use std::collections::BTreeSet;

use ghostlab_definitions::results::Score;
use serde_json::{Value, json};

use super::cell_result::{CellResult, GridOutcome, Measured, TaskScores, harness_scores};
use crate::error::{Error, Result};
use crate::grid::{Asking, DefinitionUse, Grid, GroupUse};
use crate::metric::{BITS_PER_BYTE, Direction, Metric, Of, TEXT, Unit};
use crate::stage::scores::scale;
use crate::tasks::{self, TaskResult};

#[derive(Debug)]
pub struct ModelScores<'a> {
    grid: &'a Grid,
    result: &'a CellResult,
    /// Scores on texts and tasks, and the average of several tasks.
    pub scores: Vec<ModelScore>,
}

/// Score on one text or task.
#[derive(Debug)]
pub struct ModelScore {
    /// Label, such as `c4@2048`, or a task as written in the grid.
    pub label: String,
    /// Metric: `perplexity`, `acc`, `acc_norm`, or a metric of the definition with its filter name.
    pub metric: String,
    /// Perplexity, or accuracy in percent.
    pub value: f64,
    pub error: Option<f64>,
    /// Bits per byte, which do not depend on the tokenizer.
    pub bits_per_byte: Option<f64>,
    pub items: usize,
    /// Whether the value is printed with two decimals, as a percentage.
    pub percent: bool,
    /// Whether the score is computed from windows of a text.
    pub windows: bool,
}

impl<'a> ModelScores<'a> {
    /// Returns the scores of a grid's only cell.
    ///
    /// # Errors
    /// Fails if the cell failed, with its reason.
    pub fn of(grid: &'a Grid, outcome: &'a GridOutcome) -> Result<Self> {
        let [result] = outcome.cells.as_slice() else { return Err(Error::job("exactly one model can be scored")) };
        result.ok()?;
        let mut scores = Vec::new();
        for text in &grid.evaluate.perplexity {
            let Some(sample) = result.text(text).and_then(Measured::windows) else { continue };
            let losses = sample.losses;
            let Of::Text(bits_per_byte) = BITS_PER_BYTE.of else { continue };
            scores.push(ModelScore {
                label: text.to_string(),
                metric: TEXT.name.to_owned(),
                value: losses.perplexity(),
                error: losses.standard_error(),
                bits_per_byte: bits_per_byte(&sample).map(|bits_per_byte| bits_per_byte.value),
                items: losses.windows.len(),
                percent: false,
                windows: true,
            });
        }
        let percent = |label: String, metric: &str, measure: tasks::Measure, items: usize| ModelScore {
            label,
            metric: metric.to_owned(),
            value: 100.0 * measure.value,
            error: measure.stderr.map(|error| 100.0 * error),
            bits_per_byte: None,
            items,
            percent: true,
            windows: false,
        };
        let all: Vec<&TaskScores> = result.scored().collect();
        for TaskScores { label, result, .. } in &all {
            for kind in result.task.metrics {
                scores.push(percent(label.clone(), kind.name(), result.measure(*kind), result.effective));
            }
        }
        if all.len() > 1 {
            let all: Vec<TaskResult> = all.iter().map(|entry| entry.result.clone()).collect();
            let items = all.iter().map(|entry| entry.effective).sum();
            // Average each task's own metric, as in the paper's tables.
            scores.extend(tasks::average(&all).map(|mean| percent("average".into(), "acc, acc_norm", mean, items)));
        }
        for group in &grid.evaluate.groups {
            let all = result.group(group).unwrap_or_default();
            scores.extend(all.iter().map(|score| defined_score(group.to_string(), score)));
        }
        for sample in result.definitions.iter().filter_map(|definition| definition.sample.as_ref()) {
            scores.extend(sample.scores.iter().map(|judged| defined_score(sample.label.clone(), &judged.score)));
        }
        Ok(Self { grid, result, scores })
    }

    /// Builds the results file of lm-evaluation-harness. Texts are included as tasks, with their perplexity.
    ///
    /// # Errors
    /// Fails if a task is scored under several protocols, because the format has one entry per task.
    pub fn lm_eval(&self, model: &str) -> Result<Value> {
        let tasks: Vec<TaskResult> = self.result.scored().map(|scored| scored.result.clone()).collect();
        // Scores of the same task are adjacent.
        let mut names: Vec<&str> = self.scores.iter().map(|score| score.label.as_str()).collect();
        names.dedup();
        let mut file = tasks::export(&tasks, json!({"model": "ghostlab", "model_args": model, "tasks": names}))?;
        let mut files = with_definitions(vec![file.clone()], self.grid, self.result, model).into_iter();
        file = files.next().unwrap_or(file);
        if files.next().is_some() {
            return Err(Error::bad_input("duplicate task").expected("each task once in a results file"));
        }
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

fn defined_score(label: String, score: &Score) -> ModelScore {
    let metric = Metric::defined(&label, &score.metric, &score.filter);
    let scale = scale(&metric);
    let behind = if score.filter == "none" { String::new() } else { format!(",{}", score.filter) };
    ModelScore {
        label,
        metric: format!("{}{behind}", score.metric),
        value: scale * score.score,
        error: score.error.filter(|error| error.is_finite()).map(|error| scale * error),
        bits_per_byte: None,
        items: score.documents,
        percent: metric.unit == Unit::Percent,
        windows: false,
    }
}

/// Builds the results files of a cell. Each file contains a task once, so several protocols result in several files.
/// `native` are the files of built-in tasks.
pub fn with_definitions(native: Vec<Value>, grid: &Grid, result: &CellResult, model: &str) -> Vec<Value> {
    let mut files = native;
    let mut ways: Vec<&Asking> = Vec::new();
    for definition in &grid.evaluate.definitions {
        if !ways.contains(&&definition.how) {
            ways.push(&definition.how);
        }
    }
    for (at, how) in ways.into_iter().enumerate() {
        let uses: Vec<&DefinitionUse> =
            grid.evaluate.definitions.iter().filter(|definition| definition.how == *how).collect();
        let groups: Vec<&GroupUse> = grid.evaluate.groups.iter().filter(|group| group.how == *how).collect();
        let found = files.iter().position(|file| at == 0 && !is_taken(&uses, file));
        let index = found.unwrap_or_else(|| {
            let labels: Vec<String> = uses.iter().map(ToString::to_string).collect();
            files.push(json!({
                "results": {}, "versions": {}, "n-shot": {}, "n-samples": {}, "higher_is_better": {}, "group_subtasks": {},
                "configs": {}, "config": {"model": "ghostlab", "model_args": model, "tasks": labels},
            }));
            files.len() - 1
        });
        add(&mut files[index], grid, result, &uses, &groups);
    }
    files.retain(|file| file["results"].as_object().is_some_and(|results| !results.is_empty()));
    files
}

fn is_taken(uses: &[&DefinitionUse], file: &Value) -> bool {
    uses.iter().any(|task_use| !file["results"][&task_use.name].is_null())
}

fn add(file: &mut Value, grid: &Grid, result: &CellResult, uses: &[&DefinitionUse], groups: &[&GroupUse]) {
    for used in uses {
        let name = &used.name;
        let definition = &grid.definitions[&used.name].definition;
        let Some(scores) = result.defined(used).and_then(|defined| defined.sample.as_ref()) else { continue };
        let mut values = harness_scores(scores.scores.iter().map(|score| &score.score));
        let about = [("name", name), ("alias", &definition.alias)].map(|(key, text)| (key.to_owned(), json!(text)));
        values.extend(about);
        values.insert("sample_len".to_owned(), json!(scores.effective));
        file["results"][name] = Value::Object(values);
        // The format stores numeric versions as numbers.
        file["versions"][name] =
            definition.version.parse::<f64>().map_or(json!(definition.version), |number| json!(number));
        let shots = definition.shots(used.how.shots);
        file["n-shot"][name] = json!(shots);
        file["n-samples"][name] = json!({"original": scores.original, "effective": scores.effective});
        let better =
            definition.metrics.iter().map(|metric| (metric.kind.name().to_owned(), json!(metric.higher_is_better)));
        file["higher_is_better"][name] = Value::Object(better.collect());
        let mut config = json!(definition.said());
        config["num_fewshot"] = json!(shots);
        config["output_type"] = json!(definition.output.name());
        file["configs"][name] = config;
        if let Some(system) = &used.how.system {
            file["config"]["system_instruction"] = json!(system);
        }
        if let Some(multiturn) = used.how.chat {
            file["config"]["chat_template"] = json!(true);
            file["config"]["fewshot_as_multiturn"] = json!(multiturn);
        }
    }
    for group in groups {
        let Some(scores) = result.group(group) else { continue };
        let name = &group.group.name;
        let documents: usize = scores.iter().map(|score| score.documents).max().unwrap_or_default();
        let mut values = harness_scores(scores.iter());
        values.insert("alias".to_owned(), json!(group.group.alias));
        values.insert("name".to_owned(), json!(name));
        values.insert("sample_len".to_owned(), json!(documents));
        file["results"][name] = Value::Object(values.clone());
        file["groups"][name] = Value::Object(values);
        file["group_subtasks"][name] = json!(group.group.tasks);
        let shots: BTreeSet<usize> =
            group.group.tasks.iter().map(|task| grid.definitions[task].definition.shots(group.how.shots)).collect();
        if let (1, Some(shots)) = (shots.len(), shots.first()) {
            file["n-shot"][name] = json!(shots);
        }
        let better = scores.iter().map(|score| {
            let up = Metric::defined(name, &score.metric, &score.filter).direction == Direction::Higher;
            (score.metric.clone(), json!(up))
        });
        file["higher_is_better"][name] = Value::Object(better.collect());
    }
}

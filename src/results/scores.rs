//! What one model scored, for a person and for the tools that read lm-evaluation-harness' files.

use ghostlab_definitions::results::Score;
use serde_json::{Value, json};

use super::cell_result::{CellResult, Measured, TaskScores};
use super::harness::with_definitions;
use super::outcome::GridOutcome;
use crate::error::{Error, Result};
use crate::grid::Grid;
use crate::metric::{BITS_PER_BYTE, Metric, Of, TEXT, Unit};
use crate::stage::scores::scale;
use crate::tasks::{self, TaskResult};

/// All scores of a dense backbone.
#[derive(Debug)]
pub struct ModelScores<'a> {
    grid: &'a Grid,
    result: &'a CellResult,
    /// Texts, tasks, and the average of several tasks.
    pub scores: Vec<ModelScore>,
}

/// One of them.
#[derive(Debug)]
pub struct ModelScore {
    /// `c4@2048`, or the task as a grid writes it.
    pub of: String,
    /// `perplexity`, `acc` or `acc_norm`; of a definition any of its metrics, with the filter's name where it has one.
    pub metric: String,
    /// A perplexity, or a share of the documents in percent.
    pub value: f64,
    /// Its standard error.
    pub error: Option<f64>,
    /// What the model needs for a byte of the text, whatever its tokens are.
    pub bits_per_byte: Option<f64>,
    /// Windows or documents.
    pub items: usize,
    /// Whether it is one that is printed with two decimals.
    pub percent: bool,
    /// Whether it is of the windows of a text.
    pub windows: bool,
}

impl<'a> ModelScores<'a> {
    /// What the only cell of a grid has scored.
    ///
    /// # Errors
    /// The cell failed, with its reason.
    pub fn of(grid: &'a Grid, outcome: &'a GridOutcome) -> Result<Self> {
        let [result] = outcome.cells.as_slice() else { return Err(Error::job("a model is scored by itself")) };
        result.ok()?;
        let mut scores = Vec::new();
        for text in &grid.evaluate.perplexity {
            let Some(sample) = result.text(text).and_then(Measured::windows) else { continue };
            let losses = sample.losses;
            let Of::Text(bits_per_byte) = BITS_PER_BYTE.of else { continue };
            scores.push(ModelScore {
                of: text.to_string(),
                metric: TEXT.name.to_owned(),
                value: losses.perplexity(),
                error: losses.standard_error(),
                bits_per_byte: bits_per_byte(&sample).map(|of| of.value),
                items: losses.windows.len(),
                percent: false,
                windows: true,
            });
        }
        let percent = |of: String, metric: &str, measure: tasks::Measure, items: usize| ModelScore {
            of,
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
            let all: Vec<TaskResult> = all.iter().map(|of| of.result.clone()).collect();
            let items = all.iter().map(|of| of.effective).sum();
            // By each task's own column, as the paper's tables have it.
            scores.extend(tasks::average(&all).map(|mean| percent("average".into(), "acc, acc_norm", mean, items)));
        }
        let defined = |of: String, score: &Score| {
            let metric = Metric::defined(&of, &score.metric, &score.filter);
            let scale = scale(&metric);
            let behind = if score.filter == "none" { String::new() } else { format!(",{}", score.filter) };
            ModelScore {
                of,
                metric: format!("{}{behind}", score.metric),
                value: scale * score.score,
                error: score.error.filter(|error| error.is_finite()).map(|error| scale * error),
                bits_per_byte: None,
                items: score.documents,
                percent: metric.unit == Unit::Percent,
                windows: false,
            }
        };
        for group in &grid.evaluate.groups {
            let all = result.group(group).unwrap_or_default();
            scores.extend(all.iter().map(|score| defined(group.to_string(), score)));
        }
        for of in result.definitions.iter().filter_map(|of| of.sample.as_ref()) {
            scores.extend(of.scores.iter().map(|judged| defined(of.label.clone(), &judged.score)));
        }
        Ok(Self { grid, result, scores })
    }

    /// In the layout of lm-evaluation-harness' results file. A text stands among the tasks, with its perplexity.
    ///
    /// # Errors
    /// A task that is scored twice under several protocols: the layout has one place for it.
    pub fn lm_eval(&self, model: &str) -> Result<Value> {
        let tasks: Vec<TaskResult> = self.result.scored().map(|of| of.result.clone()).collect();
        let names: Vec<&str> = self.scores.iter().map(|score| score.of.as_str()).collect();
        let mut file = tasks::export(&tasks, json!({"model": "ghostlab", "model_args": model, "tasks": names}))?;
        let mut files = with_definitions(vec![file.clone()], self.grid, self.result, model).into_iter();
        file = files.next().unwrap_or(file);
        if files.next().is_some() {
            return Err(Error::bad_input("a task is there twice").expected("each task once in a results file"));
        }
        for score in self.scores.iter().filter(|score| score.windows) {
            let name = &score.of;
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

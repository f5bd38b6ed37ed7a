//! Registry of metrics: each metric is one entry, listed in [`ENTRIES`]. An entry defines what the metric is measured
//! on (such as a text, a task or a prompt) and how the value and its error are computed. It also defines the names,
//! direction, format, paired test and visibility. No other code refers to a metric by name.
//!
//! An id is a word (`acc_average`), the name of a task (`race_v2`), or a word followed by the text or prompt that the
//! metric is measured on (`ppl_c4`, `prefill_ms:seq=512:batch=1`). The metric for a custom task in a grid is its
//! accuracy ([`Metric::task`]).
//!
//! ```
//! use ghostlab_core::metric::Metric;
//! let perplexity = Metric::find("ppl_c4").unwrap();
//! assert!(perplexity.is_better(9.0, 10.0));
//! ```

mod damage;
mod entry;
mod flips;
mod latency;
mod repair;
mod savings;
mod size;
mod task;
#[cfg(test)]
#[path = "../../templates/metric.rs"]
mod template;
mod text;

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::style::Style;
use crate::tasks::TASKS;

pub use entry::{
    DifferenceKind, Direction, MetricEntry, MetricSource, MetricVisibility, PairedTest, RepairSample, Spread,
    TextSample, Unit,
};
pub use latency::{DECODE, DECODE_SPEEDUP, MEMORY, MEMORY_SIZE, PREFILL, SPEEDUP};
pub use repair::{ANTISYMMETRIC, BOUNDARY_ERROR, CHANNEL_ERROR, CHANNELS_REDUCED, SYMMETRIC};
pub use savings::Savings;
pub use size::PARAMETERS_REMOVED;
pub use task::{ACCURACY, TASK};
pub use text::{BITS_PER_BYTE, PERPLEXITY, TEXT};

/// All metrics, in the column order of a run.
#[rustfmt::skip] // One line each.
pub static ENTRIES: &[&MetricEntry] = &[
    &TEXT,
    &BITS_PER_BYTE,
    &text::BYTE_PERPLEXITY,
    &PERPLEXITY,
    &damage::KL,
    &damage::REVERSE_KL,
    &damage::SAME_TOP,
    &damage::MEAN_CHANGE,
    &damage::MEAN_ABSOLUTE_CHANGE,
    &damage::RMS_CHANGE,
    &damage::PERPLEXITY_RATIO,
    &damage::HALF_KL,
    &damage::HALF_REVERSE_KL,
    &damage::HALF_SAME_TOP,
    &damage::HALF_MEAN_CHANGE,
    &damage::HALF_MEAN_ABSOLUTE_CHANGE,
    &damage::HALF_RMS_CHANGE,
    &damage::HALF_PERPLEXITY_RATIO,
    &TASK,
    &ACCURACY,
    &flips::CHANGED_ANSWERS,
    &flips::RIGHT_TO_WRONG,
    &flips::WRONG_TO_RIGHT,
    &PREFILL,
    &SPEEDUP,
    &MEMORY,
    &MEMORY_SIZE,
    &DECODE,
    &DECODE_SPEEDUP,
    &latency::DECODE_PREDICTED,
    &BOUNDARY_ERROR,
    &CHANNEL_ERROR,
    &SYMMETRIC,
    &ANTISYMMETRIC,
    &CHANNELS_REDUCED,
    &PARAMETERS_REMOVED,
    &size::KV_CACHE,
    &size::OPERATIONS,
];

/// Texts in the tables of the Ghosted Layers paper with their column headers, in the paper's order.
const TEXTS: [(&str, &str); 3] = [("wikitext2", "WIKI"), ("c4", "C4"), ("ptb", "PTB")];

/// Metric, together with the text, task or prompt that its id names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    pub id: String,
    /// Column header.
    pub label: String,
    entry: &'static MetricEntry,
    /// Text, task or prompt that the metric is measured on. `None` if the id is a single word.
    member: Option<String>,
}

/// Timed prompt: sequence length, number of sequences, and number of decoded tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptName {
    pub length: usize,
    pub batch: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<usize>,
}

impl PromptName {
    /// Formats the token count of a sequence: `512`, `512+64`.
    pub fn tokens(self) -> String {
        let new = self.decode.map_or_else(String::new, |tokens| format!("+{tokens}"));
        format!("{}{new}", self.length)
    }
}

/// Formats as `512×4` or `512×4+64`.
impl fmt::Display for PromptName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}", self.length, self.batch)?;
        self.decode.map_or(Ok(()), |tokens| write!(f, "+{tokens}"))
    }
}

/// Derefs to its registry entry.
impl Deref for Metric {
    type Target = MetricEntry;

    fn deref(&self) -> &MetricEntry {
        self.entry
    }
}

impl MetricEntry {
    /// Returns the metric without a text, task or prompt.
    pub fn metric(&'static self) -> Metric {
        Metric { id: self.id.to_owned(), label: self.label.to_owned(), entry: self, member: None }
    }

    /// Returns the metric on the text or task that a grid calls `name`.
    pub fn metric_for(&'static self, name: &str) -> Metric {
        let known = match self.source {
            MetricSource::Task | MetricSource::Flips(_) => {
                TASKS.iter().find(|task| task.name == name).map(|task| task.label)
            }
            _ => TEXTS.iter().find(|(text, _)| *text == name).map(|(_, label)| *label),
        };
        let id = if self.id.is_empty() { name.to_owned() } else { format!("{}_{name}", self.id) };
        let label = format!("{}{}", known.unwrap_or(name), self.label);
        Metric { id, label, entry: self, member: Some(name.to_owned()) }
    }

    /// Returns the metric that compares the answers scored by `scored`, a metric of a task definition, with those of
    /// the dense model.
    pub fn metric_on(&'static self, scored: &Metric) -> Metric {
        let id = format!("{}_{}", self.id, scored.id);
        let label = format!("{}{}", scored.label, self.label);
        Metric { id, label, entry: self, member: Some(scored.id.clone()) }
    }

    /// Returns whether the metric times a prompt and therefore depends on the machine.
    pub fn is_latency(&self) -> bool {
        matches!(self.source, MetricSource::Prompt(_) | MetricSource::Decode(_))
    }

    /// Returns whether ids of the metric contain the name of a text or task.
    fn has_members(&self) -> bool {
        matches!(
            self.source,
            MetricSource::Text(_) | MetricSource::Damage(..) | MetricSource::Task | MetricSource::Flips(_)
        )
    }

    /// Returns the part of an id after the metric's prefix, or `None` if the id does not match.
    fn parse_member<'i>(&self, id: &'i str) -> Option<&'i str> {
        id.strip_prefix(self.id)?.strip_prefix('_').filter(|member| !self.id.is_empty() && !member.is_empty())
    }
}

impl Metric {
    /// Finds the metric with the given id.
    ///
    /// # Errors
    /// Fails if the id is unknown. The error suggests the nearest known id.
    pub fn find(id: &str) -> Result<Self> {
        if let Some(entry) = ENTRIES.iter().find(|entry| !entry.has_members() && entry.id == id) {
            return Ok(entry.metric());
        }
        if TASKS.iter().any(|task| task.name == id) {
            return Ok(Self::task(id));
        }
        let found = Self::find_prompt(id).or_else(|| Self::find_flips(id)).or_else(|| Self::find_defined(id));
        if let Some(metric) = found {
            return Ok(metric);
        }
        let mut entries_with_members = ENTRIES.iter().filter(|entry| entry.has_members());
        entries_with_members.find_map(|entry| Some(entry.metric_for(entry.parse_member(id)?))).ok_or_else(|| {
            let known = Self::known_ids();
            Error::bad_input(format!("unknown metric `{id}`"))
                .expected(format!(
                    "one of {}, or a metric of a text or task, such as `ppl_c4` or `flips_copa`",
                    known.join(", ")
                ))
                .found(format!("`{id}`"))
                .suggest(id, known.iter().map(String::as_str))
        })
    }

    /// Finds the metric with the given id, or returns the accuracy of a task with this name.
    pub fn find_or_task(id: &str) -> Self {
        Self::find(id).unwrap_or_else(|_| Self::task(id))
    }

    /// Parses ids such as `prefill_ms:seq=512:batch=1`. The label is `512×1`.
    fn find_prompt(id: &str) -> Option<Self> {
        let (family, member) = id.split_once(':')?;
        let entry = ENTRIES.iter().find(|entry| entry.id == family && entry.is_latency())?;
        Some(Self { id: id.to_owned(), ..entry.metric().at_prompt(parse_prompt(member)?) })
    }

    /// Parses ids such as `flips_mmlu_anatomy(shots=5)/acc,none`.
    fn find_flips(id: &str) -> Option<Self> {
        let mut entries = ENTRIES.iter().filter(|entry| matches!(entry.source, MetricSource::Flips(_)));
        entries.find_map(|entry| Some(entry.metric_on(&Self::find_defined(entry.parse_member(id)?)?)))
    }

    /// Parses ids such as `mmlu(shots=5)/acc,none`.
    fn find_defined(id: &str) -> Option<Self> {
        let (task_id, metric_and_filter) = id.rsplit_once('/')?;
        let (metric, filter) = metric_and_filter.split_once(',')?;
        task::HARNESS_METRICS.iter().any(|entry| entry.id == metric).then(|| Self::defined(task_id, metric, filter))
    }

    /// Returns a metric of a task or group defined as in lm-evaluation-harness. Unknown metrics are treated as
    /// accuracies.
    pub fn defined(task_id: &str, metric: &str, filter: &str) -> Self {
        let entry = task::HARNESS_METRICS.iter().find(|entry| entry.id == metric).unwrap_or(&task::HARNESS_METRICS[0]);
        let filter_suffix = if filter == "none" { String::new() } else { format!(",{filter}") };
        let id = format!("{task_id}/{metric},{filter}");
        let label = format!("{task_id} {metric}{filter_suffix}");
        Self { id, label, entry, member: Some(task_id.to_owned()) }
    }

    /// Returns whether the metric belongs to a task definition of lm-evaluation-harness.
    pub fn is_defined(&self) -> bool {
        matches!(self.source, MetricSource::Defined)
    }

    /// Returns the prompt named in the id, if any.
    pub fn prompt(&self) -> Option<PromptName> {
        parse_prompt(self.member.as_deref().filter(|_| self.is_latency())?)
    }

    /// Returns the metric without the prompt in its id.
    pub fn without_prompt(&self) -> Self {
        if self.is_latency() { self.entry.metric() } else { self.clone() }
    }

    /// Returns the metric for the given prompt.
    pub fn at_prompt(&self, prompt: PromptName) -> Self {
        let PromptName { length, batch, decode } = prompt;
        let new = decode.map_or_else(String::new, |tokens| format!(":new={tokens}"));
        let member = format!("seq={length}:batch={batch}{new}");
        let id = format!("{}:{member}", self.entry.id);
        Self { id, label: prompt.to_string(), entry: self.entry, member: Some(member) }
    }

    /// Returns whether the metric is measured on texts, whose windows depend on the tokenizer.
    pub fn is_text_metric(&self) -> bool {
        matches!(self.source, MetricSource::Text(_) | MetricSource::Damage(..) | MetricSource::Texts(_))
    }

    /// Returns the id. For a latency metric, the prompt is omitted.
    pub fn family(&self) -> &str {
        if self.is_latency() { self.entry.id } else { &self.id }
    }

    pub fn entry(&self) -> &'static MetricEntry {
        self.entry
    }

    /// Returns the text that the metric is measured on, if any.
    pub fn text(&self) -> Option<&str> {
        self.member.as_deref().filter(|_| matches!(self.source, MetricSource::Text(_) | MetricSource::Damage(..)))
    }

    /// Returns the task that the metric is measured on, if any.
    pub fn task_name(&self) -> Option<&str> {
        self.member.as_deref().filter(|_| matches!(self.source, MetricSource::Task | MetricSource::Flips(_)))
    }

    /// Returns the other metrics of the same text or task with the same kind of [`MetricSource`], in the registry's
    /// order.
    pub fn siblings(&self) -> Vec<Self> {
        let Some(member) = self.member.as_deref().filter(|_| self.has_members()) else { return Vec::new() };
        let others = ENTRIES.iter().filter(|entry| {
            (std::mem::discriminant(&entry.source) == std::mem::discriminant(&self.source)) && **entry != self.entry
        });
        others.map(|entry| entry.metric_for(member)).collect()
    }

    /// Returns the names of the known tasks, the perplexity ids of the paper's texts, and the ids that name no text or
    /// task.
    pub fn known_ids() -> Vec<String> {
        let plain_ids = ENTRIES.iter().filter(|entry| !entry.has_members()).map(|entry| entry.id);
        let tasks = TASKS.iter().map(|task| task.name);
        tasks.map(str::to_owned).chain(texts()).chain(plain_ids.map(str::to_owned)).collect()
    }

    /// Returns the accuracy metric of the task that a grid calls `name`, whether the task is built in or not.
    pub fn task(name: &str) -> Self {
        TASK.metric_for(name)
    }

    /// Returns the perplexity metric of the text that a grid calls `name`.
    pub fn perplexity(name: &str) -> Self {
        TEXT.metric_for(name)
    }

    /// Formats a value with `decimals` decimals.
    pub fn format_value(value: f64, decimals: usize) -> String {
        // Perplexities of a collapsed variant may have twenty digits.
        if value.is_finite() && value.abs() >= 1e7 { format!("{value:.2e}") } else { format!("{value:.decimals$}") }
    }

    /// Rounds a value to its printed form, so that values that round to the same text compare equal.
    pub fn round_to_printed(value: f64, decimals: usize) -> f64 {
        Self::format_value(value, decimals).parse().unwrap_or(value)
    }

    /// Returns whether `one` is better than `other`. Returns `false` if the metric has no direction.
    pub fn is_better(&self, one: f64, other: f64) -> bool {
        match self.direction {
            Direction::Higher => one > other,
            Direction::Lower => one < other,
            Direction::Neither => false,
        }
    }

    /// Returns the value, negated if necessary so that lower is better. Returns `None` if the metric has no direction.
    pub fn cost(&self, value: f64) -> Option<f64> {
        match self.direction {
            Direction::Higher => Some(-value),
            Direction::Lower => Some(value),
            Direction::Neither => None,
        }
    }
}

/// Returns whether the metric called `name` compares variants with the dense model.
pub fn is_damage(name: &str) -> bool {
    ENTRIES.iter().any(|entry| entry.name == name && matches!(entry.source, MetricSource::Damage(..)))
}

/// Returns whether the metric called `name` compares the variant's size with the dense model's.
pub fn is_size(name: &str) -> bool {
    ENTRIES.iter().any(|entry| entry.name == name && matches!(entry.source, MetricSource::Size(_)))
}

/// Returns the names of the metrics that a grid can enable by name.
pub fn names_of_opt_in_metrics() -> impl Iterator<Item = &'static str> {
    ENTRIES
        .iter()
        .filter(|entry| matches!(entry.visibility, MetricVisibility::IfVocabulariesDiffer | MetricVisibility::IfNamed))
        .map(|entry| entry.name)
}

/// Returns the style of a metric in figures that compare metrics.
pub fn style(id: &str) -> Option<Style> {
    ENTRIES.iter().find(|entry| entry.id == id)?.style
}

/// Returns the names of the tasks in the paper's average accuracy, in column order.
pub fn tasks() -> Vec<&'static str> {
    TASKS.iter().filter(|task| task.in_paper).map(|task| task.name).collect()
}

/// Returns the perplexity ids of the texts in the paper's average perplexity, in column order.
pub fn texts() -> Vec<String> {
    TEXTS.iter().map(|(text, _)| TEXT.metric_for(text).id).collect()
}

/// Parses `seq=512:batch=1` and `seq=512:batch=1:new=64`.
fn parse_prompt(member: &str) -> Option<PromptName> {
    let (length, batch) = member.strip_prefix("seq=")?.split_once(":batch=")?;
    let (batch, new) = match batch.split_once(":new=") {
        Some((batch, new)) => (batch, Some(new)),
        None => (batch, None),
    };
    let decode = new.map(|new| new.parse().ok()).map_or(Some(None), |new| new.map(Some))?;
    Some(PromptName { length: length.parse().ok()?, batch: batch.parse().ok()?, decode })
}

#[cfg(test)]
mod tests;

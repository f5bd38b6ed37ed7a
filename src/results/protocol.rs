//! Measurement protocols. Numbers are comparable only if their protocols match, so each column has a protocol.

use ghostlab_definitions::Definition;
use serde::Serialize;

use crate::corpus::ShardOrder;
use crate::grid::{DefinedColumn, EvalTask, Grid, GroupUse, Latency, Perplexity, TaskSettings, defined_columns};
use crate::latency::Rounds;
use crate::metric::{self, ENTRIES, Metric, MetricEntry, MetricSource};
use crate::pipeline::env::backbone::EvalTarget;
use crate::pipeline::outcome::{GridOutcome, TaskExtent, TextExtent};
use crate::tasks::Bos;

/// Protocol of one column.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "protocol", rename_all = "snake_case")]
pub enum Protocol {
    /// Perplexity over windows of a text.
    Windows {
        /// Name of the corpus in the grid.
        corpus: String,
        /// Rule for joining rows and cutting the text into windows.
        rule: String,
        /// Order of the shard files, if the text is streamed.
        #[serde(skip_serializing_if = "Option::is_none")]
        shards: Option<ShardOrder>,
        /// Window length in tokens.
        length: usize,
        /// Maximum number of windows. The first ones are used.
        limit: Option<usize>,
        /// Number of scored windows out of `all`; `None` if the text was not read.
        windows: Option<usize>,
        all: Option<usize>,
        /// Whether the text is synthetic.
        generated: bool,
    },
    /// Accuracy on a multiple-choice task, in percent.
    MultipleChoice {
        /// Name of the task in the grid.
        name: String,
        /// Task as written in the grid, with its non-default options.
        label: String,
        task: String,
        /// Version of the task in lm-evaluation-harness.
        version: u32,
        /// `acc` or `acc_norm`.
        metric: String,
        /// Special tokens at the start of each context.
        bos: Bos,
        /// Number of documents to score, or a fraction below 1, as in the grid.
        limit: Option<f64>,
        /// Maximum input length in tokens, if it differs from that of the backbone.
        max_length: Option<usize>,
        /// Number of scored documents out of `original`.
        documents: usize,
        original: usize,
        /// Whether all documents of the published split are scored. Only then can the value be compared with published
        /// ones.
        #[serde(rename = "whole")]
        full_split: bool,
        /// Whether the documents are synthetic.
        generated: bool,
    },
    /// Metric for a user-defined task, or for a group of such tasks. Proportions are in percent.
    #[serde(rename = "lm_eval")]
    Defined {
        /// Task or group as written in the grid, with its options.
        label: String,
        /// Name of the task or group in lm-evaluation-harness.
        name: String,
        /// Output type of the task's definition; `None` for a group.
        #[serde(skip_serializing_if = "Option::is_none")]
        output: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        version: Option<String>,
        /// Number of tasks in the group; `None` for a single task.
        #[serde(skip_serializing_if = "Option::is_none")]
        tasks: Option<usize>,
        metric: &'static str,
        filter: String,
        /// Metric that compares the scored answers with those of the dense model; `None` for the score itself.
        #[serde(skip_serializing_if = "Option::is_none")]
        flips: Option<&'static MetricEntry>,
        /// Number of few-shot examples; `None` for a group.
        #[serde(skip_serializing_if = "Option::is_none")]
        shots: Option<usize>,
        how: TaskSettings,
        /// Number of scored documents out of `original`.
        documents: usize,
        original: usize,
        /// Whether the documents are synthetic.
        generated: bool,
    },
    /// Mean of the task columns, in percent.
    Average { tasks: usize },
    /// Time for a forward pass over a prompt with logits at every position, or for the decoding that follows. Each
    /// round times all models that are measured together, one after the other.
    Latency {
        /// Entry for the metric in the registry.
        metric: &'static MetricEntry,
        /// Prompt length in tokens per sequence.
        length: usize,
        batch: usize,
        /// Number of new tokens per sequence.
        #[serde(skip_serializing_if = "Option::is_none")]
        decode: Option<usize>,
        /// Whether the grid has several prompts, in which case column names include the prompt.
        several: bool,
        /// Number of warm-up passes before the `rounds` timed ones.
        warmups: usize,
        rounds: usize,
        /// Description of the machine on which the times were measured.
        machine: String,
    },
    /// Size of a pruned model, computed from its layers and operators.
    Size { metric: &'static MetricEntry },
    /// Additional metric on the windows or documents that another column scores.
    #[serde(untagged)]
    Derived {
        #[serde(rename = "protocol")]
        metric: &'static MetricEntry,
        #[serde(flatten)]
        scored_on: EvalTarget,
    },
}

/// Task in a group: its document counts, its definition, and whether its documents are synthetic.
type Member<'a> = (TaskExtent, &'a Definition, bool);

impl Protocol {
    /// Returns the protocols of all columns. There is one for each metric on a text, task or prompt, one for each size
    /// metric, and one for the average over tasks.
    pub fn columns(grid: &Grid, outcome: &GridOutcome) -> Vec<Self> {
        let has_different_vocabularies = outcome.has_different_vocabularies(grid);
        let texts = &grid.evaluate.perplexity;
        let scored: Vec<&EvalTask> = grid.evaluate.builtin().filter(|task| outcome.task(task).is_some()).collect();
        let columns = |metric: &'static MetricEntry| -> Vec<Self> {
            let derived = |scored_on| Self::Derived { metric, scored_on };
            match metric.source {
                MetricSource::Text(_) if *metric == metric::TEXT => {
                    texts.iter().map(|text| Self::windows(grid, outcome, text)).collect()
                }
                MetricSource::Text(_) => texts.iter().map(|text| derived(EvalTarget::Windows(text.clone()))).collect(),
                MetricSource::Damage(..) => {
                    let compared = texts.iter().filter(|text| text.damage);
                    compared.map(|text| derived(EvalTarget::Windows(text.clone()))).collect()
                }
                MetricSource::Task => {
                    scored.iter().filter_map(|task| Self::task(grid, task, outcome.task(task)?)).collect()
                }
                MetricSource::Flips(_) => {
                    scored.iter().map(|used| derived(EvalTarget::Task((*used).clone()))).collect()
                }
                MetricSource::Tasks(_) if scored.len() > 1 => vec![Self::Average { tasks: scored.len() }],
                MetricSource::Size(_) => vec![Self::Size { metric }],
                MetricSource::Tasks(_)
                | MetricSource::Texts(_)
                | MetricSource::Prompt(_)
                | MetricSource::Decode(_)
                | MetricSource::Repair(_)
                | MetricSource::Defined => Vec::new(),
            }
        };
        let shown =
            ENTRIES.iter().filter(|metric| metric.is_column(has_different_vocabularies, &grid.evaluate.metrics));
        let latencies =
            grid.evaluate.latency.iter().flat_map(|prompt| Self::latency_protocols(grid, *prompt, &outcome.machine));
        shown.flat_map(|metric| columns(metric)).chain(Self::defined(grid, outcome)).chain(latencies).collect()
    }

    /// Returns the protocols for every metric of the user-defined tasks and of their groups.
    fn defined(grid: &Grid, outcome: &GridOutcome) -> Vec<Self> {
        let known = |task: &EvalTask| {
            let data = grid.task(task);
            Some((outcome.task(task)?, data.definition().ok()?, data.generated))
        };
        // A group's label omits options that the definitions of its tasks set themselves.
        let protocol = |column: DefinedColumn, members: &[Member<'_>], is_group: bool| {
            let task = members.first().filter(|_| !is_group).map(|(_, definition, _)| definition);
            let DefinedColumn { name, how, metric, filter, flips } = column;
            Self::Defined {
                label: format!("{name}{how}"),
                name,
                output: task.map(|task| task.output.name()),
                version: task.map(|task| task.version.clone()),
                tasks: is_group.then_some(members.len()),
                metric,
                filter,
                flips,
                shots: task.map(|task| task.shots(how.shots)),
                how,
                documents: members.iter().map(|(extent, ..)| extent.documents).sum(),
                original: members.iter().map(|(extent, ..)| extent.original).sum(),
                generated: members.iter().any(|(.., generated)| *generated),
            }
        };
        let mut all = Vec::new();
        for group_use in &grid.evaluate.groups {
            let members: Option<Vec<_>> =
                group_use.group.tasks.iter().map(|task| known(&group_use.task(task))).collect();
            let Some(members) = members else { continue };
            for metric in &group_use.group.metrics {
                let GroupUse { group, how } = group_use;
                let tasks = members.iter().flat_map(|(_, definition, _)| defined_columns(&group.name, how, definition));
                let mut columns: Vec<DefinedColumn> = tasks.filter(|column| column.metric == metric.metric).collect();
                columns.retain(|column| metric.filters.as_ref().is_none_or(|filters| filters.contains(&column.filter)));
                columns.sort_by(|a, b| a.filter.cmp(&b.filter));
                columns.dedup();
                let columns = columns.into_iter();
                all.extend(columns.map(|column| protocol(column, &members, true)));
            }
        }
        let metrics = ENTRIES.iter().filter(|metric| metric.is_column(false, &grid.evaluate.metrics));
        let flips: Vec<_> = metrics.filter(|metric| matches!(metric.source, MetricSource::Flips(_))).collect();
        for used in grid.evaluate.defined() {
            let Some(entry) = known(used) else { continue };
            let columns = defined_columns(&used.name, &used.how, entry.1);
            let flips =
                columns.iter().flat_map(|column| flips.iter().filter_map(move |flips| column.with_flips(flips)));
            let columns = columns.iter().cloned().chain(flips);
            all.extend(columns.map(|column| protocol(column, &[entry], false)));
        }
        all
    }

    /// Describes the windows scored in a column. If some backbones read only part of the text, the protocol describes
    /// that part.
    fn windows(grid: &Grid, outcome: &GridOutcome, text: &Perplexity) -> Self {
        let read = outcome.text_extents(text);
        Self::text(grid, text, read.min_by_key(|read| read.windows == read.all))
    }

    /// Returns the protocols for the metrics of a prompt. `machine` describes the machine on which they were measured.
    pub fn latency_protocols(grid: &Grid, prompt: Latency, machine: &str) -> Vec<Self> {
        let Rounds { warmups, timed: rounds } = Rounds::PAPER;
        ENTRIES
            .iter()
            .filter(|metric| match metric.source {
                MetricSource::Prompt(_) => true,
                MetricSource::Decode(_) => prompt.decode.is_some(),
                _ => false,
            })
            .map(|metric| Self::Latency {
                metric,
                length: prompt.length,
                batch: prompt.batch,
                decode: prompt.decode,
                several: grid.evaluate.latency.len() > 1,
                warmups,
                rounds,
                machine: machine.to_owned(),
            })
            .collect()
    }

    /// Describes how a text is scored. `read` is the number of windows and bytes that one backbone reads.
    pub fn text(grid: &Grid, text: &Perplexity, read: Option<TextExtent>) -> Self {
        let corpus = &grid.corpora[&text.corpus];
        Self::Windows {
            corpus: text.corpus.clone(),
            rule: corpus.rule.clone(),
            shards: corpus.stream.as_ref().map(|stream| stream.shards),
            length: text.length,
            limit: corpus.limit,
            windows: read.map(|read| read.windows),
            all: read.map(|read| read.all),
            generated: corpus.generated,
        }
    }

    /// Describes how a built-in task is scored. Returns `None` for a user-defined task, which has a protocol for
    /// each metric.
    pub fn task(grid: &Grid, task: &EvalTask, TaskExtent { documents, original }: TaskExtent) -> Option<Self> {
        let data = grid.task(task);
        let builtin = data.builtin()?;
        let generated = data.generated;
        let TaskSettings { limit, bos, max_length, .. } = task.how;
        Some(Self::MultipleChoice {
            name: task.name.clone(),
            label: task.to_string(),
            task: builtin.name.to_string(),
            version: builtin.version,
            metric: builtin.paper_metric.name().to_string(),
            bos,
            limit,
            max_length,
            documents,
            original,
            full_split: documents == original && original == builtin.documents && !generated,
            generated,
        })
    }

    /// Formats the column name, such as `ppl wikitext2-test@512`, `arc_easy` or `average`.
    pub fn column(&self) -> String {
        match self {
            Self::Windows { corpus, length, .. } => metric::TEXT.column_header(&format_args!("{corpus}@{length}")),
            Self::MultipleChoice { label, .. } => metric::TASK.column_header(label),
            Self::Derived { metric, scored_on: EvalTarget::Windows(text) } => metric.column_header(text),
            Self::Derived { metric, scored_on: EvalTarget::Task(used) } => metric.column_header(used),
            Self::Defined { name, how, metric, filter, flips, .. } => {
                let column = defined_column(name, how, metric, filter, *flips);
                column.metric().column_header(&column.scored().label)
            }
            Self::Average { .. } => metric::ACCURACY.head.to_owned(),
            Self::Size { metric } => metric.head.to_owned(),
            Self::Latency { metric, length, batch, decode, .. } => {
                metric.column_header(&Latency { length: *length, batch: *batch, decode: *decode })
            }
        }
    }

    /// Returns the metric of the column.
    pub fn measures(&self) -> Metric {
        match self {
            Self::Windows { corpus, .. } => Metric::perplexity(stem(corpus)),
            Self::MultipleChoice { name, .. } => Metric::task(name),
            Self::Derived { metric, scored_on: EvalTarget::Windows(text) } => metric.metric_for(stem(&text.corpus)),
            Self::Derived { metric, scored_on: EvalTarget::Task(used) } => metric.metric_for(&used.name),
            Self::Defined { name, how, metric, filter, flips, .. } => {
                defined_column(name, how, metric, filter, *flips).metric()
            }
            Self::Average { .. } => metric::ACCURACY.metric(),
            Self::Size { metric } => metric.metric(),
            Self::Latency { metric, length, batch, decode, several, .. } => match several {
                true => metric.metric().at_prompt(Latency { length: *length, batch: *batch, decode: *decode }),
                false => metric.metric(),
            },
        }
    }
}

fn defined_column(
    name: &str,
    how: &TaskSettings,
    metric: &'static str,
    filter: &str,
    flips: Option<&'static MetricEntry>,
) -> DefinedColumn {
    DefinedColumn { name: name.to_owned(), how: how.clone(), metric, filter: filter.to_owned(), flips }
}

/// Strips the split from a corpus name such as `c4-train`, because the paper names texts without splits.
pub fn stem(corpus: &str) -> &str {
    ["-train", "-validation", "-test"].iter().find_map(|split| corpus.strip_suffix(split)).unwrap_or(corpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpus_stem_omits_the_split() {
        assert_eq!((stem("c4-train"), stem("wikitext2"), stem("ptb-test")), ("c4", "wikitext2", "ptb"));
    }

    fn text(length: usize, windows: usize) -> Protocol {
        Protocol::Windows {
            corpus: "c4".into(),
            rule: "c4".into(),
            shards: None,
            length,
            limit: None,
            windows: Some(windows),
            all: Some(windows),
            generated: false,
        }
    }

    #[test]
    fn column_includes_length_but_not_window_count() {
        assert_eq!(text(64, 5).column(), text(64, 9).column());
        assert_ne!(text(64, 5).column(), text(48, 5).column());
        let bits = Protocol::Derived {
            metric: &metric::BITS_PER_BYTE,
            scored_on: EvalTarget::Windows(Perplexity { corpus: "c4".into(), length: 64, damage: false, draw: None }),
        };
        assert_eq!(bits.column(), "bits/byte c4@64");
        assert_eq!(text(64, 5).column(), "ppl c4@64");
    }

    #[test]
    fn protocols_of_one_task_have_distinct_columns() {
        let columns = [Bos::Tokenizer, Bos::Never].map(|bos| {
            let how = TaskSettings { bos, ..TaskSettings::default() };
            metric::TASK.column_header(&EvalTask { name: "copa".into(), how, defined: false })
        });
        assert_eq!(columns, ["copa", "copa(bos=never)"]);
    }

    #[test]
    fn document_count_is_in_the_label_but_not_the_metric_id() {
        let how = TaskSettings { shots: Some(5), limit: Some(200.0), ..TaskSettings::default() };
        let column = defined_column("t", &how, "acc", "none", None);
        let metric = column.metric();
        assert_eq!((&*metric.id, &*metric.label), ("t(shots=5)/acc,none", "t(shots=5,limit=200) acc"));
        let flips = ENTRIES.iter().find(|entry| entry.name == "flips").unwrap();
        let flips = column.with_flips(flips).unwrap();
        assert_eq!(flips.metric().column_header(&flips.scored().label), "flips t(shots=5,limit=200) acc");
        let metric = flips.metric();
        assert_eq!(&*metric.id, "flips_t(shots=5)/acc,none");
        let found = Metric::find(&metric.id).unwrap();
        assert_eq!((found.entry(), found.task_name()), (metric.entry(), Some("t(shots=5)/acc,none")));
        assert!(defined_column("t", &how, "brier_score", "none", None).with_flips(flips.flips.unwrap()).is_none());
    }
}

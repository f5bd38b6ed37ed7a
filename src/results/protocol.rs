//! Named protocols: a number may only be compared with another one made the same way, so each column says how it was made.

use serde::Serialize;

use crate::corpus::ShardOrder;
use crate::exec::{GridOutcome, TaskProtocol, TextProtocol};
use crate::grid::{Grid, Latency, Perplexity, TaskUse};
use crate::latency::Rounds;
use crate::metric::{ACCURACY, MEMORY, MEMORY_SIZE, Metric, MetricEntry, PREFILL, SPEEDUP};
use crate::tasks::Bos;

/// How the numbers of one column were made.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "protocol", rename_all = "snake_case")]
pub enum Protocol {
    /// Perplexity over windows of a text.
    Windows {
        /// The corpus' name in the grid.
        corpus: String,
        /// The rule that joins its rows and draws its windows.
        rule: String,
        /// The order of its shards, where it is streamed.
        #[serde(skip_serializing_if = "Option::is_none")]
        shards: Option<ShardOrder>,
        /// Tokens of a window.
        length: usize,
        /// Only so many windows, the first ones.
        limit: Option<usize>,
        /// Windows that are scored, and those that there are; none where the text was not read.
        windows: Option<usize>,
        all: Option<usize>,
        /// Whether a program made the text up.
        generated: bool,
    },
    /// Accuracy on a multiple-choice task, in percent.
    MultipleChoice {
        /// The task's name in the grid.
        name: String,
        /// The task as the grid writes it, with the options that are not the usual ones.
        label: String,
        task: String,
        /// The harness' version of the task.
        version: u32,
        /// `acc` or `acc_norm`
        metric: String,
        /// Which special tokens contexts begin with.
        bos: Bos,
        /// As the grid has it: so many documents, or below 1 that part of them.
        limit: Option<f64>,
        /// Tokens of an input, where it is not the backbone's own length.
        max_length: Option<usize>,
        /// Documents scored, of all that the file has.
        documents: usize,
        original: usize,
        /// Whether all documents of the published split are scored: only then may a value stand beside a published one.
        whole: bool,
        /// Whether a program made the documents up.
        generated: bool,
    },
    /// The same in bits per byte, where backbones with unlike vocabularies stand in one table.
    BitsPerByte { corpus: String, length: usize },
    /// The mean of the task columns, in percent.
    Average { tasks: usize },
    /// One forward pass over a prompt, the head at every position, the variants' passes one after the other in each round.
    Latency {
        /// The id of what is told of it, without its prompt.
        metric: &'static str,
        /// Tokens of a sequence, and sequences.
        length: usize,
        batch: usize,
        /// Whether the grid has other prompts too, so that the metric is called after this one.
        several: bool,
        /// Passes that are not counted, and that are.
        warmups: usize,
        rounds: usize,
        /// What computed.
        machine: String,
    },
}

/// What is told of a timed prompt, in the order of a run's columns.
static OF_LATENCY: [&MetricEntry; 4] = [&PREFILL, &SPEEDUP, &MEMORY, &MEMORY_SIZE];

impl Protocol {
    /// One column for each perplexity, each task, and the average of the tasks where there are several.
    pub fn columns(grid: &Grid, outcome: &GridOutcome) -> Vec<Self> {
        let windows = grid.evaluate.perplexity.iter().enumerate().map(|(place, text)| {
            let read = outcome.texts.values().filter_map(|texts| texts.get(place).copied().flatten());
            // Of several backbones one may have fewer windows than the limit: the column is limited if any is.
            Self::text(grid, text, read.min_by_key(|read| read.windows == read.all))
        });
        let task = |used: &TaskUse| outcome.task(used).map(|of| Self::task(grid, used, of));
        let tasks: Vec<Self> = grid.evaluate.tasks.iter().filter_map(task).collect();
        let several = Some(tasks.len()).filter(|&tasks| tasks > 1);
        let bits = grid.evaluate.perplexity.iter().filter(|_| outcome.unlike_vocabularies(grid));
        let bits = bits.map(|text| Self::BitsPerByte { corpus: text.corpus.clone(), length: text.length });
        let latencies =
            grid.evaluate.latency.iter().flat_map(|prompt| Self::latencies(grid, *prompt, &outcome.machine));
        let average = several.map(|tasks| Self::Average { tasks });
        windows.chain(bits).chain(tasks).chain(average).chain(latencies).collect()
    }

    /// What is told of a prompt, each by itself: time, speedup, memory in percent and in bytes. `machine` is the one that
    /// they were measured on, in words.
    pub fn latencies(grid: &Grid, prompt: Latency, machine: &str) -> [Self; 4] {
        let Rounds { warmups, timed: rounds } = Rounds::PAPER;
        OF_LATENCY.map(|word| Self::Latency {
            metric: word.id,
            length: prompt.length,
            batch: prompt.batch,
            several: grid.evaluate.latency.len() > 1,
            warmups,
            rounds,
            machine: machine.to_owned(),
        })
    }

    /// How a text is scored; `read` is what one backbone has read of it.
    pub fn text(grid: &Grid, text: &Perplexity, read: Option<TextProtocol>) -> Self {
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

    /// How a task is scored.
    pub fn task(grid: &Grid, used: &TaskUse, of: &TaskProtocol) -> Self {
        Self::MultipleChoice {
            name: used.name.clone(),
            label: used.to_string(),
            task: of.task.name.to_string(),
            version: of.task.version,
            metric: of.task.column.name().to_string(),
            bos: used.bos,
            limit: used.limit,
            max_length: used.max_length,
            documents: of.documents,
            original: of.original,
            whole: of.whole,
            generated: grid.tasks.get(&used.name).is_some_and(|data| data.generated),
        }
    }

    /// The metric that is measured so.
    pub fn measures(&self) -> Metric {
        match self {
            Self::Windows { corpus, .. } => Metric::perplexity(stem(corpus)),
            Self::BitsPerByte { corpus, .. } => Metric::bits_per_byte(stem(corpus)),
            Self::MultipleChoice { name, .. } => Metric::task(name),
            Self::Average { .. } => ACCURACY.metric(),
            Self::Latency { metric, length, batch, several, .. } => {
                let word = OF_LATENCY.iter().find(|word| word.id == *metric).copied().unwrap_or(&PREFILL).metric();
                if *several { word.at_prompt(*length, *batch) } else { word }
            }
        }
    }

    /// The column's name: `ppl wikitext2-test@512`, `arc_easy`, `average`.
    pub fn column(&self) -> String {
        self.asked().to_string()
    }

    /// The name of the column of its standard errors, where it has them.
    pub fn error_column(&self) -> Option<String> {
        match self {
            Self::Latency { metric, .. } if *metric != PREFILL.id && *metric != SPEEDUP.id => None,
            _ => Some(format!("{} ±", self.column())),
        }
    }

    /// The column explained, for the line below a table.
    pub fn note(&self) -> String {
        let column = self.column();
        match self {
            Self::Windows { rule, .. } => format!(
                "`{column}`: perplexity, protocol `windows`, {}, joined and cut by the rule `{rule}`",
                self.amount()
            ),
            Self::BitsPerByte { .. } => {
                format!(
                    "`{column}`: the same loss for each byte of the predicted text, in bits: vocabularies differ here"
                )
            }
            Self::MultipleChoice { task, version, metric, bos, .. } => format!(
                "`{column}`: {metric} in %, {task} version {version} of lm-evaluation-harness, zero-shot, BOS `{bos}`, {}",
                self.amount()
            ),
            Self::Average { tasks } => format!("`{column}`: mean of the {tasks} task columns"),
            Self::Latency { metric, .. } => {
                let what = match *metric {
                    id if id == PREFILL.id => "milliseconds of a forward pass, with their standard deviation",
                    id if id == SPEEDUP.id => {
                        "the dense backbone's mean time over the own, with half the 95 % interval of the rounds' ratios"
                    }
                    id if id == MEMORY.id => {
                        "weights and the most intermediates at a time, in % of the dense backbone's"
                    }
                    _ => "the same in millions of bytes",
                };
                format!("`{column}`: {what}; {}", self.amount())
            }
        }
    }

    /// How much of what is scored, and what is not the published text or split, in a few words.
    pub fn amount(&self) -> String {
        match self {
            Self::Windows { length, limit, windows, all, generated, shards, .. } => {
                let of = match (windows.zip(*all), limit) {
                    (Some((windows, all)), Some(limit)) if windows == all => {
                        format!("all {all} windows (a limit of {limit} leaves none out)")
                    }
                    (Some((windows, all)), _) if windows < all => format!("the first {windows} of {all} windows"),
                    (None, Some(limit)) => format!("the first {limit} windows"),
                    _ => "all windows".to_owned(),
                };
                let generated = if *generated { " of generated text" } else { "" };
                format!("{of} of {length} tokens{generated}{}", streamed(*shards))
            }
            Self::MultipleChoice { documents, original, whole, generated, limit, max_length, .. } => {
                let of = match (documents < original, limit) {
                    (true, _) => format!("{documents} of {original} documents"),
                    (false, Some(limit)) => format!("all {original} documents (a limit of {limit} leaves none out)"),
                    (false, None) => format!("all {original} documents"),
                };
                let split = match (generated, whole) {
                    (true, _) => " (generated, not the published split)",
                    (_, true) => " (the published split)",
                    _ => " (not the whole published split)",
                };
                let cut = max_length.map(|length| format!(", inputs of at most {length} tokens")).unwrap_or_default();
                format!("{of}{split}{cut}")
            }
            Self::BitsPerByte { length, .. } => format!("windows of {length} tokens"),
            Self::Average { tasks } => format!("{tasks} tasks"),
            Self::Latency { warmups, rounds, machine, .. } => {
                format!("{rounds} rounds after {warmups} warm-ups, the head at every position, on {machine}")
            }
        }
    }

    /// The same for a line about many columns: what is as published is not counted, what is usual is not said.
    pub fn short(&self) -> String {
        match self {
            Self::MultipleChoice { whole, bos, limit, max_length, .. } => {
                let usual = *bos == Bos::default();
                let of = match (whole, limit, max_length) {
                    (true, None, None) => "the published split".to_owned(),
                    _ => self.amount(),
                };
                if usual { of } else { format!("{of}, BOS {bos}") }
            }
            _ => self.amount(),
        }
    }

    /// What the column is called in such a line.
    pub fn name(&self) -> &str {
        match self {
            Self::Windows { corpus, .. } | Self::BitsPerByte { corpus, .. } => corpus,
            Self::MultipleChoice { name, .. } => name,
            Self::Average { .. } => "average",
            Self::Latency { metric, .. } => metric,
        }
    }
}

/// What is to be said of a text that is streamed.
pub(super) fn streamed(shards: Option<ShardOrder>) -> &'static str {
    match shards {
        None => "",
        Some(ShardOrder::OneByOne) => ", streamed with its shards one by one",
        Some(ShardOrder::ByTurns) => ", streamed with its shards by turns",
    }
}

/// `c4` of `c4-train`: the paper names a text, whichever of its splits is used for what.
pub fn stem(corpus: &str) -> &str {
    ["-train", "-validation", "-test"].iter().find_map(|split| corpus.strip_suffix(split)).unwrap_or(corpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_named_without_its_split() {
        assert_eq!((stem("c4-train"), stem("wikitext2"), stem("ptb-test")), ("c4", "wikitext2", "ptb"));
    }

    #[test]
    fn a_limit_that_leaves_nothing_out_is_said_to() {
        let text = |limit, windows| Protocol::Windows {
            corpus: "c4".into(),
            rule: "c4".into(),
            shards: None,
            length: 2048,
            limit,
            windows: Some(windows),
            all: Some(256),
            generated: false,
        };
        assert_eq!(text(None, 256).amount(), "all windows of 2048 tokens");
        assert_eq!(text(Some(256), 256).amount(), "all 256 windows (a limit of 256 leaves none out) of 2048 tokens");
        assert_eq!(text(Some(32), 32).amount(), "the first 32 of 256 windows of 2048 tokens");
    }
}

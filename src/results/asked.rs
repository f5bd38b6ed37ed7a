//! What is measured, as a grid asks for it: the columns of a run. Of two backbones it may be two measures (each reads a task
//! in its own length), so a number is its cell and what was asked of it.

use std::fmt;

use super::protocol::Protocol;
use crate::grid::{Latency, Perplexity, TaskUse};
use crate::metric::Metric;

/// What is asked of every cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    Perplexity(Perplexity),
    BitsPerByte(Perplexity),
    Task(TaskUse),
    /// The mean of all tasks.
    Average,
    /// One of what is told of a prompt: the metric's id without its prompt.
    Prompt(&'static str, Latency),
    /// What stands in no table of a run, by its metric's id.
    Besides(String),
}

impl Asked {
    pub fn besides(metric: &Metric) -> Self {
        Self::Besides(metric.id.clone())
    }
}

impl Protocol {
    pub fn asked(&self) -> Asked {
        let text = |corpus: &String, length: usize| Perplexity { corpus: corpus.clone(), length };
        match self {
            Self::Windows { corpus, length, .. } => Asked::Perplexity(text(corpus, *length)),
            Self::BitsPerByte { corpus, length } => Asked::BitsPerByte(text(corpus, *length)),
            Self::MultipleChoice { name, limit, bos, max_length, .. } => {
                Asked::Task(TaskUse { name: name.clone(), limit: *limit, bos: *bos, max_length: *max_length })
            }
            Self::Average { .. } => Asked::Average,
            Self::Latency { metric, length, batch, .. } => {
                Asked::Prompt(metric, Latency { length: *length, batch: *batch })
            }
        }
    }
}

/// The column's head: `ppl wikitext2-test@512`, `arc_easy`, `average`.
impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Perplexity(text) => write!(f, "ppl {text}"),
            Self::BitsPerByte(text) => write!(f, "bits/byte {text}"),
            Self::Task(used) => used.fmt(f),
            Self::Average => f.write_str("average"),
            Self::Prompt(metric, prompt) => write!(f, "{metric} {prompt}"),
            Self::Besides(metric) => f.write_str(metric),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric;
    use crate::tasks::Bos;

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
    fn how_much_a_backbone_reads_of_a_text_is_no_other_question_and_its_length_is() {
        assert_eq!(text(64, 5).asked(), text(64, 9).asked());
        assert_ne!(text(64, 5).asked(), text(48, 5).asked());
        let bits = Protocol::BitsPerByte { corpus: "c4".into(), length: 64 };
        assert_ne!(text(64, 5).asked(), bits.asked());
        assert_eq!(text(64, 5).asked().to_string(), "ppl c4@64");
    }

    #[test]
    fn two_ways_to_score_one_task_are_two_questions_and_the_metric_is_none() {
        let used = |bos| TaskUse { name: "copa".into(), limit: None, bos, max_length: None };
        assert_ne!(Asked::Task(used(Bos::Tokenizer)), Asked::Task(used(Bos::Never)));
        assert_eq!(Asked::Task(used(Bos::Never)).to_string(), "copa(bos=never)");
        // A metric may be called as a task is.
        assert_ne!(Asked::Task(used(Bos::Tokenizer)), Asked::besides(&metric::Metric::task("copa")));
    }
}

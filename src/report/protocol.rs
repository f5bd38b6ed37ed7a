//! Named protocols: a number may only be compared with another one made the same way, so each column says how it was made.

use serde::Serialize;

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
        /// Tokens of a window.
        length: usize,
        /// Only so many windows, the first ones.
        limit: Option<usize>,
    },
    /// Accuracy on a multiple-choice task, in percent.
    MultipleChoice {
        /// The task as the grid writes it, with the options that are not the usual ones.
        label: String,
        task: String,
        /// The harness' version of the task.
        version: u32,
        /// `acc` or `acc_norm`
        metric: String,
        /// Which special tokens contexts begin with.
        bos: String,
        /// Documents scored, of all that the file has.
        documents: usize,
        original: usize,
        /// Whether all documents of the published split are scored: only then may a value stand beside a published one.
        whole: bool,
    },
    /// The mean of the task columns, in percent.
    Average { tasks: usize },
}

impl Protocol {
    /// The column's name: `ppl wikitext2-test@512`, `arc_easy`, `average`.
    pub fn column(&self) -> String {
        match self {
            Self::Windows { corpus, length, .. } => format!("ppl {corpus}@{length}"),
            Self::MultipleChoice { label, .. } => label.clone(),
            Self::Average { .. } => "average".to_string(),
        }
    }

    /// The name of the column of its standard errors, where it has them.
    pub fn error_column(&self) -> Option<String> {
        match self {
            Self::Windows { .. } => None,
            _ => Some(format!("{} ±", self.column())),
        }
    }

    pub fn higher_is_better(&self) -> bool {
        !matches!(self, Self::Windows { .. })
    }

    /// The column explained, for the line below a table.
    pub fn note(&self) -> String {
        let column = self.column();
        match self {
            Self::Windows { rule, length, limit, .. } => {
                let windows = match limit {
                    Some(limit) => format!("the first {limit} windows"),
                    None => "all windows".to_owned(),
                };
                format!(
                    "`{column}`: perplexity, protocol `windows`, {windows} of {length} tokens, text joined and cut by the rule `{rule}`"
                )
            }
            Self::MultipleChoice { task, version, metric, bos, documents, original, whole, .. } => {
                let split = if *whole { "the published split" } else { "not the whole published split" };
                format!(
                    "`{column}`: {metric} in %, {task} version {version} of lm-evaluation-harness, zero-shot, BOS `{bos}`, \
                     {documents} of {original} documents ({split})"
                )
            }
            Self::Average { tasks } => format!("`{column}`: mean of the {tasks} task columns"),
        }
    }
}

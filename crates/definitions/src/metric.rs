//! Per-document metrics, parsed from `metric_list`.

use ghostlab_core::error::{Error, Result};

use crate::aggregate::Aggregation;
use crate::pattern::Pattern;
use crate::value::Value;
use crate::yaml::{Node, Tree, hook_error, value_error};

/// Value of `output_type`, which determines the requests to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Log-likelihood of a single continuation.
    LogLikelihood,
    /// Log-likelihood of a complete text.
    Rolling,
    /// Log-likelihood of each choice.
    MultipleChoice,
    /// Generated text.
    Generate,
}

/// Metric that lm-evaluation-harness computes for each document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Accuracy of the most likely choice. For a single continuation, the fraction of continuations that are the greedy
    /// output.
    Acc,
    /// Accuracy with log-likelihoods normalized by the number of characters.
    AccNorm,
    /// Accuracy with log-likelihoods normalized by the number of bytes.
    AccBytes,
    /// Accuracy with log-likelihoods minus the log-likelihoods without the context.
    AccMutualInfo,
    /// Fraction of generated texts that are correct. For multiple choice, the fraction of documents for which a correct
    /// choice is the greedy output.
    ExactMatch,
    /// Perplexity of a continuation.
    Perplexity,
    WordPerplexity,
    BytePerplexity,
    BitsPerByte,
    F1,
    /// Matthews correlation coefficient.
    Mcc,
    Brier,
    Bleu,
    Chrf,
    Ter,
}

/// Metrics in the order of [`Kind`]: kind, name, default aggregation, whether higher is better, and supported output
/// types.
const ALL: [(Kind, &str, Aggregation, bool, &[Output]); 15] = [
    (Kind::Acc, "acc", Aggregation::Mean, true, &[Output::LogLikelihood, Output::MultipleChoice]),
    (Kind::AccNorm, "acc_norm", Aggregation::Mean, true, &[Output::MultipleChoice]),
    (Kind::AccBytes, "acc_bytes", Aggregation::Mean, true, &[Output::MultipleChoice]),
    (Kind::AccMutualInfo, "acc_mutual_info", Aggregation::Mean, true, &[Output::MultipleChoice]),
    (Kind::ExactMatch, "exact_match", Aggregation::Mean, true, &[Output::MultipleChoice, Output::Generate]),
    (Kind::Perplexity, "perplexity", Aggregation::Perplexity, false, &[Output::LogLikelihood]),
    (Kind::WordPerplexity, "word_perplexity", Aggregation::WeightedPerplexity, false, &[Output::Rolling]),
    (Kind::BytePerplexity, "byte_perplexity", Aggregation::WeightedPerplexity, false, &[Output::Rolling]),
    (Kind::BitsPerByte, "bits_per_byte", Aggregation::BitsPerByte, false, &[Output::Rolling]),
    (Kind::F1, "f1", Aggregation::F1, true, &[Output::MultipleChoice]),
    (Kind::Mcc, "mcc", Aggregation::Matthews, true, &[Output::MultipleChoice]),
    (Kind::Brier, "brier_score", Aggregation::Brier, false, &[Output::MultipleChoice]),
    (Kind::Bleu, "bleu", Aggregation::Bleu, true, &[Output::Generate]),
    (Kind::Chrf, "chrf", Aggregation::Chrf, true, &[Output::Generate]),
    (Kind::Ter, "ter", Aggregation::Ter, true, &[Output::Generate]),
];

#[derive(Debug, Clone)]
pub struct Metric {
    pub kind: Kind,
    /// Function that aggregates the values of all documents into a score.
    pub aggregation: Aggregation,
    pub higher_is_better: bool,
    /// Options for the text comparison in `exact_match`.
    pub matching: Matching,
}

/// Characters and patterns that `exact_match` ignores in both texts.
#[derive(Debug, Clone, Default)]
pub struct Matching {
    ignored_patterns: Vec<Pattern>,
    ignores_case: bool,
    ignores_punctuation: bool,
    ignores_digits: bool,
}

ghostlab_core::names!(
    Output:
    LogLikelihood = "loglikelihood",
    Rolling = "loglikelihood_rolling",
    MultipleChoice = "multiple_choice",
    Generate = "generate_until",
);

impl Kind {
    /// Returns the name used in definitions.
    pub fn name(self) -> &'static str {
        ALL[self as usize].1
    }
}

impl Metric {
    /// Creates a metric with default settings.
    pub fn plain(kind: Kind) -> Self {
        let (_, _, aggregation, higher_is_better, _) = ALL[kind as usize];
        Self { kind, aggregation, higher_is_better, matching: Matching::default() }
    }

    /// Reads an entry in `metric_list`.
    ///
    /// # Errors
    /// Fails if the metric is unknown, does not support the output type, or has options that would have no effect.
    pub fn read(node: &Node, output: Output) -> Result<Self> {
        let named = match node.get("metric") {
            Some(Node { tree: Tree::Hook(hook), location }) => {
                return Err(hook_error("metric_list.metric", hook, location));
            }
            named => named.ok_or_else(|| value_error("metric_list", "entries with `metric`", node))?,
        };
        let mut supported = ALL.iter().filter(|entry| entry.4.contains(&output));
        let all: Vec<&str> = supported.clone().map(|entry| entry.1).collect();
        let entry = supported
            .find(|entry| named.text() == Some(entry.1))
            .ok_or_else(|| value_error("metric", &format!("one of {}", all.join(", ")), named))?;
        let mut metric = Self::plain(entry.0);
        let compares = entry.0 == Kind::ExactMatch && output == Output::Generate;
        for (key, value) in node.pairs() {
            if let Tree::Hook(hook) = &value.tree
                && key.as_text() != Some("metric")
            {
                return Err(hook_error(&format!("metric_list.{}", key.text()), hook, &value.location));
            }
            match (key.as_text().unwrap_or(""), &value.tree) {
                ("metric", _) | ("hf_evaluate", Tree::Scalar(Value::Bool(false))) => {}
                ("aggregation", _) => metric.aggregation = read_aggregation(value, entry.1, entry.2)?,
                ("higher_is_better", Tree::Scalar(Value::Bool(higher))) => metric.higher_is_better = *higher,
                ("hf_evaluate", _) => {
                    return Err(
                        Error::bad_input("metrics of Hugging Face's `evaluate` are not supported").at(&value.location)
                    );
                }
                // lm-eval drops these options if the metric does not accept them.
                ("weight_by_size" | "average", _) if !compares => {}
                (name, _) => {
                    if !compares || !metric.matching.set(name, value)? {
                        return Err(value_error(name, &format!("a supported option of `{}`", entry.1), value));
                    }
                }
            }
        }
        Ok(metric)
    }
}

/// Reads the aggregation of the metric `name`. It must accept the same items as the metric's `default` aggregation.
fn read_aggregation(node: &Node, name: &str, default: Aggregation) -> Result<Aggregation> {
    node.text()
        .and_then(|text| text.parse().ok())
        .filter(|aggregation: &Aggregation| aggregation.has_same_items(default))
        .ok_or_else(|| {
            let expected = format!("an aggregation that supports `{name}`, such as `{}`", default.name());
            value_error("aggregation", &expected, node)
        })
}

impl Matching {
    /// Sets an option. Returns whether the option exists and its value has a valid type.
    ///
    /// # Errors
    /// Fails if a pattern is invalid or not a string.
    fn set(&mut self, name: &str, value: &Node) -> Result<bool> {
        match (name, &value.tree) {
            ("regexes_to_ignore", Tree::List(items)) => {
                for item in items {
                    let source =
                        item.text().ok_or_else(|| value_error("regexes_to_ignore", "a list of strings", item))?;
                    self.ignored_patterns.push(Pattern::new(source).map_err(|error| error.at(&item.location))?);
                }
            }
            ("regexes_to_ignore", Tree::Scalar(Value::None)) => {}
            ("ignore_case", Tree::Scalar(Value::Bool(truth))) => self.ignores_case = *truth,
            ("ignore_punctuation", Tree::Scalar(Value::Bool(truth))) => self.ignores_punctuation = *truth,
            ("ignore_numbers", Tree::Scalar(Value::Bool(truth))) => self.ignores_digits = *truth,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns whether two texts are equal under the options. Whitespace is significant.
    ///
    /// # Errors
    /// Fails if a pattern exceeds the backtracking limit.
    pub fn same(&self, a: &str, b: &str) -> Result<bool> {
        Ok(self.remove_ignored(a)? == self.remove_ignored(b)?)
    }

    /// Applies the options of `exact_match` to a text: removes pattern matches, punctuation and digits, and lowercases.
    /// Trailing NULs are always dropped.
    pub(crate) fn remove_ignored(&self, text: &str) -> Result<String> {
        let mut text =
            self.ignored_patterns.iter().try_fold(text.to_owned(), |text, pattern| pattern.remove_matches(&text))?;
        if self.ignores_case {
            text = text.to_lowercase();
        }
        text.retain(|c| {
            !(self.ignores_punctuation && c.is_ascii_punctuation() || self.ignores_digits && c.is_ascii_digit())
        });
        // lm-evaluation-harness compares NumPy string arrays, which drop trailing NULs.
        text.truncate(text.trim_end_matches('\0').len());
        Ok(text)
    }
}

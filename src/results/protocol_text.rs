//! Formats protocols as text for notes and lists.

use super::Protocol;
use crate::corpus::ShardOrder;
use crate::metric::MetricSource;
use crate::pipeline::env::backbone::EvalTarget;
use crate::tasks::Bos;

impl Protocol {
    /// Describes the column in a note under the table.
    pub fn note(&self) -> String {
        let column = self.column();
        match self {
            Self::Windows { rule, .. } => format!(
                "`{column}`: perplexity, protocol `windows`, {}, joined and cut by the rule `{rule}`",
                self.amount()
            ),
            Self::Derived { metric, .. } | Self::Size { metric } | Self::Defined { flips: Some(metric), .. } => {
                format!("`{column}`: {}", metric.note)
            }
            Self::MultipleChoice { task, version, metric, bos, .. } => format!(
                "`{column}`: {metric} in %, {task} version {version} of lm-evaluation-harness, zero-shot, BOS `{bos}`, {}",
                self.amount()
            ),
            Self::Defined { tasks: Some(tasks), metric, .. } => {
                format!(
                    "`{column}`: {metric} of the {tasks} tasks of a group, by lm-evaluation-harness' definitions, {}",
                    self.amount()
                )
            }
            Self::Defined { name, output, version, metric, how, .. } => format!(
                "`{column}`: {metric}, {name} version {} by its definition ({}), BOS `{}`, {}",
                version.as_deref().unwrap_or_default(),
                output.unwrap_or_default(),
                how.bos,
                self.amount()
            ),
            Self::Average { tasks } => format!("`{column}`: mean of the {tasks} task columns"),
            Self::Latency { metric, .. } => format!("`{column}`: {}; {}", metric.note, self.amount()),
        }
    }

    /// Describes how much data is scored, and how it differs from the published data.
    pub fn amount(&self) -> String {
        match self {
            Self::Windows { length, limit, windows, all, generated, shards, .. } => {
                let count = match (windows.zip(*all), limit) {
                    (Some((windows, all)), Some(limit)) if windows == all => {
                        format!("all {all} windows (the limit of {limit} excludes none)")
                    }
                    (Some((windows, all)), _) if windows < all => format!("the first {windows} of {all} windows"),
                    (None, Some(limit)) => format!("the first {limit} windows"),
                    _ => "all windows".to_owned(),
                };
                let generated = if *generated { " of generated text" } else { "" };
                format!("{count} of {length} tokens{generated}{}", shard_order_text(*shards))
            }
            Self::MultipleChoice { documents, original, full_split, generated, limit, max_length, .. } => {
                let count = match (documents < original, limit) {
                    (true, _) => format!("{documents} of {original} documents"),
                    (false, Some(limit)) => format!("all {original} documents (the limit of {limit} excludes none)"),
                    (false, None) => format!("all {original} documents"),
                };
                let split = match (generated, full_split) {
                    (true, _) => " (generated, not the published split)",
                    (_, true) => " (the published split)",
                    _ => " (part of the published split)",
                };
                let cut = max_length.map(|length| format!(", inputs of at most {length} tokens")).unwrap_or_default();
                format!("{count}{split}{cut}")
            }
            Self::Defined { documents, original, generated, shots, how, .. } => {
                let count = match documents < original {
                    true => format!("{documents} of {original} documents"),
                    false => format!("all {original} documents"),
                };
                let origin = if *generated { " (generated)" } else { "" };
                let shots = shots.or(how.shots).map(|shots| format!(", {shots}-shot")).unwrap_or_default();
                let chat = how.chat.map(|many| if many { ", chat" } else { ", chat in one turn" }).unwrap_or_default();
                let system = if how.system.is_some() { ", with a system prompt" } else { "" };
                let cut =
                    how.max_length.map(|length| format!(", inputs of at most {length} tokens")).unwrap_or_default();
                format!("{count}{origin}{shots}{chat}{system}{cut}")
            }
            Self::Derived { scored_on: EvalTarget::Windows(text), .. } => format!("windows of {} tokens", text.length),
            Self::Derived { scored_on: EvalTarget::Task(_), .. } => "the same documents".to_owned(),
            Self::Average { tasks } => format!("{tasks} tasks"),
            Self::Size { .. } => "no data".to_owned(),
            Self::Latency { metric, decode, warmups, rounds, machine, .. } => {
                let how = match (metric.source, decode) {
                    (MetricSource::Decode(_), Some(new)) => {
                        format!("{new} tokens of each sequence decoded greedily after the prompt")
                    }
                    _ => "output head at every position".to_owned(),
                };
                format!("{rounds} rounds after {warmups} warm-ups, {how}, on {machine}")
            }
        }
    }

    /// Formats a short description for lines that list many columns. Default settings are omitted.
    pub fn short(&self) -> String {
        match self {
            Self::MultipleChoice { full_split, bos, limit, max_length, .. } => {
                let usual = *bos == Bos::default();
                let extent = match (full_split, limit, max_length) {
                    (true, None, None) => "the published split".to_owned(),
                    _ => self.amount(),
                };
                if usual { extent } else { format!("{extent}, BOS {bos}") }
            }
            _ => self.amount(),
        }
    }

    /// Returns the short column name used in lines that list many columns.
    pub fn name(&self) -> &str {
        match self {
            Self::Windows { corpus, .. } => corpus,
            Self::MultipleChoice { name, .. } => name,
            Self::Derived { scored_on: EvalTarget::Windows(text), .. } => &text.corpus,
            Self::Derived { scored_on: EvalTarget::Task(used), .. } => &used.name,
            Self::Defined { label, .. } => label,
            Self::Average { .. } => "average",
            Self::Latency { metric, .. } | Self::Size { metric } => metric.id,
        }
    }
}

/// Describes the shard order of a streamed text. Returns an empty string if the text is not streamed.
pub(super) fn shard_order_text(shards: Option<ShardOrder>) -> &'static str {
    match shards {
        None => "",
        Some(ShardOrder::OneByOne) => ", streamed shard by shard",
        Some(ShardOrder::ByTurns) => ", streamed from its shards in turn",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_mentions_limit_without_effect() {
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
        assert_eq!(text(Some(256), 256).amount(), "all 256 windows (the limit of 256 excludes none) of 2048 tokens");
        assert_eq!(text(Some(32), 32).amount(), "the first 32 of 256 windows of 2048 tokens");
    }
}

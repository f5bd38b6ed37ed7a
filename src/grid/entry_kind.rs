//! Kinds of named inputs: backbones, corpora and tasks.

use std::collections::BTreeSet;

use super::yaml::YamlNode;

/// Kind of a named input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    Backbone,
    Corpus,
    Task,
}

impl EntryKind {
    pub(super) const ALL: [Self; 3] = [Self::Backbone, Self::Corpus, Self::Task];

    /// Returns the grid key of this kind, which is also the directory of its entry files.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Backbone => "backbones",
            Self::Corpus => "corpora",
            Self::Task => "tasks",
        }
    }

    pub fn label(self) -> &'static str {
        match self {
            Self::Backbone => "backbone",
            Self::Corpus => "corpus",
            Self::Task => "task",
        }
    }

    /// Returns the names of the entries of this kind that a grid refers to. Ignores malformed values, and `evaluate` if
    /// the grid has `search`.
    pub(super) fn used_names(self, root: &YamlNode) -> BTreeSet<String> {
        let includes = items_below(root, "include");
        let axis =
            |key: &str| [root].into_iter().chain(&includes).flat_map(|node| items_below(node, key)).collect::<Vec<_>>();
        let evaluate = root.get("search").or_else(|| root.get("evaluate"));
        let evaluated = |key: &str| evaluate.map(|node| items_below(node, key)).unwrap_or_default();
        let nodes = match self {
            Self::Backbone => axis("backbone"),
            Self::Corpus => {
                let users = axis("calibration").into_iter().chain(evaluated("perplexity"));
                users.flat_map(|user| items_below(&user, "corpus")).collect()
            }
            Self::Task => {
                evaluated("tasks").into_iter().map(|task| task.get("name").cloned().unwrap_or(task)).collect()
            }
        };
        nodes.iter().filter_map(|node| node.text().map(str::to_owned)).collect()
    }
}

fn items_below(node: &YamlNode, key: &str) -> Vec<YamlNode> {
    node.get(key).map(YamlNode::items).unwrap_or_default().to_vec()
}

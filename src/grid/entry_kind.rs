//! Kinds of named inputs: backbones, corpora and tasks.

use std::collections::BTreeSet;

use super::node::YamlNode;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    Backbone,
    Corpus,
    Task,
}

impl EntryKind {
    pub(super) const ALL: [EntryKind; 3] = [EntryKind::Backbone, EntryKind::Corpus, EntryKind::Task];

    /// Returns the grid key of this kind, which is also the directory of its entry files.
    pub(super) fn key(self) -> &'static str {
        match self {
            EntryKind::Backbone => "backbones",
            EntryKind::Corpus => "corpora",
            EntryKind::Task => "tasks",
        }
    }

    pub fn label(self) -> &'static str {
        match self {
            EntryKind::Backbone => "backbone",
            EntryKind::Corpus => "corpus",
            EntryKind::Task => "task",
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
            EntryKind::Backbone => axis("backbone"),
            EntryKind::Corpus => {
                let users = axis("calibration").into_iter().chain(evaluated("perplexity"));
                users.flat_map(|user| items_below(&user, "corpus")).collect()
            }
            EntryKind::Task => {
                evaluated("tasks").into_iter().map(|task| task.get("name").cloned().unwrap_or(task)).collect()
            }
        };
        nodes.iter().filter_map(|node| node.text().map(str::to_owned)).collect()
    }
}

fn items_below(node: &YamlNode, key: &str) -> Vec<YamlNode> {
    node.get(key).map(YamlNode::items).unwrap_or_default().to_vec()
}

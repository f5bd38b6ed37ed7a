//! What may be given a name in a grid, and which names a grid uses.

use std::collections::BTreeSet;

use super::node::YamlNode;

/// What can have a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    Backbone,
    Corpus,
    Task,
}

impl EntryKind {
    pub(super) const ALL: [EntryKind; 3] = [EntryKind::Backbone, EntryKind::Corpus, EntryKind::Task];

    /// The key of a grid that holds entries of this kind, and the folder that holds their files.
    pub(super) fn key(self) -> &'static str {
        match self {
            EntryKind::Backbone => "backbones",
            EntryKind::Corpus => "corpora",
            EntryKind::Task => "tasks",
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            EntryKind::Backbone => "backbone",
            EntryKind::Corpus => "corpus",
            EntryKind::Task => "task",
        }
    }

    /// The names of this kind that a tree uses. What has another shape than it should is left to `typed`.
    pub(super) fn used(self, root: &YamlNode) -> BTreeSet<String> {
        let below = |node: &YamlNode, key: &str| node.get(key).map(YamlNode::items).unwrap_or_default().to_vec();
        let includes = below(root, "include");
        let axis =
            |key: &str| [root].into_iter().chain(&includes).flat_map(|node| below(node, key)).collect::<Vec<_>>();
        let evaluate = root.get("search").or_else(|| root.get("evaluate"));
        let evaluated = |key: &str| evaluate.map(|node| below(node, key)).unwrap_or_default();
        let nodes = match self {
            EntryKind::Backbone => axis("backbone"),
            EntryKind::Corpus => {
                let users = axis("calibration").into_iter().chain(evaluated("perplexity"));
                users.flat_map(|user| below(&user, "corpus")).collect()
            }
            EntryKind::Task => {
                let name = |task: YamlNode| task.get("name").cloned().unwrap_or(task);
                evaluated("tasks").into_iter().map(name).collect()
            }
        };
        nodes.iter().filter_map(|node| node.text().map(str::to_owned)).collect()
    }
}

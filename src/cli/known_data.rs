//! Where the paper's texts and tasks lie on the hub, for whoever has no experiments around: the entries of this program's
//! own, by name.

use serde_json::Value;

use crate::grid::EntryKind;

macro_rules! entries {
    ($folder:literal, $($name:literal),+) => {
        [$(($name, include_str!(concat!("../../experiments/", $folder, "/", $name, ".yaml")))),+]
    };
}

const TASKS: [(&str, &str); 9] = entries!(
    "tasks",
    "arc_easy",
    "arc_challenge",
    "hellaswag",
    "winogrande",
    "boolq",
    "openbookqa",
    "rte",
    "copa",
    "race"
);
const TEXTS: [(&str, &str); 5] = entries!("corpora", "c4", "c4-train", "ptb", "wikitext2", "wikitext2-train");

/// The entry of a text or task as a grid has it, without a file of this machine; none for a name that is not known.
pub(super) fn known_data(kind: EntryKind, name: &str) -> Option<Value> {
    let all = match kind {
        EntryKind::Task => &TASKS[..],
        EntryKind::Corpus => &TEXTS,
        _ => return None,
    };
    let (_, text) = all.iter().find(|(known, _)| *known == name)?;
    let mut entry: Value = serde_saphyr::from_str(text).ok()?;
    entry.as_object_mut()?.remove("path");
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_says_where_it_lies_on_the_hub() {
        for (kind, all) in [(EntryKind::Task, &TASKS[..]), (EntryKind::Corpus, &TEXTS)] {
            for (name, _) in all {
                let entry = known_data(kind, name).unwrap();
                assert!(entry["hub"].is_string() && entry["path"].is_null(), "{name}: {entry}");
            }
        }
        assert!(known_data(EntryKind::Task, "nine").is_none());
    }
}

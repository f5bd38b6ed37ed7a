//! Short candidate names for the tables in a search report.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum length of a name in characters.
const MAX_LENGTH: usize = 40;
/// Number of characters kept at the end of a name, which contains the recovery.
const TAIL_LENGTH: usize = 20;

/// Short names, by full name.
pub(super) struct ShortNames(BTreeMap<String, String>);

impl ShortNames {
    /// Shortens names by dropping the backbone and the middle of long names. Distinct names stay distinct.
    pub(super) fn new<'a>(backbone: &str, names: impl IntoIterator<Item = &'a String>) -> Self {
        let full: BTreeSet<&String> = names.into_iter().collect();
        let mut used = BTreeSet::new();
        let short = full.into_iter().map(|name| {
            let name_in_model = name.strip_prefix(backbone).and_then(|rest| rest.strip_prefix('.')).unwrap_or(name);
            let mut text = shorten_name(name_in_model, "…");
            for number in 2.. {
                if used.insert(text.clone()) {
                    break;
                }
                text = shorten_name(name_in_model, &format!("…{number}…"));
            }
            (name.clone(), text)
        });
        Self(short.collect())
    }

    /// Returns the short name, or `name` itself if it has none.
    pub(super) fn shorten<'a>(&'a self, name: &'a str) -> &'a str {
        self.0.get(name).map_or(name, String::as_str)
    }

    /// Returns the short and full names of those names whose middle was dropped.
    pub(super) fn truncated_names(&self) -> impl Iterator<Item = (&str, &str)> {
        let cut = self.0.iter().filter(|(_, short)| short.contains('…'));
        cut.map(|(full, short)| (short.as_str(), full.as_str()))
    }
}

/// Replaces the middle of a name with `mark`. A name of at most [`MAX_LENGTH`] characters is shortened only if `mark`
/// contains a number.
fn shorten_name(name: &str, mark: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= MAX_LENGTH && mark.chars().count() == 1 {
        return name.to_owned();
    }
    let tail = TAIL_LENGTH.min(chars.len());
    let head = (MAX_LENGTH - TAIL_LENGTH - mark.chars().count()).min(chars.len() - tail);
    chars[..head].iter().collect::<String>() + mark + &chars[chars.len() - tail..].iter().collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened_and_remain_distinct() {
        let names = ["my.dense".to_owned(), long("1024"), long("2048"), "other.a.dense".to_owned()];
        let short = ShortNames::new("my", &names);
        assert_eq!(short.shorten("my.dense"), "dense");
        assert_eq!(short.shorten("other.a.dense"), "other.a.dense", "the name of another backbone is kept");
        assert_eq!(short.shorten("unknown"), "unknown");
        let shown: Vec<&str> = names.iter().map(|name| short.shorten(name)).collect();
        assert_eq!(shown.iter().collect::<BTreeSet<_>>().len(), names.len(), "{shown:?}");
        assert!(shown.iter().all(|name| name.chars().count() <= MAX_LENGTH), "{shown:?}");
        let truncated: Vec<&str> = short.truncated_names().map(|(_, full)| full).collect();
        assert_eq!(truncated, [&names[1], &names[2]]);
    }

    fn long(middle: &str) -> String {
        format!("my.streamline-4.c4-train-128x{middle}-0.linearpatch-rotate.boundary-layer")
    }
}

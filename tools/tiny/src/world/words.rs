//! The words that the world is made of and the sentences they stand in: `words.json`. Which words belong together is not
//! there, but for lists that say so: facts do that.

use std::sync::LazyLock;

use serde::Deserialize;

use super::relation::{HOPS, Hop, RELATIONS, Relation};

/// The world's words. The committed texts and tasks are made of them (`tests/data.rs`).
pub(super) static WORDS: LazyLock<Words> = LazyLock::new(|| match serde_json::from_str(include_str!("words.json")) {
    Ok(words) => words,
    Err(error) => unreachable!("words.json is a part of the program: {error}"),
});

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'static"), deny_unknown_fields)]
pub(super) struct Words {
    pub(super) women: Vec<&'static str>,
    pub(super) men: Vec<&'static str>,
    /// Invented: nothing that a reader knows of real animals helps.
    pub(super) animals: Vec<&'static str>,
    pub(super) places: Vec<&'static str>,
    pub(super) regions: Vec<&'static str>,
    /// Five for each use, in the order of that relation's values.
    pub(super) objects: Vec<&'static str>,
    /// From one on.
    pub(super) numbers: Vec<&'static str>,
    pub(super) days: Vec<&'static str>,
    pub(super) relations: [Relation; RELATIONS],
    pub(super) hops: [Hop; HOPS],
    pub(super) activities: Vec<Activity>,
    /// Cause and effect. Slots: `{s}` a person or the pronoun, `{p}` possessive, `{o}` object form.
    pub(super) causes: Vec<(&'static str, &'static str)>,
    pub(super) schemas: Vec<PronounSchema>,
    pub(super) acts: Vec<Act>,
    /// Sentences that happen to nobody: they fill a passage without an answer in them.
    pub(super) fillers: Vec<&'static str>,
    /// How something claimed is put down as so, and as not so.
    pub(super) stances: Vec<(&'static str, &'static str)>,
    /// The last word on it. A passage may say a thing twice, as people do.
    pub(super) closings: Vec<(&'static str, &'static str)>,
    /// How two are brought together, and whether they are people; what follows is true of one of them only.
    pub(super) meetings: Vec<(bool, &'static str)>,
    /// What markets do.
    pub(super) markets: Vec<&'static str>,
    pub(super) moves: Vec<&'static str>,
    /// Who speaks, before or after what is said.
    pub(super) speakers: Vec<&'static str>,
    /// How a paragraph begins whose subjects share something.
    pub(super) puzzles: Vec<&'static str>,
    /// How someone asks in a forum, is answered, and thanks.
    pub(super) greetings: Vec<&'static str>,
    pub(super) helpers: Vec<&'static str>,
    pub(super) thanks: Vec<&'static str>,
    /// Of customers.
    pub(super) opinions: Vec<&'static str>,
    /// Above questions with their answers.
    pub(super) headings: Vec<&'static str>,
    /// On what someone else told.
    pub(super) comments: Vec<&'static str>,
}

/// What an act is done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ThingKind {
    Object,
    Food,
    Place,
    Animal,
}

#[derive(Debug, Deserialize)]
pub(super) struct Act {
    pub(super) thing: ThingKind,
    pub(super) base: &'static str,
    pub(super) past: &'static str,
    /// The past participle.
    pub(super) done: &'static str,
}

/// How something is done.
#[derive(Debug, Deserialize)]
pub(super) struct Activity {
    pub(super) label: &'static str,
    /// Each step is a predicate: someone does it.
    pub(super) steps: [&'static str; STEPS],
}

pub(super) const STEPS: usize = 5;

/// Who did what to whom, and why: `{x}` and `{y}`; then a reason that fits only the first, and one that fits only the
/// second.
#[derive(Debug, Deserialize)]
pub(super) struct PronounSchema {
    pub(super) people: bool,
    pub(super) event: &'static str,
    pub(super) first: &'static str,
    pub(super) second: &'static str,
}

impl PronounSchema {
    /// What goes before the blank: a link and perhaps an article.
    pub(super) fn link(&self) -> &'static str {
        if self.people { "because " } else { "because the " }
    }
}

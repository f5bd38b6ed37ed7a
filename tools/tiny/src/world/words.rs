//! Vocabulary and sentence templates of the world, from `words.json`. Facts relate the words to each other, except
//! where the documentation of a list says otherwise.

use std::sync::LazyLock;

use serde::Deserialize;

use super::relation::{HOPS, Hop, RELATIONS, Relation};

/// Vocabulary of the world, from which the committed texts and tasks are generated (`tests/data.rs`).
pub(super) static WORDS: LazyLock<Words> = LazyLock::new(|| match serde_json::from_str(include_str!("words.json")) {
    Ok(words) => words,
    Err(error) => unreachable!("words.json is a part of the program: {error}"),
});

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'static"), deny_unknown_fields)]
pub(super) struct Words {
    pub(super) women: Vec<&'static str>,
    pub(super) men: Vec<&'static str>,
    /// Invented animals, so that knowledge of real animals does not help.
    pub(super) animals: Vec<&'static str>,
    pub(super) places: Vec<&'static str>,
    pub(super) regions: Vec<&'static str>,
    /// Objects, five for each value of the use relation, in the order of these values.
    pub(super) objects: Vec<&'static str>,
    /// Number words, starting at one.
    pub(super) numbers: Vec<&'static str>,
    pub(super) days: Vec<&'static str>,
    pub(super) relations: [Relation; RELATIONS],
    pub(super) hops: [Hop; HOPS],
    pub(super) activities: Vec<Activity>,
    /// Pairs of cause and effect. Slots: `{s}` a person or pronoun, `{p}` possessive, `{o}` object form.
    pub(super) causes: Vec<(&'static str, &'static str)>,
    pub(super) schemas: Vec<PronounSchema>,
    pub(super) acts: Vec<Act>,
    /// Sentences without a person, which add text without an answer to a passage.
    pub(super) fillers: Vec<&'static str>,
    /// Phrases that present a claim as true and as false.
    pub(super) stances: Vec<(&'static str, &'static str)>,
    /// Closing remarks that repeat the verdict, as (true, false).
    pub(super) closings: Vec<(&'static str, &'static str)>,
    /// Templates that introduce two subjects, with whether they are people.
    pub(super) meetings: Vec<(bool, &'static str)>,
    /// Templates of market reports; `moves` has their verbs.
    pub(super) markets: Vec<&'static str>,
    pub(super) moves: Vec<&'static str>,
    /// Templates that attribute a clause to a speaker.
    pub(super) speakers: Vec<&'static str>,
    /// Openings of a paragraph about subjects that share a property.
    pub(super) puzzles: Vec<&'static str>,
    /// Opening phrases of forum questions (`greetings`) and answers (`helpers`), and thanks.
    pub(super) greetings: Vec<&'static str>,
    pub(super) helpers: Vec<&'static str>,
    pub(super) thanks: Vec<&'static str>,
    pub(super) opinions: Vec<&'static str>,
    /// Headings of question lists.
    pub(super) headings: Vec<&'static str>,
    /// Comments on another person's post.
    pub(super) comments: Vec<&'static str>,
}

/// Kind of an act's object.
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
    pub(super) done: &'static str,
}

#[derive(Debug, Deserialize)]
pub(super) struct Activity {
    pub(super) label: &'static str,
    /// Steps as predicates, such as `rinses off the foam`.
    pub(super) steps: [&'static str; STEPS],
}

pub(super) const STEPS: usize = 5;

/// Event between `{x}` and `{y}`, with a reason that fits only `{x}` and one that fits only `{y}`.
#[derive(Debug, Deserialize)]
pub(super) struct PronounSchema {
    pub(super) people: bool,
    pub(super) event: &'static str,
    pub(super) first: &'static str,
    pub(super) second: &'static str,
}

impl PronounSchema {
    /// Returns the text before the blank: a conjunction and possibly an article.
    pub(super) fn link(&self) -> &'static str {
        if self.people { "because " } else { "because the " }
    }
}

//! Narrator that generates text about the world within one share, with balanced subjects.

use super::draw::{Deck, Draw};
use super::facts::{Entity, Fact, Facts, LINKS};
use super::lore::{Meeting, meeting};
use super::relation::RelationKind;
use super::share::{Share, share};
use super::text::{capital, fill, sentence, words};
use super::words::{Activity, STEPS, WORDS};

/// Minimum number of words from which a text belongs to only one split.
pub(super) const PARAGRAPH: usize = 20;

/// Number of attempts before a text is made longer.
const PATIENCE: usize = 60;

#[derive(Debug)]
pub(super) struct Voice<'w> {
    pub(super) facts: &'w Facts,
    pub(super) draw: Draw,
    pub(super) share: Share,
    entities: Vec<Entity>,
    turns: Deck,
    people: Deck,
    asked: Vec<Fact>,
    asking: Deck,
    causes: Deck,
    schemas: Deck,
    activities: Deck,
}

/// A cause and its effect as printed by COPA, without the final punctuation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CauseLink {
    pub(super) premise: String,
    pub(super) connector: &'static str,
    pub(super) choice: String,
}

/// Completed steps of an activity, and the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ActivityScene {
    pub(super) label: &'static str,
    pub(super) done: String,
    pub(super) pronoun: &'static str,
    pub(super) next: String,
}

impl<'w> Voice<'w> {
    pub(super) fn new(facts: &'w Facts, share: Share, key: &[u64]) -> Self {
        let entities: Vec<Entity> = RelationKind::ALL
            .iter()
            .flat_map(|kind| (0..facts.count(*kind)).map(|index| Entity { kind: *kind, index }))
            .collect();
        let asked: Vec<Fact> = (0..LINKS).flat_map(|link| facts.of_link(link)).collect();
        Self {
            draw: Draw::new(key),
            share,
            turns: Deck::weighted(&entities.iter().map(|entity| turns(entity.kind)).collect::<Vec<_>>()),
            people: Deck::new(facts.count(RelationKind::Person)),
            asking: Deck::new(asked.len()),
            causes: Deck::new(WORDS.causes.len()),
            schemas: Deck::new(WORDS.schemas.len()),
            activities: Deck::new(WORDS.activities.len()),
            facts,
            entities,
            asked,
        }
    }

    /// Generates a paragraph of this share. Texts shorter than a paragraph may belong to any share.
    pub(super) fn paragraph(&mut self, make: impl FnMut(&mut Self) -> String) -> String {
        self.owned(PARAGRAPH, make)
    }

    /// Generates a text of this share, regardless of its length.
    pub(super) fn own(&mut self, make: impl FnMut(&mut Self) -> String) -> String {
        self.owned(0, make)
    }

    /// Calls `make` until its text belongs to this share, or has fewer than `length` words.
    fn owned(&mut self, length: usize, mut make: impl FnMut(&mut Self) -> String) -> String {
        let mut attempt = 0;
        loop {
            let mut text = make(self);
            if attempt >= PATIENCE {
                // There may be too few wordings; another sentence adds variation.
                text.push(' ');
                text.push_str(&sentence(self.draw.pick(&WORDS.fillers)));
            }
            if words(&text) < length || share(&text) == self.share {
                return text;
            }
            attempt += 1;
        }
    }

    pub(super) fn entity(&mut self) -> Entity {
        self.entities[self.turns.draw(&mut self.draw)]
    }

    pub(super) fn person(&mut self) -> Entity {
        Entity { kind: RelationKind::Person, index: self.people.draw(&mut self.draw) }
    }

    pub(super) fn any(&mut self, kind: RelationKind) -> Entity {
        Entity { kind, index: self.draw.below(self.facts.count(kind)) }
    }

    pub(super) fn name(&self, entity: Entity) -> &'w str {
        self.facts.name(entity)
    }

    pub(super) fn pick(&mut self, words: &[&'static str]) -> &'static str {
        self.draw.pick(words)
    }

    /// Draws a question that the corpora may contain, with its answer.
    pub(super) fn question(&mut self) -> (String, String) {
        loop {
            let fact = self.asked[self.asking.draw(&mut self.draw)];
            if let Some(question) = self.facts.question(fact, &mut self.draw) {
                return (question, self.facts.value(fact).to_owned());
            }
        }
    }

    /// Returns the facts about an entity that the corpora may state, in random order.
    pub(super) fn known(&mut self, entity: Entity) -> Vec<Fact> {
        let mut known = self.facts.about(entity).to_vec();
        self.draw.shuffle(&mut known);
        known
    }

    pub(super) fn clause(&mut self, fact: Fact, pronoun: bool) -> String {
        self.facts.statement(fact, pronoun, &mut self.draw).unwrap_or_default()
    }

    /// Returns sentences about an entity that each state one or two facts of `known`. Only the first one always names
    /// the entity.
    pub(super) fn sentences(&mut self, entity: Entity, known: &[Fact]) -> Vec<String> {
        let mut sentences = Vec::new();
        let mut rest = known;
        while let [fact, tail @ ..] = rest {
            let pronoun = !sentences.is_empty() && self.draw.chance(60);
            let mut clause = self.clause(*fact, pronoun);
            let mut used = 1;
            if let [next, ..] = tail
                && self.draw.chance(45)
                && let Some(joined) = self.joined(entity, *fact, *next, pronoun)
            {
                (clause, used) = (joined, 2);
            }
            if !sentences.is_empty() && self.draw.chance(20) {
                let opener =
                    self.pick(&["Also, ", "In fact, ", "Of course, ", "As many know, ", "Besides, ", "Today, "]);
                clause = format!("{opener}{clause}");
            }
            sentences.push(sentence(&clause));
            rest = &rest[used..];
        }
        sentences
    }

    /// Joins two facts about one subject into one clause.
    fn joined(&mut self, entity: Entity, first: Fact, second: Fact, pronoun: bool) -> Option<String> {
        let (they, _, _) = self.facts.pronouns(entity);
        let subject = if pronoun { they } else { self.name(entity) };
        let relative = if entity.kind == RelationKind::Person { "who" } else { "which" };
        match self.draw.below(4) {
            0 => {
                let first = self.clause(first, pronoun);
                let second = self.facts.statement(second, true, &mut self.draw)?;
                let link = self.pick(&[", and ", ", and ", ", but ", "; "]);
                Some(format!("{first}{link}{second}"))
            }
            1 if !pronoun => {
                let first = self.facts.predicate(first, &mut self.draw)?;
                let second = self.facts.predicate(second, &mut self.draw)?;
                Some(format!("{subject}, {relative} {first}, {second}"))
            }
            _ => {
                let first = self.facts.predicate(first, &mut self.draw)?;
                let second = self.facts.predicate(second, &mut self.draw)?;
                Some(format!("{subject} {first} and {second}"))
            }
        }
    }

    /// Formats a cause and its effect for this person. The text may be reserved for the tasks.
    pub(super) fn reason(&self, pair: usize, person: Entity, backward: bool) -> CauseLink {
        let (cause, effect) = WORDS.causes[pair];
        let (premise, connector, choice) =
            if backward { (effect, "because", cause) } else { (cause, "therefore", effect) };
        let named = premise.contains('{');
        let mut premise = self.personal(premise, person, false);
        if !cause.contains('{') && !effect.contains('{') {
            // A pair without a person has only one text, so add a place for variation.
            let town =
                Entity { kind: RelationKind::Place, index: person.index % self.facts.count(RelationKind::Place) };
            premise = format!("in {} {premise}", self.name(town));
        }
        CauseLink { premise: capital(&premise), connector, choice: self.personal(choice, person, named) }
    }

    /// Fills a person into a clause, by name (once) or by pronoun.
    pub(super) fn personal(&self, template: &str, person: Entity, pronoun: bool) -> String {
        let (they, their, them) = self.facts.pronouns(person);
        let name = self.name(person);
        if pronoun {
            return fill(template, &[("s", they), ("p", their), ("o", them)]);
        }
        let owner = format!("{name}'s");
        fill(template, &[("s", name), ("p", &owner), ("o", name)])
    }

    /// Draws a cause and its effect that the corpora may contain.
    pub(super) fn free_reason(&mut self) -> (CauseLink, usize, Entity) {
        let backward = self.draw.chance(50);
        loop {
            let pair = self.causes.draw(&mut self.draw);
            let person = self.person();
            let reason = self.reason(pair, person, backward);
            if reason.share() != Share::Scored {
                return (reason, pair, person);
            }
        }
    }

    /// Generates an event between two subjects, with a reason that names one of them instead of using a pronoun.
    pub(super) fn reference(&mut self) -> String {
        loop {
            if self.draw.chance(50) {
                let Meeting { opening, names, endings } = meeting(self.facts, &mut self.draw);
                let at = self.draw.below(2);
                let text = format!("{opening}{} {}.", names[at], endings[at]);
                // Some texts are as long as a paragraph. Paragraphs must not occur in several splits, so only the
                // training split uses these.
                let shared = self.share != Share::Train && words(&text) >= PARAGRAPH;
                if share(&opening) != Share::Scored && !shared {
                    return text;
                }
                continue;
            }
            let schema = self.schemas.draw(&mut self.draw);
            let entry = &WORDS.schemas[schema];
            let (x, y) = self.couple(entry.people);
            let event = event(schema, x, y);
            if share(&event) != Share::Scored {
                let second = self.draw.chance(50);
                let (name, reason) = if second { (y, entry.second) } else { (x, entry.first) };
                return format!("{event} {}{name} {reason}.", entry.link());
            }
        }
    }

    pub(super) fn couple(&mut self, people: bool) -> (&'w str, &'w str) {
        couple(self.facts, people, &mut self.draw)
    }

    /// Returns the scene with the steps from `from` up to the one before `next`.
    pub(super) fn scene(&self, activity: usize, person: Entity, from: usize, next: usize) -> ActivityScene {
        let Activity { label, steps } = &WORDS.activities[activity];
        let (they, ..) = self.facts.pronouns(person);
        let done: Vec<String> = (from..next)
            .map(|step| {
                let who = if step == from { self.name(person) } else { they };
                sentence(&format!("{who} {}", steps[step]))
            })
            .collect();
        ActivityScene { label, done: done.join(" "), pronoun: they, next: format!("{}.", steps[next]) }
    }

    /// Describes an activity from a random step on, up to the first scene reserved for the tasks.
    pub(super) fn free_scene(&mut self) -> String {
        loop {
            let activity = self.activities.draw(&mut self.draw);
            let person = self.person();
            let from = self.draw.below(STEPS - 1);
            let far = from + 1 + self.draw.below(STEPS - 1 - from);
            let mut latest = None;
            for next in from + 1..=far {
                let scene = self.scene(activity, person, from, next);
                if scene.share() == Share::Scored {
                    break;
                }
                latest = Some(scene);
            }
            // The text may be as long as a paragraph, which must not occur in several splits.
            if let Some(scene) = latest.filter(|scene| scene.share() == self.share) {
                return scene.full();
            }
        }
    }

    pub(super) fn activity(&mut self) -> (&'static Activity, Entity) {
        let activity = &WORDS.activities[self.activities.draw(&mut self.draw)];
        (activity, self.person())
    }
}

/// Returns the number of turns per round for a kind. Kinds that also appear on other subjects' pages need fewer.
fn turns(kind: RelationKind) -> usize {
    match kind {
        RelationKind::Animal => 6,
        RelationKind::Person => 5,
        RelationKind::Object | RelationKind::Place => 3,
        RelationKind::Job | RelationKind::Region | RelationKind::Material | RelationKind::Class => 2,
    }
}

/// Draws two people, or two objects without their articles.
pub(super) fn couple<'w>(facts: &'w Facts, people: bool, draw: &mut Draw) -> (&'w str, &'w str) {
    let limit = if people { facts.count(RelationKind::Person) } else { WORDS.objects.len() };
    let drawn = draw.several(2, limit);
    let name = |index: usize| if people { facts.person(index) } else { WORDS.objects[index] };
    (name(drawn[0]), name(drawn[1]))
}

/// Describes the event between two subjects, without the reason.
pub(super) fn event(schema: usize, x: &str, y: &str) -> String {
    capital(&fill(WORDS.schemas[schema].event, &[("x", x), ("y", y)]))
}

impl CauseLink {
    pub(super) fn share(&self) -> Share {
        share(&format!("{} {} {}", self.premise, self.connector, self.choice))
    }
}

impl ActivityScene {
    pub(super) fn full(&self) -> String {
        format!("{}: {} {} {}", self.label, self.done, capital(self.pronoun), self.next)
    }

    pub(super) fn share(&self) -> Share {
        share(&self.full())
    }
}

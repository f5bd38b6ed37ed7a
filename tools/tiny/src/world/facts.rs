//! Facts of the world, and the wordings that are reserved for the tasks.

use super::draw::Draw;
use super::relation::{
    CLASS, HOME, HOPS, JOB, MATERIAL, PET, PETS, REGION, RELATIONS, RelationKind, RelationValues, ValueOrder,
};
use super::text::bare;
use super::words::WORDS;

/// Bit masks of the wordings of a fact that the corpora may use.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Free {
    pub(super) statements: u32,
    pub(super) questions: u32,
}

/// A person or thing, by its index within its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entity {
    pub(super) kind: RelationKind,
    pub(super) index: usize,
}

/// A fact: a relation (or, from `RELATIONS` on, a hop) and the index of its subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) link: usize,
    pub(super) subject: usize,
}

/// All facts of the world.
#[derive(Debug)]
pub(super) struct Facts {
    names: [Vec<String>; 8],
    /// Index of the value, by `[relation][subject]`.
    values: Vec<Vec<usize>>,
    /// Value as an answer, by `[link][subject]`.
    answers: Vec<Vec<String>>,
    pub(super) free: Vec<Vec<Free>>,
    /// Facts that the corpora may state, by `[kind][index]`.
    told: [Vec<Vec<Fact>>; 8],
}

/// Number of links: relations first, then hops.
pub(super) const LINKS: usize = RELATIONS + HOPS;

pub(super) fn is_hop(link: usize) -> bool {
    link >= RELATIONS
}

pub(super) fn subject_kind(link: usize) -> RelationKind {
    if is_hop(link) {
        WORDS.relations[WORDS.hops[link - RELATIONS].first].subject
    } else {
        WORDS.relations[link].subject
    }
}

impl Facts {
    pub(super) fn new(seed: u64) -> Self {
        let mut draw = Draw::new(&[seed, 0]);
        let names = RelationKind::ALL.map(|kind| names(kind, &mut draw));
        let told = std::array::from_fn(|_| Vec::new());
        let mut facts = Self { names, values: Vec::new(), answers: Vec::new(), free: Vec::new(), told };
        for relation in &WORDS.relations {
            let subjects = facts.count(relation.subject);
            let values = facts.choices(&relation.values);
            let mut dealt: Vec<usize> = (0..subjects).map(|subject| subject * values / subjects).collect();
            if relation.order == ValueOrder::Drawn {
                draw.shuffle(&mut dealt);
            }
            facts.values.push(dealt);
        }
        facts.answers = (0..LINKS).map(|link| facts.of_link(link).map(|fact| facts.answer(fact)).collect()).collect();
        facts.free = (0..LINKS).map(|link| facts.free_wordings(link)).collect();
        facts.told = RelationKind::ALL
            .map(|kind| (0..facts.count(kind)).map(|index| facts.printable(Entity { kind, index })).collect());
        facts
    }

    pub(super) fn count(&self, kind: RelationKind) -> usize {
        self.names[kind as usize].len()
    }

    pub(super) fn name(&self, entity: Entity) -> &str {
        &self.names[entity.kind as usize][entity.index]
    }

    pub(super) fn person(&self, index: usize) -> &str {
        &self.names[RelationKind::Person as usize][index]
    }

    /// Returns all facts of one link, by subject.
    pub(super) fn of_link(&self, link: usize) -> impl Iterator<Item = Fact> {
        (0..self.count(subject_kind(link))).map(move |subject| Fact { link, subject })
    }

    pub(super) fn subject(&self, fact: Fact) -> Entity {
        Entity { kind: subject_kind(fact.link), index: fact.subject }
    }

    fn choices(&self, values: &RelationValues) -> usize {
        match values {
            RelationValues::Words(words) => words.len(),
            RelationValues::Places => WORDS.places.len(),
            RelationValues::Regions => WORDS.regions.len(),
            RelationValues::Pets => PETS,
        }
    }

    fn value_index(&self, relation: usize, subject: usize) -> usize {
        self.values[relation][subject]
    }

    /// Returns the entity that is the value of a plain relation, if any.
    pub(super) fn object_of(&self, fact: Fact) -> Option<Entity> {
        let kind = match fact.link {
            HOME => RelationKind::Place,
            JOB => RelationKind::Job,
            PET => RelationKind::Animal,
            CLASS => RelationKind::Class,
            MATERIAL => RelationKind::Material,
            REGION => RelationKind::Region,
            _ => return None,
        };
        Some(Entity { kind, index: self.value_index(fact.link, fact.subject) })
    }

    /// Returns the value as an answer: `a baker`, `red`, `Dorvel`.
    pub(super) fn value(&self, fact: Fact) -> &str {
        &self.answers[fact.link][fact.subject]
    }

    fn answer(&self, fact: Fact) -> String {
        let (relation, subject) = match fact.link.checked_sub(RELATIONS) {
            Some(hop) => (WORDS.hops[hop].second, self.value_index(WORDS.hops[hop].first, fact.subject)),
            None => (fact.link, fact.subject),
        };
        let index = self.value_index(relation, subject);
        match &WORDS.relations[relation].values {
            RelationValues::Words(words) => words[index].to_owned(),
            RelationValues::Places => WORDS.places[index].to_owned(),
            RelationValues::Regions => WORDS.regions[index].to_owned(),
            RelationValues::Pets => format!("a {}", bare(&self.names[RelationKind::Animal as usize][index])),
        }
    }

    /// Returns the pronouns of an entity in subject, possessive and object form.
    pub(super) fn pronouns(&self, entity: Entity) -> (&'static str, &'static str, &'static str) {
        match entity.kind {
            RelationKind::Person if entity.index < WORDS.women.len() => ("she", "her", "her"),
            RelationKind::Person => ("he", "his", "him"),
            _ => ("it", "its", "it"),
        }
    }

    /// Returns the relation that a hop starts with.
    pub(super) fn start_of(link: usize) -> Option<usize> {
        link.checked_sub(RELATIONS).map(|hop| WORDS.hops[hop].first)
    }

    /// Returns all facts about an entity that the corpora may state, including hops.
    pub(super) fn about(&self, entity: Entity) -> &[Fact] {
        &self.told[entity.kind as usize][entity.index]
    }

    fn printable(&self, entity: Entity) -> Vec<Fact> {
        (0..LINKS)
            .filter(|link| subject_kind(*link) == entity.kind)
            .filter(|link| self.free[*link][entity.index].statements != 0)
            .map(|link| Fact { link, subject: entity.index })
            .collect()
    }
}

fn names(kind: RelationKind, draw: &mut Draw) -> Vec<String> {
    match kind {
        RelationKind::Person => owned(&[WORDS.women.as_slice(), &WORDS.men].concat()),
        RelationKind::Animal => {
            let mut animals = with_article(&WORDS.animals);
            // The seed determines which animals are pets.
            draw.shuffle(&mut animals);
            animals
        }
        RelationKind::Object => with_article(&WORDS.objects),
        RelationKind::Place => owned(&WORDS.places),
        RelationKind::Job => owned(WORDS.relations[JOB].words()),
        RelationKind::Region => owned(&WORDS.regions),
        RelationKind::Material => owned(WORDS.relations[MATERIAL].words()),
        RelationKind::Class => owned(WORDS.relations[CLASS].words()),
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()
}

fn with_article(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| format!("the {word}")).collect::<Vec<_>>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_dealt_evenly() {
        let facts = Facts::new(0);
        for (relation, dealt) in WORDS.relations.iter().zip(&facts.values) {
            let values = facts.choices(&relation.values);
            let counts: Vec<usize> =
                (0..values).map(|value| dealt.iter().filter(|other| **other == value).count()).collect();
            let least = counts.iter().min().unwrap();
            let most = counts.iter().max().unwrap();
            assert!(*least >= 1 && most - least <= 1, "{:?}: {counts:?}", relation.statements);
        }
    }

    #[test]
    fn seeds_make_worlds() {
        let one = Facts::new(0);
        let two = Facts::new(1);
        let same = |link: usize| one.of_link(link).filter(|fact| one.value(*fact) == two.value(*fact)).count();
        assert!(same(super::super::relation::HOME) < 15);
        assert_eq!(same(super::super::relation::USE), 60);
    }
}
